"""A reader folds in slices, measures its lag by its own pings, and knows when it may pick."""

import pytest

from app.tail import (
    LAG_US_MAX,
    PING_AGE_US_MAX,
    PING_EVERY_US,
    AppendPing,
    Effect,
    Noticed,
    ProposeCondemned,
    Restart,
    Seen,
    StopReason,
    Tail,
)
from projections.bounds import SECOND_US
from projections.events.codec import encode_record
from projections.events.control import (
    CheckpointDue,
    ClockTicked,
    ConfigAdopted,
    FoldModeAdopted,
    LaneOpened,
    PickSettings,
    Pinged,
    RecordCondemned,
)
from projections.events.ports import MemoryLog, RecordBatch
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived, KvOperation, StorageTier
from projections.fold import Fold

OWNER = bytes([1]) * 16
ME = bytes([2]) * 16
OTHER = bytes([3]) * 16


class Lane:
    """A log in memory, an owner and a replica that write to it, and one tail that reads it."""

    def __init__(self, **options: object) -> None:
        self.log = MemoryLog()
        self.sequences = {OWNER: 0, ME: 0, OTHER: 0}
        self.stamp = 0
        self.tail = Tail(Fold(), ME, 0, **options)  # type: ignore[arg-type]
        self.say(LaneOpened(1, 0, b"", "new"))

    def say(self, fact: tuple[object, ...], writer: bytes = OWNER, at: int | None = None) -> int:
        self.sequences[writer] += 1
        epoch = 1 if writer == OWNER else 0
        self.stamp = at if at is not None else self.stamp + 1
        return self.log.commit([encode_record(self.stamp, writer, epoch, self.sequences[writer], fact)])

    def read(self, now: int, records_max: int = 1_000_000) -> list[Effect]:
        effects: list[Effect] = []
        batches = self.log.read(self.tail.next_offset, 1 << 20)
        effects += self.tail.on_batches(batches, now)
        effects += self.tail.work(now, records_max)
        if self.tail.next_offset >= self.log.end_offset():
            self.tail.on_end(now)
        return effects

    def ping(self, now: int, back_at: int | None = None) -> None:
        """A whole round of one ping."""
        for effect in self.tail.on_tick(now):
            if isinstance(effect, AppendPing):
                self.say(Pinged(ME, effect.number, effect.as_of), ME)
        self.read(now if back_at is None else back_at)


def test_what_a_start_has_to_fold_is_counted_in_records_and_in_the_events_of_their_batches() -> None:
    lane = Lane()
    head = KV_EVENT_HEAD.pack(1, 0, 0, int(KvOperation.CLEARED), int(StorageTier.DEVICE), 0, 0)
    lane.say(KvBatchReceived("dynamo", 7, 1, 0, 0, head * 3, b"", 0))
    lane.read(now=1)
    assert lane.tail.folded == 2, "events cost nothing where the index is off"
    lane.say(FoldModeAdopted((1,)))
    for number in range(1, 5):
        lane.say(KvBatchReceived("dynamo", 7, 1, number, number, head * 3, b"", 0))
    lane.read(now=2)
    assert lane.tail.folded == 2 + 1 + 4 * (1 + 3)


@pytest.mark.req("EVS-04")
def test_log_time_runs_on_the_own_clock_between_owner_records_and_never_goes_back() -> None:
    lane = Lane()
    lane.say(CheckpointDue("time"), at=5_000_000)
    lane.read(now=100)
    assert lane.tail.log_time(100) == 5_000_000
    assert lane.tail.log_time(400_100) == 5_400_000
    lane.say(CheckpointDue("time"), at=5_100_000)
    lane.read(now=400_200)
    assert lane.tail.log_time(400_200) == 5_400_000, (
        "the owner's stamp is behind: time stands, it does not go back"
    )
    assert lane.tail.log_time(900_200) == 5_600_000


def test_a_replica_record_does_not_advance_log_time() -> None:
    lane = Lane()
    lane.say(CheckpointDue("time"), at=1_000)
    lane.say(Pinged(OTHER, 1, 0), OTHER, at=9_000_000)
    lane.read(now=0)
    assert lane.tail.log_time(0) == 1_000


def test_slices_of_any_size_fold_the_same() -> None:
    digests = set()
    for size in (1, 2, 7, 100):
        lane = Lane()
        for number in range(20):
            lane.say(Pinged(OTHER, number, 0), OTHER)
            lane.say(ClockTicked(0, -1, (), 0, 0))
        while lane.read(0, size) or lane.tail.queued_records:
            pass
        assert lane.tail.fold.mark.offset == 40
        digests.add(lane.tail.fold.digests())
    assert len(digests) == 1


@pytest.mark.req("EVS-11")
@pytest.mark.field("B-137")
def test_ready_needs_the_own_ping_read_back() -> None:
    lane = Lane()
    lane.read(0)
    assert lane.tail.readiness(0).missing == ("caught_up",)
    lane.ping(10, back_at=500)
    assert lane.tail.lag_us == 490
    assert lane.tail.readiness(600) == (True, (), ())


def test_a_ping_goes_out_each_second() -> None:
    lane = Lane()
    assert [type(e) for e in lane.tail.on_tick(0)] == [AppendPing]
    assert lane.tail.on_tick(PING_EVERY_US - 1) == []
    assert [type(e) for e in lane.tail.on_tick(PING_EVERY_US)] == [AppendPing]


@pytest.mark.req("EVS-17")
def test_a_log_that_answers_nobody_leaves_a_ready_reader_ready_but_degraded() -> None:
    lane = Lane()
    lane.ping(0)
    later = PING_AGE_US_MAX + 2
    lane.tail.on_tick(PING_EVERY_US)  # appended, never read back
    assert lane.tail.is_log_away(later)
    assert lane.tail.readiness(later) == (True, (), ("log",))


def test_records_that_arrive_while_the_own_ping_does_not_make_it_unready() -> None:
    lane = Lane()
    lane.ping(0)
    lane.tail.on_tick(PING_EVERY_US)
    now = PING_EVERY_US + LAG_US_MAX + 1
    for at in (PING_EVERY_US, now):
        lane.say(CheckpointDue("time"))
        lane.read(at)
    assert lane.tail.readiness(now).missing == ("lag",)


def test_records_that_wait_to_be_folded_are_lag_too() -> None:
    lane = Lane()
    lane.ping(0)
    lane.say(CheckpointDue("time"))
    lane.tail.on_batches(lane.log.read(lane.tail.next_offset, 1 << 20), PING_EVERY_US)
    lane.tail.on_tick(PING_EVERY_US)
    assert lane.tail.readiness(PING_EVERY_US + LAG_US_MAX + 1).missing == ("lag",)


@pytest.mark.req("EVS-11", "EVS-17")
@pytest.mark.parametrize("silence_ms", [400, 1_100, 1_600, 1_900, 2_100, 5_300, 60_000])
def test_an_outage_of_any_length_never_makes_a_ready_reader_unready(silence_ms: int) -> None:
    lane = Lane()
    step, delay = 50_000, 80_000  # of the clock; between the return of the log and of the own pings
    silent = range(10 * SECOND_US, 10 * SECOND_US + silence_ms * 1_000)
    underway: list[Pinged] = []
    lane.ping(0)
    for now in range(step, silent.stop + 4 * SECOND_US, step):
        underway += [
            Pinged(ME, effect.number, effect.as_of)
            for effect in lane.tail.on_tick(now)
            if isinstance(effect, AppendPing)
        ]
        if now not in silent and now % 500_000 < step:
            lane.say(CheckpointDue("time"))  # the owner is heard
        if now not in silent and not silent.stop <= now < silent.stop + delay:
            for ping in underway:
                lane.say(ping, ME)
            underway.clear()
        lane.read(now)
        readiness = lane.tail.readiness(now)
        assert readiness.ready, (now, readiness)
        assert readiness.degraded == (("log",) if lane.tail.is_log_away(now) else ())


def test_a_lost_ping_does_not_read_as_lag_once_a_newer_one_is_back() -> None:
    lane = Lane()
    lane.ping(0)
    lane.tail.on_tick(PING_EVERY_US)  # lost
    lane.ping(2 * PING_EVERY_US, back_at=2 * PING_EVERY_US + 5)
    assert lane.tail.readiness(3 * PING_EVERY_US + LAG_US_MAX - 10).ready


@pytest.mark.req("EVS-13")
def test_a_slice_ends_behind_the_record_that_the_shell_pauses_at() -> None:
    lane = Lane(pause_after=frozenset((CheckpointDue,)), watched=frozenset((LaneOpened,)))
    due = lane.say(CheckpointDue("time"))
    after = lane.say(ClockTicked(0, -1, (), 0, 0))
    seen = [e for e in lane.read(0) if isinstance(e, Seen)]
    assert [(e.offset, type(e.fact)) for e in seen] == [(0, LaneOpened), (due, CheckpointDue)]
    assert lane.tail.fold.mark.offset == due
    lane.tail.work(0, 100)
    assert lane.tail.fold.mark.offset == after


def ticking(lane: Lane, *, lie: bool = False) -> list[Effect]:
    """Two ticks: the first is noted, the second carries what the owner says of it."""
    first = lane.say(ClockTicked(0, -1, (), 0, 0))
    lane.read(0)
    note = lane.tail.notes_for_tick()
    assert note is not None
    assert note.offset == first
    digests = tuple((name, value ^ 1 if lie and name == "load" else value) for name, value in note.digests)
    lane.say(ClockTicked(1, first, digests, note.records, note.check_sum))
    return lane.read(0)


def test_a_reader_that_agrees_with_the_owner_goes_on() -> None:
    lane = Lane()
    assert not [e for e in ticking(lane) if isinstance(e, Restart)]
    assert lane.tail.stopped is StopReason.NONE
    assert not [e for e in ticking(lane) if isinstance(e, Restart)]


def test_a_reader_that_disagrees_stops_and_says_where() -> None:
    lane = Lane()
    ticking(lane)
    agreed = 1  # the first tick, that both notes were equal for
    found = [e for e in ticking(lane, lie=True) if isinstance(e, Restart)]
    assert [(e.reason, e.before) for e in found] == [("disagreed", agreed)]
    assert lane.tail.readiness(0).missing == ("fold_disagreed",)
    assert "load" in lane.tail.stopped_detail
    assert lane.tail.is_suspect()


@pytest.mark.req("EVS-11")
def test_a_reader_that_never_agreed_does_not_begin_with_the_same_checkpoint_again() -> None:
    lane = Lane()
    due = lane.say(CheckpointDue("time"))
    fold = Fold()
    for batch in lane.log.read(0, 1 << 20):
        for offset, data in enumerate(batch.records, batch.first_offset):
            fold.apply(offset, data, [])
    lane.tail = Tail(fold, ME, 0)
    found = [e for e in ticking(lane, lie=True) if isinstance(e, Restart)]
    assert [(e.reason, e.before) for e in found] == [("disagreed", due - 1)]


@pytest.mark.field("B-136")
def test_a_missing_record_between_ticks_is_a_disagreement() -> None:
    lane = Lane()
    ticking(lane)
    first = lane.say(ClockTicked(0, -1, (), 0, 0))
    lane.read(0)
    note = lane.tail.notes_for_tick()
    assert note is not None
    lane.say(ClockTicked(1, first, note.digests, note.records + 1, note.check_sum))
    assert [e.reason for e in lane.read(0) if isinstance(e, Restart)] == ["disagreed"]


def poisoned(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> int:
    """Commit a record whose apply raises, as a fault of ours would."""
    apply_adopted = lane.tail.fold.state.status.apply_adopted

    def raising(offset: int, *rest: object) -> object:
        if offset == bad:
            raise KeyError("a fault of ours")
        return apply_adopted(offset, *rest)  # type: ignore[arg-type]

    bad = lane.say(ConfigAdopted(1, "x", b"", "{}", PickSettings("load_based", "file", (), (), 1)))
    monkeypatch.setattr(lane.tail.fold.state.status, "apply_adopted", raising)
    return bad


def test_a_record_that_cannot_be_applied_stops_the_fold_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane()
    lane.ping(0)
    bad = poisoned(lane, monkeypatch)
    lane.say(CheckpointDue("time"))
    found = [e for e in lane.read(0) if isinstance(e, ProposeCondemned)]
    assert [e.offset for e in found] == [bad]
    assert lane.tail.readiness(0).missing == ("fold_poison",)
    lane.say(CheckpointDue("time"))
    assert lane.read(0) == [], "reading goes on, folding does not"


@pytest.mark.parametrize("already_there", [False, True])
def test_a_condemned_record_lets_the_reader_start_anew_without_it(
    monkeypatch: pytest.MonkeyPatch, already_there: bool
) -> None:
    lane = Lane()
    lane.ping(0)
    bad = poisoned(lane, monkeypatch)
    if not already_there:
        lane.read(0)
    lane.say(RecordCondemned(bad + 40, "another one"))
    lane.say(RecordCondemned(bad, "cannot be applied"))
    found = [e for e in lane.read(0) if isinstance(e, Restart)]
    assert [(e.reason, e.before, e.condemned) for e in found] == [("condemned", bad - 1, frozenset((bad,)))]


def test_what_a_newer_release_wrote_stops_the_fold_and_is_not_to_be_condemned() -> None:
    lane = Lane()
    lane.say(FoldModeAdopted((65_000,)))
    assert not [e for e in lane.read(0) if isinstance(e, ProposeCondemned)]
    assert lane.tail.stopped is StopReason.POISON
    assert "newer than this release" in lane.tail.stopped_detail


def test_a_replica_cannot_condemn() -> None:
    lane = Lane()
    bad = lane.say(ConfigAdopted(1, "x", b"", "{}", PickSettings("load_based", "file", (), (), 1)))
    lane.say(RecordCondemned(bad, "says a replica"), OTHER)
    assert not [e for e in lane.read(0) if isinstance(e, Restart)]
    assert lane.tail.stopped is StopReason.NONE


def test_a_record_that_was_folded_before_it_was_condemned_makes_the_reader_start_anew() -> None:
    lane = Lane()
    bad = lane.say(CheckpointDue("time"))
    lane.read(0)
    lane.say(RecordCondemned(bad, "another process could not apply it"))
    found = [e for e in lane.read(0) if isinstance(e, Restart)]
    assert [(e.before, e.condemned) for e in found] == [(bad - 1, frozenset((bad,)))]


def test_reading_pauses_while_much_is_queued() -> None:
    lane = Lane()
    assert lane.tail.wants_more
    lane.tail.on_batches([RecordBatch(1, [bytes(4 << 20)] * 9)], 0)
    assert not lane.tail.wants_more


def test_notices_come_first_and_in_order() -> None:
    lane = Lane()
    lane.log.commit([b"no record of ours at all"])
    found = lane.read(0)
    assert isinstance(found[0], Noticed)
    assert len(found[0].notices) >= 1


def test_time_does_not_run_backwards_when_the_clock_is_given_an_older_moment() -> None:
    lane = Lane()
    lane.say(CheckpointDue("time"), at=10 * SECOND_US)
    lane.read(now=1_000_000)
    assert lane.tail.log_time(2_000_000) == 11 * SECOND_US
    assert lane.tail.log_time(1_500_000) == 11 * SECOND_US


def test_bytes_shorter_than_a_check_word_are_refused_and_counted_like_any_other() -> None:
    lane = Lane()
    for data in (b"", b"x", b"1234567"):
        lane.log.commit([data])
    lane.read(0)
    assert lane.tail.fold.mark.offset == 3
    assert lane.tail.stopped is StopReason.NONE
