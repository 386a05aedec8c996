"""Rows of records: of those that take effect, whole histories of workers, the same from any start."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit_candidates import RecordedCandidates
from app.audit_projector import PASSED_BY, AuditProjector
from app.audit_rows import AuditRows, Change
from projections.audit.rows import (
    PicksSuspected,
    ReplicaHeard,
    ReplicaLeft,
    ReplicaRow,
    WorkerBegan,
    WorkerEnded,
    WorkerVersion,
)
from projections.audit.translation import worker_version
from projections.bounds import WRITER_FORGOTTEN_US
from projections.checkpoint import checkpoint_records, fold_from_checkpoint
from projections.events.codec import peek_kind
from projections.events.control import ReplicaGone
from projections.events.picks import DispatchEnded, PickMade, PicksDistrusted
from projections.fold import Fold
from replay.log_walk import records_of
from tests.projections.log_story import story
from tests.replay.recorded_log import RecordedLog

RECORDS = 150


def projected(records: list[bytes], fold: Fold | None = None, written: int = -1) -> AuditRows:
    projector = AuditProjector(fold or Fold(), written, None, RecordedCandidates())
    rows = AuditRows()
    for offset, data in enumerate(records):
        if offset > projector.fold.mark.offset:
            projector.apply(offset, data, rows)
    return rows


@settings(max_examples=30)
@given(st.integers(0, 200))
def test_rows_are_those_of_the_records_that_take_effect(seed: int) -> None:
    records = story(seed, RECORDS)
    fold = Fold()
    applied = {offset: fold.apply(offset, data, []) for offset, data in enumerate(records)}
    rows = projected(records)
    assert [row.log_offset for row in rows.picks] == [
        o for o, f in applied.items() if isinstance(f, PickMade)
    ]
    assert [row.log_offset for row in rows.ends] == [
        offset for offset, fact in applied.items() if isinstance(fact, DispatchEnded)
    ]


@settings(max_examples=30)
@given(st.integers(0, 200))
def test_versions_in_force_are_the_fleet_at_every_offset(seed: int) -> None:
    """Against a fold that is asked for its fleet after each record, samples and all."""
    records = story(seed, RECORDS)
    changes: dict[int, list[Change]] = {}
    for offset, change in projected(records).changes:
        changes.setdefault(offset, []).append(change)
    fold = Fold()
    in_force: dict[tuple[str, str], WorkerVersion] = {}
    for offset, data in enumerate(records):
        fold.apply(offset, data, [])
        for change in changes.get(offset, ()):
            if isinstance(change, WorkerEnded):
                del in_force[change.namespace, change.worker]
            elif isinstance(change, WorkerBegan):
                assert (change.version.namespace, change.version.worker) not in in_force
                in_force[change.version.namespace, change.version.worker] = change.version
        fleet = [worker_version(worker) for worker in fold.state.registry.fleet.workers.values()]
        assert sorted(in_force.values()) == sorted(fleet)


@settings(max_examples=30)
@given(st.integers(0, 100), st.integers(0, RECORDS - 1))
def test_rows_do_not_depend_on_where_the_fold_began(seed: int, start: int) -> None:
    records = story(seed, RECORDS)
    fold = Fold()
    for offset, data in enumerate(records[: start + 1]):
        fold.apply(offset, data, [])
    restored = fold_from_checkpoint(checkpoint_records(fold, bytes(16)))
    rest = projected(records, restored, start)
    whole = projected(records).after(start)
    assert (rest.picks, rest.ends, rest.changes) == (whole.picks, whole.ends, whole.changes)
    assert rest.last == whole.last or start == RECORDS - 1


def test_a_fold_that_begins_in_the_middle_says_what_is_in_force() -> None:
    records = story(3, RECORDS)
    fold = Fold()
    for offset, data in enumerate(records):
        fold.apply(offset, data, [])
    rows = AuditRows()
    AuditProjector(fold, fold.mark.offset, None, RecordedCandidates()).begin(rows)
    began = [change.version for _, change in rows.changes if isinstance(change, WorkerBegan)]
    assert sorted(began) == sorted(map(worker_version, fold.state.registry.fleet.workers.values()))
    assert began
    AuditProjector(Fold(), -1, None, RecordedCandidates()).begin(rows := AuditRows())
    assert rows.count == 0


def test_going_and_coming_back_of_replicas_alternate() -> None:
    for seed in range(30):
        gone: dict[str, int] = {}
        for _, change in projected(story(seed, RECORDS)).changes:
            if isinstance(change, ReplicaLeft):
                before = gone.get(change.replica_id)
                assert before is None or change.at - before > WRITER_FORGOTTEN_US  # forgotten in between
                gone[change.replica_id] = change.at
            elif isinstance(change, ReplicaHeard):
                del gone[change.replica_id]
            elif isinstance(change, ReplicaRow):
                gone.pop(change.replica_id, None)


def test_samples_are_passed_by() -> None:
    records = story(5, RECORDS)
    rows = AuditRows()
    projector = AuditProjector(Fold(), -1, None, RecordedCandidates())
    for offset, data in enumerate(records):
        projector.apply(offset, data, rows)
    assert any(peek_kind(data) in PASSED_BY for data in records)
    assert projector.fold.state.load.workers == {}
    assert projector.position == RECORDS - 1


def test_picks_that_were_named_later_are_a_change_and_bring_no_replica_back() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("one")
    world.pass_time(40_000_000)
    world.say(ReplicaGone(replica.id, world.time))
    named = world.log.end_offset()
    world.say(PicksDistrusted(replica.id, 3, 7), replica.id)
    rows = projected([data for _, data in records_of(world.log, 0)])
    assert rows.changes[-1] == (named, PicksSuspected(replica.id.hex(), 3, 7, named))
    assert not [change for _, change in rows.changes if isinstance(change, ReplicaHeard)]
