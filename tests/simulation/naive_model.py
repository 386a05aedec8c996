"""A second model of fleet, load and pick, written from the requirement rows and decisions alone.

It keeps nothing between picks and prunes nothing. For each pick it walks all records up to
the as-of, then the replica's own facts that the as-of does not hold, and judges every
candidate by the words of the rows: PICK-*, STORE-*, MIX-*, MNS-*, LOAD-17..20, D 17-20, 28.
What the product keeps up step by step is found here from scratch, so a shared mistake would
have to be made twice. Only the bytes of records and candidate rows are taken from the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from projections.events.control import FoldModeAdopted, KvPickSettings, PickSettings, ReplicaStarted
from projections.events.picks import (
    DispatchEnded,
    ExcludedReason,
    PickMade,
    PickReason,
    PicksLost,
    Question,
    Verdict,
)
from projections.events.signals import SampleReceived, SubscriptionChanged, SubscriptionContinued
from router.picker.pick_flags import SHARED_IN_FLIGHT
from router.picker.rows import CandidateRow
from tests.simulation.naive_fleet import COUNTED_ONCE, Fleet, Member, Name, effective, fleets_of
from tests.simulation.naive_kv import Blocks, Rank

SECOND = 1_000_000
WEIGHS = 30 * SECOND
STALLS_FROM = 5 * SECOND
SUSPECT_FOR = 10 * SECOND


class Dispatch(NamedTuple):
    """One rank's part of a pick."""

    pick_id: bytes
    worker: Name
    rank: int
    tokens: int
    blocks: int
    may_stall: bool
    dispatched_at: int


Candidate = tuple[Name, Member, int]  # worker, what it is, dp rank


class Phase(NamedTuple):
    """What one phase must have decided: place of the winner, all rows in canonical order, rotation after."""

    winner: tuple[str, int, int] | None
    reason: int
    rows: list[CandidateRow]
    rotation: int


class NaiveModel:
    """All picks of one log can be asked. The fleet after each record is worked out beforehand."""

    def __init__(self, records: Iterable[tuple[int, bytes]], condemned: frozenset[int] = frozenset()) -> None:
        self.said = effective(records, condemned)
        self.fleets = fleets_of(self.said)

    def pick(
        self, pick: PickMade, own: Sequence[tuple[int, Any]], settings: PickSettings
    ) -> tuple[Phase, Phase]:
        """Prefill and decode. own: (own number, pick or end) of the pick's replica over its life."""
        return decide(Known(self, pick, own), pick.question, settings)


class Known:
    """What is known at a pick: walked together from the start of the log."""

    def __init__(self, model: NaiveModel, pick: PickMade, own: Sequence[tuple[int, Any]]) -> None:
        self.at = pick.question.asked_at
        self._asker, self._shares = pick.replica, False
        self.fleet = Fleet({}, {})
        self.blocks = Blocks()
        self.samples: dict[tuple[str, int, int], tuple[SampleReceived, int]] = {}
        self.heard: dict[Name, int] = {}
        self.dispatches: list[Dispatch] = []
        self.faults: list[tuple[Name, int]] = []
        self._connections: dict[tuple[str, int], tuple[int, int | None]] = {}
        self._picked: set[bytes] = set()
        self._forgotten: set[bytes] = set()  # of those, whose workers had left or left since
        self._counts_once = False
        self.ended: set[bytes] = set()
        self._chosen: dict[bytes, list[Name]] = {}
        fleets = dict(model.fleets)
        for offset, time, fact in model.said:
            if offset > pick.as_of:
                break
            self.blocks.owner_spoke(fact, time)
            if offset in fleets:
                self._fleet_is(fleets[offset])
                self.blocks.fleet_is(fleets[offset])
            self.blocks.say(fact, time)
            self._say(fact, time)
        self._forgotten.clear()  # the overlay has no copies
        for number, fact in own:
            if number <= pick.own_seq:
                if isinstance(fact, PickMade) and fact.pick_id not in self._picked:
                    self.blocks.predict(fact, is_own=True)
                self._say(fact, time=0)

    def _fleet_is(self, fleet: Fleet) -> None:
        """Who left takes everything along."""
        for gone in [name for name in self.fleet.members if name not in fleet.members]:
            self.heard.pop(gone, None)
            self.samples = {key: held for key, held in self.samples.items() if key[:2] != gone}
            self.dispatches = [line for line in self.dispatches if line.worker != gone]
            self.faults = [fault for fault in self.faults if fault[0] != gone]
            for pick_id, chosen in [*self._chosen.items()]:
                if gone in chosen:
                    chosen.remove(gone)
                    if not chosen:  # nothing is left of the pick: a copy may be one more
                        self._forgotten.add(pick_id)
        self.fleet = fleet

    def _say(self, fact: Any, time: int) -> None:
        if isinstance(fact, SampleReceived):
            self._sample(fact, time)
        elif isinstance(fact, ReplicaStarted) and fact.replica == self._asker:
            self._shares = SHARED_IN_FLIGHT in fact.flags
        elif isinstance(fact, FoldModeAdopted):
            self._counts_once = COUNTED_ONCE in fact.flags
        elif isinstance(fact, SubscriptionChanged) and fact.family == 1:
            publisher = (fact.namespace, fact.publisher_id)
            if fact.state == 3:  # connected
                self._connect(publisher, fact.connection)
            elif fact.state == 5 and fact.reason != "transport":  # ended
                self._connections.pop(publisher, None)
                self._drop(publisher)
        elif isinstance(fact, SubscriptionContinued) and fact.family == 1:
            publisher = (fact.namespace, fact.publisher_id)
            last = self._connections.get(publisher, (0, None))[1]
            self._connections[publisher] = (fact.connection, last)
        elif isinstance(fact, PickMade):
            prefill, decode = fact.outcome.prefill.chosen, fact.outcome.decode.chosen
            self._sent(fact.pick_id, fact.outcome.namespace, prefill, decode, fact.question.dispatched_at)
        elif isinstance(fact, PicksLost):
            for lost in fact.lines:
                self._sent(lost.pick_id, lost.namespace, lost.prefill, lost.decode, lost.dispatched_at)
                if lost.ended_at is not None:
                    self.ended.add(lost.pick_id)
        elif isinstance(fact, DispatchEnded) and fact.pick_id not in self.ended:
            self.ended.add(fact.pick_id)
            if fact.fault == 1:
                self.faults += [(name, fact.ended_at) for name in self._chosen.get(fact.pick_id, ())]

    def _sent(self, pick_id: bytes, space: str | None, prefill: Any, decode: Any, at: int) -> None:
        is_copy = pick_id in self._picked
        if space is None or (is_copy and (self._counts_once or pick_id not in self._forgotten)):
            return
        self._picked.add(pick_id)
        if pick_id in self._forgotten:
            self.ended.discard(pick_id)
        is_pair = prefill is not None
        charged = (
            [(decode, 0 if is_pair else decode.tokens, decode.blocks or 0, not is_pair)] if decode else []
        )
        charged += [(prefill, prefill.tokens, 0, True)] if is_pair else []
        members = [one for one in charged if (space, one[0].instance_id) in self.fleet.members]
        (self._forgotten.discard if members else self._forgotten.add)(pick_id)
        for chosen, tokens, blocks, may_stall in members:
            worker = (space, chosen.instance_id)
            is_long = may_stall and (chosen.blocks or 0) >= 2
            self.dispatches.append(Dispatch(pick_id, worker, chosen.dp_rank, tokens, blocks, is_long, at))
        self._chosen[pick_id] = [(space, chosen.instance_id) for chosen, *_ in members]

    def _sample(self, sample: SampleReceived, time: int) -> None:
        publisher = (sample.namespace, sample.publisher_id)
        if self._connections.get(publisher, (None, None))[0] != sample.connection:
            self._connect(publisher, sample.connection)
        connection, last = self._connections[publisher]
        if last is not None and sample.covers_from > last + 1:
            self._drop(publisher)
        self._connections[publisher] = (connection, max(sample.sequence, -1 if last is None else last))
        worker = (sample.namespace, sample.worker_id)
        member = self.fleet.members.get(worker)
        if member is None or sample.dp_rank not in member.ranks:
            return
        held = self.samples.get((*worker, sample.dp_rank))
        is_same_publisher = held is not None and held[0].publisher_id == sample.publisher_id
        if held is not None and is_same_publisher and sample.sequence <= held[0].sequence:
            return
        self.samples[(*worker, sample.dp_rank)] = (sample, time)
        self.heard[worker] = time

    def _connect(self, publisher: tuple[str, int], connection: int) -> None:
        self._connections[publisher] = (connection, None)
        self._drop(publisher)

    def _drop(self, publisher: tuple[str, int]) -> None:
        self.samples = {
            key: held for key, held in self.samples.items() if (key[0], held[0].publisher_id) != publisher
        }

    # Questions of a candidate

    def unanswered(self, worker: Name) -> list[Dispatch]:
        """Dispatches that weigh: younger than 30 s, no sample of the worker since."""
        heard = self.heard.get(worker)
        return [
            line
            for line in self.dispatches
            if line.worker == worker
            and self.at - line.dispatched_at < WEIGHS
            and (heard is None or heard < line.dispatched_at)
        ]

    def in_flight(self, rank: Rank, question: Question, kv: KvPickSettings) -> tuple[int, int]:
        """What unanswered dispatches to a rank share with the prompt; nothing for older releases."""
        if not self._shares:
            return 0, 0
        heard = self.heard.get(rank[:2])
        answered = self.at - WEIGHS if heard is None else max(heard, self.at - WEIGHS)
        return self.blocks.in_flight(rank, question, kv, answered)

    def is_stalled(self, worker: Name) -> bool:
        """A request of two or more blocks has been running unanswered for 5 s."""
        return any(
            line.may_stall and self.at - line.dispatched_at >= STALLS_FROM and line.pick_id not in self.ended
            for line in self.unanswered(worker)
        )

    def is_suspect(self, worker: Name) -> bool:
        """A fault within 10 s, no sample stamped after it."""
        heard = self.heard.get(worker)
        return any(
            name == worker and self.at - fault_at < SUSPECT_FOR and (heard is None or heard <= fault_at)
            for name, fault_at in self.faults
        )


def decide(known: Known, question: Question, settings: PickSettings) -> tuple[Phase, Phase]:
    """Prefill and decode by loads alone."""
    decode_pool, pairs = pools_of(known, question)
    decode = phase_of(known, decode_pool, False, question, settings, question.rotation_decode)
    prefill_pool = pairs[decode.winner[0]] if decode.winner is not None else []
    start = question.rotation_prefill
    if question.rotations_prefill and decode.winner is not None:
        start = question.rotations_prefill[question.namespaces.index(decode.winner[0])]
    prefill = phase_of(known, prefill_pool, True, question, settings, start)
    if prefill.winner is None:  # DYN: nobody serves, or the winner needs nobody
        nobody = PickReason.NO_CANDIDATE if decode.winner is None else PickReason.NO_PREFILL_POOL
        prefill = prefill._replace(reason=nobody)
    return prefill, decode


def pools_of(known: Known, question: Question) -> tuple[list[Candidate], dict[str, list[Candidate]]]:
    """Decode candidates of all namespaces, and the prefill ranks of each that has pairs."""
    decode_pool: list[Candidate] = []
    pairs: dict[str, list[Candidate]] = {}
    for space in question.namespaces:
        serving = [
            (name, member)
            for name, member in sorted(known.fleet.members.items())
            if name[0] == space and member.model == question.served_model
        ]
        has_decode = any(member.role == "decode" for _, member in serving)
        has_prefill = any(member.role == "prefill" for _, member in serving)
        roles = {"decode"} if has_decode and has_prefill else {"decode", "aggregated"}
        decode_pool += _ranks(serving, roles)
        pairs[space] = _ranks(serving, {"prefill"}) if has_decode and has_prefill else []
    decode_pool.sort(key=lambda one: (one[0], one[2]))
    return decode_pool, pairs


def _ranks(serving: list[tuple[Name, Member]], roles: set[str]) -> list[Candidate]:
    return [(name, member, rank) for name, member in serving if member.role in roles for rank in member.ranks]


def phase_of(
    known: Known,
    pool: list[Candidate],
    is_prefill: bool,
    question: Question,
    settings: PickSettings,
    rotation: int,
) -> Phase:
    """One phase by loads alone."""
    suspects = {name for name, _, _ in pool if settings.ledger and known.is_suspect(name)}
    if all(name in suspects for name, _, _ in pool):
        suspects = set()
    rows = []
    somebody_is_fresh = False
    for name, member, rank in pool:
        row, is_fresh = row_of(known, name, member, rank, is_prefill, question, settings)
        if name in suspects:
            row = row._replace(cost=None, verdict=Verdict.EXCLUDED, excluded=ExcludedReason.SUSPECT)
        else:
            somebody_is_fresh = somebody_is_fresh or is_fresh
        rows.append(row)
    if not rows:
        return Phase(None, PickReason.NO_CANDIDATE, [], rotation)
    costs = [row.cost for row in rows if row.cost is not None]
    if somebody_is_fresh and costs:
        tied = [place for place, row in enumerate(rows) if row.cost == min(costs)]
        reason = PickReason.LOAD
    else:
        rows = [row._replace(cost=None) for row in rows]
        tied = [place for place, row in enumerate(rows) if (row.namespace, row.instance_id) not in suspects]
        reason = PickReason.ROUND_ROBIN_STALE
    start = rotation % len(rows)
    place = min(tied, key=lambda tie: (tie - start) % len(rows))
    return Phase(rows[place][:3], reason, rows, place + 1)


def row_of(
    known: Known,
    name: Name,
    member: Member,
    rank: int,
    is_prefill: bool,
    question: Question,
    settings: PickSettings,
) -> tuple[CandidateRow, bool]:
    """A candidate's row, and whether it has a fresh sample with the phase's field."""
    held = known.samples.get((*name, rank))
    tokens = blocks = 0
    stalled = False
    if settings.ledger:
        for line in known.unanswered(name):
            if line.rank == rank:
                tokens, blocks = tokens + line.tokens, blocks + line.blocks
        stalled = known.is_stalled(name)
    prefill = decode = age = field = None
    is_recent = False
    if held is not None:
        sample, received_at = held
        age = known.at - received_at
        is_recent = age <= settings.max_staleness_us
        prefill = sample.active_prefill_tokens
        decode = sample.active_decode_blocks
        decode = sample.kv_used_blocks if decode is None else decode
        field = prefill if is_prefill else decode
    backlog: int | None
    if is_recent:
        verdict, backlog = Verdict.FRESH, field
    elif held is None or field == 0:
        verdict, backlog = Verdict.QUIET, 0
    else:
        verdict, backlog = Verdict.SILENT, None
    is_fresh = is_recent and field is not None
    if stalled:
        verdict, backlog = Verdict.STALLED, None
    cost = None
    if backlog is not None and is_prefill and member.batched_tokens:
        cost = (backlog + tokens) / member.batched_tokens
    elif backlog is not None and not is_prefill and member.kv_blocks and member.block_size:
        prompt = -(-question.estimated_tokens // member.block_size)
        cost = (backlog + blocks + prompt) / member.kv_blocks
    row = CandidateRow(*name, rank, cost, prefill, decode, tokens, blocks, age, verdict, ExcludedReason.NONE)
    return row, is_fresh
