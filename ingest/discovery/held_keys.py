"""What was logged of every key, and which difference a sighting makes.

The log holds differences, so somebody must know what it already says. This is that
memory: for each key the digest of the value last logged, started from what the fold holds
and then kept by every fact given out. It mirrors the fold's held keys exactly, which is
what the count and digest of `PassSettled` prove; so it follows the fold's rule at the
ceiling too: updates of held keys always pass, a new key only while its keyspace holds
fewer than KEYS_PER_KEYSPACE_MAX. A key above the ceiling is not logged at all, however
often it is seen. It costs a counter here and nothing in the log, and the fold is never
asked to refuse it.

Bounds: KEYS_PER_KEYSPACE_MAX entries of four keyspaces, keys up to KEY_BYTES_MAX.
Sources: decision 11; requirement rows MEM-01..06; field report B-007.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

import xxhash
from blake3 import blake3

from ingest.discovery.source import FoundKey, Watched
from projections.bounds import (
    CARD_RETAINED_BYTES_MAX,
    KEYS_PER_KEYSPACE_MAX,
    RECORD_VALUE_BYTES_MAX,
)
from projections.events.discovery import KeyDeleted, KeyPut, KeyRefusal, Keyspace
from projections.registry.keyspace import key_digest_input
from projections.registry.records import parse_card, parse_channel, parse_endpoint, parse_source
from projections.registry.subset import subset_of

_PARSERS: Final = {
    int(Keyspace.INSTANCES): parse_endpoint,
    int(Keyspace.CARDS): parse_card,
    int(Keyspace.CHANNELS): parse_channel,
    int(Keyspace.SOURCES): parse_source,
}

HeldKey = tuple[int, str, str]  # keyspace, namespace, key below the watched prefix
_U64 = (1 << 64) - 1


class Sighting(Enum):
    """What a sighting without a fact means."""

    UNCHANGED = 1
    OVER_CAPACITY = 2


class HeldKeys:
    """Digests of the values last logged.

    held: value digests (32 bytes) of the keys that the fold holds at the start.
    """

    def __init__(self, held: Mapping[HeldKey, bytes]) -> None:
        self._digests: dict[HeldKey, bytes] = {}
        self._counts: dict[int, int] = {int(keyspace): 0 for keyspace in Keyspace}
        self._unseen: set[HeldKey] = set()
        self.digest = 0  # sum modulo 2^64 over all held keys, see PassSettled
        for key, value_digest in held.items():
            self._hold(key, value_digest)

    def __len__(self) -> int:
        return len(self._digests)

    def count(self, keyspace: int, namespace: str | None = None) -> int:
        """Held keys of a keyspace, or of one namespace in it (which walks all keys)."""
        if namespace is None:
            return self._counts.get(keyspace, 0)
        return sum(1 for held in self._digests if held[0] == keyspace and held[1] == namespace)

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces of the held keys, sorted."""
        return tuple(sorted({namespace for _, namespace, _ in self._digests}))

    def sighted(self, watched: Watched, key: str, found: FoundKey) -> KeyPut | Sighting:
        """The fact that a key with this value makes; it counts as logged once given out."""
        held_key = (int(watched.keyspace), watched.namespace, key)
        self._unseen.discard(held_key)
        value_digest = _digest_of(found)
        held = self._digests.get(held_key)
        if held == value_digest:
            return Sighting.UNCHANGED
        if held is None and self._counts[held_key[0]] >= KEYS_PER_KEYSPACE_MAX:
            return Sighting.OVER_CAPACITY
        self._hold(held_key, value_digest)
        value, refusal = _retained(held_key[0], found)
        return KeyPut(*held_key, found.revision, value, found.size, value_digest, int(refusal))

    def gone(self, watched: Watched, key: str, revision: int) -> KeyDeleted | None:
        """The fact that a vanished key makes; None where it was not held."""
        held_key = (int(watched.keyspace), watched.namespace, key)
        if held_key not in self._digests:
            return None
        self._release(held_key)
        return KeyDeleted(*held_key, revision)

    def begin_listing(self) -> None:
        """From now on every held key counts as unseen until `listed` names it."""
        self._unseen = set(self._digests)

    def listed(self, watched: Watched, keys: Iterable[str]) -> None:
        """Keys that are still there."""
        keyspace, namespace = int(watched.keyspace), watched.namespace
        self._unseen.difference_update((keyspace, namespace, key) for key in keys)

    def remove_unseen(self, revisions: Mapping[tuple[int, str], int]) -> list[KeyDeleted]:
        """Facts for the held keys that no listing named, in key order.

        revisions: of the listing of each (keyspace, namespace); 0 for prefixes not listed.
        """
        removed = []
        for held_key in sorted(self._unseen):
            self._release(held_key)
            removed.append(KeyDeleted(*held_key, revisions.get(held_key[:2], 0)))
        self._unseen = set()
        return removed

    def drop(self, namespaces: tuple[str, ...]) -> bool:
        """Forget these namespaces, () for all, as `KeysDropped` does; whether any key went."""
        gone = [key for key in self._digests if not namespaces or key[1] in namespaces]
        for key in gone:
            self._release(key)
        return bool(gone)

    def _hold(self, key: HeldKey, value_digest: bytes) -> None:
        if key in self._digests:
            self._release(key)
        self._digests[key] = value_digest
        self._counts[key[0]] += 1
        self.digest = (self.digest + _entry(key, value_digest)) & _U64

    def _release(self, key: HeldKey) -> None:
        value_digest = self._digests.pop(key)
        self._unseen.discard(key)
        self._counts[key[0]] -= 1
        self.digest = (self.digest - _entry(key, value_digest)) & _U64


def _entry(key: HeldKey, value_digest: bytes) -> int:
    entry: int = xxhash.xxh3_64_intdigest(key_digest_input(*key, value_digest))
    return entry


def _digest_of(found: FoundKey) -> bytes:
    """blake3 of the value; of an unread value, of its size and revision, so that changes show."""
    if found.value is None:
        return blake3(b"unread %d %d" % (found.size, found.revision)).digest()
    return blake3(found.value).digest()


def _retained(keyspace: int, found: FoundKey) -> tuple[bytes, KeyRefusal]:
    """What of the value goes into the log. Above 16 MiB it is never parsed."""
    value = found.value
    if value is None or len(value) > RECORD_VALUE_BYTES_MAX:
        return b"", KeyRefusal.OVERSIZED
    if len(value) > CARD_RETAINED_BYTES_MAX:
        return subset_of(_PARSERS[keyspace](value)), KeyRefusal.CUT
    return value, KeyRefusal.NONE
