"""Batches of kv-events and picks, taken into what is known of the blocks that ranks hold.

Each event of a batch is judged apart, in order. The rank that it speaks of must be live: the
publisher's binding names it where there is one and the card has several ranks, else the event
does (decision 22). Its id is held against the cursor of (publisher, rank). Seen before, it is
skipped. Beyond the next one, events were missed: all that this publisher told of the rank is
cleared and the event taken; chains from the root then fill the rank again. `cleared` is a
barrier, taken across a jump, which then is no gap. Refused content moves the cursor too.

Columns are taken as slices, never block by block. A batch whose columns end before its heads
do is malformed from there on.

Sources: decisions 16, 17, 22, 26; requirement rows KVX-07, 10, 13..17, 19, DYN-04, DYN-08;
wire contract, cursor rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from projections.events.envelope import Record
from projections.events.picks import PickMade
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived, KvOperation, StorageTier
from projections.kv.cursors import NO_EVENT, Feed, KvPublisher
from projections.kv.index import StoreResult
from projections.kv.side_index import predicted_by
from projections.kv.state import KvFleet, KvState
from projections.notices import ClearCause, KvEventResult, KvNotice, Notice

_STORED, _REMOVED, _CLEARED = (int(operation) for operation in KvOperation)
_DEVICE: Final = int(StorageTier.DEVICE)
_PLACES: Final = {
    _DEVICE: 0,
    int(StorageTier.HOST_PINNED): 1,
    int(StorageTier.DISK): 2,
    int(StorageTier.EXTERNAL): 2,
}
_RESULTS: Final = {
    StoreResult.APPLIED: KvEventResult.APPLIED,
    StoreResult.ORPHAN: KvEventResult.ORPHAN,
    StoreResult.OVER_CAPACITY: KvEventResult.OVER_CAPACITY,
    StoreResult.SELF_PARENT: KvEventResult.SELF_PARENT,
}
_APPLIED: Final = StoreResult.APPLIED


def apply_batch(state: KvState, record: Record, fleet: KvFleet, notices: list[Notice]) -> None:
    """Take one KvBatchReceived. fleet: as of this record."""
    fact = record.fact
    assert isinstance(fact, KvBatchReceived)
    key = fact.namespace, fact.publisher_id
    whole = len(fact.heads) // KV_EVENT_HEAD.size * KV_EVENT_HEAD.size
    publisher = state.heard(key, fleet, notices)
    if publisher is None:
        notices.append(KvNotice(KvEventResult.OVER_CAPACITY, *key, whole // KV_EVENT_HEAD.size))
        return
    told = _Told(notices)
    events = KV_EVENT_HEAD.iter_unpack(fact.heads[:whole])
    applied = _apply_events(state, publisher, events, fact.hashes, fleet, told)
    if whole != len(fact.heads):
        told.count(KvEventResult.MALFORMED)
    state.publishers.change(publisher)
    if applied:
        notices.append(KvNotice(KvEventResult.APPLIED, *key, applied))
    for result in sorted(told.results):
        notices.append(KvNotice(result, *key, told.results[result]))


def apply_pick(state: KvState, record: Record, fleet: KvFleet) -> None:
    """Take one PickMade: it stands for the blocks of its prompt at the rank that prefills it."""
    fact = record.fact
    assert isinstance(fact, PickMade)
    predicted = predicted_by(fact)
    if predicted is not None and fleet.is_live(*predicted.rank):
        state.predict(predicted, record.offset)


def _apply_events(
    state: KvState,
    publisher: KvPublisher,
    events: Iterable[tuple[int, int, int, int, int, int, int]],
    hashes: bytes,
    fleet: KvFleet,
    told: _Told,
) -> int:
    """Take events in order; how many were applied."""
    indexes, has_side = state.indexes, state.has_side
    position, end, applied = 0, len(hashes), 0
    named: tuple[int, int] | None = None
    feed: Feed | None = None
    refused = KvEventResult.IDENTITY_MISMATCH
    for worker_id, dp_rank, event_id, operation, tier, has_parent, blocks in events:
        start, size = position, blocks << 3
        tokens_at = start + 8 if has_parent and operation == _STORED else start
        names_at = tokens_at + size if operation == _STORED else start
        position = names_at + size if operation != _CLEARED else start
        if position > end or not _STORED <= operation <= _CLEARED:
            told.count(KvEventResult.MALFORMED)  # where the next event's columns begin is not known
            return applied
        if (worker_id, dp_rank) != named:
            named = worker_id, dp_rank
            found = state.feed_of(publisher, worker_id, dp_rank, fleet)
            feed, refused = (found, refused) if isinstance(found, Feed) else (None, found)
        if feed is None:
            told.count(refused)
            continue
        if event_id != feed.last_event_id + 1 and not _may_jump(
            state, publisher, feed, event_id, operation, told
        ):
            continue
        feed.last_event_id = event_id
        rank, place = feed.rank, 0
        if tier != _DEVICE or rank.feeders[0] is not publisher:
            place = _place(state, publisher, feed, tier, told)
            if place < 0:
                continue
        if operation == _STORED:
            tokens = hashes[tokens_at:names_at]
            parent = hashes[start:tokens_at] if has_parent else None
            result = indexes[place].stored(rank.slot, parent, tokens, hashes[names_at:position]).result
            if has_side and not place:
                state.side.stored(rank.key, tokens)
            if result is not _APPLIED:
                told.count(_RESULTS[result])
                continue
        elif operation == _REMOVED:
            if blocks and indexes[place].removed(rank.slot, hashes[names_at:position]) == blocks:
                told.count(KvEventResult.UNKNOWN_REMOVED)
                continue
        else:
            state.clear_tier(feed, place, told.notices)
        applied += 1
    if position != end:
        told.count(KvEventResult.MALFORMED)
    return applied


def _may_jump(
    state: KvState, publisher: KvPublisher, feed: Feed, event_id: int, operation: int, told: _Told
) -> bool:
    """Whether an event that does not follow the cursor is taken; a gap has cleared the rank then."""
    if feed.last_event_id == NO_EVENT:
        return True
    if event_id <= feed.last_event_id:
        told.count(KvEventResult.REPLAY)
        return False
    state.clear_feed(publisher, feed, ClearCause.GAP, told.notices)
    if operation != _CLEARED:
        told.count(KvEventResult.GAP)
    return True


def _place(state: KvState, publisher: KvPublisher, feed: Feed, tier: int, told: _Told) -> int:
    """Number of the index that an event of this tier goes to, -1 where it counts nowhere."""
    place = _PLACES.get(tier)
    if place is None:
        told.count(KvEventResult.MALFORMED)
    elif place >= state.tiers:
        told.count(KvEventResult.OTHER_TIER)
    elif not state.may_feed(publisher, feed, place, told.notices):
        told.count(KvEventResult.DISPLACED)
    else:
        return place
    return -1


class _Told:
    """What there is to tell of a batch: notices, and how often each result but APPLIED came."""

    __slots__ = ("notices", "results")

    def __init__(self, notices: list[Notice]) -> None:
        self.notices = notices
        self.results: dict[KvEventResult, int] = {}

    def count(self, result: KvEventResult) -> None:
        """One more event of this result."""
        self.results[result] = self.results.get(result, 0) + 1
