"""WHERE of the offline commands: a data directory, found or refused with what to do."""

from pathlib import Path

import pytest
import typer

from app.checkpoint_store import CheckpointFolder
from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, refusals_told
from app.log_places import OpenLog, data_directory, open_log
from projections.events.ports import MemoryLog
from tests.app.captures import capture_of
from tests.app.log_on_disk import some_picks, written


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(where: Path | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as ended, refusals_told(), open_log(where):
        pass
    return ended.value.exit_code, capsys.readouterr().err


def seen(opened: OpenLog) -> int:
    return opened.reader.end_offset()


def test_a_data_directory_is_opened_with_its_checkpoints_and_closed(tmp_path: Path) -> None:
    world = some_picks()
    data = written(world, tmp_path / "data")
    (data / "checkpoints").mkdir()
    name = f"{4:020d}-{7:016x}-{9:020d}.checkpoint"
    (data / "checkpoints" / name).write_bytes(b"")
    with open_log(data) as opened:
        assert seen(opened) == world.log.end_offset()
        assert [info.name for info in opened.checkpoints.list()] == [name]
        assert opened.name == str(data)


def test_without_a_place_the_demo_s_data_directory_is_read() -> None:
    world = some_picks()
    written(world, Path(".run/data"))
    with open_log(None) as opened:
        assert (seen(opened), opened.name) == (world.log.end_offset(), ".run/data")


def test_reading_disturbs_no_file(tmp_path: Path) -> None:
    data = written(some_picks(), tmp_path / "data")
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    with open_log(data) as opened:
        opened.reader.read(0, 1 << 20)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_without_a_place_and_without_the_default_the_command_says_what_to_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, told = refused(None, capsys)
    assert status == EXIT_UNREACHABLE
    assert "there is no .run/data here: name a data directory with --log DIR" in told


def test_a_missing_directory_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = refused(Path("nowhere"), capsys)
    assert (status, "nowhere: no such file or directory" in told) == (EXIT_UNREACHABLE, True)


def test_a_directory_without_a_log_is_unreachable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = refused(tmp_path, capsys)
    assert (status, "no log at" in told) == (EXIT_UNREACHABLE, True)


def test_the_folder_of_segments_itself_points_to_its_parent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(some_picks(), tmp_path / "data")
    status, told = refused(data / "log", capsys)
    assert status == EXIT_USAGE
    assert f"name the data directory, {data}" in told


def test_a_configuration_that_is_not_there_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = refused(Path("kafka:site.yaml"), capsys)
    assert (status, "site.yaml" in told) == (EXIT_UNREACHABLE, True)


def test_a_topic_has_no_data_directory_and_may_grow(capsys: pytest.CaptureFixture[str]) -> None:
    opened = OpenLog(MemoryLog(), CheckpointFolder(Path("none")), "kafka:site.yaml")
    assert opened.may_grow
    with pytest.raises(typer.Exit) as ended:
        data_directory(opened)
    assert ended.value.exit_code == EXIT_USAGE
    assert "kafka:site.yaml has no data directory" in capsys.readouterr().err


def test_a_capture_is_a_place_with_its_base_as_checkpoint(tmp_path: Path) -> None:
    world = some_picks()
    capture_of(world.log, None, tmp_path / "a.capture", 12)
    with open_log(tmp_path / "a.capture") as opened:
        assert seen(opened) == world.log.end_offset()
        assert [info.offset for info in opened.checkpoints.list()] == [opened.reader.first_offset() - 1]
        assert (opened.name, opened.data) == (str(tmp_path / "a.capture"), None)
        assert not opened.may_grow
        with pytest.raises(typer.Exit) as ended:
            data_directory(opened)
        assert ended.value.exit_code == EXIT_USAGE


def test_a_file_that_is_no_capture_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("window.capture").write_bytes(b"x")
    status, told = refused(Path("window.capture"), capsys)
    assert (status, "no capture" in told) == (EXIT_USAGE, True)
