"""The state of a log at any offset: the newest checkpoint before it, and the records between.

Whoever asks judges it at the log time of that offset, under the settings in force there.
"""

from __future__ import annotations

from typing import NamedTuple

from projections.bounds import SECOND_US
from projections.events.held import LedgerLine
from projections.events.picks import Phase, Verdict
from projections.events.ports import CheckpointStore, LogReader, OffsetGone
from projections.fold import Fold
from projections.identity import RankKey, WorkerKey
from projections.load.backlog import read_backlog
from projections.load.ledger_lines import unanswered_after
from projections.load.store import HeldSample
from projections.registry.fleet import Role, Worker
from projections.view import Overlay, View
from replay.condemned import condemned_of
from replay.fold_cursor import FoldCursor, Watcher, cursor_at
from replay.log_walk import Progress

STALENESS_US_UNSAID = 3 * SECOND_US  # before any settings were adopted: the default of the configuration


class StateGone(LookupError):
    """No state of that offset can be made: says why, and what there is."""


class RankLoad(NamedTuple):
    """One declared rank. sample: the latest of any age. verdict: for the decode phase."""

    rank: RankKey
    sample: HeldSample | None
    verdict: Verdict


class RankBlocks(NamedTuple):
    """What is known of a rank's blocks, by tier.

    engine_hash_xor: of the device. last_event_id: the newest event taken from who tells of the
    device, None where nobody does.
    """

    rank: RankKey
    blocks: tuple[int, ...]
    engine_hash_xor: int
    last_event_id: int | None


class IndexReading(NamedTuple):
    """What ranks hold on their devices. nodes and ownerships count ranks that wait to be reclaimed too."""

    nodes: int
    ownerships: int
    predictions: int
    ranks: tuple[RankBlocks, ...]


def state_at(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    offset: int,
    on_progress: Progress | None = None,
    watch: dict[type, Watcher] | None = None,
) -> FoldCursor:
    """A fold of everything up to `offset`, itself included, ready to go on.

    Raises StateGone for an offset outside the log or before its oldest state, OffsetGone and
    LogCorrupt as the reader does.
    """
    first, end = reader.first_offset(), reader.end_offset()
    if offset >= end:
        raise StateGone(f"offset {offset} is beyond the end of the log, its newest record is {end - 1}")
    condemned = condemned_of(reader, checkpoints, max(first, offset))
    cursor = cursor_at(reader, checkpoints, offset, condemned, watch)
    if cursor.base > offset or (first > 0 and cursor.base == first - 1 and cursor.fold.mark.offset < 0):
        raise StateGone(
            f"the state at offset {offset} is gone: the log begins at {first}"
            f"{_oldest_state(reader, checkpoints)}"
        )
    try:
        cursor.walk(reader, offset, on_progress)
    except OffsetGone as gone:
        raise StateGone(str(gone)) from gone
    if cursor.stopped is not None:
        raise StateGone(f"the fold does not reach offset {offset}: {cursor.stopped}")
    return cursor


def _oldest_state(reader: LogReader, checkpoints: CheckpointStore | None) -> str:
    first = reader.first_offset()
    offsets = [i.offset for i in (checkpoints.list() if checkpoints is not None else ()) if i.offset >= first]
    return f", its oldest checkpoint is of offset {min(offsets)}" if offsets else " and has no checkpoint"


def load_at(fold: Fold) -> list[RankLoad]:
    """Every declared rank in canonical order, judged at the log time of the fold's mark."""
    at, view = fold.mark.time, fold.view(Overlay())
    settings = fold.settings_now
    staleness_us = settings.pick.max_staleness_us if settings is not None else STALENESS_US_UNSAID
    workers = fold.state.registry.fleet.workers
    excluded = _excluded(view, tuple(workers.values()), at)
    rows = []
    for key, worker in workers.items():
        stalled = view.is_stalled(key, at)
        for dp_rank in worker.ranks():
            rank = RankKey(*key, dp_rank)
            sample = view.sample(rank)
            verdict, _ = read_backlog(sample, Phase.DECODE, at, staleness_us)
            if key in excluded:
                verdict = Verdict.EXCLUDED
            elif stalled:
                verdict = Verdict.STALLED
            rows.append(RankLoad(rank, sample, verdict))
    return rows


def index_at(fold: Fold) -> IndexReading:
    """The blocks of every rank of the fleet of which any are known or told, in canonical order."""
    kv = fold.state.kv
    device = kv.indexes[0]
    ranks = []
    for rank in kv.ranks.in_order():
        feeder = rank.feeders[0]
        blocks = tuple(index.blocks(rank.slot) for index in kv.indexes[: kv.tiers])
        if rank.departed or (feeder is None and not any(blocks)):
            continue
        cursor = feeder.feeds[rank.key[1:]].last_event_id if feeder is not None else None
        ranks.append(RankBlocks(rank.key, blocks, device.engine_hash_xor(rank.slot), cursor))
    return IndexReading(device.nodes, device.ownerships, len(kv.side), tuple(ranks))


def _excluded(view: View, workers: tuple[Worker, ...], at: int) -> frozenset[WorkerKey]:
    """Suspect workers, where another one of their namespace, model and role is not suspect."""
    suspects = frozenset(worker.key for worker in workers if view.is_suspect(worker.key, at))
    if not suspects:
        return suspects
    trusted = {_pool(worker) for worker in workers if worker.key not in suspects}
    return frozenset(w.key for w in workers if w.key in suspects and _pool(w) in trusted)


def _pool(worker: Worker) -> tuple[str, str | None, Role]:
    return worker.key.namespace, worker.model, worker.role


def unanswered_at(fold: Fold) -> list[LedgerLine]:
    """Lines of dispatches that are unanswered and weigh at the log time of the fold's mark."""
    at, load = fold.mark.time, fold.state.load
    lines = []
    for line in fold.state.ledger.held():
        heard_at = load.last_sample_at(line.namespace, line.instance_id)
        if line.dispatched_at > unanswered_after(heard_at, at):
            lines.append(line)
    return lines
