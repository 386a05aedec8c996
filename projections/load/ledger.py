"""Dispatches by pick, and what they say of the workers they went to.

A pick charges the ranks that it chose: tokens and blocks weigh there until *any* sample of
that worker is stamped at or after `dispatched_at`, or for 30 s (decisions 18, 19). The end
of a dispatch does not take the charge away: only a sample tells what the engine holds. An
end does lift the stall judgement, and it may say that the workers are at fault: then they
are suspect for 10 s of log time or until a newer sample (decision 20).

Nothing here expires by a timer. Every question names its time `at` and when the worker was
last heard, and the answer is arithmetic on both. `prune` drops what no later question can
tell from nothing; lines that still run are kept, so that a late fault finds its workers.

A dispatch to a rank is one line per phase; a rank that prefills for itself has one line
that is charged with both. Lines are idempotent by pick id while they are held. A worker that
leaves the fleet takes its lines and its suspicion with it, and a pick that is recorded
after its worker left has no line there. So a copy of a pick that lands later still, when
its workers left and came back meanwhile, would charge them anew, for 30 s from its dispatch:
with the fold mode COUNTED_ONCE the fold keeps such copies away.

Source: specification, "Staleness and the best-effort contract"; STORE-06..11, DYN-14, DYN-15.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator

import xxhash

from projections.bounds import DISPATCH_AGE_US_MAX, LEDGER_LINES_MAX, SUSPECT_US, WRITER_FORGOTTEN_US
from projections.events.codec import encode_value
from projections.events.envelope import Record
from projections.events.held import LedgerLine, WorkerHeld
from projections.events.picks import DispatchEnded, Fault, PickMade, PicksLost, own_number
from projections.identity import U64_MAX, RankKey, WorkerKey
from projections.load.charges import Charges
from projections.load.ledger_lines import (
    WorkerLines,
    charged_blocks,
    is_stall,
    is_suspicion,
    lines_of,
    lines_of_lost,
    may_stall,
    unanswered_after,
)
from projections.load.live_ranks import LiveRanks

OPEN_AGE_US_MAX = WRITER_FORGOTTEN_US  # a line whose replica never said its end goes after a day

_xxh3 = xxhash.xxh3_64_intdigest


class Ledger:
    """Reducer of picks and ends. At most LEDGER_LINES_MAX lines, oldest dispatch out first."""

    def __init__(self, lines_max: int = LEDGER_LINES_MAX) -> None:
        self._lines_max = lines_max
        self._picks: dict[bytes, tuple[LedgerLine, ...]] = {}
        self.workers: dict[tuple[str, int], WorkerLines] = {}  # others only read it
        self._suspects: dict[tuple[str, int], None] = {}
        self._count = 0
        self._charged: list[tuple[int, bytes]] = []  # (dispatched_at, pick id) in order, still weighing
        self._overdue: list[tuple[int, bytes]] = []  # older than 30 s and not known to be over, in order
        self._over: list[bytes] = []  # overdue ones that ended since the last prune
        self._changed: dict[bytes, None] = {}  # picks whose word is out of date
        self._words: dict[bytes, int] = {}
        self._digest = 0

    # Reducers

    def apply_pick(self, record: Record, fleet: LiveRanks) -> None:
        """Take over one PickMade: a line at each chosen rank that is live at this record."""
        fact = record.fact
        assert isinstance(fact, PickMade)
        self.add(fact.pick_id, lines_of(fact), fleet)

    def apply_lost(self, record: Record, fleet: LiveRanks, told: int = 0) -> None:
        """Take over the ledger lines of picks whose full records were dropped (decision 33).

        told: lines of picks up to this own number are copies of what was heard before; what they
        say of an end may still be news.
        """
        fact = record.fact
        assert isinstance(fact, PicksLost)
        for lost in fact.lines:
            if own_number(lost) > told:
                self.add(lost.pick_id, lines_of_lost(fact.replica, lost), fleet)
            if lost.ended_at is not None:
                self.end(lost.pick_id, lost.ended_at, Fault.NONE)

    def apply_end(self, record: Record) -> None:
        """Take over one DispatchEnded. A second end, or one of an unknown pick, has no effect."""
        fact = record.fact
        assert isinstance(fact, DispatchEnded)
        self.end(fact.pick_id, fact.ended_at, fact.fault)

    def add(self, pick_id: bytes, lines: tuple[LedgerLine, ...], fleet: LiveRanks | None = None) -> None:
        """Hold the lines of a pick, once. With a fleet, only those of live ranks."""
        if pick_id in self._picks:
            return
        if fleet is not None:
            lines = tuple(x for x in lines if fleet.is_live(x.namespace, x.instance_id, x.dp_rank))
        if lines:
            self._hold(pick_id, lines)
            while self._count > self._lines_max:
                self._remove(self._oldest())

    def end(self, pick_id: bytes, ended_at: int, fault: int) -> None:
        """The dispatch is over: lift the stall judgement, and suspect the workers after a fault."""
        lines = self._picks.get(pick_id)
        if lines is None or lines[0].ended_at is not None:
            return
        entry = (lines[0].dispatched_at, pick_id)
        for line in lines:
            key = (line.namespace, line.instance_id)
            if may_stall(line):
                _discard(self.workers[key].stalls, entry)
            if fault == Fault.FAULT:
                self._suspect(key, ended_at)
        if _find(self._overdue, entry) is not None:
            self._over.append(pick_id)
        self._picks[pick_id] = tuple(line._replace(ended_at=ended_at) for line in lines)
        self._changed[pick_id] = None

    def forget(self, pick_id: bytes) -> None:
        """Drop the lines of a pick; one that is not held is no matter."""
        if pick_id in self._picks:
            self._remove(pick_id)

    def evict(self, workers: Iterable[tuple[str, int]]) -> None:
        """Workers left the fleet: their lines and suspicion go, other lines of the picks stay."""
        for namespace, instance_id in workers:
            worker = self.workers.get((namespace, instance_id))
            if worker is None:
                continue
            if worker.suspect_from is not None:
                self._unsuspect((namespace, instance_id))
            for pick_id in [*worker.picks]:
                lines = self._picks[pick_id]
                self._remove(pick_id)
                rest = tuple(x for x in lines if (x.namespace, x.instance_id) != (namespace, instance_id))
                if rest:
                    self._hold(pick_id, rest)

    def prune(self, stamp: int) -> None:
        """Drop what no question asked at or after log time `stamp` can see.

        That is: dispatches older than 30 s that ended, suspicions older than 10 s.
        """
        charged = self._charged
        while charged and charged[0][0] + DISPATCH_AGE_US_MAX <= stamp:
            entry = charged[0]
            if self._picks[entry[1]][0].ended_at is not None:
                self._remove(entry[1])
            else:
                del charged[0]
                insort(self._overdue, entry)
        for pick_id in self._over:
            if pick_id in self._picks:
                self._remove(pick_id)
        self._over.clear()
        while self._overdue and self._overdue[0][0] + OPEN_AGE_US_MAX <= stamp:
            self._remove(self._overdue[0][1])
        for key in [*self._suspects]:
            suspect_from = self.workers[key].suspect_from
            if suspect_from is None or suspect_from + SUSPECT_US <= stamp:
                self._unsuspect(key)

    # Queries: `heard_at` is when the worker was last heard (LoadStore.last_sample_at)

    def __len__(self) -> int:
        """Lines held."""
        return self._count

    def worker(self, namespace: str, instance_id: int) -> WorkerLines | None:
        """What is held of a worker, to read only; None where nothing is."""
        return self.workers.get((namespace, instance_id))

    def lines(self, pick_id: bytes) -> tuple[LedgerLine, ...]:
        """The lines of a pick, () where none are held."""
        return self._picks.get(pick_id, ())

    def unanswered(self, rank: RankKey, heard_at: int | None, at: int) -> tuple[int, int]:
        """(tokens, blocks) charged to a rank, unanswered and younger than 30 s at log time `at`."""
        worker = self.workers.get((rank.namespace, rank.instance_id))
        charges = None if worker is None else worker.ranks.get(rank.dp_rank)
        return (0, 0) if charges is None else charges.after(unanswered_after(heard_at, at))

    def unanswered_tokens(self, rank: RankKey, heard_at: int | None, at: int) -> int:
        """The prompt tokens of `unanswered`."""
        return self.unanswered(rank, heard_at, at)[0]

    def unanswered_blocks(self, rank: RankKey, heard_at: int | None, at: int) -> int:
        """The blocks of `unanswered`."""
        return self.unanswered(rank, heard_at, at)[1]

    def is_stalled(
        self, worker: WorkerKey, heard_at: int | None, at: int, ended: Container[bytes] = ()
    ) -> bool:
        """Whether a request of two or more blocks has been unanswered for 5 s (and under 30 s).

        ended: picks that are known to be over from elsewhere (an overlay).
        """
        held = self.workers.get(worker)
        return held is not None and is_stall(held.stalls, unanswered_after(heard_at, at), at, ended)

    def is_suspect(self, worker: WorkerKey, heard_at: int | None, at: int) -> bool:
        """Whether a fault of the last 10 s was not followed by a sample of the worker."""
        held = self.workers.get(worker)
        return held is not None and is_suspicion(held.suspect_from, heard_at, at)

    def suspect_from(self, namespace: str, instance_id: int) -> int | None:
        """Log time of the newest fault of a worker, for WorkerHeld."""
        worker = self.workers.get((namespace, instance_id))
        return None if worker is None else worker.suspect_from

    def running(self, gone: Container[bytes] = ()) -> dict[RankKey, int]:
        """Dispatches that did not end, by rank: permits in use. Those of `gone` replicas are left out."""
        counts: dict[RankKey, int] = {}
        for lines in self._picks.values():
            for line in lines:
                if line.ended_at is None and line.replica not in gone:
                    rank = RankKey(line.namespace, line.instance_id, line.dp_rank)
                    counts[rank] = counts.get(rank, 0) + 1
        return counts

    # Checkpoint and digest

    def held(self) -> Iterator[LedgerLine]:
        """All lines by pick id and phase. Suspicion rides in WorkerHeld, see `suspect_from`."""
        for pick_id in sorted(self._picks):
            yield from self._picks[pick_id]

    def restore(self, fact: LedgerLine | WorkerHeld) -> None:
        """Take over one held fact; lines of one pick come one after the other, by phase."""
        if isinstance(fact, WorkerHeld):
            if fact.suspect_from is not None:
                self._suspect((fact.namespace, fact.instance_id), fact.suspect_from)
            return
        others = self._picks.get(fact.pick_id, ())
        if others:
            self._remove(fact.pick_id)
        self._hold(fact.pick_id, (*others, fact))

    @property
    def digest(self) -> int:
        """Sum modulo 2^64 of xxh3-64 of every line and suspicion held.

        The part of picks is brought up to date here, for those that changed since the last call.
        """
        total = self._digest
        for pick_id in self._changed:
            word = sum(_xxh3(encode_value(line)) for line in self._picks.get(pick_id, ()))  # integers
            total += word - self._words.pop(pick_id, 0)
            if word:
                self._words[pick_id] = word
        self._changed.clear()
        self._digest = total = total & U64_MAX
        for key in self._suspects:
            total += _xxh3(encode_value(("suspect", *key, self.workers[key].suspect_from)))
        return total & U64_MAX

    # Parts of the reducers

    def _hold(self, pick_id: bytes, lines: tuple[LedgerLine, ...]) -> None:
        entry = (lines[0].dispatched_at, pick_id)
        for line in lines:
            key = (line.namespace, line.instance_id)
            worker = self.workers.get(key)
            if worker is None:
                worker = self.workers[key] = WorkerLines()
            charges = worker.ranks.get(line.dp_rank)
            if charges is None:
                charges = worker.ranks[line.dp_rank] = Charges()
            charges.add(line.dispatched_at, line.tokens, charged_blocks(line))
            if line.ended_at is None and may_stall(line):
                insort(worker.stalls, entry)
            worker.picks[pick_id] = None
            if line.dispatched_at > worker.newest:
                worker.newest = line.dispatched_at
        self._picks[pick_id] = lines
        self._count += len(lines)
        insort(self._charged, entry)
        self._changed[pick_id] = None

    def _remove(self, pick_id: bytes) -> None:
        """Forget a pick with all its traces but suspicion."""
        lines = self._picks.pop(pick_id)
        entry = (lines[0].dispatched_at, pick_id)
        if not _discard(self._charged, entry):
            _discard(self._overdue, entry)
        for line in lines:
            self._unhold(line, entry)
        self._count -= len(lines)
        if pick_id in self._words:
            self._changed[pick_id] = None
        else:  # the digest never held it: an overlay, whose digest nobody asks, must not remember it
            self._changed.pop(pick_id, None)

    def _unhold(self, line: LedgerLine, entry: tuple[int, bytes]) -> None:
        key = (line.namespace, line.instance_id)
        worker = self.workers[key]
        charges = worker.ranks[line.dp_rank]
        charges.remove(line.dispatched_at, line.tokens, charged_blocks(line))
        if not charges.times:
            del worker.ranks[line.dp_rank]
        if line.ended_at is None and may_stall(line):
            _discard(worker.stalls, entry)
        worker.picks.pop(line.pick_id, None)
        self._tidy(key)

    def _tidy(self, key: tuple[str, int]) -> None:
        worker = self.workers[key]
        if not worker.picks and worker.suspect_from is None:
            del self.workers[key]

    def _oldest(self) -> bytes:
        lists = [entries[0] for entries in (self._charged, self._overdue) if entries]
        return min(lists)[1]

    def _suspect(self, key: tuple[str, int], since: int) -> None:
        worker = self.workers.get(key)
        if worker is None:
            worker = self.workers[key] = WorkerLines()
        worker.suspect_from = since if worker.suspect_from is None else max(since, worker.suspect_from)
        self._suspects[key] = None

    def _unsuspect(self, key: tuple[str, int]) -> None:
        self._suspects.pop(key, None)
        self.workers[key].suspect_from = None
        self._tidy(key)


def _find(entries: list[tuple[int, bytes]], entry: tuple[int, bytes]) -> int | None:
    place = bisect_left(entries, entry)
    return place if place < len(entries) and entries[place] == entry else None


def _discard(entries: list[tuple[int, bytes]], entry: tuple[int, bytes]) -> bool:
    """Take one entry out of an ordered list; whether it was there."""
    place = _find(entries, entry)
    if place is None:
        return False
    del entries[place]
    return True
