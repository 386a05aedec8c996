"""A replica sees its own picks at once, and each of them once."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from app.log_tail import monotonic_us
from app.pick_log import NO_SETTINGS, ReplicaLog
from app.tail import StopReason, Tail, TickNote
from projections.events.control import ClockTicked, ReplicaGone, ReplicaStarted
from projections.events.kinds import KIND_NEWEST, Kind
from projections.events.picks import DispatchEnded, EndStatus, Fault, PickMade, PicksDistrusted, Question
from projections.fold import Fold
from projections.identity import RankKey
from router.picker.pick import pick
from tests.replay.recorded_log import MODEL, SETTINGS, RecordedLog


class Desk:
    """A replica's log on a world whose records it reads when a test says so."""

    def __init__(self) -> None:
        self.world = RecordedLog()
        self.replica = bytes([42]) * 16
        self.tail = Tail(Fold(), self.replica, monotonic_us())
        self.sent: list[tuple[Any, ...]] = []
        self.log = ReplicaLog(self.replica, self.tail, lambda fact, time, on_done: self.sent.append(fact))
        self.read()

    def read(self) -> None:
        self.tail.on_batches(self.world.log.read(self.tail.next_offset, 1 << 20), monotonic_us())
        self.tail.work(monotonic_us(), 1 << 20)

    def deliver(self) -> None:
        for fact in self.sent:
            self.world.say(fact, self.replica)
        self.sent.clear()

    def pick(self, number: int) -> PickMade:
        at = self.world.time
        question = Question(f"r{number}", 0, MODEL, MODEL, at, at, ("dynamo",), (), 160, 0, number)
        view = self.log.view()
        outcome = pick(view, question, SETTINGS)
        own_seq = self.log.next_own_seq() - 1
        fact = PickMade(bytes([number]) * 16, self.replica, own_seq, view.as_of, 1, question, outcome)
        self.log.append_pick(fact, lambda _: None)
        return fact

    def charged(self) -> int:
        view = self.log.view()
        return sum(view.unanswered_tokens(RankKey("dynamo", n, 0), self.world.time) for n in (1, 2, 3))


@pytest.mark.req("EVS-05")
def test_an_own_pick_weighs_before_and_after_it_is_folded_and_never_twice() -> None:
    desk = Desk()
    assert desk.charged() == 0
    desk.pick(1)
    desk.pick(2)
    assert desk.charged() == 320
    assert desk.log.overlay_size == 2
    desk.deliver()
    assert desk.charged() == 320, "written, not yet read"
    desk.read()
    assert desk.charged() == 320
    assert desk.log.overlay_size == 0


def test_own_numbers_run_over_picks_and_ends() -> None:
    desk = Desk()
    first = desk.pick(1)
    end = DispatchEnded(
        first.pick_id,
        desk.replica,
        desk.log.next_own_seq(),
        desk.world.time,
        EndStatus.OK,
        Fault.NONE,
        200,
        "",
        1,
        1,
    )
    desk.log.append_end(end)
    second = desk.pick(2)
    assert (first.own_seq, end.own_seq, second.own_seq) == (0, 2, 2)
    desk.deliver()
    desk.read()
    desk.log.forget_folded()
    assert desk.log.overlay_size == 0
    held = desk.tail.fold.state.status.replica(desk.replica)
    assert held is not None
    assert held.own_seq == 3


def test_an_own_end_is_written_and_counts_before_it_is_folded() -> None:
    desk = Desk()
    fact = desk.pick(1)
    chosen = fact.outcome.decode.chosen
    assert chosen is not None
    worker, at = RankKey("dynamo", chosen.instance_id, 0).worker, desk.world.time
    failed = DispatchEnded(
        fact.pick_id,
        desk.replica,
        desk.log.next_own_seq(),
        at,
        EndStatus.FAILED,
        Fault.FAULT,
        503,
        "",
        None,
        1,
    )
    assert not desk.log.view().is_suspect(worker, at)
    desk.log.append_end(failed)
    assert desk.sent == [fact, failed] and desk.log.overlay_size == 2
    assert desk.log.view().is_suspect(worker, at)
    desk.deliver()
    desk.read()
    assert desk.log.view().is_suspect(worker, at) and desk.log.overlay_size == 0


@pytest.mark.req("EVS-06")
def test_a_replica_picks_by_the_flags_that_its_state_knows_it_by_and_not_by_its_release() -> None:
    desk = Desk()
    assert (desk.log.flags(), desk.log.is_nameless) == ((), False), "nobody heard of it"
    desk.pick(1)
    desk.deliver()
    desk.read()
    assert (desk.log.flags(), desk.log.is_nameless) == ((), True)
    desk.world.say(
        ReplicaStarted(desk.replica, "me", "router", "1", "3", (1,), KIND_NEWEST, ()), desk.replica
    )
    assert desk.log.flags() == (), "said, and not folded"
    desk.read()
    assert (desk.log.flags(), desk.log.is_nameless) == ((1,), False)


def test_before_the_first_adoption_the_settings_serve_nothing() -> None:
    desk = Desk()
    empty = ReplicaLog(desk.replica, Tail(Fold(), desk.replica, 0), lambda *_: None)
    assert empty.settings() == NO_SETTINGS
    assert NO_SETTINGS.pick.namespaces == () and not NO_SETTINGS.enabled
    assert desk.log.settings().version == 1


def test_picks_are_suspect_while_the_fold_has_stopped_and_no_other_stands() -> None:
    desk = Desk()
    desk.pick(1)
    assert not desk.log.is_suspect()
    desk.tail.stopped = StopReason.POISON
    assert desk.log.is_suspect()
    again = Tail(Fold(), desk.replica, monotonic_us())
    again.on_batches(desk.world.log.read(0, 1 << 20), monotonic_us())
    again.work(monotonic_us(), 1 << 20)
    desk.log.go_on_with(again)
    assert not desk.log.is_suspect()
    assert desk.charged() == 160, "an own pick that no fold holds yet still weighs"


def test_log_time_does_not_go_back_with_another_fold() -> None:
    desk = Desk()
    before, _ = desk.log.log_time()
    desk.log.go_on_with(Tail(Fold(), desk.replica, monotonic_us()))
    assert desk.log.log_time()[0] >= before


def test_log_time_and_lag_are_the_tails() -> None:
    desk = Desk()
    log_time, lag_us = desk.log.log_time()
    assert log_time >= desk.world.time
    assert lag_us == 0
    assert not desk.log.is_away()


def disagreeing(desk: Desk) -> tuple[int, PickMade]:
    """Two folds agree at a tick, a pick follows, and the next tick differs: that tick, and the pick."""
    desk.world.say(ReplicaStarted(desk.replica, "me", "router", "1", "3", (), KIND_NEWEST, ()), desk.replica)
    desk.pick(1)
    agreed = tick(desk)
    tick(desk, desk.tail.notes_for_tick())
    made = desk.pick(2)
    note = desk.tail.notes_for_tick()
    assert note is not None and desk.tail.agreed_offset == agreed
    (name, digest), *rest = note.digests
    tick(desk, note._replace(digests=((name, digest ^ 1), *rest)))
    assert desk.tail.stopped is StopReason.DISAGREED
    desk.sent.clear()
    return agreed, made


def tick(desk: Desk, note: TickNote | None = None) -> int:
    desk.world.pass_time(1_000_000)
    offset = desk.world.say(ClockTicked(1, *note) if note is not None else ClockTicked(1, -1, (), 0, 0))
    desk.read()
    return offset


def successor(desk: Desk) -> Tail:
    """A tail that has compared no notes, at the end of the log."""
    fold = Fold()
    for batch in desk.world.log.read(0, 1 << 20):
        fold.apply_batch(batch, [])
    return Tail(fold, desk.replica, monotonic_us())


@pytest.mark.req("EVS-06")
def test_picks_since_the_last_agreed_state_are_named_once() -> None:
    desk = Desk()
    agreed, made = disagreeing(desk)
    desk.log.distrust()
    assert desk.sent == [PicksDistrusted(desk.replica, agreed, made.as_of)] and made.as_of > agreed
    desk.log.distrust()
    desk.log.go_on_with(successor(desk))
    assert len(desk.sent) == 1


def test_without_a_pick_since_the_last_agreed_state_nothing_is_named() -> None:
    desk = Desk()
    disagreeing(desk)
    desk.log.go_on_with(desk.tail)
    desk.log.distrust()
    assert desk.sent == []


def test_a_pick_on_the_very_state_that_agreed_is_not_named() -> None:
    desk = Desk()
    desk.world.say(ReplicaStarted(desk.replica, "me", "router", "1", "3", (), KIND_NEWEST, ()), desk.replica)
    agreed = tick(desk)
    assert desk.pick(1).as_of == agreed
    tick(desk, desk.tail.notes_for_tick())
    note = desk.tail.notes_for_tick()
    assert note is not None and desk.tail.agreed_offset == agreed
    tick(desk, note._replace(digests=()))
    assert desk.tail.stopped is StopReason.DISAGREED
    desk.sent.clear()
    desk.log.distrust()
    assert desk.sent == []


def test_a_fold_that_stopped_for_another_reason_names_nothing() -> None:
    desk = Desk()
    disagreeing(desk)
    desk.tail.stopped = StopReason.POISON
    desk.log.distrust()
    assert desk.sent == []


def test_picks_of_the_fold_before_are_not_named() -> None:
    """A fold that began at an old checkpoint agreed nowhere yet; picks before it were not made on it."""
    desk = Desk()
    begun = Tail(Fold(), desk.replica, monotonic_us())
    desk.pick(1)
    begun.on_batches(desk.world.log.read(0, 1 << 20), monotonic_us())
    begun.work(monotonic_us(), 1 << 20)
    desk.log.go_on_with(begun)
    desk.tail = begun
    made = desk.pick(2)
    begun.stopped = StopReason.DISAGREED
    desk.world.say(ReplicaStarted(desk.replica, "me", "router", "1", "3", (), KIND_NEWEST, ()), desk.replica)
    for batch in desk.world.log.read(begun.next_offset, 1 << 20):
        begun.fold.apply_batch(batch, [])
    desk.sent.clear()
    desk.log.distrust()
    assert begun.agreed_offset < made.as_of - 1
    assert desk.sent == [PicksDistrusted(desk.replica, made.as_of - 1, made.as_of)]


@pytest.mark.parametrize("is_gone", [True, False])
def test_nothing_is_named_while_a_live_process_would_not_read_it(is_gone: bool) -> None:
    desk = Desk()
    old = b"old-------------"
    desk.world.say(ReplicaStarted(old, "old", "ingest", "0", "3", (), int(Kind.PREDICTION_HELD), ()), old)
    agreed, made = disagreeing(desk)
    desk.log.distrust()
    assert desk.sent == []
    if is_gone:
        desk.world.say(ReplicaGone(old, desk.world.time))
    with capture_logs() as lines:
        desk.log.go_on_with(successor(desk))
    [line] = lines
    if is_gone:
        assert desk.sent == [PicksDistrusted(desk.replica, agreed, made.as_of)]
        assert line["event"] == "picks since the last agreed state are suspect"
    else:
        assert desk.sent == []
        assert line["event"].endswith("not every process reads that mark yet") and line["update"] == ("old",)
