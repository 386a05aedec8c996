"""The engine gives each pick the state and overlay that it was made on."""

import pytest

from projections.bounds import SECOND_US
from projections.checkpoint import checkpoint_records
from projections.events.control import RecordCondemned
from projections.events.picks import Fault
from projections.events.ports import CheckpointInfo
from projections.fold import Fold
from replay.engine import Replay, Unverifiable, records_of, skim
from replay.verify import compare
from tests.replay.recorded_log import RecordedLog


class Checkpoints:
    """Checkpoints in memory."""

    def __init__(self) -> None:
        self.kept: dict[CheckpointInfo, list[bytes]] = {}

    def take(self, world: RecordedLog, offset: int) -> None:
        fold = Fold()
        for at, data in records_of(world.log, 0, offset + 1):
            fold.apply(at, data, [])
        mark = fold.mark
        info = CheckpointInfo(mark.offset, mark.check, mark.time, 0, str(offset))
        self.kept[info] = list(checkpoint_records(fold, world.log.log_id))

    def list(self) -> list[CheckpointInfo]:
        return sorted(self.kept)

    def read(self, info: CheckpointInfo):  # type: ignore[no-untyped-def]
        return iter(self.kept[info])

    def write(self, *_: object) -> CheckpointInfo:
        raise AssertionError("a replay writes no checkpoint of the log that it reads")


def verdicts(world: RecordedLog, checkpoints: Checkpoints | None = None, start: int = 0) -> list[str]:
    found = []
    for asked in Replay(world.log, checkpoints, start).asked():
        if asked.unverifiable is not None:
            found.append(asked.unverifiable.name)
        else:
            difference = compare(asked)
            found.append("equal" if difference is None else f"different: {difference.field}")
    return found


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
    assert skim(world.log, 0, None).condemned == {bad}


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
    asked = list(Replay(world.log, None, offsets[2], offsets[4]).asked())
    assert [a.fact.question.request_id for a in asked] == ["r2", "r3"]
    assert all(compare(a) is None for a in asked)


def test_an_empty_log_has_nothing_to_ask() -> None:
    assert list(Replay(RecordedLog().log, None).asked()) == []
