"""What was shed of a publisher, and whether its next sample may speak for it."""

from __future__ import annotations

from ingest.log.shed_samples import ShedSamples
from projections.events.control import CheckpointDue
from tests.ingest.log.facts import reconnected, sample


def shed(*facts: tuple[object, ...]) -> ShedSamples:
    made = ShedSamples()
    for fact in facts:
        made.add(fact)
    return made


def test_a_sample_covers_the_shed_ones_before_it_once() -> None:
    owed = shed(sample(4), sample(5))
    assert owed.covered(sample(6)) == sample(6)._replace(covers_from=4)
    assert owed.covered(sample(7)) == sample(7)
    assert not owed


def test_a_number_that_was_never_heard_stays_missing() -> None:
    assert shed(sample(4)).covered(sample(6)) == sample(6)
    assert shed(sample(4), sample(6)).covered(sample(7)) == sample(7)


def test_what_another_rank_said_is_not_covered() -> None:
    assert shed(sample(4)._replace(dp_rank=1)).covered(sample(5)) == sample(5)


def test_a_new_connection_owes_nothing() -> None:
    owed = shed(sample(4))
    assert owed.covered(reconnected()) == reconnected()
    assert owed.covered(sample(5)) == sample(5)
    assert shed(sample(4)).covered(sample(1, connection=2)) == sample(1, connection=2)


def test_publishers_and_other_facts_are_kept_apart() -> None:
    owed = shed(CheckpointDue("x"), sample(4))
    assert owed.covered(sample(5, publisher=8)) == sample(5, publisher=8)
    assert owed.covered(CheckpointDue("y")) == CheckpointDue("y")
    assert owed.covered(sample(5)) == sample(5)._replace(covers_from=4)
