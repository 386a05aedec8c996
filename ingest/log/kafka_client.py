"""How to reach the brokers: the options that every client of the library takes.

TLS and SASL are mapped here and nowhere else; what this release does not map is refused by name
rather than left to the library.
"""

from __future__ import annotations

import ssl
from typing import Any

from aiokafka.helpers import create_ssl_context

from ingest.log.kafka_asking import ask_only
from ingest.log.kafka_settings import REQUEST_S, KafkaPlace, KafkaSecurity, TopicRefused

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def client_options(place: KafkaPlace) -> dict[str, Any]:
    """Options that every client of the library takes. Raises TopicRefused, KafkaUnreachable.

    No client makes a topic by asking for it, see `kafka_asking`.
    """
    ask_only()
    security = place.security
    protocol = security.protocol.upper()
    if not place.servers:
        raise TopicRefused("log.kafka.bootstrap_servers is empty: name host:port of a broker")
    if protocol not in PROTOCOLS:
        raise TopicRefused(
            f"log.kafka.security.protocol {security.protocol!r} is none of {', '.join(PROTOCOLS)}"
        )
    options: dict[str, Any] = {
        "bootstrap_servers": list(place.servers),
        "client_id": "picklog",
        "request_timeout_ms": int(REQUEST_S * 1000),
        "retry_backoff_ms": 100,
        "connections_max_idle_ms": 540_000,
        "security_protocol": protocol,
    }
    if protocol.startswith("SASL_"):
        options |= _sasl(security)
    if protocol.endswith("SSL"):
        options["ssl_context"] = _tls(security)
    return options


def _sasl(security: KafkaSecurity) -> dict[str, Any]:
    mechanism = (security.mechanism or "PLAIN").upper()
    if mechanism not in MECHANISMS:
        raise TopicRefused(
            f"log.kafka.security.mechanism {security.mechanism!r} is none of {', '.join(MECHANISMS)}"
        )
    if security.username is None or security.password is None:
        raise TopicRefused("log.kafka.security needs username and password for SASL")
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": security.username,
        "sasl_plain_password": security.password,
    }


def _tls(security: KafkaSecurity) -> ssl.SSLContext:
    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=security.ca_cert, certfile=security.client_cert, keyfile=security.client_key
        )
        return context
    except (OSError, ValueError) as problem:
        detail = getattr(problem, "strerror", None) or type(problem).__name__
        raise TopicRefused(f"a PEM file of log.kafka.security cannot be used: {detail}") from problem
