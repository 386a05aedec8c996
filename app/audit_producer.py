"""The topic `picklog.audit` as the place where the follower's rows go.

Rows are sent before their mark, and the mark only when every row is acknowledged, so the newest mark
in any partition says: all up to here is in the topic. It is found again by reading the partitions' ends; what
was sent behind it may be sent twice, which stream workers take for once. At most the sink's two batches of
rows are in memory; while Kafka is away they wait in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.audit_database import AuditRefused, BrokersAway
from app.audit_messages import (
    MESSAGE_BYTES_MAX,
    MessageNewer,
    MessageRefused,
    decode,
    encode_mark,
    encode_rows,
)
from app.audit_rows import AuditRows, SinkMark
from ingest.log.kafka_keyed import (
    VALUE_BYTES_MAX,
    Keyed,
    KeyedSend,
    KeyedSpans,
    KeyedTopic,
    prepare_keyed,
)
from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable, TopicRefused

PARTITIONS = 8
KEPT_MS = 7 * 24 * 3_600 * 1_000
AUDIT_TOPIC = KeyedTopic(PARTITIONS, is_compacted=False, retention_ms=KEPT_MS)
ROLLUPS_TOPIC = KeyedTopic(PARTITIONS, is_compacted=True, retention_ms=-1)
MARK_KEY = b"mark"
PATIENCE_S = 60.0
TAILS = (256, 32_768, None)  # messages at the end of each partition in which a mark is looked for

assert VALUE_BYTES_MAX == MESSAGE_BYTES_MAX


class AuditProducer:
    """A RowStore on a topic. on_sent(messages): told of each batch with rows that was acknowledged."""

    def __init__(
        self, place: KafkaPlace, log_id: bytes, on_sent: Callable[[int], None] | None = None
    ) -> None:
        self.name = f"the topic {place.topic}"
        self._place = place
        self._log_id = log_id
        self._on_sent = on_sent
        self._send: KeyedSend | None = None

    async def prepare(self) -> None:
        """See RowStore."""
        with kafka_told():
            await prepare_keyed(self._place, AUDIT_TOPIC)

    async def mark(self) -> SinkMark | None:
        """See RowStore. The mark of another log, where there is none of this one but others are."""
        with kafka_told():
            spans = await KeyedSpans.open(self._place, PARTITIONS)
            try:
                for tail in TAILS:
                    found = await self._newest(spans, tail)
                    if found is not None:
                        return found
            finally:
                await spans.close()
        return None

    async def write(self, rows: AuditRows) -> int:
        """See RowStore."""
        if rows.last is None:
            return 0
        messages = [Keyed(key, value) for key, value in encode_rows(rows, self._log_id)]
        offset, check = rows.last
        mark = encode_mark(SinkMark(offset, check, self._log_id), rows.at)
        marks = [Keyed(MARK_KEY, mark, partition) for partition in range(PARTITIONS)]
        with kafka_told():
            if self._send is None:
                self._send = await KeyedSend.open(self._place, PATIENCE_S)
            try:
                await self._send.messages(messages)
                if messages and self._on_sent is not None:
                    self._on_sent(len(messages))
                await self._send.messages(marks)
            except BaseException:
                send, self._send = self._send, None
                await send.close()
                raise
        return rows.count

    async def keep_up(self, rows: AuditRows) -> None:
        """See RowStore: Kafka keeps its topics by itself."""

    async def close(self) -> None:
        """See RowStore."""
        if self._send is not None:
            await self._send.close()
            self._send = None

    async def _newest(self, spans: KeyedSpans, tail: int | None) -> SinkMark | None:
        """The mark with the highest offset among the last messages of all partitions."""
        marks: list[SinkMark] = []
        for partition, (begin, end) in enumerate(await spans.ends()):
            first = begin if tail is None else max(begin, end - tail)
            async for stretch in spans.read(partition, first, end):
                marks += [mark for found in stretch if (mark := _mark(found.value)) is not None]
        ours = [mark for mark in marks if mark.log_id == self._log_id]
        return max(ours or marks, key=lambda mark: mark.offset, default=None)


def _mark(value: bytes | None) -> SinkMark | None:
    """Raises AuditRefused for a message of a later release."""
    try:
        message = decode(value)
    except MessageNewer as problem:
        raise AuditRefused(f"a message of the audit's topic {problem}") from problem
    except MessageRefused:
        return None
    return None if message.check is None else SinkMark(message.offset, message.check, message.log_id)


@contextmanager
def kafka_told() -> Iterator[None]:
    """Turn what Kafka does not do into the audit's own errors."""
    try:
        yield
    except TopicRefused as problem:
        raise AuditRefused(str(problem)) from problem
    except KafkaUnreachable as problem:
        raise BrokersAway(str(problem)) from problem
