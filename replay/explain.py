"""One pick as a document: what was asked, every candidate, who won and by how much.

The document's shape is part of the public contract (keys may be added). Candidates are
recomputed from the log, all of them, not only the best that the record keeps; then the
whole outcome is compared, so a document that says "equal" is what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from projections.audit.translation import kv_result
from projections.events.codec import RecordRefused, decode_record
from projections.events.control import KvPickSettings
from projections.events.envelope import LANE
from projections.events.kinds import Kind
from projections.events.picks import (
    AbsentCause,
    DispatchEnded,
    EndStatus,
    Fault,
    Outcome,
    Phase,
    PickMade,
    PickReason,
)
from projections.events.ports import CheckpointStore, LogReader
from projections.identity import WorkerKey
from replay.engine import Asked, Replay, Unverifiable
from replay.log_walk import batches_of, kind_byte, record_at, records_of
from replay.verify import compare
from router.picker.cost_terms import CostTerms, leg_of, terms_of
from router.picker.pick import candidate_table
from router.picker.rows import CandidateRow, unpack_rows

WINDOW_RECORDS = 1 << 16
END_WINDOW_RECORDS = 1 << 20  # how far beyond a pick its end is looked for
_PICK_MADE, _DISPATCH_ENDED = int(Kind.PICK_MADE), int(Kind.DISPATCH_ENDED)
Times = Callable[[int], str]


class PickNotFound(LookupError):
    """No pick in the log answers to that name."""


class Index(Protocol):
    """Where picks and ends of the older part of a log stand. Offsets are hints, to be read and compared."""

    @property
    def indexed_end(self) -> int:
        """Records from this offset on are not in it."""

    def picks(self, name: str) -> Iterator[int]:
        """Offsets that may hold the pick of this id or request id, newest first."""

    def ends(self, pick_id: bytes) -> Iterator[int]:
        """Offsets that may hold the end of a pick."""

    def last_pick(self) -> int | None:
        """Offset of the newest pick in it."""


def find_pick(reader: LogReader, name: str, index: Index | None = None) -> tuple[int, PickMade]:
    """The pick that `name` means: a pick id (32 hex digits), a request id, an offset
    (`18233` or `0:18233`) or `last`. Of several with one request id, the newest.

    Raises PickNotFound. Reads backwards in windows, so the newest are found at once, and
    asks the index for what lies before its end.
    """
    lane, _, number = name.rpartition(":")
    if number.isdecimal() and lane in ("", str(LANE)) and len(number) < 20:
        found = _pick_at(reader, int(number))
        if found is not None:
            return found
    first, stop = reader.first_offset(), reader.end_offset()
    begin = first if index is None else max(first, index.indexed_end)
    while stop > begin:
        start = max(begin, stop - WINDOW_RECORDS)
        newest: tuple[int, PickMade] | None = None
        for batch in batches_of(reader, start, stop):
            for place, data in enumerate(batch.records):
                if kind_byte(data) == _PICK_MADE:
                    newest = _answering(batch.first_offset + place, data, name) or newest
        if newest is not None:
            return newest
        stop = start
    if index is not None:
        last = index.last_pick() if name == "last" else None
        for offset in (last,) if last is not None else index.picks(name):
            found = _pick_at(reader, offset)
            if found is not None and _answers(found[1], name):
                return found
    raise PickNotFound(f"no pick {name!r} between offsets {first} and {reader.end_offset()}")


def _answering(offset: int, data: bytes, name: str) -> tuple[int, PickMade] | None:
    record = record_at(offset, data)
    fact = record.fact if record is not None else None
    return (offset, fact) if isinstance(fact, PickMade) and _answers(fact, name) else None


def _answers(fact: PickMade, name: str) -> bool:
    return name in ("last", fact.question.request_id, fact.pick_id.hex())


def _pick_at(reader: LogReader, offset: int) -> tuple[int, PickMade] | None:
    if not reader.first_offset() <= offset < reader.end_offset():
        return None
    for at, data in records_of(reader, offset, offset + 1):
        try:
            fact = decode_record(at, data).fact
        except RecordRefused:
            return None
        return (at, fact) if at == offset and isinstance(fact, PickMade) else None
    return None


def explain(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    name: str,
    to_time: Times,
    index: Index | None = None,
) -> dict[str, Any]:
    """The document of one pick. `to_time` makes RFC 3339 text of a log time.

    index: of the log's older part; without one all of it may have to be read.

    Raises PickNotFound and what the reader raises.
    """
    offset, fact = find_pick(reader, name, index)
    asked = Replay(reader, checkpoints, offset, offset + 1).at(offset, fact)
    return document(asked, _end_of(reader, asked, index), to_time)


def document(asked: Asked, end: DispatchEnded | None, to_time: Times) -> dict[str, Any]:
    """The document of a pick that the engine made ready."""
    fact = asked.fact
    outcome = fact.outcome
    tables = _tables(asked)
    terms = {phase: _terms(asked, phase, tables[phase]) for phase in tables}
    return {
        "pick": _pick(asked, to_time),
        "question": _question(fact, to_time),
        "settings": _settings(asked),
        "namespaces": _namespaces(fact),
        "phases": {
            phase.label: _phase(asked, outcome, phase, tables[phase], terms[phase])
            for phase in (Phase.PREFILL, Phase.DECODE)
        },
        "end": _end(end, to_time),
        **_repeated(asked),
    }


def _tables(asked: Asked) -> dict[Phase, list[CandidateRow]]:
    """Every candidate where the pick can be asked again, else the rows that the record keeps."""
    outcome = asked.fact.outcome
    if asked.view is None or asked.settings is None:
        return {
            Phase.PREFILL: unpack_rows(outcome.prefill.rows),
            Phase.DECODE: unpack_rows(outcome.decode.rows),
        }
    return candidate_table(asked.view, asked.fact.question, asked.settings.pick, asked.flags)


def _terms(asked: Asked, phase: Phase, table: list[CandidateRow]) -> list[CostTerms | None]:
    """The terms of each cost, where the pick can be asked again and was scored by prefix."""
    if asked.view is None or asked.settings is None:
        return [None] * len(table)
    workers = asked.view.fleet.workers
    sizes = [workers[WorkerKey(row.namespace, row.instance_id)].block_size or 0 for row in table]
    leg = leg_of(phase, asked.fact.outcome)
    return terms_of(leg, table, sizes, asked.fact.question, asked.settings.pick)


def _pick(asked: Asked, to_time: Times) -> dict[str, Any]:
    fact, outcome = asked.fact, asked.fact.outcome
    decode, prefill = outcome.decode.chosen, outcome.prefill.chosen
    return {
        "pick_id": fact.pick_id.hex(),
        "request_id": fact.question.request_id,
        "attempt": fact.question.send,
        "asked_at": to_time(fact.question.asked_at),
        "replica_id": fact.replica.hex(),
        "lane": LANE,
        "log_offset": asked.offset,
        "as_of": fact.as_of,
        "own_seq": fact.own_seq,
        "config_version": fact.config_version,
        "picker": asked.settings.pick.picker if asked.settings is not None else None,
        "model": fact.question.model,
        "namespace": outcome.namespace,
        "decode_worker": str(decode.instance_id) if decode else None,
        "decode_dp_rank": decode.dp_rank if decode else None,
        "decode_reason": PickReason(outcome.decode.reason).label,
        "prefill_worker": str(prefill.instance_id) if prefill else None,
        "prefill_dp_rank": prefill.dp_rank if prefill else None,
        "prefill_reason": PickReason(outcome.prefill.reason).label,
        "estimated_tokens": fact.question.estimated_tokens,
        "kv_result": kv_result(outcome.kv_result),
        "isl_tokens": fact.question.isl_tokens or None,
        "overlap_blocks": outcome.overlap_blocks if outcome.block_size else None,
        "block_size": outcome.block_size or None,
        "candidates": max(outcome.prefill.candidates, outcome.decode.candidates),
        "suspect": asked.unverifiable is Unverifiable.SUSPECT,
    }


def _question(fact: PickMade, to_time: Times) -> dict[str, Any]:
    question = fact.question
    return {
        "model": question.model,
        "served_model": question.served_model,
        "asked_at": to_time(question.asked_at),
        "dispatched_at": to_time(question.dispatched_at),
        "lag_us": question.dispatched_at - question.asked_at,
        "namespaces": list(question.namespaces),
        "estimated_tokens": question.estimated_tokens,
        "rotations": {"prefill": question.rotation_prefill, "decode": question.rotation_decode},
        "draws": list(question.draws),
        "prompt": kv_result(question.prompt_result),
        "isl_tokens": question.isl_tokens or None,
        "hashes": [
            {"block_size": known.block_size, "blocks": known.blocks, "recorded": len(known.hashes) // 8}
            for known in question.hashes
        ],
    }


def _settings(asked: Asked) -> dict[str, Any] | None:
    if asked.settings is None:
        return None
    pick = asked.settings.pick
    return {
        "version": asked.settings.version,
        "picker": pick.picker,
        "source": pick.source,
        "namespaces": list(pick.namespaces),
        "model_map": dict(pick.model_map),
        "max_staleness_us": pick.max_staleness_us,
        "ledger": pick.ledger,
        "kv": _kv_settings(pick.kv),
    }


def _kv_settings(kv: KvPickSettings | None) -> dict[str, Any] | None:
    if kv is None:
        return None
    conditional = None if kv.conditional is None else kv.conditional._asdict()
    return {**kv._asdict(), "conditional": conditional}


def _namespaces(fact: PickMade) -> list[dict[str, Any]]:
    rows = [{"name": name, "eligible": True, "cause": None} for name in fact.question.namespaces]
    rows += [{"name": n, "eligible": False, "cause": AbsentCause(c).label} for n, c in fact.question.absent]
    return sorted(rows, key=lambda row: str(row["name"]))


def _phase(
    asked: Asked, outcome: Outcome, name: Phase, table: list[CandidateRow], terms: list[CostTerms | None]
) -> dict[str, Any]:
    phase = outcome.decode if name is Phase.DECODE else outcome.prefill
    chosen = phase.chosen
    winner = (outcome.namespace, chosen.instance_id, chosen.dp_rank) if chosen is not None else None
    rows = [
        {**_row(asked, row, position, winner), "prefix": _prefix(row, parts)}
        for position, (row, parts) in enumerate(zip(table, terms, strict=True))
    ]
    return {
        "winner": rows[0] if winner is not None and rows and rows[0]["chosen"] else None,
        "runner_up": rows[1] if len(rows) > 1 else None,
        "margin": phase.margin,
        "reason": PickReason(phase.reason).label,
        "rotation": outcome.rotation_decode if name is Phase.DECODE else outcome.rotation_prefill,
        "charged": {"tokens": chosen.tokens, "blocks": chosen.blocks} if chosen is not None else None,
        "candidates": rows,
    }


def _row(
    asked: Asked, row: CandidateRow, position: int, winner: tuple[str | None, int, int] | None
) -> dict[str, Any]:
    return {
        "pick_id": asked.fact.pick_id.hex(),
        "lane": LANE,
        "log_offset": asked.offset,
        "position": position,
        "namespace": row.namespace,
        "worker": str(row.instance_id),
        "dp_rank": row.dp_rank,
        "chosen": (row.namespace, row.instance_id, row.dp_rank) == winner,
        "cost": row.cost,
        "overlap_blocks": row.overlap_blocks,
        "active_prefill_tokens": row.active_prefill_tokens,
        "active_decode_blocks": row.active_decode_blocks,
        "unanswered_tokens": row.unanswered_tokens,
        "unanswered_blocks": row.unanswered_blocks,
        "sample_age_us": row.sample_age_us,
        "verdict": row.verdict.label,
        "excluded_reason": row.excluded.label if row.excluded else None,
    }


def _prefix(row: CandidateRow, terms: CostTerms | None) -> dict[str, Any] | None:
    """What the prefix term made of a candidate; None where it took no part."""
    if row.credit is None:
        return None
    return {
        "device_blocks": row.overlap_blocks - row.predicted_blocks,
        "predicted_blocks": row.predicted_blocks,
        "host_blocks": row.host_blocks,
        "disk_blocks": row.disk_blocks,
        "credit": row.credit,
        "decay": terms.decay if terms is not None else None,
        "raw_blocks": terms.raw_blocks if terms is not None else None,
        "adjusted_blocks": terms.adjusted_blocks if terms is not None else None,
        "decode_blocks": terms.decode_blocks if terms is not None else None,
    }


def _end_of(reader: LogReader, asked: Asked, index: Index | None) -> DispatchEnded | None:
    """The end of a pick's dispatch: by the index, and within a window in what it does not hold."""
    start = asked.offset + 1
    if index is not None and start < index.indexed_end:
        for offset in index.ends(asked.fact.pick_id):
            for at, data in records_of(reader, offset, offset + 1):
                end = _end_at(at, data, asked.fact.pick_id)
                if end is not None:
                    return end
        start = index.indexed_end
    for offset, data in records_of(reader, start, start + END_WINDOW_RECORDS):
        if kind_byte(data) == _DISPATCH_ENDED:
            end = _end_at(offset, data, asked.fact.pick_id)
            if end is not None:
                return end
    return None


def _end_at(offset: int, data: bytes, pick_id: bytes) -> DispatchEnded | None:
    record = record_at(offset, data)
    fact = record.fact if record is not None else None
    return fact if isinstance(fact, DispatchEnded) and fact.pick_id == pick_id else None


def _end(end: DispatchEnded | None, to_time: Times) -> dict[str, Any] | None:
    if end is None:
        return None
    return {
        "ended_at": to_time(end.ended_at),
        "status": EndStatus(end.status).label,
        "fault": Fault(end.fault).name.lower(),
        "http_status": end.http_status or None,
        "backend": end.backend or None,
        "first_byte_us": end.first_byte_us,
        "duration_us": end.duration_us,
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "cached_tokens": end.cached_tokens,
    }


def _repeated(asked: Asked) -> dict[str, Any]:
    if asked.unverifiable is not None:
        return {"repeated": "unverifiable", "repeated_detail": asked.unverifiable.value}
    found = compare(asked)
    if found is None:
        return {"repeated": "equal", "repeated_detail": None}
    return {
        "repeated": "different",
        "repeated_detail": f"{found.field}: {found.recorded} then, {found.repeated} now",
    }
