"""The shell of the claim: appends claims and pings, reads the log back up to them.

It shares the writer's event loop and appender. Records that this process committed itself,
right behind one another, need no reading back; whatever lies between them is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from ingest.log.appender import Appender, Effect, Receipt
from ingest.log.claim import AppendUrgent, Claim, ClaimEffect, ClaimState, Fenced, Hold, Release, Won
from ingest.log.last_owner import last_owner
from ingest.log.log_clock import OwnerClock
from projections.events.codec import RecordRefused, decode_record, peek_kind
from projections.events.kinds import Kind
from projections.events.ports import LogCorrupt, LogError, LogFailed, LogStore

READ_BYTES = 1 << 20
READ_AGAIN_S = 0.5

log = structlog.get_logger("picklog.log")


class Ownership:
    """Of one owner's writer. is_owned: set while the claim stands.

    do(effects): the writer carries out what the appender wants. fail(error): it is over.
    on_still(us): told when the loop stood still so long that all subscriptions count as cut.
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
    ) -> None:
        self.is_owned = asyncio.Event()
        self._store = store
        self._appender = appender
        self._now_us = now_us
        self._wall_us = wall_us
        self._do = do
        self._fail = fail
        self._on_still = on_still
        self._claim = Claim(appender.writer, now_us())
        self._read_at = store.end_offset()
        self._mine: set[bytes] = set()  # writer ids that this process claimed with
        self._won_epoch = 0

    def begin(self, cause: str) -> None:
        """Claim the log for the appender's present writer id."""
        self.is_owned.clear()
        now = self._now_us()
        last = last_owner(self._store)
        if (
            self._won_epoch
            and last is not None
            and last.epoch > self._won_epoch
            and last.writer not in self._mine
        ):
            self._carry_out([Fenced(last.writer, last.epoch)])  # taken over while our append was unclear
            return
        # An earlier claim may have been found in the log and won just now: its epoch is over.
        self._do(self._appender.on_held())
        self._mine.add(self._appender.writer)
        self._claim = Claim(self._appender.writer, now)
        self._read_at = self._store.end_offset()
        own_time = self._appender.log_time(now) or None
        self._carry_out(self._claim.on_log_read(last, self._wall_us(), cause, own_time))

    def on_tick(self) -> None:
        """Call several times a second."""
        self._carry_out(self._claim.on_tick(self._now_us()))

    def on_committed(self, first_offset: int, records: int) -> None:
        """A batch of this writer is in the log."""
        if self._claim.state is ClaimState.OWNER and self._read_at == first_offset:
            self._read_at = first_offset + records

    def _carry_out(self, effects: list[ClaimEffect]) -> None:
        now = self._now_us()
        for effect in effects:
            match effect:
                case AppendUrgent(fact, stamp):
                    self._do(self._appender.on_urgent(now, fact, stamp, self._read_back))
                case Won(epoch, anchor):
                    self._won_epoch = epoch
                    self.is_owned.set()
                    self._do(self._appender.on_claimed(now, epoch, OwnerClock(anchor + 1, now)))
                case Hold(still_us):
                    log.warning("the process stood still", seconds=round(still_us / 1e6, 3))
                    self._do(self._appender.on_held())
                    if self._on_still is not None:
                        self._on_still(still_us)
                case Release():
                    self._do(self._appender.on_released())
                case Fenced(writer, epoch):
                    self._fail(LogFailed(f"writer {writer.hex()} took the log over with epoch {epoch}"))

    def _read_back(self, receipt: Receipt) -> None:
        """A claim or ping of ours is in the log: read up to it."""
        while receipt.offset is not None and self._read_at <= receipt.offset:
            try:
                batches = self._store.read(self._read_at, READ_BYTES)
            except (LogCorrupt, LogFailed) as problem:
                self._fail(problem)
                return
            except LogError as problem:
                log.warning("the log cannot be read for the own claim", error=str(problem))
                asyncio.get_running_loop().call_later(READ_AGAIN_S, self._read_back, receipt)
                return
            if not batches:
                break
            for batch in batches:
                for offset, data in enumerate(batch.records, batch.first_offset):
                    if peek_kind(data) in (Kind.LANE_OPENED, Kind.PINGED):
                        with suppress(RecordRefused):
                            self._carry_out(self._claim.on_record(decode_record(offset, data)))
            self._read_at = batches[-1].first_offset + len(batches[-1].records)


def own_records(store: LogStore, start: int, writer: bytes, sequence: int) -> dict[int, int]:
    """Sequences of `writer` from `sequence` on that stand in the log from `start` on, with offsets."""
    found: dict[int, int] = {}
    while batches := store.read(start, READ_BYTES):
        for batch in batches:
            for offset, data in enumerate(batch.records, batch.first_offset):
                with suppress(RecordRefused):
                    record = decode_record(offset, data)
                    if record.writer == writer and record.sequence >= sequence:
                        found[record.sequence] = offset
        start = batches[-1].first_offset + len(batches[-1].records)
    return found
