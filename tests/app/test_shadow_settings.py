"""The shadow's configuration is found by the settings in the log, and read anew when it changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.shadow_settings import ShadowFile, shadow_settings
from projections.events.control import PickSettings
from projections.events.held import SettingsHeld

PICK = PickSettings("load_based", "file", ("dynamo",), (), 3_000_000)


def adopted(version: int, shadow: object) -> SettingsHeld:
    return SettingsHeld(version, "file", b"d", json.dumps({"shadow": {"config": shadow}}), PICK, True, 5, 6)


def written(path: Path, staleness: str) -> Path:
    path.write_text(f"dynamo: {{load: {{max_staleness: {staleness}}}}}\n")
    return path


@pytest.mark.req("DYN-12")
def test_a_shadow_comes_and_goes_with_adoptions(tmp_path: Path) -> None:
    written(tmp_path / "other.yaml", "9s")
    file = ShadowFile(tmp_path)
    assert file.look(None) is None
    assert file.look(adopted(1, None)) is None
    found = file.look(adopted(2, "other.yaml"))
    assert found is not None
    assert found.pick.max_staleness_us == 9_000_000
    assert file.look(adopted(2, "other.yaml")) is found
    assert file.look(adopted(3, str(tmp_path / "other.yaml"))) == found
    assert file.look(adopted(4, None)) is None


def test_a_changed_file_is_another_shadow(tmp_path: Path) -> None:
    path = written(tmp_path / "other.yaml", "9s")
    file = ShadowFile(tmp_path)
    before = file.look(adopted(1, "other.yaml"))
    written(path, "800ms")
    os.utime(path, ns=(1, 1))
    after = file.look(adopted(1, "other.yaml"))
    assert before is not None and after is not None
    assert (after.pick.max_staleness_us, after.digest != before.digest) == (800_000, True)


def test_what_cannot_be_read_is_told_once_and_asked_when_it_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ShadowFile(tmp_path)
    for _ in range(3):
        assert file.look(adopted(1, "other.yaml")) is None
    assert capsys.readouterr().out.count("its configuration cannot be used") == 1
    (tmp_path / "other.yaml").write_text("dynamo: 5\n")
    assert file.look(adopted(1, "other.yaml")) is None
    written(tmp_path / "other.yaml", "1s")
    assert file.look(adopted(1, "other.yaml")) is not None


def test_settings_without_a_word_of_a_shadow_name_none(tmp_path: Path) -> None:
    file = ShadowFile(tmp_path)
    for version, text in enumerate(("", "[]", "{}", '{"shadow": null}', '{"shadow": {"config": 7}}')):
        held = adopted(version, None)._replace(settings=text)
        assert file.look(held) is None


def test_overrides_of_the_environment_are_the_router_s_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKLOG__DYNAMO__LOAD__MAX_STALENESS", "7s")
    found = shadow_settings(written(tmp_path / "other.yaml", "2s"))
    assert found.pick.max_staleness_us == 2_000_000
