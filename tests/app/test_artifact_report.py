"""What cards name, grouped; where a file stands on this machine; excerpts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.artifact_report import (
    EXCERPT_BYTES_MAX,
    Pins,
    advertised,
    excerpt_of,
    is_template,
    models_naming,
    pins_of,
    standing_of,
)
from projections.events.held import SettingsHeld
from projections.registry.artifacts import ArtifactKind
from router.prompt.artifact_cache import BlobCache, checksum_of
from tests.replay.recorded_log import SETTINGS
from tests.router.prompt.artifact_workers import config, named, serving_worker
from tests.router.rig import fleet_of

DATA = b"{}"
SUM = checksum_of(DATA)
NONE = Pins(frozenset(), None)


def held(text: str) -> SettingsHeld:
    return SettingsHeld(1, "start", b"d", text, SETTINGS, True, 0, 0)


@pytest.mark.req("ART-01", "ART-15")
def test_files_are_grouped_by_what_they_are_and_places_are_gathered() -> None:
    old, new = named(b"old", "http://10.0.0.1/t"), named(b"new", "/t")
    fleet = fleet_of(
        serving_worker(1, old),
        serving_worker(2, old._replace(path="http://10.0.0.2/t")),
        serving_worker(3, new),
        serving_worker(4, malformed=("tokenizer",)),
        serving_worker(5),
        serving_worker(6, new, config(DATA, "/c"), model="other"),
    )
    other, tiny = advertised(fleet, Pins(frozenset((old.checksum,)), None))
    assert (other.model, other.refused, [file.slot for file in other.files]) == (
        "other",
        None,
        ["tokenizer", "prompt_formatter"],
    )
    assert (tiny.workers, tiny.refused) == (5, "3 of 5 workers name other files than the rest")
    rows = [(file.kind, file.checksum, file.workers, file.pinned) for file in tiny.files]
    assert rows == [
        ("hf_tokenizer_json", old.checksum, 2, True),
        ("absent", None, 1, False),
        ("hf_tokenizer_json", new.checksum, 1, False),
        ("malformed", None, 1, False),
    ]
    assert tiny.files[0].places == ("http://10.0.0.1/t", "http://10.0.0.2/t")


@pytest.mark.parametrize(
    "text", ["", "[]", "7", "{}", '{"dynamo": {"kv": []}}', '{"dynamo": {"kv": 7}}', "[" * 9_999]
)
def test_settings_that_say_nothing_pin_nothing(text: str, tmp_path: Path) -> None:
    assert pins_of(held(text), None) == NONE
    assert pins_of(None, tmp_path) == Pins(frozenset(), tmp_path / "artifacts")


@pytest.mark.parametrize(
    ("kv", "pins"),
    [
        ({"pinned_artifacts": [SUM, 7]}, Pins(frozenset((SUM,)), Path("d/artifacts"))),
        ({"pinned_artifacts": "x"}, Pins(frozenset(), Path("d/artifacts"))),
        ({"artifact_cache_dir": "/var/cache/a"}, Pins(frozenset(), Path("/var/cache/a"))),
    ],
)
def test_pins_and_cache_are_those_of_the_settings_in_force(kv: dict[str, Any], pins: Pins) -> None:
    assert pins_of(held(json.dumps({"dynamo": {"kv": kv}})), Path("d")) == pins


def test_a_checksum_is_found_by_its_beginning() -> None:
    files = [named(b"%d" % n, "/t") for n in range(3)]
    fleet = fleet_of(*(serving_worker(n, file, model=f"m{n}") for n, file in enumerate(files, 1)))
    models = advertised(fleet, NONE)
    whole = files[0].checksum
    for text in (whole, whole[7:], whole[7:20]):
        assert list(models_naming(models, text)) == [whole]
    assert models_naming(models, "f" * 64) == {}
    assert len(models_naming(models, "")) == 3


def test_a_file_stands_verified_changed_absent_or_unreadable(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "cache")
    cache.write(SUM, DATA)
    for name, data in (("good", DATA), ("bad", b"[]")):
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "pipe")
    places = [str(tmp_path / name) for name in ("good", "bad", "none", "pipe")]
    found = standing_of(SUM, [*places, "http://10.0.0.1/t", "/" + "x" * 900], tmp_path / "cache")
    assert [state for _, state in found.places] == [
        "verified",
        "verified",
        "changed",
        "absent",
        "no regular file",
        "absent",
    ]
    assert found.contents == DATA
    assert found.places[0][0] == str(cache.path_of(SUM))


def test_looking_at_a_changed_blob_leaves_it_where_it_is(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    cache.write(SUM, DATA)
    path = cache.path_of(SUM)
    path.write_bytes(b"[]")
    assert standing_of(SUM, [], tmp_path) == (((str(path), "changed"),), None)
    path.unlink()
    path.symlink_to(tmp_path)
    assert standing_of(SUM, [], tmp_path).places[0][1] == "changed"
    assert path.is_symlink()


def test_an_excerpt_is_the_template_where_there_is_one() -> None:
    inner = json.dumps({"chat_template": "a\nb"}).encode()
    assert excerpt_of("hf_tokenizer_config_json", inner) == "a\nb"
    assert excerpt_of("hf_tokenizer_json", inner) == inner.decode()
    for odd in (
        b"[]",
        b"\xff{",
        b'{"chat_template": []}',
        b'{"chat_template": ""}',
        b'{"chat_template": "\\ud800"}',
    ):
        assert excerpt_of("hf_chat_template_json", odd) == odd.decode(errors="replace")
    assert is_template("hf_chat_template") and not is_template("hf_tokenizer_json")


def test_an_excerpt_is_short_also_of_large_files() -> None:
    assert len(excerpt_of("hf_tokenizer_json", b"x" * 100_000)) == EXCERPT_BYTES_MAX
    large = json.dumps({"chat_template": "\u00e9" * 5_000_000}).encode()
    assert len(excerpt_of("hf_tokenizer_config_json", large).encode()) <= EXCERPT_BYTES_MAX + 2


def test_kinds_are_spelled_as_the_excerpt_expects() -> None:
    assert is_template(ArtifactKind.HF_TOKENIZER_CONFIG_JSON.label)
    assert is_template(ArtifactKind.HF_CHAT_TEMPLATE_JSON.label)
