"""The shell of the claim: appends claims and pings, and sees to it that the log is read up to them.

It shares the writer's event loop and appender. On a log with one process it reads back itself:
records that this process committed, right behind one another, need no reading; whatever lies
between them is read. Where several processes may own the log (`stands_by`) the process's own tail
hands over all that it reads, in order, whoever owns it: so a standby hears the owner, and an owner
hears of a claim that superseded it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from ingest.log.appender import Appender, Effect, Receipt
from ingest.log.claim import (
    AppendUrgent,
    Claim,
    ClaimEffect,
    ClaimState,
    Fenced,
    Hold,
    Lost,
    MayClaim,
    Release,
    Won,
)
from ingest.log.last_owner import last_owner
from ingest.log.log_clock import OwnerClock, OwnerSeen
from projections.events.codec import RecordRefused, decode_record, owner_stamp, peek_kind
from projections.events.kinds import Kind
from projections.events.ports import LogCorrupt, LogError, LogFailed, LogStore, OffsetGone, RecordBatch

READ_BYTES = 1 << 20
READ_AGAIN_S = 0.5
HEAD_BYTES = 48  # of a record: its writer's id ends before
Apart = Callable[[Callable[[], Any], Callable[[Any], None]], None]
_TO_THE_CLAIM = (Kind.LANE_OPENED, Kind.PINGED)

log = structlog.get_logger("picklog.log")


class Ownership:
    """Of one writer that owns the log or may. is_owned: set while the claim stands.

    do(effects): the writer carries out what the appender wants. fail(error): it is over.
    on_still(us): told when the loop stood still so long that all subscriptions count as cut.
    stands_by: wait until nobody else owns the log; `on_batches` must be called with all that is
    read. replica: the name that the log knows this process by. apart(work, done): do work in another
    thread, and tell in the loop what it returned or raised; None where reading waits for nobody.
    """

    def __init__(
        self,
        store: LogStore,
        appender: Appender,
        *,
        now_us: Callable[[], int],
        wall_us: Callable[[], int],
        do: Callable[[list[Effect]], None],
        fail: Callable[[LogError], None],
        on_still: Callable[[int], None] | None,
        stands_by: bool = False,
        replica: bytes | None = None,
        apart: Apart | None = None,
    ) -> None:
        self.is_owned = asyncio.Event()
        self._store = store
        self._appender = appender
        self._now_us = now_us
        self._wall_us = wall_us
        self._do = do
        self._fail = fail
        self._on_still = on_still
        self._stands_by = stands_by
        self._replica = replica
        self._apart = apart
        self._is_looking = False
        self._is_renewing = False  # the log is looked through for whom to claim behind
        self._is_claimed_meanwhile = False
        self._claim = self._new_claim(now_us())
        self._read_at = 0 if stands_by else store.end_offset()
        self._mine: set[bytes] = set()  # writer ids that this process claimed with
        self._won_epoch = 0

    @property
    def owner_heard_at(self) -> int | None:
        """Own time at which the owner before this process was heard last; None where that is not known."""
        return self._claim.owner_heard_at

    def begin(self, cause: str) -> None:
        """Claim the log for the appender's present writer id; a standby that never won stands by."""
        self.is_owned.clear()
        now = self._now_us()
        if self._stands_by and not self._won_epoch:
            before, self._claim = self._claim, self._new_claim(now)
            self._claim.go_on_from(before)
            return
        if self._apart is None or not self._won_epoch:
            self._renew(cause, self._end_and_owner())
            return
        # No claim of before may be won any more: its epoch is over.
        self._do(self._appender.on_held())
        self._claim = Claim(self._appender.writer, now, replica=self._replica)
        self._is_renewing, self._is_claimed_meanwhile = True, False
        self._apart(self._end_and_owner, partial(self._looked_again, cause, self._claim))

    def _end_and_owner(self) -> tuple[int, OwnerSeen | None]:
        """The log's end and its last owner before it."""
        return self._store.end_offset(), last_owner(self._store)

    def _looked_again(
        self, cause: str, claim: Claim, found: tuple[int, OwnerSeen | None] | BaseException
    ) -> None:
        """The log named its owner to one that claims again. Of no use where a claim was read meanwhile."""
        if self._claim is not claim:
            return  # the writer was renewed once more
        if isinstance(found, BaseException):
            if self._is_final(found):
                return
            asyncio.get_running_loop().call_later(READ_AGAIN_S, self._begin_again, cause, claim)
        elif self._is_claimed_meanwhile:
            self.begin(cause)
        else:
            self._renew(cause, found)

    def _begin_again(self, cause: str, claim: Claim) -> None:
        if self._claim is claim:
            self.begin(cause)

    def _renew(self, cause: str, found: tuple[int, OwnerSeen | None]) -> None:
        """Claim for the appender's present writer id behind the owner that was found."""
        read_at, last = found
        if (
            self._won_epoch
            and last is not None
            and last.epoch > self._won_epoch
            and last.writer not in self._mine
        ):
            self._carry_out([Fenced(last.writer, last.epoch)])  # taken over while our append was unclear
            return
        now = self._now_us()
        self._is_renewing = False
        self._do(self._appender.on_held())  # an earlier claim may have been found and won just now
        self._mine.add(self._appender.writer)
        self._claim = Claim(self._appender.writer, now, replica=self._replica)
        if not self._stands_by:
            self._read_at = read_at
        own_time = self._appender.log_time(now) or None
        self._carry_out(self._claim.on_log_read(last, self._wall_us(), cause, own_time))

    def on_tick(self) -> None:
        """Call several times a second."""
        self._carry_out(self._claim.on_tick(self._now_us()))

    def on_committed(self, first_offset: int, records: int) -> None:
        """A batch of this writer is in the log."""
        if self._stands_by:
            return
        if self._claim.state is ClaimState.OWNER and self._read_at == first_offset:
            self._read_at = first_offset + records

    def on_batches(self, batches: Sequence[RecordBatch]) -> None:
        """What the process has read of the log, in order; what was handed over before is passed over."""
        now = self._now_us()
        for number, batch in enumerate(batches):
            self._miss(batch.first_offset)
            if self._is_renewing:
                self._note_claims(batches[number:])
                return
            spoke: tuple[int, bytes] | None = None  # the owner's newest word of this batch
            for offset, data in enumerate(batch.records, batch.first_offset):
                if offset < self._read_at:
                    continue
                if peek_kind(data) in _TO_THE_CLAIM:
                    self._owner_spoke(spoke, now)
                    spoke = None
                    self._to_the_claim(offset, data, now)
                elif self._is_waiting and owner_stamp(data) is not None:
                    owner = self._claim.owner
                    if owner is not None and owner[0] in data[:HEAD_BYTES]:
                        spoke = offset, data
                    else:
                        self._owner_spoke((offset, data), now)
            self._owner_spoke(spoke, now)
            self._read_at = max(self._read_at, batch.first_offset + len(batch.records))

    def _miss(self, offset: int) -> None:
        """Retention removed what stood before `offset` and was not read: who claimed there is not known.

        An owner must not take its own ping behind it for a sign that nobody did. Where offsets jump,
        nothing was there.
        """
        if offset <= self._read_at:
            return
        before, self._read_at = self._read_at, offset
        if self._is_renewing or self._claim.state is ClaimState.STANDBY:
            return
        if self._store.first_offset() > before:
            log.warning("the log was removed before it was read: looking who owns it", offset=offset)
            self.begin("restart")

    def _note_claims(self, batches: Sequence[RecordBatch]) -> None:
        """While the log is looked through for its owner, only claims matter of what is handed over."""
        for batch in batches:
            new = batch.records[max(0, self._read_at - batch.first_offset) :]
            self._is_claimed_meanwhile |= any(peek_kind(data) == Kind.LANE_OPENED for data in new)
            self._read_at = max(self._read_at, batch.first_offset + len(batch.records))

    @property
    def _is_waiting(self) -> bool:
        return self._claim.state in (ClaimState.STANDBY, ClaimState.CLAIMING)

    def _new_claim(self, now_us: int) -> Claim:
        return Claim(self._appender.writer, now_us, stands_by=self._stands_by, replica=self._replica)

    def _owner_spoke(self, record: tuple[int, bytes] | None, now_us: int) -> None:
        if record is None:
            return
        with suppress(RecordRefused):
            said = decode_record(*record)
            self._claim.on_owner_record(said.writer, said.epoch, said.time, now_us)

    def _to_the_claim(self, offset: int, data: bytes, now_us: int) -> None:
        with suppress(RecordRefused):
            self._carry_out(self._claim.on_record(decode_record(offset, data), now_us))

    def _carry_out(self, effects: list[ClaimEffect]) -> None:
        now = self._now_us()
        for effect in effects:
            match effect:
                case AppendUrgent(fact, stamp):
                    tag = None if self._stands_by else self._read_back
                    self._do(self._appender.on_urgent(now, fact, stamp, tag))
                case MayClaim():
                    self._claim_silent_log(effect)
                case Won(epoch, anchor, anchored_at):
                    self._won_epoch = epoch
                    self.is_owned.set()
                    clock = OwnerClock(anchor + 1, now if anchored_at is None else anchored_at)
                    self._do(self._appender.on_claimed(now, epoch, clock))
                case Lost(writer, epoch):
                    log.info("another standby took the log over", writer=writer.hex(), epoch=epoch)
                case Hold(still_us):
                    log.warning("the process stood still", seconds=round(still_us / 1e6, 3))
                    self._do(self._appender.on_held())
                    if self._on_still is not None:
                        self._on_still(still_us)
                case Release():
                    self._do(self._appender.on_released())
                case Fenced(writer, epoch):
                    self._fail(LogFailed(f"writer {writer.hex()} took the log over with epoch {epoch}"))

    def _claim_silent_log(self, effect: MayClaim) -> None:
        """Nobody speaks for the log; whom this process never heard, the log names.

        Only what was handed over counts: whoever spoke or claimed behind it comes first.
        """
        if effect.last is not None:
            self._claim_behind(effect.last)
            return
        if self._is_looking:
            return
        look = partial(last_owner, self._store, self._read_at)
        take = partial(self._looked, self._claim, self._claim.owner, self._claim.owner_heard_at)
        if self._apart is not None:
            self._is_looking = True
            self._apart(look, take)
            return
        try:
            found: OwnerSeen | BaseException | None = look()
        except LogError as problem:
            found = problem
        take(found)

    def _looked(
        self,
        claim: Claim,
        owner: tuple[bytes, int] | None,
        heard_at: int | None,
        found: OwnerSeen | BaseException | None,
    ) -> None:
        """The log named its last owner. Not to be used where somebody spoke meanwhile."""
        self._is_looking = False
        if isinstance(found, BaseException):
            self._is_final(found)
            return  # else asked again at the next tick
        is_silent = claim.state is ClaimState.STANDBY and (claim.owner, claim.owner_heard_at) == (
            owner,
            heard_at,
        )
        if self._claim is claim and is_silent:
            self._claim_behind(found)

    def _is_final(self, problem: BaseException) -> bool:
        """Whether the log cannot be read for who owns it, now or later; then the writer is over."""
        if not isinstance(problem, LogError):
            self._fail(LogFailed(f"the log cannot be read: {problem}"))
        elif isinstance(problem, LogCorrupt | LogFailed):
            self._fail(problem)
        else:
            log.warning("the log cannot be read for who owned it", error=str(problem))
            return False
        return True

    def _claim_behind(self, last: OwnerSeen | None) -> None:
        now = self._now_us()
        heard_at = self._claim.owner_heard_at
        silent_s = None if heard_at is None else round((now - heard_at) / 1e6, 3)
        log.info("nobody speaks for the log: claiming it", silent_seconds=silent_s)
        self._mine.add(self._appender.writer)
        self._carry_out(self._claim.on_silence(last, now, self._wall_us()))

    def _read_back(self, receipt: Receipt) -> None:
        """A claim or ping of ours is in the log: read up to it."""
        while receipt.offset is not None and self._read_at <= receipt.offset:
            try:
                batches = self._store.read(self._read_at, READ_BYTES)
            except (LogCorrupt, LogFailed) as problem:
                self._fail(problem)
                return
            except OffsetGone as gone:
                self._miss(gone.first_offset)
                return  # claimed anew: the receipt was of the claim before
            except LogError as problem:
                log.warning("the log cannot be read for the own claim", error=str(problem))
                asyncio.get_running_loop().call_later(READ_AGAIN_S, self._read_back, receipt)
                return
            if not batches:
                break
            self.on_batches(batches)
