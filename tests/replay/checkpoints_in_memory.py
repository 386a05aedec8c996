"""Checkpoints of a recorded log, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

from projections.checkpoint import checkpoint_records
from projections.events.ports import CheckpointInfo, LogCorrupt
from projections.fold import Fold
from replay.log_walk import records_of
from tests.replay.recorded_log import RecordedLog


class Checkpoints:
    """A CheckpointStore that a test fills; a replay writes no checkpoint of the log that it reads."""

    def __init__(self) -> None:
        self.kept: dict[CheckpointInfo, list[bytes]] = {}
        self.read_offsets: list[int] = []
        self.damaged: set[int] = set()

    def take(self, world: RecordedLog, offset: int, condemned: frozenset[int] = frozenset()) -> None:
        """Write the state of `offset`."""
        fold = Fold(condemned=condemned)
        for at, data in records_of(world.log, 0, offset + 1):
            fold.apply(at, data, [])
        mark = fold.mark
        info = CheckpointInfo(mark.offset, mark.check, mark.time, 0, str(offset))
        self.kept[info] = list(checkpoint_records(fold, world.log.log_id))

    def list(self) -> list[CheckpointInfo]:
        return sorted(self.kept)

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        self.read_offsets.append(info.offset)
        if info.offset in self.damaged:
            raise LogCorrupt(f"checkpoint {info.name} does not check")
        return iter(self.kept[info])

    def write(self, *_: object) -> CheckpointInfo:
        raise AssertionError("a replay writes no checkpoint of the log that it reads")
