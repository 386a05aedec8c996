"""Endpoints as grpc's targets, PEM files within their ceiling, channel options."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest.discovery.etcd_endpoints import (
    MESSAGE_BYTES_MAX,
    PEM_BYTES_MAX,
    Endpoint,
    TlsMaterial,
    endpoint_of,
    options_for,
    tls_material,
)
from ingest.discovery.settings import EtcdTls
from projections.bounds import RECORD_VALUE_BYTES_MAX


@pytest.mark.req("CFG-05")
@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("http://etcd:2379", Endpoint("dns:///etcd:2379", "etcd:2379", False)),
        ("etcd.fleet:1", Endpoint("dns:///etcd.fleet:1", "etcd.fleet:1", False)),
        ("127.0.0.1:2379", Endpoint("ipv4:127.0.0.1:2379", "127.0.0.1:2379", False)),
        ("https://10.0.0.1:2379", Endpoint("ipv4:10.0.0.1:2379", "10.0.0.1:2379", True)),
        ("[::1]:2379", Endpoint("ipv6:[::1]:2379", "[::1]:2379", False)),
        ("https://[fe80::1]:7", Endpoint("ipv6:[fe80::1]:7", "[fe80::1]:7", True)),
    ],
)
def test_endpoint_becomes_a_dial_target(text: str, endpoint: Endpoint) -> None:
    assert endpoint_of(text) == endpoint


@pytest.mark.parametrize("text", ["ftp://h:1", "http://", "http://user@h:1", "http://user:secret@h:1", "h:x"])
def test_what_is_no_endpoint_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        endpoint_of(text)
    assert "secret" not in str(refusal.value)


def test_pem_files_are_read_anew_each_time(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(b"one")
    tls = EtcdTls(str(ca))
    assert tls_material(tls) == TlsMaterial(b"one", None, None)
    ca.write_bytes(b"two")
    assert tls_material(tls).roots == b"two"
    assert tls_material(None) == TlsMaterial(None, None, None)


def test_pem_file_above_its_ceiling_is_refused(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(bytes(PEM_BYTES_MAX + 1))
    with pytest.raises(ValueError):
        tls_material(EtcdTls(str(ca)))


def test_answers_are_bounded_above_the_largest_value_and_lost_peers_show_soon() -> None:
    options = dict(options_for(None))
    assert options["grpc.max_receive_message_length"] == MESSAGE_BYTES_MAX > RECORD_VALUE_BYTES_MAX
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.http2.ping_timeout_ms"] == 5_000
    assert "grpc.ssl_target_name_override" not in options


@pytest.mark.req("CFG-21")
def test_server_name_is_the_name_that_is_checked() -> None:
    options = dict(options_for(EtcdTls(server_name="etcd.fleet")))
    assert options["grpc.ssl_target_name_override"] == options["grpc.default_authority"] == "etcd.fleet"
