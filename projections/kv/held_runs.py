"""The index said in canonical pieces, for checkpoints: equal states give equal sequences of `RunHeld`.

How the index happens to keep its paths leaves no trace: pieces follow from the paths alone, the order from
tokens hashes, and names are told apart from those of the lowest rank that holds a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from projections.bounds import KIB, KV_PIECE_BLOCKS_MAX
from projections.events.held import RunHeld
from projections.kv.columns import members
from projections.kv.runs import Run, Slot

RECORD_BYTES = 512 * KIB
"""What is said of ranks in one record, about; more goes into further records of the same piece."""


class _Part(NamedTuple):
    """Positions `low`..`high`-1 of a run, which are `base`.. of the piece."""

    run: Run
    low: int
    high: int
    base: int


class RankTable:
    """Masks of slots as masks of numbers of a table, and back: number i stands for `slots[i]`."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.slots = slots
        self.numbers = {slot: number for number, slot in enumerate(slots)}
        self._same = list(slots) == list(range(len(slots)))
        self._known: dict[int, int] = {}

    def to_table(self, mask: int) -> int:
        """The mask of numbers for a mask of slots, which must all be in the table."""
        return mask if self._same else self._mapped(mask, self.numbers)

    def to_slots(self, mask: int) -> int:
        """The mask of slots for a mask of numbers."""
        if mask.bit_length() > len(self.slots):
            raise ValueError("a rank that the table does not have")
        return mask if self._same else self._mapped(mask, self.slots)

    def _mapped(self, mask: int, names: Mapping[int, int] | Sequence[int]) -> int:
        known = self._known.get(mask)
        if known is None:
            known = 0
            for member in members(mask):
                known |= 1 << names[member]
            if len(self._known) > 4096:
                self._known.clear()
            self._known[mask] = known
        return known


def held_runs(
    root: Run, slots: Mapping[int, Slot], order: Sequence[int], piece_blocks: int = KV_PIECE_BLOCKS_MAX
) -> Iterator[RunHeld]:
    """All that `slots` hold below `root`. order: the slots in the canonical order of their ranks."""
    table = RankTable(order)
    for depth, parts in _pieces(root, piece_blocks):
        yield from _records(_Piece(parts, slots, table), depth)


def _pieces(root: Run, blocks: int) -> Iterator[tuple[int, list[_Part]]]:
    """(depth, parts) of each piece, depth first by tokens hash."""
    waiting = [(0, root.kids[first]) for first in sorted(root.kids, reverse=True)]
    while waiting:
        depth, run = waiting.pop()
        parts: list[_Part] = []
        size = low = 0
        while True:
            high = min(run.size, low + blocks - size)
            parts.append(_Part(run, low, high, size))
            size += high - low
            low = high
            if low == run.size:
                if len(run.kids) != 1:
                    break
                (run,) = run.kids.values()
                low = 0
            if size == blocks:
                yield depth, parts
                depth += size
                parts, size = [], 0
        yield depth, parts
        depth += size
        waiting += [(depth, run.kids[first]) for first in sorted(run.kids, reverse=True)]


class _Piece:
    """One piece: its columns, who holds which blocks, and who calls them otherwise."""

    def __init__(self, parts: list[_Part], slots: Mapping[int, Slot], table: RankTable) -> None:
        self._parts = parts
        self._slots = slots
        self._table = table
        self.size = parts[-1].base + parts[-1].high - parts[-1].low
        self.tokens = b"".join(part.run.tokens[part.low << 3 : part.high << 3] for part in parts)
        everywhere = -1
        for part in parts:
            everywhere &= part.run.full
        self.full = table.to_table(everywhere)
        self.groups = self._grouped(everywhere)
        self.owned = (1 << self.size) - 1 if self.full else 0
        for bits in self.groups:
            self.owned |= bits
        self.others: list[tuple[int, bytes, bytes]] = []
        self.further: list[tuple[int, int, bytes]] = []
        self.names = b"".join(map(self._names_of, parts))
        self.others = _by_rank(self.others)
        self.further.sort()

    def _grouped(self, everywhere: int) -> dict[int, int]:
        """{blocks: mask of the ranks that hold just these}, for ranks that do not hold all; else `full`."""
        held: dict[int, int] = {}
        for part in self._parts:
            run, ones = part.run, (1 << part.high - part.low) - 1
            for number in members(run.full & ~everywhere):
                held[number] = held.get(number, 0) | ones << part.base
            for number in members(run.partial):
                bits = run.bits_of(self._slots[number]) >> part.low & ones
                if bits:
                    held[number] = held.get(number, 0) | bits << part.base
        groups: dict[int, int] = {}
        for number, bits in held.items():
            groups[bits] = groups.get(bits, 0) | 1 << number
        ranks = {bits: self._table.to_table(mask) for bits, mask in groups.items()}
        self.full |= ranks.pop((1 << self.size) - 1, 0)
        return ranks

    def _names_of(self, part: _Part) -> bytes:
        """The names by which the lowest rank calls the blocks; notes who calls them otherwise."""
        run, low, high, base = part
        if run.own_names is None and not run.void:
            names = bytes(run.names[low << 3 : high << 3])
            missing = ~self.owned >> base & (1 << high - low) - 1
            if missing:
                for at in members(missing):
                    names = names[: at << 3] + bytes(8) + names[(at << 3) + 8 :]
            return names
        ones = (1 << high) - (1 << low)
        main: dict[int, bytes] = {}
        for number in sorted(self._table.numbers[slot] for slot in members(run.full | run.partial)):
            slot = self._slots[self._table.slots[number]]
            differing: dict[int, bytes] = {}
            for at in members(run.bits_of(slot) & ones):
                names_here = _names_at(run, slot, at)
                first = main.setdefault(at, names_here[0])
                if first in names_here:
                    names_here.remove(first)
                else:
                    differing[at] = names_here.pop(0)
                self.further += [(number, base + at - low, name) for name in names_here]
            if differing:
                bits = 0
                for at in differing:
                    bits |= 1 << base + at - low
                self.others.append((number, mask_bytes(bits), b"".join(differing.values())))
        return b"".join(main.get(at, bytes(8)) for at in range(low, high))


def _names_at(run: Run, slot: Slot, at: int) -> list[bytes]:
    """The names by which the slot calls a block that it holds, ascending."""
    names = [bytes(run.names_of(slot)[at << 3 : (at + 1) << 3])]
    own = None if run.own_names is None else run.own_names.get(slot.number)
    if own is not None and at in own.others:
        names = sorted([*names, *own.others[at]])
    return names


def _by_rank(others: list[tuple[int, bytes, bytes]]) -> list[tuple[int, bytes, bytes]]:
    """One entry for each rank, of entries in the order of blocks, ascending."""
    joined: dict[int, tuple[int, bytes]] = {}
    for number, bits, names in others:
        before = joined.get(number, (0, b""))
        joined[number] = (before[0] | mask_of(bits), before[1] + names)
    return [(number, mask_bytes(bits), names) for number, (bits, names) in sorted(joined.items())]


def _records(piece: _Piece, depth: int) -> Iterator[RunHeld]:
    """The records of one piece, none much larger than RECORD_BYTES."""
    tokens, names, full = piece.tokens, piece.names, mask_bytes(piece.full)
    parts = [(mask_bytes(bits), mask_bytes(mask)) for bits, mask in sorted(piece.groups.items())]
    for some in _slices(parts, piece.others, piece.further):
        yield RunHeld(depth, tokens, names, full, *some)
        tokens = names = full = b""


_Some = tuple[
    tuple[tuple[bytes, bytes], ...],
    tuple[tuple[int, bytes, bytes], ...],
    tuple[tuple[int, int, bytes], ...],
]


def _slices(
    parts: list[tuple[bytes, bytes]],
    others: list[tuple[int, bytes, bytes]],
    further: list[tuple[int, int, bytes]],
) -> Iterator[_Some]:
    """The three lists in slices of about RECORD_BYTES, at least one slice."""
    size = 0
    starts = [0, 0, 0]
    for which, sizes in enumerate(
        (
            [len(bits) + len(mask) + 16 for bits, mask in parts],
            [len(bits) + len(names) + 16 for _, bits, names in others],
            [24] * len(further),
        )
    ):
        for at, more in enumerate(sizes):
            if size + more > RECORD_BYTES:
                ends = [len(parts) if which > 0 else at, len(others) if which > 1 else at, at]
                ends[which + 1 :] = starts[which + 1 :]
                yield _cut(parts, others, further, starts, ends)
                starts, size = ends, 0
            size += more
    yield _cut(parts, others, further, starts, [len(parts), len(others), len(further)])


def _cut(
    parts: list[tuple[bytes, bytes]],
    others: list[tuple[int, bytes, bytes]],
    further: list[tuple[int, int, bytes]],
    starts: list[int],
    ends: list[int],
) -> _Some:
    return (
        tuple(parts[starts[0] : ends[0]]),
        tuple(others[starts[1] : ends[1]]),
        tuple(further[starts[2] : ends[2]]),
    )


def mask_bytes(mask: int) -> bytes:
    """A mask as bytes, little-endian, without zero bytes at the end."""
    return mask.to_bytes(mask.bit_length() + 7 >> 3, "little")


def mask_of(data: bytes) -> int:
    """The mask that `mask_bytes` wrote."""
    return int.from_bytes(data, "little")
