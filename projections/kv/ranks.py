"""The ranks whose blocks are known, and the number that each has in the index.

A rank gets a slot, a small number, when the first event or prediction of it comes, and
keeps it until it has left the fleet and its memory is reclaimed. Slots are handed out
anew, lowest first; nothing that a pick or a digest sees depends on them. One slot serves
the rank in the index of every tier.

A rank that leaves the fleet is *departed*: no question sees it from that record on, while
what the index holds of it stays until its turn of reclaiming comes (decision 25).

Who tells of a rank: for each tier the newest publisher that spoke of it, its feeder. The
engine may publish the blocks on its device and an offloader those in host memory, each
from a socket of its own; two that publish one tier would contradict each other, so there
the newer one counts alone (requirement rows KVX-14, DYN-23).
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush
from typing import Final

import xxhash

from projections.bounds import KV_RANKS_MAX
from projections.events.codec import encode_value
from projections.identity import U64_MAX, RankKey
from projections.kv.cursors import TIERS, KvPublisher

_xxh3 = xxhash.xxh3_64_intdigest
_NOBODY: Final = (None,) * TIERS


class KvRank:
    """One rank of which blocks may be known. Only this folder changes it.

    slot, bit: its number in the index, and that as a bitmask. feeders: by tier. heard:
    names of publishers with a cursor here.
    """

    __slots__ = ("bit", "departed", "feeders", "heard", "key", "slot", "word")

    def __init__(self, key: RankKey, slot: int) -> None:
        self.key = key
        self.slot = slot
        self.bit = 1 << slot
        self.feeders: list[KvPublisher | None] = [*_NOBODY]
        self.heard: dict[tuple[str, int], None] = {}
        self.departed = False
        self.word = 0

    def feeder_ids(self) -> tuple[int | None, ...]:
        """Publisher ids of the feeders by tier."""
        return tuple(None if feeder is None else feeder.key[1] for feeder in self.feeders)


class Ranks:
    """The table of them. At most `ranks_max`, departed ones that are not reclaimed included.

    generation: another one whenever a slot has begun or ceased to stand for a rank.
    """

    def __init__(self, ranks_max: int = KV_RANKS_MAX, generation: int = 0) -> None:
        self.generation = generation
        self.departed: list[RankKey] = []  # in order
        self.names: list[RankKey] = []  # by slot; of a free slot the name that it had
        self._ranks_max = ranks_max
        self._ranks: dict[tuple[str, int, int], KvRank] = {}
        self._workers: dict[tuple[str, int], dict[int, KvRank]] = {}
        self._free: list[int] = []
        self._changed: dict[tuple[str, int, int], None] = {}
        self._digest = 0

    def __len__(self) -> int:
        """Ranks in the table."""
        return len(self._ranks)

    def get(self, key: tuple[str, int, int]) -> KvRank | None:
        """A rank by name."""
        return self._ranks.get(key)

    def of_worker(self, namespace: str, instance_id: int) -> list[KvRank]:
        """A worker's ranks in order."""
        ranks = self._workers.get((namespace, instance_id), {})
        return [ranks[dp_rank] for dp_rank in sorted(ranks)]

    def in_order(self) -> list[KvRank]:
        """All of them by name."""
        return [self._ranks[key] for key in sorted(self._ranks)]

    def open(self, key: RankKey) -> KvRank | None:
        """A new rank in the lowest free slot, None where there is no room. Its name must be free."""
        if len(self._ranks) >= self._ranks_max:
            return None
        if self._free:
            slot = heappop(self._free)
        else:
            slot = len(self.names)
            self.names.append(key)
        self.names[slot] = key
        rank = self._ranks[key] = KvRank(key, slot)
        self._workers.setdefault(key[:2], {})[key.dp_rank] = rank
        self.generation += 1
        self.change(rank)
        return rank

    def depart(self, rank: KvRank) -> None:
        """Nobody sees it from here on."""
        rank.departed = True
        insort(self.departed, rank.key)
        self.generation += 1
        self.change(rank)

    def close(self, rank: KvRank) -> None:
        """Take it out of the table; its slot is free."""
        key = rank.key
        if rank.departed:
            self.departed.remove(key)
        del self._ranks[key]
        ranks = self._workers[key[:2]]
        del ranks[key.dp_rank]
        if not ranks:
            del self._workers[key[:2]]
        heappush(self._free, rank.slot)
        self.generation += 1
        self._changed.pop(key, None)
        self._digest = (self._digest - rank.word) & U64_MAX

    def change(self, rank: KvRank) -> None:
        """Its feeders or whether it departed have changed."""
        self._changed[rank.key] = None

    @property
    def digest(self) -> int:
        """Sum modulo 2^64 of a word for each rank, brought up to date here."""
        total = self._digest
        for key in self._changed:
            rank = self._ranks[key]
            total -= rank.word
            rank.word = _xxh3(encode_value(("rank", *key, rank.departed, rank.feeder_ids())))
            total += rank.word
        self._changed.clear()
        self._digest = total & U64_MAX
        return self._digest
