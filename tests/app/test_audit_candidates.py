"""Where candidate rows come from."""

from app.audit_candidates import candidates_of
from app.audit_projector import RecordedCandidates
from projections.bounds import PICK_ROWS_MAX
from tests.replay.recorded_log import RecordedLog


def test_what_a_record_holds_is_taken_from_it() -> None:
    log = RecordedLog().log
    assert isinstance(candidates_of(PICK_ROWS_MAX, log, None), RecordedCandidates)
