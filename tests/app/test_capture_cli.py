"""`picklog capture`: exported, shown, imported and asked again, and every trouble in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.capture_reader import CaptureReader
from app.checkpoint_store import CheckpointFolder
from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from app.log_places import checkpoint_folder
from tests.app.captures import with_manifest
from tests.app.log_on_disk import written
from tests.replay.captured import SECRETS, busy_log, checkpoint_at

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    world = busy_log()
    data = written(world, tmp_path / "data")
    checkpoint_at(world, CheckpointFolder(checkpoint_folder(data)), 30)
    return data


def command(*words: str | Path | int) -> int:
    return run([*map(str, words)])


def export(data: Path, out: Path, *words: str | Path | int) -> int:
    return command("capture", "export", "--log", data, "--out", out, *words)


def document(capsys: Captured) -> Any:
    return json.loads(capsys.readouterr().out)


def one_error_line(capsys: Captured) -> str:
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("picklog: ")]
    assert len(told) == 1
    return told[0]


@pytest.mark.req("EVS-19")
@pytest.mark.parametrize(
    "words", [(), ("--from", 34), ("--from", 20, "--to", 50), ("--from", 34, "--redact")]
)
def test_a_capture_gives_the_verdicts_of_its_log_on_any_machine(
    data: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, words: tuple[Any, ...]
) -> None:
    window = [word for word in words if word != "--redact"]
    assert command("replay", "verify", "--log", data, "--json", *window) == EXIT_DONE
    wanted = document(capsys)
    assert export(data, tmp_path / "a.capture", *words) == EXIT_DONE
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "a.capture").rename(elsewhere / "b.capture")
    monkeypatch.chdir(elsewhere)
    data.rename(tmp_path / "gone")
    capsys.readouterr()
    assert command("replay", "verify", "--log", "b.capture", "--json") == EXIT_DONE
    found = document(capsys)
    assert command("capture", "import", "b.capture", "--data", "made") == EXIT_DONE
    capsys.readouterr()
    assert command("replay", "verify", "--log", "made", "--json") == EXIT_DONE
    imported = document(capsys)
    for name in ("picks", "equal", "different", "unverifiable"):
        assert found[name] == imported[name] == wanted[name]
    assert wanted["picks"] > 3


def test_what_it_will_hold_is_told_before_it_is_written(data: Path, tmp_path: Path, capsys: Captured) -> None:
    assert export(data, tmp_path / "a.capture", "--from", 34, "--dry-run") == EXIT_DONE
    told = capsys.readouterr().err
    assert "window: offsets 34 to" in told
    assert "begins with the state of offset" in told
    assert "before compression" in told and "pick_made" in told
    assert not (tmp_path / "a.capture").exists()
    assert export(data, tmp_path / "a.capture", "--from", 34, "--dry-run", "--json") == EXIT_DONE
    assert document(capsys)["window"]["from"] == 34


def test_show_checks_every_byte_and_names_the_original_heads(
    data: Path, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "a.capture"
    export(data, path, "--redact")
    capsys.readouterr()
    assert command("log", "verify", "--log", data, "--json") == EXIT_DONE
    log = document(capsys)
    assert command("capture", "show", path, "--json") == EXIT_DONE
    shown = document(capsys)
    manifest = shown["manifest"]
    assert manifest["redacted"] is True
    assert manifest["log_id"] != manifest["origin"]["log_id"] == log["log_id"]
    assert manifest["origin"]["after"] == {"offset": log["end_offset"], "head": log["head"]}
    assert command("capture", "show", path) == EXIT_DONE
    text = capsys.readouterr().out
    assert log["head"] in text and "redacted" in text and "signature: none" in text


@pytest.mark.req("EVS-18")
def test_a_redacted_file_tells_no_address_card_or_host(data: Path, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "a.capture"
    export(data, path, "--redact", "--from", 20)
    assert command("capture", "import", path, "--data", tmp_path / "made") == EXIT_DONE
    capsys.readouterr()
    assert command("log", "cat", "--log", path) == EXIT_DONE
    text = capsys.readouterr().out
    text += json.dumps(CaptureReader(path).ends.manifest)
    base = CaptureReader(path).checkpoints()
    text += b"".join(base.read(base.list()[0])).decode("latin-1")
    assert [secret for secret in SECRETS if secret in text] == []


def test_damage_is_found_and_ends_with_1_or_2(data: Path, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "a.capture"
    export(data, path)
    whole = path.read_bytes()
    capsys.readouterr()
    path.write_bytes(whole[:300] + bytes((whole[300] ^ 1,)) + whole[301:])
    assert command("capture", "show", path) == EXIT_FOUND_WRONG
    assert "copy it again" in one_error_line(capsys)
    assert command("capture", "import", path, "--data", tmp_path / "made") == EXIT_FOUND_WRONG
    assert "part 0 was changed" in one_error_line(capsys)
    path.write_bytes(whole[:-20])
    for words in (("capture", "show", path), ("replay", "verify", "--log", path)):
        assert command(*words) == EXIT_USAGE
        assert "cut short" in one_error_line(capsys)
    assert sorted(os.listdir(tmp_path)) == ["a.capture", "data"]


def test_what_a_hostile_manifest_says_moves_no_cursor_and_ends_in_one_line(
    data: Path, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "a.capture"
    export(data, path)
    manifest = CaptureReader(path).ends.manifest
    with_manifest(path, orjson.dumps({**manifest, "product": "\x1b[2J", "kinds_held": {"\x1b[31m": 7}}))
    capsys.readouterr()
    assert command("capture", "show", path) == EXIT_DONE
    assert "\x1b" not in capsys.readouterr().out
    changes: list[dict[str, Any]] = [{"origin": 5}, {"kinds_held": None}, {"settings": [{}]}]
    for change in changes:
        with_manifest(path, orjson.dumps({**manifest, **change}))
        assert command("capture", "show", path) == EXIT_USAGE
        assert "its manifest lacks" in one_error_line(capsys)


def test_files_that_are_no_captures_are_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    assert command("capture", "show", tmp_path / "x") == EXIT_USAGE
    assert "no capture: its first 8 bytes differ" in one_error_line(capsys)
    assert command("replay", "explain", "last", "--log", tmp_path / "x") == EXIT_USAGE
    assert "no capture" in one_error_line(capsys)
    assert command("capture", "show", tmp_path / "nothing") == EXIT_UNREACHABLE
    assert "No such file" in one_error_line(capsys)


def test_an_existing_file_or_directory_is_not_replaced_unasked(
    data: Path, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "a.capture"
    path.write_bytes(b"mine")
    assert export(data, path) == EXIT_USAGE
    assert "exists: name another file, or say --force" in one_error_line(capsys)
    assert path.read_bytes() == b"mine"
    assert export(data, path, "--force") == EXIT_DONE
    capsys.readouterr()
    assert command("capture", "import", path, "--data", data) == EXIT_USAGE
    assert "exists and is not empty" in one_error_line(capsys)


def test_a_window_outside_the_log_is_refused_with_what_there_is(
    data: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert export(data, tmp_path / "a.capture", "--from", 50_000) == EXIT_USAGE
    assert "mark 50000 is beyond the log, whose newest record is" in one_error_line(capsys)
    assert export(data, tmp_path / "a.capture", "--from", "end", "--to", "begin") == EXIT_USAGE
    assert "runs backwards: swap the marks" in one_error_line(capsys)


def test_a_capture_of_a_capture_names_both(data: Path, tmp_path: Path, capsys: Captured) -> None:
    export(data, tmp_path / "a.capture", "--from", 20)
    assert export(tmp_path / "a.capture", tmp_path / "b.capture", "--from", 34, "--redact") == EXIT_DONE
    first, second = (CaptureReader(tmp_path / name).ends.manifest for name in ("a.capture", "b.capture"))
    assert second["origin"]["capture"] == first["capture"]
    assert second["origin"]["origin"] == first["origin"]
    assert second["origin"]["after"]["offset"] == first["end_offset"]
    capsys.readouterr()
    assert command("replay", "verify", "--log", tmp_path / "b.capture", "--json") == EXIT_DONE
    assert document(capsys)["unverifiable"] == 0


def test_segments_of_a_capture_are_not_looked_at_as_a_log(
    data: Path, tmp_path: Path, capsys: Captured
) -> None:
    export(data, tmp_path / "a.capture")
    capsys.readouterr()
    assert command("log", "stat", "--log", tmp_path / "a.capture") == EXIT_USAGE
    assert "use `picklog capture show" in one_error_line(capsys)


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from app.cli import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.parametrize("verb", ["export", "import"])
def test_a_disk_without_room_leaves_no_part_of_a_file(
    data: Path, tmp_path: Path, capsys: Captured, verb: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    words = ["capture", "export", "--log", str(data), "--out", str(out / "a.capture")]
    if verb == "import":
        export(data, tmp_path / "a.capture", "--from", 34)
        words = ["capture", "import", str(tmp_path / "a.capture"), "--data", str(out / "made")]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "2000", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_UNREACHABLE, done.stderr
    assert done.stderr.splitlines()[-1].startswith("picklog: ")
    assert "Traceback" not in done.stderr
    assert os.listdir(out) == []


def test_a_folder_that_is_not_there_is_told(data: Path, tmp_path: Path, capsys: Captured) -> None:
    assert export(data, tmp_path / "no" / "a.capture") == EXIT_UNREACHABLE
    assert "No such file or directory" in one_error_line(capsys)
