from __future__ import annotations

from typing import Any

import pytest

from ingest.log import outage
from ingest.log.appends import Entry, Importance
from ingest.log.outage import PickBuffer
from projections.bounds import SECOND_US
from projections.events.codec import encode_record
from projections.events.picks import PicksLost
from tests.ingest.log.facts import REPLICA, end, pick


def entry(fact: Any) -> Entry:
    return Entry(fact, Importance.PICK, 1, None, 0)


def lost(numbers: range) -> tuple[PickBuffer, list[Entry]]:
    """A buffer all of whose picks became too old."""
    buffer, entries = PickBuffer(), [entry(pick(number)) for number in numbers]
    for one in entries:
        buffer.add(one)
    assert buffer.shrink(31 * SECOND_US) == entries
    return buffer, entries


def test_a_line_says_what_the_ledger_needs() -> None:
    buffer, entries = lost(range(3, 4))
    placed = buffer.place([*entries, entry(end(3))])
    (record,) = placed.waiting
    assert isinstance(record, PicksLost)
    (line,) = record.lines
    made = pick(3)
    assert record.replica == REPLICA
    assert (line.pick_id, line.own_seq, line.namespace) == (made.pick_id, made.own_seq, "dynamo")
    assert (line.asked_at, line.dispatched_at) == (made.question.asked_at, made.question.dispatched_at)
    assert (line.decode, line.prefill) == (made.outcome.decode.chosen, None)
    assert (line.ended_seq, line.ended_at) == (end(3).own_seq, end(3).ended_at)
    assert [folded.fact for folded in placed.folded] == [end(3)]
    assert buffer.lines == 0


def test_an_end_of_a_pick_that_is_not_lost_stays_a_record() -> None:
    buffer, entries = lost(range(3, 4))
    ending = entry(end(2))
    placed = buffer.place([*entries, ending])
    assert placed.waiting[1:] == [ending]
    assert placed.folded == []


def test_a_dropped_pick_leaves_nothing_but_its_line_in_memory() -> None:
    _, (dropped,) = lost(range(1))
    assert dropped.fact == outage.line_of(pick(0))


def test_many_lines_are_split_into_records_that_fit() -> None:
    buffer, entries = lost(range(outage.LINES_PER_RECORD + 10))
    records = [one for one in buffer.place(entries).waiting if isinstance(one, PicksLost)]
    assert [len(record.lines) for record in records] == [outage.LINES_PER_RECORD, 10]
    assert all(encode_record(1, bytes(16), 0, 1, record) for record in records)


def test_lines_beyond_the_ceiling_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "LINES_MAX", 2)
    buffer, _ = lost(range(5))
    assert (buffer.lines, buffer.forgotten) == (2, 3)
