"""Picks of a living log are repeated as they become visible, each once, with the verdicts of one walk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from app.following import Following
from app.log_places import OpenLog
from app.second_look import HELD_TICKS
from app.verify_following import VerifyFollowing
from projections.events.control import ClockTicked, Pinged
from projections.events.picks import PickMade, PicksDistrusted
from replay.engine import Replay, Unverifiable
from replay.verify import Difference, verify
from tests.app.test_pick_following import Breaking
from tests.app.test_replay_verify_cli import altered
from tests.replay.captured import MemoryCheckpoints, busy_log
from tests.replay.recorded_log import RecordedLog, Replica


class Run:
    """One that follows a log in memory."""

    def __init__(self, world: RecordedLog, start: int, checkpoints: MemoryCheckpoints | None = None) -> None:
        self.differences: list[Difference] = []
        self.lines: list[str] = []
        opened = OpenLog(world.log, checkpoints or MemoryCheckpoints(), "memory")
        self.verifying = VerifyFollowing(opened, start, self.differences.append, self.lines.append)
        self.following = Following(world.log)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.verifying.walk.run(self.following))
        try:
            yield
        finally:
            self.following.stop()
            await task

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110  # what is followed tells nobody
                await asyncio.sleep(0)

    def has_equal(self, count: int) -> bool:
        return self.counts == (count, 0, 0)

    @property
    def counts(self) -> tuple[int, int, int]:
        report = self.verifying.report()
        return report.equal, report.different, report.unverifiable


def ping(world: RecordedLog, *replicas: Replica) -> None:
    """All of them say that they have read everything, so nothing older is to be waited for."""
    for replica in replicas:
        replica.read()
        world.say(Pinged(replica.id, 0, replica.fold.mark.offset), replica.id)


@pytest.mark.req("EVS-06")
async def test_picks_of_all_replicas_are_repeated_while_the_log_grows() -> None:
    world = RecordedLog()
    replicas = [world.replica() for _ in range(3)]
    start = world.log.end_offset()
    run = Run(world, start)
    async with run.running():
        for number in range(6):
            for replica in replicas:
                world.sample(1, number)
                replica.end(replica.ask(f"r{number}"))
            ping(world, *replicas)
            await run.until(partial(run.has_equal, 3 * (number + 1)))
    report = run.verifying.report()
    assert (report.picks, report.equal) == (18, 18)
    assert report.records == world.log.end_offset() - start
    assert (report.chains.gaps, report.chains.breaks) == (0, 0)
    assert run.verifying.walk.ended is None
    assert run.lines and "picks: " in run.lines[0] and "behind the end" in run.lines[0]


async def test_what_was_read_at_the_end_is_asked_though_a_replica_might_have_named_an_older_state() -> None:
    world = busy_log(4)
    run = Run(world, 0)
    async with run.running():
        await run.until(lambda: run.verifying.report().records == world.log.end_offset())
    whole = verify(world.log, None)
    assert whole.picks == 8
    assert run.verifying.report()[:5] == whole[:5]
    assert run.verifying.report().by_version == whole.by_version


async def test_a_difference_is_told_a_few_ticks_later_and_counted() -> None:
    world = RecordedLog()
    run = Run(world, world.log.end_offset())
    async with run.running():
        await differing(run, world)
        assert not run.differences
        for _ in range(HELD_TICKS + 1):  # the last has those before it looked at
            world.say(ClockTicked(0, -1, (), 0, 0))
        await run.until(lambda: run.differences)
        assert run.counts == (0, 1, 0)
    assert "instance_id" in run.differences[0].field
    assert run.verifying.report().first_difference == run.differences[0]


async def differing(run: Run, world: RecordedLog) -> PickMade:
    """A pick that cannot be reproduced, as soon as it was asked."""
    replica = world.replica()
    altered(world)
    ping(world, replica)
    world.say(Pinged(bytes([102]) * 16, 0, world.log.end_offset() - 1), bytes([102]) * 16)
    await run.until(lambda: run.verifying.walk.machine.answered)
    [fact] = [one.fact for one in Replay(world.log, None).asked()]
    return fact


@pytest.mark.req("EVS-06")
async def test_a_pick_that_its_replica_names_a_moment_later_is_told_as_no_difference() -> None:
    world = RecordedLog()
    run = Run(world, world.log.end_offset())
    async with run.running():
        fact = await differing(run, world)
        world.say(PicksDistrusted(fact.replica, fact.as_of - 1, fact.as_of), fact.replica)
        await run.until(lambda: run.verifying.walk.machine.position == world.log.end_offset())
    assert run.counts == (0, 0, 1) and not run.differences
    assert run.verifying.report().reasons == {Unverifiable.SUSPECT: 1}


async def test_what_was_found_before_bytes_that_do_not_check_is_reported_with_them() -> None:
    world = busy_log(4)
    log = Breaking.in_place_of(world)
    run = Run(world, 0)
    log.bad = log.end_offset() - 1
    await run.verifying.walk.run(run.following)
    report = run.verifying.report()
    assert report.damage is not None and "check word differs" in report.damage
    assert report.equal >= 6
