"""A recorded log written to a data directory, for tests of the offline commands."""

from __future__ import annotations

from pathlib import Path

from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from tests.replay.recorded_log import RecordedLog

SETTINGS = SegmentSettings(durable=False, reserve_bytes=0, allocate_bytes=1 << 16)


def some_picks(requests: tuple[str, ...] = ("first", "second")) -> RecordedLog:
    """Three workers, two of them sampled, and a pick with an end for each request."""
    world = RecordedLog()
    world.sample(1, 10)
    world.sample(2, 900)
    replica = world.replica()
    for request in requests:
        replica.end(replica.ask(request, tokens=64))
        replica.read()
    return world


def written(world: RecordedLog, data: Path) -> Path:
    """The log as segments below `data`, with no owner left."""
    store = SegmentLog.open_owner(data, SETTINGS)
    for batch in world.log.read(0, 1 << 30):
        store.commit(batch.records)
    store.close()
    return data
