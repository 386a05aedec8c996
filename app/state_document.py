"""The state of a log at a mark as a document: `picklog replay state` and `GET /admin/state`.

Workers and subscriptions read as in the admin endpoint: no address, no card. Loads are
judged at the mark's log time, under the settings in force there, for the decode phase.
"""

from __future__ import annotations

from typing import Any

from app.admin_documents import subscription_row, worker_row
from app.marks import MarkRefused, Marks, wall_of_text
from projections.bounds import SECOND_US
from projections.events.envelope import LANE
from projections.events.held import LedgerLine
from projections.events.picks import Phase
from projections.events.ports import CheckpointStore, LogReader
from projections.fold import Fold
from projections.identity import RankKey
from replay.change_words import words_of
from replay.changes import Changes, WorkerChange, changes_between
from replay.log_walk import Progress
from replay.setting_words import settings_changes
from replay.timeline import IndexReading, RankLoad, StateGone, index_at, load_at, state_at, unanswered_at

BEYOND_END_US = 2 * SECOND_US  # a log that goes on ticks each second: a later time is none of it
_PHASES = {int(phase): phase.label for phase in Phase}


def state_document(
    reader: LogReader, checkpoints: CheckpointStore, mark: str, on_progress: Progress | None = None
) -> dict[str, Any]:
    """The document of the state at a mark. Raises MarkRefused, StateGone, and what the log raises."""
    marks = Marks(reader)
    fold = state_at(reader, checkpoints, offset_of_state(marks, reader, mark), on_progress).fold
    return document_of(fold, marks)


def document_of(fold: Fold, marks: Marks) -> dict[str, Any]:
    """The document of a fold's state."""
    time_text = marks.time_text
    state, settings = fold.state, fold.settings_now
    lines = unanswered_at(fold)
    subscriptions = state.status.subscriptions
    return {
        "mark": f"{LANE}:{fold.mark.offset}",
        "at": time_text(fold.mark.time),
        "config_version": settings.version if settings is not None else None,
        "generation": state.registry.generation,
        "workers": [worker_row(worker) for worker in state.registry.fleet.workers.values()],
        "load": [_load_row(row, marks) for row in load_at(fold)],
        "index": _index(index_at(fold)),
        "subscriptions": [subscription_row(subscriptions[key]) for key in sorted(subscriptions)],
        "ledger": {
            "unanswered": len({line.pick_id for line in lines}),
            "picks": [_line_row(line, marks) for line in lines],
        },
        "replicas": [
            {
                "replica_id": held.replica.hex(),
                "label": held.label,
                "role": held.role,
                "version": held.version,
                "gone": held.gone_at is not None,
                "own_seq": held.own_seq,
            }
            for held in state.status.replicas()
        ],
        "digests": {name: f"{digest:016x}" for name, digest in fold.digests()},
    }


def diff_document(
    reader: LogReader,
    checkpoints: CheckpointStore,
    start: str,
    stop: str,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """The document of what changed between two marks. Raises as `state_document` does."""
    marks = Marks(reader)
    first, last = offset_of_state(marks, reader, start), offset_of_state(marks, reader, stop)
    if last < first:
        raise MarkRefused(f"{stop} (offset {last}) lies before {start} (offset {first}): swap the marks")
    found = changes_between(reader, checkpoints, first, last, on_progress)
    return {
        "from": _mark(found.start, marks),
        "to": _mark(found.stop, marks),
        "workers": {
            "added": [worker_row(worker) for worker in found.added],
            "removed": [worker_row(worker) for worker in found.removed],
            "changed": [_worker_change(change) for change in found.changed],
        },
        "load": [_load_change(before, after) for before, after in found.loads],
        "index": _index_change(*found.blocks),
        "config": _config(found),
        "picks": {"made": found.picks, "lost": found.lost, "ended": found.ends},
        "words": words_of(found, marks.time_text),
    }


def offset_of_state(marks: Marks, reader: LogReader, text: str) -> int:
    """The offset whose state a mark names: an offset itself, for a time the newest record before it.

    Raises MarkRefused for a mark outside the log.
    """
    first, end = reader.first_offset(), reader.end_offset()
    if end <= first:
        raise StateGone("the log is empty")
    text = text.strip()
    if text == "begin":
        return first
    if _is_offset(text):
        offset = marks.offset(text)
        if not first <= offset < end:
            raise MarkRefused(f"mark {text}: this log has offsets {first} to {end - 1}")
        return offset
    offset = marks.offset(text) - 1
    if offset < first:
        raise MarkRefused(f"mark {text} lies before the log's first record, of {_time_of(marks, first)}")
    wall_us, newest = wall_of_text(text), marks.newest_stamp()
    if wall_us is not None and newest is not None:
        last = newest + marks.skew_at(end - 1)
        if wall_us > last + BEYOND_END_US:
            raise MarkRefused(
                f"mark {text} lies behind the log's newest record, of {marks.time_text(newest)}"
            )
    return offset


def _is_offset(text: str) -> bool:
    lane, _, number = text.rpartition(":")
    return number.isdecimal() and (not lane or lane.isdecimal())


def _time_of(marks: Marks, offset: int) -> str:
    stamp = marks.oldest_stamp()
    return marks.time_text(stamp) if stamp is not None else f"offset {offset}"


def _mark(place: tuple[int, int], marks: Marks) -> dict[str, str]:
    return {"mark": f"{LANE}:{place[0]}", "at": marks.time_text(place[1])}


def _load_row(row: RankLoad, marks: Marks) -> dict[str, Any]:
    sample = row.sample
    return {
        **_rank(row.rank),
        "active_decode_blocks": sample.active_decode_blocks if sample else None,
        "active_prefill_tokens": sample.active_prefill_tokens if sample else None,
        "kv_used_blocks": sample.kv_used_blocks if sample else None,
        "publisher_id": str(sample.publisher_id) if sample else None,
        "sequence": sample.sequence if sample else None,
        "received_at": marks.time_text(sample.received_at) if sample else None,
        "verdict": row.verdict.label,
    }


def _index(index: IndexReading) -> dict[str, Any]:
    """Blocks on the device; where lower tiers are indexed their blocks besides."""
    lower = ("host_blocks", "disk_blocks")
    return {
        "nodes": index.nodes,
        "ownerships": index.ownerships,
        "predictions": index.predictions,
        "ranks": [
            {
                **_rank(row.rank),
                "blocks": row.blocks[0],
                **dict(zip(lower, row.blocks[1:], strict=False)),
                "engine_hash_xor": str(row.engine_hash_xor),
                "last_event_id": row.last_event_id,
            }
            for row in index.ranks
        ],
    }


def _index_change(before: IndexReading, after: IndexReading) -> dict[str, Any]:
    """Counts at both marks, and the ranks whose blocks or cursors differ; None where one is not there."""
    was, now = ({row.rank: row for row in index.ranks} for index in (before, after))
    changed = [rank for rank in sorted({**was, **now}) if was.get(rank) != now.get(rank)]
    return {
        "nodes": [before.nodes, after.nodes],
        "ownerships": [before.ownerships, after.ownerships],
        "ranks": [
            {
                **_rank(rank),
                "blocks": [rows[rank].blocks[0] if rank in rows else None for rows in (was, now)],
                "last_event_id": [rows[rank].last_event_id if rank in rows else None for rows in (was, now)],
            }
            for rank in changed
        ],
    }


def _rank(rank: RankKey) -> dict[str, Any]:
    return {
        "namespace": rank.namespace,
        "worker_id": rank.worker.to_decimal(),
        "dp_rank": rank.dp_rank,
    }


def _line_row(line: LedgerLine, marks: Marks) -> dict[str, Any]:
    return {
        "pick_id": line.pick_id.hex(),
        "namespace": line.namespace,
        "worker_id": str(line.instance_id),
        "dp_rank": line.dp_rank,
        "phase": _PHASES.get(line.phase, "unknown"),
        "tokens": line.tokens,
        "blocks": line.blocks,
        "asked_at": marks.time_text(line.asked_at),
        "ended": line.ended_at is not None,
    }


def _worker_change(change: WorkerChange) -> dict[str, Any]:
    hidden = "disaggregated_endpoint"  # its texts name hosts
    return {
        "worker": worker_row(change.worker),
        "fields": {name: [was, now] for name, was, now in change.fields if name != hidden},
    }


def _load_change(before: RankLoad, after: RankLoad) -> dict[str, Any]:
    was, now = before.sample, after.sample
    names = ("active_decode_blocks", "active_prefill_tokens", "kv_used_blocks", "sequence")
    return {
        **_rank(after.rank),
        "verdict": [before.verdict.label, after.verdict.label],
        **{name: [getattr(was, name, None), getattr(now, name, None)] for name in names},
    }


def _config(found: Changes) -> dict[str, Any]:
    before, after = found.settings
    return {
        "before": before.version if before is not None else None,
        "after": after.version if after is not None else None,
        "changed": {key: list(pair) for key, pair in settings_changes(before, after).items()},
    }
