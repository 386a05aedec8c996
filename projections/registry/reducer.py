"""The registry: held keys, what they join to, and the fleet made of it.

Joined workers and publishers are kept up to date, each change touching only the identities
it concerns. The fleet is made when somebody asks and shared until the published content
differs. Its generation grows by one with each record that changes the content, so it is a
function of the offset; a resync that finds nothing new leaves it alone (RED-19).

A worker's `first_seen` is the log time since which a record claims its id without a break:
it survives resyncs and conflicts, and goes when the last such record is deleted or dropped
(ETCD-13, ETCD-14).

`is_live` answers for the newest state without making a fleet: reducers ask it at every sample.

Sources: decisions 8, 22, 23; requirement rows RED-16..25, LOAD-26.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import xxhash

from projections.events.codec import encode_value
from projections.events.discovery import (
    KeyDeleted,
    KeyPut,
    KeysDropped,
    Keyspace,
    PassBegan,
    PassEnded,
    PassSettled,
)
from projections.events.envelope import Record
from projections.events.held import FleetHeld, KeyHeld, PassHeld
from projections.identity import U64_MAX, PublisherKey, WorkerKey
from projections.notices import FleetPublished, Notice, WorkersDeparted
from projections.registry import observed
from projections.registry.claims import Claims, Identity, identity_of, instance_identity
from projections.registry.fleet import Fleet, declares
from projections.registry.join import (
    Joined,
    Publisher,
    RankBinding,
    RoleConflict,
    Worker,
    join_binding,
    join_publisher,
    join_worker,
)
from projections.registry.keyspace import Change, HeldName, Keyspaces
from projections.registry.mixing import Mixing
from projections.registry.records import KV_EVENTS

_K = TypeVar("_K")
_V = TypeVar("_V")


class Seen(NamedTuple):
    """Times of an instance id that is claimed: see Worker."""

    first_seen: int
    last_updated: int


class Registry:
    """Held keys, what they join to, and the fleet made of it.

    `apply` takes the records of discovery and returns the workers that left. State changes
    in place; the same records give the same state, `digest` included. rejoined, rebound: workers,
    and publishers of block events, that the newest record of discovery concerned.
    """

    def __init__(self) -> None:
        self.keyspaces = Keyspaces()
        self.generation = 0
        self._claims = Claims()
        self._mixing = Mixing()
        self._workers: dict[WorkerKey, Worker] = {}
        self._order: list[WorkerKey] = []
        self._cards: dict[WorkerKey, HeldName] = {}
        self._card_digests: dict[WorkerKey, bytes] = {}
        self._conflicts: dict[WorkerKey, RoleConflict] = {}
        self._seen: dict[WorkerKey, Seen] = {}
        self._seen_digest = 0
        self._publishers: dict[tuple[str, int, str], Publisher] = {}  # topic, id, namespace
        self._bindings: dict[PublisherKey, RankBinding] = {}
        self._fleet: Fleet | None = None
        self.rejoined: tuple[WorkerKey, ...] = ()
        self.rebound: tuple[PublisherKey, ...] = ()

    # -- reading -----------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """The published fleet. The same object until its content differs."""
        if self._fleet is None:
            workers = {key: self._workers[key] for key in self._order}
            cards = {key: self._value_of(name) for key, name in self._cards.items()}
            publishers = tuple(self._publishers[key] for key in sorted(self._publishers))
            self._fleet = Fleet(
                self.generation,
                MappingProxyType(workers),
                publishers,
                MappingProxyType(dict(self._bindings)),
                cards,
            )
        return self._fleet

    @property
    def passes(self) -> Mapping[str, PassHeld]:
        """Where discovery stands in each namespace."""
        return MappingProxyType(self.keyspaces.passes)

    def worker(self, key: WorkerKey) -> Worker | None:
        """A published worker of the newest state, without making a fleet."""
        return self._workers.get(key)

    def endpoint_value(self, key: WorkerKey) -> bytes:
        """The record that makes a worker, JSON as found or cut; b"" where no one key does."""
        name = self._claims.sole(instance_identity(*key))
        return b"" if name is None else self._value_of((int(Keyspace.INSTANCES), key.namespace, name))

    def is_live(self, namespace: str, instance_id: int, dp_rank: int) -> bool:
        """As Fleet.is_live, of the newest state."""
        return declares(self._workers, namespace, instance_id, dp_rank)

    def binding_of(self, key: PublisherKey) -> RankBinding | None:
        """As Fleet.binding_of, of the newest state."""
        return self._bindings.get(key)

    def is_connected(self, namespace: str) -> bool:
        """Whether a pass of this namespace has settled and goes on."""
        known = self.keyspaces.passes.get(namespace)
        return known is not None and known.settled and not known.ended

    def conflicts(self) -> tuple[tuple[WorkerKey, RoleConflict], ...]:
        """Workers set apart because component and card claim different roles, in canonical order."""
        return tuple((key, self._conflicts[key]) for key in sorted(self._conflicts))

    def held_digests(self, namespaces: Iterable[str]) -> dict[HeldName, bytes]:
        """What a discovery pass starts from, see Keyspaces.held_digests."""
        return self.keyspaces.held_digests(namespaces)

    @property
    def digest(self) -> int:
        """Digest of all state, 64 bits."""
        rest = encode_value(
            (
                self.generation,
                tuple(self.keyspaces.passes[name] for name in sorted(self.keyspaces.passes)),
                self._claims.reported,
                self._mixing.mixed,
                tuple(sorted(self.keyspaces.full)),
            )
        )
        total: int = self.keyspaces.digest + self._seen_digest + xxhash.xxh3_64_intdigest(rest)
        return total & U64_MAX

    # -- records -----------------------------------------------------------------------

    def apply(self, record: Record, notices: list[Notice]) -> tuple[WorkerKey, ...]:
        """Take a record of discovery. Returns the workers that left the fleet, in canonical order."""
        fact = record.fact
        changes: list[Change] = []
        if isinstance(fact, KeyPut):
            changes = self._one(self.keyspaces.put(fact, record.time, notices), notices)
        elif isinstance(fact, KeyDeleted):
            changes = self._one(self.keyspaces.delete(fact), notices)
        elif isinstance(fact, KeysDropped):
            changes = self.keyspaces.drop(fact.namespaces)
            notices += observed.keys_dropped(fact, changes)
        elif isinstance(fact, PassBegan):
            self.keyspaces.begin_pass(fact)
            notices.append(observed.pass_began(fact))
        elif isinstance(fact, PassSettled):
            self._settled(fact, notices)
        elif isinstance(fact, PassEnded):
            self.keyspaces.end_pass(fact.namespaces)
            notices.append(observed.pass_ended(fact))
        return self._follow(changes, record.time, notices)

    def _one(self, change: Change | None, notices: list[Notice]) -> list[Change]:
        if change is None:
            return []
        notices += observed.change(change)
        return [change]

    def _settled(self, fact: PassSettled, notices: list[Notice]) -> None:
        is_same = self.keyspaces.settle_pass(fact)
        claimed = sum(key.namespace in fact.namespaces for key in self._seen)  # integers
        published = sum(key.namespace in fact.namespaces for key in self._workers)  # integers
        notices += observed.pass_settled(fact, is_same, self.keyspaces.full, claimed, published)

    def _follow(self, changes: list[Change], time: int, notices: list[Notice]) -> tuple[WorkerKey, ...]:
        """Join again what the changes concern, publish once."""
        touched: dict[Identity, None] = {}
        for change in changes:
            self._claim(change, touched, notices)
        departed: list[WorkerKey] = []
        changed = False
        self.rejoined = tuple(_worker_keys(touched))
        self.rebound = _source_keys(touched)
        for key in self.rejoined:
            before = self._workers.get(key)
            changed |= self._join_worker(key, time, notices)
            if before is not None and key not in self._workers:
                departed.append(key)
        for identity in touched:
            if identity[0] >= Keyspace.CHANNELS:
                changed |= self._join_publisher(identity)
        if changed:
            self._fleet = None
            self.generation += 1
        if departed:
            notices.append(WorkersDeparted(tuple(departed)))
        if changed:
            notices.append(FleetPublished(self.generation))
        mixed = self._mixing.judge(self._is_listing)
        if mixed is not None:
            notices.append(mixed)
        return tuple(departed)

    # -- joins -------------------------------------------------------------------------

    def _claim(self, change: Change, touched: dict[Identity, None], notices: list[Notice]) -> None:
        """Move a key's claim; every identity whose claims or record changed is touched."""
        keyspace, namespace, key = change.name
        before = identity_of(keyspace, namespace, change.before.record) if change.before else None
        after = identity_of(keyspace, namespace, change.after.record) if change.after else None
        if before != after:
            if before is not None:
                self._claims.remove(before, key)
                self._claims.report(before, notices)
            if after is not None:
                self._claims.add(after, key)
                self._claims.report(after, notices)
        for identity in (before, after):
            if identity is not None:
                touched[identity] = None

    def _join_worker(self, key: WorkerKey, time: int, notices: list[Notice]) -> bool:
        """Publish what has become of an id; whether the published content changed."""
        joined = join_worker(self.keyspaces, self._claims, key)
        observed.role_conflict(key, self._conflicts.get(key), joined.conflict, notices)
        before = self._workers.get(key)
        seen = self._seen.get(key, Seen(time, time))
        worker = joined.worker._replace(first_seen=seen[0], last_updated=seen[1]) if joined.worker else None
        card_digest = self._digest_of(joined.card)
        changed = worker != before or card_digest != self._card_digests.get(key)
        if changed and worker is not None:
            worker = worker._replace(last_updated=time)
        claimed = bool(self._claims.holders((int(Keyspace.INSTANCES), key.namespace, (key.instance_id,))))
        self._see(key, Seen(seen.first_seen, time if changed else seen.last_updated) if claimed else None)
        self._place(key, worker, joined, card_digest)
        return changed

    def _place(
        self, key: WorkerKey, worker: Worker | None, joined: Joined, card_digest: bytes | None
    ) -> None:
        before = self._workers.pop(key, None)
        if before is not None:
            self._mixing.remove(before)
        if worker is not None:
            self._workers[key] = worker
            self._mixing.add(worker)
        if before is None and worker is not None:
            insort(self._order, key)
        elif before is not None and worker is None:
            del self._order[bisect_left(self._order, key)]
        _set(self._conflicts, key, joined.conflict)
        _set(self._cards, key, joined.card)
        _set(self._card_digests, key, card_digest)

    def _join_publisher(self, identity: Identity) -> bool:
        """Publish what has become of a publisher or its binding; whether anything changed."""
        keyspace, namespace, parts = identity
        topic, publisher_id = str(parts[0]), int(parts[1])
        if keyspace == Keyspace.CHANNELS:
            publisher = join_publisher(self.keyspaces, self._claims, namespace, topic, publisher_id)
            return _set(self._publishers, (topic, publisher_id, namespace), publisher)
        if topic != KV_EVENTS:
            return False
        binding = join_binding(self.keyspaces, self._claims, namespace, topic, publisher_id)
        return _set(self._bindings, PublisherKey(namespace, publisher_id), binding)

    def _see(self, key: WorkerKey, seen: Seen | None) -> None:
        before = self._seen.get(key)
        if before == seen:
            return
        for times, sign in ((before, -1), (seen, 1)):
            if times is not None:
                entry = encode_value((*key, *times))
                self._seen_digest = (self._seen_digest + sign * xxhash.xxh3_64_intdigest(entry)) & U64_MAX
        _set(self._seen, key, seen)

    def _is_listing(self, namespace: str) -> bool:
        known = self.keyspaces.passes.get(namespace)
        return known is not None and not known.settled and not known.ended

    def _digest_of(self, name: HeldName | None) -> bytes | None:
        held = self.keyspaces.get(name) if name is not None else None
        return held.value_digest if held is not None else None

    def _value_of(self, name: HeldName) -> bytes:
        held = self.keyspaces.get(name)
        return held.value if held is not None else b""

    # -- checkpoints -------------------------------------------------------------------

    def seen(self) -> Iterator[tuple[WorkerKey, int, int]]:
        """(worker, first_seen, last_updated) of every claimed id, in canonical order."""
        for key in sorted(self._seen):
            yield (key, *self._seen[key])

    def held(self) -> Iterator[FleetHeld | PassHeld | KeyHeld]:
        """All state but the times of workers, which `seen` gives."""
        yield FleetHeld(
            self.generation,
            self._claims.reported,
            self._mixing.mixed,
            tuple(sorted(self.keyspaces.full)),
        )
        for namespace in sorted(self.keyspaces.passes):
            yield self.keyspaces.passes[namespace]
        yield from self.keyspaces.held()

    def restore(self, fact: tuple[object, ...]) -> None:
        """Take one held fact. `restore_seen` and then `settle` end a restore."""
        if isinstance(fact, FleetHeld):
            self.generation = fact.generation
            self._claims.restore_reported(fact.reported)
            self._mixing.restore(fact.mixed)
            self.keyspaces.full = set(fact.full)
        elif isinstance(fact, PassHeld):
            self.keyspaces.passes[fact.namespace] = fact
        elif isinstance(fact, KeyHeld):
            change = self.keyspaces.restore(fact)
            held = change.after
            identity = identity_of(fact.keyspace, fact.namespace, held.record) if held is not None else None
            if identity is not None:
                self._claims.add(identity, fact.key)

    def restore_seen(self, key: WorkerKey, first_seen: int, last_updated: int) -> None:
        """Take the times of a claimed id."""
        self._see(key, Seen(first_seen, last_updated))

    def settle(self) -> None:
        """Join everything that was restored. Says nothing: all of it was said before."""
        for key in sorted(self._seen):
            joined = join_worker(self.keyspaces, self._claims, key)
            times = self._seen[key]
            worker = (
                joined.worker._replace(first_seen=times[0], last_updated=times[1]) if joined.worker else None
            )
            self._place(key, worker, joined, self._digest_of(joined.card))
        for identity in self._claims.identities():
            if identity[0] >= Keyspace.CHANNELS:
                self._join_publisher(identity)
        self._mixing.forget_touched(self._is_listing)
        self._fleet = None


def _worker_keys(identities: Iterable[Identity]) -> list[WorkerKey]:
    """Ids that instances and cards among these concern, in canonical order."""
    found: set[WorkerKey] = set()
    for keyspace, namespace, parts in identities:
        if keyspace == Keyspace.INSTANCES:
            found.add(WorkerKey(namespace, int(parts[0])))
        elif keyspace == Keyspace.CARDS:
            found.add(WorkerKey(namespace, int(parts[2])))
    return sorted(found)


def _source_keys(identities: Iterable[Identity]) -> tuple[PublisherKey, ...]:
    """Publishers of block events whose sources these concern, in order."""
    return tuple(
        sorted(
            PublisherKey(namespace, int(parts[1]))
            for keyspace, namespace, parts in identities
            if keyspace == Keyspace.SOURCES and parts[0] == KV_EVENTS
        )
    )


def _set(mapping: dict[_K, _V], key: _K, value: _V | None) -> bool:
    """Put a value or, for None, take the key away; whether that changed anything."""
    if value is None:
        return mapping.pop(key, None) is not None
    if mapping.get(key) == value:
        return False
    mapping[key] = value
    return True
