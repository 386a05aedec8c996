"""What a followed log gives under other settings is what one walk over it gives, in every figure."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import app.following
from app.following import Following
from app.log_places import OpenLog, open_log
from app.marks import Marks
from app.read_times import ReadTimes
from app.whatif_document import PickRows, whatif_document
from app.whatif_following import WhatIfFollowing
from projections.bounds import SECOND_US
from projections.events.control import ClockTicked, KvPickSettings, Pinged
from replay.alternative import Alternative
from replay.engine import Unverifiable
from replay.whatif import what_if
from tests.replay.captured import MemoryCheckpoints, busy_log
from tests.replay.prefix_log import PrefixLog, ask
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_alternative import idle_log
from tests.replay.test_whatif import SAME, TURNS, busy

GOLDEN = Path(__file__).parents[1] / "golden"
SWEPT = (
    SAME,
    TURNS,
    Alternative("old samples count", None, (("max_staleness_us", 1 << 40),)),
    Alternative("nowhere", None, (("namespaces", ("elsewhere",)),)),
    Alternative("term", None, (("kv", KvPickSettings(1.0, 1.0, 0.0)),)),
    Alternative("no term", None, (("kv", None),)),
    Alternative("no credit", None, (("kv.overlap_credit", 0.0),)),
)


def in_memory(world: RecordedLog) -> OpenLog:
    return OpenLog(world.log, MemoryCheckpoints(), "memory")


def walked(opened: OpenLog, start: int, alternatives: Sequence[Alternative]) -> tuple[dict[str, Any], str]:
    """The document and the rows of one walk over the log as it stands."""
    rows, marks = io.StringIO(), Marks(opened.reader)
    each = PickRows(rows, marks.time_text).add
    end = opened.reader.end_offset()
    found = what_if(opened.reader, opened.checkpoints, start, end, alternatives, each=each)
    return whatif_document(found, marks.time_text), rows.getvalue()


async def followed(
    opened: OpenLog, start: int, alternatives: Sequence[Alternative]
) -> tuple[dict[str, Any], str]:
    """The same by following it until all of it was read."""
    rows, times = io.StringIO(), ReadTimes(Marks(opened.reader).skew_at(start))
    one = WhatIfFollowing(opened, start, alternatives, times, PickRows(rows, times.text).add, lambda _: None)
    following, end = Following(opened.reader, opened.data), opened.reader.end_offset()
    read = one.read

    def read_to_the_end(first_offset: int, records: Sequence[bytes]) -> None:
        read(first_offset, records)
        if first_offset + len(records) == end:
            following.stop()

    one.read = read_to_the_end  # type: ignore[method-assign]
    await one.walk.run(following, 60.0)
    assert (one.walk.ended, one.walk.damage) == (None, None)
    return whatif_document(one.found(), times.text), rows.getvalue()


def prefixes() -> PrefixLog:
    world = PrefixLog()
    world.store(2, "a", 8)
    replicas = [world.replica(), world.replica()]
    for number in range(8):
        world.pass_time(SECOND_US // 3)
        for worker, blocks in ((1, 10), (2, 20 + number), (3, 90)):
            world.sample(worker, blocks)
        replica = replicas[number % 2]
        if number % 3:
            replica.read()
        ask(replica, f"r{number}", "a", 3 + number)
    return world


def stopped_and_lost() -> RecordedLog:
    """Suspect picks, ones beside those that are lost or missing, a slow replica, a wall clock that drifts."""
    world = busy(12)
    replica, slow = world.replica(), world.replica()
    replica.ask("before")
    replica.lose(replica.choose("lost"))
    replica.ask("behind", model="nobody-serves-this")
    missing = replica.choose("missing")
    replica.end(missing)
    replica.ask("without it")
    for number in range(20):
        world.pass_time(SECOND_US)
        world.say(ClockTicked(world.time + 13 * number, -1, (), 0, 0))
        world.sample(1, number)
        if number % 5 == 0:
            replica.read()
            world.say(Pinged(replica.id, number, replica.fold.mark.offset), replica.id)
    slow.ask("on an old state")
    return world


@pytest.mark.req("EVS-08", "EVS-20")
@pytest.mark.parametrize("read_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("make", [busy, idle_log, busy_log, prefixes, stopped_and_lost])
async def test_a_log_that_has_ended_gives_what_one_walk_gives(
    make: Callable[[], RecordedLog], read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.following, "READ_BYTES", read_bytes)
    opened = in_memory(make())
    document, rows = await followed(opened, 0, SWEPT)
    assert (document, rows) == walked(opened, 0, SWEPT)
    assert document["picks"] > 5 and sum(row["moved"] for row in document["sweep"]) > 0
    if make is stopped_and_lost:
        assert document["not_asked_reasons"] == {"suspect": 1, "overlay": 1}


@pytest.mark.parametrize("start", [40, 80, 120])
async def test_so_does_a_range_that_begins_in_the_middle(start: int) -> None:
    opened = in_memory(busy(60))
    assert await followed(opened, start, SWEPT) == walked(opened, start, SWEPT)


@pytest.mark.parametrize("name", ["run-1.6.1", "run-kv-1.4.2", "run-kv-1.6.1"])
async def test_so_do_logs_of_real_fleets(name: str) -> None:
    with open_log(GOLDEN / name) as opened:
        document, rows = await followed(opened, 0, SWEPT)
        assert (document, rows) == walked(opened, 0, SWEPT)
    assert document["picks"] > 20


async def test_a_pick_that_comes_half_a_minute_late_is_told_as_one_that_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app.following, "READ_BYTES", 1)
    world = busy(5)
    silent = world.replica()
    for number in range(40):
        world.pass_time(SECOND_US)
        world.say(ClockTicked(world.time, -1, (), 0, 0))
        world.sample(1, number)
    silent.ask("late")
    opened = in_memory(world)
    document, _ = await followed(opened, 0, SWEPT)
    whole, _ = walked(opened, 0, SWEPT)
    assert document["not_asked_reasons"] == {"lag": 1}
    assert (document["picks"], whole["picks"], whole["not_asked"]) == (5, 6, 0)


async def test_a_pick_that_is_asked_while_the_log_grows_counts_once_and_its_words_say_so() -> None:
    world = RecordedLog()
    replica = world.replica()
    lines: list[str] = []
    opened = in_memory(world)
    start = world.log.end_offset()
    one = WhatIfFollowing(opened, start, [TURNS], ReadTimes(0), None, lines.append)
    for number in range(3):
        world.sample(1, 900)
        replica.ask(f"r{number}", suspect=number == 1)
        replica.read()
        world.say(Pinged(replica.id, number, replica.fold.mark.offset), replica.id)
    await one.walk.run(Following(world.log), 0.05)
    found = one.found()
    assert found.results[0].picks == 2 and found.not_asked == {Unverifiable.SUSPECT: 1}
    moved = found.results[0].moved
    assert one.words() == f"2 picks: {moved} move ({moved / 2:.1%}) under turns, 1 cannot be asked"
    assert lines[0].endswith(" records behind the end")
