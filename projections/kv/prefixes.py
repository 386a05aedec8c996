"""How much of a prompt each rank holds, at the time of a question.

A rank is compared with the hashes of its own block size. On the device it holds the longest
prefix without a hole; a lower tier adds the blocks by which a chain of its own reaches
further than the faster tiers together; predictions are counted apart, from the root.

What a publisher told counts while it is heard, and for 60 s after; nothing counts when the
owner was silent that long (decision 21). Predictions count while they are younger than
the settings say: one time for ranks whose events are heard, another for those without
(decision 24); those of the replica's own picks that the as-of does not hold are among them.

A prediction whose dispatch no sample has answered is in flight: its charge stands in the
ledger, and part of that is work for the very prompt that is asked about.

The prefixes come in no order: look them up by rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from projections.bounds import KV_STALE_US, PREDICTION_US_MAX
from projections.events.control import KvPickSettings
from projections.events.picks import BlockHashes, Question
from projections.identity import U64_MAX, RankKey
from projections.kv.columns import members
from projections.kv.ranks import KvRank
from projections.kv.side_index import SideIndex
from projections.kv.state import NEVER, KvState
from projections.registry.fleet import Fleet

RankName = tuple[str, int, int]
_POOLS_KEPT = 256  # (model, namespaces, block size) whose ranks are remembered


class RankPrefix(NamedTuple):
    """Whole blocks of a prompt, from its beginning, that a rank holds.

    host, disk: further ones in host memory, and on disk or beyond. predicted: from the root,
    that it will hold.
    """

    device: int
    host: int
    disk: int
    predicted: int


class InFlight(NamedTuple):
    """What unanswered dispatches to a rank share with a prompt, in whole blocks from its beginning.

    computing: blocks that are computed there now, for whoever was first to ask for them; none
    that the rank holds, or that a sample has answered. shared: of each dispatch by itself, added up.
    """

    computing: int
    shared: int


class DeviceDepths(NamedTuple):
    """The same where nothing but blocks on the device counts, for readers that go by slots.

    groups: (blocks, mask of slots); a slot is in one group at most. names: rank of each slot.
    generation: another one whenever a slot stands for another rank.
    """

    groups: list[tuple[int, int]]
    names: list[RankKey]
    generation: int


class Pool(NamedTuple):
    """The ranks that a question may compare. mask: their slots. ranks: None where nothing was told."""

    mask: int
    ranks: Mapping[RankName, KvRank | None]


class _Young(NamedTuple):
    """Predictions asked for later than these times count: all, of ranks that are heard, of others."""

    oldest: int
    heard_after: int
    unheard_after: int
    heard: int  # mask of slots

    def after(self, rank: KvRank | None, is_own: bool) -> int:
        """The time for one rank. What nothing was told of has predictions in the overlay alone."""
        if rank is None:
            return self.unheard_after if is_own else U64_MAX
        is_heard = rank.feeders[0] is not None and self.heard & rank.bit
        return self.heard_after if is_heard else self.unheard_after


class PrefixReading(NamedTuple):
    """State, fleet and overlay of one view. stamp: of the newest record of the owner."""

    state: KvState
    fleet: Fleet
    own: SideIndex | None
    stamp: int

    def prefixes(self, question: Question, kv: KvPickSettings) -> dict[RankName, RankPrefix]:
        """Ranks of the question's model and namespaces that hold, or will hold, any of its blocks."""
        found: dict[RankName, RankPrefix] = {}
        for known in question.hashes:
            found.update(self._of_size(known, question, kv))
        return found

    def device_depths(self, question: Question) -> DeviceDepths | None:
        """What `prefixes` says, by groups of slots; None where lower tiers or predictions count."""
        state = self.state
        if state.has_lower or state.has_side:
            return None
        groups: list[tuple[int, int]] = []
        for known in question.hashes:
            groups += self._on_device(known, question)
        return DeviceDepths(groups, state.ranks.names, state.ranks.generation)

    def deepest(self, question: Question, kv: KvPickSettings) -> dict[int, int]:
        """Block size -> the most blocks that any of them holds, in all tiers, or will hold."""
        if not (self.state.has_lower or self.state.has_side):
            return {
                known.block_size: max((depth for depth, _ in self._on_device(known, question)), default=0)
                for known in question.hashes
            }
        return {
            known.block_size: max(
                (
                    max(prefix.device + prefix.host + prefix.disk, prefix.predicted)
                    for prefix in self._of_size(known, question, kv).values()
                ),
                default=0,
            )
            for known in question.hashes
        }

    def _on_device(self, known: BlockHashes, question: Question) -> list[tuple[int, int]]:
        """(blocks on the device, mask of slots) of the ranks that a question may compare."""
        pool = self._pool(question.served_model, question.namespaces, known.block_size)
        among = self._counting(pool.mask, 0, question.asked_at)
        return self.state.indexes[0].find(known.hashes, among) if among else []

    def _of_size(
        self, known: BlockHashes, question: Question, kv: KvPickSettings
    ) -> dict[RankName, RankPrefix]:
        state, at = self.state, question.asked_at
        pool = self._pool(question.served_model, question.namespaces, known.block_size)
        names = state.ranks.names
        found: dict[RankName, RankPrefix] = {}
        among = self._counting(pool.mask, 0, at)
        if among:
            for depth, mask in state.indexes[0].find(known.hashes, among):
                found.update(dict.fromkeys(map(names.__getitem__, members(mask)), RankPrefix(depth, 0, 0, 0)))
        if state.has_lower:
            for tier in (1, 2):
                among = self._counting(pool.mask, tier, at)
                for depth, mask in state.indexes[tier].find(known.hashes, among) if among else ():
                    for slot in members(mask):
                        _extend(found, names[slot], tier, depth)
        if state.has_side:
            self._predict(found, pool, known.hashes, at, kv)
        return found

    def _predict(
        self,
        found: dict[RankName, RankPrefix],
        pool: Pool,
        hashes: bytes,
        at: int,
        kv: KvPickSettings,
    ) -> None:
        """Add what picks predict for ranks of the pool."""
        young = self._young(pool, at, kv)
        ranks = pool.ranks
        for side in (self.state.side, self.own):
            if side is None:
                continue
            done: dict[RankKey, None] = {}
            for depth, ages in side.path(hashes):
                for name, times in ages.items():
                    newest = times[-1][0]
                    if newest <= young.oldest or name in done or name not in ranks:
                        continue
                    if newest <= young.after(ranks[name], side is self.own):
                        continue
                    done[name] = None
                    device, host, disk, predicted = found.get(name, _NOTHING)
                    if depth > predicted:
                        found[name] = _new(RankPrefix, (device, host, disk, depth))

    def in_flight(
        self,
        question: Question,
        kv: KvPickSettings,
        held: Mapping[RankName, RankPrefix],
        answered: Callable[[RankKey], int],
    ) -> dict[RankName, InFlight]:
        """Ranks to which prompts that share a beginning with this one are under way.

        held: what `prefixes` says. answered: dispatches to a rank from after this time are unanswered.
        """
        found: dict[RankName, tuple[int, int, int]] = {}  # depth unanswered, depth answered, shared
        if not self.state.has_side:
            return {}
        for known in question.hashes:
            pool = self._pool(question.served_model, question.namespaces, known.block_size)
            young = self._young(pool, question.asked_at, kv)
            for side in (self.state.side, self.own):
                edges = side.path(known.hashes) if side is not None else []
                for place, (depth, ages) in enumerate(edges, 1):
                    length = depth - (edges[place][0] if place < len(edges) else 0)
                    for name, times in ages.items():
                        if name not in pool.ranks or times[-1][0] <= young.oldest:
                            continue
                        since = young.after(pool.ranks[name], side is self.own)
                        first = bisect_right(times, (since, U64_MAX))
                        split = bisect_right(times, (max(since, answered(name)), U64_MAX))
                        under_way, done, shared = found.get(name, (0, 0, 0))
                        if split < len(times):
                            under_way = max(under_way, depth)
                            shared += (len(times) - split) * length
                        if first < split:
                            done = max(done, depth)
                        found[name] = under_way, done, shared
        return {
            name: InFlight(max(0, under_way - max(done, held.get(name, _NOTHING).device)), shared)
            for name, (under_way, done, shared) in found.items()
            if shared
        }

    def _young(self, pool: Pool, at: int, kv: KvPickSettings) -> _Young:
        """Which predictions count at log time `at`."""
        times = _after(at, kv.predicted_ttl_us), _after(at, kv.approximate_ttl_us)
        return _Young(min(times), *times, self._counting(pool.mask, 0, at))

    def _counting(self, mask: int, tier: int, at: int) -> int:
        """Those of the slots whose blocks of a tier count at log time `at`."""
        if not mask or at - self.stamp >= KV_STALE_US:
            return 0
        for publisher in self.state.publishers.down.values():
            since = publisher.down_at
            if since is not None and at - since >= KV_STALE_US:
                mask &= ~publisher.fed[tier]
        return mask

    def _pool(self, model: str, namespaces: tuple[str, ...], block_size: int) -> Pool:
        """Ranks of workers of this model and block size; remembered while nothing changes."""
        pools = self.state.derived_of((self.fleet.generation, self.state.ranks.generation))
        key = model, namespaces, block_size
        pool: Pool | None = pools.get(key)
        if pool is None:
            mask = 0
            ranks: dict[RankName, KvRank | None] = {}
            for worker in self.fleet.workers_of(model):
                if worker.block_size != block_size or worker.key.namespace not in namespaces:
                    continue
                for dp_rank in worker.ranks():
                    rank = self.state.ranks.get((*worker.key, dp_rank))
                    if rank is not None and not rank.departed:
                        mask |= rank.bit
                    ranks[RankKey(*worker.key, dp_rank)] = None if rank is None or rank.departed else rank
            if len(pools) >= _POOLS_KEPT:
                pools.clear()
            pool = pools[key] = Pool(mask, ranks)
        return pool


_NOTHING = RankPrefix(0, 0, 0, 0)
_new: Any = tuple.__new__  # a named tuple's own constructor costs twice as much


def _after(at: int, ttl_us: int) -> int:
    """Predictions asked for later than this count at log time `at`."""
    return at - min(ttl_us, PREDICTION_US_MAX) if ttl_us > 0 else NEVER


def _extend(found: dict[RankName, RankPrefix], name: RankName, tier: int, depth: int) -> None:
    """A lower tier holds the first `depth` blocks: those beyond the faster tiers count."""
    before = found.get(name, _NOTHING)
    further = depth - before.device - before.host
    if further > 0:
        found[name] = before._replace(host=further) if tier == 1 else before._replace(disk=further)
