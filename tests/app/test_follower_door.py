"""A follower says how it stands: ready once it caught up, lags, the age of its checkpoints."""

from __future__ import annotations

from math import isnan

from prometheus_client import generate_latest

from app.audit_figures import AuditFigures, Failure
from app.follower_door import FollowerRegistry, FollowerState
from app.log_tail import monotonic_us
from app.tail import StopReason, Tail
from projections.bounds import SECOND_US
from projections.events.ports import CheckpointInfo
from projections.fold import Fold
from tests.replay.recorded_log import RecordedLog


class Fold0:
    """A follower before and while it folds."""

    def __init__(self) -> None:
        self.tail: Tail | None = None
        self.restarts = 0


def standing() -> tuple[RecordedLog, Fold0, FollowerState, list[CheckpointInfo]]:
    world, follower = RecordedLog(), Fold0()
    world.sample(1, 1)
    checkpoints: list[CheckpointInfo] = []
    state = FollowerState(follower, world.log, lambda: checkpoints[-1] if checkpoints else None)
    return world, follower, state, checkpoints


def folded(world: RecordedLog) -> Tail:
    tail = Tail(Fold(), bytes(16), monotonic_us())
    tail.on_batches(world.log.read(0, 1 << 30), 0)
    tail.work(0, 1 << 30)
    return tail


def test_it_is_ready_once_it_folded_what_there_was_and_stays_so_while_it_follows() -> None:
    world, follower, state, _ = standing()
    assert state.ready() == {"ready": False, "missing": ["caught_up"], "degraded": []}
    follower.tail = folded(world)
    assert state.ready()["ready"]
    for _ in range(5):
        world.sample(1, 2)
    assert state.ready()["ready"] and state.lag_records() == 5
    follower.tail.stopped = StopReason.POISON
    assert state.ready()["missing"] == ["fold_poison"]


def test_what_is_not_known_is_no_figure() -> None:
    world, follower, state, checkpoints = standing()
    unknown = [state.checkpoint_age_s(), state.offset(), state.lag_records()]
    unknown += [state.audit_offset(), state.audit_lag_records(), state.audit_lag_s()]
    assert all(isnan(figure) for figure in unknown), unknown
    follower.tail = folded(world)
    stamp = follower.tail.fold.state.intake.stamp
    checkpoints.append(CheckpointInfo(0, 0, stamp - 3 * SECOND_US, 1, "x"))
    assert state.checkpoint_age_s() == 3


def test_rows_are_behind_by_records_and_by_the_log_s_own_time() -> None:
    world, follower, state, _ = standing()
    state.audit = AuditFigures()
    last = world.log.end_offset() - 1
    assert (state.audit_offset(), state.audit_lag_records()) == (-1, last + 1)
    assert isnan(state.audit_lag_s()), "nothing is folded, nothing is written"
    follower.tail = folded(world)
    state.audit.wrote(0, 0)
    assert isnan(state.audit_lag_s()), "at a start the log time of the mark is not known"
    stamp = follower.tail.fold.state.intake.stamp
    state.audit.wrote(last - 1, stamp - 3 * SECOND_US)
    assert (state.audit_offset(), state.audit_lag_records(), state.audit_lag_s()) == (last - 1, 1, 3)
    state.audit.wrote(last - 1, stamp + SECOND_US)
    assert state.audit_lag_s() == 0, "the audit may be ahead of the fold"
    state.audit.wrote(last, 0)
    assert (state.audit_lag_records(), state.audit_lag_s()) == (0, 0)


def test_its_series_are_read_when_they_are_asked_for() -> None:
    world, follower, state, _ = standing()
    registry = FollowerRegistry(state)
    assert registry.registry.get_sample_value("picklog_ready") == 0
    follower.tail = folded(world)
    assert registry.registry.get_sample_value("picklog_ready") == 1
    assert registry.registry.get_sample_value("picklog_log_end_offset") == world.log.end_offset()
    assert registry.registry.get_sample_value("picklog_audit_messages_sent_total") == 0
    state.audit = AuditFigures()
    state.audit.has_sent(7)
    state.audit.failed(Failure.REFUSED)
    assert registry.registry.get_sample_value("picklog_audit_messages_sent_total") == 7
    refused = {"cause": Failure.REFUSED.value}
    assert registry.registry.get_sample_value("picklog_audit_failures_total", refused) == 1
    assert b"picklog_build_info{" in generate_latest(registry.registry)
    registry.told(b'{"added": {"verified_different": 2}, "is_shadowed": false, "lag_records": 4}\n')
    assert registry.registry.get_sample_value("picks_unreproduced_total") == 2
