"""Where a worker says that it is reached: the host of its request plane, the port of its system server.

The host stands in the transport of its `generate` endpoint, as host and port before anything else:

    {"tcp": "10.0.0.7:35211/506ca22822ade60a/generate"}         1.4.2 and 1.5.0
    {"tcp": "10.0.0.7:35211/506c.../dynamo/backend/generate"}   1.6.1
    {"http": "http://10.0.0.7:8081/v1/rpc/generate"}
    {"nats_tcp": "dynamo.backend.generate-506c..."}             a subject, no host

Nothing behind the port is read, and the port itself neither: it is drawn anew at each start. The
system server's port (`DYN_SYSTEM_PORT`) is the operator's and stays. It stands in the places of the
card's files where the worker serves these by itself: `http://host:port/v1/metadata/...`.

Nobody is dialled by what is read here; it says which worker an engine belongs to, and no more.
Hosts are compared as texts: addresses in their shortest form, names in lower case. A fleet of thousands is
read at once at a start, on the event loop; hence a decoder that takes these two fields alone.

Sources: wire contract 2.1, 2.5; recordings of 1.4.2, 1.5.0 and 1.6.1.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ingest.subscriptions.addresses import ip_of, plain_ip
from ingest.wire.publisher_frames import UNREADABLE
from projections.bounds import RECORD_VALUE_BYTES_MAX
from projections.registry.artifacts import CardArtifacts
from projections.registry.records import NAME_CHARACTERS_MAX

_HOST: Final = r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})"
_PLACE: Final = re.compile(rf"(?:[a-z][a-z0-9+.-]{{0,15}}://)?{_HOST}(?:/.*)?", re.ASCII | re.DOTALL)
_METADATA: Final = re.compile(rf"https?://{_HOST}/v1/metadata/", re.ASCII)


class _Transport(msgspec.Struct, gc=False):
    tcp: Any = None
    http: Any = None


class _Record(msgspec.Struct, gc=False):
    transport: _Transport


_decode_record = msgspec.json.Decoder(_Record).decode


def host_text(host: str) -> str:
    """The one spelling of a host: `::ffff:10.0.0.7` as 10.0.0.7, a name in lower case. Never raises."""
    address = ip_of(host)
    return host.lower().removesuffix(".") if address is None else str(plain_ip(address))


def advertised_host(value: bytes) -> str | None:
    """The host in an Endpoint record, as `host_text` spells it; None where it names none. Never raises."""
    if len(value) > RECORD_VALUE_BYTES_MAX:
        return None
    try:
        transport = _decode_record(value).transport
    except UNREADABLE:
        return None
    for text in (transport.tcp, transport.http):
        is_text = isinstance(text, str) and len(text) <= NAME_CHARACTERS_MAX
        found = _PLACE.fullmatch(text) if is_text else None
        if found is not None:
            return host_text(found[1] or found[2])
    return None


def system_port(artifacts: CardArtifacts) -> int | None:
    """The port at which a worker serves its own files, None where it does not, or at several."""
    ports = {int(found[3]) for _, file in artifacts.slots() if (found := _METADATA.match(file.path))}
    port = ports.pop() if len(ports) == 1 else 0
    return port if 0 < port <= 65_535 else None
