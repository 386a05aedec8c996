"""The pinning machine in every order of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from projections.events.picks import (
    Chosen,
    EndStatus,
    Fault,
    Outcome,
    PhaseOutcome,
    PickMade,
    Question,
)
from router.pinning import (
    Acknowledged,
    AnswerReady,
    AppendEnd,
    AppendPick,
    ClientGone,
    CloseUpstream,
    CountUnlogged,
    Dispatch,
    Effect,
    Ended,
    Moment,
    OpenOutput,
    Picked,
    Pinning,
    Unlogged,
    WaitForLog,
    WaitOver,
)

WAIT_US = 250_000
OK = Ended(EndStatus.OK, Fault.NONE, 200, "shim-1", 1500, 39, 2, 16)


def pick_made(chooses: bool = True) -> PickMade:
    question = Question("r", 0, "m", "m", 1, 1, ("dynamo",), (), 9, 0, 0)
    chosen = Chosen(7, 0, False, 9, 1) if chooses else None
    phase = PhaseOutcome(1, chosen, 1, None, b"")
    none = PhaseOutcome(3, None, 0, None, b"")
    return PickMade(b"P" * 16, b"R" * 16, 4, 10, 1, question, Outcome("dynamo", none, phase, 0, 1, b""))


class Told:
    """A machine, and everything it said."""

    def __init__(self, chooses: bool = True, away: bool = False) -> None:
        self.numbers = 10
        self.now = 1_000
        self.machine = Pinning(WAIT_US, self._number)
        self.said: list[Effect] = []
        self.last = self.tell(Picked(pick_made(chooses), away))

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def tell(self, event: Any, after_us: int = 1) -> list[Effect]:
        self.now += after_us
        self.last = self.machine.on_event(event, Moment(self.now, 5_000_000 + self.now))
        self.said.extend(self.last)
        return self.last

    def of(self, kind: type) -> list[Any]:
        return [effect for effect in self.said if isinstance(effect, kind)]


def test_pick_is_queued_before_the_request_is_sent() -> None:
    assert [type(effect) for effect in Told().last] == [AppendPick, Dispatch]


def test_pick_without_a_worker_is_logged_and_not_dispatched() -> None:
    told = Told(chooses=False)
    assert [type(effect) for effect in told.last] == [AppendPick]
    assert told.machine.has_ended
    assert told.tell(OK) == []


def test_first_byte_goes_out_when_the_pick_is_acknowledged() -> None:
    told = Told()
    assert told.tell(AnswerReady()) == [WaitForLog(1_001 + WAIT_US)]
    assert told.tell(Acknowledged()) == [OpenOutput(True)]
    assert told.tell(WaitOver()) == []
    assert told.of(CountUnlogged) == []


def test_acknowledged_before_the_answer_costs_no_wait() -> None:
    told = Told()
    assert told.tell(Acknowledged()) == []
    assert told.tell(AnswerReady()) == [OpenOutput(True)]


@pytest.mark.parametrize("event", [WaitOver(), Unlogged()])
def test_outage_rule_lets_the_answer_out_and_is_counted(event: Any) -> None:
    told = Told()
    told.tell(AnswerReady())
    assert told.tell(event) == [CountUnlogged(), OpenOutput(False)]
    assert told.tell(Acknowledged()) == []


def test_log_known_to_be_away_costs_no_wait() -> None:
    told = Told(away=True)
    assert told.tell(AnswerReady()) == [CountUnlogged(), OpenOutput(False)]


def test_outage_before_the_answer_is_remembered_but_an_acknowledgement_still_counts_as_logged() -> None:
    told = Told()
    told.tell(Unlogged())
    told.tell(Acknowledged())
    assert told.tell(AnswerReady()) == [OpenOutput(True)]


def test_end_holds_what_was_seen_and_takes_the_next_number() -> None:
    told = Told()
    (effect,) = told.tell(OK, after_us=9_000)
    assert isinstance(effect, AppendEnd)
    assert effect.end == (
        b"P" * 16, b"R" * 16, 11, 5_000_000 + told.now, 1, 0, 200, "shim-1", 1500, 9_000, 39, 2, 16,
    )  # fmt: skip
    assert told.numbers == 11


@pytest.mark.req("SHIM-27", "STORE-11")
def test_client_that_leaves_closes_upstream_and_ends_the_dispatch_once() -> None:
    told = Told()
    close, append = told.tell(ClientGone(200, "shim-1", 5))
    assert close == CloseUpstream()
    assert isinstance(append, AppendEnd)
    assert (append.end.status, append.end.http_status) == (EndStatus.CANCELLED, 200)
    assert told.tell(ClientGone()) == []
    assert told.tell(OK) == []
    assert told.tell(AnswerReady()) == []
    assert told.tell(Acknowledged()) == []


def test_client_that_leaves_after_the_end_changes_nothing_in_the_log() -> None:
    told = Told()
    told.tell(OK)
    assert told.tell(ClientGone()) == [CloseUpstream()]


def test_events_before_the_pick_do_nothing() -> None:
    machine = Pinning(WAIT_US, lambda: 1)
    for event in (Acknowledged(), Unlogged(), AnswerReady(), WaitOver(), OK, ClientGone()):
        assert machine.on_event(event, Moment(1, 1)) == []


EVENTS = st.sampled_from(
    [
        Acknowledged(),
        Unlogged(),
        AnswerReady(),
        WaitOver(),
        OK,
        Ended(EndStatus.FAILED, Fault.FAULT),
        ClientGone(),
    ]
)


@pytest.mark.req("DYN-15", "SHIM-27")
@pytest.mark.field("B-029")
@given(chooses=st.booleans(), away=st.booleans(), events=st.lists(EVENTS, max_size=20))
def test_whatever_the_order_there_is_one_pick_one_end_and_one_opening(
    chooses: bool, away: bool, events: list[Any]
) -> None:
    told = Told(chooses, away)
    for event in events:
        told.tell(event)
    told.tell(ClientGone())  # the shell's last word, whatever happened
    assert len(told.of(AppendPick)) == 1
    assert len(told.of(AppendEnd)) == (1 if chooses else 0)
    assert told.numbers == 10 + len(told.of(AppendEnd))
    assert len(told.of(OpenOutput)) <= 1
    assert len(told.of(CountUnlogged)) == len([o for o in told.of(OpenOutput) if not o.logged])
    assert told.machine.has_ended


class AnyOrder(RuleBasedStateMachine):
    """The machine against a few lines that say the same in words."""

    @initialize(chooses=st.booleans(), away=st.booleans())
    def begin(self, chooses: bool, away: bool) -> None:
        self.told = Told(chooses, away)
        self.chooses, self.may_open = chooses, away
        self.ready = self.gone = self.over = False

    def _expect_open(self) -> bool:
        return self.ready and self.may_open and not self.opened_before and not self.gone

    @rule(event=EVENTS)
    def event(self, event: Any) -> None:
        self.opened_before = bool(self.told.of(OpenOutput))
        effects = self.told.tell(event)
        if isinstance(event, Acknowledged | Unlogged | WaitOver):
            self.may_open = True
        if isinstance(event, AnswerReady):
            self.ready = True
        if isinstance(event, ClientGone):
            self.gone = True
        opens = [effect for effect in effects if isinstance(effect, OpenOutput)]
        assert bool(opens) == self._expect_open()
        ends = [effect for effect in effects if isinstance(effect, AppendEnd)]
        ending = isinstance(event, Ended | ClientGone)
        assert bool(ends) == (ending and self.chooses and not self.over)
        self.over = self.over or ending

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.told.of(AppendEnd)) == int(self.chooses and self.over)
        assert len(self.told.of(WaitForLog)) <= 1


TestAnyOrder = AnyOrder.TestCase
