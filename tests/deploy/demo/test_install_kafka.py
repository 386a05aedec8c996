"""Fetching Kafka's jars: once, and with a reason where it cannot be."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from deploy.demo import install_kafka


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PICKLOG_VENVS", str(tmp_path))
    monkeypatch.setattr(install_kafka, "PAUSE_S", 0.0)


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_pom_names_the_server_and_a_silent_logger() -> None:
    tags = xml.fromstring(install_kafka.POM).iter()
    names = [found.text for found in tags if found.tag.endswith("artifactId")]
    assert names == ["kafka-broker", "kafka_2.13", "slf4j-nop"]
    assert f"<version>{install_kafka.VERSION}</version>" in install_kafka.POM


def test_jars_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "java", "exit 0")
    program(tmp_path, "mvn", "grep -q kafka_2.13 pom.xml && /bin/mkdir jars && echo x > jars/one.jar")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert not install_kafka.is_installed()
    home = install_kafka.install()
    assert install_kafka.is_installed() and (home / "jars" / "one.jar").exists()
    assert install_kafka.class_path() == str(home / "jars" / "*")
    program(tmp_path, "mvn", "exit 1")
    assert install_kafka.install() == home
    (home / install_kafka.STAMP).write_text("of another release\n")
    with pytest.raises(install_kafka.InstallFailed, match="cannot be fetched"):
        install_kafka.install()


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_kafka.main() == 3
    assert "no mvn here: apt-get install openjdk-17-jre-headless maven" in capsys.readouterr().err
