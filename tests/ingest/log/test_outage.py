from __future__ import annotations

import pytest

from ingest.log import outage
from ingest.log.outage import LostPicks
from projections.events.codec import encode_record
from tests.ingest.log.facts import REPLICA, end, pick


def test_a_line_says_what_the_ledger_needs() -> None:
    lost = LostPicks()
    lost.add_pick(pick(3))
    assert lost.add_end(end(3))
    (record,) = lost.take()
    (line,) = record.lines
    made = pick(3)
    assert record.replica == REPLICA
    assert (line.pick_id, line.own_seq, line.namespace) == (made.pick_id, made.own_seq, "dynamo")
    assert (line.asked_at, line.dispatched_at) == (made.question.asked_at, made.question.dispatched_at)
    assert (line.decode, line.prefill) == (made.outcome.decode.chosen, None)
    assert (line.ended_seq, line.ended_at) == (end(3).own_seq, end(3).ended_at)
    assert len(lost) == 0


def test_an_end_of_a_pick_that_is_not_lost_is_not_taken() -> None:
    lost = LostPicks()
    assert not lost.add_end(end(3))


def test_many_lines_are_split_into_records_that_fit() -> None:
    lost = LostPicks()
    for number in range(outage.LINES_PER_RECORD + 10):
        lost.add_pick(pick(number))
    records = list(lost.take())
    assert [len(record.lines) for record in records] == [outage.LINES_PER_RECORD, 10]
    assert all(encode_record(1, bytes(16), 0, 1, record) for record in records)


def test_lines_beyond_the_ceiling_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "LINES_MAX", 2)
    lost = LostPicks()
    for number in range(5):
        lost.add_pick(pick(number))
    assert (len(lost), lost.forgotten) == (2, 3)
