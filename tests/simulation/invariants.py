"""What must be true of every finished run, whatever went wrong in it.

`check_all` raises AssertionError with what, where and which pick. Texts name the first
offence alone; the seed tells the rest.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import xxhash
from blake3 import blake3

from ingest.wire.fleet_keys import full_key
from projections.checkpoint import fold_from_checkpoint
from projections.events.codec import RecordRefused, decode_record
from projections.events.control import ConfigAdopted, RecordCondemned
from projections.events.discovery import Keyspace
from projections.events.envelope import Record
from projections.events.picks import DispatchEnded, PickMade, PicksDistrusted, PicksLost
from projections.events.signals import SampleReceived
from projections.fold import Fold
from replay.engine import Unverifiable
from replay.verify import verify
from router.picker.rows import CandidateRow, pack_rows, unpack_rows
from tests.simulation.naive_model import NaiveModel
from tests.simulation.naive_prefix import Expected
from tests.simulation.naive_prefix import pick as naive_pick
from tests.simulation.simulator import Simulator
from tests.simulation.world import acknowledged
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Replica
from tests.simulation.world_router import SimRouter


class Finished:
    """A run with its log decoded and folded once from the start.

    took: offsets of records that took effect. digests: of the fold at offsets that processes reported.
    """

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.raw = list(sim.log.records())
        self.records: list[Record] = []
        for offset, data in self.raw:
            try:
                self.records.append(decode_record(offset, data))
            except RecordRefused:
                continue
        self.condemned = frozenset(
            record.fact.offset for record in self.records if isinstance(record.fact, RecordCondemned)
        )
        self.fold = Fold(condemned=self.condemned)
        self.took: set[int] = set()
        self.digests: dict[int, tuple[tuple[str, int], ...]] = {}
        wanted = {offset for _, offset, _ in sim.digests}
        stamp = 0
        for offset, data in self.raw:
            if self.fold.apply(offset, data, []) is not None:
                self.took.add(offset)
            assert self.fold.state.intake.stamp >= stamp, f"log time went back at {offset}"
            stamp = self.fold.state.intake.stamp
            if offset in wanted:
                self.digests[offset] = self.fold.digests()
        self.model = NaiveModel(self.raw, self.condemned)
        self._named = [record.fact for record in self.records if isinstance(record.fact, PicksDistrusted)]

    def is_suspect(self, made: PickMade) -> bool:
        """Whether its record says so, or a later one of its replica."""
        return made.suspect or any(
            named.replica == made.replica and named.after < made.as_of <= named.upto for named in self._named
        )


def check_all(sim: Simulator) -> None:
    """Everything below, the cheapest first."""
    run = Finished(sim)
    acknowledged_records_are_in_the_log(run)
    every_dispatch_ends_once(run)
    outputs_were_opened_once(run)
    folds_agree_at_equal_offsets(run)
    checkpoint_and_tail_are_the_full_fold(run)
    the_same_records_take_effect(run)
    samples_cover_only_what_was_heard(run)
    nothing_waits_any_more(run)
    who_thinks_that_it_is_the_owner_is_it(run)
    the_fleet_is_what_the_store_holds(run)
    replay_repeats_every_pick(run)
    the_naive_model_agrees(run)


def acknowledged_records_are_in_the_log(run: Finished) -> None:
    """Whatever was said to be durable stands where it was said to stand."""
    at = {record.offset: record.fact for record in run.records}
    for fact, offset in acknowledged(run.sim.receipts):
        assert at.get(offset) == fact, f"acknowledged at {offset}, which holds {at.get(offset)!r}"


def every_dispatch_ends_once(run: Finished) -> None:
    """In the log: one end for each pick that chose a worker, unless its replica died."""
    ends: defaultdict[bytes, set[int]] = defaultdict(set)
    picked: set[bytes] = set()
    for record in run.records:
        fact = record.fact
        if isinstance(fact, PickMade):
            picked.add(fact.pick_id)
        elif isinstance(fact, DispatchEnded):
            ends[fact.pick_id].add(fact.own_seq)
        elif isinstance(fact, PicksLost):
            for lost in fact.lines:
                picked.add(lost.pick_id)
                if lost.ended_seq is not None:
                    ends[lost.pick_id].add(lost.ended_seq)
    assert all(len(numbers) == 1 for numbers in ends.values()), "a dispatch has two ends"
    for request in run.sim.requests:
        made = request.made
        assert made is not None
        if not request.process.is_alive:
            continue
        assert made.pick_id in picked, f"pick {made.pick_id.hex()} of a living replica is not in the log"
        chose = made.outcome.decode.chosen is not None
        assert (made.pick_id in ends) == chose, f"pick {made.pick_id.hex()}: ends {ends.get(made.pick_id)}"


def outputs_were_opened_once(run: Finished) -> None:
    """Every client that stayed with a living replica got its first byte."""
    for request in run.sim.requests:
        if request.process.is_alive and request.dispatches and not request.has_left:
            assert request.opened is not None, "a client waits for ever"


def folds_agree_at_equal_offsets(run: Finished) -> None:
    """All processes, whatever slices they took, however often they began anew."""
    known_from = max((r.offset for r in run.records if isinstance(r.fact, RecordCondemned)), default=-1)
    for name, offset, theirs in run.sim.digests:
        if offset > known_from:  # before, some knew what is condemned and some did not
            mine = run.digests[offset]
            assert mine == theirs, f"{name} disagrees at {offset}: {_differing(mine, theirs)}"


def checkpoint_and_tail_are_the_full_fold(run: Finished) -> None:
    """From the newest checkpoints that were written."""
    for info in run.sim.checkpoints.list()[-2:]:
        fold = fold_from_checkpoint(run.sim.checkpoints.read(info), condemned=run.condemned)
        for offset, data in run.raw:
            if offset > info.offset:
                fold.apply(offset, data, [])
        assert fold.digests() == run.fold.digests(), (
            f"checkpoint {info.offset}: {_differing(run.fold.digests(), fold.digests())}"
        )


def the_same_records_take_effect(run: Finished) -> None:
    """Repeated, fenced and condemned ones have none: by the fold and by the naive model."""
    said = {one.offset for one in run.model.said if not isinstance(one.fact, ConfigAdopted)}
    took = {r.offset for r in run.records if r.offset in run.took and not isinstance(r.fact, ConfigAdopted)}
    assert said == took, f"only one of both takes {sorted(said ^ took)[:5]}"


def samples_cover_only_what_was_heard(run: Finished) -> None:
    """`covers_from..sequence` names no message that never came, whatever was merged or shed (D 15, 17)."""
    for record in run.records:
        fact = record.fact
        if isinstance(fact, SampleReceived):
            place = (fact.namespace, fact.publisher_id, fact.connection)
            covered = range(fact.covers_from, fact.sequence + 1)
            missed = [number for number in covered if (*place, number) not in run.sim.delivered]
            assert not missed, f"the sample at {record.offset} covers {missed}, which never came"


def the_fleet_is_what_the_store_holds(run: Finished) -> None:
    """Once a pass stands: the fold holds exactly the store's keys."""
    owner = run.sim.owner
    if owner is None or owner.discovery is None or not owner.discovery.is_watching:
        assert run.sim.chances.seconds == 0, "no owner watches the store after everything healed"
        return
    held = {
        full_key(Keyspace(keyspace), space, key): digest
        for (keyspace, space, key), digest in run.fold.state.registry.keyspaces.held_digests(()).items()
    }
    stored = {key: blake3(value).digest() for key, (_, value) in run.sim.store.keys.items()}
    differing = sorted(key for key in held.keys() | stored.keys() if held.get(key) != stored.get(key))
    assert not differing, f"held and stored differ: {differing}"


def who_thinks_that_it_is_the_owner_is_it(run: Finished) -> None:
    """A superseded owner has noticed and ended."""
    for process in run.sim.processes:
        if isinstance(process, OwnerProcess) and process.is_alive:
            if process.stands_by and not process.speaks:
                continue
            pair = (process.appender.writer, process.appender.epoch)
            assert run.fold.state.intake.owner == pair, f"{process.name} lives on beside the owner"


def replay_repeats_every_pick(run: Finished) -> None:
    """0 different; unverifiable only what was made on a fold that had stopped or disagreed."""
    report = verify(run.sim.log.store, run.sim.checkpoints if run.sim.rng.random() < 0.5 else None)
    assert report.different == 0, f"{report.first_difference}"
    allowed = {Unverifiable.SUSPECT} if run.sim.restarts or run.sim.stops else set()
    made = [record.fact for record in run.records if isinstance(record.fact, PickMade)]
    assert report.reasons.get(Unverifiable.SUSPECT, 0) == sum(map(run.is_suspect, made))
    if run.sim.has_blocks and any(isinstance(record.fact, PicksLost) for record in run.records):
        allowed.add(Unverifiable.OVERLAY)  # a lost pick stood for blocks that its line does not name
    assert set(report.reasons) <= allowed, f"unverifiable: {report.reasons}"
    assert report.picks == len(made)


def the_naive_model_agrees(run: Finished) -> None:
    """At every pick, those whose records were lost included."""
    for router in run.sim.routers:
        for _, made in router.own:
            if isinstance(made, PickMade) and not run.is_suspect(made):
                held = run.fold.settings(made.config_version)
                assert held is not None, f"settings {made.config_version} of a pick are unknown"
                compare(naive_pick(run.model, made, router.own, held.pick), made, router)


def compare(expected: Expected, made: PickMade, router: SimRouter) -> None:
    """Rows, winners, reasons and rotations, field by field."""
    outcome = made.outcome
    where = f"{router.process.name} pick {made.own_seq} at {made.as_of}"
    digest = xxhash.xxh3_128()
    for name, phase, rotation, mine in (
        ("prefill", outcome.prefill, outcome.rotation_prefill, expected.prefill),
        ("decode", outcome.decode, outcome.rotation_decode, expected.decode),
    ):
        _compare_rows(f"{where} {name}", phase, mine.rows)
        got = (_place(outcome.namespace, phase.chosen), phase.reason, rotation)
        must = (mine.winner, int(mine.reason), mine.rotation)
        assert got == must, f"{where}: {name} winner, reason, rotation {got}, expected {must}"
        digest.update(pack_rows(mine.rows))
    told = (outcome.kv_result, outcome.overlap_blocks, outcome.block_size)
    assert told == expected[2:], f"{where}: result, overlap, block size {told}, expected {expected[2:]}"
    assert digest.digest() == outcome.rows_digest, f"{where}: a row beyond the best ones differs"


def _compare_rows(where: str, phase: Any, rows: list[CandidateRow]) -> None:
    assert phase.candidates == len(rows), f"{where}: {phase.candidates} candidates, expected {len(rows)}"
    expected = {row[:3]: row for row in rows}
    for row in unpack_rows(phase.rows):
        mine = expected.get(row[:3])
        assert mine is not None, f"{where}: {row} is no candidate"
        for name, value, other in zip(CandidateRow._fields, row, mine, strict=True):
            assert value == other, f"{where}: {name} {value}, expected {other} of {mine}"


def _place(namespace: str | None, chosen: Any) -> tuple[str, int, int] | None:
    return None if chosen is None or namespace is None else (namespace, chosen.instance_id, chosen.dp_rank)


def _differing(some: tuple[tuple[str, int], ...], others: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(mine[0] for mine, other in zip(some, others, strict=True) if mine != other)


def nothing_waits_any_more(run: Finished) -> None:
    """Living writers have written what they had to, and overlays hold nothing that the fold holds."""
    for process in run.sim.processes:
        if isinstance(process, Replica) and process.is_alive:
            assert process.log.overlay_size == 0, f"{process.name}: {process.log.overlay_size} in its overlay"
            assert process.appender.lost_picks == 0, f"{process.name} still owes ledger lines"
