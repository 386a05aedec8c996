"""The owner ticks, asks for checkpoints, declares silent replicas gone and adopts settings."""

from typing import Any

import pytest

from app.owner import TICK_EVERY_US, Owner
from app.tail import Tail
from projections.bounds import CHECKPOINT_SPACING_US, REPLICA_GONE_US, SECOND_US
from projections.events.control import (
    CheckpointDue,
    ClockTicked,
    ConfigAdopted,
    ConfigProposed,
    FoldModeAdopted,
    KvPickSettings,
    PickSettings,
    Pinged,
    ReplicaGone,
    ReplicaStarted,
)
from projections.fold import Fold
from tests.replay.recorded_log import OWNER, RecordedLog

SETTINGS = PickSettings("load_based", "file", ("dynamo",), (), 3_000_000)
SILENT = bytes([5]) * 16


class Lane:
    """An owner whose words go into a log that its own tail reads."""

    def __init__(self, checkpoint_every_us: int = 60 * SECOND_US) -> None:
        self.world = RecordedLog(0, adopt=False)
        self.tail = Tail(Fold(), OWNER, 0)
        self.now = 0
        self.said: list[tuple[Any, ...]] = []
        self.owner = Owner(self.tail, self.say, checkpoint_every_us=checkpoint_every_us, now_us=0)

    def say(self, fact: tuple[Any, ...]) -> None:
        self.said.append(fact)
        self.world.say(fact)

    def run(self, seconds: float, step_us: int = SECOND_US // 4) -> None:
        for _ in range(int(seconds * SECOND_US / step_us)):
            self.now += step_us
            self.world.time += step_us
            self.tail.on_batches(self.world.log.read(self.tail.next_offset, 1 << 20), self.now)
            self.tail.work(self.now, 1_000_000)
            self.tail.on_end(self.now)
            self.owner.on_tick(self.now, wall_us=self.now)

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.said if isinstance(fact, kind)]


def test_a_tick_each_second_carries_the_own_notes_at_an_earlier_tick() -> None:
    lane = Lane()
    lane.run(5)
    ticks = lane.of(ClockTicked)
    assert len(ticks) == 5
    assert ticks[0].noted_offset == -1
    assert [t.noted_offset for t in ticks[1:]] == sorted({t.noted_offset for t in ticks[1:]})
    assert lane.tail.stopped.value == "none", "its own tail agrees with what it says"
    assert TICK_EVERY_US == SECOND_US


@pytest.mark.req("EVS-13")
def test_a_checkpoint_is_due_at_each_interval_of_log_time() -> None:
    lane = Lane(checkpoint_every_us=10 * SECOND_US)
    lane.run(35)
    assert len(lane.of(CheckpointDue)) == 3
    lane.owner.checkpoint_now("shutdown")
    assert lane.of(CheckpointDue)[-1].cause == "shutdown"


class Busy(Lane):
    """A lane on which others say much: `others` records each quarter of a second."""

    others = 0

    def run(self, seconds: float, step_us: int = SECOND_US // 4) -> None:
        for _ in range(int(seconds * SECOND_US / step_us)):
            for number in range(self.others):
                self.world.say(Pinged(SILENT, number, -1), SILENT)
            super().run(step_us / SECOND_US, step_us)


@pytest.mark.req("EVS-13")
def test_a_busy_log_is_checkpointed_sooner_so_that_a_start_has_little_to_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.owner.CHECKPOINT_TAIL_MAX", 600)
    lane = Busy()
    lane.others = 10
    lane.run(61)
    dues = lane.of(CheckpointDue)
    assert [due.cause for due in dues] == ["records"] * 4, "600 records at 40 and some a second take 15 s"
    lane.others = 0
    lane.run(61)
    assert [due.cause for due in lane.of(CheckpointDue)[4:]] == ["time"], "a quiet log keeps to the interval"


def test_a_storm_is_not_checkpointed_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.owner.CHECKPOINT_TAIL_MAX", 50)
    lane = Busy()
    lane.others = 100
    lane.run(35)
    assert CHECKPOINT_SPACING_US == 10 * SECOND_US and len(lane.of(CheckpointDue)) == 3
    lane = Busy(checkpoint_every_us=5 * SECOND_US)
    lane.others = 100
    lane.run(21)
    assert {due.cause for due in lane.of(CheckpointDue)} == {"time"}, "a shorter interval is the site's wish"


def test_a_fold_that_began_anew_counts_from_its_own_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.owner.CHECKPOINT_TAIL_MAX", 2_000)
    lane = Busy()
    lane.others = 10
    lane.run(30)
    assert lane.of(CheckpointDue) == []
    lane.owner.tail = lane.tail = Tail(Fold(), OWNER, lane.now)  # it has all of the log to fold
    lane.run(10)
    assert lane.of(CheckpointDue) == [] and lane.tail.folded > 1_500
    lane.run(15)
    assert [due.cause for due in lane.of(CheckpointDue)] == ["records"]


def test_a_replica_silent_for_thirty_seconds_is_declared_gone_once() -> None:
    lane = Lane()
    lane.world.say(ReplicaStarted(SILENT, "host", "router", "0", "3", (), 62, ()), SILENT)
    lane.run(REPLICA_GONE_US / SECOND_US - 1)
    assert lane.of(ReplicaGone) == []
    lane.run(10)
    assert [fact.replica for fact in lane.of(ReplicaGone)] == [SILENT]
    lane.world.say(ReplicaStarted(SILENT, "host", "router", "0", "3", (), 62, ()), SILENT)
    lane.run(REPLICA_GONE_US / SECOND_US + 5)
    assert len(lane.of(ReplicaGone)) == 2, "any record lifts it, and then it may be gone again"


def test_a_leap_of_log_time_at_the_start_makes_nobody_gone() -> None:
    lane = Lane()
    lane.world.say(ReplicaStarted(SILENT, "host", "router", "0", "3", (), 62, ()), SILENT)
    lane.world.pass_time(3_600 * SECOND_US)
    lane.run(5)
    assert lane.of(ReplicaGone) == []


def test_an_owner_that_stood_still_declares_nobody_gone_before_it_has_listened_again() -> None:
    lane = Lane()
    lane.world.say(ReplicaStarted(SILENT, "host", "router", "0", "3", (), 62, ()), SILENT)
    lane.run(10)
    lane.run(40, step_us=40 * SECOND_US)
    lane.run(5)
    assert lane.of(ReplicaGone) == []


@pytest.mark.req("REL-17")
def test_settings_are_adopted_under_a_growing_version_and_only_when_they_differ() -> None:
    lane = Lane()
    assert lane.owner.adopt("start", b"a" * 16, "{}", SETTINGS, True) == 1
    lane.run(1)
    assert lane.owner.adopt("file", b"a" * 16, "{}", SETTINGS, True) == 1, "the same settings say nothing new"
    assert lane.owner.on_proposed(ConfigProposed(SILENT, b"b" * 16, "{}", SETTINGS), True) == 2
    lane.run(1)
    assert [(f.version, f.proposed_by) for f in lane.of(ConfigAdopted)] == [(1, "start"), (2, SILENT.hex())]
    now = lane.tail.fold.settings_now
    assert now is not None
    assert now.version == 2
    assert lane.owner.adopt("admin", b"b" * 16, "{}", SETTINGS, False) == 3, "disabling is a difference"


KV = KvPickSettings(1.0, 1.0, 0.0)
OLD = ReplicaStarted(SILENT, "old", "router", "0", "3", (), 62, ())


def modes(lane: Lane) -> list[tuple[str, object]]:
    """What was adopted, in order: flags, and versions of settings."""
    found: list[tuple[str, object]] = []
    for fact in lane.said:
        if isinstance(fact, FoldModeAdopted):
            found.append(("mode", fact.flags))
        elif isinstance(fact, ConfigAdopted):
            found.append(("settings", fact.version))
    return found


@pytest.mark.req("KVX-01", "KVX-20")
def test_a_fold_mode_is_adopted_before_the_settings_that_want_it_and_given_up_behind_them() -> None:
    lane = Lane()
    lane.run(2)
    lane.owner.adopt("start", b"a", "{}", SETTINGS, True)
    lane.owner.adopt("file", b"b", "{}", SETTINGS._replace(kv=KV._replace(host_credit=0.5)), True)
    lane.run(2)
    lane.owner.adopt("file", b"c", "{}", SETTINGS._replace(kv=KV._replace(predicted_ttl_us=5)), True)
    lane.owner.adopt("file", b"d", "{}", SETTINGS, True)
    lane.run(3)
    assert modes(lane) == [
        ("mode", (4,)),
        ("settings", 1),
        ("mode", (1, 2, 4)),
        ("settings", 2),
        ("mode", (1, 2, 3, 4)),
        ("settings", 3),
        ("mode", (1, 3, 4)),
        ("settings", 4),
        ("mode", (4,)),
    ]
    assert lane.tail.fold.state.intake.fold_mode == (4,) and lane.tail.stopped.value == "none"


@pytest.mark.req("KVX-20")
def test_settings_wait_for_a_live_replica_that_cannot_fold_what_they_want() -> None:
    lane = Lane()
    lane.world.say(OLD, SILENT)
    lane.run(2)
    wanting = SETTINGS._replace(kv=KV)
    assert lane.owner.adopt("file", b"b", "{}", wanting, True) == 1
    assert lane.owner.adopt("file", b"b", "{}", wanting, True) == 1, "it waits already"
    lane.run(3)
    assert modes(lane) == [] and lane.owner.held_back_by() == ["old"]
    lane.world.say(OLD._replace(fold_modes=(1,)), SILENT)
    lane.run(2)
    assert modes(lane) == [("mode", (1,)), ("settings", 1)] and lane.owner.held_back_by() == []


@pytest.mark.req("KVX-20")
def test_a_replica_that_is_gone_holds_nobody_back() -> None:
    lane = Lane()
    lane.world.say(OLD, SILENT)
    lane.run(2)
    lane.owner.adopt("file", b"b", "{}", SETTINGS._replace(kv=KV), True)
    lane.run(REPLICA_GONE_US / SECOND_US + 2)
    assert modes(lane) == [("mode", (1, 4)), ("settings", 1)]


@pytest.mark.req("EVS-15", "KVX-20")
def test_what_every_log_wants_is_adopted_before_its_first_tick() -> None:
    lane = Lane()
    lane.world.say(OLD._replace(fold_modes=(1, 2, 3, 4)), SILENT)
    lane.run(5)
    spoken = [fact for fact in lane.said if isinstance(fact, FoldModeAdopted | ClockTicked)]
    assert isinstance(spoken[0], FoldModeAdopted) and isinstance(spoken[1], ClockTicked)
    assert modes(lane) == [("mode", (4,))], "once, without any settings"


@pytest.mark.req("KVX-20")
def test_what_every_log_wants_waits_for_old_releases_and_holds_no_settings_back() -> None:
    lane = Lane()
    lane.world.say(OLD._replace(fold_modes=(1, 2, 3)), SILENT)
    lane.run(2)
    lane.owner.adopt("start", b"a", "{}", SETTINGS, True)
    lane.owner.adopt("file", b"b", "{}", SETTINGS._replace(kv=KV), True)
    lane.run(3)
    assert modes(lane) == [("settings", 1), ("mode", (1,)), ("settings", 2)]
    assert lane.owner.held_back_by() == [], "nothing that an operator asked for waits"
    lane.world.say(OLD._replace(fold_modes=(1, 2, 3, 4)), SILENT)
    lane.run(2)
    assert modes(lane)[3:] == [("mode", (1, 4))]


@pytest.mark.req("KVX-20")
def test_what_every_log_wants_is_adopted_beside_settings_that_wait() -> None:
    lane = Lane()
    lane.world.say(OLD._replace(fold_modes=(4,)), SILENT)
    lane.run(2)
    lane.owner.adopt("file", b"b", "{}", SETTINGS._replace(kv=KV), True)
    lane.run(3)
    assert modes(lane) == [("mode", (4,))] and lane.owner.held_back_by() == ["old"]


@pytest.mark.req("KVX-20")
def test_what_every_log_wants_is_not_given_up_for_an_old_release_that_comes_later() -> None:
    lane = Lane()
    lane.run(2)
    lane.world.say(OLD._replace(fold_modes=(1, 2, 3)), SILENT)
    lane.run(2)
    lane.owner.adopt("start", b"a", "{}", SETTINGS._replace(kv=KV), True)
    lane.owner.adopt("file", b"b", "{}", SETTINGS, True)
    lane.run(2)
    assert modes(lane) == [
        ("mode", (4,)),
        ("mode", (1, 4)),
        ("settings", 1),
        ("settings", 2),
        ("mode", (4,)),
    ]


def test_settings_that_wait_give_way_to_others() -> None:
    lane = Lane()
    lane.owner.adopt("start", b"a", "{}", SETTINGS, True)
    lane.world.say(OLD, SILENT)
    lane.run(2)
    assert lane.owner.adopt("file", b"b", "{}", SETTINGS._replace(kv=KV), True) == 2
    assert lane.owner.adopt("file", b"a", "{}", SETTINGS, True) == 1, "back to those in force"
    lane.world.say(OLD._replace(fold_modes=(1,)), SILENT)
    lane.run(2)
    assert modes(lane) == [("mode", (4,)), ("settings", 1)]


def test_an_owner_that_was_stopped_between_mode_and_settings_is_put_right_by_the_next() -> None:
    lane = Lane()
    lane.world.say(ConfigAdopted(1, "start", b"a", "{}", SETTINGS))
    lane.world.say(FoldModeAdopted((1, 2)))
    lane.run(2)
    assert modes(lane)[-1] == ("mode", (4,)) and lane.tail.fold.state.intake.fold_mode == (4,)
