"""`kafka:FILE`: which topic a configuration names, and what is said where it names none."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from app import kafka_places
from app.cli import run
from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE
from app.kafka_places import brokers_told, is_kafka, kafka_place, topics_told
from deploy.demo.addresses import free_port
from ingest.log.kafka_settings import KafkaDenied, KafkaSecurity, Keeps, TopicRefused

Captured = pytest.CaptureFixture[str]

WHOLE = """
log:
  kind: kafka
  retention: {age: 3d, bytes: 5GiB}
  kafka:
    bootstrap_servers: ["a:9092", "b:9092"]
    topic: lane
    replication_factor: 2
    allow_unsafe: true
    security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: "${SECRET}", ca_cert: ca.pem}
"""


def refused(where: str, capsys: Captured) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as ended:
        kafka_place(Path(where))
    return ended.value.exit_code, capsys.readouterr().err


def test_the_section_of_the_file_is_the_place_whatever_serve_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hush")
    file = tmp_path / "site.yaml"
    file.write_text(WHOLE)
    place = kafka_place(Path(f"kafka:{file}"))
    assert (place.servers, place.topic) == (("a:9092", "b:9092"), "lane")
    assert (place.replication_factor, place.allow_unsafe) == (2, True)
    assert place.keeps == Keeps(3 * 86_400_000_000, 5 << 30)
    assert place.security == KafkaSecurity("SASL_SSL", "PLAIN", "u", "hush", "ca.pem", None, None)


def test_a_share_of_a_file_system_is_no_limit_of_a_topic(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text('log: {retention: {bytes: 25%}, kafka: {bootstrap_servers: ["a:9092"]}}')
    assert kafka_place(Path(f"kafka:{file}")).keeps == Keeps(7 * 86_400_000_000, None)


def test_a_place_is_named_by_its_prefix() -> None:
    assert is_kafka(Path("kafka:site.yaml")) and not is_kafka(Path("site.yaml")) and not is_kafka(None)


def test_what_names_no_topic_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert refused("kafka:", capsys) == (
        EXIT_USAGE,
        "picklog: kafka: names no file: write kafka:FILE, a configuration with log.kafka\n",
    )
    status, told = refused("kafka:nowhere.yaml", capsys)
    assert (status, "nowhere.yaml" in told) == (EXIT_UNREACHABLE, True)
    file = tmp_path / "empty.yaml"
    file.write_text("{}")
    status, told = refused(f"kafka:{file}", capsys)
    assert (status, "bootstrap_servers is empty" in told) == (EXIT_USAGE, True)
    file.write_text("log: {kafka: {topics: x}}")
    status, told = refused(f"kafka:{file}", capsys)
    assert (status, "topics" in told) == (EXIT_USAGE, True)


def test_without_the_client_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(kafka_places, "installed_extras", frozenset)
    status, told = refused("kafka:site.yaml", capsys)
    assert (status, "pip install 'picklog[kafka]'" in told) == (EXIT_USAGE, True)


def test_a_topic_that_is_no_log_is_bad_usage(capsys: Captured) -> None:
    with pytest.raises(typer.Exit) as ended, topics_told():
        raise TopicRefused("topic x has 3 partitions")
    assert ended.value.exit_code == EXIT_USAGE
    assert capsys.readouterr().err == "picklog: topic x has 3 partitions\n"


def test_brokers_that_do_not_answer_are_told_with_the_key_that_named_them(
    tmp_path: Path, capsys: Captured
) -> None:
    file, port = tmp_path / "site.yaml", free_port()
    file.write_text(f"log: {{kafka: {{bootstrap_servers: ['127.0.0.1:{port}'], topic: lane}}}}")
    for words in (
        ["log", "cat"],
        ["log", "stat"],
        ["replay", "verify"],
        ["replay", "verify", "--follow"],
        ["replay", "state", "--at", "end"],
    ):
        assert run([*words, "--log", f"kafka:{file}"]) == EXIT_UNREACHABLE
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("picklog: Kafka cannot be reached or does not answer (KafkaConnectionError)")
        assert f"{file}: log.kafka.bootstrap_servers: 127.0.0.1:{port}: start the brokers, or " in line


@pytest.mark.parametrize("role", ["ingest", "router", "audit"])
def test_a_process_tells_brokers_that_are_away_with_the_key_that_named_them(
    tmp_path: Path, capsys: Captured, role: str
) -> None:
    file, port = tmp_path / "site.yaml", free_port()
    kafka = f"{{bootstrap_servers: ['127.0.0.1:{port}'], replication_factor: 1}}"
    file.write_text(f"{{server: {{bind_address: '127.0.0.1:0'}}, log: {{kind: kafka, kafka: {kafka}}}}}")
    assert run([role, "-c", str(file), "--data", str(tmp_path / "data")]) == EXIT_UNREACHABLE
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("picklog: Kafka cannot be reached or does not answer (KafkaConnectionError)")
    assert f"{file}: log.kafka.bootstrap_servers: 127.0.0.1:{port}: start the brokers, or " in line


def test_rights_that_are_missing_are_not_told_as_brokers_that_are_away() -> None:
    with pytest.raises(KafkaDenied), brokers_told(Path("kafka:site.yaml")):
        raise KafkaDenied("grant it")
