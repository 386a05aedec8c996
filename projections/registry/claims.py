"""Who claims an identity: keys by what their values say they are.

Records are held by key but mean something by an identity in their value, so two keys can
claim one. From each identity Dynamo derives a single key; where there are two, nobody can
tell the genuine from the forged, and all of them are refused until one is left (DUP-01).

    record                identity, inside one namespace            more than one means
    generate endpoint     instance id                               no worker
    base card             component, endpoint, instance id          worker without a card
    adapter's card        the same and the suffix                   nothing, it never joins
    kv_metrics, kv-events topic, publisher id                       no subscription
    event source          topic, publisher id                       no rank binding

Other endpoints and other topics claim nothing here. A set of conflicting keys is reported
once, however often it forms (DUP-06); the names of reported sets are state.

Sources: wire contract 1.1; requirement rows DUP-01..08, RED-16.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import xxhash

from projections.bounds import CONFLICTS_REPORTED_MAX, DUPLICATE_KEYS_NAMED_MAX
from projections.events.codec import encode_value
from projections.events.discovery import Keyspace
from projections.notices import DiscoveryKind, DiscoveryNotice, Notice
from projections.registry.records import (
    GENERATE,
    TOPICS,
    CardRecord,
    ChannelRecord,
    EndpointRecord,
    SourceRecord,
)

Identity = tuple[int, str, tuple[str | int, ...]]  # keyspace, namespace, what it is claimed by

_U128: Final = (1 << 128) - 1
_WHAT: Final = {
    int(Keyspace.INSTANCES): "records claim one generate endpoint",
    int(Keyspace.CARDS): "records claim one model card",
    int(Keyspace.CHANNELS): "records claim one publisher",
    int(Keyspace.SOURCES): "records claim one event source",
}


def instance_identity(namespace: str, instance_id: int) -> Identity:
    """Of the generate endpoint of a worker."""
    return (int(Keyspace.INSTANCES), namespace, (instance_id,))


def card_identity(namespace: str, component: str, endpoint: str, instance_id: int, suffix: str) -> Identity:
    """Of a card; a legacy card has empty names, a base card an empty suffix."""
    return (int(Keyspace.CARDS), namespace, (component, endpoint, instance_id, suffix))


def publisher_identity(keyspace: int, namespace: str, topic: str, publisher_id: int) -> Identity:
    """Of an event channel or an event source."""
    return (keyspace, namespace, (topic, publisher_id))


def identity_of(keyspace: int, namespace: str, record: object) -> Identity | None:
    """What a held record claims, None where it claims nothing of ours."""
    if isinstance(record, EndpointRecord):
        return instance_identity(namespace, record.instance_id) if record.endpoint == GENERATE else None
    if isinstance(record, CardRecord):
        return card_identity(
            namespace, record.component, record.endpoint, record.instance_id, record.model_suffix
        )
    if isinstance(record, ChannelRecord | SourceRecord) and record.topic in TOPICS:
        return publisher_identity(keyspace, namespace, record.topic, record.publisher_id)
    return None


class Claims:
    """Keys by identity, and the names of conflicts that were reported.

    A conflict's name is kept by addition, so that thousands of keys with one identity cost
    a sorted insert each and nothing more.
    """

    def __init__(self) -> None:
        self._keys: dict[Identity, list[str]] = {}
        self._names: dict[Identity, int] = {}  # of identities with several keys
        self._reported: dict[bytes, None] = {}

    def holders(self, identity: Identity) -> Sequence[str]:
        """Keys that claim it, sorted."""
        return self._keys.get(identity, ())

    def sole(self, identity: Identity) -> str | None:
        """The key that alone claims it, None where nobody does or several do."""
        keys = self._keys.get(identity, ())
        return keys[0] if len(keys) == 1 else None

    def add(self, identity: Identity, key: str) -> None:
        """`key` claims it from now on."""
        keys = self._keys.get(identity)
        if keys is None:
            self._keys[identity] = [key]
            return
        if len(keys) == 1:
            self._names[identity] = _summand(keys[0]) + xxhash.xxh3_128_intdigest(encode_value(identity))
        self._names[identity] = (self._names[identity] + _summand(key)) & _U128
        insort(keys, key)

    def remove(self, identity: Identity, key: str) -> None:
        """`key` claims it no longer."""
        keys = self._keys[identity]
        if len(keys) == 1:
            del self._keys[identity]
            return
        del keys[bisect_left(keys, key)]
        if len(keys) == 1:
            del self._names[identity]
        else:
            self._names[identity] = (self._names[identity] - _summand(key)) & _U128

    def report(self, identity: Identity, notices: list[Notice]) -> None:
        """Say that several keys claim it; at debug level where this very set was said before."""
        total = self._names.get(identity)
        if total is None:
            return
        name = total.to_bytes(16, "big")
        said = name in self._reported
        if not said:
            self._reported[name] = None
            if len(self._reported) > CONFLICTS_REPORTED_MAX:
                del self._reported[next(iter(self._reported))]
        keyspace, namespace, parts = identity
        keys = self._keys[identity]
        notices.append(
            DiscoveryNotice(
                DiscoveryKind.DUPLICATE,
                namespace,
                _WHAT[keyspace],
                identity="/".join(map(str, (namespace, *parts))),
                keys=tuple(keys[:DUPLICATE_KEYS_NAMED_MAX]),
                level="debug" if said else "warning",
                records=len(keys),
            )
        )

    def identities(self) -> Iterator[Identity]:
        """All claimed identities, in no particular order."""
        return iter(self._keys)

    @property
    def reported(self) -> tuple[bytes, ...]:
        """Names of reported conflicts, oldest first."""
        return tuple(self._reported)

    def restore_reported(self, names: Iterable[bytes]) -> None:
        """Remember what a checkpoint says was reported."""
        self._reported = dict.fromkeys(names)


def _summand(key: str) -> int:
    word: int = xxhash.xxh3_128_intdigest(key.encode())
    return word
