"""Where the candidate rows of the audit come from.

Up to PICK_ROWS_MAX a phase stand in the pick's own record. More, or all, are computed again at
the pick's as-of, as the shadow does: a fold of its own follows the log about a second behind,
because a pick's record comes after the state that it was made on. Picks that cannot be asked
again keep the rows of their record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.reasking import Reasking
from projections.bounds import PICK_ROWS_MAX
from projections.events.kinds import Kind
from projections.events.picks import Phase, PickMade
from projections.events.ports import CheckpointStore, LogReader
from replay.engine import Asked
from replay.fold_cursor import cursor_at
from replay.log_walk import kind_byte, record_at
from router.picker.pick import UnknownPicker, candidate_table
from router.picker.rows import CandidateRow, unpack_rows

WORK_STEPS_MAX = 64  # of about a millisecond each, before the loop is given back

Tables = dict[Phase, list[CandidateRow]]


class Candidates(Protocol):
    """Gives the candidates of picks; is shown every record before its rows are asked for."""

    def read(self, first_offset: int, records: Sequence[bytes], is_last: bool) -> None:
        """Records that follow the ones before. is_last: nothing comes behind them."""

    def work(self) -> bool:
        """Do a bounded piece of what there is to do; whether there is more."""

    def is_ready(self, offset: int) -> bool:
        """Whether the rows of a pick at `offset` can be given; True for any other record."""

    def of(self, offset: int, fact: PickMade) -> Tables:
        """The candidates of both phases, best first. Asked once for each pick that has rows."""


class RecordedCandidates:
    """The best candidates that the pick's own record holds, PICK_ROWS_MAX a phase."""

    def read(self, first_offset: int, records: Sequence[bytes], is_last: bool) -> None:
        """See Candidates."""

    def work(self) -> bool:
        """See Candidates."""
        return False

    def is_ready(self, offset: int) -> bool:
        """See Candidates."""
        return True

    def of(self, offset: int, fact: PickMade) -> Tables:
        """See Candidates."""
        return recorded_tables(fact)


class ReaskedCandidates:
    """Every candidate, computed again. What it holds is bounded by what `Reasking` reads ahead."""

    def __init__(self, machine: Reasking) -> None:
        self._machine = machine
        self._waiting: set[int] = set()
        self._tables: dict[int, Tables] = {}

    def read(self, first_offset: int, records: Sequence[bytes], is_last: bool) -> None:
        """See Candidates."""
        for offset, data in enumerate(records, first_offset):
            if kind_byte(data) == Kind.PICK_MADE:
                record = record_at(offset, data)
                if record is not None and isinstance(record.fact, PickMade):
                    self._waiting.add(offset)
        self._machine.read(first_offset, records)
        self._machine.is_whole = is_last

    def work(self) -> bool:
        """See Candidates."""
        for _ in range(WORK_STEPS_MAX):
            is_busy, asked = self._machine.work()
            if asked is not None:
                self._waiting.discard(asked.offset)
                self._tables[asked.offset] = tables_of(asked)
            if not is_busy:
                return False
        return True

    def is_ready(self, offset: int) -> bool:
        """See Candidates."""
        return offset not in self._waiting

    def of(self, offset: int, fact: PickMade) -> Tables:
        """See Candidates."""
        found = self._tables.pop(offset, None)
        for passed in [older for older in self._tables if older < offset]:  # of records that took no effect
            del self._tables[passed]
        return recorded_tables(fact) if found is None else found


def candidates_of(
    limit: int | None,
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    start: int,
    condemned: frozenset[int],
) -> Candidates:
    """The source for so many rows a phase, to be shown the records behind offset `start`.

    Where its fold can begin only earlier, it reads what lies between by itself.
    """
    if not needs_all(limit):
        return RecordedCandidates()
    cursor = cursor_at(reader, checkpoints, start, condemned)
    cursor.walk(reader, start)
    return ReaskedCandidates(Reasking(cursor))


def needs_all(limit: int | None) -> bool:
    """Whether so many candidate rows are more than a pick's record holds."""
    return limit is None or limit > PICK_ROWS_MAX


def tables_of(asked: Asked) -> Tables:
    """All candidates of a pick that can be asked again, else those of its record."""
    if asked.view is None or asked.settings is None:
        return recorded_tables(asked.fact)
    try:
        return candidate_table(asked.view, asked.fact.question, asked.settings.pick, asked.flags)
    except UnknownPicker:
        return recorded_tables(asked.fact)


def recorded_tables(fact: PickMade) -> Tables:
    """The candidates that the pick's record holds."""
    outcome = fact.outcome
    return {Phase.PREFILL: _unpacked(outcome.prefill.rows), Phase.DECODE: _unpacked(outcome.decode.rows)}


def _unpacked(data: bytes) -> list[CandidateRow]:
    try:
        return unpack_rows(data)
    except ValueError:  # of another layout: the pick has its row all the same
        return []
