"""The engine gives each pick the state and overlay that it was made on."""

import pytest

import replay.engine as engine_module
import replay.scout as scout_module
from projections.bounds import SECOND_US
from projections.events.control import RecordCondemned
from projections.events.picks import Fault, PicksDistrusted
from replay.condemned import condemned_in
from replay.engine import Asked, Part, Replay, Unverifiable, parts_of
from replay.log_walk import records_of
from replay.verify import compare
from tests.replay.checkpoints_in_memory import Checkpoints
from tests.replay.recorded_log import RecordedLog


def verdicts(world: RecordedLog, checkpoints: Checkpoints | None = None, start: int = 0) -> list[str]:
    return [verdict(asked) for asked in Replay(world.log, checkpoints, start).asked()]


def verdict(asked: Asked) -> str:
    if asked.unverifiable is not None:
        return asked.unverifiable.name
    difference = compare(asked)
    return "equal" if difference is None else f"different: {difference.field}"


@pytest.mark.req("EVS-06")
@pytest.mark.field("B-141")
def test_picks_of_two_lagging_replicas_are_repeated_with_their_own_overlays() -> None:
    world = RecordedLog()
    one, two = world.replica(), world.replica()
    for number in range(40):
        world.pass_time(20_000)
        if number % 7 == 0:
            world.sample(1 + number % 3, number)
        replica = (one, two)[number % 2]
        if number % 5 == 0:
            replica.read()
        fact = replica.ask(f"r{number}", tokens=16 * (1 + number % 9))
        if number % 3 == 0:
            replica.end(fact, Fault.FAULT if number % 6 == 0 else Fault.NONE)
    assert verdicts(world) == ["equal"] * 40


@pytest.mark.field("B-141")
def test_an_overlay_matters_where_a_replica_lags() -> None:
    """The same log, its as-of moved by one record, is no longer what was picked."""
    world = RecordedLog()
    replica = world.replica()
    for number in range(6):
        replica.ask(f"r{number}")
    asked = list(Replay(world.log, None).asked())
    assert {a.fact.as_of for a in asked} == {replica.fold.mark.offset}
    chosen = [a.fact.outcome.decode.chosen for a in asked]
    assert len({c.instance_id for c in chosen if c}) == 3, "the overlay spreads a burst within one round trip"


@pytest.mark.req("EVS-13")
def test_a_range_is_asked_from_the_newest_checkpoint_before_its_first_as_of() -> None:
    world = RecordedLog()
    replica = world.replica()
    for number in range(10):
        world.pass_time(SECOND_US // 10)
        world.sample(1 + number % 3, number)
        replica.read()
        replica.end(replica.ask(f"r{number}"))
    checkpoints = Checkpoints()
    checkpoints.take(world, 12)
    checkpoints.take(world, world.log.end_offset() - 1)
    middle = world.log.end_offset() // 2
    whole = verdicts(world)
    assert whole == ["equal"] * 10
    assert set(verdicts(world, checkpoints, middle)) == {"equal"}
    world.log.forget(13)
    assert set(verdicts(world, checkpoints, middle)) == {"equal"}, "its beginning is not needed any more"


def test_a_pick_whose_state_is_gone_is_unverifiable() -> None:
    world = RecordedLog()
    replica = world.replica()
    late = replica.fold.mark.offset
    world.pass_time(1)
    for number in range(5):
        world.sample(1, number)
    replica.ask("made on an old state")
    assert replica.picks[0].as_of == late
    checkpoints = Checkpoints()
    checkpoints.take(world, late + 3)
    world.log.forget(late + 3)
    assert verdicts(world, checkpoints) == [Unverifiable.TOO_OLD.name]


@pytest.mark.req("EVS-17")
def test_lost_picks_and_their_ends_are_part_of_later_overlays() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r0")
    lost = [replica.choose(f"lost{n}") for n in range(3)]
    ends = {lost[1].pick_id: replica.ended(lost[1])}
    replica.lose(*lost, ends=ends)
    replica.ask("r1")
    world.pass_time(SECOND_US)
    replica.end(lost[0])
    replica.ask("r2")
    replica.read()
    replica.ask("r3")
    assert verdicts(world) == ["equal"] * 4


def test_a_missing_record_of_the_replica_makes_its_next_picks_unverifiable_not_different() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.choose("never written")
    replica.ask("r1")
    replica.read()
    assert verdicts(world) == [Unverifiable.OVERLAY.name]


def test_suspect_picks_and_unknown_settings_are_told_apart() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r0", suspect=True)
    replica.ask("r1")
    assert verdicts(world) == [Unverifiable.SUSPECT.name, "equal"]
    bare = RecordedLog(adopt=False)
    replica = bare.replica()
    replica.ask("r0")
    assert verdicts(bare) == [Unverifiable.SETTINGS.name]


def test_condemned_records_are_skipped_as_they_were_live() -> None:
    world = RecordedLog()
    bad = world.log.end_offset()
    world.sample(1, 900)  # the record that is condemned later, though it reads well
    condemning = world.say(RecordCondemned(bad, "one process could not apply it"))
    replica = world.replica(condemned=frozenset((bad,)))
    assert replica.fold.mark.offset > condemning
    replica.ask("r0")
    assert verdicts(world) == ["equal"]
    assert condemned_in(world.log, 0) == {bad}


def test_offsets_that_jump_are_walked_over() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("before")
    world.log.jump(1 << 20)
    replica.end(replica.picks[0])
    replica.read()
    replica.ask("after")
    assert verdicts(world) == ["equal", "equal"]
    assert next(offset for offset, _ in records_of(world.log, (1 << 20) - 5)) == 1 << 20


def test_a_range_asks_only_the_picks_that_stand_in_it() -> None:
    world = RecordedLog()
    replica = world.replica()
    offsets = []
    for number in range(6):
        offsets.append(world.log.end_offset())
        replica.ask(f"r{number}")
    asked = [
        (one.fact.question.request_id, compare(one))
        for one in Replay(world.log, None, offsets[2], offsets[4]).asked()
    ]
    assert asked == [("r2", None), ("r3", None)]


def test_an_empty_log_has_nothing_to_ask() -> None:
    assert list(Replay(RecordedLog().log, None).asked()) == []


def long_log(rounds: int = 120) -> RecordedLog:
    """Two replicas, one of which lags far behind the other."""
    world = RecordedLog()
    quick, slow = world.replica(), world.replica()
    for number in range(rounds):
        world.pass_time(SECOND_US // 20)
        world.sample(1 + number % 3, number % 50)
        quick.read()
        quick.end(quick.ask(f"q{number}", tokens=16 * (1 + number % 9)))
        if number % 40 == 39:
            slow.read()
        if number % 3 == 0:
            slow.ask(f"s{number}")
    return world


def test_a_pick_further_behind_than_the_scout_looks_is_asked_on_a_fold_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = long_log()
    monkeypatch.setattr(scout_module, "AHEAD_BYTES", 2_000)
    monkeypatch.setattr(scout_module, "READ_BYTES", 500)
    replay = Replay(world.log, None)
    found = [verdict(asked) for asked in replay.asked()]
    assert replay.scout.late, "the slow replica lags more than two kilobytes"
    assert found == ["equal"] * 160


def test_too_many_late_picks_are_unverifiable_for_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    world = long_log()
    monkeypatch.setattr(scout_module, "AHEAD_BYTES", 2_000)
    monkeypatch.setattr(scout_module, "READ_BYTES", 500)
    monkeypatch.setattr(engine_module, "LATE_PICKS_MAX", 2)
    found = verdicts(world)
    assert set(found) == {"equal", Unverifiable.LAG.name}
    assert len(found) == 160


@pytest.mark.req("EVS-13")
@pytest.mark.parametrize("overlap", [1, 7, 60, 1_000])
def test_parts_ask_every_pick_exactly_once(overlap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "OVERLAP_RECORDS", overlap)
    world = long_log()
    checkpoints = Checkpoints()
    for offset in range(50, 500, 50):
        checkpoints.take(world, offset)
    whole = sorted((asked.offset, verdict(asked)) for asked in Replay(world.log, None).asked())
    parts = parts_of(world.log, checkpoints, 0, world.log.end_offset(), 4)
    assert (len(parts) > 1) == (overlap < 100)
    found = [
        (asked.offset, verdict(asked))
        for part in parts
        for asked in Replay(world.log, checkpoints, part=part).asked()
    ]
    assert sorted(found) == whole


def test_a_part_folds_from_the_checkpoint_that_it_begins_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "OVERLAP_RECORDS", 200)
    world = long_log()
    checkpoints = Checkpoints()
    checkpoints.take(world, 20)
    checkpoints.take(world, 250)
    part = Part(251, world.log.end_offset(), 250, None)
    replay = Replay(world.log, checkpoints, part=part)
    assert {verdict(asked) for asked in replay.asked()} == {"equal"}
    assert replay.cursor is not None and replay.cursor.base == 250


def test_one_pick_at_a_known_offset_is_the_same_as_in_the_walk() -> None:
    world = long_log(30)
    for asked in Replay(world.log, None).asked():
        alone = Replay(world.log, None, asked.offset, asked.offset + 1).at(asked.offset, asked.fact)
        assert verdict(alone) == verdict(asked) == "equal"


def test_the_release_that_made_a_pick_is_told() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r0")
    [asked] = Replay(world.log, None).asked()
    assert asked.version == "0"


@pytest.mark.req("EVS-06")
def test_picks_that_were_named_later_are_suspect_however_they_are_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "OVERLAP_RECORDS", 10)
    world = long_log()
    asked = list(Replay(world.log, None).asked())
    replica = asked[len(asked) // 2].fact.replica
    as_ofs = sorted(one.fact.as_of for one in asked if one.fact.replica == replica)
    after, upto = as_ofs[len(as_ofs) // 3], as_ofs[2 * len(as_ofs) // 3]
    named = {one.offset for one in asked if one.fact.replica == replica and after < one.fact.as_of <= upto}
    end = world.log.end_offset()
    world.say(PicksDistrusted(replica, after, upto), replica)
    checkpoints = Checkpoints()
    for offset in range(50, 500, 50):
        checkpoints.take(world, offset)
    parts = parts_of(world.log, checkpoints, 0, end, 4)
    assert len(parts) > 1 and len(named) > 5
    ways = (
        Replay(world.log, None).asked(),
        Replay(world.log, None, stop=end).asked(),
        (Replay(world.log, None, one.offset, one.offset + 1).at(one.offset, one.fact) for one in asked),
        (one for part in parts for one in Replay(world.log, checkpoints, part=part).asked()),
    )
    for way in ways:
        found = {one.offset: verdict(one) for one in way}
        assert {offset for offset, word in found.items() if word == "SUSPECT"} == named
        assert set(found) == {one.offset for one in asked} and set(found.values()) == {"SUSPECT", "equal"}


def test_picks_of_a_release_that_picks_in_an_unknown_way_are_unverifiable() -> None:
    world = RecordedLog()
    world.replica(flags=(1, 999)).ask("r0")
    world.replica().ask("r1")
    assert verdicts(world) == [Unverifiable.FLAGS.name, "equal"]
