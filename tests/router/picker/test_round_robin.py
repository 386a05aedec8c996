"""The rule that takes turns looks at no load."""

import pytest

from projections.events.picks import Phase, PickReason, Question
from projections.view import Overlay
from router.picker.pick import candidate_table, pick
from tests.replay.recorded_log import MODEL, SETTINGS, RecordedLog

TURNS = SETTINGS._replace(picker="round_robin")


def question(rotation: int) -> Question:
    return Question("r", 0, MODEL, MODEL, 1_000_000, 1_000_000, ("dynamo",), (), 100, 0, rotation)


@pytest.mark.req("DYN-16")
def test_all_candidates_take_their_turn_whatever_their_load() -> None:
    world = RecordedLog()
    world.sample(1, 900)
    world.sample(2, 0)
    replica = world.replica()
    view = replica.fold.view(Overlay())
    chosen = []
    rotation = 0
    for _ in range(6):
        outcome = pick(view, question(rotation), TURNS)
        rotation = outcome.rotation_decode
        assert outcome.decode.chosen is not None
        chosen.append(outcome.decode.chosen.instance_id)
        assert outcome.decode.reason == PickReason.ROUND_ROBIN_STALE
    assert chosen == [1, 2, 3, 1, 2, 3]


def test_its_table_shows_loads_and_no_costs() -> None:
    world = RecordedLog()
    world.sample(1, 900)
    view = world.replica().fold.view(Overlay())
    rows = candidate_table(view, question(0), TURNS)[Phase.DECODE]
    assert [row.active_decode_blocks for row in rows] == [900, None, None]
    assert {row.cost for row in rows} == {None}
