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

from typing import Any, Final

from projections.events.envelope import Record
from projections.events.picks import PickMade
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived, KvOperation, StorageTier
from projections.kv.cursors import NO_EVENT, Feed, KvPublisher
from projections.kv.index import APPLIED, StoreResult
from projections.kv.ranks import KvRank
from projections.kv.side_index import predicted_by
from projections.kv.state import KvFleet, KvState
from projections.notices import BlocksOrphaned, ClearCause, KvEventResult, KvNotice, Notice

_HEAD_BYTES: Final = KV_EVENT_HEAD.size
_unpack: Final = KV_EVENT_HEAD.iter_unpack
_new: Any = tuple.__new__  # a named tuple's own constructor costs twice as much
_STORED, _REMOVED, _CLEARED = (int(operation) for operation in KvOperation)
_DEVICE: Final = int(StorageTier.DEVICE)
_PLACES: Final = {
    _DEVICE: 0,
    int(StorageTier.HOST_PINNED): 1,
    int(StorageTier.DISK): 2,
    int(StorageTier.EXTERNAL): 2,
}
_RESULTS: Final = {
    StoreResult.ORPHAN: KvEventResult.ORPHAN,
    StoreResult.OVER_CAPACITY: KvEventResult.OVER_CAPACITY,
    StoreResult.SELF_PARENT: KvEventResult.SELF_PARENT,
}


def apply_batch(state: KvState, fact: tuple[Any, ...], fleet: KvFleet, notices: list[Notice]) -> None:
    """Take one KvBatchReceived. fleet: as of its record."""
    namespace, publisher_id, _connection, _covers_from, _sequence, heads, hashes, _, _ = fact
    key = namespace, publisher_id
    publisher = state.publishers.by_key.get(key)
    if publisher is None or publisher.generation != fleet.generation or publisher.down_at is not None:
        publisher = state.heard(key, fleet, notices)
        if publisher is None:
            notices.append(KvNotice(KvEventResult.OVER_CAPACITY, *key, len(heads) // _HEAD_BYTES))
            return
    results: dict[KvEventResult, int] = {}
    if len(heads) % _HEAD_BYTES:
        heads = heads[: len(heads) // _HEAD_BYTES * _HEAD_BYTES]
        results[KvEventResult.MALFORMED] = 1
    applied = _apply_events(state, publisher, heads, hashes, fleet, results, notices)
    if not publisher.is_changed:
        state.publishers.change(publisher)
    if applied:
        notices.append(_new(KvNotice, (KvEventResult.APPLIED, namespace, publisher_id, applied)))
    if results:
        for result in sorted(results):
            notices.append(KvNotice(result, *key, results[result]))


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
    heads: bytes,
    hashes: bytes,
    fleet: KvFleet,
    results: dict[KvEventResult, int],
    notices: list[Notice],
) -> int:
    """Take events in order; how many were applied. results: gets the numbers of all others."""
    indexes, side = state.indexes, state.side if state.has_side else None
    device, worker, claimed, is_feeder = indexes[0], -1, -1, False
    position, end, applied = 0, len(hashes), 0
    feed: Feed
    rank: KvRank
    for worker_id, dp_rank, event_id, operation, tier, has_parent, blocks in _unpack(heads):
        start = position
        if operation == _STORED:
            tokens_at = start + 8 if has_parent else start
            names_at = tokens_at + (blocks << 3)
            position = names_at + (blocks << 3)
        elif operation == _REMOVED:
            position = start + (blocks << 3)
        elif operation != _CLEARED:
            position = end + 1
        if position > end:  # where the next event's columns begin is not known
            _count(results, KvEventResult.MALFORMED)
            return applied
        if worker_id != worker or dp_rank != claimed:
            found = publisher.resolved.get((worker_id, dp_rank)) or state.feed_of(
                publisher, worker_id, dp_rank, fleet
            )
            if not isinstance(found, Feed):
                _count(results, found)
                continue
            feed, rank, worker, claimed = found, found.rank, worker_id, dp_rank
            is_feeder = rank.feeders[0] is publisher
        if event_id != feed.last_event_id + 1 and not _may_jump(
            state, publisher, feed, event_id, operation, results, notices
        ):
            continue
        feed.last_event_id = event_id
        index = device
        if tier != _DEVICE or not is_feeder:
            place = _place(state, publisher, feed, tier, results, notices)
            is_feeder = rank.feeders[0] is publisher
            if place < 0:
                continue
            index = indexes[place]
        if operation == _STORED:
            tokens = hashes[tokens_at:names_at]
            parent = hashes[start:tokens_at] if has_parent else None
            taken = index.stored(rank.slot, parent, tokens, hashes[names_at:position])
            if side is not None and index is device:
                side.stored(rank.key, tokens)
            if taken is not APPLIED:
                _count(results, _RESULTS[taken.result])
                if taken.result is StoreResult.ORPHAN and index is device:
                    _tell_orphan(rank, notices)
                continue
        elif operation == _REMOVED:
            if blocks and index.removed(rank.slot, hashes[start:position]) == blocks:
                _count(results, KvEventResult.UNKNOWN_REMOVED)
                continue
        else:
            state.clear_tier(feed, indexes.index(index), notices)
        applied += 1
    if position != end:
        _count(results, KvEventResult.MALFORMED)
    return applied


def _may_jump(
    state: KvState,
    publisher: KvPublisher,
    feed: Feed,
    event_id: int,
    operation: int,
    results: dict[KvEventResult, int],
    notices: list[Notice],
) -> bool:
    """Whether an event that does not follow the cursor is taken; a gap has cleared the rank then."""
    if feed.last_event_id == NO_EVENT:
        return True
    if event_id <= feed.last_event_id:
        _count(results, KvEventResult.REPLAY)
        return False
    state.clear_feed(publisher, feed, ClearCause.GAP, notices)
    if operation != _CLEARED:
        _count(results, KvEventResult.GAP)
    return True


def _place(
    state: KvState,
    publisher: KvPublisher,
    feed: Feed,
    tier: int,
    results: dict[KvEventResult, int],
    notices: list[Notice],
) -> int:
    """Number of the index that an event of this tier goes to, -1 where it counts nowhere."""
    place = _PLACES.get(tier)
    if place is None:
        _count(results, KvEventResult.MALFORMED)
    elif place >= state.tiers:
        _count(results, KvEventResult.OTHER_TIER)
    elif not state.may_feed(publisher, feed, place, notices):
        _count(results, KvEventResult.DISPLACED)
    else:
        return place
    return -1


def _tell_orphan(rank: KvRank, notices: list[Notice]) -> None:
    """Tell it of the rank too, once for events in a row."""
    notice = BlocksOrphaned(*rank.key)
    if not notices or notices[-1] != notice:
        notices.append(notice)


def _count(results: dict[KvEventResult, int], result: KvEventResult) -> None:
    """One more event of this result."""
    results[result] = results.get(result, 0) + 1


assert len(KvBatchReceived._fields) == 9, "apply_batch unpacks every field"
