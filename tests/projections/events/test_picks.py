"""A replica numbers its picks and ends without gaps, whatever record tells of them."""

from projections.events.picks import (
    DispatchEnded,
    EndStatus,
    Fault,
    LostPick,
    Outcome,
    PhaseOutcome,
    PickMade,
    Question,
    own_number,
)

PHASE = PhaseOutcome(6, None, 0, None, b"")
OUTCOME = Outcome(None, PHASE, PHASE, 0, 0, bytes(16))
QUESTION = Question("r", 0, "m", "m", 1, 1, (), (), 1, 0, 0)


def test_own_numbers_of_a_pick_its_end_and_the_next_pick_follow_each_other() -> None:
    first = PickMade(b"1" * 16, bytes(16), 0, -1, 1, QUESTION, OUTCOME)
    end = DispatchEnded(b"1" * 16, bytes(16), 2, 5, EndStatus.OK, Fault.NONE, 200, "", None, 1)
    second = PickMade(b"2" * 16, bytes(16), 2, -1, 1, QUESTION, OUTCOME)
    lost = LostPick(b"3" * 16, 3, 1, 1, "", None, None, None, None)
    assert [own_number(fact) for fact in (first, end, second, lost)] == [1, 2, 3, 4]
