"""A topic as the target of a copy: each step one transaction, so that it is there whole or not at all.

The transactional id is made of the topic's name: opening a target ends whatever another copy
into that topic has under way, and the other one is told so at its next step. Origin and base go
into one transaction, since a copy without the state that it begins with could not be folded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka.errors import KafkaError

from ingest.log.kafka_admin import prepare_topic
from ingest.log.kafka_fetch import KafkaFetch
from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_records import ORIGIN_VALUE, Role, place_header
from ingest.log.kafka_send import Header, KafkaSend, SendRefused, SendUnclear
from ingest.log.kafka_settings import KafkaPlace
from ingest.log.log_copy import Base, CopyRefused
from projections.events.ports import CommitFailed, LogReader, RecordBatch

PATIENCE_S = 60.0
LOOK_S = 0.002
STEP_BYTES = 4 << 20  # of one transaction, base apart


class KafkaCopy:
    """CopyTarget over a topic. warnings: what the topic should have otherwise, in words. Use `open`."""

    def __init__(self, loop: KafkaLoop, place: KafkaPlace) -> None:
        self.warnings: list[str] = []
        self._loop = loop
        self._place = place
        self._send: KafkaSend | None = None
        self._fetch: KafkaFetch | None = None
        self._reader: KafkaReader | None = None
        self._log_id: bytes | None = None

    @classmethod
    def open(cls, place: KafkaPlace) -> KafkaCopy:
        """Raises TopicRefused, KafkaUnreachable, CopyRefused, LogCorrupt."""
        target = cls(KafkaLoop(), place)
        try:
            target._loop.run(target._open())
            if target._log_id is not None:
                target._look()
            return target
        except BaseException:
            target.close()
            raise

    @property
    def log_id(self) -> bytes | None:
        """See CopyTarget."""
        return self._log_id

    def begin(self, log_id: bytes, first_offset: int, base: Base | None) -> None:
        """See CopyTarget."""
        records: list[tuple[bytes, Header]] = [
            (ORIGIN_VALUE, place_header(Role.ORIGIN, log_id, first_offset))
        ]
        if base is not None:
            header = place_header(Role.BASE, log_id, base.info.offset)
            records += [(record, header) for record in base.records()]
        self._commit(records)
        self._log_id = log_id
        self._look()

    def take(self, batches: Sequence[RecordBatch]) -> None:
        """See CopyTarget."""
        assert self._log_id is not None, "begin comes first"
        step: list[tuple[bytes, Header]] = []
        size = 0
        for batch in batches:
            for offset, record in enumerate(batch.records, batch.first_offset):
                step.append((record, place_header(Role.COPIED, self._log_id, offset)))
                size += len(record)
                if size >= STEP_BYTES:
                    self._commit(step)
                    step, size = [], 0
        if step:
            self._commit(step)

    def reader(self) -> LogReader:
        """See CopyTarget."""
        assert self._reader is not None, "begin comes first"
        return self._reader

    def close(self) -> None:
        """See CopyTarget."""
        try:
            if self._reader is not None:
                self._reader.close()
            for client in (self._send, self._fetch):
                if client is not None:
                    self._loop.run(client.close())
        finally:
            self._loop.close()

    async def _open(self) -> None:
        facts, faults = await prepare_topic(self._place)
        self.warnings = faults.unsafe + faults.doubtful
        identity = f"picklog-copy-{self._place.topic}"
        # First of all: from here on no other copy writes, so what is read is what it stays.
        self._send = await KafkaSend.open(self._place, facts.message_bytes_max, PATIENCE_S, identity)
        self._fetch = await KafkaFetch.open(self._place)
        told = await self._fetch.first_from(*await self._fetch.ends())
        if told is not None:
            self._log_id = told.place.log_id

    def _look(self) -> None:
        """Read what is there. Raises CopyRefused where it went on by itself."""
        self._reader = KafkaReader.open(self._place, follows=True)
        newest = self._reader.newest()
        if newest is not None and newest.place.role is Role.APPENDED:
            raise CopyRefused(
                f"{self._place.name} went on by itself behind offset {newest.offset - 1}, it is no copy any "
                "more: copy into an empty topic"
            )

    async def _step(self, records: Sequence[tuple[bytes, Header]]) -> None:
        """One transaction, visible to readers on return."""
        assert self._send is not None and self._fetch is not None
        behind = await self._send.transaction(records)
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while await self._fetch.end() < behind:
            if asyncio.get_running_loop().time() > deadline:
                raise SendUnclear("committed, and not visible in time")
            await asyncio.sleep(LOOK_S)

    def _commit(self, records: Sequence[tuple[bytes, Header]]) -> None:
        try:
            self._loop.run(self._step(records))
        except (SendRefused, SendUnclear) as problem:
            what = str(problem)
            if isinstance(problem.__cause__, KafkaError) and "Fenced" in what:
                raise CopyRefused(
                    f"{self._place.name}: another copy into it began meanwhile: let one of them run"
                ) from problem
            raise CommitFailed(
                f"{self._place.name}: the broker did not take a step ({what}): call it again, it goes on"
            ) from problem
