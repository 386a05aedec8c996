"""Which settings a what-if asks under: a file's, swept ones over them, and the prefix term switched."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from app.config_adoption import kv_pick_settings
from app.config_kv import KvSettings
from app.whatif_settings import SWEPT, alternatives_of
from projections.events.control import KvPickSettings
from tests.replay.recorded_log import SETTINGS

OWN = KvPickSettings(0.25, 2.0, 0.5, host_credit=0.75)
DEFAULTS = kv_pick_settings(KvSettings())
OTHER = """
dynamo:
  picker: round_robin
  kv: {enabled: %s, overlap_score_credit: 0.5, predicted_ttl: 2s}
"""


def other(folder: Path, is_on: str) -> Path:
    path = folder / "other.yaml"
    path.write_text(OTHER % is_on)
    return path


@pytest.mark.req("EVS-08")
def test_without_a_sweep_the_file_is_asked_under_and_without_a_file_the_settings_of_each_pick(
    tmp_path: Path,
) -> None:
    [one] = alternatives_of(other(tmp_path, "false"), [])
    assert one.name == "other.yaml"
    assert one.of(SETTINGS).picker == "round_robin" and one.of(SETTINGS._replace(kv=OWN)).kv is None
    [same] = alternatives_of(None, [])
    assert same.of(SETTINGS) == SETTINGS


@pytest.mark.parametrize("key", ["dynamo.kv.enabled", "kv.enabled"])
def test_true_is_the_term_of_each_pick_or_else_the_defaults_and_false_is_none(key: str) -> None:
    on, off = alternatives_of(None, [f"{key}=true,false"])
    assert (on.name, off.labels) == ("kv.enabled=true", (("kv.enabled", "false"),))
    assert on.of(SETTINGS._replace(kv=OWN)).kv == OWN
    assert on.of(SETTINGS).kv == DEFAULTS == KvPickSettings(1.0, 1.0, 0.0)
    assert off.of(SETTINGS._replace(kv=OWN)).kv is None and off.of(SETTINGS) == SETTINGS


@pytest.mark.parametrize("is_on", ["true", "false"])
def test_over_a_file_true_is_the_term_of_the_file_whether_it_is_enabled_there_or_not(
    is_on: str, tmp_path: Path
) -> None:
    on, off = alternatives_of(other(tmp_path, is_on), ["kv.enabled=true,false"])
    expected = DEFAULTS._replace(overlap_credit=0.5, predicted_ttl_us=2_000_000)
    for recorded in (SETTINGS, SETTINGS._replace(kv=OWN)):
        assert on.of(recorded).kv == expected and off.of(recorded).kv is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_beside_the_switch_lies_over_the_term_in_whatever_order(turned: bool) -> None:
    sweep = ["kv.enabled=true,false", "overlap_score_credit=0.5"]
    found = alternatives_of(None, sweep[::-1] if turned else sweep)
    assert [one.of(SETTINGS).kv for one in found] == [DEFAULTS._replace(overlap_credit=0.5), None]


@pytest.mark.parametrize("key", ["enabled", "v.enabled", "dynamo.enabled", "credit", "", ".picker"])
def test_a_key_that_could_be_another_one_names_nothing(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        alternatives_of(None, [f"{key}=true"])
    assert "picks read no such setting" in capsys.readouterr().err


def test_every_key_is_known_by_its_whole_name_and_no_short_name_is_that_of_two() -> None:
    names = set()
    for path, _, _ in SWEPT:
        text = {"max_staleness": "1s", "picker": "load_based", "enabled": "true"}.get(path.rpartition(".")[2])
        value = text or ("1s" if path.endswith("ttl") else "0.5")
        [one] = alternatives_of(None, [f"{path}={value}"])
        names.add(one.labels[0][0])
        assert alternatives_of(None, [f"{one.labels[0][0]}={value}"]) == [one]
    assert len(names) == len(SWEPT)


def test_combinations_are_counted_before_one_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.whatif_settings.Alternative", None)
    weights = ",".join(map(str, range(300)))
    with pytest.raises(typer.Exit):
        alternatives_of(None, [f"overlap_score_credit={weights}", f"prefill_load_scale={weights}"])
    assert "90000 combinations" in capsys.readouterr().err
