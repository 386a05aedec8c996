"""A fleet whose publishers tell of blocks, in a few words, folded as it grows."""

from __future__ import annotations

import struct
from typing import Any

import xxhash

from projections.checkpoint import checkpoint_records, fold_from_checkpoint
from projections.events.control import FoldModeAdopted, KvPickSettings
from projections.events.discovery import Keyspace
from projections.events.picks import (
    BlockHashes,
    Chosen,
    KvResult,
    Outcome,
    PhaseOutcome,
    PickMade,
    PickReason,
    Question,
)
from projections.events.signals import (
    KV_EVENT_HEAD,
    Family,
    KvBatchReceived,
    KvOperation,
    StorageTier,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.fold_modes import KV_INDEX, LOWER_TIERS, SIDE_INDEX
from projections.kv.state import KvState
from projections.notices import KvNotice, RankCleared
from projections.view import Overlay, RankPrefix, View
from tests.projections.fleet_script import NS, REPLICA, Script, channel_key, source

S = 1_000_000
ALL_MODES = (KV_INDEX, LOWER_TIERS, SIDE_INDEX)
KV = KvPickSettings(1.0, 1.0, 0.0)
DEVICE, HOST, DISK, EXTERNAL = StorageTier


def packed(*hashes: int) -> bytes:
    """A column."""
    return struct.pack(f">{len(hashes)}Q", *hashes)


def chain(*words: int | str) -> tuple[bytes, bytes]:
    """Columns of tokens and engine hashes of a chain from the root; equal words are equal blocks."""
    tokens, engines, above = [], [], 0
    for word in words:
        token = xxhash.xxh3_64_intdigest(f"block {word}".encode())
        above = xxhash.xxh3_64_intdigest(packed(above, token))
        tokens.append(token)
        engines.append(above)
    return packed(*tokens), packed(*engines)


class Event:
    """One kv-event as a head and its columns."""

    def __init__(
        self,
        operation: KvOperation,
        event_id: int,
        worker_id: int,
        dp_rank: int,
        tier: StorageTier,
        parent: bytes | None = None,
        columns: bytes = b"",
        blocks: int = 0,
    ) -> None:
        has_parent = 1 if parent is not None else 0
        self.head = KV_EVENT_HEAD.pack(
            worker_id, dp_rank, event_id, int(operation), int(tier), has_parent, blocks
        )
        self.columns = (parent or b"") + columns


def stored(
    event_id: int,
    *words: int | str,
    below: int = 0,
    worker: int = 1,
    rank: int = 0,
    tier: StorageTier = DEVICE,
) -> Event:
    """Blocks of a chain; the first `below` words are those above them."""
    tokens, engines = chain(*words)
    cut = below * 8
    parent = engines[cut - 8 : cut] if below else None
    columns = tokens[cut:] + engines[cut:]
    return Event(KvOperation.STORED, event_id, worker, rank, tier, parent, columns, len(words) - below)


def removed(
    event_id: int,
    *words: int | str,
    above: int = 0,
    worker: int = 1,
    rank: int = 0,
    tier: StorageTier = DEVICE,
) -> Event:
    """The blocks of a chain behind its first `above` words go."""
    names = chain(*words)[1][above * 8 :]
    return Event(KvOperation.REMOVED, event_id, worker, rank, tier, None, names, len(words) - above)


def cleared(event_id: int, worker: int = 1, rank: int = 0, tier: StorageTier = DEVICE) -> Event:
    """The engine forgets everything."""
    return Event(KvOperation.CLEARED, event_id, worker, rank, tier)


def batch_of(
    *events: Event, publisher_id: int = 70, connection: int = 1, sequence: int = 0
) -> KvBatchReceived:
    """The fact of a frame that carried these events."""
    heads = b"".join(event.head for event in events)
    hashes = b"".join(event.columns for event in events)
    return KvBatchReceived(NS, publisher_id, connection, sequence, sequence, heads, hashes, 0)


class KvScript(Script):
    """A script whose log has adopted the fold mode. Workers are `worker`, publishers need no word."""

    def __init__(self, *modes: int, fold: Fold | None = None) -> None:
        super().__init__(fold)
        self.modes = modes or (KV_INDEX,)
        self.say(FoldModeAdopted(self.modes))

    @property
    def kv(self) -> KvState:
        return self.fold.state.kv

    def batch(self, *events: Event, publisher_id: int = 70) -> None:
        self.say(batch_of(*events, publisher_id=publisher_id))

    def kv_subscription(
        self, state: SubscriptionState, reason: str = "", publisher_id: int = 70, step: int = 1_000
    ) -> None:
        fact = SubscriptionChanged(
            int(Family.KV), NS, publisher_id, "backend", int(state), 1, int(Transport.DIRECT), reason
        )
        self.say(fact, step=step)

    def bind(self, publisher_id: int, worker_id: int, rank: int) -> None:
        """An event source names the rank of a publisher."""
        key = channel_key(publisher_id, topic="kv-events")
        self.put(Keyspace.SOURCES, key, source(publisher_id, worker_id, rank))

    def results(self) -> dict[str, int]:
        """What became of the events of the last record."""
        return {n.result.label: n.times for n in self.notices if isinstance(n, KvNotice)}

    def clears(self) -> list[tuple[str, int, int, int]]:
        """(cause, worker, rank, blocks) that the last record told of."""
        return [
            (n.cause.label, n.instance_id, n.dp_rank, n.blocks)
            for n in self.notices
            if isinstance(n, RankCleared)
        ]

    def blocks(self, worker: int = 1, rank: int = 0, tier: int = 0) -> int:
        """Blocks that the index holds of a rank, departed or not."""
        known = self.kv.ranks.get((NS, worker, rank))
        return 0 if known is None else self.kv.indexes[tier].blocks(known.slot)

    def question(self, *words: int | str, after: int = 0, model: str = "tiny", size: int = 16) -> Question:
        """A question of a prompt of these blocks, `after` microseconds past the newest record."""
        tokens = chain(*words)[0]
        at = self.fold.state.intake.stamp + after
        known = BlockHashes(size, len(words), xxhash.xxh3_64_intdigest(tokens), tokens)
        return Question(
            "r", 0, model, model, at, at, (NS,), (), 1, 0, 0, (), (), int(KvResult.READY), 1, (known,)
        )

    def view(self, overlay: Overlay | None = None) -> View:
        return self.fold.view(overlay or Overlay())

    def prefixes(
        self,
        *words: int | str,
        after: int = 0,
        kv: KvPickSettings = KV,
        overlay: Overlay | None = None,
    ) -> dict[tuple[int, int], tuple[int, ...]]:
        """(worker, rank) -> (device, host, disk, predicted) for a prompt."""
        found: dict[tuple[str, int, int], RankPrefix] = self.view(overlay).prefixes(
            self.question(*words, after=after), kv
        )
        return {key[1:]: tuple(prefix) for key, prefix in sorted(found.items())}

    def device(self, *words: int | str, after: int = 0) -> dict[tuple[int, int], int]:
        """(worker, rank) -> blocks of the prompt on the device."""
        return {rank: prefix[0] for rank, prefix in self.prefixes(*words, after=after).items()}

    def restored(self) -> KvScript:
        """A script that goes on from a checkpoint of this one."""
        other = KvScript.__new__(KvScript)
        fold = fold_from_checkpoint(checkpoint_records(self.fold, b"log id----------"))
        Script.__init__(other, fold, opened=False)
        other.owner, other.epoch, other.time = self.owner, self.epoch, self.time
        other.sequences, other.modes = dict(self.sequences), self.modes
        return other

    def saved(self) -> list[bytes]:
        return list(checkpoint_records(self.fold, b"log id----------"))


def pick_of(
    question: Question,
    worker: int,
    rank: int = 0,
    number: int = 0,
    prefill: tuple[int, int] | None = None,
    replica: bytes = REPLICA,
) -> PickMade:
    """A pick of a decode rank, or of a pair."""
    chosen = Chosen(worker, rank, False, 100, 7)
    before = Chosen(*prefill, False, 100, 7) if prefill else None
    outcome = Outcome(
        NS,
        PhaseOutcome(int(PickReason.KV_AWARE), before, 1, None, b""),
        PhaseOutcome(int(PickReason.KV_AWARE), chosen, 1, None, b""),
        0,
        0,
        b"",
        int(KvResult.NO_OVERLAP),
        0,
        16,
    )
    pick_id = number.to_bytes(16, "big")
    return PickMade(pick_id, replica, number, 0, 1, question, outcome)


def ranks_card(size: int, start: int = 0, **more: Any) -> dict[str, Any]:
    """Part of a card: data-parallel ranks."""
    return {"runtime": {"data_parallel_size": size, "data_parallel_start_rank": start}, **more}
