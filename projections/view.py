"""The reading side of a picker: projections at one as-of, plus the replica's own news.

A view is never torn: it has one as-of, and a pick reads nothing else. The overlay holds
the picks and ends that this replica made and that the as-of does not hold yet, so that a
burst within one log round trip is not sent to one rank (decision 28). Charges of both are
added; an end in the overlay lifts the stall of a pick in the fold, and a fault in it makes
that pick's workers suspect.

Own numbers of picks and ends grow by one and a replica's records reach the log in that
order, so what the as-of holds of them is a prefix: `Overlay.folded` drops it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from projections.bounds import LEDGER_LINES_MAX
from projections.events.control import KvPickSettings
from projections.events.picks import DispatchEnded, Fault, LostPick, PickMade, Question, own_number
from projections.identity import RankKey, WorkerKey
from projections.kv.prefixes import DeviceDepths, InFlight, PrefixReading, RankPrefix
from projections.kv.side_index import SideIndex, predicted_by
from projections.kv.state import KvState
from projections.load.ledger import Ledger
from projections.load.ledger_lines import (
    WorkerLines,
    is_stall,
    is_suspicion,
    lines_of,
    lines_of_lost,
    unanswered_after,
)
from projections.load.store import HeldSample, LoadStore
from projections.registry.fleet import Fleet, Worker

__all__ = ["DeviceDepths", "InFlight", "Overlay", "RankPrefix", "View", "WorkerReading"]

_new: Any = tuple.__new__
_NOTHING: Mapping[int, Any] = MappingProxyType({})


class Overlay:
    """Own picks and ends that are not inside the as-of. At most LEDGER_LINES_MAX ends."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ends: dict[bytes, DispatchEnded] = {}
        self.faults: dict[bytes, DispatchEnded] = {}  # those of `ends` that accuse their workers
        self._picks: list[tuple[int, bytes]] = []  # (own number, pick id) in order
        self._ends: list[tuple[int, bytes]] = []
        self._side = SideIndex()
        self._laid: dict[int, int] = {}  # own number of a pick in `_side` -> time of its question
        self._unlaid: dict[int, PickMade] = {}  # picks that nobody has asked `_side` about yet

    def __len__(self) -> int:
        """Own facts held."""
        return len(self._picks) + len(self._ends)

    def add_pick(self, fact: PickMade) -> None:
        """An own pick went out."""
        insort(self._picks, (own_number(fact), fact.pick_id))
        self.ledger.add(fact.pick_id, lines_of(fact))
        if fact.question.hashes:
            self._unlaid[own_number(fact)] = fact

    def add_lost(self, replica: bytes, lost: LostPick, own_seq: int) -> None:
        """The same from a PicksLost, with its end if that has a number <= own_seq."""
        insort(self._picks, (own_number(lost), lost.pick_id))
        self.ledger.add(lost.pick_id, lines_of_lost(replica, lost))
        if lost.ended_at is not None and lost.ended_seq is not None and lost.ended_seq <= own_seq:
            self.ledger.end(lost.pick_id, lost.ended_at, Fault.NONE)

    def add_end(self, fact: DispatchEnded) -> None:
        """An own dispatch ended, whether its pick is here or in the fold."""
        if fact.pick_id in self.ends:
            return
        self.ends[fact.pick_id] = fact
        if fact.fault == Fault.FAULT:
            self.faults[fact.pick_id] = fact
        insort(self._ends, (fact.own_seq, fact.pick_id))
        if len(self._ends) > LEDGER_LINES_MAX:
            self._forget_end()

    def folded(self, own_seq: int) -> None:
        """The as-of holds the own facts with numbers up to `own_seq`: forget them."""
        picks, ends = self._picks, self._ends
        while picks and picks[0][0] <= own_seq:
            number, pick_id = picks.pop(0)
            self.ledger.forget(pick_id)
            self._unlaid.pop(number, None)
            asked_at = self._laid.pop(number, None)
            if asked_at is not None:
                self._side.remove(asked_at, number)
        while ends and ends[0][0] <= own_seq:
            self._forget_end()

    def predictions(self) -> SideIndex:
        """The blocks that these picks stand for. Worked out when it is asked for."""
        for number, fact in self._unlaid.items():
            predicted = predicted_by(fact)
            if predicted is not None:
                self._side.add(predicted.asked_at, number, predicted.rank, predicted.hashes)
                self._laid[number] = predicted.asked_at
        self._unlaid.clear()
        return self._side

    def _forget_end(self) -> None:
        pick_id = self._ends.pop(0)[1]
        del self.ends[pick_id]
        self.faults.pop(pick_id, None)


class WorkerReading(NamedTuple):
    """What is known of one worker at a time.

    samples: dp_rank -> latest sample of any age, to read only.
    unanswered: dp_rank -> (tokens, blocks), for ranks that have any.
    """

    worker: Worker
    suspect: bool
    stalled: bool
    samples: Mapping[int, HeldSample]
    unanswered: Mapping[int, tuple[int, int]]


class View:
    """Projections at `as_of` with an overlay. Valid until the fold applies its next record.

    kv: None where no block of any rank is known. stamp: log time of the owner's newest record.
    """

    __slots__ = ("_faults", "as_of", "fleet", "kv", "ledger", "load", "overlay", "stamp")

    def __init__(
        self,
        as_of: int,
        fleet: Fleet,
        load: LoadStore,
        ledger: Ledger,
        overlay: Overlay,
        kv: KvState | None = None,
        stamp: int = 0,
    ) -> None:
        self.as_of = as_of
        self.fleet = fleet
        self.load = load
        self.ledger = ledger
        self.overlay = overlay
        self.kv = kv
        self.stamp = stamp
        self._faults = self._overlay_faults()

    def sample(self, rank: RankKey) -> HeldSample | None:
        """The latest sample of a rank, of any age."""
        return self.load.sample(*rank)

    def last_sample_at(self, worker: WorkerKey) -> int | None:
        """When a worker was last heard, log time."""
        return self.load.last_sample_at(*worker)

    def unanswered(self, rank: RankKey, at: int) -> tuple[int, int]:
        """(tokens, blocks) sent to a rank, unanswered and younger than 30 s at log time `at`."""
        heard_at = self.last_sample_at(rank.worker)
        tokens, blocks = self.ledger.unanswered(rank, heard_at, at)
        own_tokens, own_blocks = self.overlay.ledger.unanswered(rank, heard_at, at)
        return tokens + own_tokens, blocks + own_blocks

    def unanswered_tokens(self, rank: RankKey, at: int) -> int:
        """The prompt tokens of `unanswered`."""
        return self.unanswered(rank, at)[0]

    def unanswered_blocks(self, rank: RankKey, at: int) -> int:
        """The blocks of `unanswered`."""
        return self.unanswered(rank, at)[1]

    def is_stalled(self, worker: WorkerKey, at: int) -> bool:
        """Whether a request of two blocks has been unanswered by a worker for 5 s (STORE-08)."""
        after = unanswered_after(self.last_sample_at(worker), at)
        return self._stalled(self.ledger.worker(*worker), self.overlay.ledger.worker(*worker), after, at)

    def is_suspect(self, worker: WorkerKey, at: int) -> bool:
        """Whether a fault was seen at a worker within 10 s and no newer sample of it (decision 20)."""
        heard_at = self.last_sample_at(worker)
        return self.ledger.is_suspect(worker, heard_at, at) or is_suspicion(
            self._faults.get(worker), heard_at, at
        )

    def read(self, workers: Iterable[Worker], at: int, weigh: bool = True) -> list[WorkerReading]:
        """Everything above for many workers in one go, for pickers; in the order given.

        weigh: False reads as if the ledger were empty (`PickSettings.ledger`).
        """
        held_of, lines_of, own_of = (
            self.load.workers.get,
            self.ledger.workers.get,
            self.overlay.ledger.workers.get,
        )
        faults, ends, oldest = self._faults, self.overlay.ends, unanswered_after(None, at)
        readings = []
        for worker in workers:
            key = worker[0]
            held = held_of(key)
            suspect = stalled = False
            unanswered: Mapping[int, tuple[int, int]] = _NOTHING
            if weigh:
                heard_at = None if held is None else held.last_sample_at
                after = oldest if heard_at is None or heard_at < oldest else heard_at
                lines, own = lines_of(key), own_of(key)
                if lines is not None:
                    if lines.newest > after:
                        unanswered = _unanswered(lines, after)
                        stalled = bool(lines.stalls) and is_stall(lines.stalls, after, at, ends)
                    suspect = lines.suspect_from is not None and is_suspicion(
                        lines.suspect_from, heard_at, at
                    )
                if own is not None and own.newest > after:
                    own_charges = _unanswered(own, after)
                    unanswered = _added(unanswered, own_charges) if unanswered else own_charges
                    stalled = stalled or is_stall(own.stalls, after, at, ends)
                if faults and key in faults:
                    suspect = suspect or is_suspicion(faults[key], heard_at, at)
            samples = _NOTHING if held is None else held.samples
            readings.append(_new(WorkerReading, (worker, suspect, stalled, samples, unanswered)))
        return readings

    def prefixes(self, question: Question, kv: KvPickSettings) -> dict[tuple[str, int, int], RankPrefix]:
        """What the ranks of the question's model and namespaces hold of its prompt, by rank.

        Ranks with nothing are absent; so are those of a block size that the question has no
        hashes of. In no order.
        """
        reading = self._reading()
        return {} if reading is None else reading.prefixes(question, kv)

    def device_depths(self, question: Question) -> DeviceDepths | None:
        """`prefixes` by groups of slots, for pickers; None where it has to be asked instead."""
        reading = self._reading()
        return None if reading is None else reading.device_depths(question)

    def in_flight(
        self, question: Question, kv: KvPickSettings, held: Mapping[tuple[str, int, int], RankPrefix]
    ) -> dict[tuple[str, int, int], InFlight]:
        """What unanswered dispatches share with the question's prompt, by rank. held: its `prefixes`."""
        reading = self._reading()
        if reading is None:
            return {}
        at = question.asked_at
        return reading.in_flight(
            question, kv, held, lambda rank: unanswered_after(self.last_sample_at(rank.worker), at)
        )

    def deepest(self, question: Question, kv: KvPickSettings) -> dict[int, int]:
        """Block size -> the most blocks of the prompt that any of these ranks holds (decision 14)."""
        reading = self._reading()
        if reading is None:
            return {known.block_size: 0 for known in question.hashes}
        return reading.deepest(question, kv)

    def publishes(self, namespace: str, instance_id: int, dp_rank: int) -> bool:
        """Whether kv-events of a rank's device are heard; else its own picks are all there is (DYN-08)."""
        return self.feeder(namespace, instance_id, dp_rank) is not None

    def feeder(self, namespace: str, instance_id: int, dp_rank: int) -> int | None:
        """Id of the publisher that tells of the blocks on a rank's device, None where nobody does."""
        rank = self.kv.ranks.get((namespace, instance_id, dp_rank)) if self.kv is not None else None
        feeder = rank.feeders[0] if rank is not None else None
        return None if feeder is None else feeder.key[1]

    def _reading(self) -> PrefixReading | None:
        if self.kv is None or not self.kv.is_on:
            return None
        own = self.overlay.predictions() if self.kv.has_side else None
        return PrefixReading(self.kv, self.fleet, own, self.stamp)

    def _stalled(self, lines: WorkerLines | None, own: WorkerLines | None, after: int, at: int) -> bool:
        ends = self.overlay.ends
        return any(held is not None and is_stall(held.stalls, after, at, ends) for held in (lines, own))

    def _overlay_faults(self) -> dict[tuple[str, int], int]:
        """Newest fault of the overlay's ends by worker."""
        faults: dict[tuple[str, int], int] = {}
        for pick_id, end in self.overlay.faults.items():
            for line in self.ledger.lines(pick_id) or self.overlay.ledger.lines(pick_id):
                key = (line.namespace, line.instance_id)
                faults[key] = max(end.ended_at, faults.get(key, end.ended_at))
        return faults


def _unanswered(lines: WorkerLines, after: int) -> dict[int, tuple[int, int]]:
    """Charges dispatched later than `after` by rank."""
    if len(lines.ranks) == 1:
        ((dp_rank, charges),) = lines.ranks.items()
        return {dp_rank: charges.after(after)} if charges.times[-1] > after else {}
    return {
        dp_rank: charges.after(after) for dp_rank, charges in lines.ranks.items() if charges.times[-1] > after
    }


def _added(
    some: Mapping[int, tuple[int, int]], more: dict[int, tuple[int, int]]
) -> Mapping[int, tuple[int, int]]:
    """Both charges of each rank together."""
    for dp_rank, (tokens, blocks) in some.items():
        before = more.get(dp_rank, (0, 0))
        more[dp_rank] = (before[0] + tokens, before[1] + blocks)
    return more
