"""The rules of block events in plain dictionaries, device tier alone, one record after another.

Only discovery is taken from the fold: which ranks are live and which publisher is bound to which.
"""

from __future__ import annotations

import struct
from typing import Any

from projections.events.control import FoldModeAdopted, LaneOpened
from projections.events.envelope import Record
from projections.events.kinds import FACT_KINDS, Speaker
from projections.events.signals import (
    KV_EVENT_HEAD,
    KvBatchReceived,
    KvOperation,
    StorageTier,
    SubscriptionChanged,
    SubscriptionState,
)
from projections.fold_modes import KV_INDEX
from projections.identity import PublisherKey, WorkerKey

MINUTE = 60_000_000
Rank = tuple[int, int]
Path = tuple[int, ...]


class PlainRules:
    """held: engine hash -> path, by rank. feeder: whose device events count, by rank."""

    def __init__(self) -> None:
        self.modes: tuple[int, ...] = ()
        self.stamp = 0
        self.forget()

    def forget(self) -> None:
        self.held: dict[Rank, dict[int, Path]] = {}
        self.feeder: dict[Rank, int] = {}
        self.displaced: set[tuple[int, Rank]] = set()
        self.cursor: dict[tuple[int, Rank], int] = {}
        self.down: dict[int, int] = {}
        self.known: dict[int, Any] = {}  # publisher -> its binding where that counts

    def take(self, record: Record, registry: Any) -> None:
        """One record that took effect; `registry` as of behind it."""
        fact: Any = record.fact
        is_owner = FACT_KINDS[record.kind].speaker in (Speaker.OWNER, Speaker.CLAIMANT)
        silent_since, time = self.stamp, max(record.time, self.stamp)
        if is_owner:
            self._age(time)
            self.stamp = time
        if isinstance(fact, FoldModeAdopted):
            self.modes = fact.flags
            if KV_INDEX not in self.modes:
                self.forget()
        if KV_INDEX not in self.modes:
            return
        self._follow(registry)
        if isinstance(fact, LaneOpened):
            for publisher in self.known:
                self.down.setdefault(publisher, silent_since)
        elif isinstance(fact, SubscriptionChanged):
            self._subscription(fact, time)
        elif isinstance(fact, KvBatchReceived):
            self._batch(fact, registry)

    def depth(self, rank: Rank, path: Path, at: int) -> int:
        """Blocks of a path that a rank holds from the root, at log time `at`."""
        feeder = self.feeder.get(rank)
        since = None if feeder is None else self.down.get(feeder)
        if at - self.stamp >= MINUTE or (since is not None and at - since >= MINUTE):
            return 0
        paths = set(self.held.get(rank, {}).values())
        return next((n for n in range(len(path)) if path[: n + 1] not in paths), len(path))

    def _age(self, time: int) -> None:
        for rank, feeder in [*self.feeder.items()]:
            since = self.down.get(feeder)
            if time - self.stamp >= MINUTE or (since is not None and time - since >= MINUTE):
                del self.feeder[rank]
                self.held.pop(rank, None)

    def _follow(self, registry: Any) -> None:
        for rank in {*self.held, *self.feeder, *(rank for _, rank in self.cursor)}:
            if not registry.is_live("dynamo", *rank):
                self.held.pop(rank, None)
                self.feeder.pop(rank, None)
                for publisher in [*self.known]:
                    self.cursor.pop((publisher, rank), None)
                    self.displaced.discard((publisher, rank))
        for publisher, before in self.known.items():
            binding = self._binding(publisher, registry)
            if binding != before:
                self.known[publisher] = binding
                self._unfeed(publisher)

    def _binding(self, publisher: int, registry: Any) -> Any:
        binding = registry.binding_of(PublisherKey("dynamo", publisher))
        worker = registry.worker(WorkerKey("dynamo", binding.instance_id)) if binding else None
        return binding if worker is not None and worker.dp_size > 1 else None

    def _unfeed(self, publisher: int) -> None:
        for rank, feeder in [*self.feeder.items()]:
            if feeder == publisher:
                del self.feeder[rank]
                self.held.pop(rank, None)
        for key in [key for key in self.cursor if key[0] == publisher]:
            del self.cursor[key]
            self.displaced.discard(key)

    def _subscription(self, fact: SubscriptionChanged, time: int) -> None:
        publisher = fact.publisher_id
        if publisher not in self.known:
            return
        if fact.state == SubscriptionState.CONNECTED:
            self.down.pop(publisher, None)
        elif fact.state == SubscriptionState.ENDED and fact.reason != "transport":
            self._unfeed(publisher)
            del self.known[publisher]
            self.down.pop(publisher, None)
        else:
            self.down.setdefault(publisher, time)

    def _batch(self, fact: KvBatchReceived, registry: Any) -> None:
        publisher = fact.publisher_id
        self.known.setdefault(publisher, self._binding(publisher, registry))
        self.down.pop(publisher, None)
        words, at = struct.unpack(f">{len(fact.hashes) // 8}Q", fact.hashes), 0
        for worker, claimed, number, operation, tier, has_parent, blocks in KV_EVENT_HEAD.iter_unpack(
            fact.heads
        ):
            count = {KvOperation.STORED: 2 * blocks + has_parent, KvOperation.REMOVED: blocks}
            columns, at = words[at : at + count.get(operation, 0)], at + count.get(operation, 0)
            binding = self.known[publisher]
            bound = binding is not None and binding.instance_id == worker
            rank = worker, binding.dp_rank if bound else claimed
            if not registry.is_live("dynamo", *rank):
                continue
            last = self.cursor.get((publisher, rank))
            if last is not None and number <= last:
                continue
            if last is not None and number > last + 1 and self.feeder.get(rank) == publisher:
                self.held.pop(rank, None)
            self.cursor[publisher, rank] = number
            if tier == StorageTier.DEVICE and self._may_feed(publisher, rank):
                self._event(self.held.setdefault(rank, {}), operation, columns, bool(has_parent), blocks)

    def _may_feed(self, publisher: int, rank: Rank) -> bool:
        other = self.feeder.get(rank)
        if other not in (None, publisher):
            if (publisher, rank) in self.displaced and other not in self.down:
                return False
            self.displaced.add((other, rank))
            self.held.pop(rank, None)
        self.displaced.discard((publisher, rank))
        self.feeder[rank] = publisher
        return True

    def _event(
        self, held: dict[int, Path], operation: int, columns: tuple[int, ...], has_parent: bool, blocks: int
    ) -> None:
        if operation == KvOperation.CLEARED:
            held.clear()
        elif operation == KvOperation.REMOVED:
            for name in columns:
                held.pop(name, None)
        else:
            path = held.get(columns[0]) if has_parent else ()
            names = columns[-blocks:] if blocks else ()
            for token, name in zip(columns[has_parent:], names, strict=False):
                if path is None:
                    break
                path = (*path, token)
                held[name] = path
