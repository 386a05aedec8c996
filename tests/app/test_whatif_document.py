"""The what-if document and its CSV rows."""

import io
import json
from pathlib import Path

from app.marks import time_text
from app.whatif_document import CSV_COLUMNS, PickRows, sweep_row, whatif_document
from ingest.log.segment_reader import SegmentReader
from projections.events.control import KvPickSettings
from replay.alternative import Alternative
from replay.whatif import LIMITS, what_if
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_whatif import SAME, TURNS, asked, busy

PAIRS = Path(__file__).parents[1] / "golden" / "run-kv-1.4.2"  # prefill and decode workers of a real fleet


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


def test_what_the_alternatives_of_a_sweep_cannot_tell_is_among_the_limits() -> None:
    term = Alternative("on", None, (("kv", KvPickSettings(1.0, 1.0, 0.0)),))
    limits = whatif_document(asked(busy(), TURNS, term), time_text)["limits"]
    assert limits[:-1] == list(LIMITS) and limits[-1].startswith("29 of these picks")


def test_a_cell_is_never_taken_for_a_formula() -> None:
    world = RecordedLog()
    world.replica().ask("=1+1")
    out = io.StringIO()
    what_if(world.log, None, 0, world.log.end_offset(), [TURNS], each=PickRows(out, time_text).add)
    head, row = out.getvalue().splitlines()
    assert head == ",".join(CSV_COLUMNS)
    assert ",'=1+1," in row
    assert row.endswith(",0,0"), "blocks held by the choice of then and the other one"


def test_a_pick_that_moves_in_one_phase_alone_is_lost_and_gained_there_alone() -> None:
    reader = SegmentReader.open(PAIRS)
    weightless = Alternative("no credit", None, (("kv.overlap_credit", 0.0),))
    found = what_if(reader, None, 0, reader.end_offset(), [weightless])
    reader.close()
    document = whatif_document(found, time_text)
    for name in ("by_worker", "by_prefill_worker"):
        rows = document[name]
        assert sum(row["lost"] for row in rows) == sum(row["gained"] for row in rows)
        assert all(row["before"] - row["lost"] == row["after"] - row["gained"] for row in rows)
    assert sum(row["lost"] for row in document["by_prefill_worker"]) > 0
    assert document["moved"] > sum(row["lost"] for row in document["by_worker"])
