"""The fleet as operators see it: the shape that is promised, and nothing that must not leave."""

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admin_documents import is_source_installed, json_bytes, workers_pieces
from app.config_load import check_data
from app.config_model import MASK, Config
from ingest.subscriptions.engine_bindings import Binding, EngineRow
from ingest.subscriptions.families import engine_publisher_id
from ingest.wire.engine_events import EngineSource
from projections.events.discovery import Keyspace, PassEnded
from projections.events.signals import Family, SubscriptionChanged, SubscriptionState, Transport
from projections.identity import WorkerKey
from router.prompt.self_check import MatchState
from tests.app.observed import adopted
from tests.projections.fleet_script import NS, Script, instance_key


def a_config(*namespaces: str, source: str = "file", enabled: bool = True) -> Config:
    section: dict[str, Any] = {"namespaces": [*namespaces]} if namespaces else {}
    if source == "file":
        section["root"] = "/store"
    if source == "etcd":
        section["endpoints"] = ["etcd:2379"]
    pools = [{"namespace": name, "backends": [f"shim-{name}"]} for name in namespaces]
    return check_data(
        {
            "backends": [{"name": f"shim-{name}", "url": "http://a:1"} for name in namespaces],
            "dynamo": {
                "enabled": enabled,
                "discovery": {"source": source, source: section},
                "shim": {"pools": pools if len(namespaces) > 1 else []},
            },
        },
        extras=frozenset(("etcd",)),
    )[0]


def told(script: Script, config: Config | None = None, is_active: bool = True) -> dict[str, Any]:
    pieces = workers_pieces(script.fold, config if config is not None else a_config(), is_active)
    document: dict[str, Any] = json.loads(b"".join(pieces))
    return document


def a_fleet() -> Script:
    script = Script()
    script.say(adopted(source="file"))
    script.pass_began()
    script.worker(
        0x1A7F2B,
        "decode",
        worker_type="decode",
        model="Qwen/Qwen3-32B",
        runtime={
            "data_parallel_size": 4,
            "data_parallel_start_rank": 2,
            "disaggregated_endpoint": {"bootstrap_host": "10.0.0.9", "bootstrap_port": 4321},
        },
        context_length=32768,
    )
    script.publisher(0x77, "decode")
    script.publisher(0x78, "decode", topic="kv-events")
    script.pass_settled()
    return script


@pytest.mark.req("ADM-03")
def test_the_document_has_its_promised_members() -> None:
    document = told(a_fleet())
    assert set(document) == {
        "enabled",
        "connected",
        "source",
        "signals",
        "namespace",
        "namespaces",
        "generation",
        "workers",
        "load_publishers",
        "kv_event_publishers",
        "kv",
        "subscriptions",
    }
    assert document["kv"] == {"enabled": False, "models": [], "engine_sources": []}
    assert document["enabled"] is document["connected"] is True
    assert document["source"] == "file"
    assert document["signals"] == {"load": True, "capacity": True}
    assert (document["namespace"], document["namespaces"]) == (NS, [NS])
    assert document["generation"] > 0
    assert (document["load_publishers"], document["kv_event_publishers"]) == (1, 1)


def test_how_true_predictions_were_is_told_by_model() -> None:
    fold = a_fleet().fold
    state = MatchState("m", 9, 100, 40, 0.4, False)
    document = json.loads(b"".join(workers_pieces(fold, a_config(), True, [state])))
    assert document["kv"]["models"] == [
        {
            "model": "m",
            "match_ratio": 0.4,
            "checks": 9,
            "predicted_blocks": 100,
            "confirmed_blocks": 40,
            "is_trusted": False,
        }
    ]


@pytest.mark.req("ADM-04")
def test_a_worker_s_row_has_its_promised_members() -> None:
    [row] = told(a_fleet())["workers"]
    first_seen, last_updated = row.pop("first_seen"), row.pop("last_updated")
    assert row == {
        "instance_id": "1a7f2b",
        "namespace": NS,
        "worker_id": "1736491",
        "role": "decode",
        "model": "Qwen/Qwen3-32B",
        "component": "decode",
        "endpoint": "generate",
        "dp_start_rank": 2,
        "dp_size": 4,
        "block_size": 16,
        "capacity": {
            "total_kv_blocks": 256,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
            "context_length": 32768,
        },
        "disaggregated_endpoint": {"bootstrap_host": MASK, "bootstrap_port": 4321},
    }
    for moment in (first_seen, last_updated):
        assert datetime.fromisoformat(moment).utcoffset() is not None
    assert datetime.fromisoformat(first_seen) <= datetime.fromisoformat(last_updated)


def test_what_a_card_does_not_say_is_null() -> None:
    script = Script()
    script.say(adopted(source="file"))
    from tests.projections.fleet_script import endpoint

    script.put(Keyspace.INSTANCES, instance_key(5), endpoint(5))
    [row] = told(script)["workers"]
    assert (row["role"], row["model"], row["block_size"]) == ("unknown", None, None)
    assert row["disaggregated_endpoint"] is None
    assert set(row["capacity"].values()) == {None}


@pytest.mark.req("ADM-05")
def test_subscriptions_are_told_by_family_publisher_state_and_transport() -> None:
    script = a_fleet()
    big = (1 << 64) - 1
    for publisher, state in ((big, SubscriptionState.CONNECTED), (0x77, SubscriptionState.BACKOFF)):
        script.say(
            SubscriptionChanged(Family.LOAD, NS, publisher, "decode", state, 1, Transport.DIRECT, "connected")
        )
    assert told(script)["subscriptions"] == [
        {
            "family": "kv_metrics",
            "publisher_id": publisher,
            "namespace": NS,
            "component": "decode",
            "state": state,
            "transport": "direct",
        }
        for publisher, state in ((str(0x77), "backoff"), (str(big), "connected"))
    ]


def test_engines_are_shown_with_their_worker_or_with_what_is_missing_and_without_their_address() -> None:
    named = EngineSource("tcp://10.0.0.7:5557", NS, 7, 16)
    lost = EngineSource("tcp://10.0.0.7:5558", NS, None, 16)
    rows = [
        EngineRow(0, named, Binding.NAMED, WorkerKey(NS, 7), ""),
        EngineRow(1, lost, Binding.NO_WORKER, None, "what to do"),
    ]
    fold = a_fleet().fold
    text = b"".join(workers_pieces(fold, a_config(), True, engines=rows))
    first, second = json.loads(text)["kv"]["engine_sources"]
    assert first == {
        "entry": 0,
        "namespace": NS,
        "publisher_id": str(engine_publisher_id(named.endpoint)),
        "state": "named",
        "worker_id": "7",
        "missing": None,
    }
    assert (second["state"], second["worker_id"], second["missing"]) == ("no_worker", None, "what to do")
    assert b"10.0.0.7" not in text
    hidden = b"".join(workers_pieces(fold, a_config(), False, engines=rows))
    assert json.loads(hidden)["kv"]["engine_sources"] == []


@pytest.mark.req("ADM-07")
def test_no_address_and_no_card_leaves() -> None:
    script = a_fleet()
    script.worker(9, runtime={"secret_member": "of-the-card"}, prompt_template="{{ of-the-card }}")
    text = json.dumps(told(script))
    for forbidden in ("10.0.0", "tcp:", ":4000", ":5000", "of-the-card", "card_json", "transport_"):
        assert forbidden not in text


@pytest.mark.req("ADM-02")
def test_a_disabled_discovery_has_empty_lists_whatever_the_fold_holds() -> None:
    script = a_fleet()
    script.subscribed(0x77)
    script.say(adopted(version=2, enabled=False, source="file"))
    document = told(script)
    assert document["enabled"] is document["connected"] is False
    assert document["workers"] == document["subscriptions"] == []
    assert document["load_publishers"] == document["kv_event_publishers"] == 0
    assert document["namespaces"] == [NS]


def test_a_source_that_cannot_run_here_is_told_as_disabled() -> None:
    assert told(a_fleet(), is_active=False)["enabled"] is False


def test_before_the_first_adoption_the_file_s_settings_are_told_as_disabled() -> None:
    document = told(Script(), a_config("b", "a"))
    assert document["enabled"] is False
    assert (document["source"], document["namespaces"]) == ("file", ["b", "a"])


@pytest.mark.req("ADM-03")
def test_the_first_namespace_is_the_first_one_of_the_file() -> None:
    script = Script()
    script.say(adopted("a", "b", source="file"))
    document = told(script, a_config("b", "a"))
    assert (document["namespace"], document["namespaces"]) == ("b", ["b", "a"])
    document = told(script, a_config("c", "b"))
    assert document["namespaces"] == ["a", "b"], "other settings are in force than in the file"


@pytest.mark.req("ADM-03")
def test_connected_ends_with_the_pass() -> None:
    script = a_fleet()
    script.say(PassEnded("file", (NS,), 1, "connection"))
    document = told(script)
    assert (document["connected"], len(document["workers"])) == (False, 1)


@pytest.mark.req("ADM-03")
def test_pods_alone_carry_no_signals() -> None:
    script = Script()
    script.say(adopted(source="kubernetes_pods"))
    assert told(script)["signals"] == {"load": False, "capacity": False}


@pytest.mark.req("ADM-02")
def test_only_etcd_needs_an_extra_and_either_will_do() -> None:
    assert is_source_installed(a_config(), frozenset())
    etcd = a_config(source="etcd")
    assert not is_source_installed(etcd, frozenset(("uvloop",)))
    assert is_source_installed(etcd, frozenset(("etcd",)))
    assert is_source_installed(etcd, frozenset(("etcd3",)))


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("\ud800\x00")),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
        max_leaves=8,
    )
)
def test_json_never_fails(document: Any) -> None:
    found = json.loads(json_bytes(document).decode("utf-8"))
    if isinstance(document, list | dict):
        assert len(found) == len(document)
    elif not isinstance(document, float):  # what is no number becomes null
        assert found == document
