"""What is told of puts, deletes and passes: everything counted, each oddity said once a key."""

from __future__ import annotations

from typing import Any

import pytest

from projections.events.discovery import KeyRefusal, KeysDropped, Keyspace, PassEnded
from projections.notices import DiscoveryNotice, StatusNotice
from tests.projections.fleet_script import NS, Script, card, channel, channel_key, endpoint, instance_key, put

INST, CARDS, CHANNELS, SOURCES = Keyspace


def told(script: Script) -> list[tuple[str, str]]:
    return [(n.kind.label, n.level) for n in script.notices if isinstance(n, DiscoveryNotice)]


@pytest.mark.req("RED-09")
def test_a_poisoned_key_is_told_and_nothing_else_is_affected() -> None:
    script = Script()
    script.worker(7)
    script.put(INST, "bad", b"\xff no json")
    assert told(script) == [("put", "debug"), ("malformed", "warning")]
    script.put(INST, "worse", endpoint(None))
    assert told(script) == [("put", "debug"), ("malformed", "warning")]
    assert len(script.fleet.workers) == 1


@pytest.mark.req("LOAD-05")
def test_a_publisher_that_cannot_be_used_is_said_once_per_key_and_counted_each_time() -> None:
    script = Script()
    nats: dict[str, Any] = {"transport": {"kind": "Nats", "config": {}}}
    script.put(CHANNELS, channel_key(9), channel(9, **nats))
    assert told(script) == [("put", "debug"), ("unsupported", "warning")]
    script.put(CHANNELS, channel_key(9), channel(9, more=1, **nats), revision=2)
    assert told(script) == [("put", "debug"), ("unsupported", "debug")]
    script.put(CHANNELS, channel_key(10), channel(None))
    assert told(script) == [("put", "debug"), ("malformed", "warning")]
    assert script.fleet.publishers == ()


@pytest.mark.req("LOAD-06")
def test_unknown_topics_are_silent() -> None:
    script = Script()
    script.put(
        CHANNELS,
        channel_key(9, topic="active_sequences_events"),
        channel(9, topic="active_sequences_events", transport={"kind": "Nats"}),
    )
    assert told(script) == [("put", "debug")]


@pytest.mark.req("RED-12")
def test_a_card_with_fields_that_cannot_be_used_keeps_worker_and_card() -> None:
    script = Script()
    value = card(7, kv_cache_block_size="x", runtime={"data_parallel_size": 0})
    script.put(CARDS, instance_key(7), value)
    (notice,) = [n for n in script.notices if isinstance(n, DiscoveryNotice) and n.kind.label == "malformed"]
    assert "data_parallel_size" in notice.identity and "kv_cache_block_size" in notice.identity
    script.put(INST, instance_key(7), endpoint(7))
    (worker,) = script.fleet.workers.values()
    assert worker.block_size is None and worker.dp_size == 1 and worker.dp_declared
    assert script.fleet.card_of(worker.key) == value


@pytest.mark.req("MEM-01")
def test_a_value_above_the_ceiling_is_counted() -> None:
    script = Script()
    fact = put(CARDS, instance_key(7), b"")._replace(refusal=int(KeyRefusal.OVERSIZED), value_bytes=17 << 20)
    script.say(fact)
    assert told(script) == [("put", "debug"), ("oversized", "warning")]


@pytest.mark.req("RED-14")
def test_a_release_is_said_once_per_instance_at_debug_level() -> None:
    script = Script()

    def releases() -> list[StatusNotice]:
        return [n for n in script.all_notices if isinstance(n, StatusNotice) and "release" in n.what]

    script.put(CARDS, instance_key(7), card(7, dynamo_version="1.6.1"))
    script.put(CARDS, instance_key(7), card(7, dynamo_version="1.6.1", more=1), revision=2)
    assert [(n.level, n.detail) for n in releases()] == [("debug", f"{NS}/backend/generate/7: 1.6.1")]
    script.put(CARDS, instance_key(7), card(7, runtime={"release": "1.6.2"}), revision=3)
    assert len(releases()) == 2


def test_passes_are_told_and_restarts_by_settings_are_counted() -> None:
    script = Script()
    script.pass_began(reason="start")
    assert told(script) == []
    script.pass_settled()
    assert told(script) == [("resync", "info")]
    script.say(PassEnded("etcd", (NS,), 1, "compacted"))
    assert [n.detail for n in script.notices if isinstance(n, StatusNotice)] == [f"etcd {NS}: compacted"]
    script.say(KeysDropped((), "connection"))
    assert told(script) == [], "nothing was held"
    script.pass_began(2, reason="connection")
    assert told(script) == [("restart", "info")]


def test_a_pass_that_saw_other_keys_than_the_fold_holds_is_told() -> None:
    script = Script()
    script.pass_began()
    script.put(INST, instance_key(7), endpoint(7))
    script.pass_settled(keys=2)
    assert [n.level for n in script.notices if isinstance(n, StatusNotice)] == ["warning"]
    script.pass_settled()
    assert not [n for n in script.notices if isinstance(n, StatusNotice)]


def test_a_drop_is_one_line_and_counts_its_keys() -> None:
    script = Script()
    script.worker(7)
    script.worker(8, namespace="other")
    script.say(KeysDropped((), "connection"))
    counted = [n for n in script.notices if isinstance(n, DiscoveryNotice)]
    assert [(n.kind.label, n.namespace, n.times) for n in counted] == [
        ("delete", NS, 2),
        ("delete", "other", 2),
    ]
    (line,) = [n for n in script.notices if isinstance(n, StatusNotice)]
    assert line.detail == "all namespaces: 4 keys, connection"


def test_deletes_are_counted() -> None:
    script = Script()
    script.worker(7)
    script.delete(CARDS, instance_key(7))
    assert told(script) == [("delete", "debug")]


@pytest.mark.field("B-018")
def test_instances_of_which_none_becomes_a_worker_are_worth_a_warning() -> None:
    """B-018: announced and nothing joined is told with both counts; an empty fleet is not."""
    script = Script()
    script.pass_began()
    script.pass_settled()
    assert not [n for n in script.notices if isinstance(n, StatusNotice)]
    script.put(INST, instance_key(7, "prefill"), endpoint(7, "prefill"))
    script.put(CARDS, instance_key(7, "prefill"), card(7, "prefill", worker_type="decode"))
    script.pass_settled(2)
    (warning,) = [n for n in script.notices if isinstance(n, StatusNotice)]
    assert warning.level == "warning" and "2 keys, 0 workers, 1 ids" in warning.detail
