"""Walking over a log: ranges, jumps, and kinds told from record heads."""

import pytest

from projections.events.codec import peek_kind
from projections.events.control import RecordCondemned
from projections.events.picks import PickMade
from replay.log_walk import batches_of, kind_byte, record_at, records_of
from tests.replay.recorded_log import RecordedLog


def world_of_every_kind() -> RecordedLog:
    world = RecordedLog()
    replica = world.replica()
    world.sample(1, 5)
    replica.end(replica.ask("r0"))
    replica.lose(replica.choose("lost"))
    world.say(RecordCondemned(1, "x"))
    return world


def test_kinds_are_read_from_two_bytes_as_the_codec_reads_them() -> None:
    for _, data in records_of(world_of_every_kind().log, 0):
        assert kind_byte(data) == peek_kind(data)


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (4, 4), (5, 9), (2, 10_000), (7, 3)])
def test_a_range_is_cut_at_both_ends(start: int, stop: int) -> None:
    world = world_of_every_kind()
    found = [offset for offset, _ in records_of(world.log, start, stop)]
    assert found == list(range(start, min(stop, world.log.end_offset())))


def test_batches_are_cut_like_records() -> None:
    world = RecordedLog()
    world.log.commit([b"x" * 20] * 10)
    first = world.log.end_offset() - 10
    [batch] = batches_of(world.log, first + 2, first + 5)
    assert (batch.first_offset, len(batch.records)) == (first + 2, 3)


def test_bytes_that_are_no_record_are_none() -> None:
    world = RecordedLog()
    offset = world.log.commit([b"nothing of ours at all"])
    assert record_at(offset, b"nothing of ours at all") is None
    replica = world.replica()
    replica.ask("r")
    last, data = list(records_of(world.log, 0))[-1]
    record = record_at(last, data)
    assert record is not None and isinstance(record.fact, PickMade)
