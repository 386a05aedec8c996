"""What is known of the blocks that ranks hold, as facts of a checkpoint and back.

Ranks come first, by name, departed ones among them: their order is the table by which the
runs of every index name slots. Publishers with their cursors follow by name, then each tier
that holds anything with its runs, then predictions by path. So equal states give equal facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from projections.events.held import (
    KvPublisherHeld,
    KvRankHeld,
    KvTierHeld,
    PredictionHeld,
    RunHeld,
)
from projections.identity import RankKey
from projections.kv.cursors import TIERS
from projections.kv.state import KvFleet, KvState
from projections.registry.join import RankBinding

KvHeld = KvRankHeld | KvPublisherHeld | KvTierHeld | RunHeld | PredictionHeld


def held_facts(state: KvState) -> Iterator[KvHeld]:
    """All of the state but the fold modes, which ride in OwnerHeld."""
    ranks = state.ranks.in_order()
    for rank in ranks:
        yield KvRankHeld(*rank.key, rank.departed, rank.feeder_ids())
    for key in sorted(state.publishers.by_key):
        publisher = state.publishers.by_key[key]
        bound = publisher.binding
        yield KvPublisherHeld(
            *key,
            publisher.down_at,
            None if bound is None else bound.instance_id,
            0 if bound is None else bound.dp_rank,
            publisher.rows(),
        )
    slots = [rank.slot for rank in ranks]
    for tier in range(state.tiers):
        if state.indexes[tier].nodes:
            yield KvTierHeld(tier)
            yield from state.indexes[tier].held(slots)
    yield from state.side.held()


class KvRestore:
    """Takes held facts in their order, and makes a state of them at the end.

    Facts that do not fit each other are passed over: the digest at the end of a checkpoint
    tells of them.
    """

    def __init__(self, state: KvState) -> None:
        self._state = state
        self._ranks: list[KvRankHeld] = []
        self._runs: list[list[RunHeld]] = [[] for _ in range(TIERS)]
        self._tier = 0
        self._predictions: list[PredictionHeld] = []

    def take(self, fact: KvHeld) -> None:
        """One fact."""
        match fact:
            case KvRankHeld():
                self._rank(fact)
            case KvPublisherHeld():
                self._publisher(fact)
            case KvTierHeld(tier):
                self._tier = min(max(tier, 0), TIERS - 1)
            case RunHeld():
                self._runs[self._tier].append(fact)
            case PredictionHeld():
                self._predictions.append(fact)

    def finish(self, fold_mode: tuple[int, ...], stamp: int, fleet: KvFleet) -> None:
        """All facts were taken. stamp: log time of the owner's newest record. May raise ValueError."""
        state = self._state
        state.set_modes(fold_mode)
        for fact in self._ranks:
            self._feed(fact)
        for publisher in [*state.publishers.by_key.values()]:
            state.bind(publisher, fleet, [])
        state.open_slots()
        slots = [rank.slot for rank in state.ranks.in_order()]
        for tier, runs in enumerate(self._runs[: state.tiers]):
            if runs:
                state.indexes[tier].restore(runs, slots)
        state.side.restore(self._predictions)
        state.schedule(stamp)

    def _rank(self, fact: KvRankHeld) -> None:
        key = RankKey(fact.namespace, fact.instance_id, fact.dp_rank)
        rank = self._state.ranks.open(key) if self._state.ranks.get(key) is None else None
        if rank is not None:
            self._ranks.append(fact)
            if fact.departed:
                self._state.ranks.depart(rank)

    def _publisher(self, fact: KvPublisherHeld) -> None:
        publishers = self._state.publishers
        key = fact.namespace, fact.publisher_id
        binding = None if fact.bound_worker is None else RankBinding(fact.bound_worker, fact.bound_rank)
        publisher = publishers.open(key, binding) if key not in publishers.by_key else None
        if publisher is None:
            return
        if fact.down_at is not None:
            publishers.cut_off(publisher, fact.down_at)
        for instance_id, dp_rank, last_event_id, displaced in fact.cursors:
            rank = self._state.ranks.get((fact.namespace, instance_id, dp_rank))
            if rank is not None and publisher.key not in rank.heard:
                feed = publishers.open_feed(publisher, rank)
                feed.last_event_id, feed.displaced = last_event_id, displaced

    def _feed(self, fact: KvRankHeld) -> None:
        rank = self._state.ranks.get((fact.namespace, fact.instance_id, fact.dp_rank))
        ids: list[Any] = [*fact.feeders[:TIERS]]
        for tier, publisher_id in enumerate(ids):
            publisher = self._state.publishers.by_key.get((fact.namespace, publisher_id))
            if rank is not None and publisher is not None:
                rank.feeders[tier] = publisher
                publisher.fed[tier] |= rank.bit
                self._state.ranks.change(rank)
