"""Bulk facts of a checkpoint: all fold state as ordinary records (decision 9).

A checkpoint is a segment of these, in key order, between `CheckpointOpened` and
`CheckpointClosed`; folding it yields the state of the offset it names. Fields of a held
fact are the fields of the state it restores, nothing derived.
"""

from __future__ import annotations

from typing import NamedTuple

from projections.events.control import PickSettings


class CheckpointOpened(NamedTuple):
    """State of the log up to and including `offset`, whose record has `check` and `time`."""

    offset: int
    check: int
    time: int
    log_id: bytes


class CheckpointClosed(NamedTuple):
    """All of the state has been said: number of held facts and digests of projections."""

    facts: int
    digests: tuple[tuple[str, int], ...]


class KeyHeld(NamedTuple):
    """A held key, see KeyPut. put_at: log time of the put; refused: parsed and set apart."""

    keyspace: int
    namespace: str
    key: str
    revision: int
    value: bytes
    value_bytes: int
    value_digest: bytes
    refusal: int
    put_at: int


class PassHeld(NamedTuple):
    """Where the pass of a namespace stands.

    revision: of its listing. watched: newest revision that came from each keyspace's
    watch since then, in keyspace order.
    """

    namespace: str
    source: str
    pass_number: int
    settled: bool
    ended: bool
    revision: int
    unwatched: tuple[int, ...]
    watched: tuple[int, ...] = (0, 0, 0, 0)


class WorkerHeld(NamedTuple):
    """What is remembered of a worker beyond its keys."""

    namespace: str
    instance_id: int
    first_seen: int
    last_updated: int
    last_sample_at: int | None
    suspect_from: int | None


class FleetHeld(NamedTuple):
    """The fleet's generation, and what was already reported once.

    reported: names of conflicting key sets, oldest first. mixed: (namespace, model) pairs.
    full: keyspaces at their ceiling.
    """

    generation: int
    reported: tuple[bytes, ...]
    mixed: tuple[tuple[str, str], ...]
    full: tuple[int, ...] = ()


class SampleHeld(NamedTuple):
    """The latest sample of a rank. received_at: log time of its record."""

    namespace: str
    instance_id: int
    dp_rank: int
    publisher_id: int
    sequence: int
    received_at: int
    active_decode_blocks: int | None
    active_prefill_tokens: int | None
    kv_used_blocks: int | None


class PublisherHeld(NamedTuple):
    """A publisher's subscription and the last sequence known of its connection.

    state: SubscriptionState, 0 where nothing was said of a subscription.
    sampled_connection: the connection that last_sequence speaks of, 0 without one.
    """

    family: int
    namespace: str
    publisher_id: int
    component: str
    state: int
    connection: int
    transport: int
    reason: str
    last_sequence: int | None
    changed_at: int
    sampled_connection: int = 0


class LedgerLine(NamedTuple):
    """One rank's charge of one dispatch.

    phase: Phase; pair_decode: the decode half of a pair, which never marks a stall.
    ended_at: log time of the end, None while it runs.
    """

    pick_id: bytes
    replica: bytes
    namespace: str
    instance_id: int
    dp_rank: int
    phase: int
    tokens: int
    blocks: int | None
    asked_at: int
    dispatched_at: int
    pair_decode: bool
    ended_at: int | None


class WriterSeen(NamedTuple):
    """The last sequence taken from a writer, and when."""

    writer: bytes
    last_sequence: int
    seen_at: int


class SettingsHeld(NamedTuple):
    """An adopted settings version that a pick may still name."""

    version: int
    proposed_by: str
    digest: bytes
    settings: str
    pick: PickSettings
    enabled: bool
    offset: int
    adopted_at: int


class ReplicaHeld(NamedTuple):
    """A replica that a pick may still name. own_seq: newest number seen of it."""

    replica: bytes
    label: str
    role: str
    version: str
    python: str
    flags: tuple[int, ...]
    kinds: int
    fold_modes: tuple[int, ...]
    started_at: int
    seen_at: int
    gone_at: int | None
    own_seq: int


class OwnerHeld(NamedTuple):
    """The owner's pair, the newest stamp, the fold mode, condemned offsets, notes of ticks."""

    writer: bytes
    epoch: int
    stamp: int
    fold_mode: tuple[int, ...]
    condemned: tuple[int, ...]
    tick_offset: int
    tick_records: int
    tick_check_sum: int


class KvRankHeld(NamedTuple):
    """A rank of which blocks may be known. feeders: the publisher of each tier, None for none.

    departed: it has left the fleet, and its memory is not reclaimed yet.
    """

    namespace: str
    instance_id: int
    dp_rank: int
    departed: bool
    feeders: tuple[int | None, ...]


class KvPublisherHeld(NamedTuple):
    """A publisher of kv-events. down_at: log time since which it is not heard, None while it is.

    bound_worker, bound_rank: the rank that its event source names where that counts.
    cursors: (worker id, rank, newest event id taken, tiers that a newer publisher tells of).
    """

    namespace: str
    publisher_id: int
    down_at: int | None
    bound_worker: int | None
    bound_rank: int
    cursors: tuple[tuple[int, int, int, int], ...]


class KvTierHeld(NamedTuple):
    """The RunHeld facts up to the next of these are of this tier: 0 device, 1 host, 2 beyond."""

    tier: int


class PredictionHeld(NamedTuple):
    """A pick that stands for the blocks of its prompt at a rank.

    number: offset of the pick. shared: how many blocks of the prompt are those of the
    prediction held before; hashes: the tokens hashes of the rest.
    """

    namespace: str
    instance_id: int
    dp_rank: int
    asked_at: int
    number: int
    shared: int
    hashes: bytes


class RunHeld(NamedTuple):
    """Blocks in a row that ranks hold, a piece of the paths from the root, and who holds which by which name.

    Ranks are numbers of a table of the checkpoint; masks are little-endian, a bit each, without zero bytes
    at the end. Pieces come depth first, by tokens hash; a piece ends where the paths part or end, and at
    a fixed length.

    depth: how many blocks are above; the piece hangs from the last one that ended there. tokens: packed
    tokens hashes; empty when the record only says more of the piece before. names: packed, the engine hash
    by which the lowest rank that holds the block calls it, zero where no rank does.
    full: mask of the ranks that hold all of it. parts: (mask of held blocks, mask of ranks).
    others: (rank, mask of blocks, packed engine hashes) where a rank has not that name but another one.
    further: (rank, block, engine hash) of second names.
    """

    depth: int
    tokens: bytes
    names: bytes
    full: bytes
    parts: tuple[tuple[bytes, bytes], ...]
    others: tuple[tuple[int, bytes, bytes], ...]
    further: tuple[tuple[int, int, bytes], ...]
