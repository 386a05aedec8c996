"""Who holds which blocks under which names: slots enter and leave runs, names move, sums follow.

The slow way, a block at a time, is `_take` and `_remove`: they are right for every name and every shape.
The quick ways, `_cover`, `_cover_as` and `_release`, take whole pieces of a run and decline whatever
needs a second look.
"""

from __future__ import annotations

from projections.kv.columns import Column, leading_ones, members, words
from projections.kv.index_limits import IndexLimits
from projections.kv.run_tree import RunTree
from projections.kv.runs import OwnNames, Run, Slot


class Holdings(RunTree):
    """Runs and their holders."""

    def __init__(self, limits: IndexLimits) -> None:
        super().__init__(limits)
        self._names = 0
        self._further = 0
        self._crowded = False

    def _has_room(self, slot: Slot, count: int) -> bool:
        """Whether the slot may have `count` names more."""
        limits = self.limits
        return slot.names + count <= limits.blocks and self._names + count <= limits.ownerships

    def _count_in(self, slot: Slot, names: Column, tokens: Column) -> None:
        count = len(names) >> 3
        slot.names += count
        self._names += count
        slot.names_in += names
        slot.tokens_in += tokens

    def _count_out(self, slot: Slot, names: Column, tokens: Column) -> None:
        count = len(names) >> 3
        slot.names -= count
        self._names -= count
        slot.names_out += names
        slot.tokens_out += tokens

    def _place(self, slot: Slot, name: bytes) -> tuple[Run, int] | None:
        """The block that the slot holds under `name`: run and position."""
        run = (slot.elsewhere.get(name) if slot.elsewhere else None) or self.canonical.get(name)
        if run is None:
            return None
        at = run.place_of(slot, name)
        return None if at < 0 else (run, at)

    def _cover(self, slot: Slot, run: Run, at: int, count: int) -> bool:
        """Let the slot hold `count` positions from `at` on by their canonical names, where it does not.

        Declines, having changed nothing, where a ceiling may be near.
        """
        bit = slot.bit
        if run.full & bit:
            return True
        if not run.partial & bit:
            depth = 0
        elif run.cuts is not None and run.cuts.get(at, 0) & bit:
            depth = at  # the usual one goes on where the slot's prefix ends
        else:
            depth = run.depth_of(bit)
        end = at + count
        if at > depth or (not depth and run.partial & bit):
            return self._cover_ragged(slot, run, at, count)
        if end <= depth:
            return True
        gained = end - depth
        limits = self.limits
        if slot.names + gained > limits.blocks or self._names + gained > limits.ownerships:
            return False
        if self._crowded and (run.full | run.partial).bit_count() >= limits.owners:
            return False
        if not depth:
            slot.runs[run] = None
        run.lengthen_prefix(bit, depth, end)
        if end == run.size and run.sole is not None:
            run.close()
        names, tokens = run.sums_between(depth, end)
        slot.names_sum += names
        slot.tokens_sum += tokens
        slot.entry = None
        slot.names += gained
        self._names += gained
        return True

    def _cover_ragged(self, slot: Slot, run: Run, at: int, count: int) -> bool:
        before = run.bits_of(slot)
        added = ((1 << count) - 1) << at & ~before
        if self._crowded or not self._has_room(slot, added.bit_count()):
            return False
        if added:
            places = [place << 3 for place in members(added)]
            names = b"".join(run.names[place : place + 8] for place in places)
            tokens = b"".join(run.tokens[place : place + 8] for place in places)
            self._enter(slot, run, before, before | added)
            self._count_in(slot, names, tokens)
        return True

    def _cover_as(self, slot: Slot, run: Run, at: int, names: bytes) -> int:
        """The same under the slot's own `names`, from the front as far as it can be done in one step.

        Returns the number of positions that are now held under these names; 0 declines.
        """
        held = run.bits_of(slot)
        lead = min(leading_ones(held >> at), len(names) >> 3)
        if lead:
            column = run.names_of(slot)[at << 3 : (at + lead) << 3]
            return lead if names.startswith(column) else 0
        free = (held >> at & -(held >> at)).bit_length() - 1 if held >> at else len(names) >> 3
        count = min(free, len(names) >> 3)
        names = names[: count << 3]
        new = words(names)
        if self._dead_runs:
            self._forget_under(new)
        if self._crowded or not self._has_room(slot, count) or len(frozenset(new)) < count:
            return 0
        if not (self.canonical.keys().isdisjoint(new) and slot.elsewhere.keys().isdisjoint(new)):
            return 0
        self._own_names(slot, run).rename(at, names)
        slot.elsewhere.update(dict.fromkeys(new, run))
        self._enter(slot, run, held, held | ((1 << count) - 1) << at)
        self._count_in(slot, names, run.tokens[at << 3 : (at + count) << 3])
        return count

    def _hold(self, slot: Slot, run: Run, at: int, names: bytes, careful: bool) -> int:
        """Let the slot hold positions from `at` on under `names`, whose tokens hashes are the run's.

        Returns how many of them, from the front, could be done in one step; 0 declines.
        careful: there is one name, and 0 means a ceiling.
        """
        if (
            run.names.startswith(names, at << 3)
            and not run.void
            and (run.own_names is None or slot.number not in run.own_names)
            and (not slot.elsewhere or slot.elsewhere.keys().isdisjoint(words(names)))
            and self._cover(slot, run, at, len(names) >> 3)
        ):
            return len(names) >> 3
        taken = self._cover_as(slot, run, at, names)
        return taken if taken or not careful else int(self._take(slot, run, at, names))

    def _grow(self, slot: Slot, run: Run, tokens: bytes, names: bytes, careful: bool) -> tuple[Run, int]:
        """Let the slot hold new blocks below the end of `run`: the last run, and the rest as `_hold`."""
        limits = self.limits
        count = len(tokens) >> 3
        if not self._has_room(slot, count) or self.nodes + count > limits.nodes:
            room = min(limits.nodes - self.nodes, limits.blocks - slot.names, limits.ownerships - self._names)
            if room <= 0:
                return run, 0
            tokens, names = tokens[: room << 3], names[: room << 3]
        if not slot.elsewhere or slot.elsewhere.keys().isdisjoint(words(names)):
            run, grown = self._lengthen(slot, run, tokens, names)
            if grown:
                self._count_in(slot, names[: grown << 3], tokens[: grown << 3])
                return run, grown
        if not careful:
            return run, 0
        piece = self._lengthen_unnamed(run, tokens)
        self._take(slot, piece, 0, names)
        return piece, 1

    def _own_names(self, slot: Slot, run: Run) -> OwnNames:
        """The slot's names in the run, made if there are none."""
        run.close()
        if run.own_names is None:
            run.own_names = {}
        own = run.own_names.get(slot.number)
        if own is None:
            own = run.own_names[slot.number] = OwnNames(bytes(run.names))
        return own

    def _enter(self, slot: Slot, run: Run, before: int, after: int) -> None:
        """Let the slot hold the positions `after` instead of `before`, fewer or more."""
        run.close()
        if before:
            run.leave(slot.number, slot.bit)
        if after:
            run.enter(slot.number, slot.bit, after)
            slot.runs[run] = None
            return
        del slot.runs[run]
        if run.own_names is not None:
            run.own_names.pop(slot.number, None)
            if not run.own_names:
                run.own_names = None

    def _take(self, slot: Slot, run: Run, at: int, name: bytes) -> bool:
        """Let the slot hold position `at` under `name`, whatever `name` was before. False: a ceiling."""
        place = self._place(slot, name)
        if place is not None and place[0] is run and place[1] == at:
            return True
        held = run.holds(slot, at)
        if not self._has_room(slot, 1):
            return False
        if not held and self._crowded and run.owners_at(at) >= self.limits.owners:
            return False
        slot.elsewhere.pop(name, None)
        if place is not None and self._has_other_name(slot, *place):
            self._unname(slot, *place, name)
            place = None
        if held:
            self._own_names(slot, run).add_further(at, name)
            slot.elsewhere[name] = run
            slot.further += 1
            self._further += 1
            self._count_in(slot, name, b"")
        else:
            self._take_block(slot, run, at, name)
        if place is not None:
            self._unname(slot, *place, name)
        return True

    def _take_block(self, slot: Slot, run: Run, at: int, name: bytes) -> None:
        canonical = run.is_canonical(at, name)
        if not canonical:
            self._own_names(slot, run)
            slot.elsewhere[name] = run
        own = None if run.own_names is None else run.own_names.get(slot.number)
        if own is not None:
            own.rename(at, name)
        before = run.bits_of(slot)
        self._enter(slot, run, before, before | 1 << at)
        self._count_in(slot, name, run.tokens[at << 3 : (at + 1) << 3])

    def _has_other_name(self, slot: Slot, run: Run, at: int) -> bool:
        own = None if run.own_names is None else run.own_names.get(slot.number)
        return own is not None and at in own.others

    def _remove(self, slot: Slot, name: bytes) -> bool:
        """Take `name` from the slot; False when it had no such name."""
        place = self._place(slot, name)
        if place is None:
            return False
        slot.elsewhere.pop(name, None)
        self._unname(slot, *place, name)
        return True

    def _unname(self, slot: Slot, run: Run, at: int, name: bytes) -> None:
        """Take `name` from a held position, with its last name the position; `elsewhere` is done already."""
        own = None if run.own_names is None else run.own_names.get(slot.number)
        if own is None or at not in own.others:
            self._count_out(slot, name, run.tokens[at << 3 : (at + 1) << 3])
            before = run.bits_of(slot)
            self._enter(slot, run, before, before ^ 1 << at)
            self._prune(run)
            return
        if own.further.get(name) == at:
            own.drop_further(at, name)
        else:
            other = own.promote(at)
            if run.is_canonical(at, other):
                del slot.elsewhere[other]
        slot.further -= 1
        self._further -= 1
        self._count_out(slot, name, b"")

    def _release(self, slot: Slot, run: Run, low: int, high: int) -> None:
        """Take positions `low`..`high`-1, all held and none by a second name, from the slot."""
        bit = slot.bit
        if run.sole is slot:
            slot.count_opened(run)
        has_names = run.own_names is not None
        names = (run.names_of(slot) if has_names else run.names)[low << 3 : high << 3]
        slot.names -= high - low
        self._names -= high - low
        slot.names_out += names
        slot.tokens_out += run.tokens[low << 3 : high << 3]
        if run.own_names is not None and slot.number in run.own_names:
            for name in words(names):
                slot.elsewhere.pop(name, None)
        if run.full == bit and high == run.size and not run.partial and not run.kids:
            if low:
                self._cut(run, low)
                return
            if not has_names:
                run.close()
                run.full = 0
                del slot.runs[run]
                self._prune(run)
                return
        depth = run.size if run.full & bit else run.depth_of(bit)
        if depth == high and low:
            run.close()
            run.leave(slot.number, bit)
            run.enter_prefix(bit, low)
        else:
            held = run.bits_of(slot)
            self._enter(slot, run, held, held & ~(((1 << high - low) - 1) << low))
        if not run.full and not run.kids:
            self._prune(run)

    def attach(self, run: Run, piece: Run, unowned: int) -> None:
        """Let `piece`, which nobody holds yet, go on from the end of `run`; positions `unowned` have no name.

        A position whose canonical name is taken becomes one without. For loading.
        """
        self._adopt(run, piece)
        self.nodes += piece.size
        if not unowned and self._claim(words(piece.names), piece):
            return
        piece.void = unowned
        for at, name in enumerate(words(piece.names)):
            if not unowned >> at & 1:
                if name in self.canonical:
                    piece.void |= 1 << at
                else:
                    self.canonical[name] = piece

    def count_names(self, count: int) -> None:
        """A slot has `count` names more. For loading."""
        self._names += count

    def name_apart(
        self, slot: Slot, run: Run, main: bytes, renamed: dict[int, bytes], further: dict[bytes, int]
    ) -> None:
        """Give the slot its names in a run that it holds already: `main`, but for `renamed`, and `further`.

        The slot's sums have the names in `main` until then. For loading.
        """
        own = self._own_names(slot, run)
        own.names = main
        for at, name in renamed.items():
            slot.names_out += main[at << 3 : (at + 1) << 3]
            slot.names_in += name
            own.rename(at, name)
        for at, name in enumerate(words(own.names)):
            if run.holds(slot, at) and not run.is_canonical(at, name):
                slot.elsewhere[name] = run
        for name, at in further.items():
            own.add_further(at, name)
            slot.elsewhere[name] = run
            slot.names_in += name
            slot.names += 1
            slot.further += 1
            self._names += 1
            self._further += 1
        slot.settle()
