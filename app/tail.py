"""Step machine of a log reader: what is folded, how far behind it is, whether it may pick.

A shell hands committed batches over (`on_batches`), lets the machine fold a slice of them
(`work`), tells it the monotonic time and carries out the effects it returns. The machine
owns the fold; nobody else applies records to it.

Four things are judged here, and none needs a wall clock:

* Log time (decision 3). Between owner records it runs on this process's own clock:
  newest owner stamp + time since that record was applied, never going back.
* Lag (decisions 18, 47). Every second the process appends a ping; the time until it reads
  its own ping back is its lag. A pick counts its dispatch from asked_at + lag.
* Readiness (decisions 47, 66). Never caught up, or records arrive while the lag is above a
  second, or the fold stopped or disagreed: unready. Nothing comes back at all: the log is
  away for everybody, so a ready reader stays ready and says `degraded`. The time in which
  nothing came is nobody's lag, neither while it lasts nor when the log is back.
* Agreement (decision 10). At each tick the digests are noted; the owner's notes, which
  ride in a later tick, must equal ours for the offset that they name.

A record whose apply raises stops the fold before that offset (decision 16). Reading goes
on, to find the `RecordCondemned` that lets everybody skip it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, cast

from projections.bounds import COMMIT_BATCH_BYTES_MAX, SECOND_US
from projections.events.codec import RecordRefused, decode_record
from projections.events.control import ClockTicked, Pinged, RecordCondemned
from projections.events.kinds import Kind
from projections.events.ports import RecordBatch
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived
from projections.fold import Fold, FoldStopped, NewerRelease
from projections.notices import Notice

PING_EVERY_US = 1 * SECOND_US
PING_AGE_US_MAX = 2 * SECOND_US  # own ping read back within this: in touch with the log
LAG_US_MAX = 1 * SECOND_US
SILENCE_US = 1_500_000  # nothing for this long, where ticks and own pings come each second: an outage
NOTES_KEPT_MAX = 64  # ticks whose own notes may still be asked for
QUEUED_BYTES_MAX = 4 * COMMIT_BATCH_BYTES_MAX  # the shell pauses reading beyond it
PINGS_UNDERWAY_MAX = 64


class AppendPing(NamedTuple):
    """Append `Pinged(replica, number, as_of)`."""

    number: int
    as_of: int


class Noticed(NamedTuple):
    """Notices of the records just folded, in order."""

    notices: tuple[Notice, ...]


class ProposeCondemned(NamedTuple):
    """The fold stopped at this offset. An owner appends RecordCondemned for it."""

    offset: int
    detail: str


class Restart(NamedTuple):
    """This fold is of no more use: start a new one from a checkpoint.

    before: the checkpoint must not hold a later offset than this, None where any will do.
    condemned: offsets that the new fold skips. Picks made from now until the new fold has caught up
    are suspect; where this one disagreed, those made behind `before` as well.
    """

    reason: str
    before: int | None
    condemned: frozenset[int]


class Seen(NamedTuple):
    """A fact that this reader asked to be told of was folded at `offset`.

    Of a type in `pause_after` the slice ends right behind it: the fold stands at `offset`
    when the shell hears of it.
    """

    offset: int
    fact: tuple[Any, ...]


class StopReason(Enum):
    """Why a fold goes no further."""

    NONE = "none"
    POISON = "poison"
    DISAGREED = "disagreed"


Effect = AppendPing | Noticed | ProposeCondemned | Restart | Seen


class Readiness(NamedTuple):
    """What `/ready` says of this reader. Fixed words in both tuples."""

    ready: bool
    missing: tuple[str, ...]
    degraded: tuple[str, ...]


class TickNote(NamedTuple):
    """This fold's own figures at a tick: digests, and records and check words since the last."""

    offset: int
    digests: tuple[tuple[str, int], ...]
    records: int
    check_sum: int


class Tail:
    """See the module's text. `replica` is the id that this process pings with."""

    def __init__(
        self,
        fold: Fold,
        replica: bytes,
        now_us: int,
        *,
        condemned: frozenset[int] = frozenset(),
        watched: frozenset[type] = frozenset(),
        pause_after: frozenset[type] = frozenset(),
    ) -> None:
        self.fold = fold
        self.replica = replica
        self.stopped = StopReason.NONE
        self.stopped_detail = ""
        self.folded = 0  # records since this fold's checkpoint, and the kv-events in them: what a start costs
        self._condemned = condemned
        self._watched = watched | pause_after
        self._pause_after = pause_after
        self._poison_offset = -1
        self._queue: deque[RecordBatch] = deque()
        self._queued_bytes = 0
        self._stamp = fold.state.intake.stamp
        self._stamp_applied_at = now_us
        self._log_time = self._stamp
        self._pings: dict[int, int] = {}  # number -> own monotonic time of the append
        self._ping_number = 0
        self._ping_due_at = now_us
        self._ping_returned_at: int | None = None
        self._record_at: int | None = None
        self._back_at = now_us  # when records came again behind the last outage
        self._lag_us = 0
        self._judged_lag_us = 0  # of the same ping, without an outage
        self._caught_up = False
        self._notes: deque[TickNote] = deque(maxlen=NOTES_KEPT_MAX)
        self._agreed_offset = fold.mark.offset - 1  # the checkpoint it begins with was compared by nobody
        self._scanned = fold.mark.offset

    # -- what the shell feeds --------------------------------------------------------

    @property
    def wants_more(self) -> bool:
        """False while enough is queued: the shell stops reading, nothing is lost."""
        return self._queued_bytes < QUEUED_BYTES_MAX

    @property
    def next_offset(self) -> int:
        """Where to read on: one past the newest record handed over."""
        if self._queue:
            batch = self._queue[-1]
            return batch.first_offset + len(batch.records)
        return max(self.fold.mark.offset, self._scanned) + 1

    def on_batches(self, batches: Sequence[RecordBatch], now_us: int) -> list[Effect]:
        """Committed batches in offset order, beginning at `next_offset` or later."""
        if batches:
            if self._record_at is not None and now_us - self._record_at > SILENCE_US:
                self._back_at = now_us
            self._record_at = now_us
        for batch in batches:
            if self.stopped is StopReason.POISON:
                self._scanned = batch.first_offset + len(batch.records) - 1
                found = self._condemning(batch.records, batch.first_offset)
                if found is not None:
                    return [found]
                continue
            self._queue.append(batch)
            self._queued_bytes += sum(map(len, batch.records))
        return []

    def work(self, now_us: int, records_max: int) -> list[Effect]:
        """Fold up to `records_max` queued records. Effects in order; [] when there is no work."""
        effects: list[Effect] = []
        notices: list[Notice] = []
        left = records_max
        while self._queue and left > 0 and self.stopped is StopReason.NONE:
            batch = self._take(left)
            left -= len(batch.records)
            if not self._fold_batch(batch, now_us, notices, effects):
                break
        if notices:
            effects.insert(0, Noticed(tuple(notices)))
        return effects

    def on_end(self, now_us: int) -> None:
        """The reader found nothing beyond what it handed over."""
        if not self._queue and self.stopped is StopReason.NONE and self._ping_returned_at is not None:
            self._caught_up = True

    def on_tick(self, now_us: int) -> list[Effect]:
        """Call at least twice a second."""
        if now_us < self._ping_due_at or len(self._pings) >= PINGS_UNDERWAY_MAX:
            return []
        self._ping_due_at = now_us + PING_EVERY_US
        self._ping_number += 1
        self._pings[self._ping_number] = now_us
        return [AppendPing(self._ping_number, self.fold.mark.offset)]

    # -- what pickers and operators ask ----------------------------------------------

    def log_time(self, now_us: int) -> int:
        """Log time as this process knows it, microseconds; never goes back."""
        self._log_time = max(self._log_time, self._stamp + max(0, now_us - self._stamp_applied_at))
        return self._log_time

    @property
    def lag_us(self) -> int:
        """Newest round trip of an own ping, microseconds."""
        return self._lag_us

    @property
    def condemned(self) -> frozenset[int]:
        """Offsets that this fold skips because it was told so; the log may have named more since."""
        return self._condemned

    @property
    def agreed_offset(self) -> int:
        """The newest offset at which this fold is known to equal the owner's."""
        return self._agreed_offset

    @property
    def queued_records(self) -> int:
        """Records handed over and not folded yet."""
        return sum(len(batch.records) for batch in self._queue)

    def is_log_away(self, now_us: int) -> bool:
        """Neither an own ping nor any record came back for two seconds."""
        heard = max(self._record_at or 0, self._ping_returned_at or 0)
        return now_us - heard > PING_AGE_US_MAX

    def is_suspect(self) -> bool:
        """Whether picks made on this fold must be marked."""
        return self.stopped is not StopReason.NONE

    def readiness(self, now_us: int) -> Readiness:
        """Readiness of this reader; routes and shims are judged elsewhere."""
        if self.stopped is not StopReason.NONE:
            return Readiness(False, (f"fold_{self.stopped.value}",), ())
        if not self._caught_up:
            return Readiness(False, ("caught_up",), ())
        if self.is_log_away(now_us):
            return Readiness(True, (), ("log",))
        if max(self._judged_lag_us, self._overdue_us(now_us)) > LAG_US_MAX:
            return Readiness(False, ("lag",), ())
        return Readiness(True, (), ())

    def notes_for_tick(self) -> TickNote | None:
        """The newest own note, which an owner writes into its next tick."""
        return self._notes[-1] if self._notes else None

    # -- inside ----------------------------------------------------------------------

    def _overdue_us(self, now_us: int) -> int:
        """How long records have come while the oldest ping under way was not among them."""
        heard_at = now_us if self._queue else self._record_at or 0
        oldest = min(self._pings.values(), default=heard_at)
        return heard_at - max(oldest, self._back_at)

    def _take(self, records_max: int) -> RecordBatch:
        batch = self._queue.popleft()
        self._queued_bytes -= sum(map(len, batch.records))
        if len(batch.records) <= records_max:
            return batch
        self._put_back(batch, records_max)
        return RecordBatch(batch.first_offset, batch.records[:records_max])

    def _put_back(self, batch: RecordBatch, skip: int) -> None:
        rest = RecordBatch(batch.first_offset + skip, batch.records[skip:])
        if rest.records:
            self._queue.appendleft(rest)
            self._queued_bytes += sum(map(len, rest.records))

    def _fold_batch(
        self, batch: RecordBatch, now_us: int, notices: list[Notice], effects: list[Effect]
    ) -> bool:
        """Fold one batch; False when the slice ends here."""
        for index, data in enumerate(batch.records):
            offset = batch.first_offset + index
            try:
                fact = self.fold.apply(offset, data, notices)
            except FoldStopped as stop:
                effects += self._stop(stop, batch, offset)
                return False
            self._see_stamp(now_us)
            kind = type(fact)
            self.folded += 1
            if kind is KvBatchReceived:
                self.folded += len(cast(KvBatchReceived, fact).heads) // KV_EVENT_HEAD.size
            elif kind is Pinged:
                self._own_ping(cast(Pinged, fact), now_us)
            elif kind is ClockTicked:
                effects += self._tick(offset, cast(ClockTicked, fact))
            if fact is not None and kind in self._watched:
                effects.append(Seen(offset, fact))
                if kind in self._pause_after:
                    self._put_back(batch, index + 1)
                    return False
        return True

    def _see_stamp(self, now_us: int) -> None:
        stamp = self.fold.state.intake.stamp
        if stamp != self._stamp:
            self._stamp, self._stamp_applied_at = stamp, now_us

    def _own_ping(self, ping: Pinged, now_us: int) -> None:
        sent = self._pings.pop(ping.number, None) if ping.replica == self.replica else None
        if sent is None:
            return
        for older in [n for n in self._pings if n < ping.number]:
            del self._pings[older]  # answered by a newer one: lost ones must not read as lag
        self._lag_us = max(0, now_us - sent)
        self._judged_lag_us = now_us - max(sent, self._back_at)
        self._ping_returned_at = now_us

    def _tick(self, offset: int, tick: ClockTicked) -> list[Effect]:
        note = TickNote(offset, self.fold.digests(), *self.fold.state.status.closed_tick)
        ours = next((n for n in self._notes if n.offset == tick.noted_offset), None)
        self._notes.append(note)
        if ours is None:
            return []
        theirs = TickNote(tick.noted_offset, tick.digests, tick.records, tick.check_sum)
        if ours == theirs:
            self._agreed_offset = tick.noted_offset
            return []
        self.stopped = StopReason.DISAGREED
        differing = [
            mine[0] for mine, other in zip(ours.digests, theirs.digests, strict=False) if mine != other
        ]
        self.stopped_detail = f"at offset {tick.noted_offset}: {', '.join(differing) or 'records read'}"
        return [Restart("disagreed", self._agreed_offset, self._condemned)]

    def _stop(self, stop: FoldStopped, batch: RecordBatch, offset: int) -> list[Effect]:
        self.stopped = StopReason.POISON
        self.stopped_detail = str(stop)
        # from this very record on: it may be the one that condemns an offset folded before
        rest = batch.records[offset - batch.first_offset :]
        queued = [RecordBatch(offset, rest), *self._queue]
        self._queue.clear()
        self._queued_bytes = 0
        self._poison_offset = stop.offset
        for waiting in queued:
            self._scanned = waiting.first_offset + len(waiting.records) - 1
            found = self._condemning(waiting.records, waiting.first_offset)
            if found is not None:
                return [found]
        # what a newer release wrote is sound: it is this release that has to go
        return [] if isinstance(stop, NewerRelease) else [ProposeCondemned(stop.offset, str(stop))]

    def _condemning(self, records: Sequence[bytes], first_offset: int) -> Restart | None:
        """The restart that a RecordCondemned of the poisonous offset among these allows."""
        for index, data in enumerate(records):
            try:
                record = decode_record(first_offset + index, data)
            except RecordRefused:
                continue
            fact = record.fact
            if (
                record.kind == Kind.RECORD_CONDEMNED
                and isinstance(fact, RecordCondemned)
                and record.epoch > 0
            ):
                offsets = self._condemned | {fact.offset}
                if fact.offset == self._poison_offset:
                    return Restart("condemned", self._poison_offset - 1, frozenset(offsets))
        return None
