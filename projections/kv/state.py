"""What is known of the blocks that ranks hold, and how it goes when nobody keeps it up.

Only blocks on the device are a rank's prefix. With the fold mode LOWER_TIERS host memory is
indexed too, and disk and external storage together, each in an index of its own with half the
ceilings: a chain counts in a tier where that tier holds it from the root, so blocks of a lower
tier extend the prefix on the device where their own chain reaches further. With SIDE_INDEX
picks stand for blocks, see `side_index`. Without KV_INDEX nothing here takes anything;
a mode that is dropped takes along what it filled, at that offset (KVX-20).

A publisher that is not heard for 60 s counts no more: first by arithmetic in the view, then, at
the first record of the owner past that point, in memory (decision 21); so it is with all of
them when the log itself was silent that long. Its cursors stay. A subscription that ended for
good takes along what it told at once; a transport switch does not (BRS-15, BRS-16). Ranks that
leave the fleet are masked at their record and reclaimed one by one, each at a further record
of the owner (decision 25, docs/adr/0013).

Sources: decisions 8, 10, 21, 22, 24, 25; requirement rows KVX-12, 13, 18, 20, BRS-06, 11, 12, 15, 16.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import xxhash

from projections.bounds import KV_CURSORS_PER_SUBSCRIPTION_MAX, KV_STALE_US, PREDICTION_US_MAX
from projections.events.codec import encode_value
from projections.events.signals import SubscriptionChanged, SubscriptionContinued, SubscriptionState
from projections.fold_modes import KV_INDEX, LOWER_TIERS, SIDE_INDEX
from projections.identity import U64_MAX, PublisherKey, RankKey, WorkerKey
from projections.kv.cursors import TIERS, Feed, KvPublisher, Publishers
from projections.kv.index import Index
from projections.kv.index_limits import INDEX_LIMITS, IndexLimits
from projections.kv.ranks import KvRank, Ranks
from projections.kv.side_index import Predicted, SideIndex
from projections.notices import ClearCause, KvEventResult, KvNotice, Notice, RankCleared
from projections.registry.join import RankBinding, Worker

NEVER: Final = 1 << 63  # no log time reaches it
LOWER_LIMITS: Final = INDEX_LIMITS._replace(
    nodes=INDEX_LIMITS.nodes // 2, ownerships=INDEX_LIMITS.ownerships // 2
)
KEEPS_BLOCKS: Final = "transport"  # an end for this reason is followed by a connect

_xxh3 = xxhash.xxh3_64_intdigest


class KvFleet(Protocol):
    """What the registry answers here. `generation` differs whenever an answer may differ."""

    generation: int

    def is_live(self, namespace: str, instance_id: int, dp_rank: int) -> bool:
        """Whether a live worker of this name declares the rank."""

    def worker(self, key: WorkerKey) -> Worker | None:
        """The live worker of a name."""

    def binding_of(self, key: PublisherKey) -> RankBinding | None:
        """The rank that a publisher's event source names."""


class KvState:
    """See the module's text. Views read it; `reducer` and the fold change it.

    is_on, has_lower, has_side: fold modes in force. indexes: of the device, of host memory, of
    what lies beyond. due_at: no record of the owner before this log time makes `upkeep` do
    anything; nothing that could be seen depends on it.
    """

    def __init__(self, limits: IndexLimits = INDEX_LIMITS, lower: IndexLimits = LOWER_LIMITS) -> None:
        self.is_on = self.has_lower = self.has_side = False
        self.due_at = NEVER
        self._limits = (limits, lower, lower)
        self.ranks = Ranks()
        self._empty()

    def _empty(self) -> None:
        self.ranks = Ranks(generation=self.ranks.generation + 1)
        self.publishers = Publishers()
        self.indexes = [Index(limits) for limits in self._limits]
        self.side = SideIndex()
        self._derived: dict[Any, Any] = {}
        self._derived_of: tuple[int, ...] = ()

    @property
    def tiers(self) -> int:
        """How many tiers are indexed now."""
        return TIERS if self.has_lower else 1

    @property
    def digest(self) -> int:
        """Digest of all of it, 64 bits; 0 while nothing is held."""
        total = self.publishers.digest + self.ranks.digest + self.side.digest
        for tier, index in enumerate(self.indexes):
            if digest := index.digest:
                total += _xxh3(encode_value(("tier", tier, digest)))
        return total & U64_MAX

    def derived_of(self, generations: tuple[int, ...]) -> dict[Any, Any]:
        """What readers worked out at these generations of fleet and ranks, for them to keep and bound."""
        if generations != self._derived_of:
            self._derived, self._derived_of = {}, generations
        return self._derived

    # -- fold modes --------------------------------------------------------------------

    def adopt(self, flags: tuple[int, ...], stamp: int, notices: list[Notice]) -> None:
        """From here on these modes are in force; what others filled goes."""
        had_lower = self.has_lower
        self.set_modes(flags)
        if not self.is_on:
            for rank in self.ranks.in_order():
                self._tell(ClearCause.SWITCHED_OFF, rank, self.blocks_of(rank), notices)
            self._empty()
        elif had_lower and not self.has_lower:
            self._drop_lower()
        elif self.has_lower and not had_lower:
            for rank in self.ranks.in_order():
                self._open_slots(rank, range(1, TIERS))
        if not self.has_side and len(self.side):
            self.side = SideIndex()
        self.schedule(stamp)

    def set_modes(self, flags: tuple[int, ...]) -> None:
        """The same for a state that is being restored and holds no more than they fill."""
        self.is_on = KV_INDEX in flags
        self.has_lower = self.is_on and LOWER_TIERS in flags
        self.has_side = self.is_on and SIDE_INDEX in flags

    def _drop_lower(self) -> None:
        self.indexes[1:] = [Index(limits) for limits in self._limits[1:]]
        for rank in self.ranks.in_order():
            if any(rank.feeders[1:]):
                rank.feeders[1:] = [None] * (TIERS - 1)
                self.ranks.change(rank)
        for publisher in self.publishers.by_key.values():
            publisher.fed[1:] = [0] * (TIERS - 1)
            for feed in publisher.feeds.values():
                if feed.displaced > 1:
                    feed.displaced &= 1
                    self.publishers.change(publisher)

    # -- publishers --------------------------------------------------------------------

    def heard(self, key: tuple[str, int], fleet: KvFleet, notices: list[Notice]) -> KvPublisher | None:
        """The publisher of a batch that has come, None where there is no room for another one."""
        publisher = self.publishers.by_key.get(key)
        if publisher is None:
            publisher = self.publishers.open(key, None)
            if publisher is None:
                return None
            self.bind(publisher, fleet, notices)
        if publisher.down_at is not None:
            self.publishers.hear(publisher)
        if publisher.generation != fleet.generation:
            publisher.generation = fleet.generation
            publisher.resolved.clear()
        return publisher

    def feed_of(
        self, publisher: KvPublisher, worker_id: int, claimed: int, fleet: KvFleet
    ) -> Feed | KvEventResult:
        """What an event of this publisher speaks of, or why it may not speak.

        claimed: the rank that the event names; the publisher's binding may know better.
        """
        name = worker_id, claimed
        feed = publisher.resolved.get(name)
        if feed is not None:
            return feed
        binding, namespace = publisher.binding, publisher.key[0]
        dp_rank = binding.dp_rank if binding is not None and binding.instance_id == worker_id else claimed
        if not fleet.is_live(namespace, worker_id, dp_rank):
            return KvEventResult.IDENTITY_MISMATCH
        feed = publisher.feeds.get((worker_id, dp_rank))
        if feed is None:
            has_room = self.publishers.has_room_for_cursor(publisher)
            rank = self.live_rank(RankKey(namespace, worker_id, dp_rank)) if has_room else None
            if rank is None:
                return KvEventResult.OVER_CAPACITY
            feed = self.publishers.open_feed(publisher, rank)
        if len(publisher.resolved) >= KV_CURSORS_PER_SUBSCRIPTION_MAX:
            publisher.resolved.clear()
        publisher.resolved[name] = feed
        return feed

    def may_feed(self, publisher: KvPublisher, feed: Feed, tier: int, notices: list[Notice]) -> bool:
        """Whether what the publisher says of a tier of a rank counts; if so it is the feeder now."""
        rank, mark = feed.rank, 1 << tier
        other = rank.feeders[tier]
        if other is publisher:
            return True
        if other is not None:
            if feed.displaced & mark and other.down_at is None:
                return False
            self._clear(rank, tier, ClearCause.NEW_PUBLISHER, notices)
            other.fed[tier] &= ~rank.bit
            other.feeds[rank.key[1:]].displaced |= mark
            self.publishers.change(other)
        feed.displaced &= ~mark
        rank.feeders[tier] = publisher
        publisher.fed[tier] |= rank.bit
        self.ranks.change(rank)
        self.publishers.change(publisher)
        return True

    def apply_subscription(
        self, fact: SubscriptionChanged | SubscriptionContinued, time: int, notices: list[Notice]
    ) -> None:
        """A subscription to kv-events is connected, goes on with another owner, is cut off, or has ended."""
        publisher = self.publishers.by_key.get((fact.namespace, fact.publisher_id))
        if publisher is None:
            return
        if isinstance(fact, SubscriptionContinued) or fact.state == SubscriptionState.CONNECTED:
            self.publishers.hear(publisher)
        elif fact.state == SubscriptionState.ENDED and fact.reason != KEEPS_BLOCKS:
            for feed in [*publisher.feeds.values()]:
                self._unfeed(publisher, feed, ClearCause.ENDED, notices)
            self.publishers.close(publisher)
        else:
            self._cut_off(publisher, time)

    def lane_opened(self, silent_since: int) -> None:
        """Another owner: nobody has listened since that log time, until it says who is connected."""
        for publisher in self.publishers.by_key.values():
            self._cut_off(publisher, silent_since)

    def _cut_off(self, publisher: KvPublisher, since: int) -> None:
        self.publishers.cut_off(publisher, since)
        self.due_at = min(self.due_at, since + KV_STALE_US)

    # -- ranks -------------------------------------------------------------------------

    def live_rank(self, key: RankKey) -> KvRank | None:
        """The rank of this name, which is live; None where there is no room for another one."""
        rank = self.ranks.get(key)
        if rank is not None and rank.departed:
            self._reclaim(rank)
            rank = None
        if rank is None:
            rank = self.ranks.open(key)
            if rank is not None:
                self._open_slots(rank, range(self.tiers))
        return rank

    def predict(self, predicted: Predicted, number: int) -> None:
        """A pick stands for blocks of a rank, which is live. number: offset of the pick."""
        if self.live_rank(predicted.rank) is not None:
            self.side.add(predicted.asked_at, number, predicted.rank, predicted.hashes)
            self.due_at = min(self.due_at, predicted.asked_at + PREDICTION_US_MAX)

    def blocks_of(self, rank: KvRank) -> int:
        """Blocks held by a rank in all indexed tiers."""
        return sum(index.blocks(rank.slot) for index in self.indexes[: self.tiers])  # integers

    def follow(
        self,
        workers: Iterable[WorkerKey],
        publishers: Iterable[PublisherKey],
        fleet: KvFleet,
        notices: list[Notice],
    ) -> None:
        """These workers and bindings have changed: mask ranks that are gone, clear what is bound anew."""
        for worker in workers:
            for rank in self.ranks.of_worker(*worker):
                if not rank.departed and not fleet.is_live(*rank.key):
                    self._mask(rank, notices)
            for bound in sorted(self.publishers.bound.get(worker, ())):
                self.bind(self.publishers.by_key[bound], fleet, notices)
        for key in publishers:
            publisher = self.publishers.by_key.get(key)
            if publisher is not None:
                self.bind(publisher, fleet, notices)

    def clear_feed(
        self, publisher: KvPublisher, feed: Feed, cause: ClearCause, notices: list[Notice]
    ) -> None:
        """Forget the blocks that a publisher told of a rank, in every tier that it feeds."""
        for tier in range(self.tiers):
            if feed.rank.feeders[tier] is publisher:
                self._clear(feed.rank, tier, cause, notices)

    def clear_tier(self, feed: Feed, tier: int, notices: list[Notice]) -> None:
        """The engine says that a rank holds nothing any more in a tier."""
        self._clear(feed.rank, tier, ClearCause.ENGINE, notices)

    def _clear(self, rank: KvRank, tier: int, cause: ClearCause, notices: list[Notice]) -> None:
        index = self.indexes[tier]
        blocks = index.blocks(rank.slot)
        if blocks:
            index.clear(rank.slot)
            self._tell(cause, rank, blocks, notices)

    def _unfeed(self, publisher: KvPublisher, feed: Feed, cause: ClearCause, notices: list[Notice]) -> None:
        """Forget what a publisher told of a rank, and that it did; its cursor stays."""
        rank = feed.rank
        for tier in range(self.tiers):
            if rank.feeders[tier] is publisher:
                self._clear(rank, tier, cause, notices)
                rank.feeders[tier] = None
                publisher.fed[tier] &= ~rank.bit
                self.ranks.change(rank)

    def bind(self, publisher: KvPublisher, fleet: KvFleet, notices: list[Notice]) -> None:
        """Look up the publisher's binding again: another one clears its blocks and cursors."""
        source = fleet.binding_of(PublisherKey(*publisher.key))
        self.publishers.bind(publisher, None if source is None else source.instance_id)
        binding = _binding(source, publisher.key[0], fleet)
        if binding == publisher.binding:
            return
        publisher.binding = binding
        for feed in [*publisher.feeds.values()]:
            self._unfeed(publisher, feed, ClearCause.BINDING, notices)
            self.publishers.close_feed(publisher, feed.rank)
        self.publishers.change(publisher)

    def _mask(self, rank: KvRank, notices: list[Notice]) -> None:
        """A rank has left the fleet: nobody sees it or speaks of it any more."""
        for tier, feeder in enumerate(rank.feeders):
            if feeder is not None:
                feeder.fed[tier] &= ~rank.bit
                rank.feeders[tier] = None
        for key in [*rank.heard]:
            self.publishers.close_feed(self.publishers.by_key[key], rank)
        self.ranks.depart(rank)
        self._tell(ClearCause.DEPARTED, rank, self.blocks_of(rank), notices)
        self.due_at = 0

    def open_slots(self) -> None:
        """Give every rank its slot in the indexes of all tiers in force; for a state that is restored."""
        for rank in self.ranks.in_order():
            self._open_slots(rank, range(self.tiers))

    def _open_slots(self, rank: KvRank, tiers: Iterable[int]) -> None:
        word = _xxh3(encode_value(tuple(rank.key)))
        for tier in tiers:
            self.indexes[tier].open_slot(rank.slot, word)

    def _reclaim(self, rank: KvRank) -> None:
        for tier in range(self.tiers):
            self.indexes[tier].close_slot(rank.slot)
        self.side.forget_rank(rank.key)
        self.ranks.close(rank)

    # -- time --------------------------------------------------------------------------

    def upkeep(self, time: int, stamp: int, notices: list[Notice]) -> None:
        """What is due before a record of the owner of log time `time`; `stamp` is that of the one before."""
        if self.ranks.departed:
            rank = self.ranks.get(self.ranks.departed[0])
            assert rank is not None
            self._reclaim(rank)
        was_silent = time - stamp >= KV_STALE_US
        for key in sorted(self.publishers.by_key if was_silent else self.publishers.down):
            publisher = self.publishers.by_key[key]
            since = publisher.down_at
            if any(publisher.fed) and (was_silent or (since is not None and time - since >= KV_STALE_US)):
                self._age(publisher, notices)
        self.side.expire(time - PREDICTION_US_MAX)
        self.schedule(time)

    def schedule(self, time: int) -> None:
        """Set `due_at` anew; `time` is that of the newest record of the owner."""
        if not self.is_on or self.ranks.departed:
            self.due_at = 0 if self.is_on else NEVER
            return
        dues = [time + KV_STALE_US]
        for publisher in self.publishers.down.values():
            if publisher.down_at is not None and any(publisher.fed):
                dues.append(publisher.down_at + KV_STALE_US)
        if (oldest := self.side.oldest_at) is not None:
            dues.append(oldest + PREDICTION_US_MAX)
        self.due_at = min(dues)

    def _age(self, publisher: KvPublisher, notices: list[Notice]) -> None:
        ranks = 0
        for feed in [*publisher.feeds.values()]:
            if any(feeder is publisher for feeder in feed.rank.feeders):
                self._unfeed(publisher, feed, ClearCause.AGED, notices)
                ranks += 1
        notices.append(KvNotice(KvEventResult.AGED, *publisher.key, ranks))

    def _tell(self, cause: ClearCause, rank: KvRank, blocks: int, notices: list[Notice]) -> None:
        if blocks:
            notices.append(RankCleared(cause, *rank.key, blocks))


def _binding(source: RankBinding | None, namespace: str, fleet: KvFleet) -> RankBinding | None:
    """The rank that a publisher speaks for whatever its events say: of a worker with several ranks."""
    if source is None:
        return None
    worker = fleet.worker(WorkerKey(namespace, source.instance_id))
    return source if worker is not None and worker.dp_size > 1 else None
