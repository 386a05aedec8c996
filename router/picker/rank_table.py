"""Candidates of a phase as columns, for rules that judge all ranks at once.

A row costs a microsecond to make and to take apart again; a pick of 1,024 ranks would spend
most of its time on rows that nobody reads. So the prefix-aware rule works on columns, packs
them as they stand, and makes a row only of candidates that somebody asks for. What never
changes while a fleet stands (who the ranks are, and the bytes that say so) is kept with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, overload

from projections.events.picks import ExcludedReason, Verdict
from projections.registry.fleet import Fleet, Worker
from projections.view import DeviceDepths
from router.picker.candidates import remember
from router.picker.rows import (
    ALL_KNOWN,
    LAYOUT_PREFIX,
    TABLES_REMEMBERED,
    CandidateRow,
    bounded,
    named,
    pack_rows,
    without_none,
)

FLAW_NO_SIZE = 16  # a bit
_FRESH = bytes((Verdict.FRESH,))
_new: Any = tuple.__new__


class Roster(NamedTuple):
    """The ranks of some workers in canonical order; never empty.

    keys: (namespace, instance id, dp rank). owners: the worker of each rank.
    usable_sizes: its block size, 1 where none is usable.
    ranges: ranks of each worker. starts: place of each worker's first rank.
    place_of: (namespace, instance id, dp rank) -> place.
    head, places, identities: the bytes of a packed table that are always the same.
    """

    keys: tuple[tuple[str, int, int], ...]
    owners: tuple[Worker, ...]
    usable_sizes: tuple[int, ...]
    flaws: bytes
    has_one_size: bool
    ranges: tuple[range, ...]
    starts: tuple[int, ...]
    place_of: dict[tuple[str, int, int], int]
    head: bytes
    places: bytes
    identities: bytes


def roster_of(fleet: Fleet, workers: tuple[Worker, ...], key: tuple[object, ...]) -> Roster:
    """The roster of `workers`, worked out once for a fleet. key: what names these workers there."""
    found: Roster | None = fleet.derived.get(key)
    if found is None:
        found = _roster(workers)
        remember(fleet, key, found)
    return found


class SlotPlaces(NamedTuple):
    """Slots of the index and places of a roster.

    of_slot: the place of each slot, -1 of those that have none there. mask: slots that have one.
    unslotted: places without a slot, ascending.
    """

    of_slot: list[int]
    mask: int
    unslotted: tuple[int, ...]


def slot_places(fleet: Fleet, roster: Roster, depths: DeviceDepths) -> SlotPlaces:
    """Where the slots of the index stand in the roster, worked out once while both stay the same."""
    key = ("slots", depths.generation, roster.head, roster.places, roster.identities)
    found: SlotPlaces | None = fleet.derived.get(key)
    if found is None:
        of_slot = [roster.place_of.get(name, -1) for name in depths.names]
        mask = sum(1 << slot for slot, place in enumerate(of_slot) if place >= 0)  # integers
        slotted = frozenset(of_slot)
        unslotted = tuple(place for place in range(len(roster.owners)) if place not in slotted)
        found = SlotPlaces(of_slot, mask, unslotted)
        remember(fleet, key, found)
    return found


def _roster(workers: tuple[Worker, ...]) -> Roster:
    keys = tuple((*worker.key, dp_rank) for worker in workers for dp_rank in worker.ranks())
    owners = tuple(worker for worker in workers for _ in worker.ranks())
    starts = []
    start = 0
    for worker in workers:
        starts.append(start)
        start += worker.dp_size
    sizes = tuple(max(owner.block_size or 1, 1) for owner in owners)
    head, places = named(tuple(key[0] for key in keys), LAYOUT_PREFIX)
    ranks, instances = [key[2] for key in keys], [key[1] for key in keys]
    count = len(keys)
    return Roster(
        keys,
        owners,
        sizes,
        bytes([0 if (owner.block_size or 0) > 0 else FLAW_NO_SIZE for owner in owners]),
        sizes.count(sizes[0]) == len(sizes),
        tuple(worker.ranks() for worker in workers),
        tuple(starts),
        {key: place for place, key in enumerate(keys)},
        head + struct.pack("<I", count),
        places,
        struct.pack(f"<{count}I{count}Q", *bounded("I", ranks), *bounded("Q", instances)),
    )


class RankTable(Sequence[CandidateRow]):
    """The candidates of one phase, judged with the prefix term. Columns in the order of the roster."""

    __slots__ = (
        "active_decode", "active_prefill", "ages", "costs", "credits", "disk", "excluded", "host", "overlaps",
        "predicted", "roster", "unanswered_blocks", "unanswered_tokens", "verdicts",
    )  # fmt: skip

    def __init__(self, roster: Roster) -> None:
        """A table whose other columns are set by whoever judges."""
        count = len(roster.owners)
        self.roster = roster
        self.costs: Sequence[float | None] = ()
        self.active_prefill: Sequence[int | None] = ()
        self.active_decode: Sequence[int | None] = ()
        self.ages: Sequence[int | None] = ()
        self.unanswered_tokens = [0] * count
        self.unanswered_blocks = [0] * count
        self.verdicts = bytearray(_FRESH) * count
        self.excluded = bytearray(count)
        self.overlaps = [0] * count
        self.host = [0] * count
        self.disk = [0] * count
        self.predicted = [0] * count
        self.credits = [0.0] * count

    def __len__(self) -> int:
        return len(self.verdicts)

    @overload
    def __getitem__(self, place: int) -> CandidateRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[CandidateRow]: ...
    def __getitem__(self, place: int | slice) -> CandidateRow | list[CandidateRow]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        fields = (
            *self.roster.keys[place], self.costs[place],
            self.active_prefill[place], self.active_decode[place],
            self.unanswered_tokens[place], self.unanswered_blocks[place],
            self.ages[place], Verdict(self.verdicts[place]), ExcludedReason(self.excluded[place]),
            self.overlaps[place],
            self.host[place], self.disk[place], self.predicted[place], self.credits[place],
        )  # fmt: skip
        row: CandidateRow = _new(CandidateRow, fields)
        return row

    def pack(self) -> bytes:
        """The bytes that `pack_rows` makes of its rows."""
        roster, count = self.roster, len(self.verdicts)
        wholes = (
            self.unanswered_tokens, self.unanswered_blocks, self.overlaps, self.host, self.disk,
            self.predicted,
        )  # fmt: skip
        known = bytes((ALL_KNOWN,)) * count
        optional = self.costs, self.active_prefill, self.active_decode, self.ages
        try:
            parts = _packed(count, *optional, *wholes, self.credits)
        except struct.error:  # something is unknown, or wider than its column
            known, filled = without_none(optional, count)
            whole = [bounded("Q", column) for column in (*filled[1:], *wholes)]
            parts = _packed(count, filled[0], *whole, self.credits)
        return b"".join(
            (roster.head, roster.places, known, self.verdicts, self.excluded, roster.identities, parts)
        )


def costs_of(rows: Sequence[CandidateRow]) -> Sequence[float | None]:
    """The cost of each row."""
    return rows.costs if isinstance(rows, RankTable) else [row[3] for row in rows]


def packed(rows: Sequence[CandidateRow]) -> bytes:
    """The bytes of a table, however it is held."""
    return rows.pack() if isinstance(rows, RankTable) else pack_rows(rows)


@lru_cache(TABLES_REMEMBERED)
def _numbers(count: int) -> struct.Struct:
    """The numbers of so many rows, behind ranks and instance ids."""
    return struct.Struct(f"<{count}d{9 * count}Q{count}d")


def _packed(count: int, *columns: Sequence[Any]) -> bytes:
    """costs, prefill, decode, ages, tokens, blocks, overlaps, host, disk, predicted, credits."""
    # written out: one call with many stars is twice as fast as a chain
    a, b, c, d, e, f, g, h, i, j, k = columns
    return _numbers(count).pack(*a, *b, *c, *e, *f, *d, *g, *h, *i, *j, *k)
