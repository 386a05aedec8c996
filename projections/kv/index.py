"""Which blocks each slot holds, exactly, and how far each holds the beginning of a prompt.

A slot stands for one rank. What it holds is a map from its engine's hashes, here called names, to nodes;
a node is a path of tokens hashes from the root. From that alone follow all answers, counts, refusals and
the digest: never from the order of events, nor from how the paths are kept.

A stored event is applied block by block, as if each came in an event of its own, the next one under it:

- a block whose name is its parent's name is refused alone, and the next one goes under that parent;
- a name that the slot has for this node changes nothing;
- else the slot must have room for a name (`limits.blocks`), all slots together too (`limits.ownerships`),
  the node for an owner (`limits.owners`) unless the slot holds it, and the tree for a node
  (`limits.nodes`) unless it is there. The first block without room and all blocks behind it are refused;
- then the slot has the name for this node, and for no other.

Removal takes names; a node is held until its last name goes. A removed middle leaves a hole: blocks behind
it stay, and count again once it is filled. Source: KVX-06 and KVX-08 to KVX-12, decision 26.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from projections.events.held import RunHeld
from projections.kv import index_audit
from projections.kv.columns import (
    equal_last_words,
    equal_words,
    members,
    reversed_words,
    word_xor,
    words,
)
from projections.kv.held_runs import held_runs
from projections.kv.holdings import Holdings
from projections.kv.index_limits import INDEX_LIMITS, IndexLimits
from projections.kv.run_loader import RunLoader
from projections.kv.runs import PENDING_BYTES_MAX, Run, Slot

_ENTRY = Struct(">QQQQ").pack
_U64: Final = (1 << 64) - 1


class StoreResult(IntEnum):
    """What became of a stored event."""

    APPLIED = 1  # all of it
    ORPHAN = 2  # nothing: the slot does not hold its parent
    OVER_CAPACITY = 3  # its beginning, up to a ceiling
    SELF_PARENT = 4  # all but the blocks that name themselves as parent


class Stored(NamedTuple):
    """Result of a stored event and how many of its blocks were refused."""

    result: StoreResult
    blocks_refused: int


APPLIED: Final = Stored(StoreResult.APPLIED, 0)


class Index(Holdings):
    """Which blocks each slot holds, as paths of tokens hashes from the root.

    A slot is a small number that the caller assigns, one to each rank. Columns are packed big-endian u64.
    """

    def __init__(self, limits: IndexLimits = INDEX_LIMITS) -> None:
        super().__init__(limits)
        self._nodes_max, self._blocks_max, self._ownerships_max, _, self._run_blocks = limits

    @property
    def ownerships(self) -> int:
        """(slot, node) pairs."""
        return self._names - self._further

    @property
    def digest(self) -> int:
        """64 bits over what every slot holds.

        The sum modulo 2**64, over slots that hold anything, of xxh3-64 over key word, blocks, sum of names
        and sum of tokens hashes of held nodes; these sums are modulo 2**64 - 1. A tick costs a look at
        every slot and the columns that changed.
        """
        total = 0
        for slot in self.slots.values():
            if not slot.is_settled():
                slot.settle()
                entry = _ENTRY(slot.key_word, slot.names - slot.further, slot.names_sum, slot.tokens_sum)
                slot.entry = xxh3_64_intdigest(entry) if slot.names else 0
            total += slot.entry or 0
        return total & _U64

    def open_slot(self, slot: int, key_word: int) -> None:
        """Make `slot`, 0 or above and not open, known. key_word: identity of its rank, 64 bits."""
        if slot in self.slots:
            raise ValueError(f"slot {slot} is open")
        self.slots[slot] = Slot(slot, key_word)
        self._crowded = len(self.slots) > self.limits.owners

    def close_slot(self, slot: int) -> None:
        """Clear the slot and forget it; its number may be opened again."""
        self.clear(slot)
        del self.slots[slot]
        self._crowded = len(self.slots) > self.limits.owners

    def stored(self, slot: int, parent: bytes | None, tokens: bytes, engines: bytes) -> Stored:
        """Apply a stored event: a chain of blocks below the one that the slot names `parent`, or the root.

        tokens, engines: columns of one length. parent: 8 bytes.
        """
        owner = self.slots[slot]
        if parent is None:
            return self._store(owner, None, None, tokens, engines)
        canonical = self.canonical
        run = canonical.get(parent)
        if run is not None and run.sole is owner and run.names.endswith(parent):
            # what decoding sends, and each turn of a chat: new blocks behind what this slot alone holds
            count = len(engines) >> 3
            size, nodes = run.size + count, self.nodes + count
            mine, names = owner.names + count, self._names + count
            if (
                size <= self._run_blocks
                and nodes <= self._nodes_max
                and mine <= self._blocks_max
                and names <= self._ownerships_max
                and (not owner.elsewhere or owner.elsewhere.keys().isdisjoint(words(engines)))
            ):
                if count == 1 and engines not in canonical:
                    canonical[engines] = run
                elif not self._claim(words(engines), run):
                    return self._store(owner, parent, run, tokens, engines)
                run.names += engines
                run.tokens += tokens
                run.size = size
                self.nodes = nodes
                owner.names = mine
                self._names = names
                if size == self._run_blocks:
                    run.seal()
                return APPLIED
        return self._store(owner, parent, run, tokens, engines)

    def _store(
        self, owner: Slot, parent: bytes | None, known: Run | None, tokens: bytes, engines: bytes
    ) -> Stored:
        """Apply the event in as large pieces as can be, and block by block from the first odd one on.

        known: the run of which `parent` is a canonical name.
        """
        if self._dead_runs or self._dead_names or len(owner.names_in) > PENDING_BYTES_MAX:
            self._tidy(owner)
        run, at = self.root, 0
        if parent is not None:
            if owner.elsewhere:
                known = owner.elsewhere.get(parent) or known
            at = 0 if known is None else known.place_of(owner, parent) + 1
            if known is None or not at:
                return Stored(StoreResult.ORPHAN, len(engines) >> 3)
            run = known
        done, end = 0, len(tokens)
        refused = 0
        careful = False
        if at == run.size:
            kid = run.kids.get(tokens[:8])
            if kid is not None:
                run, at = kid, 0
        if at < run.size and end and run.tokens.startswith(tokens, at << 3):
            # what another slot stored before, all of it in one run
            taken = self._hold(owner, run, at, engines, careful)
            at += taken
            done = taken << 3
        while done < end:
            stop = done + 8 if careful else end
            if careful and engines[done:stop] == (engines[done - 8 : done] if done else parent):
                refused += 1
                done = stop
                continue
            if at < run.size:
                count = _common(run, at, tokens, done, stop)
                if not count:
                    # at 0 the step into this run was meant for a block that was then refused
                    run = self._split(run, at) if at else run.parent or self.root
                    at = run.size
                    continue
                whole = count << 3 == end
                names = engines if whole else engines[done : done + (count << 3)]
                taken = self._hold(owner, run, at, names, careful)
                at += taken
            else:
                kid = run.kids.get(tokens[done : done + 8])
                if kid is not None:
                    run, at = kid, 0
                    continue
                run, taken = self._grow(owner, run, tokens[done:stop], engines[done:stop], careful)
                at = run.size
            if taken:
                done += taken << 3
            elif careful:
                return Stored(StoreResult.OVER_CAPACITY, refused + (end - done >> 3))
            else:
                careful = True
        return Stored(StoreResult.SELF_PARENT, refused) if refused else APPLIED

    def _tidy(self, owner: Slot) -> None:
        if self._dead_runs or self._dead_names:
            self._forget_some()
        if max(len(owner.names_in), len(owner.names_out)) > PENDING_BYTES_MAX:
            owner.settle()

    def removed(self, slot: int, engines: bytes) -> int:
        """Take names from the slot. Returns how many of them it did not have, a repeated one included."""
        owner = self.slots[slot]
        if self._dead_runs or self._dead_names or len(owner.names_out) > PENDING_BYTES_MAX:
            self._tidy(owner)
        missing = 0
        end = len(engines)
        place = self._place(owner, engines[:8])
        if place is not None and end > 8 and _is_rising(owner, *place, engines):
            rising = engines
            place = self._place(owner, engines[-8:])
        else:
            rising = reversed_words(engines)
        while end:
            if place is None:
                missing += 1
                end -= 8
            else:
                run, at = place
                own = None if run.own_names is None else run.own_names.get(slot)
                if own is not None and own.further:
                    self._remove(owner, rising[end - 8 : end])
                    end -= 8
                else:
                    low = _streak(owner, run, at, rising, end)
                    self._release(owner, run, low, at + 1)
                    end -= at + 1 - low << 3
            place = self._place(owner, rising[end - 8 : end]) if end else None
        return missing

    def clear(self, slot: int) -> None:
        """The slot holds nothing more. Takes a step for each run that it touches, none for each block."""
        owner = self.slots[slot]
        runs = owner.runs
        if owner.elsewhere:
            self._dead_names.append(owner.elsewhere)
        self._names -= owner.names
        self._further -= owner.further
        owner.empty()
        self._leave_all(owner, runs)

    def find(self, query: bytes, among: int) -> list[tuple[int, int]]:
        """How far each slot holds the beginning of a prompt.

        query: its tokens hashes from the root. among: mask of the slots of interest.
        Returns (depth, mask of slots) with disjoint masks: these slots hold the first `depth` >= 1 blocks
        and not the next one. A depth may come more than once.
        """
        run = self.root.kids.get(query[:8])
        if run is None:
            return []
        alive = (run.full | run.partial) & among
        found: list[tuple[int, int]] = []
        at = 0
        while alive:
            tokens = run.tokens
            if not query.startswith(tokens, at):
                self._find_within(run, query[at : at + len(tokens)], alive, at >> 3, found)
                return found
            lost = alive & ~run.full
            if lost:
                alive ^= lost
                partial = lost & run.partial
                if partial:
                    lost ^= partial
                    self._find_partial(run, partial, run.size, at >> 3, found)
                if lost and at:
                    found.append((at >> 3, lost))
            at += len(tokens)
            run = run.kids.get(query[at : at + 8])
            if run is None:
                if alive:
                    found.append((at >> 3, alive))
                return found
        return found

    def _find_within(
        self, run: Run, rest: bytes, alive: int, above: int, found: list[tuple[int, int]]
    ) -> None:
        """The query ends or goes another way inside `run`, which has `above` blocks before it."""
        tokens = run.tokens
        if tokens.startswith(rest):
            depth = len(rest) >> 3
        else:
            depth = equal_words(rest, tokens[: len(rest)])
        lost = alive & ~run.full
        if lost:
            alive ^= lost
            partial = lost & run.partial
            if partial:
                lost ^= partial
                self._find_partial(run, partial, depth, above, found)
            if lost and above:
                found.append((above, lost))
        if alive:
            found.append((above + depth, alive))

    def _find_partial(
        self, run: Run, partial: int, most: int, above: int, found: list[tuple[int, int]]
    ) -> None:
        """Slots that hold `run` in part, by the end of their prefix."""
        if run.ragged is None and run.cuts is not None:
            for cut, mask in run.cuts.items():
                mask &= partial
                if mask:
                    found.append((above + (cut if cut < most else most), mask))
            return
        for depth, mask in run.prefix_groups(partial, most).items():
            if above + depth:
                found.append((above + depth, mask))

    def blocks(self, slot: int) -> int:
        """How many nodes the slot holds."""
        owner = self.slots[slot]
        return owner.names - owner.further

    def engine_hash_xor(self, slot: int) -> int:
        """Exclusive or of the slot's names. Walks over all it holds."""
        owner = self.slots[slot]
        total = 0
        for run in owner.runs:
            column, bits = run.names_of(owner), run.bits_of(owner)
            if bits & (bits + 1):
                column = b"".join(column[at << 3 : at + 1 << 3] for at in members(bits))
            else:
                column = column[: bits.bit_length() << 3]
            total ^= word_xor(column)
            own = None if run.own_names is None else run.own_names.get(slot)
            if own is not None:
                total ^= word_xor(b"".join(own.further))
        return total

    def held(self, slots: Sequence[int]) -> Iterator[RunHeld]:
        """All of it as facts of a checkpoint, which are the same for the same state.

        slots: in the canonical order of their ranks, with every slot that holds anything.
        """
        return held_runs(self.root, self.slots, slots)

    def restore(self, facts: Iterable[RunHeld], slots: Sequence[int]) -> None:
        """Fill the index, which holds nothing, from such facts; `slots` are open and in the same order."""
        loader = RunLoader(self, slots)
        for fact in facts:
            loader.add(fact)
        loader.finish()

    def check(self) -> None:
        """Raise AssertionError, naming it, if an invariant is broken. For tests: it walks over everything."""
        counts = index_audit.Counts(self.nodes, self._names, self._further, self.limits.run_blocks)
        index_audit.check(self.root, self.canonical, self.slots, counts)


def _is_rising(owner: Slot, run: Run, at: int, engines: bytes) -> bool:
    """Whether the second name stands behind the first, at `at`: then the event goes from root to tail."""
    return run.names_of(owner).startswith(engines[8:16], at + 1 << 3) and len(engines) > 8


def _streak(owner: Slot, run: Run, at: int, rising: bytes, end: int) -> int:
    """Where the names before byte `end` of `rising` begin to be what the slot holds up to position `at`."""
    if run.own_names is None and run.ragged is None and rising.endswith(run.names[: at + 1 << 3], 0, end):
        return 0  # all that the slot holds of the run, which is what is mostly evicted
    low = max(0, at + 1 - (end >> 3))
    if run.ragged is not None and owner.number in run.ragged:
        low = max(low, (~run.ragged[owner.number] & (1 << at) - 1).bit_length())
    column = run.names_of(owner)[low << 3 : at + 1 << 3]
    if rising.endswith(column, 0, end):
        return low
    return at + 1 - equal_last_words(rising[end - len(column) : end], column)


def _common(run: Run, at: int, tokens: bytes, start: int, stop: int) -> int:
    """How many words of `tokens`, from byte `start` to `stop`, are those of the run from `at` on."""
    piece = run.tokens[at << 3 : (at << 3) + stop - start]
    if tokens.startswith(piece, start):
        return len(piece) >> 3
    return equal_words(piece, tokens[start : start + len(piece)])
