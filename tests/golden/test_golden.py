"""Logs of released versions fold to the same state and repeat every pick, for ever.

`run-*` are data directories of real fleets, `recording-*` were made of recordings, `world-*` of
engines that exist nowhere else; README.md tells of each. `expected.json` was written with it. A
change that breaks one of these breaks every log that somebody keeps: give the new behaviour a
number (fold mode or flag) instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import replay.verify as verify_module
from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from ingest.log.segment_reader import SegmentReader
from projections.events.picks import Chosen, Outcome
from projections.fold import Fold
from projections.intake import Intake
from projections.kv.side_index import SideIndex
from projections.view import Overlay, View
from replay.verify import Report, verify
from router.picker.pick import pick
from tests.golden.state import state_of

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
GOLDEN = sorted(path.parent for path in HERE.glob("*/expected.json"))
WORLD = HERE / "world-kv-tiers"
FLAGGED = HERE / "world-kv-in-flight"
COPIED = HERE / "world-kv-counted-once"
TAKEN_OUT: dict[str, dict[str, Any]] = {  # parts of the prefix term by the settings that are neutral to them
    "side": {"predicted_ttl_us": 0},
    "approximate": {"approximate_ttl_us": 0},
    "tiers": {"host_credit": 0.0, "disk_credit": 0.0},
    "host": {"host_credit": 0.0},
    "disk": {"disk_credit": 0.0},
    "decay": {"credit_decay": 0.0},
    "conditional": {"conditional": None},
    "softmax": {"temperature": 0.0},
    "bursts": {},
}
CHANGED_MIN = 3
MOVED_MIN = {"host": 0, "disk": 0}  # of these alone; together they are "tiers"
OTHER_PYTHONS = sorted(REPOSITORY.glob(".venvs/python-*/bin/python"))


def names(folders: list[Path]) -> list[str]:
    return [folder.name for folder in folders]


def test_there_are_golden_logs() -> None:
    assert len(GOLDEN) >= 11


@pytest.mark.req("EVS-06", "EVS-21")
@pytest.mark.parametrize("folder", GOLDEN, ids=names(GOLDEN))
def test_a_golden_log_folds_and_repeats_as_it_did(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    assert expected["different"] == 0
    assert expected["picks"] >= 50
    assert state_of(folder) == expected


@pytest.mark.req("EVS-13")
@pytest.mark.parametrize("folder", [f for f in GOLDEN if (f / "checkpoints").is_dir()], ids=lambda f: f.name)
def test_each_checkpoint_of_a_golden_log_and_its_tail_are_the_full_fold(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())["digests"]
    reader = SegmentReader.open(folder)
    store = CheckpointFolder(folder / "checkpoints")
    infos = store.list()
    assert infos
    for info in infos:
        start = start_fold(reader, store, before=info.offset)
        assert start.checkpoint == info
        position = start.next_offset
        while batches := reader.read(position, 1 << 20):
            for batch in batches:
                start.fold.apply_batch(batch, [])
            position = batches[-1].first_offset + len(batches[-1].records)
        assert {name: str(digest) for name, digest in start.fold.digests()} == expected
    assert verify(reader, store).different == 0
    reader.close()


@pytest.mark.parametrize("folder", GOLDEN, ids=names(GOLDEN))
@pytest.mark.parametrize("fault", ["expiry", "overlay", "rotation", "cost"])
def test_a_deliberately_broken_picker_is_caught(
    folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(view: Any, question: Any, settings: Any, flags: Any) -> Any:
        if fault == "expiry":
            question = question._replace(asked_at=question.asked_at + 40_000_000)
        elif fault == "overlay":
            view = View(view.as_of, view.fleet, view.load, type(view.ledger)(), type(view.overlay)())
        elif fault == "rotation":
            question = question._replace(rotation_decode=question.rotation_decode + 1)
        outcome = pick(view, question, settings, flags)
        if fault == "cost" and outcome.decode.rows:
            worse = outcome.decode.rows[:-1] + bytes([outcome.decode.rows[-1] ^ 1])
            outcome = outcome._replace(decode=outcome.decode._replace(rows=worse))
        return outcome

    monkeypatch.setattr(verify_module, "pick", broken)
    reader = SegmentReader.open(folder)
    report = verify(reader, None)
    reader.close()
    assert report.different > 0
    assert report.first_difference is not None


@pytest.mark.parametrize("folder", [f for f in GOLDEN if "-kv-" in f.name], ids=lambda f: f.name)
@pytest.mark.parametrize("fault", ["index", "draw", "credit", "hashes"])
def test_a_broken_prefix_term_is_caught(folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: Any, question: Any, settings: Any, flags: Any) -> Any:
        if fault == "index":
            view.kv = None
        elif fault == "draw":
            question = question._replace(draws=tuple(draw ^ (1 << 52) for draw in question.draws))
        elif fault == "credit" and settings.kv is not None:
            settings = settings._replace(kv=settings.kv._replace(overlap_credit=0.999))
        elif fault == "hashes":
            cut = tuple(held._replace(hashes=held.hashes[8:]) for held in question.hashes)
            question = question._replace(hashes=cut)
        return pick(view, question, settings, flags)

    monkeypatch.setattr(verify_module, "pick", broken)
    reader = SegmentReader.open(folder)
    report = verify(reader, None)
    reader.close()
    assert report.different > 0


def asked_again(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> tuple[Report, dict[str, Outcome]]:
    """The made world verified under settings that differ in these, and what every pick comes to."""
    found: dict[str, Outcome] = {}

    def changed_pick(view: Any, question: Any, settings: Any, flags: Any) -> Any:
        settings = settings._replace(kv=settings.kv._replace(**changed))
        found[question.request_id] = pick(view, question, settings, flags)
        return found[question.request_id]

    monkeypatch.setattr(verify_module, "pick", changed_pick)
    reader = SegmentReader.open(WORLD)
    report = verify(reader, None)
    reader.close()
    return report, found


def ranks_of(outcome: Outcome) -> list[Chosen | None]:
    """Who prefills and who decodes, without what they are charged."""
    chosen = (outcome.prefill.chosen, outcome.decode.chosen)
    return [one and one._replace(tokens=0, blocks=None) for one in chosen]


@pytest.mark.req("DYN-02", "DYN-04", "DYN-05", "DYN-08", "CDG-01")
@pytest.mark.parametrize("fault", TAKEN_OUT)
def test_each_part_of_the_prefix_term_decides_picks_of_the_made_world(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, recorded = asked_again(monkeypatch)
    assert report.different == 0 and len(recorded) == report.picks
    if fault == "bursts":  # own picks that the as-of does not hold stand for no blocks
        monkeypatch.setattr(Overlay, "predictions", lambda _: SideIndex())
    report, found = asked_again(monkeypatch, **TAKEN_OUT[fault])
    assert report.different >= CHANGED_MIN
    moved = [name for name, outcome in found.items() if ranks_of(outcome) != ranks_of(recorded[name])]
    assert len(moved) >= MOVED_MIN.get(fault, CHANGED_MIN)


@pytest.mark.req("DYN-04", "EVS-21")
def test_picks_are_repeated_by_the_flags_of_their_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    unflagged: list[tuple[Outcome, Outcome]] = []

    def spied(view: Any, question: Any, settings: Any, flags: Any) -> Any:
        outcome = pick(view, question, settings, flags)
        unflagged.append((outcome, pick(view, question, settings, ())))
        return outcome

    monkeypatch.setattr(verify_module, "pick", spied)
    for folder, has_flag in ((FLAGGED, True), (WORLD, False)):
        unflagged.clear()
        reader = SegmentReader.open(folder)
        report = verify(reader, None)
        reader.close()
        assert report.different == 0 and len(unflagged) == report.picks
        moved = [one for one, other in unflagged if ranks_of(one) != ranks_of(other)]
        assert len(moved) >= CHANGED_MIN if has_flag else not moved


@pytest.mark.req("EVS-15")
def test_copies_of_picks_move_picks_of_the_made_world_where_they_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Fold, "_told", lambda self, replica: 0)
    assert state_of(COPIED)["different"] >= CHANGED_MIN


@pytest.mark.req("EVS-15")
def test_a_copy_of_an_early_ping_is_heard_in_the_made_world_where_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Intake, "adopt", lambda self, flags: setattr(self, "fold_mode", flags))
    expected = json.loads((COPIED / "expected.json").read_text())
    found = state_of(COPIED)
    differing = {name for name, digest in found["digests"].items() if digest != expected["digests"][name]}
    assert differing == {"intake", "status"} and found["different"] == 0


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_string_hash_seeds_do_not_matter(seed: str) -> None:
    folder = GOLDEN[0]
    assert told_by(Path(sys.executable), folder, seed) == json.loads((folder / "expected.json").read_text())


@pytest.mark.skipif(
    not OTHER_PYTHONS, reason="no other Python: make pythons builds them where they are installed"
)
@pytest.mark.parametrize("python", OTHER_PYTHONS, ids=lambda p: p.parts[-3])
@pytest.mark.parametrize("folder", GOLDEN, ids=names(GOLDEN))
def test_other_pythons_give_the_same(python: Path, folder: Path) -> None:
    assert told_by(python, folder, "7") == json.loads((folder / "expected.json").read_text())


def told_by(python: Path, folder: Path, seed: str) -> Any:
    """The state of a golden log as another process tells it."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [python, "-m", "tests.golden.state", str(folder)],
        capture_output=True,
        check=True,
        env=environment,
        cwd=REPOSITORY,
    )
    return json.loads(done.stdout)
