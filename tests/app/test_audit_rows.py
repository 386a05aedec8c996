"""Rows on their way: counted, and cut where the database has them already."""

from app.audit_rows import AuditRows
from projections.audit.rows import ReplicaHeard
from projections.audit.translation import end_row, pick_row
from projections.events.picks import DispatchEnded
from tests.projections.log_story import pick


def held() -> AuditRows:
    rows = AuditRows()
    for offset in (3, 5):
        rows.picks.append(pick_row(offset, pick(offset, 1, 0), None, None))
        rows.candidates.append(("id", 0, offset))
        end = DispatchEnded(b"p" * 16, b"r" * 16, 1, 9, 1, 0, 200, "b", None, 5)
        rows.ends.append(end_row(offset, end))
        rows.changes.append((offset, ReplicaHeard("ab", offset)))
    rows.last = (5, 77)
    return rows


def test_everything_held_counts() -> None:
    assert held().count == 8
    assert AuditRows().count == 0


def test_what_lies_beyond_an_offset_is_kept_with_the_mark() -> None:
    rest = held().after(3)
    assert [row.log_offset for row in rest.picks] == [5]
    assert [row[2] for row in rest.candidates] == [5]
    assert [row.log_offset for row in rest.ends] == [5]
    assert [offset for offset, _ in rest.changes] == [5]
    assert rest.last == (5, 77)
    assert held().after(2).count == 8
    assert held().after(5).count == 0
