"""A cursor begins at the newest checkpoint that serves, and notes what speaks against the log."""

import pytest

from projections.events.codec import decode_record, encode_record
from projections.events.control import ClockTicked, FoldModeAdopted
from projections.events.picks import PickMade
from projections.events.ports import MemoryLog
from projections.fold import Fold
from replay.agreement import Break
from replay.fold_cursor import FoldCursor, cursor_at
from replay.log_walk import records_of
from tests.replay.checkpoints_in_memory import Checkpoints
from tests.replay.recorded_log import RecordedLog


def ticking(seconds: int = 6, samples: int = 4) -> RecordedLog:
    """A log whose ticks carry what its owner noted at the tick before."""
    world = RecordedLog()
    fold, last, records, total = Fold(), 0, 0, 0
    noted: tuple[int, tuple[tuple[str, int], ...], int, int] = (-1, (), 0, 0)
    for number in range(seconds):
        for place in range(samples):
            world.sample(1 + place % 3, 10 * number + place)
        world.pass_time(1_000_000)
        offset, digests, count, check_sum = noted
        world.say(ClockTicked(world.time, offset, digests, count, check_sum))
        for last, data in records_of(world.log, fold.mark.offset + 1):
            fold.apply(last, data, [])
            records += 1
            total = (total + int.from_bytes(data[-8:], "little")) % (1 << 64)
        noted, records, total = (last, fold.digests(), records, total), 0, 0
    return world


def walked(log: MemoryLog) -> FoldCursor:
    cursor = FoldCursor(Fold(), -1)
    cursor.walk(log, log.end_offset() - 1)
    return cursor


def copied(
    world: RecordedLog, drop: int | None = None, forge: int | None = None, renumbered: bool = False
) -> MemoryLog:
    """The same log with one record left out, or one changed and its check word made good."""
    log = MemoryLog(world.log.log_id)
    for offset, data in records_of(world.log, 0):
        record = decode_record(offset, data)
        if offset == forge:
            fact = record.fact._replace(kv_used_blocks=77)  # type: ignore[attr-defined]
            data = encode_record(record.time, record.writer, record.epoch, record.sequence, fact)
        if offset != drop:
            if not renumbered:
                log.jump(offset)
            log.commit([data])
    return log


def test_an_honest_log_agrees_with_its_ticks() -> None:
    cursor = walked(ticking().log)
    assert (cursor.agreement.agreed, cursor.agreement.breaks, cursor.refused) == (5, [], 0)


def sample_offset(world: RecordedLog) -> int:
    return next(o for o, d in records_of(world.log, 15) if d[3] == 0 and d[5] == 10)


def kinds(log: MemoryLog) -> list[Break]:
    return [found.kind for found in walked(log).agreement.breaks]


@pytest.mark.parametrize("renumbered", [False, True])
def test_a_missing_record_is_told_by_the_next_ticks(renumbered: bool) -> None:
    world = ticking()
    assert kinds(copied(world, drop=sample_offset(world), renumbered=renumbered))[0] is Break.MISSING


def test_a_forged_record_is_told_by_the_next_ticks() -> None:
    world = ticking()
    assert kinds(copied(world, forge=sample_offset(world)))[0] is Break.CHANGED


def test_a_record_whose_check_word_differs_is_counted_and_named() -> None:
    world = ticking()
    log = MemoryLog(world.log.log_id)
    for offset, data in records_of(world.log, 0):
        log.commit([data[:-1] + bytes([data[-1] ^ 1]) if offset == 16 else data])
    cursor = walked(log)
    assert (cursor.refused, cursor.first_refused) == (1, 16)


def test_the_newest_checkpoint_that_can_be_read_serves() -> None:
    world = ticking()
    checkpoints = Checkpoints()
    for offset in (12, 20, 28):
        checkpoints.take(world, offset)
    assert cursor_at(world.log, checkpoints, 30, frozenset()).base == 28
    assert cursor_at(world.log, checkpoints, 27, frozenset()).base == 20
    checkpoints.damaged.add(20)
    assert cursor_at(world.log, checkpoints, 27, frozenset()).base == 12
    assert cursor_at(world.log, None, 27, frozenset()).base == -1


def test_a_fold_that_stops_stays_where_it_is() -> None:
    world = RecordedLog()
    stop = world.say(FoldModeAdopted((99,)))
    world.sample(1, 5)
    cursor = walked(world.log)
    assert cursor.stopped is not None and cursor.stopped.offset == stop
    records = cursor.records
    cursor.apply(stop + 1, [b"never looked at"])
    assert cursor.records == records


def test_watched_facts_are_told_once_they_are_folded() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r0")
    told: list[tuple[int, int]] = []
    cursor = FoldCursor(Fold(), -1)
    cursor = FoldCursor(cursor.fold, -1, {PickMade: lambda offset, _: told.append((offset, 1))})
    cursor.walk(world.log, world.log.end_offset() - 1)
    assert told == [(world.log.end_offset() - 1, 1)]
