"""The tree of runs: it grows, splits, loses what nobody holds, and finds a run by a canonical name.

A node is the path of tokens hashes from the root. It exists while a slot holds it or something below it;
`nodes` counts them. How paths are cut into runs is nobody's business: it decides no answer and no count.

Names of runs that a departed slot leaves behind are forgotten a run at a time by later calls, since a slot
may leave a quarter of a million of them. Until then they find a run of size 0, which nobody holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from projections.kv.columns import Column, members, words
from projections.kv.index_limits import IndexLimits
from projections.kv.runs import NO_RUNS, OwnNames, Run, Slot

SHARED_TAILS_MAX = 3
"""A run is lengthened in place under at most so many other holders; else a child goes on.

Others then hold a prefix of it. Many of them would have to be told apart again by a split, when
another path goes on from where they all end, as behind a system prompt.
"""
ELSEWHERE_DROPPED = 256
"""Names of a departed slot's own that one later call forgets."""


class RunTree:
    """Runs by path and by canonical name."""

    def __init__(self, limits: IndexLimits) -> None:
        self.limits = limits
        self.nodes = 0
        self.root = Run(None, b"", b"", 0)
        self.root.kids = {}
        self.canonical: dict[bytes, Run] = {}
        self.slots: dict[int, Slot] = {}
        self._dead_runs: list[Run] = []
        self._dead_names: list[dict[bytes, Run]] = []

    def _lengthen(self, slot: Slot, run: Run, tokens: bytes, names: bytes) -> tuple[Run, int]:
        """Put new blocks that `slot` holds behind the end of `run`, where no child has the first of them.

        Returns the run in which the last of them is, and how many blocks from the front could be put: all,
        or those before the first piece of a run with a name that is taken already.
        """
        done = 0
        end = len(tokens)
        bit = slot.bit
        free = self.limits.run_blocks - run.size
        if free > 0 and run.full & bit and run.kids is NO_RUNS and run.own_names is None:
            others = run.full ^ bit
            if not others or others.bit_count() <= SHARED_TAILS_MAX:
                done = end if end <= free << 3 else free << 3
                if not self._claim(words(names if done == end else names[:done]), run):
                    return run, 0
                self._extend(slot, run, others, tokens[:done], names[:done])
        while done < end:
            cut = done + (self.limits.run_blocks << 3)
            piece = Run(run, tokens[done:cut], names[done:cut], bit)
            if not self._claim(words(piece.names), piece):
                break
            self._adopt(run, piece)
            slot.runs[piece] = None
            run = piece
            done += len(piece.tokens)
        if done and run.size < self.limits.run_blocks:
            run.open(slot)
        self.nodes += done >> 3
        return run, done >> 3

    def _extend(self, slot: Slot, run: Run, others: int, tokens: bytes, names: bytes) -> None:
        """Write new blocks of `slot` behind the end of `run`, of which it and `others` hold all."""
        size = run.size
        if run.sole is slot:
            slot.count_opened(run)
        run.tokens += tokens
        run.names += names
        run.size += len(tokens) >> 3
        if run.sole is slot:
            slot.opened[run] = run.size
        if others:
            run.full = slot.bit
            run.enter_prefix(others, size)
        if run.size == self.limits.run_blocks:
            run.seal()

    def _lengthen_unnamed(self, run: Run, token: bytes) -> Run:
        """A new block below the end of `run` without a canonical name and, for now, without a holder."""
        piece = Run(run, token, bytes(8), 0)
        piece.void = 1
        self._adopt(run, piece)
        self.nodes += 1
        return piece

    def _adopt(self, run: Run, kid: Run) -> None:
        if run.kids is NO_RUNS:
            run.kids = {}
            run.seal()
        kid.first = bytes(kid.tokens[:8])
        run.kids[kid.first] = kid

    def _claim(self, names: tuple[bytes, ...], run: Run) -> bool:
        """Make all of `names` canonical for `run`, or none of them: one is taken or comes twice."""
        canonical = self.canonical
        if self._dead_runs:
            self._forget_under(names)
        if not canonical.keys().isdisjoint(names):
            return False
        size = len(canonical) + len(names)
        for name in names:
            canonical[name] = run
        if len(canonical) == size:
            return True
        for name in dict.fromkeys(names):
            del canonical[name]
        return False

    def _prune(self, run: Run) -> None:
        """Take away the end of `run` that nobody holds and nothing hangs from, and what becomes so."""
        while not run.full and run.kids is NO_RUNS:
            parent = run.parent
            if parent is None:
                return
            if run.partial:
                top = run.held_to()
                if top < run.size:
                    self._cut(run, top)
                return
            self.nodes -= run.size
            del parent.kids[run.first]
            if not parent.kids and parent is not self.root:
                parent.kids = NO_RUNS
            run.size = 0
            run.tokens = b""
            run.parent = None
            self._forget(run.names, run.void)
            run.names = b""
            run = parent

    def _leave_all(self, slot: Slot, runs: Iterable[Run]) -> None:
        """Strike the slot from these runs, all that it touches; names of whole runs are forgotten later."""
        number, bit, root = slot.number, slot.bit, self.root
        gone, nodes = self._dead_runs.append, 0
        for run in runs:
            if run.full == bit:
                run.full = 0
            else:
                run.leave(number, bit)
            if run.sole is slot:
                run.sole = None
            if run.own_names is not None:
                run.own_names.pop(number, None)
                if not run.own_names:
                    run.own_names = None
            while not run.full and run.kids is NO_RUNS:
                parent = run.parent
                if parent is None:
                    break
                if run.partial:
                    top = run.held_to()
                    if top < run.size:
                        self._cut(run, top)
                    break
                kids = parent.kids
                del kids[run.first]
                if not kids and parent is not root:
                    parent.kids = NO_RUNS
                nodes += run.size
                run.size = 0
                run.tokens = b""
                run.parent = None
                gone(run)
                run = parent
        self.nodes -= nodes

    def _cut(self, run: Run, top: int) -> None:
        """Leave `run` its first `top` positions; nobody holds a later one, or all who hold one hold all."""
        self.nodes -= run.size - top
        self._forget(run.names[top << 3 :], run.void >> top)
        run.size = top
        run.sums = None
        if run.sole is None:
            run.tokens = run.tokens[: top << 3]
            run.names = run.names[: top << 3]
        else:
            del run.tokens[top << 3 :], run.names[top << 3 :]
            run.sole.opened[run] = top
        if run.void:
            run.void &= (1 << top) - 1
        if run.cuts is not None:
            whole = run.cuts.pop(top, 0)
            run.full |= whole
            run.partial ^= whole
            if not run.cuts:
                run.cuts = None
        if run.own_names is not None:
            for own in run.own_names.values():
                own.names = own.names[: top << 3]

    def _forget(self, names: Column, void: int) -> None:
        canonical = self.canonical
        if len(names) == 8 and not void:
            del canonical[bytes(names)]
            return
        gone = words(names)
        if void:
            gone = tuple(name for at, name in enumerate(gone) if not void >> at & 1)
        for name in gone:
            del canonical[name]

    def _forget_some(self) -> None:
        """Forget a little of what departed slots left behind."""
        if self._dead_runs:
            self._forget_run(self._dead_runs.pop())
        if self._dead_names:
            names = self._dead_names[-1]
            for _ in range(min(ELSEWHERE_DROPPED, len(names))):
                names.popitem()
            if not names:
                self._dead_names.pop()

    def _forget_run(self, run: Run) -> None:
        if run.names:
            self._forget(run.names, run.void)
            run.names = b""

    def _forget_under(self, names: tuple[bytes, ...]) -> None:
        """Forget the departed runs that still have one of `names`."""
        for run in dict.fromkeys(map(self.canonical.get, names)):
            if run is not None and not run.size:
                self._forget_run(run)

    def _split(self, run: Run, at: int) -> Run:
        """Part `run` before position `at`, 0 < at < size, and return the front.

        The front is the new object, as the kids may be many.
        """
        parent = run.parent
        assert parent is not None
        run.seal()
        front = Run(parent, bytes(run.tokens[: at << 3]), bytes(run.names[: at << 3]), run.full)
        front.first, run.first = run.first, bytes(run.tokens[at << 3 : (at + 1) << 3])
        parent.kids[front.first] = front
        front.kids = {run.first: run}
        front.void = run.void & (1 << at) - 1
        run.parent = front
        run.tokens = run.tokens[at << 3 :]
        run.names = run.names[at << 3 :]
        run.sums = None
        run.void >>= at
        run.size -= at
        self.canonical.update(dict.fromkeys(front.canonical_names(), front))
        for number in members(run.full):
            self.slots[number].runs[front] = None
        if run.partial:
            self._split_partial(front, run, at)
        if run.own_names is not None:
            self._split_names(front, run, at)
        return front

    def _split_partial(self, front: Run, back: Run, at: int) -> None:
        slots = self.slots
        cuts, ragged = back.cuts or {}, back.ragged or {}
        back.cuts = back.ragged = None
        back.partial = 0
        for depth, mask in cuts.items():
            front.enter_prefix(mask, min(depth, at))
            if depth > at:
                back.enter_prefix(mask, depth - at)
            for number in members(mask):
                slots[number].runs[front] = None
                if depth <= at:
                    del slots[number].runs[back]
        for number, bits in ragged.items():
            slot = slots[number]
            low = bits & (1 << at) - 1
            if low:
                front.enter(number, slot.bit, low)
                slot.runs[front] = None
            if bits >> at:
                back.enter(number, slot.bit, bits >> at)
            else:
                del slot.runs[back]

    def _split_names(self, front: Run, back: Run, at: int) -> None:
        both, back.own_names = back.own_names or {}, None
        for number, own in both.items():
            slot = self.slots[number]
            ahead, behind = OwnNames(own.names[: at << 3]), OwnNames(own.names[at << 3 :])
            for name, place in own.further.items():
                if place < at:
                    ahead.add_further(place, name)
                else:
                    behind.add_further(place - at, name)
            held = front.bits_of(slot)
            moved = [
                name
                for place, name in enumerate(words(ahead.names))
                if held >> place & 1 and slot.elsewhere.get(name) is back
            ]
            slot.elsewhere.update(dict.fromkeys(moved + list(ahead.further), front))
            for part, names in ((front, ahead), (back, behind)):
                if (part.full | part.partial) & slot.bit:
                    if part.own_names is None:
                        part.own_names = {}
                    part.own_names[number] = names
