"""The fold: committed records in, state out.

Each record passes intake and then the reducers that its kind concerns, always in the order
registry, load, kv, ledger, status; later ones read earlier ones at this very offset. What is
due in kv by then is done before a record of the owner is taken. Samples and block events,
nearly all of a busy log, take a short way that does the same.

Three things can become of a record. It takes effect. It has none, as a function of its
bytes and of the state: refused by the codec, sent twice, fenced, condemned, of an unknown
kind; a notice says so. Or it stops the fold: its schema or the fold mode that it adopts is
newer than this release, or a reducer raised. A stopped fold refuses every further record,
and after a reducer raised its state may be torn: throw it away, start a new one from a
checkpoint, with the offset among `condemned` once the log says so (decision 16).

Sources: decisions 4, 7, 8, 10, 16; architecture 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from projections.events import control, signals
from projections.events.codec import RecordRefused, Refusal, decode_parts
from projections.events.envelope import NOTHING, Mark, Record
from projections.events.held import SettingsHeld
from projections.events.kinds import FACT_KINDS, Kind, Speaker
from projections.events.picks import own_number
from projections.events.ports import RecordBatch
from projections.fold_modes import COUNTED_ONCE, FOLD_MODES
from projections.fold_state import State
from projections.identity import U64_MAX
from projections.kv.reducer import apply_batch, apply_pick
from projections.notices import IntakeNotice, IntakeResult, Notice, StatusNotice
from projections.refused_frames import notices_of
from projections.view import Overlay, View

_new: Any = tuple.__new__  # a named tuple's own constructor costs twice as much
_KV_BATCH: Final = int(Kind.KV_BATCH_RECEIVED)
_OFTEN: Final = (_KV_BATCH, int(Kind.SAMPLE_RECEIVED))
_SPEAKERS: Final = {int(kind): row.speaker for kind, row in FACT_KINDS.items()}


class FoldStopped(Exception):
    """This fold goes no further. offset: of the record that every fold must skip, or cannot read."""

    def __init__(self, offset: int, cause: str) -> None:
        super().__init__(f"fold stopped at offset {offset}: {cause}")
        self.offset = offset
        self.cause = cause


class NewerRelease(FoldStopped):
    """The record is sound, this release cannot read it: nobody may condemn it."""


class UnknownFoldMode(NewerRelease):
    """The log adopts behaviours that this release does not have. `flags`: the unknown ones."""

    def __init__(self, offset: int, flags: tuple[int, ...]) -> None:
        super().__init__(offset, f"fold mode {flags} is newer than this release: update it")
        self.flags = flags


class Fold:
    """A state and the position that it is the state of.

    condemned: offsets to skip; the log said so at a later offset than they stand at.
    mark, state: of a checkpoint, to go on from there.
    """

    def __init__(
        self,
        condemned: frozenset[int] = frozenset(),
        mark: Mark = NOTHING,
        state: State | None = None,
    ) -> None:
        self.state = state if state is not None else State()
        self._condemned = condemned
        self._offset = mark.offset
        self._check = mark.check
        self._began_at = -1 if mark is NOTHING else 0  # a checkpoint holds everything before it
        self._stopped: FoldStopped | None = None
        # What every sample needs, at hand.
        self._intake, self._status = self.state.intake, self.state.status
        self._registry, self._apply_sample = self.state.registry, self.state.load.apply_sample
        self._kv = self.state.kv
        self._reducers: dict[int, Callable[[Record, list[Notice]], object]] = {
            **dict.fromkeys(_DISCOVERY_KINDS, self._discovery),
            int(Kind.SAMPLE_RECEIVED): self._sample,
            _KV_BATCH: self._kv_batch,
            int(Kind.FRAME_REFUSED): self._frame_refused,
            int(Kind.SUBSCRIPTION_CHANGED): self._subscription,
            int(Kind.SUBSCRIPTION_CONTINUED): self._subscription,
            int(Kind.PICK_MADE): self._pick,
            int(Kind.DISPATCH_ENDED): self._end,
            int(Kind.PICKS_LOST): self._lost,
            int(Kind.LANE_OPENED): self._opened,
            int(Kind.CLOCK_TICKED): self._tick,
            int(Kind.REPLICA_STARTED): self._started,
            int(Kind.REPLICA_GONE): self._gone,
            int(Kind.PINGED): self._heard,
            int(Kind.CONFIG_PROPOSED): self._heard,
            int(Kind.FOLD_MODE_ADOPTED): self._mode,
            int(Kind.CONFIG_ADOPTED): self._adopted,
            int(Kind.RECORD_CONDEMNED): self._condemn,
        }

    # -- reading -----------------------------------------------------------------------

    @property
    def mark(self) -> Mark:
        """Position of the newest record folded, whether it took effect or not."""
        return Mark(self._offset, self.state.intake.stamp, self._check)

    @property
    def stopped(self) -> FoldStopped | None:
        """Why this fold goes no further, None while it does."""
        return self._stopped

    def digests(self) -> tuple[tuple[str, int], ...]:
        """See State.digests."""
        return self.state.digests()

    def view(self, overlay: Overlay) -> View:
        """What a pick may read now; valid until the next record."""
        state = self.state
        return View(
            self._offset,
            state.registry.fleet,
            state.load,
            state.ledger,
            overlay,
            state.kv,
            state.intake.stamp,
        )

    def settings(self, version: int) -> SettingsHeld | None:
        """An adopted settings version, None where it is unknown."""
        return self.state.status.settings(version)

    @property
    def settings_now(self) -> SettingsHeld | None:
        """The settings in force, None before the first adoption."""
        return self.state.status.settings_now

    # -- records -----------------------------------------------------------------------

    def apply_batch(self, batch: RecordBatch, notices: list[Notice], limit: int | None = None) -> None:
        """Fold the first `limit` records of a committed batch, all of them without a limit."""
        apply = self.apply
        records = batch.records if limit is None else batch.records[:limit]
        for offset, data in enumerate(records, start=batch.first_offset):
            apply(offset, data, notices)

    def apply(self, offset: int, data: bytes, notices: list[Notice]) -> tuple[Any, ...] | None:
        """Fold one committed record. Returns its fact, None where it took no effect.

        notices: gets what there is to tell, in order.
        Raises FoldStopped, then and for every later record; ValueError for an offset that is
        not beyond the mark.
        """
        if self._stopped is not None:
            raise self._stopped
        if offset <= self._offset:
            raise ValueError(f"offset {offset} was folded, the mark is {self._offset}")
        if self._condemned and offset in self._condemned:
            self._skip(offset, data, notices)
            return None
        try:
            check, values, fact = decode_parts(data)
        except RecordRefused as refusal:
            self._refuse(offset, data, refusal, notices)
            return None
        kind, time, writer, epoch, sequence = head = values[:5]
        self._offset, self._check, status = offset, check, self._status
        status.tick_records += 1
        status.tick_check_sum = (status.tick_check_sum + check) & U64_MAX
        try:
            if kind in _OFTEN:
                intake = self._intake
                seen = intake.owner_seen
                if (
                    writer == intake.owner_writer
                    and sequence > seen.last_sequence
                    and time > intake.stamp
                    and epoch == intake.owner_epoch
                    and seen.is_dirty
                    and time < self._kv.due_at
                ):  # the owner's next one: what `_take` would do, without its calls
                    seen.last_sequence = sequence
                    intake.stamp = seen.seen_at = time
                    if kind == _KV_BATCH:
                        if not self._kv.is_on:
                            return None
                        apply_batch(self._kv, fact, self._registry, notices)
                        return fact
                    record = _new(Record, (offset, check, *head, fact))
                    notices += self._apply_sample(record, self._registry)
                    return fact
            return self._take(_new(Record, (offset, check, *head, fact)), notices)
        except FoldStopped as stop:
            self._stopped = stop
            raise
        except Exception as problem:
            self._stopped = FoldStopped(offset, f"{type(problem).__name__}: {problem}")
            raise self._stopped from problem

    def _take(self, record: Record, notices: list[Notice]) -> tuple[Any, ...] | None:
        """Intake, then the reducers of the record's kind."""
        self._begin(record.offset)
        intake = self.state.intake
        if intake.is_repeated(record):
            _dropped(IntakeResult.DUPLICATE_RECORD, record, notices)
            return None
        speaker = _SPEAKERS[record.kind]
        if speaker is Speaker.OWNER:
            if not intake.is_owner(record):
                _dropped(IntakeResult.FOREIGN_OWNER, record, notices)
                return None
            stamp = intake.stamp
            record = intake.advance(record)
            if record.time >= self._kv.due_at:
                self._kv.upkeep(record.time, stamp, notices)
        elif speaker is Speaker.CHECKPOINT:
            _dropped(IntakeResult.REFUSED_BYTES, record, notices)
            return None
        reduce = self._reducers.get(record.kind)
        if reduce is not None and reduce(record, notices) is False:
            return None
        return record.fact

    def _begin(self, offset: int) -> None:
        """Remember where this fold began: what lies before it was not folded here."""
        if self._began_at < 0:
            self._began_at = offset

    def _refuse(self, offset: int, data: bytes, refusal: RecordRefused, notices: list[Notice]) -> None:
        """Bytes that the codec does not take, as a function of the bytes alone."""
        if refusal.reason is Refusal.SCHEMA:
            self._stopped = NewerRelease(offset, "its schema is newer than this release: update it")
            raise self._stopped from refusal
        unknown = refusal.reason is Refusal.UNKNOWN_KIND
        result = IntakeResult.UNKNOWN_KIND if unknown else IntakeResult.REFUSED_BYTES
        notices.append(IntakeNotice(result, offset, str(refusal)))
        self._pass_by(offset, data)

    def _skip(self, offset: int, data: bytes, notices: list[Notice]) -> None:
        """A condemned record: every fold that comes past it remembers it as skipped."""
        self.state.intake.condemn(offset)
        notices.append(IntakeNotice(IntakeResult.CONDEMNED, offset))
        self._pass_by(offset, data)

    def _pass_by(self, offset: int, data: bytes) -> None:
        """Move on without decoding; the check word is what the bytes end with."""
        self._begin(offset)
        self._offset, self._check = offset, int.from_bytes(data[-8:], "little")
        self.state.status.count_record(self._check)

    # -- one reducer path a kind; False: it took no effect ------------------------------

    def _discovery(self, record: Record, notices: list[Notice]) -> None:
        departed = self.state.registry.apply(record, notices)
        if departed:
            self.state.load.evict(departed)
            self.state.ledger.evict(departed)
        registry = self.state.registry
        if self._kv.is_on and (registry.rejoined or registry.rebound):
            self._kv.follow(registry.rejoined, registry.rebound, registry, notices)

    def _sample(self, record: Record, notices: list[Notice]) -> None:
        notices += self.state.load.apply_sample(record, self.state.registry)

    def _kv_batch(self, record: Record, notices: list[Notice]) -> bool:
        if self._kv.is_on:
            apply_batch(self._kv, record.fact, self._registry, notices)
        return self._kv.is_on

    def _frame_refused(self, record: Record, notices: list[Notice]) -> None:
        notices += notices_of(record.fact)  # type: ignore[arg-type]

    def _subscription(self, record: Record, notices: list[Notice]) -> None:
        fact: signals.SubscriptionChanged | signals.SubscriptionContinued = record.fact  # type: ignore[assignment]
        self.state.load.apply_subscription(record)
        if fact.family == signals.Family.KV and self._kv.is_on:
            self._kv.apply_subscription(fact, record.time, notices)
        if not self.state.status.apply_subscription(fact, self.state.intake.stamp):
            notices.append(IntakeNotice(IntakeResult.OVER_CAPACITY, record.offset, "subscriptions"))

    def _pick(self, record: Record, notices: list[Notice]) -> None:
        fact: Any = record.fact
        number = own_number(fact)
        if number > self._told(fact.replica):
            if self._kv.has_side:
                apply_pick(self._kv, record, self.state.registry)
            self.state.ledger.apply_pick(record, self.state.registry)
        self.state.status.hear(fact.replica, self.state.intake.stamp, number)

    def _end(self, record: Record, notices: list[Notice]) -> None:
        fact: Any = record.fact
        self.state.ledger.apply_end(record)
        self.state.status.hear(fact.replica, self.state.intake.stamp, own_number(fact))

    def _lost(self, record: Record, notices: list[Notice]) -> None:
        fact: Any = record.fact
        self.state.ledger.apply_lost(record, self.state.registry, self._told(fact.replica))
        own_seq = 0
        for line in fact.lines:
            own_seq = max(own_seq, own_number(line), line.ended_seq or 0)
        self.state.status.hear(fact.replica, self.state.intake.stamp, own_seq)

    def _told(self, replica: bytes) -> int:
        """Own number up to which picks of a replica are copies, 0 where copies may count.

        A replica's numbers reach the log in order (`ingest.log.outage`), so what is not above the newest
        one was heard before, whoever left meanwhile.
        """
        if COUNTED_ONCE not in self._intake.fold_mode:
            return 0
        held = self._status.replica(replica)
        return 0 if held is None else held.own_seq

    def _opened(self, record: Record, notices: list[Notice]) -> bool:
        fact: control.LaneOpened = record.fact  # type: ignore[assignment]
        stamp = self.state.intake.stamp
        if not self.state.intake.open_lane(record, fact):
            _dropped(IntakeResult.FOREIGN_OWNER, record, notices)
            return False
        if self._kv.is_on:
            self._kv.upkeep(self.state.intake.stamp, stamp, notices)
            self._kv.lane_opened(stamp)
        self.state.status.apply_opened(fact, record.writer, notices)
        return True

    def _tick(self, record: Record, notices: list[Notice]) -> None:
        fact: control.ClockTicked = record.fact  # type: ignore[assignment]
        stamp = self.state.intake.stamp
        self.state.intake.forget_writers()
        self.state.ledger.prune(stamp)
        # whether or not anybody asks, so that what waits to be worked in stays bounded
        self.state.digests()
        self.state.status.apply_tick(record.offset, fact, stamp)

    def _started(self, record: Record, notices: list[Notice]) -> None:
        self.state.status.apply_started(record.fact, self.state.intake.stamp, notices)  # type: ignore[arg-type]

    def _gone(self, record: Record, notices: list[Notice]) -> None:
        self.state.status.apply_gone(record.fact, self.state.intake.stamp, notices)  # type: ignore[arg-type]

    def _heard(self, record: Record, notices: list[Notice]) -> None:
        fact: Any = record.fact
        self.state.status.hear(fact.replica, self.state.intake.stamp)

    def _mode(self, record: Record, notices: list[Notice]) -> None:
        fact: control.FoldModeAdopted = record.fact  # type: ignore[assignment]
        unknown = tuple(sorted(set(fact.flags) - FOLD_MODES))
        if unknown:
            raise UnknownFoldMode(record.offset, unknown)
        self.state.intake.adopt(tuple(sorted(set(fact.flags))))
        self._kv.adopt(self.state.intake.fold_mode, record.time, notices)
        notices.append(StatusNotice("fold mode adopted", str(self.state.intake.fold_mode)))

    def _adopted(self, record: Record, notices: list[Notice]) -> bool:
        fact: control.ConfigAdopted = record.fact  # type: ignore[assignment]
        return self.state.status.apply_adopted(record.offset, fact, self.state.intake.stamp, notices)

    def _condemn(self, record: Record, notices: list[Notice]) -> None:
        """From here on all know it. Whoever took the record before must start again without it."""
        fact: control.RecordCondemned = record.fact  # type: ignore[assignment]
        known = fact.offset in self.state.intake.condemned or fact.offset < self._began_at
        if fact.offset < record.offset and not known:
            raise FoldStopped(fact.offset, "it is condemned, and was folded here before the log said so")
        self.state.intake.condemn(fact.offset)
        self._condemned |= {fact.offset}
        notices.append(StatusNotice("record condemned", f"offset {fact.offset}: {fact.detail}", "warning"))


def _dropped(result: IntakeResult, record: Record, notices: list[Notice]) -> None:
    notices.append(IntakeNotice(result, record.offset, f"kind {record.kind}"))


_DISCOVERY_KINDS: Final = tuple(
    int(kind)
    for kind in (
        Kind.PASS_BEGAN,
        Kind.KEY_PUT,
        Kind.KEY_DELETED,
        Kind.PASS_SETTLED,
        Kind.PASS_ENDED,
        Kind.KEYS_DROPPED,
    )
)
