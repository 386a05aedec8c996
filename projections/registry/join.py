"""Which card belongs to which worker, and in which role it serves.

A worker is a `generate` endpoint that one key alone claims. Its card is the base card of
the same component, endpoint and id; without one, a legacy card that names neither and has
the same id. Cards of adapters never join, so they never define capacity (B-024). Where a
card's identity is claimed twice the worker stays, as if it had none.

Roles: a component called `prefill` or `decode` claims that role, a card's worker_type
claims one too. Both and different: the worker is set apart. One: that one. None: unknown,
which operators see and no pick uses.

Sources: specification, "What becomes a worker"; requirement rows RED-01..08, 11, 22, 26.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from projections.events.discovery import Keyspace
from projections.identity import PublisherKey, WorkerKey
from projections.registry.artifacts import NO_ARTIFACTS, CardArtifacts
from projections.registry.claims import Claims, card_identity, instance_identity, publisher_identity
from projections.registry.keyspace import HeldName, Keyspaces
from projections.registry.records import (
    GENERATE,
    Card,
    CardRecord,
    ChannelFault,
    ChannelRecord,
    EndpointRecord,
    Role,
    SourceRecord,
)

_COMPONENT_ROLES: Final = {"prefill": Role.PREFILL, "decode": Role.DECODE}


class Worker(NamedTuple):
    """One routable instance, as published.

    dp_declared: whether its card says how many ranks there are; only then a rank is pinned.
    total_kv_blocks: of each rank. None: unknown.
    disaggregated_endpoint: sorted pairs, or None.
    first_seen: log time since which a record claims this id without a break.
    last_updated: log time of the newest change of anything else here, or of the opaque card.
    artifacts: the files that make its prompts; none where the card was cut for its size.
    lora_name: of the card, None on a base model's.
    kv_event_publishing_enabled: whether it says that it publishes block events, None unsaid.
    """

    key: WorkerKey
    role: Role
    model: str | None
    component: str
    endpoint: str
    dp_start_rank: int
    dp_size: int
    dp_declared: bool
    block_size: int | None
    total_kv_blocks: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    context_length: int | None
    disaggregated_endpoint: tuple[tuple[str, str | int | None], ...] | None
    has_card: bool
    enable_eagle: bool
    first_seen: int
    last_updated: int
    artifacts: CardArtifacts = NO_ARTIFACTS
    lora_name: str | None = None
    kv_event_publishing_enabled: bool | None = None

    def ranks(self) -> range:
        """Global data-parallel ranks of this worker."""
        return range(self.dp_start_rank, self.dp_start_rank + self.dp_size)


class Publisher(NamedTuple):
    """A socket to subscribe to. address: `tcp://host:port`."""

    key: PublisherKey
    topic: str
    component: str
    endpoint: str | None
    address: str


class RankBinding(NamedTuple):
    """The rank that an event source says its publisher speaks for."""

    instance_id: int
    dp_rank: int


class RoleConflict(NamedTuple):
    """Component and card claim different roles."""

    component: Role
    card: Role


class Joined(NamedTuple):
    """What becomes of an instance id. All None: there is no worker.

    card: name of the key of the joined card.
    """

    worker: Worker | None
    card: HeldName | None
    conflict: RoleConflict | None


_NOBODY: Final = Joined(None, None, None)


def join_worker(keyspaces: Keyspaces, claims: Claims, key: WorkerKey) -> Joined:
    """The worker of an id as the held keys tell it; its times are 0."""
    held = claims.sole(instance_identity(*key))
    endpoint = _record(keyspaces, (int(Keyspace.INSTANCES), key.namespace, held)) if held else None
    if not isinstance(endpoint, EndpointRecord):
        return _NOBODY
    name = _card_name(claims, key, endpoint)
    found = _record(keyspaces, name) if name is not None else None
    card = found.card if isinstance(found, CardRecord) else None
    by_component = _COMPONENT_ROLES.get(endpoint.component)
    by_card = card.worker_type if card is not None else None
    if by_component is not None and by_card is not None and by_component is not by_card:
        return Joined(None, None, RoleConflict(by_component, by_card))
    role = by_card or by_component or Role.UNKNOWN
    return Joined(_worker(key, role, endpoint, card), name if card is not None else None, None)


def join_publisher(
    keyspaces: Keyspaces, claims: Claims, namespace: str, topic: str, publisher_id: int
) -> Publisher | None:
    """The publisher of a topic and id, None where it cannot be subscribed to."""
    held = claims.sole(publisher_identity(int(Keyspace.CHANNELS), namespace, topic, publisher_id))
    record = _record(keyspaces, (int(Keyspace.CHANNELS), namespace, held)) if held else None
    if not isinstance(record, ChannelRecord) or record.fault is not ChannelFault.NONE:
        return None
    assert record.address is not None
    key = PublisherKey(namespace, publisher_id)
    return Publisher(key, topic, record.component, record.endpoint, record.address)


def join_binding(
    keyspaces: Keyspaces, claims: Claims, namespace: str, topic: str, publisher_id: int
) -> RankBinding | None:
    """The rank that a publisher of block events is bound to, None where nothing says so."""
    held = claims.sole(publisher_identity(int(Keyspace.SOURCES), namespace, topic, publisher_id))
    record = _record(keyspaces, (int(Keyspace.SOURCES), namespace, held)) if held else None
    if not isinstance(record, SourceRecord) or record.worker_id is None:
        return None
    return RankBinding(record.worker_id, record.dp_rank)


def _record(keyspaces: Keyspaces, name: HeldName) -> object:
    held = keyspaces.get(name)
    return held.record if held is not None else None


def _card_name(claims: Claims, key: WorkerKey, endpoint: EndpointRecord) -> HeldName | None:
    """A scoped card, refused or not, always stands before a legacy one."""
    for component, name in ((endpoint.component, endpoint.endpoint), ("", "")):
        holders = claims.holders(card_identity(key.namespace, component, name, key.instance_id, ""))
        if holders:
            return (int(Keyspace.CARDS), key.namespace, holders[0]) if len(holders) == 1 else None
    return None


def _worker(key: WorkerKey, role: Role, endpoint: EndpointRecord, card: Card | None) -> Worker:
    known = card if card is not None else _NO_CARD
    return Worker(
        key,
        role,
        known.model,
        endpoint.component,
        GENERATE,
        known.dp_start_rank,
        known.dp_size,
        known.dp_declared,
        known.block_size,
        known.total_kv_blocks,
        known.max_num_batched_tokens,
        known.max_num_seqs,
        known.context_length,
        known.disaggregated_endpoint,
        card is not None,
        known.enable_eagle,
        0,
        0,
        known.artifacts,
        known.lora_name,
        known.kv_event_publishing_enabled,
    )


_NO_CARD: Final = Card(None, None, None, None, None, None, None, 0, 1, False, False, None, None, ())
