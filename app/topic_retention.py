"""How far back a log on Kafka reaches: its topic begins at a kept checkpoint, never behind one.

Records alone tell too little, since what did not change is not logged again: a log can only begin where
a checkpoint stands. So it is not the broker's retention that drops records but this: of the kept
checkpoints the newest is taken before which everything is older than `log.retention.age`, or beyond
`log.retention.bytes` on a broker's disks, and never one of the newest `checkpoints.keep`. Those are read back
and checked whole before anything goes (decision 9).

The follower does it, a few times an hour. Several followers do no harm: the beginning only moves on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from app.checkpoint_store import CheckpointFolder
from app.fold_start import unfit
from ingest.log.kafka_admin import delete_records, stored_bytes
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace
from projections.events.ports import CheckpointInfo, LogError

EVERY_S = 300.0

log = structlog.get_logger("picklog.log")


class RetentionLimits(NamedTuple):
    """age_us: log time. bytes_max: of one copy on a broker's disks, None for no limit. keep: checkpoints."""

    age_us: int
    bytes_max: int | None
    keep: int


class TopicSize(NamedTuple):
    """first_offset, end_offset: of the log. stored_bytes: None where no broker tells."""

    first_offset: int
    end_offset: int
    stored_bytes: int | None


def new_beginning(
    kept: Sequence[CheckpointInfo], size: TopicSize, now: int, limits: RetentionLimits
) -> CheckpointInfo | None:
    """Where the log may begin from now on, None where it begins there or behind it already.

    kept: checkpoints, oldest first. now: newest log time, microseconds. Bytes are taken as spread evenly
    over offsets.
    """
    reachable = kept[: max(0, len(kept) - limits.keep + 1)]
    candidates = [info for info in reachable if info.offset > size.first_offset]
    chosen = [info for info in candidates if info.time <= now - limits.age_us][-1:]
    if limits.bytes_max is not None and (size.stored_bytes or 0) > limits.bytes_max:
        fitting = [info for info in candidates if _bytes_behind(info, size) <= limits.bytes_max]
        chosen += fitting[:1] or candidates[-1:]
    return max(chosen, key=lambda info: info.offset, default=None)


def _bytes_behind(info: CheckpointInfo, size: TopicSize) -> float:
    """About how much a log that begins there takes."""
    records = max(1, size.end_offset - size.first_offset)
    return (size.stored_bytes or 0) * (size.end_offset - info.offset) / records


class TopicRetention:
    """Moves the beginning of one topic. now: newest log time folded, None before the first record."""

    def __init__(
        self,
        place: KafkaPlace,
        folder: CheckpointFolder,
        limits: RetentionLimits,
        now: Callable[[], int | None],
    ) -> None:
        self._place = place
        self._folder = folder
        self._limits = limits
        self._now = now

    async def run(self) -> None:
        """Look now and then until cancelled. What goes wrong is told and tried again."""
        while True:
            await asyncio.sleep(EVERY_S)
            now = self._now()
            try:
                if now is not None:
                    await asyncio.to_thread(self.step, now)
            except (LogError, OSError) as problem:
                log.warning("the topic keeps what retention would remove", cause=str(problem))

    def step(self, now: int) -> int | None:
        """Look once; the log's new first offset where it was moved. Raises LogError, OSError. Blocks."""
        kept = self._folder.list()
        if len(kept) < self._limits.keep:
            return None
        reader = KafkaReader.open(self._place, follows=True)
        try:
            return self._moved(reader, kept, now)
        finally:
            reader.close()

    def _moved(self, reader: KafkaReader, kept: Sequence[CheckpointInfo], now: int) -> int | None:
        size = TopicSize(
            reader.first_offset(), reader.end_offset(), reader.loop.run(stored_bytes(self._place))
        )
        kept = [info for info in kept if unfit(reader, info) is None]
        chosen = new_beginning(kept, size, now, self._limits)
        if chosen is None:
            return None
        for info in {chosen, *kept[-self._limits.keep :]}:
            problem = self._folder.check(info, reader.log_id)
            if problem is not None:
                log.warning("the topic keeps what retention would remove", cause=problem)
                return None
        at = reader.topic_offset(chosen.offset)
        if at is None:
            return None
        self._folder.expire(chosen.offset)  # first: no kept one may need what goes
        reader.loop.run(delete_records(self._place, at))
        log.info(
            "the log begins later now, by retention",
            first_offset=chosen.offset,
            checkpoint=chosen.name,
            stored_bytes=size.stored_bytes,
        )
        return chosen.offset
