"""The state at any offset: the same from a checkpoint as from the beginning, judged at its time."""

import pytest

from projections.bounds import SECOND_US
from projections.events.control import FoldModeAdopted
from projections.events.discovery import Keyspace
from projections.events.picks import Fault, Verdict
from replay.timeline import StateGone, index_at, load_at, state_at, unanswered_at
from tests.projections.fleet_script import instance_key
from tests.projections.kv.kv_script import HOST, KvScript, chain, pick_of, stored
from tests.replay.checkpoints_in_memory import Checkpoints
from tests.replay.recorded_log import RecordedLog


def lived() -> RecordedLog:
    world = RecordedLog()
    replica = world.replica()
    for number in range(12):
        world.pass_time(SECOND_US)
        world.sample(1 + number % 2, number)
        replica.read()
        replica.end(replica.ask(f"r{number}", tokens=64))
    return world


@pytest.mark.req("EVS-13")
def test_checkpoint_and_tail_give_the_state_of_a_whole_fold_at_every_offset() -> None:
    world, checkpoints = lived(), Checkpoints()
    for offset in (15, 25):
        checkpoints.take(world, offset)
    for offset in range(world.log.end_offset()):
        near, whole = state_at(world.log, checkpoints, offset), state_at(world.log, None, offset)
        assert near.fold.digests() == whole.fold.digests()
        assert near.fold.mark == whole.fold.mark and near.fold.mark.offset == offset
    assert checkpoints.read_offsets[-1] == 25


def test_verdicts_are_judged_at_the_log_time_of_the_mark() -> None:
    world = RecordedLog()
    world.sample(1, 40)
    world.sample(2, 0)
    offset = world.log.end_offset() - 1
    first = load_at(state_at(world.log, None, offset).fold)
    assert [row.verdict for row in first] == [Verdict.FRESH, Verdict.FRESH, Verdict.QUIET]
    world.pass_time(4 * SECOND_US)
    world.sample(3, 7)
    later = load_at(state_at(world.log, None, offset + 1).fold)
    assert [row.verdict for row in later] == [Verdict.SILENT, Verdict.QUIET, Verdict.FRESH]
    assert later[0].sample is not None and later[0].sample.kv_used_blocks == 40


def test_stalled_and_suspect_workers_read_so() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("stalls", tokens=64)
    failing = replica.ask("fails", tokens=64)
    world.pass_time(6 * SECOND_US)
    replica.end(failing, Fault.FAULT)
    world.sample(3, 1)
    rows = load_at(state_at(world.log, None, world.log.end_offset() - 1).fold)
    assert [row.verdict for row in rows] == [Verdict.STALLED, Verdict.EXCLUDED, Verdict.FRESH]


def test_unanswered_dispatches_are_those_that_no_sample_answered() -> None:
    world = RecordedLog()
    replica = world.replica()
    fact = replica.ask("r0", tokens=64)
    end = world.log.end_offset()
    assert [line.pick_id for line in unanswered_at(state_at(world.log, None, end - 1).fold)] == [fact.pick_id]
    world.pass_time(SECOND_US)
    chosen = fact.outcome.decode.chosen
    assert chosen is not None
    world.sample(chosen.instance_id, 1)
    assert unanswered_at(state_at(world.log, None, end).fold) == []


def test_offsets_outside_the_log_have_no_state() -> None:
    world = lived()
    with pytest.raises(StateGone, match="beyond the end"):
        state_at(world.log, None, world.log.end_offset())
    world.log.forget(12)
    with pytest.raises(StateGone, match="is gone: the log begins at 12 and has no checkpoint"):
        state_at(world.log, None, 20)


def test_a_fold_that_stops_before_the_offset_says_where() -> None:
    world = RecordedLog()
    stop = world.say(FoldModeAdopted((99,)))
    world.sample(1, 1)
    with pytest.raises(StateGone, match=f"stopped at offset {stop}"):
        state_at(world.log, None, stop + 1)


def test_the_index_shows_every_rank_that_is_told_of_with_its_cursor_and_the_engines_own_digest() -> None:
    script = KvScript(1, 2, 3)
    for worker in (2, 1, 3):
        script.worker(worker)
    script.batch(stored(1, "a", "b", worker=2), stored(1), stored(2, "a", "b", worker=2, tier=HOST))
    script.say(pick_of(script.question("q"), 3))
    names = chain("a", "b")[1]
    found = index_at(script.fold)
    assert (found.nodes, found.ownerships, found.predictions) == (2, 2, 1)
    xor = int.from_bytes(names[:8], "big") ^ int.from_bytes(names[8:], "big")
    assert [tuple(row) for row in found.ranks] == [
        (("dynamo", 1, 0), (0, 0, 0), 0, 1),
        (("dynamo", 2, 0), (2, 2, 0), xor, 2),
    ]
    script.delete(Keyspace.INSTANCES, instance_key(2))
    assert [row.rank.instance_id for row in index_at(script.fold).ranks] == [1]
