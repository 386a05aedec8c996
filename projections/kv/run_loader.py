"""An empty index filled from the pieces of a checkpoint.

Whole pieces become runs, and whole masks of ranks their holders, so that eight million ownerships cost
little more than their million nodes. What the digest adds up is added up once for all who hold a piece.
"""

from __future__ import annotations

from collections.abc import Sequence

from projections.events.held import RunHeld
from projections.kv.columns import SUM_MODULUS, members, word_sum, words
from projections.kv.held_runs import RankTable, mask_of
from projections.kv.holdings import Holdings
from projections.kv.runs import Run, Slot


class RunLoader:
    """Takes `RunHeld` facts in their order; `finish` ends it.

    slots: the open, empty slots in the order of the table that the facts speak of.
    Raises ValueError for facts that `held_runs` does not make, as far as it looks; the digest tells the rest.
    """

    def __init__(self, index: Holdings, slots: Sequence[int]) -> None:
        self._index = index
        self._table = RankTable(slots)
        self._ends: list[tuple[int, Run]] = []
        self._piece: list[RunHeld] = []

    def add(self, fact: RunHeld) -> None:
        """Take the next fact."""
        if fact.tokens:
            self.finish()
        elif not self._piece:
            raise ValueError("more of a piece that did not begin")
        self._piece.append(fact)

    def finish(self) -> None:
        """All facts of the piece at hand have come."""
        piece, self._piece = self._piece, []
        if not piece:
            return
        first = piece[0]
        if len(first.tokens) & 7 or len(first.tokens) != len(first.names):
            raise ValueError("columns of a piece differ in length")
        full = self._table.to_slots(mask_of(first.full))
        size = len(first.tokens) >> 3
        parts = [
            (mask_of(bits), self._table.to_slots(mask_of(mask)))
            for fact in piece
            for bits, mask in fact.parts
        ]
        if any(not 0 < bits < 1 << size for bits, _ in parts):
            raise ValueError("blocks outside of the piece")
        owned = (1 << size) - 1 if full else 0
        for bits, _ in parts:
            owned |= bits
        runs = self._build(first, owned)
        self._hold(runs, first, full, parts)
        self._rename(runs, first, piece)

    def _build(self, fact: RunHeld, owned: int) -> list[Run]:
        """The runs of a piece, named and not held."""
        ends = self._ends
        while ends and ends[-1][0] > fact.depth:
            ends.pop()
        above = ends[-1] if ends else (0, self._index.root)
        if above[0] != fact.depth:
            raise ValueError("a piece hangs from nothing")
        run = above[1]
        runs = []
        step = self._index.limits.run_blocks << 3
        for at in range(0, len(fact.tokens), step):
            piece = Run(run, fact.tokens[at : at + step], fact.names[at : at + step], 0)
            unowned = ~(owned >> (at >> 3)) & (1 << piece.size) - 1
            self._index.attach(run, piece, unowned)
            runs.append(piece)
            run = piece
        ends.append((fact.depth + (len(fact.tokens) >> 3), run))
        return runs

    def _hold(self, runs: list[Run], fact: RunHeld, full: int, parts: list[tuple[int, int]]) -> None:
        self._count(full, fact.names, fact.tokens)
        for bits, mask in parts:
            chosen = list(members(bits))
            names, tokens = words(fact.names), words(fact.tokens)
            self._count(mask, b"".join(names[at] for at in chosen), b"".join(tokens[at] for at in chosen))
        at = 0
        for run in runs:
            ones = (1 << run.size) - 1
            for bits, mask in [(ones, full), *((bits >> at & ones, mask) for bits, mask in parts)]:
                if not bits or not mask:
                    continue
                for number in members(mask):
                    self._slot(number).runs[run] = None
                if bits & (bits + 1):
                    for number in members(mask):
                        run.enter(number, 1 << number, bits)
                else:
                    run.enter_prefix(mask, bits.bit_length())
            at += run.size

    def _count(self, mask: int, names: bytes, tokens: bytes) -> None:
        """Every slot of `mask` holds these blocks."""
        names_sum, tokens_sum, count = word_sum(names), word_sum(tokens), len(names) >> 3
        for number in members(mask):
            slot = self._slot(number)
            slot.names += count
            slot.names_sum = (slot.names_sum + names_sum) % SUM_MODULUS
            slot.tokens_sum = (slot.tokens_sum + tokens_sum) % SUM_MODULUS
            slot.entry = None
            self._index.count_names(count)

    def _rename(self, runs: list[Run], first: RunHeld, piece: list[RunHeld]) -> None:
        """Give slots names of their own: as told, and where a canonical name is another block's."""
        renamed: dict[int, dict[int, bytes]] = {}
        further: dict[int, dict[bytes, int]] = {}
        for fact in piece:
            for rank, bits, names in fact.others:
                mine = renamed.setdefault(self._table.slots[rank], {})
                mine.update(zip(members(mask_of(bits)), words(names), strict=True))
            for rank, at, name in fact.further:
                further.setdefault(self._table.slots[rank], {})[name] = at
        told = list(renamed) + list(further)
        base = 0
        for run in runs:
            end = base + run.size
            odd = told + list(members(run.full | run.partial)) if run.void else told
            for number in dict.fromkeys(odd):
                slot = self._slot(number)
                held = run.bits_of(slot)
                mine = {at - base: name for at, name in renamed.get(number, {}).items() if base <= at < end}
                more = {name: at - base for name, at in further.get(number, {}).items() if base <= at < end}
                if mine or more or held & run.void:
                    self._index.name_apart(slot, run, first.names[base << 3 : end << 3], mine, more)
            base = end

    def _slot(self, number: int) -> Slot:
        return self._index.slots[number]
