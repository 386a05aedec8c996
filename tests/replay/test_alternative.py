"""Asking again under other settings: the settings decide, rotations are threaded anew."""

import pytest

from projections.events.control import KvPickSettings, PickSettings
from replay.alternative import Alternative, Asker
from replay.engine import Replay
from tests.replay.recorded_log import SETTINGS, RecordedLog


def idle_log(picks: int = 9) -> RecordedLog:
    """Nothing is known of any load: all take turns."""
    world = RecordedLog()
    replica = world.replica()
    for number in range(picks):
        world.pass_time(1_000)
        replica.read()
        replica.ask(f"r{number}", tokens=16)
    return world


def winners(world: RecordedLog, alternative: Alternative) -> list[int | None]:
    asker = Asker(alternative)
    found = []
    for asked in Replay(world.log, None).asked():
        chosen = asker.ask(asked).outcome.decode.chosen
        found.append(chosen.instance_id if chosen else None)
    return found


@pytest.mark.req("EVS-08")
def test_the_same_settings_give_the_same_outcomes() -> None:
    world = idle_log()
    asker = Asker(Alternative("same", SETTINGS))
    for asked in Replay(world.log, None).asked():
        assert asker.ask(asked).outcome == asked.fact.outcome


def test_rotations_go_on_where_the_alternative_left_them() -> None:
    world = RecordedLog()
    world.sample(1, 900)
    world.sample(2, 900)
    replica = world.replica()
    for number in range(6):
        world.pass_time(1_000)
        replica.ask(f"r{number}", tokens=16)
        replica.read()
    recorded = [f.outcome.decode.chosen.instance_id for f in replica.picks if f.outcome.decode.chosen]
    assert recorded.count(3) > 2, "the idle one gets most"
    assert winners(world, Alternative("turns", None, (("picker", "round_robin"),))) == [1, 2, 3, 1, 2, 3]


def test_a_recorded_chain_that_breaks_is_taken_up_again_where_it_goes_on() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r0")
    lost = replica.choose("lost")
    replica.lose(lost)
    replica.read()
    fact = replica.ask("r2")
    assert fact.question.rotation_decode == 2
    chosen = fact.outcome.decode.chosen
    assert chosen is not None
    assert winners(world, Alternative("turns", None, (("picker", "round_robin"),)))[-1] == chosen.instance_id


def test_the_model_map_and_the_namespaces_of_the_alternative_count() -> None:
    world = idle_log(2)
    other = PickSettings("load_based", "file", ("dynamo",), (("tiny", "nobody-serves-this"),), 3_000_000)
    assert winners(world, Alternative("map", other)) == [None, None]
    elsewhere = SETTINGS._replace(namespaces=("elsewhere",))
    assert winners(world, Alternative("namespaces", elsewhere)) == [None, None]


def test_replaced_fields_lie_over_the_recorded_settings_or_the_given_ones() -> None:
    alternative = Alternative("x", None, (("max_staleness_us", 7),))
    assert alternative.of(SETTINGS) == SETTINGS._replace(max_staleness_us=7)
    given = SETTINGS._replace(picker="round_robin")
    assert alternative._replace(settings=given).of(SETTINGS) == given._replace(max_staleness_us=7)


def test_parts_of_the_prefix_term_are_replaced_where_there_is_one() -> None:
    alternative = Alternative("x", None, (("kv.overlap_credit", 0.5), ("kv.temperature", 2.0)))
    assert alternative.of(SETTINGS) == SETTINGS
    kv = KvPickSettings(1.0, 1.0, 0.0)
    expected = kv._replace(overlap_credit=0.5, temperature=2.0)
    assert alternative.of(SETTINGS._replace(kv=kv)) == SETTINGS._replace(kv=expected)


def test_the_prefix_term_is_taken_away_or_put_where_there_is_none_before_its_parts() -> None:
    own, other = KvPickSettings(1.0, 1.0, 0.0), KvPickSettings(0.25, 2.0, 0.5)
    on = Alternative("on", None, (("kv.overlap_credit", 0.75), ("kv", other)))
    assert on.of(SETTINGS).kv == other._replace(overlap_credit=0.75)
    assert on.of(SETTINGS._replace(kv=own)).kv == own._replace(overlap_credit=0.75)
    off = Alternative("off", None, (("kv.overlap_credit", 0.75), ("kv", None)))
    assert off.of(SETTINGS._replace(kv=own)) == SETTINGS
