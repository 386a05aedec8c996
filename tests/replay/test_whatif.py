"""What-if counts over a range: moves, spread, costs, time, and what cannot be asked."""

import pytest

import replay.whatif as whatif_module
from projections.bounds import SECOND_US
from projections.events.control import KvPickSettings
from replay.alternative import Alternative
from replay.engine import Unverifiable
from replay.moves import Move
from replay.whatif import LIMITS, Times, WhatIfs, what_if
from tests.replay.prefix_log import PrefixLog, ask
from tests.replay.recorded_log import SETTINGS, RecordedLog

TURNS = Alternative("turns", None, (("picker", "round_robin"),))
SAME = Alternative("same", None)


def busy(picks: int = 30) -> RecordedLog:
    world = RecordedLog()
    replica = world.replica()
    for number in range(picks):
        world.pass_time(SECOND_US // 10)
        world.sample(1, 900)
        world.sample(2, 100 + number)
        replica.read()
        replica.ask(f"r{number}", tokens=16 + number, suspect=number == 5)
    return world


def asked(world: RecordedLog, *alternatives: Alternative) -> WhatIfs:
    return what_if(world.log, None, 0, world.log.end_offset(), alternatives)


@pytest.mark.req("EVS-08")
def test_nothing_moves_under_the_same_settings_and_turns_move_most() -> None:
    found = asked(busy(), SAME, TURNS)
    same, turns = found.results
    assert (same.picks, same.moved, same.share) == (29, 0, 0.0)
    assert turns.moved > 10 and turns.share == turns.moved / 29
    assert found.not_asked == {Unverifiable.SUSPECT: 1}


def test_counts_agree_with_each_other() -> None:
    [turns] = asked(busy(), TURNS).results
    [spread] = turns.spreads.values()
    assert sum(spread.before.values()) == sum(spread.after.values()) == turns.picks
    assert sum(row[0] for row in turns.by_model.values()) == turns.picks
    assert sum(row[1] for row in turns.by_namespace.values()) == turns.moved
    assert turns.gained.total() == turns.lost.total() == turns.moved
    for rank in spread.ranks():
        assert spread.after[rank] - spread.before[rank] == turns.gained[rank] - turns.lost[rank]
    decode = sum(count for (phase, *_), count in turns.reasons.items() if phase == "decode")
    assert decode == turns.picks == sum(picks for _, picks, _ in turns.times.rows())


def test_costs_of_turns_are_dearer_by_the_settings_of_then() -> None:
    [turns] = asked(busy(), TURNS).results
    assert turns.decode_cost.picks > 20 and turns.decode_cost.after > turns.decode_cost.before


def test_the_ten_largest_moves_are_kept_largest_first() -> None:
    [turns] = asked(busy(60), TURNS).results
    largest = turns.largest()
    assert len(largest) == 10 and turns.moved > 10
    sizes = [row.size for row in largest]
    assert sizes == sorted(sizes, reverse=True) and all(row.why for row in largest)


def test_samples_of_costs_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif_module, "SAMPLES_KEPT", 8)
    [turns] = asked(busy(60), TURNS).results
    assert 4 <= len(turns.costs_sampled) <= 8


def test_stretches_of_time_grow_together_as_they_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif_module, "TIMES_MAX", 4)
    times = Times()
    for second in range(16):
        times.add(second * SECOND_US, second % 2)
    rows = times.rows()
    assert len(rows) <= 4 and times.step_us == 4 * SECOND_US
    assert sum(picks for _, picks, _ in rows) == 16 and sum(moved for *_, moved in rows) == 8


def test_models_beyond_the_ceiling_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif_module, "NAMES_MAX", 0)
    [turns] = asked(busy(5), TURNS).results
    assert list(turns.by_model) == [whatif_module.OTHERS] == list(turns.spreads)


def test_each_pick_is_told_in_both_ways() -> None:
    world, told = busy(5), []

    def each(_: object, __: object, move: Move) -> None:
        told.append(move.is_moved)

    what_if(world.log, None, 0, world.log.end_offset(), [TURNS, SAME], each=each)
    assert len(told) == 5 and any(told)


@pytest.mark.req("EVS-08")
def test_blocks_held_are_told_before_and_after_on_one_scale() -> None:
    world = PrefixLog()
    world.store(2, "a", 8)
    for worker, blocks in ((1, 10), (2, 12), (3, 90)):
        world.sample(worker, blocks)
    replica = world.replica()
    ask(replica, "r", "a", 10)
    result = what_if(
        world.log,
        None,
        0,
        world.log.end_offset(),
        [
            Alternative("same", None),
            Alternative("no credit", None, (("kv.overlap_credit", 0.0), ("kv.prefill_scale", 0.0))),
            Alternative("load alone", SETTINGS),
        ],
    ).results
    assert [one.moved for one in result] == [0, 0, 1]
    assert [(one.overlap_before, one.overlap_after) for one in result] == [(8, 8), (8, 8), (8, 0)]


def test_picks_without_the_term_hold_no_blocks() -> None:
    world = RecordedLog()
    world.replica().ask("r")
    (result,) = what_if(world.log, None, 0, world.log.end_offset(), [Alternative("same", None)]).results
    assert (result.overlap_before, result.overlap_after) == (0, 0)


def test_a_term_that_was_off_goes_by_load_and_the_limits_say_for_how_many_picks() -> None:
    term = KvPickSettings(1.0, 1.0, 0.0, host_credit=0.5)
    world = busy()
    found = asked(world, SAME, Alternative("on", None, (("kv", term),)))
    assert [one.moved for one in found.results] == [0, 0]
    assert found.limits()[: len(LIMITS)] == list(LIMITS)
    [limit] = found.limits()[len(LIMITS) :]
    assert limit.startswith("29 of these picks were made while the prefix term was off")
    assert asked(world, SAME).limits() == list(LIMITS)


@pytest.mark.req("EVS-08", "KVP-02")
def test_a_term_that_was_on_can_be_taken_away_and_what_its_index_did_not_hold_is_told() -> None:
    world = PrefixLog()
    world.store(2, "a", 8)
    for worker, blocks in ((1, 10), (2, 20), (3, 90)):
        world.sample(worker, blocks)
    ask(world.replica(), "r", "a", 10)
    parts = (("kv.host_credit", 0.5), ("kv.predicted_ttl_us", SECOND_US))
    found = asked(world, SAME, Alternative("off", None, (("kv", None),)), Alternative("more", None, parts))
    assert [one.moved for one in found.results] == [0, 1, 0]
    assert [one.overlap_after for one in found.results] == [8, 0, 8]
    told = found.limits()[len(LIMITS) :]
    assert len(told) == 2 and all(text.startswith("1 of these picks") for text in told)
    assert "host memory" in told[0] and "stood for no blocks" in told[1]
