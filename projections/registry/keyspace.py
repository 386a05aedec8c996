"""Which keys are held: four keyspaces, passes as differences, ceilings.

Held keys are the registry's only input. A put or delete says what changed (`Change`), and
the joins follow from that. Records are kept by key, so whatever a value claims, deleting
its key takes exactly it away.

Passes. `PassBegan` resets the revision floor, since a restored store may count anew. From
`PassSettled` on facts come from watches, one for each keyspace and namespace, whose
revisions never go back: a fact below the newest revision of its watch is a repetition and
has no effect (EVS-15). During the listing a repetition is an equal value, or is corrected
by the listing itself. Count and digest of `PassSettled` tell whether reader and fold hold
the same keys.

Ceilings. Keys of each keyspace are counted apart; at the ceiling held keys are updated,
new ones refused, said once until there is room (MEM-03..06). Values are interned; together
they stay below CARDS_INTERNED_BYTES_MAX, beyond it a value is cut to the fields we read.

Sources: decisions 11, 22, 23, 25; requirement rows MEM-*, EVS-15, RED-15.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import xxhash

from projections.bounds import (
    CARD_RETAINED_BYTES_MAX,
    CARDS_INTERNED_BYTES_MAX,
    KEY_BYTES_MAX,
    KEYS_PER_KEYSPACE_MAX,
)
from projections.events.discovery import KeyDeleted, KeyPut, KeyRefusal, Keyspace, PassBegan, PassSettled
from projections.events.held import KeyHeld, PassHeld
from projections.identity import U64_MAX
from projections.notices import DiscoveryKind, DiscoveryNotice, Notice
from projections.registry.json_text import Unreadable
from projections.registry.records import (
    CardRecord,
    ChannelRecord,
    EndpointRecord,
    SourceRecord,
    parse_card,
    parse_channel,
    parse_endpoint,
    parse_source,
)
from projections.registry.subset import subset_of

FleetRecord = EndpointRecord | CardRecord | ChannelRecord | SourceRecord
HeldName = tuple[int, str, str]  # keyspace, namespace, key below the watched prefix
KEYSPACE_LABELS: Final = {int(keyspace): keyspace.name.lower() for keyspace in Keyspace}

_PARSERS: Final = {
    int(Keyspace.INSTANCES): parse_endpoint,
    int(Keyspace.CARDS): parse_card,
    int(Keyspace.CHANNELS): parse_channel,
    int(Keyspace.SOURCES): parse_source,
}
_LENGTHS: Final = struct.Struct("<BHH")
_STATE: Final = struct.Struct("<QQQQ")


def key_digest_input(keyspace: int, namespace: str, key: str, value_digest: bytes) -> bytes:
    """What one held key gives to the digest of a pass: lengths, names, digest of the value as found.

    The digest of a pass is the sum modulo 2^64 of xxh3-64 of this over its keys.
    """
    name, path = namespace.encode(), key.encode()
    return _LENGTHS.pack(keyspace, len(name), len(path)) + name + path + value_digest


class HeldKey(NamedTuple):
    """A held key: the fact that put it, its log time, and what its value says.

    record: None where the value is above the ceiling and was never read.
    """

    revision: int
    value: bytes
    value_bytes: int
    value_digest: bytes
    refusal: int
    put_at: int
    record: FleetRecord | Unreadable | None


class Change(NamedTuple):
    """A held key before and after a record; None: not held."""

    name: HeldName
    before: HeldKey | None
    after: HeldKey | None


class Keyspaces:
    """All held keys and passes. `digest` covers the keys; passes are digested by the registry."""

    def __init__(self) -> None:
        self.passes: dict[str, PassHeld] = {}
        self.full: set[int] = set()  # keyspaces whose ceiling has been reported
        self.digest = 0
        self._held: dict[HeldName, HeldKey] = {}
        self._counts = dict.fromkeys(KEYSPACE_LABELS, 0)
        self._sums: dict[str, tuple[int, int]] = {}  # namespace -> keys, pass digest
        self._values: dict[bytes, int] = {}  # interned value -> keys that hold it
        self._canonical: dict[bytes, bytes] = {}
        self._value_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, name: HeldName) -> HeldKey | None:
        """The held key, or None."""
        return self._held.get(name)

    def count(self, keyspace: int) -> int:
        """Held keys of one keyspace, over all namespaces."""
        return self._counts.get(keyspace, 0)

    @property
    def value_bytes(self) -> int:
        """Bytes of all interned values."""
        return self._value_bytes

    def held_digests(self, namespaces: Iterable[str]) -> dict[HeldName, bytes]:
        """Value digests of the held keys of these namespaces, () for all: where a pass starts from."""
        wanted = frozenset(namespaces)
        return {
            name: held.value_digest for name, held in self._held.items() if not wanted or name[1] in wanted
        }

    # -- facts -------------------------------------------------------------------------

    def put(self, fact: KeyPut, time: int, notices: list[Notice]) -> Change | None:
        """Hold the key of a put. None where it has no effect."""
        name = (fact.keyspace, fact.namespace, fact.key)
        if fact.keyspace not in _PARSERS or max(len(fact.key), len(fact.namespace)) > KEY_BYTES_MAX:
            notices.append(_refused(fact))
            return None
        before = self._held.get(name)
        if self._is_repeated(fact) or (
            before is not None
            and (before.revision, before.value_digest) == (fact.revision, fact.value_digest)
        ):
            return None
        if before is None and self._counts[fact.keyspace] >= KEYS_PER_KEYSPACE_MAX:
            self._over_capacity(fact, notices)
            return None
        if before is not None:
            self._release(name, before)
        after = self._hold(name, self._retained(fact, time))
        self._advance(fact)
        return Change(name, before, after)

    def delete(self, fact: KeyDeleted) -> Change | None:
        """Let go of a key. None where it is not held or the fact is a repetition."""
        name = (fact.keyspace, fact.namespace, fact.key)
        before = self._held.get(name)
        if before is None or self._is_repeated(fact):
            self._advance(fact)
            return None
        self._release(name, before)
        self._advance(fact)
        self.full.discard(fact.keyspace)
        return Change(name, before, None)

    def drop(self, namespaces: tuple[str, ...]) -> list[Change]:
        """Let go of all keys and passes of these namespaces, () for all; in key order."""
        wanted = frozenset(namespaces)
        names = sorted(name for name in self._held if not wanted or name[1] in wanted)
        changes = []
        for name in names:
            before = self._held[name]
            self._release(name, before)
            self.full.discard(name[0])
            changes.append(Change(name, before, None))
        for namespace in [known for known in self.passes if not wanted or known in wanted]:
            del self.passes[namespace]
        return changes

    def begin_pass(self, fact: PassBegan) -> None:
        """A listing starts: revisions count anew."""
        for namespace in fact.namespaces:
            self.passes[namespace] = PassHeld(
                namespace, fact.source, fact.pass_number, False, False, 0, (), (0, 0, 0, 0)
            )

    def settle_pass(self, fact: PassSettled) -> bool:
        """The listing is over; whether the fold holds exactly the keys that it saw.

        If not, the pass does not count as settled: its reader is to list everything again.
        """
        keys = digest = 0
        for namespace in fact.namespaces:
            count, part = self._sums.get(namespace, (0, 0))
            keys, digest = keys + count, (digest + part) & U64_MAX
        is_same = keys == fact.keys and digest == fact.digest
        for namespace in fact.namespaces:
            self.passes[namespace] = PassHeld(
                namespace,
                fact.source,
                fact.pass_number,
                is_same,
                False,
                fact.revision,
                tuple(sorted(fact.unwatched)),
                (0, 0, 0, 0),
            )
        return is_same

    def end_pass(self, namespaces: Iterable[str]) -> None:
        """The passes of these namespaces are over; their keys stay."""
        for namespace in namespaces:
            known = self.passes.get(namespace)
            if known is not None:
                self.passes[namespace] = known._replace(ended=True)

    # -- checkpoints -------------------------------------------------------------------

    def held(self) -> Iterator[KeyHeld]:
        """All held keys in key order."""
        for name in sorted(self._held):
            held = self._held[name]
            yield KeyHeld(
                *name,
                held.revision,
                held.value,
                held.value_bytes,
                held.value_digest,
                held.refusal,
                held.put_at,
            )

    def restore(self, fact: KeyHeld) -> Change:
        """Hold what a checkpoint says."""
        name = (fact.keyspace, fact.namespace, fact.key)
        record = _read(fact.keyspace, fact.value, fact.refusal)
        held = HeldKey(
            fact.revision,
            fact.value,
            fact.value_bytes,
            fact.value_digest,
            fact.refusal,
            fact.put_at,
            record,
        )
        return Change(name, None, self._hold(name, held))

    # -- inside ------------------------------------------------------------------------

    def _is_repeated(self, fact: KeyPut | KeyDeleted) -> bool:
        known = self.passes.get(fact.namespace)
        if known is None or not known.settled or fact.keyspace not in _PARSERS:
            return False
        return 0 < fact.revision < known.watched[fact.keyspace - 1]

    def _advance(self, fact: KeyPut | KeyDeleted) -> None:
        """The newest revision of the watch that this fact came from."""
        known = self.passes.get(fact.namespace)
        if known is None or not known.settled or fact.keyspace not in _PARSERS:
            return
        watched = list(known.watched)
        if fact.revision > watched[fact.keyspace - 1]:
            watched[fact.keyspace - 1] = fact.revision
            self.passes[fact.namespace] = known._replace(watched=tuple(watched))

    def _over_capacity(self, fact: KeyPut, notices: list[Notice]) -> None:
        """Counted each time, said once until there is room (MEM-05)."""
        said = fact.keyspace in self.full
        self.full.add(fact.keyspace)
        notices.append(
            DiscoveryNotice(
                DiscoveryKind.OVER_CAPACITY,
                fact.namespace,
                "keyspace is full, new keys are refused",
                identity=KEYSPACE_LABELS[fact.keyspace],
                keys=(fact.key,),
                level="debug" if said else "warning",
            )
        )

    def _retained(self, fact: KeyPut, time: int) -> HeldKey:
        record = _read(fact.keyspace, fact.value, fact.refusal)
        value, refusal = fact.value, fact.refusal
        room = CARDS_INTERNED_BYTES_MAX - self._value_bytes
        if value not in self._values and (len(value) > CARD_RETAINED_BYTES_MAX or len(value) > room):
            value, refusal = subset_of(record), KeyRefusal.CUT
            record = _read(fact.keyspace, value, refusal)  # what a checkpoint will read
        return HeldKey(fact.revision, value, fact.value_bytes, fact.value_digest, int(refusal), time, record)

    def _hold(self, name: HeldName, held: HeldKey) -> HeldKey:
        holders = self._values.get(held.value, 0)
        if holders:
            held = held._replace(value=self._canonical[held.value])
        else:
            self._canonical[held.value] = held.value
            self._value_bytes += len(held.value)
        self._values[held.value] = holders + 1
        self._held[name] = held
        self._counts[name[0]] = self._counts.get(name[0], 0) + 1
        self._account(name, held, 1)
        return held

    def _release(self, name: HeldName, held: HeldKey) -> None:
        del self._held[name]
        self._counts[name[0]] -= 1
        if self._values[held.value] == 1:
            del self._values[held.value], self._canonical[held.value]
            self._value_bytes -= len(held.value)
        else:
            self._values[held.value] -= 1
        self._account(name, held, -1)

    def _account(self, name: HeldName, held: HeldKey, sign: int) -> None:
        """Add a key to, or take it from, the digest of its namespace's pass and that of the state."""
        entry = key_digest_input(*name, held.value_digest)
        keys, digest = self._sums.get(name[1], (0, 0))
        part = xxhash.xxh3_64_intdigest(entry)
        keys, digest = keys + sign, (digest + sign * part) & U64_MAX
        if keys:
            self._sums[name[1]] = (keys, digest)
        else:
            self._sums.pop(name[1], None)
        numbers = (held.revision, held.put_at, held.value_bytes, held.refusal)
        state = _STATE.pack(*(number & U64_MAX for number in numbers))
        self.digest = (self.digest + sign * xxhash.xxh3_64_intdigest(entry + state)) & U64_MAX


def _read(keyspace: int, value: bytes, refusal: int) -> FleetRecord | Unreadable | None:
    if refusal == KeyRefusal.OVERSIZED:
        return None
    return _PARSERS[keyspace](value)


def _refused(fact: KeyPut) -> DiscoveryNotice:
    known = fact.keyspace in _PARSERS
    what = "key is too long" if known else "key of an unknown keyspace"
    return DiscoveryNotice(DiscoveryKind.REFUSED, fact.namespace[:64], what, keys=(fact.key[:64],))
