"""What the name of a held key says, to be compared with what its value says.

Keys are held below the watched prefix, as the fleet wrote them:

    instances         component / endpoint / id
    cards             component / endpoint / id [/ suffix]
    channels, sources [component / c [/ endpoint / e] /] topic / t / publisher, percent-encoded

The value's identity counts, whatever its key says (D 23); a disagreement is only counted.
A name of another shape says nothing.
"""

from __future__ import annotations

import re
from typing import Final

from projections.events.discovery import Keyspace
from projections.identity import id_of_hex
from projections.registry.records import CardRecord, ChannelRecord, EndpointRecord, SourceRecord

Said = tuple[str | int | None, ...]
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


def disagreement(keyspace: int, key: str, record: object) -> str | None:
    """Where key and value differ, in words; None where they agree or one of them says nothing."""
    said = _said_by_key(keyspace, key)
    meant = _said_by_record(record)
    if said is None or meant is None:
        return None
    for what, by_key, by_value in zip(_NAMES[keyspace], said, meant, strict=True):
        if by_value not in ("", None, by_key):
            return what
    return None


_NAMES: Final = {
    int(Keyspace.INSTANCES): ("component", "endpoint", "id"),
    int(Keyspace.CARDS): ("component", "endpoint", "id"),
    int(Keyspace.CHANNELS): ("component", "endpoint", "topic", "id"),
    int(Keyspace.SOURCES): ("component", "endpoint", "topic", "id"),
}


def _said_by_key(keyspace: int, key: str) -> Said | None:
    segments = key.split("/")
    if keyspace in (Keyspace.INSTANCES, Keyspace.CARDS):
        if len(segments) not in (3, 4):
            return None
        return segments[0], segments[1], id_of_hex(segments[2])
    scopes = (len(segments) - 3) // 2
    words = ("component", "endpoint")[: max(0, scopes)]
    if len(segments) not in (3, 5, 7) or tuple(segments[:-1:2]) != (*words, "topic"):
        return None
    names = [_decoded(segment) for segment in segments[1:-1:2]]
    component = names[0] if scopes > 0 else None
    endpoint = names[1] if scopes > 1 else None
    return component, endpoint, names[-1], id_of_hex(segments[-1])


def _said_by_record(record: object) -> Said | None:
    if isinstance(record, EndpointRecord | CardRecord):
        return record.component, record.endpoint, record.instance_id
    if isinstance(record, ChannelRecord | SourceRecord):
        return record.component, record.endpoint, record.topic, record.publisher_id
    return None


def _decoded(segment: str) -> str:
    raw = _ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), segment.encode())
    return raw.decode(errors="replace")
