"""The naive model's blocks: which rank holds what, by the words of the rows, from scratch for each pick.

A rank of a tier holds a map from its engine's names to paths of tokens hashes from the root,
and nothing else. Questions scan all of it: KVX-06..18, DYN-02, 04, 08, D 21, 22, 24, 26.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from projections.events.control import FoldModeAdopted, KvPickSettings, LaneOpened
from projections.events.kinds import FACT_KINDS, KIND_OF_FACT, Speaker
from projections.events.picks import PickMade, PicksLost, Question
from projections.events.signals import (
    KV_EVENT_HEAD,
    KvBatchReceived,
    SubscriptionChanged,
    SubscriptionContinued,
)
from tests.simulation.naive_fleet import COUNTED_ONCE, KV_INDEX, Fleet, Name

Rank = tuple[str, int, int]
Source = tuple[str, int]  # namespace, publisher id
Path = tuple[bytes, ...]
SILENT_FOR = 60_000_000
LOWER_TIERS, SIDE_INDEX = 2, 3
TIER_OF = {1: 0, 2: 1, 3: 2, 4: 2}


class Cursor:
    """What a publisher told of a rank: newest event id, and the tiers where a newer one took over."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.displaced: set[int] = set()


class Prediction(NamedTuple):
    """A pick that stands for blocks."""

    rank: Rank
    asked_at: int
    path: Path
    is_own: bool


class Blocks:
    """All that the log said of blocks."""

    def __init__(self) -> None:
        self.modes: tuple[int, ...] = ()
        self.stamp = 0
        self.fleet = Fleet({}, {})
        self._empty()

    def _empty(self) -> None:
        self.held: dict[tuple[Rank, int], dict[bytes, Path]] = {}
        self.feeders: dict[tuple[Rank, int], Source] = {}
        self.down: dict[Source, int | None] = {}
        self.cursors: dict[Source, dict[Rank, Cursor]] = {}
        self.bindings: dict[Source, tuple[int, int] | None] = {}
        self.predictions: list[Prediction] = []
        self._picked: set[bytes] = set()

    # The log

    def owner_spoke(self, fact: Any, time: int) -> None:
        """Before a record of the owner counts: what nobody kept up for 60 s goes."""
        if FACT_KINDS[KIND_OF_FACT[type(fact)]].speaker not in (Speaker.OWNER, Speaker.CLAIMANT):
            return
        before, self.stamp = self.stamp, time
        for source, since in self.down.items():
            is_old = since is not None and time - since >= SILENT_FOR
            if is_old or time - before >= SILENT_FOR:
                self._unfeed(source)
        if isinstance(fact, LaneOpened):
            self.down = {s: before if since is None else since for s, since in self.down.items()}

    def fleet_is(self, fleet: Fleet) -> None:
        """Ranks that left take everything along; another binding clears what a publisher told."""
        self.fleet = fleet
        known = {rank for rank, _ in (*self.held, *self.feeders)} | {p.rank for p in self.predictions}
        known |= {rank for cursors in self.cursors.values() for rank in cursors}
        for rank in known:
            if not self._is_live(rank):
                self._forget_rank(rank)
        for source in list(self.cursors):
            self._bind(source)

    def say(self, fact: Any, time: int) -> None:
        """One record that counts."""
        is_copy = self._is_copy(fact)
        if isinstance(fact, FoldModeAdopted):
            self._adopt(fact.flags)
        elif KV_INDEX not in self.modes:
            return
        elif isinstance(fact, KvBatchReceived):
            self._batch(fact)
        elif isinstance(fact, SubscriptionChanged) and fact.family == 2:
            self._subscription((fact.namespace, fact.publisher_id), fact, time)
        elif isinstance(fact, SubscriptionContinued) and fact.family == 2:
            source = (fact.namespace, fact.publisher_id)
            if source in self.down:
                self.down[source] = None
        elif isinstance(fact, PickMade) and not (is_copy and COUNTED_ONCE in self.modes):
            self.predict(fact, is_own=False)

    def _is_copy(self, fact: Any) -> bool:
        """Whether the pick was told before, in full or as the line that was left of it."""
        if isinstance(fact, PicksLost):
            self._picked.update(line.pick_id for line in fact.lines)
        elif isinstance(fact, PickMade):
            is_copy = fact.pick_id in self._picked
            self._picked.add(fact.pick_id)
            return is_copy
        return False

    def predict(self, fact: PickMade, is_own: bool) -> None:
        """A pick stands for the blocks of its prompt, where its question tells all of them."""
        outcome = fact.outcome
        chosen = outcome.prefill.chosen or outcome.decode.chosen
        if SIDE_INDEX not in self.modes or chosen is None or outcome.namespace is None:
            return
        for known in fact.question.hashes:
            if known.block_size == outcome.block_size and 0 < known.blocks == len(known.hashes) // 8:
                rank = (outcome.namespace, chosen.instance_id, chosen.dp_rank)
                if is_own or self._is_live(rank):
                    path = tuple(words(known.hashes))
                    self.predictions.append(Prediction(rank, fact.question.asked_at, path, is_own))

    def _adopt(self, modes: tuple[int, ...]) -> None:
        self.modes = tuple(modes)
        if KV_INDEX not in modes:
            self._empty()
        if LOWER_TIERS not in modes:
            self.held = {key: held for key, held in self.held.items() if key[1] == 0}
            self.feeders = {key: source for key, source in self.feeders.items() if key[1] == 0}
            for cursors in self.cursors.values():
                for cursor in cursors.values():
                    cursor.displaced &= {0}
        if SIDE_INDEX not in modes:
            self.predictions = []

    def _subscription(self, source: Source, fact: SubscriptionChanged, time: int) -> None:
        if source not in self.cursors:
            return
        if fact.state == 3:  # connected
            self.down[source] = None
        elif fact.state == 5 and fact.reason != "transport":  # ended for good
            self._unfeed(source)
            del self.cursors[source], self.down[source], self.bindings[source]
        elif self.down[source] is None:
            self.down[source] = time

    def _batch(self, fact: KvBatchReceived) -> None:
        source = (fact.namespace, fact.publisher_id)
        if source not in self.cursors:
            self.cursors[source] = {}
            self.bindings[source] = self._binding(source)
        self.down[source] = None
        rest = list(words(fact.hashes))
        for worker, claimed, event, operation, tier, has_parent, blocks in KV_EVENT_HEAD.iter_unpack(
            fact.heads
        ):
            parent = rest.pop(0) if has_parent else None
            tokens = [rest.pop(0) for _ in range(blocks)] if operation == 1 else []
            names = [rest.pop(0) for _ in range(blocks)] if operation != 3 else []
            binding = self.bindings[source]
            dp_rank = binding[1] if binding is not None and binding[0] == worker else claimed
            rank = (fact.namespace, worker, dp_rank)
            if self._is_live(rank) and self._follows(source, rank, event):
                self._event(source, rank, operation, TIER_OF[tier], parent, tokens, names)

    def _follows(self, source: Source, rank: Rank, event: int) -> bool:
        """Whether an event is new; one that comes too early clears what its publisher told of the rank."""
        cursor = self.cursors[source].setdefault(rank, Cursor())
        if cursor.last is not None and event <= cursor.last:
            return False
        if cursor.last is not None and event > cursor.last + 1:
            for tier in (0, 1, 2):
                if self.feeders.get((rank, tier)) == source:
                    self.held.pop((rank, tier), None)
        cursor.last = event
        return True

    def _event(
        self, source: Source, rank: Rank, operation: int, tier: int, parent: Any, tokens: Any, names: Any
    ) -> None:
        if (tier and LOWER_TIERS not in self.modes) or not self._may_feed(source, rank, tier):
            return
        held = self.held.setdefault((rank, tier), {})
        if operation == 3:
            held.clear()
        elif operation == 2:
            for name in names:
                held.pop(name, None)
        else:
            if tier == 0:
                self.predictions = [
                    p for p in self.predictions if p.rank != rank or p.is_own or p.path[-1] not in tokens
                ]
            if parent is not None and parent not in held:
                return  # an orphan
            path: Path = () if parent is None else held[parent]
            for token, name in zip(tokens, names, strict=True):
                if name != parent:
                    path = (*path, token)
                    held[name], parent = path, name

    def _may_feed(self, source: Source, rank: Rank, tier: int) -> bool:
        """The newest publisher of a tier counts alone, until it is no longer heard."""
        other, cursor = self.feeders.get((rank, tier)), self.cursors[source][rank]
        if other is not None and other != source:
            if tier in cursor.displaced and self.down[other] is None:
                return False
            self.held.pop((rank, tier), None)
            self.cursors[other][rank].displaced.add(tier)
        cursor.displaced.discard(tier)
        self.feeders[(rank, tier)] = source
        return True

    def _unfeed(self, source: Source) -> None:
        for key in [key for key, feeder in self.feeders.items() if feeder == source]:
            del self.feeders[key]
            self.held.pop(key, None)

    def _forget_rank(self, rank: Rank) -> None:
        for tier in (0, 1, 2):
            self.held.pop((rank, tier), None)
            self.feeders.pop((rank, tier), None)
        for cursors in self.cursors.values():
            cursors.pop(rank, None)
        self.predictions = [p for p in self.predictions if p.rank != rank]

    def _bind(self, source: Source) -> None:
        binding = self._binding(source)
        if binding != self.bindings[source]:
            self.bindings[source] = binding
            self._unfeed(source)
            self.cursors[source].clear()

    def _binding(self, source: Source) -> tuple[int, int] | None:
        binding = self.fleet.bindings.get(source)
        member = None if binding is None else self.fleet.members.get((source[0], binding[0]))
        return binding if member is not None and len(member.ranks) > 1 else None

    def _is_live(self, rank: Rank) -> bool:
        name: Name = rank[:2]
        return name in self.fleet.members and rank[2] in self.fleet.members[name].ranks

    # Questions

    def prefix(self, rank: Rank, question: Question, kv: KvPickSettings) -> tuple[int, int, int, int]:
        """Blocks of the prompt on the device, further ones in host memory and on disk, and predicted ones."""
        size = self.fleet.members[rank[:2]].block_size
        known = [tuple(words(one.hashes)) for one in question.hashes if one.block_size == size]
        if KV_INDEX not in self.modes or not known:
            return 0, 0, 0, 0
        at, path = question.asked_at, known[0]
        device, host, disk = (self._depth(rank, tier, path, at) for tier in (0, 1, 2))
        host = max(0, host - device)
        disk = max(0, disk - device - host)
        young = self._young(rank, question, kv)[1]
        predicted = max((_common(one.path, path) for one in young), default=0)
        return device, host, disk, predicted

    def in_flight(self, rank: Rank, question: Question, kv: KvPickSettings, answered: int) -> tuple[int, int]:
        """Blocks of the prompt that the rank is computing for others, and those that these share, in all."""
        device = self.prefix(rank, question, kv)[0]
        path, young = self._young(rank, question, kv)
        lengths = [(_common(one.path, path), one.asked_at > answered) for one in young]
        waiting = [length for length, is_waiting in lengths if is_waiting]
        done = max((length for length, is_waiting in lengths if not is_waiting), default=0)
        return max(0, max(waiting, default=0) - max(done, device)), sum(waiting)

    def _young(self, rank: Rank, question: Question, kv: KvPickSettings) -> tuple[Path, list[Prediction]]:
        """The prompt, and predictions of the rank that still stand for blocks."""
        size = self.fleet.members[rank[:2]].block_size
        known = [tuple(words(one.hashes)) for one in question.hashes if one.block_size == size]
        if KV_INDEX not in self.modes or not known:
            return (), []
        at = question.asked_at
        feeder = self.feeders.get((rank, 0))
        is_heard = feeder is not None and self._counts(feeder, at)
        ttl = kv.predicted_ttl_us if is_heard else kv.approximate_ttl_us
        return known[0], [
            one for one in self.predictions if one.rank == rank and ttl and one.asked_at > at - ttl
        ]

    def _depth(self, rank: Rank, tier: int, path: Path, at: int) -> int:
        feeder = self.feeders.get((rank, tier))
        if feeder is None or not self._counts(feeder, at):
            return 0
        paths = set(self.held.get((rank, tier), {}).values())
        depth = 0
        while depth < len(path) and path[: depth + 1] in paths:
            depth += 1
        return depth

    def _counts(self, source: Source, at: int) -> bool:
        since = self.down[source]
        return at - self.stamp < SILENT_FOR and (since is None or at - since < SILENT_FOR)


def words(packed: bytes) -> Iterator[bytes]:
    """Hashes of a packed column."""
    return (packed[start : start + 8] for start in range(0, len(packed), 8))


def _common(some: Path, other: Path) -> int:
    depth = 0
    while depth < min(len(some), len(other)) and some[depth] == other[depth]:
        depth += 1
    return depth
