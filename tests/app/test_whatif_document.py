"""The what-if document and its CSV rows."""

import io
import json

from app.marks import time_text
from app.whatif_document import CSV_COLUMNS, PickRows, sweep_row, whatif_document
from replay.whatif import LIMITS, what_if
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_whatif import SAME, TURNS, asked, busy


def test_the_document_has_the_keys_of_the_contract_and_says_what_it_cannot_tell() -> None:
    found = whatif_document(asked(busy(), TURNS), time_text)
    assert found.keys() >= {"picks", "moved", "share", "by_model", "by_worker", "largest"}
    assert found["limits"] == list(LIMITS) and "sweep" not in found
    assert sum(row["before"] for row in found["by_worker"]) == found["picks"]
    assert sum(row["gained"] for row in found["by_worker"]) == found["moved"]
    assert found["by_model"]["tiny"]["share"] == found["share"]
    assert found["cost"]["prefill"] == {"picks": 0, "before": None, "after": None}
    before, after = found["spread"]["tiny"]["gini"]
    assert before > after, "turns are even"
    json.dumps(found)


def test_a_sweep_has_a_row_for_each_alternative() -> None:
    found = asked(busy(), SAME, TURNS)
    rows = whatif_document(found, time_text)["sweep"]
    assert [row["alternative"] for row in rows] == ["same", "turns"]
    assert sweep_row(found.results[0])["moved"] == 0


def test_a_cell_is_never_taken_for_a_formula() -> None:
    world = RecordedLog()
    world.replica().ask("=1+1")
    out = io.StringIO()
    what_if(world.log, None, 0, world.log.end_offset(), [TURNS], each=PickRows(out, time_text).add)
    head, row = out.getvalue().splitlines()
    assert head == ",".join(CSV_COLUMNS)
    assert ",'=1+1," in row
