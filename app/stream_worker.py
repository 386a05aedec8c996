"""What a stream worker does with the messages that it is given, whoever delivers them.

Delivery is not trusted: a message may come twice, late, or not at all (a rebalance lets a fetched message of
a much higher offset through first, and offsets were committed over such gaps: field report B-136). The
database knows of each partition how far it was written. What lies below is passed over; where messages are
missing in between, they are read from the topic directly and written first. So what is committed at the
broker decides who reads, and never what is written.

A message that cannot be read is counted and passed over; one of a later release ends the worker, since it
holds rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from typing import Protocol

import structlog

from app.audit_database import AuditAway, AuditRefused, BrokersAway
from app.audit_messages import AuditMessage, MessageNewer, MessageRefused, decode
from app.audit_producer import PARTITIONS, kafka_told
from app.rollup_writer import RollupWriter
from app.stream_writer import StreamWriter, Stretch
from ingest.log.kafka_keyed import Found

log = structlog.get_logger("picklog.stream")

STRETCH_MESSAGES = 500
PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 30.0


class Spans(Protocol):
    """The topic, read directly; see `KeyedSpans`."""

    async def ends(self) -> list[tuple[int, int]]: ...

    def read(self, partition: int, first: int, stop: int) -> AsyncIterator[list[Found]]: ...

    async def close(self) -> None: ...


class Peer(StrEnum):
    """Whom a worker waits for."""

    DATABASE = "database"
    BROKERS = "brokers"


class StreamWorker:
    """Writes messages. open_spans: reaches the topic for what was not delivered. now: monotonic, seconds.

    written, refused, fetched: messages written, passed over as unreadable, and read from the topic because
    they had not been delivered. rows: in the messages written. positions: of each partition the offset to be
    written next, as far as it is known. away: who could not be reached when last tried. written_at: when a
    batch was last written; before the first, when the worker began.
    """

    def __init__(
        self,
        writer: StreamWriter,
        open_spans: Callable[[], Awaitable[Spans]],
        rollups: RollupWriter | None = None,
        pause_s_min: float = PAUSE_S_MIN,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._open_spans = open_spans
        self._rollups = rollups
        self._pause_s_min = pause_s_min
        self._now = now
        self._at = 0  # log time of the newest mark
        self.written = 0
        self.refused = 0
        self.fetched = 0
        self.rows = 0
        self.positions: dict[int, int] = {}
        self.away: set[Peer] = set()
        self.written_at = now()

    async def take(self, messages: Sequence[Found]) -> None:
        """Write messages of any partitions; returns once they are committed, however long that takes.

        Raises AuditRefused where somebody has to change something.
        """
        pause = self._pause_s_min
        said = False
        while True:
            try:
                await self._take(messages)
                break
            except AuditAway as problem:
                self.away = {_peer(problem)}
                if not said:
                    log.error("rows wait in the topic", cause=str(problem))
                    said = True
                await asyncio.sleep(pause)
                pause = min(PAUSE_S_MAX, pause * 2)
        self.away.clear()
        if said:
            log.info("rows are written again")

    async def look(self) -> None:
        """Ask the database how far it has each partition; others may write it too. Raises AuditAway."""
        try:
            found = await self._writer.positions()
        except AuditAway as problem:
            self.away.add(_peer(problem))
            raise
        self.away.discard(Peer.DATABASE)
        for partition in range(PARTITIONS):  # this worker may have written on meanwhile
            known = self.positions.get(partition, 0)
            self.positions[partition] = max(known, found.get(partition, 0))

    async def roll_up(self) -> None:
        """Roll up what is over by the marks that were read. One worker at a time is enough."""
        if self._rollups is not None and self._at:
            await self._rollups.due(self._at)

    async def _take(self, messages: Sequence[Found]) -> None:
        by_partition: dict[int, dict[int, Found]] = {}
        for message in messages:
            by_partition.setdefault(message.partition, {})[message.offset] = message
        positions = await self._writer.positions()
        self.positions = {partition: positions.get(partition, 0) for partition in range(PARTITIONS)}
        for partition, found in sorted(by_partition.items()):
            position = positions.get(partition)
            if position is None:
                position = await self._fill(partition, 0, min(found))
            for run in _runs(found[offset] for offset in sorted(found) if offset >= position):
                if run[0].offset > position:
                    await self._fill(partition, position, run[0].offset)
                await self._write(partition, run)
                position = run[-1].offset + 1

    async def _fill(self, partition: int, first: int, stop: int) -> int:
        """Write what was not delivered, as far as the topic has it; the position behind it."""
        if first >= stop:
            return first
        with kafka_told():
            spans = await self._open_spans()
            try:
                begin, _ = (await spans.ends())[partition]
                if begin > first > 0:
                    log.error("messages were gone before they were written", partition=partition, first=first)
                    await self._writer.skip(partition, first, begin)
                async for stretch in spans.read(partition, max(first, begin), stop):
                    self.fetched += len(stretch)
                    for run in _runs(stretch):
                        await self._write(partition, run)
            finally:
                await spans.close()
        return stop

    async def _write(self, partition: int, run: Sequence[Found]) -> None:
        decoded = [message for found in run if (message := self._decoded(found)) is not None]
        self.rows += await self._writer.write(Stretch(partition, run[-1].offset + 1, decoded))
        self.written += len(run)
        self.written_at = self._now()
        self.positions[partition] = run[-1].offset + 1
        marks = [message.at for message in decoded if message.check is not None]
        self._at = max([self._at, *marks])

    def _decoded(self, found: Found) -> AuditMessage | None:
        try:
            return decode(found.value)
        except MessageNewer as problem:
            raise AuditRefused(f"a message of the audit's topic {problem}") from problem
        except MessageRefused as problem:
            self.refused += 1
            place = f"{found.partition}:{found.offset}"
            log.warning("a message is passed over", place=place, cause=str(problem))
            return None


def _peer(problem: AuditAway) -> Peer:
    return Peer.BROKERS if isinstance(problem, BrokersAway) else Peer.DATABASE


def _runs(found: Iterable[Found]) -> list[list[Found]]:
    """Messages in order, cut where offsets jump and where there are very many."""
    runs: list[list[Found]] = []
    for message in found:
        if runs and len(runs[-1]) < STRETCH_MESSAGES and runs[-1][-1].offset + 1 == message.offset:
            runs[-1].append(message)
        else:
            runs.append([message])
    return runs
