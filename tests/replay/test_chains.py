"""Own numbers without gaps, rotations handed on from pick to pick, and both across seams."""

import pytest

from projections.events.picks import PickMade
from replay.chains import Chains
from replay.log_walk import record_at, records_of
from tests.replay.recorded_log import RecordedLog


def honest() -> list[tuple[int, object]]:
    world = RecordedLog()
    one, two = world.replica(), world.replica()
    for number in range(6):
        fact = one.ask(f"one{number}")
        two.ask(f"two{number}")
        if number % 2:
            one.end(fact)
    lost = one.choose("lost")
    later = one.choose("later")
    end = one.ended(lost)
    one.lose(lost, ends={lost.pick_id: end})
    world.say(later, one.id)
    one.ask("after")
    facts: list[tuple[int, object]] = []
    for offset, data in records_of(world.log, 0):
        record = record_at(offset, data)
        assert record is not None
        facts.append((offset, record.fact))
    return facts


def followed(facts: list[tuple[int, object]]) -> Chains:
    chains = Chains()
    for offset, fact in facts:
        chains.note(offset, fact)
    return chains


def test_an_honest_log_has_no_gap_and_no_break() -> None:
    chains = followed(honest())
    assert (chains.gaps, chains.breaks, chains.first_gap, chains.first_break) == (0, 0, None, None)


def test_a_missing_pick_is_a_gap_in_own_numbers() -> None:
    facts = honest()
    taken = [place for place, (_, fact) in enumerate(facts) if isinstance(fact, PickMade)][4]
    gone = facts.pop(taken)[1]
    chains = followed(facts)
    assert chains.gaps == 1 and chains.first_gap is not None
    assert isinstance(gone, PickMade)
    assert (chains.first_gap.replica, chains.first_gap.first) == (gone.replica, gone.own_seq + 1)
    assert chains.breaks == 0, "what lay between is not known, so its rotations are not judged"


def test_a_changed_rotation_is_a_break() -> None:
    facts = honest()
    place, (offset, fact) = [(p, f) for p, f in enumerate(facts) if isinstance(f[1], PickMade)][3]
    assert isinstance(fact, PickMade)
    question = fact.question._replace(rotation_decode=fact.question.rotation_decode + 1)
    facts[place] = (offset, fact._replace(question=question))
    chains = followed(facts)
    assert chains.breaks == 1 and chains.first_break is not None
    assert (chains.first_break.offset, chains.first_break.model) == (offset, fact.question.served_model)


@pytest.mark.parametrize("cut", range(1, 30, 3))
def test_stretches_that_were_read_apart_are_joined_without_a_seam(cut: int) -> None:
    facts = honest()
    chains = followed(facts[:cut])
    chains.join(followed(facts[cut:]))
    assert (chains.gaps, chains.breaks) == (0, 0)


def test_a_record_that_is_missing_at_a_seam_is_a_gap() -> None:
    facts = [entry for entry in honest() if isinstance(entry[1], PickMade)]
    mine = [entry for entry in facts if entry[1].replica == facts[1][1].replica]  # type: ignore[attr-defined]
    chains = followed(mine[:2])
    chains.join(followed(mine[3:]))
    assert chains.gaps == 1


def test_a_changed_rotation_at_a_seam_is_a_break() -> None:
    facts = [entry for entry in honest() if isinstance(entry[1], PickMade)]
    mine = [entry for entry in facts if entry[1].replica == facts[1][1].replica]  # type: ignore[attr-defined]
    offset, fact = mine[2]
    assert isinstance(fact, PickMade)
    forged = fact._replace(question=fact.question._replace(rotation_decode=9))
    chains = followed(mine[:2])
    chains.join(followed([(offset, forged), *mine[3:]]))
    assert chains.breaks == 1
