"""Where a fold begins: the newest checkpoint that checks and still has its tail, or the log's start.

A checkpoint is taken only if the log's own record at its offset carries the check word that
the checkpoint names (decision 5): a folder that belongs to another log, or to a log that
was cut since, is passed over with the reason.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from projections.checkpoint import CheckpointRefused, fold_from_checkpoint
from projections.events.codec import check_word
from projections.events.ports import CheckpointInfo, CheckpointStore, LogCorrupt, LogReader, OffsetGone
from projections.fold import Fold


class FoldStart(NamedTuple):
    """A fold and where it came from.

    next_offset: where reading goes on. passed_over: (checkpoint name, why) of those not used.
    incomplete: the log's beginning is gone and no checkpoint bridges it, so an owner must
    drop what it holds and read the fleet anew.
    """

    fold: Fold
    next_offset: int
    checkpoint: CheckpointInfo | None
    passed_over: tuple[tuple[str, str], ...]
    incomplete: bool


def start_fold(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    *,
    before: int | None = None,
    condemned: frozenset[int] = frozenset(),
    distrusted: Container[str] = (),
) -> FoldStart:
    """Begin a fold. before: the newest offset that the checkpoint may stand for.

    distrusted: names of checkpoints that told another state than the owner's.
    """
    passed: list[tuple[str, str]] = []
    for info in reversed(checkpoints.list() if checkpoints is not None else ()):
        assert checkpoints is not None
        reason = unfit(reader, info, before)
        if info.name in distrusted:
            reason = "its state was not the owner's: remove the file"
        if reason is None:
            try:
                fold = fold_from_checkpoint(checkpoints.read(info), condemned=condemned)
                return FoldStart(fold, info.offset + 1, info, tuple(passed), False)
            except (LogCorrupt, CheckpointRefused) as problem:
                reason = str(problem)
            except FileNotFoundError:
                reason = "it was removed as newer ones came"
            except OSError as problem:  # a folder on another machine
                reason = f"it cannot be read: {problem.strerror}"
        passed.append((info.name, reason))
    first = reader.first_offset()
    return FoldStart(Fold(condemned=condemned), first, None, tuple(passed), first > 0)


def unfit(reader: LogReader, info: CheckpointInfo, before: int | None = None) -> str | None:
    """Why a checkpoint of that position is of no use for the log as it stands, None where it may be."""
    if before is not None and info.offset > before:
        return f"its offset {info.offset} is beyond {before}"
    if info.offset >= reader.end_offset():
        return f"the log ends before its offset {info.offset}"
    if info.offset + 1 < reader.first_offset():
        return f"the records after its offset {info.offset} are gone"
    if info.offset < reader.first_offset():
        return None  # its own record is gone, the one after it is the log's first
    try:
        batches = reader.read(info.offset, 1)
    except OffsetGone:
        return f"the records after its offset {info.offset} are gone"
    if not batches or batches[0].first_offset != info.offset:
        return f"the log has no record at its offset {info.offset}"
    if check_word(batches[0].records[0]) != info.check:
        return f"the log's record at offset {info.offset} is another one"
    return None
