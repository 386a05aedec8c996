"""One line when a spool comes into use, one when it is empty again."""

from __future__ import annotations

from structlog.testing import capture_logs

from ingest.log.spool_notes import SpoolNotes
from projections.bounds import SECOND_US
from tests.ingest.log.memory_spill import MemorySpill
from tests.ingest.log.spooled_log import SpooledLog, an_outage


def test_the_begin_and_the_end_of_an_outage_are_told_once_each() -> None:
    log = SpooledLog(MemorySpill())
    notes = SpoolNotes(log.spool)
    with capture_logs() as captured:
        notes.look(0)
        for number in range(3):
            an_outage(log, 20)
            notes.look(number * SECOND_US)
        log.drain()
        notes.look(61 * SECOND_US)
        notes.look(62 * SECOND_US)
    assert [entry["log_level"] for entry in captured] == ["warning", "info"]
    assert captured[1]["seconds"] == 61
    assert captured[1]["bytes_most"] == log.spill.most


def test_what_is_thrown_away_is_told() -> None:
    log = SpooledLog(MemorySpill())
    an_outage(log, 40)
    with capture_logs() as captured:
        SpoolNotes(log.spool).discard()
        SpoolNotes(log.spool).discard()
    assert len(captured) == 1
    assert captured[0]["records"] > 20


def test_a_writer_without_a_spool_has_nothing_to_tell() -> None:
    notes = SpoolNotes(None)
    with capture_logs() as captured:
        notes.look(0)
        notes.discard()
    assert captured == []
