"""What is known of a publisher of kv-events: its cursors, and since when it was not heard.

A cursor is the newest event id taken from one publisher for one rank. Ids count up by one,
so one that is not above the cursor was seen, and one beyond the next says that events were
missed. Cursors outlive reconnects and outages (requirement rows BRS-06, BRS-15); they go with
the rank, with the publisher, and when the publisher begins to speak for another rank.

A publisher is down from the record that says so to its next connect or batch. While the log
was silent nobody listened: with a new owner all are down since the newest record of the old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from projections.bounds import (
    KV_CURSORS_MAX,
    KV_CURSORS_PER_SUBSCRIPTION_MAX,
    KV_PUBLISHERS_MAX,
)
from projections.events.codec import encode_value
from projections.identity import U64_MAX
from projections.registry.join import RankBinding

if TYPE_CHECKING:
    from projections.kv.ranks import KvRank

TIERS: Final = 3  # that are indexed apart: device, host, and what lies beyond
NO_EVENT: Final = -1

_xxh3 = xxhash.xxh3_64_intdigest


class Feed:
    """What a publisher told of one rank.

    last_event_id: the cursor, NO_EVENT before the first. displaced: bit t is set once a newer
    publisher has taken over tier t.
    """

    __slots__ = ("displaced", "last_event_id", "rank")

    def __init__(self, rank: KvRank) -> None:
        self.rank = rank
        self.last_event_id = NO_EVENT
        self.displaced = 0


class KvPublisher:
    """One publisher of kv-events. Only this folder changes it.

    down_at: log time since which it is not heard, None while it is. binding: the rank that it
    speaks for where that overrides what its events say. bound_to: the worker that its event source
    names. fed: by tier, the slots that it feeds,
    as bitmasks. resolved: (worker id, rank in the event) -> feed, as of `generation` of the
    fleet, None where the rank is not live.
    """

    __slots__ = (
        "binding",
        "bound_to",
        "down_at",
        "fed",
        "feeds",
        "generation",
        "is_changed",
        "key",
        "resolved",
        "word",
    )

    def __init__(self, key: tuple[str, int], binding: RankBinding | None) -> None:
        self.key = key
        self.binding = binding
        self.bound_to: int | None = None
        self.down_at: int | None = None
        self.fed = [0] * TIERS
        self.feeds: dict[tuple[int, int], Feed] = {}
        self.generation = -1
        self.resolved: dict[tuple[int, int], Feed | None] = {}
        self.is_changed = False
        self.word = 0

    def rows(self) -> tuple[tuple[int, int, int, int], ...]:
        """(worker id, rank, cursor, displaced tiers) of every feed, in order of rank."""
        return tuple(
            (*rank, self.feeds[rank].last_event_id, self.feeds[rank].displaced) for rank in sorted(self.feeds)
        )

    def new_word(self) -> int:
        """What the digest holds of it."""
        word: int = _xxh3(encode_value(("publisher", *self.key, self.down_at, self.binding, self.rows())))
        return word


class Publishers:
    """The table of them, at most KV_PUBLISHERS_MAX, with at most KV_CURSORS_MAX cursors.

    by_key: all of them. down: those that are not heard. bound: by worker, the names of those
    whose event source speaks of it, whether or not that counts.
    """

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, int], KvPublisher] = {}
        self.down: dict[tuple[str, int], KvPublisher] = {}
        self.bound: dict[tuple[str, int], dict[tuple[str, int], None]] = {}
        self._cursors = 0
        self._changed: list[KvPublisher] = []
        self._digest = 0

    def open(self, key: tuple[str, int], binding: RankBinding | None) -> KvPublisher | None:
        """A new publisher, None where there is no room; one without any cursor gives way."""
        if len(self.by_key) >= KV_PUBLISHERS_MAX:
            idle = min((k for k, known in self.by_key.items() if not known.feeds), default=None)
            if idle is None:
                return None
            self.close(self.by_key[idle])
        publisher = self.by_key[key] = KvPublisher(key, binding)
        self.change(publisher)
        return publisher

    def close(self, publisher: KvPublisher) -> None:
        """Nothing is known of it any more. It must feed no rank."""
        for feed in publisher.feeds.values():
            del feed.rank.heard[publisher.key]
        self._cursors -= len(publisher.feeds)
        del self.by_key[publisher.key]
        self.down.pop(publisher.key, None)
        self.bind(publisher, None)
        publisher.is_changed = False
        self._digest = (self._digest - publisher.word) & U64_MAX

    def bind(self, publisher: KvPublisher, worker_id: int | None) -> None:
        """The publisher's event source speaks of this worker."""
        namespace, before = publisher.key[0], publisher.bound_to
        if before == worker_id:
            return
        if before is not None:
            names = self.bound[(namespace, before)]
            del names[publisher.key]
            if not names:
                del self.bound[(namespace, before)]
        publisher.bound_to = worker_id
        if worker_id is not None:
            self.bound.setdefault((namespace, worker_id), {})[publisher.key] = None

    def has_room_for_cursor(self, publisher: KvPublisher) -> bool:
        """Whether this publisher may tell of one more rank."""
        return len(publisher.feeds) < KV_CURSORS_PER_SUBSCRIPTION_MAX and self._cursors < KV_CURSORS_MAX

    def open_feed(self, publisher: KvPublisher, rank: KvRank) -> Feed:
        """The publisher begins to tell of a rank."""
        feed = publisher.feeds[rank.key[1:]] = Feed(rank)
        rank.heard[publisher.key] = None
        self._cursors += 1
        self.change(publisher)
        return feed

    def close_feed(self, publisher: KvPublisher, rank: KvRank) -> None:
        """Its cursor for the rank goes. It must not feed the rank."""
        del publisher.feeds[rank.key[1:]]
        del rank.heard[publisher.key]
        publisher.resolved.clear()
        self._cursors -= 1
        self.change(publisher)

    def cut_off(self, publisher: KvPublisher, since: int) -> None:
        """Nobody hears it from this log time on; one that was not heard before stays as it was."""
        if publisher.down_at is None:
            publisher.down_at = since
            self.down[publisher.key] = publisher
            self.change(publisher)

    def hear(self, publisher: KvPublisher) -> None:
        """It is heard."""
        if publisher.down_at is not None:
            publisher.down_at = None
            del self.down[publisher.key]
            self.change(publisher)

    def change(self, publisher: KvPublisher) -> None:
        """The publisher's word in the digest is out of date."""
        if not publisher.is_changed:
            publisher.is_changed = True
            self._changed.append(publisher)

    @property
    def digest(self) -> int:
        """Sum modulo 2^64 of a word for each publisher, brought up to date here."""
        total = self._digest
        for publisher in self._changed:
            if publisher.is_changed:
                total -= publisher.word
                publisher.word = publisher.new_word()
                publisher.is_changed = False
                total += publisher.word
        self._changed.clear()
        self._digest = total & U64_MAX
        return self._digest
