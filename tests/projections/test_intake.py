"""Which records take effect: repetitions, superseded owners, log time, forgotten writers."""

from __future__ import annotations

import pytest

from projections import intake as module
from projections.bounds import SECOND_US, WRITER_FORGOTTEN_US
from projections.events.control import ClockTicked, FoldModeAdopted, LaneOpened, Pinged
from projections.events.discovery import KeysDropped
from projections.events.envelope import Record
from projections.events.held import OwnerHeld
from projections.fold_modes import COUNTED_ONCE
from projections.intake import Intake
from projections.notices import IntakeNotice
from tests.projections.fleet_script import OWNER, REPLICA, Script

OTHER = b"other owner-----"


def record(writer: bytes, sequence: int, epoch: int = 0, time: int = 0) -> Record:
    return Record(0, 0, 35, time, writer, epoch, sequence, Pinged(writer, 1, -1))


def reasons(script: Script) -> list[str]:
    return [n.result.label for n in script.notices if isinstance(n, IntakeNotice)]


@pytest.mark.req("EVS-15")
def test_a_sequence_is_taken_once_and_may_skip() -> None:
    intake = Intake()
    taken = [not intake.is_repeated(record(b"w", n)) for n in (1, 2, 2, 1, 5, 4, 6)]
    assert taken == [True, True, False, False, True, False, True]
    assert not intake.is_repeated(record(b"v", 1)), "each writer counts for itself"


def test_the_owner_is_the_first_claim_one_higher() -> None:
    intake = Intake()
    claims = [(b"a", 2), (b"a", 1), (b"b", 1), (b"b", 3), (b"b", 2), (b"c", 2)]
    won = []
    for number, (writer, epoch) in enumerate(claims, start=1):
        claim = record(writer, number, epoch)
        assert not intake.is_repeated(claim)
        won.append(intake.open_lane(claim, LaneOpened(epoch, 0, b"", "new")))
    assert won == [False, True, False, False, True, False]
    assert intake.owner == (b"b", 2)
    assert intake.is_owner(record(b"b", 9, 2))
    assert not intake.is_owner(record(b"b", 9, 1)) and not intake.is_owner(record(b"a", 9, 2))


@pytest.mark.req("EVS-16")
def test_facts_of_another_pair_are_dropped_and_move_no_time() -> None:
    script = Script()
    script.open(OTHER)
    stamp = script.fold.state.intake.stamp
    assert script.say(KeysDropped((), "all"), writer=OWNER, epoch=1) is None
    assert reasons(script) == ["foreign_owner"]
    assert script.say(KeysDropped((), "all"), writer=OTHER, epoch=1) is None
    assert script.say(KeysDropped((), "all"), writer=REPLICA, epoch=0) is None
    assert script.fold.state.intake.stamp == stamp
    assert script.say(KeysDropped((), "all")) is not None


def test_a_claim_that_lost_takes_no_effect() -> None:
    script = Script()
    stamp = script.fold.state.intake.stamp
    assert script.say(LaneOpened(1, 0, b"", "takeover"), writer=OTHER, epoch=1) is None
    assert reasons(script) == ["foreign_owner"]
    assert script.fold.state.intake.owner == (OWNER, 1) and script.fold.state.intake.stamp == stamp


@pytest.mark.req("EVS-04")
def test_only_the_owner_moves_log_time_and_it_never_goes_back() -> None:
    script = Script()
    intake = script.fold.state.intake
    script.tick()
    stamp = intake.stamp
    script.say(Pinged(REPLICA, 1, -1), time=stamp + 50 * SECOND_US)
    assert intake.stamp == stamp
    script.say(ClockTicked(0, -1, (), 0, 0), time=stamp - 5)
    assert intake.stamp == stamp
    script.tick()
    assert intake.stamp > stamp


def test_a_reducer_never_sees_time_go_back() -> None:
    script = Script()
    script.worker(7)
    script.sample(7, sequence=1)
    at = script.fold.state.intake.stamp
    script.time -= 5_000
    script.sample(7, sequence=2)
    assert script.fold.state.load.last_sample_at("dynamo", 7) == at


@pytest.mark.req("EVS-15")
def test_a_writer_is_forgotten_after_a_day_of_silence_and_not_before() -> None:
    script = Script()
    script.say(Pinged(REPLICA, 1, -1))
    seen_at = script.fold.state.intake.stamp
    script.tick(step=WRITER_FORGOTTEN_US - 2_000)
    assert REPLICA in script.fold.state.intake.writers
    script.tick(step=2_000)
    assert script.fold.state.intake.stamp - seen_at > WRITER_FORGOTTEN_US
    assert list(script.fold.state.intake.writers) == [OWNER]


@pytest.mark.req("EVS-15")
def test_an_owner_that_was_away_for_days_is_not_forgotten_by_its_own_tick() -> None:
    script = Script()
    script.tick(step=3 * WRITER_FORGOTTEN_US)
    assert script.fold_bytes(script.records[-1]) is None
    assert reasons(script) == ["duplicate_record"]


@pytest.mark.req("EVS-15")
@pytest.mark.parametrize(("flags", "is_news"), [((), True), ((COUNTED_ONCE,), False)])
def test_who_was_heard_before_log_time_began_is_remembered_with_the_flag(
    flags: tuple[int, ...], is_news: bool
) -> None:
    script = Script(opened=False)
    script.time = 1_700_000_000_000_000
    script.say(Pinged(REPLICA, 1, -1))
    early = script.records[-1]
    script.open()
    script.say(FoldModeAdopted(flags))
    script.tick()
    assert (REPLICA in script.fold.state.intake.writers) is not is_news
    assert (script.fold_bytes(early) is not None) is is_news
    assert reasons(script) == ([] if is_news else ["duplicate_record"])
    script.tick(step=WRITER_FORGOTTEN_US - 5_000_000)
    assert (REPLICA in script.fold.state.intake.writers) is True
    script.tick(step=10_000_000)
    assert list(script.fold.state.intake.writers) == [OWNER], "a day of silence is one for all"


@pytest.mark.req("EVS-13", "EVS-15")
def test_the_digest_knows_of_writers_that_the_flag_keeps() -> None:
    kept = Intake()
    kept.is_repeated(record(b"early", 1))
    kept.stamp = 5
    kept.is_repeated(record(b"later", 1))
    assert kept.digest, "worked in before the flag"
    kept.stamp = 9
    kept.adopt((COUNTED_ONCE,))
    kept.adopt((COUNTED_ONCE,))
    assert [(held.writer, held.seen_at) for held in kept.held()] == [(b"early", 9), (b"later", 5)]
    again = Intake()
    for fact in kept.held():
        again.restore(fact)
    again.restore(OwnerHeld(b"", 0, 9, (COUNTED_ONCE,), (), -1, 0, 0))
    assert again.digest == kept.digest


def test_the_writer_that_was_silent_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITERS_MAX", 3)
    intake = Intake()
    for at, writer in enumerate((b"c", b"a", b"b", b"c", b"d"), start=1):
        intake.stamp = at
        intake.is_repeated(record(writer, at))
    assert sorted(intake.writers) == [b"b", b"c", b"d"]


def test_the_digest_is_that_of_the_state_however_often_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITERS_MAX", 4)
    asked, unasked = Intake(), Intake()
    for at in range(1, 200):
        for intake in (asked, unasked):
            intake.stamp = at
            intake.is_repeated(record(bytes([at * 7 % 11]), at))
        assert isinstance(asked.digest, int)
    again = Intake()
    for fact in unasked.held():
        again.restore(fact)
    again.restore(OwnerHeld(*asked_owner(unasked), (), (), -1, 0, 0))
    assert asked.digest == unasked.digest == again.digest
    asked.stamp += 1
    assert asked.digest != unasked.digest


def asked_owner(intake: Intake) -> tuple[bytes, int, int]:
    return intake.owner_writer, intake.owner_epoch, intake.stamp


def test_condemned_offsets_are_kept_in_order_and_once() -> None:
    intake = Intake()
    for offset in (5, 3, 5):
        intake.condemn(offset)
    assert intake.condemned == (3, 5)
