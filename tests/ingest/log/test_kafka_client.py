"""TLS and SASL as the client library takes them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from ingest.log.kafka_client import client_options
from ingest.log.kafka_settings import KafkaPlace, KafkaSecurity, TopicRefused
from tests.live.certificates import Authority


def options(**security: Any) -> dict[str, Any]:
    return client_options(KafkaPlace(("a:1", "b:2"), "lane", security=KafkaSecurity(**security)))


def test_plaintext_takes_brokers_and_time_limits_alone() -> None:
    found = options()
    assert found["bootstrap_servers"] == ["a:1", "b:2"]
    assert (found["security_protocol"], found["request_timeout_ms"]) == ("PLAINTEXT", 10_000)
    assert "ssl_context" not in found and "sasl_mechanism" not in found


def test_tls_checks_the_broker_and_shows_a_client_s_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.client()
    found = options(
        protocol="ssl",
        ca_cert=str(authority.ca),
        client_cert=str(client.certificate),
        client_key=str(client.key),
    )
    context = found["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    assert found["security_protocol"] == "SSL"


@pytest.mark.parametrize("mechanism", [None, "PLAIN", "scram-sha-256", "SCRAM-SHA-512"])
def test_sasl_takes_a_user(mechanism: str | None) -> None:
    found = options(protocol="SASL_PLAINTEXT", mechanism=mechanism, username="u", password="p")
    assert found["sasl_mechanism"] == (mechanism or "PLAIN").upper()
    assert (found["sasl_plain_username"], found["sasl_plain_password"]) == ("u", "p")


def test_both_together(tmp_path: Path) -> None:
    found = options(protocol="SASL_SSL", username="u", password="p", ca_cert=str(Authority(tmp_path).ca))
    assert "ssl_context" in found and found["sasl_mechanism"] == "PLAIN"


@pytest.mark.parametrize(
    ("security", "words"),
    [
        ({"protocol": "QUIC"}, "protocol 'QUIC' is none of"),
        ({"protocol": "SASL_SSL", "mechanism": "GSSAPI"}, "mechanism 'GSSAPI' is none of"),
        ({"protocol": "SASL_PLAINTEXT", "username": "u"}, "needs username and password"),
        ({"protocol": "SSL", "ca_cert": "/nowhere/ca.pem"}, "PEM file of log.kafka.security"),
    ],
)
def test_what_is_not_mapped_is_refused_by_name(security: dict[str, str], words: str) -> None:
    with pytest.raises(TopicRefused, match=words):
        options(**security)


def test_no_broker_is_refused() -> None:
    with pytest.raises(TopicRefused, match="bootstrap_servers is empty"):
        client_options(KafkaPlace((), "lane"))
