"""Two states are compared part by part, whatever is in them."""

from __future__ import annotations

from typing import Any

import pytest

from projections.checkpoint import checkpoint_facts, checkpoint_records
from projections.events import held
from projections.events.held import (
    CheckpointClosed,
    CheckpointOpened,
    FleetHeld,
    KvTierHeld,
    LedgerLine,
    RunHeld,
    SampleHeld,
    WriterSeen,
)
from replay.state_parts import PARTS, Fact, differing_parts
from tests.replay.recorded_log import RecordedLog

NOT_COMPARED = {CheckpointOpened, CheckpointClosed, KvTierHeld}  # the frame, and what runs are named by
RUN = RunHeld(0, b"t" * 8, b"e" * 8, b"\x01", (), (), ())


def facts() -> list[Fact]:
    """The state of a log with samples, picks and ends."""
    world = RecordedLog()
    replica = world.replica()
    for number in (1, 2, 3):
        world.sample(number, number)
        replica.read()
        replica.ask(f"request-{number}")
    replica.read()
    return [*checkpoint_facts(checkpoint_records(replica.fold, world.log.log_id))][1:-1]


def fact_of(kind: type[Any]) -> Fact:
    """A fact of which each field is a text of its own."""
    fact: Fact = kind(*kind._fields)
    return fact


def test_every_fact_of_a_checkpoint_is_a_part() -> None:
    kinds = {one for one in vars(held).values() if getattr(one, "__module__", "") == held.__name__}
    assert set(PARTS) == kinds - NOT_COMPARED
    assert len({part.word for part in PARTS.values()}) == len(PARTS)
    assert all(part.names < len(kind._fields) for kind, part in PARTS.items())


def test_equal_states_differ_in_nothing() -> None:
    assert differing_parts(facts(), facts()) == []
    assert differing_parts([], []) == []


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_a_part_that_is_told_otherwise_is_named_with_both_sides(kind: type[Any]) -> None:
    fact = fact_of(kind)
    other = fact._replace(**{kind._fields[-1]: "otherwise"})  # type: ignore[attr-defined]
    [found] = differing_parts([*facts(), fact], [*facts(), other])
    assert found == (kind, 1, 0, 0, (fact, other))


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_what_one_state_alone_holds_is_counted_on_its_side(kind: type[Any]) -> None:
    fact = fact_of(kind)
    [first] = differing_parts([*facts(), fact], facts())
    assert (first.changed, first.only_first, first.only_second, first.pair) == (0, 1, 0, (fact, None))
    [second] = differing_parts(facts(), [*facts(), fact])
    assert (second.changed, second.only_first, second.only_second, second.pair) == (0, 0, 1, (None, fact))


def test_the_first_of_several_is_the_one_that_is_shown_and_parts_come_in_the_order_of_a_checkpoint() -> None:
    ours = facts()
    theirs = [
        fact._replace(sequence=9) if isinstance(fact, SampleHeld) else fact
        for fact in ours
        if not isinstance(fact, LedgerLine)
    ]
    samples, lines = differing_parts(ours, theirs)
    assert (samples.kind, samples.changed) == (SampleHeld, 3)
    assert samples.pair[0] == next(fact for fact in ours if isinstance(fact, SampleHeld))
    assert (lines.kind, lines.only_first) == (LedgerLine, 3)


def test_several_facts_of_one_name_are_held_to_each_other_in_their_order() -> None:
    seen = WriterSeen(b"w", 1, 1)
    [found] = differing_parts([seen, seen, seen], [seen, seen._replace(last_sequence=2)])
    assert (found.changed, found.only_first) == (1, 1)


def test_runs_of_two_tiers_are_no_runs_of_each_other() -> None:
    fleet = FleetHeld(1, (), ())
    [found] = differing_parts([fleet, KvTierHeld(0), RUN], [fleet, KvTierHeld(1), RUN])
    assert (found.kind, found.changed, found.only_first, found.only_second) == (RunHeld, 0, 1, 1)
