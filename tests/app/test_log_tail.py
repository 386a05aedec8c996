"""The shell reads what is committed, carries effects out and waits only when nothing is left."""

import asyncio
import time
from itertools import pairwise
from typing import Any

from app.log_tail import LogTail, monotonic_us
from app.tail import Seen, Tail
from projections.events.control import CheckpointDue, Pinged, RecordCondemned
from projections.events.ports import LogReader
from projections.fold import Fold
from tests.replay.recorded_log import RecordedLog

ME = bytes([42]) * 16


class Heard:
    """What a shell told."""

    def __init__(self, world: RecordedLog, news_from: int = 0, **options: Any) -> None:
        self.pings: list[tuple[int, int]] = []
        self.notices: list[Any] = []
        self.old: list[Any] = []
        self.seen: list[Seen] = []
        self.slices = 0
        self.tail = Tail(Fold(), ME, monotonic_us(), **options)
        self.shell = LogTail(
            world.log,
            self.tail,
            on_ping=lambda number, as_of: self.pings.append((number, as_of)),
            news_from=news_from,
            on_notices=lambda notices, is_news: (self.notices if is_news else self.old).extend(notices),
            on_folded=self._folded,
            on_seen=self.seen.append,
        )

    def _folded(self) -> None:
        self.slices += 1


def test_a_step_folds_what_is_there_and_says_when_nothing_is() -> None:
    world = RecordedLog()
    heard = Heard(world)
    steps = 0
    while heard.shell.step():
        steps += 1
    assert steps >= 1
    assert heard.tail.fold.mark.offset == world.log.end_offset() - 1
    assert heard.slices >= 1
    assert heard.notices


def test_a_tick_appends_a_ping_that_makes_the_reader_ready_once_read_back() -> None:
    world = RecordedLog()
    heard = Heard(world)
    while heard.shell.step():
        pass
    heard.shell.tick()
    ((number, as_of),) = heard.pings
    assert as_of == heard.tail.fold.mark.offset
    world.say(Pinged(ME, number, as_of), ME)
    while heard.shell.step():
        pass
    assert heard.tail.readiness(monotonic_us()).ready


def test_the_shell_is_told_of_facts_at_the_very_offset() -> None:
    world = RecordedLog()
    due = world.say(CheckpointDue("time"))
    world.sample(1, 5)
    heard = Heard(world, pause_after=frozenset((CheckpointDue,)))
    offsets: list[int] = []
    heard.shell._on_seen = lambda seen: offsets.append(heard.tail.fold.mark.offset)
    while heard.shell.step():
        pass
    assert offsets == [due]


async def test_run_returns_when_the_fold_must_start_anew() -> None:
    world = RecordedLog()
    bad = world.say(CheckpointDue("time"))
    heard = Heard(world)
    running = asyncio.create_task(heard.shell.run())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert heard.tail.fold.mark.offset == bad
    world.say(RecordCondemned(bad, "it cannot be applied elsewhere"))
    again = await running
    assert (again.reason, again.condemned) == ("condemned", frozenset((bad,)))


def test_old_news_is_folded_and_neither_seen_nor_told_as_news() -> None:
    world = RecordedLog(3)
    world.say(CheckpointDue("time"))
    news_from = world.log.end_offset()
    heard = Heard(world, news_from, watched=frozenset((CheckpointDue,)))
    new = world.say(CheckpointDue("time"))
    while heard.shell.step():
        pass
    assert heard.old
    assert heard.notices == []
    assert [seen.offset for seen in heard.seen] == [new]


async def test_records_of_a_busy_log_gather_and_the_first_after_a_silence_does_not_wait() -> None:
    world = RecordedLog()
    waited: list[float] = []

    class Looked(LogReader):
        """The world's log; notes when somebody begins to wait, and says news at once."""

        log_id = world.log.log_id
        first_offset, end_offset, read = world.log.first_offset, world.log.end_offset, world.log.read

        async def wait(self, offset: int, timeout_s: float) -> None:
            waited.append(time.monotonic())
            world.sample(1, 1)

    heard = Heard(world)
    shell = LogTail(
        Looked(),
        heard.tail,
        on_ping=None,
        on_notices=lambda *_: None,
        on_folded=lambda: None,
        gather_s=0.02,
    )
    assert shell._folded_at < 0, "it has folded nothing yet: nothing to gather for"
    folding = asyncio.create_task(shell.run())
    async with asyncio.timeout(20):
        while len(waited) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
    folding.cancel()
    await asyncio.gather(folding, return_exceptions=True)
    assert all(later - earlier >= 0.02 for earlier, later in pairwise(waited))
