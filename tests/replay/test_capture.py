"""A capture holds what the picks of its window need, and they are asked again out of it."""

from __future__ import annotations

import json

import orjson
import pytest

from projections.checkpoint import fold_from_checkpoint
from projections.events.control import (
    ConditionalSettings,
    ConfigAdopted,
    FoldModeAdopted,
    KvPickSettings,
    RecordCondemned,
)
from projections.events.picks import PickMade
from projections.events.ports import LogReader
from projections.fold import Fold
from replay.capture import CaptureRefused, Plan, manifest_of, plan_capture, write_capture
from replay.log_walk import record_at, records_of
from replay.verify import verify
from tests.replay.captured import MemoryCapture, MemoryCheckpoints, busy_log, checkpoint_at
from tests.replay.recorded_log import SETTINGS, RecordedLog


def picks_of(reader: LogReader, start: int, stop: int) -> list[tuple[int, int]]:
    """(offset, as-of) of the picks whose records stand there."""
    found = []
    for offset, data in records_of(reader, start, stop):
        record = record_at(offset, data)
        if record is not None and isinstance(record.fact, PickMade):
            found.append((offset, record.fact.as_of))
    return found


def captured(
    world: RecordedLog, start: int, stop: int, store: MemoryCheckpoints
) -> tuple[Plan, MemoryCapture]:
    plan = plan_capture(world.log, store, start, stop)
    capture = MemoryCapture()
    write_capture(world.log, store, plan, capture)
    return plan, capture


@pytest.mark.req("EVS-19")
def test_every_pick_of_any_window_is_asked_again_out_of_its_capture_alone() -> None:
    world = busy_log()
    store = MemoryCheckpoints()
    checkpoint_at(world, store, 20)
    end = world.log.end_offset()
    for start in range(0, end, 3):
        for stop in (start + 1, (start + end) // 2, end):
            if stop <= start:
                continue
            plan, capture = captured(world, start, stop, store)
            report = verify(capture.log, capture.checkpoints, plan.start, plan.stop)
            wanted = picks_of(world.log, start, stop)
            assert (report.picks, report.equal) == (len(wanted), len(wanted)), (start, stop, report)
            assert plan.picks == len(wanted)


def test_it_begins_with_the_state_of_the_oldest_as_of_in_the_window() -> None:
    world = busy_log()
    start, stop = 30, world.log.end_offset()
    plan, capture = captured(world, start, stop, MemoryCheckpoints())
    assert plan.base == min(as_of for _, as_of in picks_of(world.log, start, stop)) < start
    assert (capture.log.first_offset(), capture.log.end_offset()) == (plan.base + 1, stop)
    assert plan.records == stop - plan.base - 1
    (info,) = capture.checkpoints.list()
    assert info.offset == plan.base


def test_a_window_from_the_log_s_beginning_needs_no_base() -> None:
    world = busy_log()
    plan, capture = captured(world, 0, world.log.end_offset(), MemoryCheckpoints())
    assert plan.base == -1
    assert capture.checkpoints.list() == []
    assert [*records_of(capture.log, 0)] == [*records_of(world.log, 0)]


def test_folding_a_capture_gives_the_state_that_the_log_gives() -> None:
    world = busy_log()
    end = world.log.end_offset()
    _, capture = captured(world, 30, end, MemoryCheckpoints())
    plain = Fold()
    for offset, data in records_of(world.log, 0):
        plain.apply(offset, data, [])
    (info,) = capture.checkpoints.list()
    fold = fold_from_checkpoint(capture.checkpoints.read(info))
    for offset, data in records_of(capture.log, capture.log.first_offset()):
        fold.apply(offset, data, [])
    assert fold.digests() == plain.digests()


def test_the_window_reaches_to_what_condemns_a_record_of_its_own() -> None:
    world = busy_log(picks=3)
    stop = world.log.end_offset()
    world.pass_time(1)
    world.sample(1, 5)
    condemning = world.say(RecordCondemned(stop - 2, "it raised"))
    world.sample(1, 6)
    plan = plan_capture(world.log, None, 5, stop)
    assert plan.stop == condemning + 1
    assert "condemns" in plan.moved[0]
    assert plan_capture(world.log, None, 5, stop - 2).stop == stop - 2


def test_where_the_log_s_beginning_is_gone_it_begins_at_the_oldest_checkpoint() -> None:
    world = busy_log()
    store = MemoryCheckpoints()
    checkpoint_at(world, store, 25)
    world.log.forget(15)
    plan, capture = captured(world, 15, world.log.end_offset(), store)
    assert (plan.base, plan.start) == (25, 26)
    assert "26" in plan.moved[0]
    assert verify(capture.log, capture.checkpoints, plan.start, plan.stop).different == 0


def test_without_any_state_nothing_is_captured() -> None:
    world = busy_log()
    world.log.forget(15)
    with pytest.raises(CaptureRefused, match="no checkpoint"):
        plan_capture(world.log, MemoryCheckpoints(), 15, world.log.end_offset())


def test_an_empty_window_is_refused_with_what_the_log_holds() -> None:
    world = busy_log()
    end = world.log.end_offset()
    with pytest.raises(CaptureRefused, match=f"0 to {end}"):
        plan_capture(world.log, None, end, end + 5)


def test_the_manifest_says_what_is_in_it() -> None:
    world = busy_log()
    plan = plan_capture(world.log, None, 30, 40)
    written = write_capture(world.log, None, plan, MemoryCapture())
    manifest = manifest_of(
        plan,
        log_id=world.log.log_id,
        written=written,
        origin={"log_id": "07"},
        product="picklog 1",
        written_at="now",
        times=("a", "b"),
        is_redacted=False,
    )
    assert (manifest["window"]["from"], manifest["window"]["to"]) == (30, 40)
    assert [one["version"] for one in manifest["settings"]] == [1, 2]
    assert sum(manifest["kinds_held"].values()) == manifest["records"] == plan.records
    assert manifest["artifacts"] == []
    assert manifest["fold_modes"] == []
    wanting = SETTINGS._replace(
        kv=KvPickSettings(
            1.0,
            1.0,
            0.0,
            predicted_ttl_us=1,
            conditional=ConditionalSettings("isl_bounding", 0, 0.5, None, None),
        )
    )
    world.say(ConfigAdopted(3, "file", b"f", "{}", wanting))
    world.say(FoldModeAdopted((1, 3)))
    plan = plan_capture(world.log, None, 30, world.log.end_offset())
    written = write_capture(world.log, None, plan, MemoryCapture())
    manifest = manifest_of(
        plan,
        log_id=world.log.log_id,
        written=written,
        origin={},
        product="",
        written_at="",
        times=(None, None),
        is_redacted=False,
    )
    assert manifest["fold_modes"] == [1, 3]
    named = json.loads(orjson.dumps(manifest))["settings"][-1]
    assert named["pick"]["kv"]["predicted_ttl_us"] == 1
    assert named["pick"]["kv"]["conditional"]["policy"] == "isl_bounding"
    assert named["fold_modes"] == [1, 3]
    behind = world.say(FoldModeAdopted((3, 4))) + 1
    world.say(ConfigAdopted(4, "file", b"g", "{}", wanting))
    for first in (behind, behind - 1):
        plan = plan_capture(world.log, None, first, world.log.end_offset())
        written = write_capture(world.log, None, plan, MemoryCapture())
        assert written.fold_modes == ([3, 4] if first == behind else [1, 3, 4]), "in force, or adopted in it"
