"""Where workers say that they are reached, in the forms of every release and in none at all."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.subscriptions.advertised import advertised_host, host_text, system_port
from projections.registry.artifacts import CardArtifacts, artifacts_of
from tests.projections.fleet_script import endpoint

RECORDINGS = Path(__file__).parents[2] / "recordings"
CHECKSUM = "blake3:" + "0" * 64


def host_of(**transport: Any) -> str | None:
    return advertised_host(endpoint(7, transport=transport))


def files(*paths: str) -> CardArtifacts:
    slots = ("tokenizer", "prompt_formatter", "chat_template_file")
    kinds = ("hf_tokenizer_json", "hf_tokenizer_config_json", "hf_chat_template")
    found = zip(slots, kinds, paths, strict=False)
    return artifacts_of({slot: {kind: {"path": path, "checksum": CHECKSUM}} for slot, kind, path in found})


@pytest.mark.parametrize(
    ("kind", "text", "host"),
    [
        ("tcp", "10.0.0.7:35211/506ca22822ade60a/generate", "10.0.0.7"),
        ("tcp", "10.0.0.7:35211/506ca22822ade60a/dynamo/backend/generate", "10.0.0.7"),
        ("tcp", "10.0.0.7:35211", "10.0.0.7"),
        ("tcp", "[fd00::07]:35211/5/generate", "fd00::7"),
        ("tcp", "[::ffff:10.0.0.7]:35211/5/generate", "10.0.0.7"),
        ("tcp", "Worker-7.Fleet.:35211/5/generate", "worker-7.fleet"),
        ("http", "http://10.0.0.7:8081/v1/rpc/generate", "10.0.0.7"),
    ],
)
def test_the_host_stands_before_all_else(kind: str, text: str, host: str) -> None:
    assert host_of(**{kind: text}) == host


@pytest.mark.parametrize(
    "transport",
    [
        {"nats_tcp": "dynamo.backend.generate-506c:1"},
        {"tcp": "fd00::7:35211/5/generate"},
        {"tcp": "10.0.0.7/5/generate"},
        {"tcp": ":35211/5"},
        {"tcp": 7},
        {"tcp": "a" * 513 + ":1"},
        {},
    ],
)
def test_what_names_no_host_has_none(transport: dict[str, Any]) -> None:
    assert host_of(**transport) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise(value: bytes) -> None:
    assert advertised_host(value) is None


def test_a_record_without_a_transport_has_no_host() -> None:
    assert advertised_host(b'{"type":"Endpoint"}') is None
    assert advertised_host(b'{"transport":"10.0.0.7:1"}') is None


def recorded(release: str, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Keys and values that the workers of a recording put below a prefix."""
    with gzip.open(RECORDINGS / f"etcd-watch-{release}.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if row.get("type") == "put" and row["key"].startswith(prefix):
                yield row["key"], row["value"].encode()


@pytest.mark.parametrize("release", ["1.4.2-disagg", "1.5.0-disagg", "1.6.1-agg"])
def test_recorded_workers_of_each_release_advertise_their_host(release: str) -> None:
    found = [
        advertised_host(value) for key, value in recorded(release, "v1/instances/") if "/generate/" in key
    ]
    assert found and set(found) == {"127.0.0.1"}


def test_recorded_workers_keep_their_system_port_over_a_restart() -> None:
    cards = [json.loads(value)["card_json"] for _, value in recorded("1.4.2-agg-dp2", "v1/mdc/")]
    assert Counter(system_port(artifacts_of(one)) for one in cards) == {24563: 2, 21351: 2}


def test_files_at_several_ports_or_at_none_tell_no_system_port() -> None:
    served = "http://10.0.0.7:{}/v1/metadata/dynamo/backend/generate/m/_base/f.json"
    assert system_port(files(served.format(9090), "/models/m/f.json")) == 9090
    assert system_port(files(served.format(9090), served.format(9091))) is None
    assert system_port(files("http://10.0.0.7:9090/elsewhere/f.json")) is None
    assert system_port(files(served.format(0))) is None
    assert system_port(files(served.format(70_000))) is None
    assert system_port(CardArtifacts()) is None


def test_a_host_has_one_spelling() -> None:
    assert {host_text("::1"), host_text("0:0:0:0:0:0:0:1")} == {"::1"}
    assert host_text("ENGINE-7.svc.") == host_text("engine-7.svc")
