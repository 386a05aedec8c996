"""Addresses, TLS material and channel options of an etcd connection, as grpc takes them.

An endpoint is `http://host:port`, `https://host:port` or `host:port`; IPv6 addresses stand
in brackets. The configuration has checked all of them; what still does not parse is
refused here, never guessed. PEM files are read at each connect, so that a renewed
certificate counts from the next pass on.

Sources: requirement rows CFG-05..10, CFG-21, ETCD-17.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ingest.discovery.settings import EtcdTls
from projections.bounds import MIB, RECORD_VALUE_BYTES_MAX

PEM_BYTES_MAX: Final = 1 * MIB
# One answer. The largest value that is read, its key, and room beside it.
MESSAGE_BYTES_MAX: Final = 2 * RECORD_VALUE_BYTES_MAX

CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MIB),
    ("grpc.enable_retries", 0),  # a pass is the only retry
    ("grpc.enable_http_proxy", 0),  # etcd is on the inside network whatever http_proxy says
    ("grpc.use_local_subchannel_pool", 1),  # a new pass dials anew
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # without it a lost peer shows after 70 s
)


class Endpoint(NamedTuple):
    """A dial target in grpc's own notation, and how people read it."""

    target: str
    shown: str  # host:port
    is_tls: bool


class TlsMaterial(NamedTuple):
    """PEM bytes; None where grpc's own authorities or no client certificate are meant."""

    roots: bytes | None
    chain: bytes | None
    key: bytes | None


def endpoint_of(text: str) -> Endpoint:
    """Raises ValueError, without the text, for what is no endpoint."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("endpoint is not http(s)://host:port")
    port = parts.port or 2379
    host = parts.hostname
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        version = ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        return Endpoint(f"dns:///{shown}", shown, parts.scheme == "https")
    return Endpoint(f"ipv{version}:{shown}", shown, parts.scheme == "https")


def tls_material(tls: EtcdTls | None) -> TlsMaterial:
    """Read the PEM files. Blocks; raises OSError, or ValueError for a file above PEM_BYTES_MAX."""
    if tls is None:
        return TlsMaterial(None, None, None)
    return TlsMaterial(_pem(tls.ca_cert), _pem(tls.client_cert), _pem(tls.client_key))


def options_for(tls: EtcdTls | None) -> list[tuple[str, Any]]:
    """Channel options, with the name to check in the server's certificate where one is given."""
    options = list(CHANNEL_OPTIONS)
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
        options.append(("grpc.default_authority", tls.server_name))
    return options


def _pem(path: str | None) -> bytes | None:
    if path is None:
        return None
    with Path(path).open("rb") as file:
        data = file.read(PEM_BYTES_MAX + 1)
    if len(data) > PEM_BYTES_MAX:
        raise ValueError("PEM file is above its ceiling")
    return data
