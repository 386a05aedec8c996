"""Step machine of a writer: what goes into which batch, and what happens when that fails.

Facts come in by `on_submitted`; each gets its place in the writer's sequence, owner kinds get a stamp, and
the bytes are made at once. One batch is under way at a time; the next is cut when the shell calls `on_tick`
at or after `due_at` (`pacing`). The machine never sheds what is critical (picks, ends, control). For want
of room it drops, in this order, raw notes, samples (whose numbers the next sample of that publisher then
covers) and block events; after 30 seconds or 10,000 picks the oldest picks shrink to ledger lines.

An append that stays unclear ends the writer id (decision 7): the machine asks which of its
records are in the log (`FindOwn`), goes on under a new id whose first record names the old
one, and sends the rest again. An owner has to win a new claim before its facts go on. One with a
`spool` keeps there what waits beyond a few MiB, and sheds only once that takes nothing more. It
makes no picks: one that is handed over all the same waits like all else.

    OPEN --unclear--> UNCLEAR --found--> OPEN, or HELD for an owner --claimed--> OPEN
    HELD: only `urgent` facts are sent (a claim, a ping, WriterContinued)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from ingest.log.appends import (
    Effect,
    Entry,
    Fact,
    FindOwn,
    Importance,
    Receipt,
    Reclaim,
    Send,
    Settled,
    State,
    Status,
)
from ingest.log.log_clock import OwnerClock
from ingest.log.outage import PickBuffer
from ingest.log.pacing import Pacing
from ingest.log.shed_samples import ShedSamples
from ingest.log.spool import Spool
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, MIB
from projections.events.codec import encode_record
from projections.events.control import WriterContinued
from projections.events.envelope import REPLICA_EPOCH
from projections.events.picks import PickMade, PicksLost

__all__ = [
    "Appender",
    "Effect",
    "FindOwn",
    "Importance",
    "Receipt",
    "Reclaim",
    "Send",
    "Settled",
    "State",
    "Status",
]

SHED_AT_BYTES = 32 * MIB  # in memory beyond this: what may be shed is shed
PENDING_BYTES_MAX = 256 * MIB  # beyond this even control records are lost, and told so
RETRY_US = 100_000  # after a batch that was refused


class Appender:
    """See the module's text. every_us, every_bytes: group commit waits at most for either, ends aside.

    is_owner: facts wait for a claim; of one that stands_by those of a replica do not.
    pending_bytes: of all that waits, spooled or not. Every event method returns effects; the shell
    carries them out in order.
    """

    def __init__(
        self,
        writer: bytes,
        *,
        is_owner: bool,
        stands_by: bool = False,
        every_us: int = 2_000,
        every_bytes: int = MIB,
        spool: Spool | None = None,
    ) -> None:
        self.writer = writer
        self.epoch = REPLICA_EPOCH
        self.state = State.HELD if is_owner and not stands_by else State.OPEN
        self.sequence = 0
        self.is_full = False
        self.pending_bytes = 0
        self.shed: dict[Importance, int] = dict.fromkeys(Importance, 0)
        self._is_owner = is_owner
        self._stands_by = stands_by
        self._pacing = Pacing(every_us)
        self._every_bytes = every_bytes
        self._clock: OwnerClock | None = None
        self._pending: deque[Entry] = deque()
        self._urgent: deque[Entry] = deque()
        self._flight: list[Entry] = []
        self._flight_number = self._flight_bytes = 0
        self._retry_at = 0
        self._last_acknowledged = 0
        self._picks = PickBuffer()
        self._shrinks = spool is None
        self._spool = spool if spool is not None else Spool(None)
        self._owed = ShedSamples()

    # Events --------------------------------------------------------------------------

    @property
    def is_shedding(self) -> bool:
        """Whether facts below CONTROL are dropped now."""
        return self.is_full or self._held_bytes > SHED_AT_BYTES

    def on_submitted(
        self, now_us: int, fact: Fact, importance: Importance, time: int | None = None, tag: Any = None
    ) -> list[Effect]:
        """A fact to append. Its own sequence is `self.sequence` afterwards, until it has to be renewed."""
        entry = Entry(fact, importance, time, tag, now_us)
        spool, held_bytes = self._spool, self._held_bytes
        if importance < Importance.CONTROL and (self.is_full or held_bytes > SHED_AT_BYTES):
            return self._shed(entry)
        shrinks = self._shrinks and importance is Importance.PICK
        if held_bytes > PENDING_BYTES_MAX and not shrinks:
            return entry.settled(Status.LOST)
        if self._owed:
            entry.fact = self._owed.covered(fact)
        if spool.is_stale:
            self.pending_bytes += spool.sketch(entry)
        else:
            self._enter(entry, now_us)
        (spool if spool.is_next(held_bytes) else self._pending).append(entry)
        self._pacing.on_fact(now_us, fact)
        if not shrinks:
            return []
        self._picks.add(entry)
        return self._bound_picks(now_us)

    def on_urgent(self, now_us: int, fact: Fact, time: int | None = None, tag: Any = None) -> list[Effect]:
        """A fact that goes out even while others are held: a claim, a ping.

        `time` is the stamp of a claim; the owner's own clock starts with `on_claimed`.
        """
        entry = Entry(fact, Importance.CONTROL, time, tag, now_us, is_urgent=True)
        self._enter(entry, now_us)
        self._urgent.append(entry)
        return []

    def on_claimed(self, now_us: int, epoch: int, clock: OwnerClock) -> list[Effect]:
        """The claim of this writer won: its facts go out from now on, stamped by `clock`."""
        self.epoch, self._clock, self.state = epoch, clock, State.OPEN
        self._renew_all(now_us)
        return []

    def on_held(self) -> list[Effect]:
        """Stop sending what is not urgent: first it must be known who is the owner."""
        if self.state is State.OPEN:
            self.state = State.HELD
        return []

    def on_released(self) -> list[Effect]:
        """Go on after `on_held`: the owner is the same."""
        if self.state is State.HELD and (self.epoch or not self._is_owner):
            self.state = State.OPEN
        return []

    def on_tick(self, now_us: int) -> list[Effect]:
        """Cut the next batch if it is due, or read ahead for it; shrink picks that waited too long."""
        effects = self._bound_picks(now_us)
        due_at = self.due_at()
        if due_at is not None and now_us >= due_at:
            effects.extend(self._unspool(now_us) if self._flight else self._cut(now_us))
        return effects

    def on_committed(self, now_us: int, number: int, first_offset: int) -> list[Effect]:
        """Batch `number` is durable from `first_offset` on."""
        self._expect(number)
        effects: list[Effect] = []
        for offset, entry in enumerate(self._flight, first_offset):
            effects.extend(entry.settled(Status.ACKNOWLEDGED, offset))
        self._last_acknowledged = max(self._last_acknowledged, self._flight[-1].sequence)
        self._flight = []
        self._retry_at = 0
        return effects

    def on_failed(self, now_us: int, number: int, is_full: bool) -> list[Effect]:
        """Nothing of batch `number` is in the log. is_full: for want of room."""
        self._expect(number)
        self._put_back()
        self._retry_at = now_us + RETRY_US
        if not is_full or self.is_full:
            return []
        self._retry_at = now_us
        return self.on_room(is_full=True)

    def on_room(self, is_full: bool) -> list[Effect]:
        """The disk has room for everything again, or for what is critical alone."""
        became_full, self.is_full = is_full and not self.is_full, is_full
        return self._purge() if became_full else []

    def on_unclear(self, now_us: int, number: int) -> list[Effect]:
        """Batch `number` may or may not be in the log: this writer id is over."""
        self._expect(number)
        self.state = State.UNCLEAR
        return [FindOwn(self.writer, self._last_acknowledged + 1)]

    def on_found(self, now_us: int, writer: bytes, found: Mapping[int, int]) -> list[Effect]:
        """Sequences of the old writer that are in the log, with offsets; go on as `writer`."""
        effects: list[Effect] = []
        missing: list[Entry] = []
        for entry in self._flight:
            offset = found.get(entry.sequence)
            if offset is None:
                missing.append(entry)
            else:
                effects.extend(entry.settled(Status.ACKNOWLEDGED, offset))
        previous, last_seen = self.writer, max(found, default=self._last_acknowledged)
        self._flight = missing
        self._put_back()
        for entry in self._urgent:  # claims and pings of the old writer: asked for anew
            self.pending_bytes -= entry.size
            effects.extend(entry.settled(Status.LOST))
        self._urgent.clear()
        self.writer, self.sequence, self._last_acknowledged = writer, 0, 0
        self.state = State.OPEN
        if self._is_owner:
            if self.epoch or not self._stands_by:
                self.state = State.HELD
            self.epoch = REPLICA_EPOCH
            effects.append(Reclaim(previous))
        self.on_urgent(now_us, WriterContinued(previous, last_seen))
        self._renew_all(now_us)
        return effects

    # Questions -----------------------------------------------------------------------

    def due_at(self) -> int | None:
        """Monotonic time at which `on_tick` has something to do: a batch, a look into the spool; or None."""
        if self._flight or self.state is State.UNCLEAR:
            held_bytes = self._held_bytes + self._flight_bytes
            reads_ahead = self.state is State.OPEN and self._spool.comes_back(held_bytes)
            return 0 if reads_ahead else None
        if not self._urgent and (self.state is State.HELD or not (self._is_waiting or self.lost_picks)):
            return None
        if self._retry_at:
            return self._retry_at
        if self.pending_bytes >= self._every_bytes:
            return 0
        pacing = self._pacing
        return min(pacing.due_at, pacing.interval_end) if self._urgent or self.lost_picks else pacing.due_at

    def log_time(self, now_us: int) -> int:
        """The owner's log time now; 0 for a writer without a clock, which is given times."""
        return self._clock.now(now_us) if self._clock is not None else 0

    @property
    def lost_picks(self) -> int:
        """Ledger lines that wait to be written."""
        return self._picks.lines

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not (self._flight or self._is_waiting or self._urgent or self.lost_picks)

    @property
    def _is_waiting(self) -> bool:
        return bool(self._pending) or self._spool.is_in_use

    @property
    def _held_bytes(self) -> int:
        """Of what waits in memory."""
        return self.pending_bytes - self._spool.spilled_bytes

    # Batches -------------------------------------------------------------------------

    def _cut(self, now_us: int) -> list[Effect]:
        """The next batch. Sequences grow in the order of the log: what is urgent goes first."""
        is_open = self.state is State.OPEN
        effects = self._tell_lost(now_us) if is_open and self.lost_picks else []
        if is_open and not self._pending and self._spool.is_in_use:
            effects += self._unspool(now_us)
        if self._urgent and (not self._pending or self._pending[0].sequence < self._urgent[-1].sequence):
            self._renew_all(now_us)
        records: list[bytes] = []
        size = 0
        for queue in (self._urgent, self._pending) if is_open else (self._urgent,):
            while queue and len(records) < COMMIT_BATCH_RECORDS_MAX:
                entry = queue[0]
                if entry.data is not None:
                    if size + entry.size > COMMIT_BATCH_BYTES_MAX:
                        break
                    size += entry.size
                    records.append(entry.data)
                    self._flight.append(entry)
                    if entry.importance is Importance.PICK:
                        self._picks.remove(entry)
                queue.popleft()
        if not records:
            return effects
        self.pending_bytes -= size
        picks = sum(type(entry.fact) is PickMade for entry in self._flight)  # integers
        self._pacing.on_batch(now_us, picks, self._is_waiting)
        self._flight_number, self._flight_bytes = self._flight_number + 1, size
        return [*effects, Send(self._flight_number, records, self.is_full)]

    def _expect(self, number: int) -> None:
        if number != self._flight_number or not self._flight:
            raise ValueError(f"batch {number} is not under way")

    def _put_back(self) -> None:
        """The batch under way waits again, in front."""
        self._pacing.on_returned()
        for entry in reversed(self._flight):
            (self._urgent if entry.is_urgent else self._pending).appendleft(entry)
            self.pending_bytes += entry.size
            if entry.importance is Importance.PICK and self._shrinks:
                self._picks.add_back(entry)
        self._flight = []

    def _unspool(self, now_us: int) -> list[Effect]:
        """What waits longest in the spool is next. Raises SpoolDamaged."""
        effects: list[Effect] = []
        for entry in self._spool.take():
            if self.is_full and entry.importance < Importance.CONTROL:
                self.pending_bytes -= entry.size
                effects += self._shed(entry)
                continue
            if not entry.sequence:
                self._renew((entry,), now_us)
            self._pending.append(entry)
        return effects

    def _enter(self, entry: Entry, now_us: int) -> None:
        """Give an entry its sequence, its stamp and its bytes."""
        self.sequence += 1
        entry.sequence = self.sequence
        epoch = REPLICA_EPOCH
        if entry.is_owned:
            epoch = self.epoch
            time = self._clock.stamp(now_us) if self._clock is not None else 0
        else:
            time = entry.given if entry.given is not None else self.log_time(now_us)
        entry.data = encode_record(time, self.writer, epoch, entry.sequence, entry.fact)
        self.pending_bytes += len(entry.data)

    def _renew_all(self, now_us: int) -> None:
        self._renew(self._pending, now_us)
        self._spool.outdate()

    def _renew(self, entries: Iterable[Entry], now_us: int) -> None:
        """New sequences, stamps and bytes: the writer or its epoch changed, or others went before."""
        for entry in entries:
            if entry.data is not None:
                self.pending_bytes -= len(entry.data)
                self._enter(entry, now_us)

    # Shedding ------------------------------------------------------------------------

    def _shed(self, entry: Entry) -> list[Effect]:
        self.shed[entry.importance] += 1
        self._owed.add(entry.fact)
        return entry.settled(Status.SHED)

    def _purge(self) -> list[Effect]:
        """Shed what waits and may be shed, so that what is critical goes out in order."""
        effects: list[Effect] = []
        for entry in self._pending:
            if entry.importance < Importance.CONTROL and entry.data is not None:
                self.pending_bytes -= len(entry.data)
                entry.data = None
                effects.extend(self._shed(entry))
        return effects

    def _tell_lost(self, now_us: int) -> list[Effect]:
        """Ledger lines become records, where their picks stood; sequences behind them move on."""
        effects: list[Effect] = []
        waiting, folded = self._picks.place(self._pending)
        for entry in folded:
            self.pending_bytes -= entry.size
            effects.extend(entry.settled(Status.LOST))
        self._pending.clear()
        for one in waiting:
            if isinstance(one, PicksLost):
                entry = Entry(one, Importance.CONTROL, None, None, now_us)
                self._enter(entry, now_us)
            else:
                entry = one
                self._renew((entry,), now_us)
            self._pending.append(entry)
        return effects

    def _bound_picks(self, now_us: int) -> list[Effect]:
        """Shrink the oldest picks to ledger lines beyond the buffer's count or age."""
        effects: list[Effect] = []
        for entry in self._picks.shrink(now_us):
            self.pending_bytes -= entry.size
            entry.data = None
            effects.extend(entry.settled(Status.LOST))
        return effects
