"""A replica sees its own picks at once, and each of them once."""

from typing import Any

import pytest

from app.log_tail import monotonic_us
from app.pick_log import NO_SETTINGS, ReplicaLog
from app.tail import StopReason, Tail
from projections.events.picks import DispatchEnded, EndStatus, Fault, PickMade, Question
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


def test_before_the_first_adoption_the_settings_serve_nothing() -> None:
    desk = Desk()
    empty = ReplicaLog(desk.replica, Tail(Fold(), desk.replica, 0), lambda *_: None)
    assert empty.settings() == NO_SETTINGS
    assert NO_SETTINGS.pick.namespaces == ()
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
