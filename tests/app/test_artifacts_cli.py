"""`picklog artifacts`: what cards name, where it stands, and YAML that can be pasted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from router.prompt.artifact_cache import BlobCache, checksum_of
from tests.app.artifact_log import CONFIG, TOKENIZER, fleet_log, slots

Captured = pytest.CaptureFixture[str]
SUM, CONFIG_SUM = checksum_of(TOKENIZER), checksum_of(CONFIG)


def command(*words: str | Path) -> int:
    return run(["artifacts", *map(str, words)])


def document(capsys: Captured) -> Any:
    return json.loads(capsys.readouterr().out)


def one_error_line(capsys: Captured) -> str:
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("picklog: ")
    return told[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model folder of this machine."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "tokenizer.json").write_bytes(TOKENIZER)
    (made / "tokenizer_config.json").write_bytes(CONFIG)
    return made


@pytest.fixture
def agreed(tmp_path: Path, folder: Path) -> Path:
    kv = {"pinned_artifacts": [SUM]}
    return fleet_log(tmp_path / "data", [("tiny", slots(folder)), ("tiny", slots(folder))], kv)


@pytest.fixture
def split(tmp_path: Path, folder: Path) -> Path:
    workers = [
        ("tiny", slots(folder)),
        ("tiny", slots(folder)),
        ("tiny", slots("http://10.0.0.9/m", b"stray")),
    ]
    return fleet_log(tmp_path / "data", [*workers, ("other", slots(folder))])


@pytest.mark.req("ART-01")
def test_a_list_for_people_names_what_to_review(agreed: Path, folder: Path, capsys: Captured) -> None:
    assert command("list", "--log", agreed) == EXIT_DONE
    told = capsys.readouterr().out
    for words in (
        "tiny: 2 workers, all agree",
        f"tokenizer: hf_tokenizer_json, {len(TOKENIZER)} bytes, pinned, 2 of 2 workers",
        f"prompt_formatter: hf_tokenizer_config_json, {len(CONFIG)} bytes, not pinned, 2 of 2 workers",
        SUM,
        CONFIG_SUM,
        f"{folder}/tokenizer.json",
    ):
        assert words in told


def test_a_list_as_json_has_a_row_a_file(split: Path, folder: Path, capsys: Captured) -> None:
    assert command("list", "--log", split, "--json") == EXIT_DONE
    found = document(capsys)
    assert [(one["model"], one["workers"], one["agreed"]) for one in found["models"]] == [
        ("other", 1, True),
        ("tiny", 3, False),
    ]
    rows = [
        (row["model"], row["slot"], row["checksum"], row["workers"], row["of_workers"], row["agreed"])
        for row in found["artifacts"]
    ]
    assert rows == [
        ("other", "tokenizer", SUM, 1, 1, True),
        ("other", "prompt_formatter", CONFIG_SUM, 1, 1, True),
        ("tiny", "tokenizer", SUM, 2, 3, False),
        ("tiny", "tokenizer", checksum_of(b"stray"), 1, 3, False),
        ("tiny", "prompt_formatter", CONFIG_SUM, 3, 3, False),
    ]
    assert found["artifacts"][4]["uris"] == [
        f"{folder}/tokenizer_config.json",
        "http://10.0.0.9/m/tokenizer_config.json",
    ]
    assert found["mark"].startswith("0:") and found["artifacts"][0]["pinned"] is False


def test_many_places_are_cut_in_the_list_and_whole_in_json(tmp_path: Path, capsys: Captured) -> None:
    data = fleet_log(tmp_path, [("tiny", slots(f"http://10.0.0.{n}/m")) for n in range(9)])
    command("list", "--log", data)
    assert "and 6 further places: see --json" in capsys.readouterr().out
    command("list", "--log", data, "--json")
    assert len(document(capsys)["artifacts"][0]["uris"]) == 9


def test_a_fleet_without_files_says_so(tmp_path: Path, capsys: Captured) -> None:
    data = fleet_log(tmp_path, [("tiny", {"tokenizer": 7}), ("plain", {})])
    assert command("list", "--log", data) == EXIT_DONE
    told = capsys.readouterr().out
    assert "tiny: 1 worker: cards have a malformed tokenizer" in told
    assert "plain: 1 worker: cards name no tokenizer" in told and "tokenizer: absent, 1 of 1" in told
    assert command("list", "--log", fleet_log(tmp_path / "none", [])) == EXIT_DONE
    assert "no worker" in capsys.readouterr().out


def test_a_file_is_shown_with_the_beginning_of_its_template_and_no_control_character(
    agreed: Path, folder: Path, capsys: Captured
) -> None:
    assert command("show", CONFIG_SUM[7:19], "--log", agreed) == EXIT_DONE
    told = capsys.readouterr().out
    assert f"{CONFIG_SUM}, not pinned" in told
    assert f"{folder}/tokenizer_config.json: verified" in told
    assert "  | {% for m in messages %}\n  | \\x1b[31m{{ m.content }}\\u202e\n" in told
    assert "\x1b" not in told and "\u202e" not in told


def test_a_file_that_is_not_here_is_shown_without_contents(split: Path, capsys: Captured) -> None:
    assert command("show", checksum_of(b"stray"), "--log", split) == EXIT_DONE
    told = capsys.readouterr().out
    assert "http://10.0.0.9/m/tokenizer.json" in told and "no copy of it lies on this machine" in told


def test_a_shown_file_as_json(agreed: Path, folder: Path, capsys: Captured) -> None:
    BlobCache(agreed / "artifacts").write(SUM, TOKENIZER)
    assert command("show", SUM, "--log", agreed, "--json") == EXIT_DONE
    found = document(capsys)
    assert found["checksum"] == SUM and found["pinned"] is True
    assert [one["state"] for one in found["here"]] == ["verified", "verified"]
    assert found["excerpt"] == TOKENIZER.decode() and found["named_by"][0]["model"] == "tiny"


@pytest.mark.req("ART-07")
def test_a_cached_file_that_was_changed_is_found_wrong(agreed: Path, capsys: Captured) -> None:
    cache = BlobCache(agreed / "artifacts")
    cache.write(SUM, TOKENIZER)
    cache.path_of(SUM).write_bytes(b"evil")
    assert command("show", SUM, "--log", agreed) == EXIT_FOUND_WRONG
    assert "another checksum than its name" in one_error_line(capsys)
    assert cache.path_of(SUM).read_bytes() == b"evil", "looking changes nothing"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f" * 64, "no card names"),
        ("", "too short"),
        ("blake3:12", "too short"),
        ("\x1b[31mxxxx\n", "no card names"),
    ],
)
def test_a_checksum_that_nobody_names_is_bad_usage(
    agreed: Path, text: str, words: str, capsys: Captured
) -> None:
    assert command("show", text, "--log", agreed) == EXIT_USAGE
    assert words in one_error_line(capsys)


@pytest.mark.req("ART-10")
def test_the_line_to_pin_is_yaml_that_can_be_pasted(agreed: Path, capsys: Captured) -> None:
    assert command("pin-line", "--log", agreed) == EXIT_DONE
    told = capsys.readouterr().out
    assert yaml.safe_load(told) == {"pinned_artifacts": [SUM, CONFIG_SUM]}
    assert "# tiny: 2 workers, all agree" in told and f"- {SUM}  # tokenizer hf_tokenizer_json" in told
    assert "pinned already" in told


@pytest.mark.req("ART-15")
def test_files_that_workers_disagree_on_are_never_pinned_by_pasting(split: Path, capsys: Captured) -> None:
    assert command("pin-line", "--log", split) == EXIT_FOUND_WRONG
    told = capsys.readouterr()
    assert yaml.safe_load(told.out) == {"pinned_artifacts": [SUM, CONFIG_SUM]}, "of the other model"
    assert f"# - {SUM}  # tokenizer hf_tokenizer_json, {len(TOKENIZER)} bytes, 2 of 3 workers" in told.out
    assert f"# - {checksum_of(b'stray')}" in told.out
    assert "tiny: 1 of 3 workers name other files than the rest" in told.err


def test_the_line_of_one_model_and_of_one_that_is_not_there(split: Path, capsys: Captured) -> None:
    assert command("pin-line", "--log", split, "--model", "other") == EXIT_DONE
    assert yaml.safe_load(capsys.readouterr().out) == {"pinned_artifacts": [SUM, CONFIG_SUM]}
    assert command("pin-line", "--log", split, "--model", "no\nbody") == EXIT_USAGE
    assert "the fleet has: other, tiny" in one_error_line(capsys)


def test_a_file_that_two_models_share_stands_there_once(tmp_path: Path, capsys: Captured) -> None:
    data = fleet_log(tmp_path, [("a", slots("/m")), ("b", slots("/m"))])
    assert command("pin-line", "--log", data) == EXIT_DONE
    told = capsys.readouterr().out
    assert yaml.safe_load(told) == {"pinned_artifacts": [SUM, CONFIG_SUM]}
    assert f"# tokenizer: {SUM} stands above" in told


@pytest.mark.req("ART-16")
@pytest.mark.parametrize(
    "model",
    [
        "x\n  - blake3:" + "0" * 64,
        "x\r- evil",
        "x\u2028- evil",
        "x\x85- evil",
        "- evil: [",
        "\x1b[2Kx",
        "x" * 500,
    ],
)
def test_the_name_of_a_model_adds_no_line_to_the_yaml(tmp_path: Path, model: str, capsys: Captured) -> None:
    data = fleet_log(tmp_path, [(model, slots("/m"))])
    assert command("pin-line", "--log", data) == EXIT_DONE
    told = capsys.readouterr().out
    assert yaml.safe_load(told) == {"pinned_artifacts": [SUM, CONFIG_SUM]}
    assert len(told.splitlines()) == 4 and "\x1b" not in told
    assert command("list", "--log", data) == EXIT_DONE
    assert "\x1b" not in capsys.readouterr().out


def test_a_log_that_is_not_there_and_a_fleet_without_models(tmp_path: Path, capsys: Captured) -> None:
    assert command("list", "--log", tmp_path / "nowhere") == EXIT_UNREACHABLE
    assert "no such file" in one_error_line(capsys)
    assert command("pin-line", "--log", fleet_log(tmp_path / "d", [])) == EXIT_USAGE
    assert "wait for workers" in one_error_line(capsys)
