"""Where the candidate rows of the audit come from.

Up to PICK_ROWS_MAX a phase stand in the pick's own record. More, or all, are computed
again at the pick's as-of.
"""

from __future__ import annotations

from app.audit_projector import Candidates, RecordedCandidates
from projections.events.ports import CheckpointStore, LogReader


def candidates_of(limit: int | None, reader: LogReader, checkpoints: CheckpointStore | None) -> Candidates:
    """The source for so many rows a phase."""
    return RecordedCandidates()
