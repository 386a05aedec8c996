"""A state that disagreed is kept for whoever looks for the cause, and nobody begins with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app import aside as module
from app.aside import Aside
from app.checkpoint_store import CheckpointFolder
from projections.checkpoint import fold_from_checkpoint
from projections.events.ports import CheckpointInfo
from projections.fold import Fold
from replay.log_walk import records_of
from tests.replay.recorded_log import RecordedLog

ME = b"m" * 16


def fold_of(world: RecordedLog) -> Fold:
    fold = Fold()
    for offset, data in records_of(world.log, 0):
        fold.apply(offset, data, [])
    return fold


def read(path: Path) -> Fold:
    """The state that a file holds, by the code that reads checkpoints."""
    info = CheckpointInfo(0, 0, 0, path.stat().st_size, path.name)
    return fold_from_checkpoint(CheckpointFolder(path.parent).read(info))


def shift(path: Path, seconds: float) -> None:
    """Let a file, which must be there, be that much younger."""
    at = path.stat().st_mtime + seconds
    os.utime(path, (at, at))


async def test_the_state_is_written_whole_under_a_name_that_no_checkpoint_has(tmp_path: Path) -> None:
    world = RecordedLog()
    fold, aside = fold_of(world), Aside(tmp_path, ME)
    with capture_logs() as lines:
        path = Path(aside.begin(fold, world.log.log_id))
        await aside.written()
    assert path == tmp_path / "aside" / f"{ME.hex()}-{fold.mark.offset:020d}.state"
    assert read(path).digests() == fold.digests() and read(path).mark == fold.mark
    assert CheckpointFolder(path.parent).list() == []
    assert lines[0]["file"] == str(path) and lines[0]["bytes"] > 500


async def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    world, aside = RecordedLog(), Aside(tmp_path, ME)
    names = []
    for number in range(4):
        world.sample(1, number)
        names.append(Path(aside.begin(fold_of(world), world.log.log_id)).name)
        await aside.written()
    assert sorted(path.name for path in (tmp_path / "aside").iterdir()) == names[-2:]


@pytest.mark.parametrize("step_s", [3600, -3600])
async def test_a_clock_that_is_stepped_costs_none_that_was_just_written(tmp_path: Path, step_s: int) -> None:
    """The older ones were written an hour before or, by a clock that was set back since, an hour later."""
    world, aside = RecordedLog(), Aside(tmp_path, ME)
    for number in range(3):
        world.sample(1, number)
        path = Path(aside.begin(fold_of(world), world.log.log_id))
        await aside.written()
        shift(path, step_s + number)
    assert len(list(path.parent.iterdir())) == module.KEPT


async def test_what_a_kill_left_half_written_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    folder = tmp_path / "aside"
    folder.mkdir()
    left, fresh = folder / "left.tmp", folder / "fresh.tmp"
    for path in (left, fresh):
        path.write_bytes(b"half")
    shift(left, -2 * module.STALE_NS / 1e9)
    world, aside = RecordedLog(), Aside(tmp_path, ME)
    written = Path(aside.begin(fold_of(world), world.log.log_id))
    await aside.written()
    assert sorted(folder.iterdir()) == sorted([written, fresh])


async def test_what_another_process_does_in_the_folder_costs_no_file_its_line(tmp_path: Path) -> None:
    """It removes an old file between the listing and the look at it; and one of them cannot be removed."""
    world, aside = RecordedLog(), Aside(tmp_path, ME)
    folder = tmp_path / "aside"
    folder.mkdir()
    (folder / "gone.state").symlink_to(folder / "nowhere")
    for name in ("a.state", "b.state"):
        (folder / name / "in the way").mkdir(parents=True)
    with capture_logs() as lines:
        path = Path(aside.begin(fold_of(world), world.log.log_id))
        await aside.written()
    assert [line["event"] for line in lines] == ["the state that disagreed is written aside"]
    assert read(path).mark.offset == fold_of(world).mark.offset


async def test_one_is_written_at_a_time(tmp_path: Path) -> None:
    world, aside = RecordedLog(), Aside(tmp_path, ME)
    aside.begin(fold_of(world), world.log.log_id)
    assert aside.begin(fold_of(world), world.log.log_id).startswith("not written: ")
    await aside.written()


@pytest.mark.parametrize("cause", ["too large", "no folder", "a torn state"])
async def test_what_cannot_be_written_is_a_line_and_no_more(
    tmp_path: Path, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, aside = RecordedLog(), Aside(tmp_path, ME)
    fold = fold_of(world)
    if cause == "too large":
        monkeypatch.setattr(module, "BYTES_MAX", 500)
    elif cause == "no folder":
        (tmp_path / "aside").write_text("a file")
    else:
        monkeypatch.setattr(fold.state, "registry", None)
    with capture_logs() as lines:
        aside.begin(fold, world.log.log_id)
        await aside.written()
    [line] = lines
    assert line["event"] == "the state that disagreed is not written aside" and line["cause"]
    assert cause == "no folder" or list((tmp_path / "aside").iterdir()) == []
