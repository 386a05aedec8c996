"""Row types: values of plain kinds, keyed by log positions, with no column twice."""

import typing

import pytest

from projections.audit import rows
from projections.audit.rows import CANDIDATE_COLUMNS, END_CAUSES

TYPES = [
    rows.PickRow,
    rows.EndRow,
    rows.ConfigRow,
    rows.ReplicaRow,
    rows.ShadowRow,
    rows.VerificationRow,
]
PLAIN = {int, str, bool, type(None)}


@pytest.mark.parametrize("row", TYPES, ids=lambda row: row.__name__)
def test_a_row_holds_plain_values_and_its_place_in_the_log(row: type) -> None:
    hints = typing.get_type_hints(row)
    kinds = {kind for hint in hints.values() for kind in (typing.get_args(hint) or (hint,))}
    assert kinds <= PLAIN
    assert {"lane", "log_offset"} <= set(hints)


def test_columns_of_candidates_stand_once() -> None:
    assert len(set(CANDIDATE_COLUMNS)) == len(CANDIDATE_COLUMNS)


def test_every_cause_of_an_end_is_explained() -> None:
    assert all(END_CAUSES.values())
    assert "changed" in END_CAUSES
