"""Names of the fleet's records: the four keyspaces, key to parts and back, file names.

    v1/instances/<ns>/<component>/<endpoint>/<id>
    v1/mdc/<ns>/<component>/<endpoint>/<id>[/<model suffix>]
    v1/event_channels/namespace/<ns>[/component/<c>[/endpoint/<e>]]/topic/<topic>/<publisher>
    v1/event_sources/...                                      the same three forms

Ids are hex. The first two keyspaces write their segments as they are; in the other two each
variable segment is percent-encoded. Every watched prefix ends in `/`, so the namespace `prod`
never sees the keys of `prod2`. Writing is exact; reading takes any escape that names a byte,
in either case of hex, but refuses a broken one, as Dynamo does: two spellings of one identity
are the registry's to notice, it compares identities and not keys.

In Dynamo's file store a record is `v1/<bucket>/<file name>`, the file name being the rest of
the key with every byte but ASCII letters and digits escaped. A channel's name therefore needs
two decodings: the file name first, each segment then.

Nothing here raises for any key; a key that is none of ours is a `KeyRefused`.
Sources: requirement rows ETCD-03..05, LOAD-01..03, FILE-02.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from projections.bounds import KEY_BYTES_MAX
from projections.events.discovery import Keyspace
from projections.identity import id_of_hex

BUCKETS: Final = {
    Keyspace.INSTANCES: "v1/instances",
    Keyspace.CARDS: "v1/mdc",
    Keyspace.CHANNELS: "v1/event_channels",
    Keyspace.SOURCES: "v1/event_sources",
}
_KEYSPACES: Final = {bucket: keyspace for keyspace, bucket in BUCKETS.items()}
_ENCODED: Final = frozenset((Keyspace.CHANNELS, Keyspace.SOURCES))

# The fixed words of a publisher key; the variable segments stand between them.
_SCOPE_WORDS: Final = ("namespace", "component", "endpoint")

_SEGMENT_KEPT: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_FILE_NAME_KEPT: Final = _SEGMENT_KEPT - frozenset(b"-_")
_SEGMENT_TABLE: Final = tuple(chr(b) if b in _SEGMENT_KEPT else f"%{b:02X}" for b in range(256))
_FILE_NAME_TABLE: Final = tuple(chr(b) if b in _FILE_NAME_KEPT else f"%{b:02X}" for b in range(256))
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


class ScopeKind(Enum):
    """How much of the fleet a publisher speaks for; the value is the word in its record."""

    NAMESPACE = "namespace"
    COMPONENT = "component"
    ENDPOINT = "endpoint"


class InstanceKey(NamedTuple):
    """Key of an Endpoint record."""

    namespace: str
    component: str
    endpoint: str
    instance_id: int


class CardKey(NamedTuple):
    """Key of a Model record; `model_suffix` is None on a base card and a slug on a LoRA card."""

    namespace: str
    component: str
    endpoint: str
    instance_id: int
    model_suffix: str | None


class PublisherKeyParts(NamedTuple):
    """Key of an EventChannel or EventSource, decoded. What the scope does not name is None."""

    scope_kind: ScopeKind
    namespace: str
    component: str | None
    endpoint: str | None
    topic: str
    publisher_id: int


class KeyFault(Enum):
    """Why a key is none of ours."""

    TOO_LONG = "above the ceiling of a key"
    TEXT = "not UTF-8"
    KEYSPACE = "outside the four keyspaces"
    SHAPE = "wrong number or words of segments, or an empty one"
    ESCAPE = "broken percent-encoding"
    ID = "id that is not 1 to 16 hex digits"


class KeyRefused(NamedTuple):
    """A key that is not read; the record behind it is `malformed`."""

    fault: KeyFault


FleetKey = InstanceKey | CardKey | PublisherKeyParts


def prefix_of(keyspace: Keyspace, namespace: str) -> str:
    """What to read and watch for one namespace; ends in `/`. The namespace is raw text."""
    if keyspace in _ENCODED:
        return f"{BUCKETS[keyspace]}/namespace/{encode_segment(namespace)}/"
    return f"{BUCKETS[keyspace]}/{namespace}/"


def relative_key(keyspace: Keyspace, namespace: str, key: str) -> str | None:
    """The part of a full key below `prefix_of`, as written, or None where it lies elsewhere."""
    prefix = prefix_of(keyspace, namespace)
    return key[len(prefix) :] if key.startswith(prefix) and len(key) > len(prefix) else None


def full_key(keyspace: Keyspace, namespace: str, relative: str) -> str:
    """The key that `relative_key` cut."""
    return prefix_of(keyspace, namespace) + relative


def text_of_key(raw: bytes) -> str | KeyRefused:
    """A key as etcd gives it, as text. Bounded: at most KEY_BYTES_MAX bytes, valid UTF-8."""
    if len(raw) > KEY_BYTES_MAX:
        return KeyRefused(KeyFault.TOO_LONG)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return KeyRefused(KeyFault.TEXT)


def parse_key(key: str) -> FleetKey | KeyRefused:
    """The parts of a full key of any of the four keyspaces."""
    if len(key) > KEY_BYTES_MAX:
        return KeyRefused(KeyFault.TOO_LONG)
    version, _, rest = key.partition("/")
    bucket, _, rest = rest.partition("/")
    keyspace = _KEYSPACES.get(f"{version}/{bucket}")
    if keyspace is None:
        return KeyRefused(KeyFault.KEYSPACE)
    segments = rest.split("/")
    if not all(segments):
        return KeyRefused(KeyFault.SHAPE)
    if keyspace in _ENCODED:
        return _publisher_parts(segments)
    if len(segments) != 4 and not (keyspace is Keyspace.CARDS and len(segments) == 5):
        return KeyRefused(KeyFault.SHAPE)
    instance_id = id_of_hex(segments[3])
    if instance_id is None:
        return KeyRefused(KeyFault.ID)
    namespace, component, endpoint = segments[:3]
    if keyspace is Keyspace.INSTANCES:
        return InstanceKey(namespace, component, endpoint, instance_id)
    return CardKey(namespace, component, endpoint, instance_id, segments[4] if len(segments) == 5 else None)


def _publisher_parts(segments: list[str]) -> PublisherKeyParts | KeyRefused:
    """Read 5, 7 or 9 segments: one to three scopes, the topic, the publisher."""
    scopes = (len(segments) - 3) // 2
    if len(segments) not in (5, 7, 9) or tuple(segments[:-1:2]) != (*_SCOPE_WORDS[:scopes], "topic"):
        return KeyRefused(KeyFault.SHAPE)
    names = [decode_segment(segment) for segment in segments[1::2]]
    publisher_id = id_of_hex(segments[-1])
    if publisher_id is None:
        return KeyRefused(KeyFault.ID)
    decoded = [name for name in names if name]
    if len(decoded) != len(names):
        return KeyRefused(KeyFault.ESCAPE)
    return PublisherKeyParts(
        scope_kind=ScopeKind(_SCOPE_WORDS[scopes - 1]),
        namespace=decoded[0],
        component=decoded[1] if scopes > 1 else None,
        endpoint=decoded[2] if scopes > 2 else None,
        topic=decoded[-1],
        publisher_id=publisher_id,
    )


def key_of(keyspace: Keyspace, parts: FleetKey) -> str:
    """The full key of `parts`, as Dynamo writes it. Inverse of `parse_key`."""
    bucket = BUCKETS[keyspace]
    if isinstance(parts, PublisherKeyParts):
        names = zip(_SCOPE_WORDS, (parts.namespace, parts.component, parts.endpoint), strict=True)
        scope = "".join(f"/{word}/{encode_segment(name)}" for word, name in names if name is not None)
        return f"{bucket}{scope}/topic/{encode_segment(parts.topic)}/{parts.publisher_id:x}"
    key = f"{bucket}/{parts.namespace}/{parts.component}/{parts.endpoint}/{parts.instance_id:x}"
    if isinstance(parts, CardKey) and parts.model_suffix is not None:
        key += f"/{parts.model_suffix}"
    return key


def encode_segment(text: str) -> str:
    """Percent-encode one segment by bytes of UTF-8; ASCII letters, digits, `-`, `_` stay."""
    return "".join([_SEGMENT_TABLE[byte] for byte in text.encode()])


def decode_segment(segment: str) -> str | None:
    """The text that `encode_segment` wrote, or None for a broken escape or bytes that are no UTF-8."""
    if "%" not in segment:
        return segment
    return _unescape(segment)


def file_of_key(key: str) -> tuple[str, str] | None:
    """(`v1/<bucket>`, file name) of a full key in the file store, or None outside the keyspaces."""
    for bucket in _KEYSPACES:
        if key.startswith(bucket + "/"):
            rest = key[len(bucket) + 1 :].encode()
            return bucket, "".join([_FILE_NAME_TABLE[byte] for byte in rest])
    return None


def key_of_file(keyspace: Keyspace, file_name: str) -> str | KeyRefused | None:
    """The full key of a file in a bucket's folder; its segments stay encoded as in etcd.

    Returns None for names that begin with `.`: files under construction, not records.
    """
    if file_name.startswith("."):
        return None
    if len(file_name) > 3 * KEY_BYTES_MAX:
        return KeyRefused(KeyFault.TOO_LONG)
    rest = _unescape(file_name)
    if rest is None:
        return KeyRefused(KeyFault.ESCAPE)
    return f"{BUCKETS[keyspace]}/{rest}"


def _unescape(text: str) -> str | None:
    """Replace each %XX by its byte; None where a `%` begins no escape or the result is no UTF-8."""
    try:
        raw = text.encode()
        if raw.count(b"%") != len(_ESCAPE.findall(raw)):
            return None
        return _ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), raw).decode()
    except UnicodeError:  # lone surrogates of undecodable file names, or bytes that are no UTF-8
        return None
