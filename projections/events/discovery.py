"""Facts of discovery: held keys of the four watched keyspaces, written as differences.

A pass reads every watched prefix and then follows it. Keys that did not change since
the last pass are not written again; `PassSettled` carries the count and digest of all
keys that the pass saw, so that the fold can tell whether it holds the same set
(decision 11). `PassBegan` resets the revision floor: a restored store may count anew.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Keyspace(IntEnum):
    """The four watched prefixes (decision 22)."""

    INSTANCES = 1
    CARDS = 2
    CHANNELS = 3
    SOURCES = 4


class KeyRefusal(IntEnum):
    """Why a put carries no value. Numbers are part of the format."""

    NONE = 0
    OVERSIZED = 1  # above RECORD_VALUE_BYTES_MAX, never parsed
    CUT = 2  # above CARD_RETAINED_BYTES_MAX: the value is the typed subset alone


class PassBegan(NamedTuple):
    """A discovery round started. `reason` is a fixed word (start, ended, restart, ...)."""

    source: str
    namespaces: tuple[str, ...]
    pass_number: int
    reason: str


class KeyPut(NamedTuple):
    """A key was seen with a value that differs from the one last written.

    key:    below the keyspace's bucket and namespace prefix, as written by the fleet
            (percent-encoded in CHANNELS and SOURCES), at most KEY_BYTES_MAX bytes.
    value:  JSON text exactly as found (up to CARD_RETAINED_BYTES_MAX), or the typed
            subset re-encoded when `refusal` is CUT, or empty when OVERSIZED.
    value_bytes, value_digest: length and blake3 (32 bytes) of the value as found.
    """

    keyspace: int
    namespace: str
    key: str
    revision: int
    value: bytes
    value_bytes: int
    value_digest: bytes
    refusal: int = KeyRefusal.NONE


class KeyDeleted(NamedTuple):
    """A key went, by its owner, by its lease or by a pass that no longer saw it."""

    keyspace: int
    namespace: str
    key: str
    revision: int


class PassSettled(NamedTuple):
    """Every prefix has been read and its watch stands.

    keys, digest: over all keys the pass holds: count, and the sum modulo 2^64 of
    xxh3-64 of `key_digest_input` of each (see projections.registry.keyspace).
    unwatched: keyspaces that permission kept from us (only SOURCES may be missing).
    """

    source: str
    namespaces: tuple[str, ...]
    pass_number: int
    keys: int
    digest: int
    revision: int
    unwatched: tuple[int, ...] = ()


class PassEnded(NamedTuple):
    """The pass is over; the fleet stays as it was until the next one."""

    source: str
    namespaces: tuple[str, ...]
    pass_number: int
    reason: str


class KeysDropped(NamedTuple):
    """All held keys of these namespaces go (empty: of every namespace).

    reason: enabled, namespace, namespaces, connection, source, other, all.
    """

    namespaces: tuple[str, ...]
    reason: str
