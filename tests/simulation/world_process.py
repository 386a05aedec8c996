"""Processes of a simulation: a clock that drifts, a writer on a log that fails, a tail, picks.

Each process runs the product's own step machines; what is made up here is only what shells
do: when they are called, what the disk says, when records become visible. A paused process
gets nothing until it goes on, then everything that waited, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from app.fold_start import start_fold
from app.own_records import NAME_AGAIN_US
from app.pick_log import ReplicaLog
from app.tail import AppendPing, Effect, Noticed, ProposeCondemned, Restart, Seen, StopReason, Tail
from ingest.log import appends
from ingest.log.appender import Appender
from ingest.log.appends import Importance, Receipt, Status
from ingest.log.kafka_settings import TopicReplaced
from ingest.log.own_search import own_records
from ingest.log.spool import Spool
from projections.checkpoint import checkpoint_records
from projections.events.control import CheckpointDue, Pinged, ReplicaStarted
from projections.events.kinds import KIND_NEWEST
from projections.events.ports import OffsetGone, RecordBatch
from projections.fold_modes import COUNTED_ONCE, FOLD_MODES
from router.picker.pick_flags import PICK_FLAGS
from tests.simulation.world_log import Eye

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulator

TICK_US = 250_000


class Process:
    """One process. `later` calls only while it lives, and never while it is paused."""

    def __init__(self, sim: Simulator, name: str) -> None:
        self.sim = sim
        self.name = name
        self.is_alive = True
        self.paused_until = 0
        self.cut_until = 0  # the log cannot be reached before
        self._drift = sim.rng.randint(-300, 300)  # parts per million
        self._booted = sim.rng.randint(0, 10**9)
        self._started_at = sim.now
        self.wall_offset = 0
        sim.running = self

    def clock(self) -> int:
        """This process's own monotonic time; goes on while it is paused."""
        passed = self.sim.now - self._started_at
        return self._booted + passed + passed * self._drift // 1_000_000

    def wall(self) -> int:
        """Its wall clock."""
        return 1_700_000_000_000_000 + self.sim.now + self.wall_offset

    def later(self, delay_us: int, do: Callable[[], object]) -> None:
        """Call then, if this process still lives."""
        self.sim.later(delay_us, do, self)

    def when_reached(self, do: Callable[[], object]) -> None:
        """Call once the log can be reached."""
        if self.sim.now < self.cut_until:
            self.later(min(100_000, self.cut_until - self.sim.now), lambda: self.when_reached(do))
        else:
            do()

    def die(self) -> None:
        """SIGKILL."""
        self.is_alive = False

    def woke(self) -> None:
        """Called before each event of this process."""

    def pause(self, us: int) -> None:
        """SIGSTOP for a while."""
        self.paused_until = max(self.paused_until, self.sim.now + us)


class Writer:
    """The shell of an appender. fail: this process cannot write any more."""

    def __init__(self, process: Process, eye: Eye, appender: Appender, fail: Callable[[], None]) -> None:
        self.process = process
        self.eye = eye
        self.appender = appender
        self.on_committed: Callable[[int, int], None] = lambda first, records: None
        self.on_reclaim: Callable[[], None] = lambda: None
        self._fail = fail
        self._sent_from = eye.end_offset()
        self._is_planned = False

    def append(
        self,
        fact: Any,
        importance: Importance = Importance.CONTROL,
        time: int | None = None,
        done: Any = None,
    ) -> None:
        """See LogWriter.append."""
        self.do(self.appender.on_submitted(self.process.clock(), fact, importance, time, done))

    def tick(self) -> None:
        """Look at the time."""
        self.do(self.appender.on_tick(self.process.clock()))

    def do(self, effects: list[appends.Effect]) -> None:
        """Carry out what the machine wants."""
        for effect in effects:
            if isinstance(effect, appends.Send):
                self._send(effect)
            elif isinstance(effect, appends.Settled):
                self.process.sim.settled(effect.receipt)
                effect.tag(effect.receipt)
            elif isinstance(effect, appends.FindOwn):
                self._find(effect)
            else:
                self.on_reclaim()
        self._plan()

    def _plan(self) -> None:
        due = self.appender.due_at()
        if due is None or self._is_planned:
            return
        self._is_planned = True
        self.process.later(max(0, due - self.process.clock()), self._planned)

    def _planned(self) -> None:
        self._is_planned = False
        self.tick()

    def _find(self, effect: appends.FindOwn) -> None:
        """Which records of the old writer are in the log? Asked once it can be reached."""
        self.process.when_reached(lambda: self._found(effect))

    def _found(self, effect: appends.FindOwn) -> None:
        self.eye.see(self.eye.log.end)
        try:
            found = own_records(self.eye, self._sent_from, effect.writer, effect.sequence)
        except (OffsetGone, TopicReplaced):
            self.broken()
            return
        self.do(self.appender.on_found(self.process.clock(), self.process.sim.rng.randbytes(16), found))

    def _send(self, effect: appends.Send) -> None:
        self._sent_from = self.eye.log.end
        self.process.sim.commit(self, effect)

    def committed(self, number: int, first: int, records: int) -> None:
        """The disk's answers."""
        self.eye.see(first + records)
        self.on_committed(first, records)
        self.do(self.appender.on_committed(self.process.clock(), number, first))

    def failed(self, number: int, is_full: bool) -> None:
        """Nothing of the batch is in the log."""
        self.do(self.appender.on_failed(self.process.clock(), number, is_full))

    def unclear(self, number: int) -> None:
        """Nobody knows."""
        self.do(self.appender.on_unclear(self.process.clock(), number))

    def broken(self) -> None:
        """A failed fdatasync, or a log that is not what it was: the process ends."""
        self._fail()


class Reading:
    """The shell of tails, as `app.folding`: a fold that is given up stands until its successor is there.

    tail: what picks read. newest: its successor while there is one, else the same.
    """

    def __init__(
        self,
        process: Process,
        eye: Eye,
        replica: bytes,
        watched: frozenset[type] = frozenset(),
        pause_after: frozenset[type] = frozenset(),
    ) -> None:
        self.process = process
        self.eye = eye
        self.on_ping: Callable[[int, int], None] = lambda number, as_of: None
        self.on_folded: Callable[[], None] = lambda: None
        self.on_seen: Callable[[Seen], None] = lambda seen: None
        self.on_condemn: Callable[[int, str], None] = lambda offset, detail: None
        self.on_given_up: Callable[[], None] = lambda: None
        self.on_replaced: Callable[[Tail], None] = lambda tail: None
        self.on_batches: Callable[[Sequence[RecordBatch]], None] = lambda batches: None
        self._replica = replica
        self._watched = watched
        self._pause_after = pause_after
        self._is_planned = False
        self.tail = self.newest = self._begin(None, frozenset())

    def _begin(self, before: int | None, condemned: frozenset[int]) -> Tail:
        start = start_fold(self.eye, self.process.sim.checkpoints, before=before, condemned=condemned)
        self.incomplete = start.incomplete
        return Tail(
            start.fold,
            self._replica,
            self.process.clock(),
            condemned=condemned,
            watched=self._watched,
            pause_after=self._pause_after,
        )

    def plan(self) -> None:
        """Read on soon."""
        if not self._is_planned:
            self._is_planned = True
            self.process.later(self.process.sim.rng.choice((0, 100, 2_000)), self._step)

    def _step(self) -> None:
        self._is_planned = False
        rng, now = self.process.sim.rng, self.process.clock()
        tail = self.newest
        size = rng.choice((1, 2_000, 1 << 20)) if tail.wants_more else 0
        try:
            batches = self.eye.read(tail.next_offset, size) if size else []
        except OffsetGone:
            self._begin_again(Restart("overtaken", None, tail.condemned))
            self.plan()
            return
        except TopicReplaced:
            self.process.sim.count("topic replaced")
            self.process.die()
            return
        self.on_batches(batches)
        self._do(tail.on_batches(batches, now))
        if tail.queued_records:
            self._do(tail.work(now, rng.choice((1, 3, 17, 512))))
            self.process.sim.folded(self.process, tail)
            self._folded()
        elif not batches:
            tail.on_end(now)
            return
        self.plan()

    def _folded(self) -> None:
        if self.newest is not self.tail:
            is_behind = self.newest.queued_records or self.newest.next_offset < self.eye.end_offset()
            if is_behind or self.newest.stopped is not StopReason.NONE:
                return
            self.tail = self.newest
            self.on_replaced(self.tail)
        self.on_folded()

    def tick(self) -> None:
        """Look at the time, and read again should nobody have said that there is news."""
        self._do(self.newest.on_tick(self.process.clock()))
        self.plan()

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, AppendPing):
                self.on_ping(effect.number, effect.as_of)
            elif isinstance(effect, Seen):
                self.on_seen(effect)
            elif isinstance(effect, ProposeCondemned):
                self.process.sim.stopped(self.process, effect)
                self.on_condemn(effect.offset, effect.detail)
            elif isinstance(effect, Restart):
                self._begin_again(effect)
                return
            else:
                assert isinstance(effect, Noticed)

    def _begin_again(self, again: Restart) -> None:
        """The fold is given up, and its successor begins."""
        self.process.sim.restarted(self.process, again)
        self.on_given_up()
        self.newest = self._begin(again.before, again.condemned)
        assert not self.incomplete or again.reason != "overtaken", "a kept checkpoint bridges what is gone"


class Follower(Process):
    """Writes checkpoints where the owner says."""

    def __init__(self, sim: Simulator, name: str) -> None:
        super().__init__(sim, name)
        self.eye = Eye(sim.log)
        self.reading = Reading(self, self.eye, bytes(16), pause_after=frozenset((CheckpointDue,)))
        self.reading.on_seen = self._write
        self._tick()

    def _tick(self) -> None:
        self.reading.tick()
        self.later(TICK_US, self._tick)

    def _write(self, seen: Seen) -> None:
        fold = self.reading.newest.fold
        assert fold.mark.offset == seen.offset, "the fold must stand where the checkpoint was asked for"
        mark = fold.mark
        self.sim.checkpoints.write(
            self.eye.log_id, mark.offset, mark.check, mark.time, checkpoint_records(fold, self.eye.log_id)
        )


class Replica(Process):
    """A process that picks. Its own writer unless it is the owner, see `world_owner`."""

    is_owner = False
    stands_by = False
    kinds = int(KIND_NEWEST)

    def __init__(self, sim: Simulator, name: str) -> None:
        super().__init__(sim, name)
        self.id = sim.rng.randbytes(16)
        self._named_at: int | None = None
        self.eye = Eye(sim.log)
        self.spool = self.new_spool()
        self.appender = Appender(
            sim.rng.randbytes(16), is_owner=self.is_owner, stands_by=self.stands_by, spool=self.spool
        )
        self.writer = Writer(self, self.eye, self.appender, self.die)
        self.reading = Reading(self, self.eye, self.id, watched=self.watched())
        self.reading.on_ping = self._ping
        self.reading.on_replaced = self.on_replaced
        self.reading.on_folded = self.on_folded
        self.log = ReplicaLog(self.id, self.reading.tail, self._append)
        self.reading.on_given_up = self.log.distrust
        self.router = sim.new_router(self)
        self._room = False
        self.begin()
        self.later(0, self._tick)

    @staticmethod
    def watched() -> frozenset[type]:
        """Facts that this process wants to be told of."""
        return frozenset()

    @staticmethod
    def new_spool() -> Spool | None:
        """Where what waits is kept, if anywhere but in memory."""
        return None

    def begin(self) -> None:
        """The first record of this process."""
        self.say_started()

    @property
    def pick_flags(self) -> tuple[int, ...]:
        """Numbered behaviours of its pick code. Some processes are of a release that had none."""
        return PICK_FLAGS if self.id[0] % 4 else ()

    @property
    def fold_modes(self) -> tuple[int, ...]:
        """Those that it says it can fold. Some processes are of a release that had no COUNTED_ONCE."""
        return tuple(sorted(FOLD_MODES if self.id[1] % 8 else FOLD_MODES - {COUNTED_ONCE}))

    def say_started(self) -> None:
        """Name this replica in the log."""
        self._named_at = self.clock()
        of_release = self.pick_flags, self.kinds, self.fold_modes
        started = ReplicaStarted(self.id, self.name, "router", "0", "3", *of_release)
        self._append(started, self.log.log_time()[0], None)

    def on_folded(self) -> None:
        """After each slice."""
        self.log.forget_folded()

    def _tick(self) -> None:
        self.tick()
        self.later(TICK_US, self._tick)

    def tick(self) -> None:
        """Four times a second."""
        self.reading.tick()
        self.writer.do(self.appender.on_room(self.eye.is_full()))
        self.writer.tick()

    def on_replaced(self, tail: Tail) -> None:
        """Picks are made on another fold from now on."""
        self.log.go_on_with(tail)

    def _ping(self, number: int, as_of: int) -> None:
        named_at = self._named_at
        if self.log.is_nameless and named_at is not None and self.clock() - named_at >= NAME_AGAIN_US:
            self.say_started()
        self.writer.append(Pinged(self.id, number, as_of), time=self.log.log_time()[0])

    def _append(self, fact: Any, time: int, on_done: Callable[[bool], None] | None) -> None:
        def done(receipt: Receipt) -> None:
            self.sim.receipt(fact, receipt)
            if on_done is not None:
                on_done(receipt.status is Status.ACKNOWLEDGED)

        self.writer.append(fact, Importance.PICK, time, done)

    def die(self) -> None:
        """The requests in it die with it."""
        super().die()
        self.router.died()
