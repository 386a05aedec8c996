"""What the index is made of: runs of blocks, the slots that hold them, and names of their own.

A run is a path of blocks that nothing branches off but at its end. Who holds which of its positions is
said in three ways, of which each slot uses one at most: `full` (every position), `cuts` (a proper prefix,
by its length) and `ragged` (anything else). Prefixes are what engines leave, since they evict tails first;
kept by length they are answered a whole mask of slots at a time.

The engine's own hash of a block is here called its name. `names` are the canonical ones, of whoever came
first; a slot whose engine hashes in another way has an `OwnNames` in the run. A slot without one calls
every position that it holds by the canonical name, and by no other.
"""

from __future__ import annotations

from projections.kv.columns import SUM_MODULUS, Column, find_word, leading_ones, members, word_sum

NO_RUNS: dict[bytes, Run] = {}
"""The children of a run that has none; never written to."""

SUMS_KEPT_MAX = 8
"""Prefixes of a run of which the sums are kept."""

PENDING_BYTES_MAX = 4096
"""A column that waits to be added up is added up when it is longer than this."""


class OwnNames:
    """One slot's names in one run, where they are not the canonical ones.

    names: a word for each position, of which those that the slot does not hold mean nothing.
    further: second names of held positions, {name: position}; `others` has them by position.
    """

    __slots__ = ("further", "names", "others")

    def __init__(self, names: bytes) -> None:
        self.names = names
        self.further: dict[bytes, int] = {}
        self.others: dict[int, dict[bytes, None]] = {}

    def rename(self, at: int, column: bytes) -> None:
        """Put `column` at position `at`."""
        self.names = self.names[: at << 3] + column + self.names[(at << 3) + len(column) :]

    def add_further(self, at: int, name: bytes) -> None:
        """Position `at` has `name` too."""
        self.further[name] = at
        self.others.setdefault(at, {})[name] = None

    def drop_further(self, at: int, name: bytes) -> None:
        """Position `at` has `name` no longer, which was a second one."""
        del self.further[name]
        del self.others[at][name]
        if not self.others[at]:
            del self.others[at]

    def promote(self, at: int) -> bytes:
        """Let a second name of the position, which has one, be its first; returns it."""
        other, _ = self.others[at].popitem()
        del self.further[other]
        if not self.others[at]:
            del self.others[at]
        self.rename(at, other)
        return other


class Slot:
    """What one rank holds. key_word: its identity in the digest.

    runs: where it holds anything (a dict for its order). elsewhere: those of its names that `Index`
    cannot find as canonical ones, with their run. names: how many names it has, `further` of them second
    names; so it holds names - further blocks.
    """

    __slots__ = (
        "bit",
        "elsewhere",
        "entry",
        "further",
        "key_word",
        "names",
        "names_in",
        "names_out",
        "names_sum",
        "number",
        "opened",
        "runs",
        "tokens_in",
        "tokens_out",
        "tokens_sum",
    )

    def __init__(self, number: int, key_word: int) -> None:
        self.number = number
        self.bit = 1 << number
        self.key_word = key_word
        self.empty()

    def empty(self) -> None:
        """Hold nothing; the runs must have been told before."""
        self.runs: dict[Run, None] = {}
        self.elsewhere: dict[bytes, Run] = {}
        self.opened: dict[Run, int] = {}
        self.names = self.further = 0
        self.names_sum = self.tokens_sum = 0
        self.names_in, self.names_out = bytearray(), bytearray()
        self.tokens_in, self.tokens_out = bytearray(), bytearray()
        self.entry: int | None = 0

    def count_opened(self, run: Run) -> None:
        """Let what came behind the end of an open run come in."""
        counted = self.opened[run]
        if counted < run.size:
            self.names_in += run.names[counted << 3 :]
            self.tokens_in += run.tokens[counted << 3 :]
            self.opened[run] = run.size

    def is_settled(self) -> bool:
        """Whether the sums and `entry` say all that came in and went out."""
        for run in self.opened:
            self.count_opened(run)
        return self.entry is not None and not (
            self.names_in or self.names_out or self.tokens_in or self.tokens_out
        )

    def settle(self) -> None:
        """Add up the columns that came in and went out since the last time."""
        self.names_sum = (self.names_sum + word_sum(self.names_in) - word_sum(self.names_out)) % SUM_MODULUS
        self.tokens_sum = (
            self.tokens_sum + word_sum(self.tokens_in) - word_sum(self.tokens_out)
        ) % SUM_MODULUS
        self.names_in, self.names_out = bytearray(), bytearray()
        self.tokens_in, self.tokens_out = bytearray(), bytearray()
        self.entry = None


class Run:
    """Blocks in a row.

    first: the word of its first block once it hangs in the tree.
    tokens: their tokens hashes. names: their canonical names; `void` has a bit for each position whose
    word there is none. kids: the runs that go on from the last block, by their first tokens hash.
    full: mask of the slots that hold every position. partial: mask of the slots in `cuts` and `ragged`.
    cuts: {length of a held prefix: mask}, lengths in 1..size-1. ragged: {slot: bits of the held positions},
    never a prefix. own_names: by slot. sole: the slot that may lengthen this run without another look,
    since it alone holds it, by canonical names, and nothing goes on from it.
    sums: {length: sums of names and tokens hashes of this prefix}, of some prefixes, or None.
    The columns of such a run are bytearrays, so that blocks can be put behind them without a copy.
    A run that is gone from the tree has size 0 and keeps `names` until the index has forgotten them.
    """

    __slots__ = (
        "cuts",
        "first",
        "full",
        "kids",
        "names",
        "own_names",
        "parent",
        "partial",
        "ragged",
        "size",
        "sole",
        "sums",
        "tokens",
        "void",
    )

    def __init__(self, parent: Run | None, tokens: bytes, names: bytes, full: int) -> None:
        self.parent = parent
        self.first = b""
        self.tokens: Column = tokens
        self.names: Column = names
        self.size = len(tokens) >> 3
        self.void = 0
        self.kids = NO_RUNS
        self.full = full
        self.partial = 0
        self.cuts: dict[int, int] | None = None
        self.ragged: dict[int, int] | None = None
        self.own_names: dict[int, OwnNames] | None = None
        self.sole: Slot | None = None
        self.sums: dict[int, tuple[int, int]] | None = None

    def open(self, slot: Slot) -> None:
        """Let `slot`, which has counted all of the run, be `sole`."""
        slot.opened[self] = self.size
        if self.sole is not slot:
            self.sole = slot
            if isinstance(self.tokens, bytes):
                self.tokens = bytearray(self.tokens)
                self.names = bytearray(self.names)

    def close(self) -> None:
        """Let nobody be `sole`."""
        if self.sole is not None:
            self.sole.count_opened(self)
            del self.sole.opened[self]
            self.sole = None

    def seal(self) -> None:
        """The same of a run that will hardly grow again: its columns take no more room than they need."""
        self.close()
        self.tokens = bytes(self.tokens)
        self.names = bytes(self.names)

    def depth_of(self, bit: int) -> int:
        """Length of the proper prefix that the slot of `bit` holds, 0 when it holds no such."""
        if self.cuts is not None:
            for depth, mask in self.cuts.items():
                if mask & bit:
                    return depth
        return 0

    def bits_of(self, slot: Slot) -> int:
        """The positions that the slot holds, a bit each."""
        if self.full & slot.bit:
            return (1 << self.size) - 1
        if not self.partial & slot.bit:
            return 0
        if self.ragged is not None and slot.number in self.ragged:
            return self.ragged[slot.number]
        return (1 << self.depth_of(slot.bit)) - 1

    def holds(self, slot: Slot, at: int) -> bool:
        """Whether the slot holds position `at`."""
        if self.full & slot.bit:
            return True
        if not self.partial & slot.bit:
            return False
        if self.ragged is not None and slot.number in self.ragged:
            return bool(self.ragged[slot.number] >> at & 1)
        return at < self.depth_of(slot.bit)

    def sums_between(self, low: int, high: int) -> tuple[int, int]:
        """Sums of canonical names and of tokens hashes of positions `low`..`high`-1, not reduced.

        What slots hold of a shared run mostly ends where events end, so that the next slot asks the same.
        """
        known = self.sums
        if known is None:
            known = self.sums = {0: (0, 0)}
        below = known.get(low)
        above = known.get(high)
        if below is not None and above is not None:
            return above[0] - below[0], above[1] - below[1]
        names = word_sum(self.names[low << 3 : high << 3])
        tokens = word_sum(self.tokens[low << 3 : high << 3])
        if below is not None and len(known) < SUMS_KEPT_MAX:
            known[high] = (below[0] + names, below[1] + tokens)
        return names, tokens

    def leave(self, number: int, bit: int) -> None:
        """Strike the slot from the holders."""
        if self.full & bit:
            self.full ^= bit
            return
        if not self.partial & bit:
            return
        self.partial ^= bit
        if self.ragged is not None and number in self.ragged:
            del self.ragged[number]
            if not self.ragged:
                self.ragged = None
            return
        cuts = self.cuts
        assert cuts is not None
        for depth, mask in cuts.items():
            if mask & bit:
                if mask == bit:
                    del cuts[depth]
                    if not cuts:
                        self.cuts = None
                else:
                    cuts[depth] = mask ^ bit
                return

    def enter(self, number: int, bit: int, bits: int) -> None:
        """Write the slot, which is no holder, down as a holder of the positions `bits`, some of them."""
        if bits & (bits + 1):
            self.partial |= bit
            if self.ragged is None:
                self.ragged = {}
            self.ragged[number] = bits
        else:
            self.enter_prefix(bit, bits.bit_length())

    def enter_prefix(self, mask: int, depth: int) -> None:
        """Write slots, no holders yet, down as holders of the first `depth` positions, 1..size."""
        if depth == self.size:
            self.full |= mask
            return
        self.partial |= mask
        if self.cuts is None:
            self.cuts = {depth: mask}
        else:
            self.cuts[depth] = self.cuts.get(depth, 0) | mask

    def lengthen_prefix(self, bit: int, depth: int, longer: int) -> None:
        """Write a slot, down as the holder of `depth` positions, 0 for none, down as one of `longer`."""
        cuts = self.cuts
        if depth and cuts is not None:
            others = cuts[depth] ^ bit
            if others:
                cuts[depth] = others
            else:
                del cuts[depth]
                if not cuts:
                    self.cuts = None
            if longer == self.size:
                self.partial ^= bit
                self.full |= bit
                return
        self.enter_prefix(bit, longer)

    def held_to(self) -> int:
        """Behind the last position that any slot holds."""
        if self.full:
            return self.size
        top = max(self.cuts) if self.cuts else 0
        if self.ragged:
            top = max(top, max(bits.bit_length() for bits in self.ragged.values()))
        return top

    def owners_at(self, at: int) -> int:
        """How many slots hold position `at`."""
        count = self.full.bit_count()
        for depth, mask in (self.cuts or {}).items():
            if depth > at:
                count += mask.bit_count()
        return count + sum(bits >> at & 1 for bits in (self.ragged or {}).values())  # integers

    def names_of(self, slot: Slot) -> Column:
        """The column in which the slot's names stand; a word counts where the slot holds its position."""
        if self.own_names is not None:
            own = self.own_names.get(slot.number)
            if own is not None:
                return own.names
        return self.names

    def is_canonical(self, at: int, name: bytes) -> bool:
        """Whether `name` is the canonical name of position `at`."""
        return not self.void >> at & 1 and self.names.startswith(name, at << 3)

    def canonical_names(self) -> list[bytes]:
        """The words of `names` that are names."""
        column = bytes(self.names)
        return [column[at << 3 : (at + 1) << 3] for at in range(len(column) >> 3) if not self.void >> at & 1]

    def place_of(self, slot: Slot, name: bytes) -> int:
        """The position that the slot holds under `name`, -1 without one."""
        own = None if self.own_names is None else self.own_names.get(slot.number)
        if own is None:
            column = self.names
            depth = self.size if self.full & slot.bit else self.depth_of(slot.bit)
            if depth and column.startswith(name, depth - 1 << 3):
                return depth - 1
        else:
            if name in own.further:
                return own.further[name]
            column = own.names
        at = find_word(column, name)
        while at >= 0 and not self.holds(slot, at):
            at = find_word(column, name, at + 1)
        return at

    def prefix_groups(self, mask: int, depth: int) -> dict[int, int]:
        """Slots of `mask`, all partial holders, by the length of their prefix, `depth` at most."""
        groups: dict[int, int] = {}
        for cut, slots in (self.cuts or {}).items():
            slots &= mask
            if slots:
                reach = cut if cut < depth else depth
                groups[reach] = groups.get(reach, 0) | slots
        for number, bits in (self.ragged or {}).items():
            if mask >> number & 1:
                reach = min(leading_ones(bits), depth)
                groups[reach] = groups.get(reach, 0) | 1 << number
        return groups

    def holders(self) -> list[tuple[int, int]]:
        """(slot, bits of its positions) of every holder, in no order that means anything."""
        ones = (1 << self.size) - 1
        found = [(number, ones) for number in members(self.full)]
        for depth, mask in (self.cuts or {}).items():
            found += [(number, (1 << depth) - 1) for number in members(mask)]
        return found + list((self.ragged or {}).items())
