"""Moves are measured by the costs of then, and explained."""

from projections.bounds import SECOND_US
from replay.alternative import Alternative, Asker
from replay.engine import Replay
from replay.moves import Move, choice_of, move_of, why_moved
from tests.replay.recorded_log import RecordedLog


def loaded() -> RecordedLog:
    """Worker 3 is idle, 1 and 2 are busy; the sample of 3 is a second older."""
    world = RecordedLog()
    world.sample(3, 0)
    world.pass_time(SECOND_US)
    world.sample(1, 500)
    world.sample(2, 900)
    world.replica().ask("r0", tokens=160)
    return world


def moved(world: RecordedLog, *replaced: tuple[str, object]) -> tuple[Move, list[str]]:
    asker = Asker(Alternative("x", None, replaced))
    for asked in Replay(world.log, None).asked():
        again = asker.ask(asked)
        move = move_of(asked, again)
        return move, why_moved(asked, again, move)
    raise AssertionError("no pick")


def test_a_move_is_measured_on_the_scale_of_then() -> None:
    move, why = moved(loaded(), ("picker", "round_robin"))
    assert move.is_moved and move.before.decode is not None and move.after.decode is not None
    assert (move.before.decode.instance_id, move.after.decode.instance_id) == (3, 1)
    assert move.decode_costs == (0.01, 0.51) and move.size == 0.5
    assert why[0] == "decode: dynamo/3 rank 0 then, dynamo/1 rank 0 otherwise"
    assert "dynamo/1 rank 0 costs 0.510000 then" in why
    assert "the reason is round_robin_stale instead of load" in why


def test_a_verdict_that_differs_is_the_cause() -> None:
    world = RecordedLog()
    world.sample(3, 5)
    world.pass_time(SECOND_US)
    world.sample(1, 500)
    world.sample(2, 900)
    world.replica().ask("r0", tokens=160)
    _, why = moved(world, ("max_staleness_us", SECOND_US // 2))
    assert "dynamo/3 rank 0 reads silent instead of fresh, its sample 1.000 s old" in why


def test_a_pick_that_stays_is_no_move_and_keeps_its_cost() -> None:
    move, why = moved(loaded(), ("max_staleness_us", 5 * SECOND_US))
    assert not move.is_moved and move.size == 0.0 and why == []
    assert move.decode_costs == (0.01, 0.01)


def test_a_worker_that_is_no_candidate_is_named_as_such() -> None:
    world = loaded()
    move, why = moved(world, ("namespaces", ("elsewhere",)))
    assert move.after.decode is None and move.size == 0.0
    assert "dynamo/3 rank 0 was no candidate otherwise" in why
    [asked] = Replay(world.log, None).asked()
    assert choice_of(asked.fact.outcome) == move.before
