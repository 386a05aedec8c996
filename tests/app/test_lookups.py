"""A running process looks into its own log as an offline command would."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.log_places import checkpoint_folder
from app.lookups import Lookups
from app.marks import MarkRefused
from ingest.log.segment_log import SegmentLog
from replay.explain import PickNotFound

GOLDEN = Path(__file__).parents[1] / "golden" / "run-1.6.1"


@pytest.fixture
def lookups(tmp_path: Path) -> Lookups:
    (tmp_path / "log").mkdir()
    for path in (GOLDEN / "log").iterdir():
        (tmp_path / "log" / path.name).write_bytes(path.read_bytes())
    store = CheckpointFolder(checkpoint_folder(tmp_path))
    return Lookups(tmp_path, store, lambda: SegmentLog.open_reader(tmp_path))


@pytest.mark.req("EVS-07")
def test_a_pick_is_explained_by_any_of_its_names(lookups: Lookups) -> None:
    last = lookups.explain("last")
    assert last["repeated"] == "equal"
    for name in (last["pick"]["pick_id"], last["pick"]["request_id"], str(last["pick"]["log_offset"])):
        assert lookups.explain(name)["pick"] == last["pick"]
    with pytest.raises(PickNotFound):
        lookups.explain("nobody")


def test_the_state_of_any_mark_is_told(lookups: Lookups) -> None:
    assert len(lookups.state("end")["workers"]) == 5, "one of six was killed on the way"
    assert len(lookups.state("200")["workers"]) == 6
    with pytest.raises(MarkRefused):
        lookups.state("yesterday")
