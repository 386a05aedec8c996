"""Steps: further checkpoints beside the kept ones, so that no place of a log is far from a state.

Checkpoints for starting anew may be an hour apart. To look at any offset within a second,
and to verify in parts, states should stand every fifty thousand records. Steps are such
states: the same files, in `DIR/steps`, under a byte ceiling of their own, oldest out. They
are written by the follower as it folds, and by whoever had to fold a long way; losing them
costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from app.checkpoint_store import CheckpointFolder
from projections.bounds import GIB
from projections.checkpoint import checkpoint_records
from projections.events.ports import CheckpointInfo, CheckpointStore
from projections.fold import Fold

STEP_RECORDS = 50_000
STEP_BYTES_MAX = GIB
KEPT_WHATEVER_AGE = 1_000_000  # the byte ceiling alone decides


def steps_folder(data: Path) -> Path:
    """`DIR/steps` of a data directory."""
    return data / "steps"


class Steps:
    """The steps of one data directory."""

    def __init__(self, data: Path, bytes_max: int = STEP_BYTES_MAX) -> None:
        self._folder = CheckpointFolder(steps_folder(data), keep=KEPT_WHATEVER_AGE, bytes_max=bytes_max)
        self._newest = max((info.offset for info in self._folder.list()), default=-1)

    def offer(self, fold: Fold, log_id: bytes) -> bool:
        """Write the fold's state where the newest step is STEP_RECORDS behind; whether it was.

        Call between records, as often as is convenient. A failing disk costs the step alone.
        """
        mark = fold.mark
        if fold.stopped is not None or mark.offset < self._newest + STEP_RECORDS:
            return False
        self._newest = mark.offset
        return self.write(fold, log_id)

    def write(self, fold: Fold, log_id: bytes) -> bool:
        """Write the fold's state; False where the disk does not take it."""
        mark = fold.mark
        records = checkpoint_records(fold, log_id)
        try:
            self._folder.write(log_id, mark.offset, mark.check, mark.time, records)
        except OSError:
            return False
        return True

    def list(self) -> Sequence[CheckpointInfo]:
        """Steps, oldest first."""
        return self._folder.list()

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """Record bytes of one step. Raises LogCorrupt."""
        return self._folder.read(info)


class WithSteps:
    """A CheckpointStore that knows the steps too."""

    def __init__(self, checkpoints: CheckpointStore, steps: Steps) -> None:
        self._checkpoints = checkpoints
        self._steps = steps

    def list(self) -> Sequence[CheckpointInfo]:
        """Both, oldest first; of one offset the kept checkpoint."""
        held = {info.offset: info for info in self._steps.list()}
        held |= {info.offset: info for info in self._checkpoints.list()}
        return [held[offset] for offset in sorted(held)]

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """See CheckpointStore."""
        kept = any(info == other for other in self._checkpoints.list())
        return self._checkpoints.read(info) if kept else self._steps.read(info)

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """See CheckpointStore."""
        return self._checkpoints.write(log_id, offset, check, time, records)


def with_steps(checkpoints: CheckpointStore, data: Path | None) -> CheckpointStore:
    """The checkpoints of an open log, and its steps where it is a data directory that has any.

    data: the directory, None for a capture.
    """
    if data is None or not steps_folder(data).is_dir():
        return checkpoints
    return WithSteps(checkpoints, Steps(data))
