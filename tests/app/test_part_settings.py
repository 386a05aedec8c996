"""Every key that a part is started with arrives there, secrets included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.config_load import check_data
from app.config_model import Config
from app.part_settings import (
    discovery_settings,
    prompt_settings,
    raw_settings,
    router_settings,
    segment_settings,
    subscription_settings,
    topic_raw_settings,
    writer_settings,
)
from ingest.discovery.settings import EtcdAuth, EtcdTls, FileStore, SourceKind
from ingest.log.raw_frames import BYTES_UNLIMITED
from ingest.wire.engine_events import EngineSource
from projections.events.signals import Transport

EXTRAS = frozenset({"etcd"})
GIB = 1 << 30


def backend(name: str, **changes: Any) -> dict[str, Any]:
    url = {"type": "openai", "role": "unified", "url": "http://127.0.0.1:1", "models": ["m"]}
    return {"name": name, **url, **changes}


def config(**changes: Any) -> Config:
    return check_data({"backends": [backend("a"), backend("b")], **changes}, extras=EXTRAS)[0]


def dynamo(source: str, settings: dict[str, Any], **changes: Any) -> Config:
    return config(
        dynamo={
            "enabled": True,
            "discovery": {"source": source, source: settings},
            "shim": {
                "pools": [{"namespace": "one", "backends": ["a"]}, {"namespace": "two", "backends": ["b"]}]
            },
            **changes,
        },
        disaggregated_serving={"enabled": True},
    )


def test_an_etcd_source_gets_its_connection_and_its_secrets() -> None:
    made = discovery_settings(
        dynamo(
            "etcd",
            {
                "endpoints": ["https://a:2379", "https://b:2379"],
                "namespaces": ["two", "one"],
                "tls": {
                    "ca_cert": "/ca",
                    "client_cert": "/cert",
                    "client_key": "/key",
                    "server_name": "etcd",
                },
                "auth": {"username": "reader", "password": "a-secret"},
                "watch_reconnect_backoff": {"initial": "2s", "max": "40s"},
            },
        ),
        None,
    )
    assert (made.source, made.namespaces, made.enabled) == (SourceKind.ETCD, ("one", "two"), True)
    assert made.etcd is not None
    assert made.etcd.endpoints == ("https://a:2379", "https://b:2379")
    assert made.etcd.tls == EtcdTls("/ca", "/cert", "/key", "etcd")
    assert made.etcd.auth == EtcdAuth("reader", "a-secret")
    assert (made.backoff_initial_us, made.backoff_max_us) == (2_000_000, 40_000_000)


def test_a_file_source_gets_its_folder_and_times() -> None:
    settings = {"root": "/store", "namespaces": ["one", "two"], "poll": "250ms", "ttl": "20s"}
    made = discovery_settings(dynamo("file", settings), None)
    assert (made.source, made.etcd) == (SourceKind.FILE, None)
    assert made.file is not None
    assert made.file == FileStore("/store", 250_000, 20_000_000)


def test_what_is_disabled_or_inactive_does_not_run() -> None:
    settings = {"root": "/store", "namespaces": ["one", "two"]}
    assert discovery_settings(dynamo("file", settings), None).enabled
    assert not discovery_settings(dynamo("file", settings), "its extra is missing").enabled
    assert not discovery_settings(config(), None).enabled


def test_the_log_gets_sizes_or_shares() -> None:
    plain = config(log={"retention": {"age": "3d", "bytes": "2GiB"}, "fsync": {"every_ms": 5}})
    segments = segment_settings(plain)
    assert (segments.retention_age_us, segments.retention_bytes) == (3 * 86_400_000_000, 2 * GIB)
    assert writer_settings(plain).every_us == 5_000
    share = config(log={"retention": {"bytes": "40%"}, "raw": {"enabled": True, "age": "2h", "bytes": "10%"}})
    assert (segment_settings(share).retention_bytes, segment_settings(share).retention_share) == (None, 40)
    raw = raw_settings(share, 100 * GIB)
    assert (raw.age_us, raw.bytes_max) == (7_200_000_000, 10 * GIB)
    topic = topic_raw_settings(share)
    assert (topic.age_us, topic.bytes_max) == (7_200_000_000, BYTES_UNLIMITED), "a share is of no disk there"
    assert topic_raw_settings(config(log={"raw": {"bytes": "3GiB"}})).bytes_max == 3 * GIB


def test_subscriptions_get_transport_and_networks() -> None:
    made = subscription_settings(
        dynamo(
            "file", {"root": "/s", "namespaces": ["one", "two"]}, load={"direct_allow_cidrs": ["10.0.0.0/8"]}
        )
    )
    assert made.transport is Transport.DIRECT
    assert [str(network) for network in made.allow or ()] == ["10.0.0.0/8"]


def test_engines_are_named_by_number_and_namespace() -> None:
    source = {
        "endpoint": "tcp://10.0.0.7:5557",
        "namespace": "one",
        "instance_id": "0x2a",
        "block_size": 16,
        "topic": "kv",
    }
    made = subscription_settings(
        dynamo(
            "file",
            {"root": "/s", "namespaces": ["one", "two"]},
            kv={
                "engine_sources": [
                    source,
                    {**source, "endpoint": "tcp://10.0.0.7:5558", "instance_id": "42", "dp_rank": 3},
                ]
            },
        )
    )
    first = EngineSource("tcp://10.0.0.7:5557", "one", 42, 16, None, "kv")
    assert made.engine_sources == (first, first._replace(endpoint="tcp://10.0.0.7:5558", dp_rank=3))


def test_engines_that_find_their_worker_are_told_by_what() -> None:
    keys: dict[str, Any] = {"component": "prefill", "model": "m", "system_port": 9090}
    source = {"endpoint": "tcp://10.0.0.7:5557", "namespace": "one", "block_size": 16, **keys}
    store = {"root": "/s", "namespaces": ["one", "two"]}
    made = subscription_settings(dynamo("file", store, kv={"engine_sources": [source]}))
    assert made.engine_sources == (EngineSource("tcp://10.0.0.7:5557", "one", None, 16, **keys),)


def test_the_router_gets_backends_keys_pools_and_deadlines() -> None:
    made = router_settings(
        config(
            backends=[backend("a", api_key="to-the-backend"), backend("b")],
            api_keys={
                "mode": "blocking",
                "keys": [{"id": "one", "key": "from-the-client", "allowed_backends": ["a"]}],
            },
            request={"timeout": "77s", "max_retries": 1},
            server={"body_bytes_max": "1MiB"},
        )
    )
    assert (made.backends[0].name, made.backends[0].api_key) == ("a", "to-the-backend")
    assert made.keys_required
    assert (made.keys[0].key, made.keys[0].allowed_backends) == ("from-the-client", frozenset({"a"}))
    assert (made.deadlines.total_us, made.deadlines.retries_max) == (77_000_000, 1)
    assert made.body_bytes_max == 1 << 20
    assert not made.pinning, "nothing is pinned while dynamo is disabled"
    assert made.pools == ()
    pinned = router_settings(dynamo("file", {"root": "/s", "namespaces": ["one", "two"]}))
    assert pinned.pinning
    assert [(pool.namespace, pool.backends) for pool in pinned.pools] == [("one", ("a",)), ("two", ("b",))]


def kv(**section: Any) -> Config:
    return dynamo("file", {"root": "/s", "namespaces": ["one", "two"]}, kv=section)


def test_prompts_are_read_where_it_is_asked_for_and_the_extra_is_there(tmp_path: Path) -> None:
    extras = frozenset({"kv"})
    assert prompt_settings(kv(), tmp_path, extras) is None
    assert prompt_settings(kv(enabled=True), tmp_path, frozenset()) is None
    made = prompt_settings(kv(enabled=True), tmp_path, extras)
    assert made is not None and made.artifacts.cache_dir == tmp_path / "artifacts"
    assert router_settings(kv(enabled=True), made).prompt is made and router_settings(kv()).prompt is None


def test_every_key_of_prompts_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "secret")
    pinned = "blake3:" + "0a" * 32
    made = prompt_settings(
        kv(
            enabled=True,
            pinned_artifacts=[pinned],
            allow_http_artifacts=False,
            allow_hf_artifacts=True,
            artifact_cache_dir="/cache",
            engine="jinja2",
            match_ratio_min=0.25,
            send_token_data=True,
        ),
        tmp_path,
        frozenset({"kv"}),
    )
    assert made is not None
    files = made.artifacts
    assert (files.cache_dir, files.pinned) == (Path("/cache"), frozenset({pinned}))
    assert (files.allow_http, files.allow_hf) == (False, True)
    assert (files.hf_endpoint, files.hf_token) == ("http://127.0.0.1:9", "secret")
    assert (made.engine, made.match_ratio_min, made.send_token_data) == ("jinja2", 0.25, True)
    assert "secret" not in repr(made)
