"""The fold: order, refusals, poison, condemned offsets, and one result however it is run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
import xxhash

from projections import fold as module
from projections.checkpoint import checkpoint_records, fold_from_checkpoint
from projections.events.codec import RecordRefused, decode_record, encode_record
from projections.events.control import ClockTicked, FoldModeAdopted, Pinged, RecordCondemned, ReplicaGone
from projections.events.discovery import Keyspace
from projections.events.envelope import NOTHING, Record
from projections.events.held import WriterSeen
from projections.events.picks import DispatchEnded, EndStatus, Fault, LostPick, PickMade, PicksLost
from projections.events.ports import RecordBatch
from projections.fold import Fold, FoldStopped, UnknownFoldMode
from projections.fold_modes import COUNTED_ONCE
from projections.identity import RankKey
from projections.load.store import LoadStore
from projections.notices import IntakeNotice, Notice
from projections.view import Overlay
from replay.engine import records_of
from tests.projections.fleet_script import NS, OWNER, REPLICA, Script, endpoint, instance_key
from tests.projections.kv.kv_story import kv_story
from tests.projections.log_story import pick, story
from tests.replay.recorded_log import RecordedLog

ROOT = Path(__file__).parents[2]


def refold(records: list[bytes], condemned: frozenset[int] = frozenset()) -> Fold:
    fold = Fold(condemned)
    for offset, data in enumerate(records):
        fold.apply(offset, data, [])
    return fold


def reasons(script: Script) -> list[str]:
    return [n.result.label for n in script.notices if isinstance(n, IntakeNotice)]


@pytest.mark.req("EVS-03", "RED-25")
def test_two_folds_of_one_log_are_equal() -> None:
    records = story(seed=1, records=600)
    assert refold(records).digests() == refold(records).digests()
    assert refold(records[:-1]).digests() != refold(records).digests()


@pytest.mark.req("EVS-03", "RED-25")
def test_the_fold_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from tests.projections.log_story import story\n"
        "from tests.projections.test_fold import refold\n"
        "from projections.checkpoint import checkpoint_records\n"
        "import hashlib\n"
        "fold = refold(story(seed=2, records=500))\n"
        "print(fold.digests(), hashlib.sha256(b''.join(checkpoint_records(fold, bytes(16)))).hexdigest())\n"
    )
    said = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        said.add(done.stdout)
    assert len(said) == 1 and "registry" in said.pop()


@pytest.mark.req("EVS-03")
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_slices_of_any_size_give_the_same_state(size: int) -> None:
    records = story(seed=3, records=400)
    fold = Fold()
    notices: list[Notice] = []
    for start in range(0, len(records), size):
        fold.apply_batch(RecordBatch(start, records[start : start + size]), notices)
    assert fold.digests() == refold(records).digests() and fold.mark.offset == len(records) - 1


def test_a_batch_may_be_folded_in_part() -> None:
    records = story(seed=3, records=50)
    fold = Fold()
    fold.apply_batch(RecordBatch(0, records), [], limit=10)
    assert fold.mark.offset == 9 and fold.digests() == refold(records[:10]).digests()


@pytest.mark.req("EVS-03")
def test_digests_do_not_depend_on_how_often_they_were_asked() -> None:
    records = story(seed=4, records=300)
    fold = Fold()
    for offset, data in enumerate(records):
        fold.apply(offset, data, [])
        fold.digests()
    assert fold.digests() == refold(records).digests()


@pytest.mark.req("EVS-15")
@pytest.mark.field("B-139")
def test_every_record_sent_twice_gives_the_state_of_once() -> None:
    records = story(seed=5, records=300)
    once = refold(records)
    twice = Fold()
    for offset, data in enumerate(record for record in records for _ in range(2)):
        twice.apply(offset, data, [])
    for name in ("intake", "ledger", "load"):
        assert dict(once.digests())[name] == dict(twice.digests())[name]
    assert once.state.registry.digest == twice.state.registry.digest


@pytest.mark.parametrize("tale", [story, kv_story])
@pytest.mark.parametrize("seed", range(6))
def test_the_short_way_of_samples_and_block_events_leaves_the_state_of_the_long_way(
    seed: int, tale: Callable[[int, int], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests asked now and then end the short way's permission, so both ways alternate."""
    records = tale(100 + seed, 500)
    told: list[list[Notice]] = [[], []]
    short = Fold()
    for offset, data in enumerate(records):
        short.apply(offset, data, told[0])
        if offset % 37 == 0:
            short.digests()
    monkeypatch.setattr(module, "_OFTEN", ())
    long = Fold()
    for offset, data in enumerate(records):
        long.apply(offset, data, told[1])
    assert short.digests() == long.digests() and told[0] == told[1]


@pytest.mark.field("B-136")
def test_the_mark_is_the_newest_record_and_offsets_may_jump() -> None:
    script = Script(opened=False)
    assert script.fold.mark == NOTHING
    script.open()
    data = script.records[-1]
    assert script.fold.mark == (0, script.time, int.from_bytes(data[-8:], "little"))
    later = encode_record(script.time + 1, REPLICA, 0, 1, WriterSeen(b"", 0, 0))
    script.fold.apply(1 << 20, later, [])
    assert script.fold.mark.offset == 1 << 20
    with pytest.raises(ValueError, match="was folded"):
        script.fold.apply(1 << 20, later, [])


def test_bytes_that_are_no_record_have_no_effect_but_move_the_mark() -> None:
    script = Script()
    script.worker(7)
    before = dict(script.fold.digests())
    good = encode_record(script.time, OWNER, 1, 99, FoldModeAdopted(()))
    for bad in (b"", b"x", good[:-1], good[:-8] + bytes(8), b"\x01\x00" + b"\xc1" * 20):
        assert script.fold_bytes(bad) is None
        assert reasons(script) == ["refused_bytes"]
    after = dict(script.fold.digests())
    assert [name for name in before if before[name] != after[name]] == ["status"]
    assert script.fold.mark.offset == len(script.records) - 1


def test_an_unknown_kind_is_passed_by_with_a_notice() -> None:
    script = Script()
    body = b"\x01\x00" + msgpack.packb((120, 1, REPLICA, 0, 1, "of next year"))
    assert script.fold_bytes(body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")) is None
    assert reasons(script) == ["unknown_kind"]


def test_a_newer_schema_stops_the_fold() -> None:
    script = Script()
    body = b"\x02\x00\x90"
    with pytest.raises(FoldStopped, match="newer") as stop:
        script.fold_bytes(body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little"))
    assert stop.value.offset == 1
    with pytest.raises(FoldStopped):
        script.tick()


def test_held_facts_have_no_place_in_the_lane() -> None:
    script = Script()
    assert script.say(WriterSeen(b"w", 5, 5)) is None
    assert reasons(script) == ["refused_bytes"]


def test_a_fold_mode_that_this_release_lacks_stops_the_fold() -> None:
    script = Script()
    script.say(FoldModeAdopted(()))
    assert script.fold.state.intake.fold_mode == ()
    with pytest.raises(UnknownFoldMode) as stop:
        script.say(FoldModeAdopted((7_777, 333)))
    assert stop.value.flags == (333, 7_777) and script.fold.stopped is stop.value


def test_a_reducer_that_raises_stops_the_fold_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("torn")

    with monkeypatch.context() as patch:
        patch.setattr(LoadStore, "apply_sample", broken)
        script = Script()
        script.worker(7)
        poison = script.fold.mark.offset + 1
        with pytest.raises(FoldStopped, match="KeyError") as stop:
            script.sample(7, sequence=1)
        assert stop.value.offset == poison and script.fold.stopped is stop.value
        with pytest.raises(FoldStopped) as again:
            script.sample(7, sequence=2)
        assert again.value is stop.value

    records = script.records[: poison + 1]
    restarted = Script(refold(records, condemned=frozenset((poison,))))
    assert restarted.fold.state.intake.condemned == (poison,)
    assert restarted.fold.state.load.sample(NS, 7, 0) is None


def test_a_condemned_offset_is_skipped_by_every_fold_of_the_log() -> None:
    script = Script()
    script.worker(7)
    told = refold(script.records)
    poison = told.mark.offset + 1
    told = Fold(condemned=frozenset((poison,)))
    again = Script(told, opened=False)
    for data in script.records:
        again.fold_bytes(data)
    again.epoch, again.sequences, again.time = script.epoch, dict(script.sequences), script.time
    again.sample(7, sequence=1)
    assert reasons(again) == ["condemned"] and told.state.load.sample(NS, 7, 0) is None
    assert again.say(RecordCondemned(poison, "KeyError")) is not None
    replayed = refold(again.records, condemned=frozenset((poison,)))
    assert replayed.digests() == told.digests()

    with pytest.raises(FoldStopped, match="condemned") as stop:
        refold(again.records)
    assert stop.value.offset == poison


def test_an_offset_that_is_condemned_ahead_is_skipped_when_it_comes() -> None:
    script = Script()
    script.worker(7)
    script.say(RecordCondemned(script.fold.mark.offset + 2, "ahead"))
    script.sample(7, sequence=1)
    assert reasons(script) == ["condemned"]


def test_a_view_stands_at_the_mark_with_the_fleet_of_then() -> None:
    script = Script()
    script.worker(7)
    view = script.fold.view(Overlay())
    assert view.as_of == script.fold.mark.offset and view.fleet is script.fleet


def test_an_end_of_an_unknown_pick_is_heard_and_changes_no_backlog() -> None:
    script = Script()
    end = DispatchEnded(b"p" * 16, REPLICA, 7, 1, int(EndStatus.OK), int(Fault.NONE), 200, "", None, 1)
    script.say(end)
    held = script.fold.state.status.replica(REPLICA)
    assert held is not None and held.own_seq == 7 and len(script.fold.state.ledger) == 0


def test_who_leaves_takes_ledger_lines_along() -> None:
    script = Script()
    script.worker(7)
    script.say(pick(1, 7, at=script.time))
    assert len(script.fold.state.ledger) == 1
    script.delete(Keyspace.INSTANCES, instance_key(7))
    assert len(script.fold.state.ledger) == 0
    script.put(Keyspace.INSTANCES, instance_key(7), endpoint(7))
    assert len(script.fold.state.ledger) == 0


COPY = b"writer of copies"
RANK = RankKey(NS, 7, 0)


def counting(*flags: int) -> Script:
    """A worker, and a log that has adopted these."""
    script = Script()
    script.worker(7)
    script.say(FoldModeAdopted(flags))
    return script


def leave_and_come_back(script: Script) -> None:
    script.delete(Keyspace.INSTANCES, instance_key(7))
    script.put(Keyspace.INSTANCES, instance_key(7), endpoint(7))


def charged(script: Script) -> int:
    return script.fold.state.ledger.unanswered_blocks(RANK, None, script.time)


def line_of(made: PickMade, ended_seq: int | None = None) -> LostPick:
    at = made.question.dispatched_at
    ended_at = None if ended_seq is None else at
    chosen = made.outcome.decode.chosen
    return LostPick(made.pick_id, made.own_seq, at, at, NS, chosen, None, ended_seq, ended_at)


@pytest.mark.req("EVS-15")
@pytest.mark.parametrize(("flags", "blocks"), [((), 7), ((COUNTED_ONCE,), 0)])
@pytest.mark.parametrize("is_line", [False, True], ids=["in full", "as a line"])
def test_a_copy_of_a_pick_charges_a_worker_that_came_back_only_without_the_flag(
    flags: tuple[int, ...], blocks: int, is_line: bool
) -> None:
    script = counting(*flags)
    made = pick(1, 7, at=script.time)
    script.say(made)
    leave_and_come_back(script)
    assert charged(script) == 0
    script.say(PicksLost(REPLICA, (line_of(made),)) if is_line else made, writer=COPY)
    assert charged(script) == blocks
    script.say(pick(2, 7, at=script.time))
    assert charged(script) == blocks + 7, "the next one is none"


@pytest.mark.req("EVS-15")
def test_a_pick_in_full_behind_its_line_is_a_copy() -> None:
    script = counting(COUNTED_ONCE)
    made = pick(1, 7, at=script.time)
    script.say(PicksLost(REPLICA, (line_of(made, ended_seq=2),)))
    leave_and_come_back(script)
    script.say(made, writer=COPY)
    assert charged(script) == 0 and len(script.fold.state.ledger) == 0


@pytest.mark.req("EVS-15", "EVS-17")
def test_of_a_record_of_lines_those_count_that_were_not_heard_before() -> None:
    script = counting(COUNTED_ONCE)
    first, second, third = (pick(number, 7, at=script.time) for number in (1, 2, 4))
    script.say(first)
    leave_and_come_back(script)
    lines = line_of(first, ended_seq=3), line_of(second), line_of(third)
    script.say(PicksLost(REPLICA, lines), writer=COPY)
    assert charged(script) == 14, "an end of a later number in front makes no copy of the lines behind it"
    held = script.fold.state.status.replica(REPLICA)
    assert held is not None and held.own_seq == 4


@pytest.mark.req("EVS-15", "EVS-17")
def test_a_line_of_a_pick_that_was_heard_in_full_still_tells_its_end() -> None:
    script = counting(COUNTED_ONCE)
    made = pick(1, 7, at=script.time)
    script.say(made)
    assert script.fold.state.ledger.running() == {RANK: 1}
    script.say(PicksLost(REPLICA, (line_of(made, ended_seq=2),)), writer=COPY)
    assert script.fold.state.ledger.running() == {} and charged(script) == 7


@pytest.mark.req("EVS-15")
def test_equal_numbers_of_two_replicas_are_no_copies() -> None:
    script = counting(COUNTED_ONCE)
    other = b"another replica-"
    script.say(pick(1, 7, at=script.time))
    script.say(pick(1, 7, at=script.time, replica=other)._replace(pick_id=b"o" * 16), writer=other)
    assert charged(script) == 14


@pytest.mark.req("EVS-13", "EVS-15")
def test_a_fold_from_a_checkpoint_knows_copies_as_well() -> None:
    script = counting(COUNTED_ONCE)
    made = pick(1, 7, at=script.time)
    script.say(made)
    leave_and_come_back(script)
    other = Script(fold_from_checkpoint(checkpoint_records(script.fold, b"log id----------")), opened=False)
    other.time = script.time
    for each in (script, other):
        each.say(made, writer=COPY)
        assert charged(each) == 0
    assert script.fold.digests() == other.fold.digests()


@pytest.mark.req("EVS-15")
def test_copies_count_again_once_the_flag_is_given_up() -> None:
    script = counting(COUNTED_ONCE)
    made = pick(1, 7, at=script.time)
    script.say(made)
    leave_and_come_back(script)
    script.say(FoldModeAdopted(()))
    script.say(made, writer=COPY)
    assert charged(script) == 7


@pytest.mark.req("EVS-15")
@pytest.mark.parametrize("flags", [(), (COUNTED_ONCE,)])
def test_a_copy_proves_as_much_as_the_first_that_its_replica_is_there(flags: tuple[int, ...]) -> None:
    script = counting(*flags)
    made = pick(1, 7, at=script.time)
    script.say(made)
    script.say(ReplicaGone(REPLICA, script.time))
    gone = script.fold.state.status.replica(REPLICA)
    assert gone is not None and gone.gone_at is not None
    assert script.say(made, writer=COPY) == made
    held = script.fold.state.status.replica(REPLICA)
    assert held is not None and held.gone_at is None and held.own_seq == 1


@pytest.mark.req("EVS-15")
def test_a_replica_that_was_forgotten_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceiling of what is remembered: REPLICAS_MAX, the one that was silent longest out."""
    monkeypatch.setattr("projections.status.REPLICAS_MAX", 1)
    script = counting(COUNTED_ONCE)
    made = pick(1, 7, at=script.time)
    script.say(made)
    leave_and_come_back(script)
    script.say(Pinged(COPY, 1, -1), writer=COPY)
    assert script.fold.state.status.replica(REPLICA) is None
    script.say(made, writer=COPY)
    assert charged(script) == 7


@pytest.mark.req("EVS-15")
@pytest.mark.parametrize("seed", range(8))
def test_with_the_flag_copies_of_picks_change_neither_load_nor_ledger_nor_blocks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projections.status.WRITER_FORGOTTEN_US", 1 << 62)  # nobody is forgotten
    told, copied = Fold(), Fold()
    for fold in (told, copied):
        fold.state.intake.adopt((COUNTED_ONCE,))
    dice = random.Random(seed)
    waiting: list[tuple[int, Record]] = []
    copies = 0
    for offset, data in enumerate(story(seed, 1_500)):
        told.apply(offset, data, [])
        copied.apply(copied.mark.offset + 1, data, [])
        try:
            record = decode_record(offset, data)
        except RecordRefused:
            continue
        if isinstance(record.fact, PickMade | PicksLost):
            for _ in range(dice.choice((0, 1, 2))):
                waiting.append((offset + dice.choice((1, 5, 40, 200)), record))
        for due, late in [*waiting]:
            if due <= offset:
                waiting.remove((due, late))
                copies += 1
                writer = copies.to_bytes(16, "big")
                again = encode_record(late.time, writer, 0, 1, late.fact)
                copied.apply(copied.mark.offset + 1, again, [])
    assert copies > 20
    for name, mine in told.digests():
        if name in ("registry", "load", "kv", "ledger"):
            assert dict(copied.digests())[name] == mine, name


def test_what_waits_for_a_digest_stays_bounded_in_a_fold_that_nobody_asks() -> None:
    """A long replay asks no digest; departed workers must not pile up behind it."""
    world = RecordedLog(workers=1)
    for number in range(200):
        world.sample(1, number)
        world.say(ClockTicked(0, -1, (), 0, 0))
    fold = Fold()
    for offset, data in records_of(world.log, 0):
        fold.apply(offset, data, [])
    assert len(fold.state.load._changed) <= 1
    assert len(fold.state.ledger._changed) <= 1
