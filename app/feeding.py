"""The shell of `replay.feed`: a staging directory, its pace, and what follows the staged log.

While the staged log grows, the audit writes its rows and, with another configuration, every
pick is asked under it, by the same parts that do so in the follower of a router. They read
the staged log's files with readers of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from app.audit_database import database_url
from app.audit_sink import AuditSink
from app.checkpoint_store import CheckpointFolder
from app.follower_asking import Asking
from app.follower_figures import ShadowResult, Verdict
from app.following import Following
from app.log_places import OpenLog, checkpoint_folder, open_log
from app.shadow import Rows, RowSink, ShadowSettings
from app.shadow_file import JsonLinesSink
from app.shadow_sql import SqlSink
from app.sql_rows import SinkSettings
from app.staging_admin import StagingAdmin
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_upkeep import keep_up
from ingest.log.staged_log import open_staged
from projections.events.ports import RecordBatch
from replay.feed import Feed, Pace, begin_of, staged_log_id

log = structlog.get_logger("picklog.staging")

READ_BYTES = 1 << 20
TELL_S = 0.5
UPKEEP_S = 60.0
KEPT_CHECKPOINTS = 3
AUDIT_NAME = "audit.sqlite"


class StagingDirectory:
    """A data directory that is fed from another log. Raises FeedRefused, LogError, OSError."""

    def __init__(self, data: Path, origin: OpenLog, start: int) -> None:
        begin = begin_of(origin.reader, origin.checkpoints, start)
        settings = SegmentSettings(reserve_bytes=0)
        log_id = staged_log_id(origin.reader.log_id)
        self.data = data
        self.log = open_staged(data, log_id, begin.first_offset, settings)
        try:
            self.checkpoints = CheckpointFolder(checkpoint_folder(data), keep=KEPT_CHECKPOINTS)
            self.feed = Feed(origin.reader, origin.checkpoints, self.log, self.checkpoints, begin)
        except BaseException:
            self.log.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.feed.close()
        self.log.close()

    def keep_up(self) -> None:
        """Compress and let go of what retention does not keep. Runs in a thread."""
        newest = self.checkpoints.list()[-KEPT_CHECKPOINTS:]
        self.log.retention_floor = newest[0].offset if len(newest) == KEPT_CHECKPOINTS else 0
        keep_up(self.log)


class Counting:
    """Counts what the other configuration makes of picks, by the rows that were written. A RowSink.

    A write that has begun is ended, also where whoever asked for it is ended: then it counts,
    and a follower that starts anew goes on behind it.
    """

    def __init__(self, sink: RowSink) -> None:
        self._sink = sink
        self._writing: asyncio.Task[None] | None = None
        self.results: Counter[ShadowResult] = Counter()

    def verified(self, verdict: Verdict) -> None:
        """See shadow.Figures. Production's own verifier counts these."""

    def shadowed(self, result: ShadowResult) -> None:
        """See shadow.Figures. Rows are counted here."""

    async def mark(self, shadow_config: str) -> int:
        """See RowSink."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        return await self._sink.mark(shadow_config)

    async def write(self, rows: Rows) -> None:
        """See RowSink."""
        self._writing = asyncio.create_task(self._write(rows))
        await asyncio.shield(self._writing)

    async def _write(self, rows: Rows) -> None:
        await self._sink.write(rows)
        for row in rows.shadow:
            moved = ShadowResult.MOVED if row.moved else ShadowResult.SAME
            self.results[ShadowResult.UNVERIFIABLE if row.moved is None else moved] += 1

    async def close(self) -> None:
        """See RowSink."""
        await self._sink.close()


def joined(batches: Sequence[RecordBatch]) -> list[RecordBatch]:
    """Batches of which each continues the one before become one: a commit costs what the disk takes."""
    found: list[RecordBatch] = []
    for batch in batches:
        if found and found[-1].first_offset + len(found[-1].records) == batch.first_offset:
            found[-1] = RecordBatch(found[-1].first_offset, [*found[-1].records, *batch.records])
        else:
            found.append(batch)
    return found


class Feeding:
    """One run of `replay feed`. tell: progress, a line at a time. admin: served until the end."""

    def __init__(
        self,
        staging: StagingDirectory,
        source: Following,
        speed: float | None,
        other: ShadowSettings | None,
        audit: bool,
        tell: Callable[[str], None],
        admin: StagingAdmin | None = None,
    ) -> None:
        self._staging = staging
        self._source = source
        self._pace = Pace(speed)
        self._is_paced = speed is not None
        self._other = other
        self._has_audit = audit
        self._tell = tell
        self._admin = admin
        url = database_url(str(staging.data / AUDIT_NAME))
        self._counting = Counting(SqlSink(url) if audit else JsonLinesSink(staging.data))
        self._url = url

    async def run(self, follow: bool) -> None:
        """Feed to the end of the log, or until told to stop. Raises what logs and ports raise."""
        with self._source.until_told():
            if self._admin is not None:
                port = await self._admin.start()
                log.info("listening", port=port)
            try:
                await self._run(follow)
                if self._admin is not None:
                    await self._source.stopped()
            finally:
                if self._admin is not None:
                    await self._admin.close()

    async def _run(self, follow: bool) -> None:
        with ExitStack() as stack:
            jobs = self._jobs(stack)
            following = [asyncio.create_task(job(None)) for job in jobs] if follow else []
            try:
                await self._feed(follow)
            finally:
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)
            self._staging.feed.close()
            if not follow or jobs:
                end = self._staging.log.end_offset()
                for job in self._jobs(stack):
                    await job(end)
            await self._counting.close()

    def document(self, seconds: float) -> dict[str, Any]:
        """What was fed, see feed_cli."""
        feed, cursor = self._staging.feed, self._staging.feed.cursor
        return {
            "to": str(self._staging.data),
            "log_id": self._staging.log.log_id.hex(),
            "origin": self._source.reader.log_id.hex(),
            "records": feed.fed,
            "end_offset": self._staging.log.end_offset(),
            "seconds": round(seconds, 3),
            "checkpoints": feed.checkpoints_written,
            "ticks_agreed": cursor.agreement.agreed,
            "breaks": [
                f"{one.kind.value} between offsets {one.after} and {one.offset}" for one in feed.breaks
            ],
            "stopped": str(cursor.stopped) if cursor.stopped is not None else None,
            "digests": {name: f"{digest:016x}" for name, digest in cursor.fold.digests()},
            "other": self._other_document(),
        }

    def _other_document(self) -> dict[str, Any] | None:
        if self._other is None:
            return None
        results = self._counting.results
        place = AUDIT_NAME if self._has_audit else "shadow.jsonl"
        return {
            "config": self._other.source,
            "digest": self._other.digest,
            "same": results[ShadowResult.SAME],
            "moved": results[ShadowResult.MOVED],
            "unverifiable": results[ShadowResult.UNVERIFIABLE],
            "rows": f"{self._staging.data / place}, table shadow_picks",
        }

    # -- the staged log ----------------------------------------------------------------

    async def _feed(self, follow: bool) -> None:
        feed = self._staging.feed
        loop = asyncio.get_running_loop()
        told_at, kept_at = loop.time(), loop.time()
        source, reader = self._source, self._source.reader
        end = reader.end_offset()
        while not source.is_stopped() and feed.cursor.stopped is None:
            if follow:
                batches = await source.more(feed.next_offset)
            elif not (batches := reader.read(feed.next_offset, READ_BYTES)):
                return
            for batch in batches if self._is_paced else joined(batches):
                if not follow and batch.first_offset >= end:
                    return
                await self._paced(batch.first_offset, batch.records)
                if source.is_stopped():
                    return
                await asyncio.sleep(0)
            now = loop.time()
            if now - told_at > TELL_S:
                told_at = now
                self._tell(f"{feed.fed} records, offset {feed.next_offset - 1} of {reader.end_offset() - 1}")
            if now - kept_at > UPKEEP_S:
                kept_at = now
                await asyncio.to_thread(self._staging.keep_up)

    async def _paced(self, first_offset: int, records: Sequence[bytes]) -> None:
        """Feed records when their log time has come."""
        loop = asyncio.get_running_loop()
        begin = 0
        for place, data in enumerate(records):
            due_in_s = self._pace.due_in_s(data, loop.time())
            if due_in_s <= 0:
                continue
            if place > begin:
                self._staging.feed.feed(first_offset + begin, records[begin:place])
                begin = place
            await self._source.wait(asyncio.sleep(due_in_s))
            if self._source.is_stopped():
                return
        self._staging.feed.feed(first_offset + begin, records[begin:])

    # -- what follows it ---------------------------------------------------------------

    def _jobs(self, stack: ExitStack) -> list[Callable[[int | None], Any]]:
        """Functions that follow the staged log up to an offset, or for ever for None."""
        jobs: list[Callable[[int | None], Any]] = []
        data = self._staging.data
        if self._has_audit:
            opened = stack.enter_context(open_log(data))
            settings = SinkSettings(self._url, None, None, 2)

            async def audit(until: int | None) -> None:
                sink = AuditSink(opened.reader, opened.checkpoints, settings, patient=until is None)
                try:
                    await (sink.run() if until is None else sink.follow(until))
                finally:
                    await sink.close()

            jobs.append(audit)
        if self._other is not None:
            asked = stack.enter_context(open_log(data))
            other = self._other

            async def ask(until: int | None) -> None:
                asking = Asking(asked.reader, asked.checkpoints, self._counting, self._counting, data, other)
                await (asking.run() if until is None else asking.follow(until))

            jobs.append(ask)
        return jobs
