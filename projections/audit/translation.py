"""What a recorded fact says, as a row of the audit.

Two things are made to fit, because a database would refuse them: whole numbers beyond 63
bits become the largest that fits, and text is cut at TEXT_CHARACTERS_MAX characters, with NUL and
lone surrogates written as escapes. Everything else is the fact as it stands.

Sources: contract, section 4; decisions 10, 34, 48, 63; field report B-034.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from projections.audit.rows import (
    ConfigRow,
    EndRow,
    PickRow,
    ReplicaRow,
    ShadowRow,
    VerificationRow,
    WorkerVersion,
)
from projections.events.control import ConfigAdopted, ReplicaStarted
from projections.events.envelope import LANE
from projections.events.picks import (
    DispatchEnded,
    EndStatus,
    ExcludedReason,
    Fault,
    KvResult,
    Outcome,
    Phase,
    PhaseOutcome,
    PickMade,
    PickReason,
    Verdict,
)
from projections.registry.join import Worker

WHOLE_MAX = (1 << 63) - 1
TEXT_CHARACTERS_MAX = 512

PREFILL, DECODE = Phase.PREFILL.label, Phase.DECODE.label
_REASONS = {int(reason): reason.label for reason in PickReason}
_STATUSES = {int(status): status.label for status in EndStatus}
_FAULTS = {int(fault): fault.name.lower() for fault in Fault}
_VERDICTS = {int(verdict): verdict.label for verdict in Verdict}
_KV_RESULTS = {int(result): result.label for result in KvResult}
_WITH_TERM = (KvResult.NO_OVERLAP, KvResult.OVERLAP, KvResult.BYPASS)
_EXCLUDED = {int(reason): reason.label if reason else None for reason in ExcludedReason}


def pick_row(offset: int, fact: PickMade, picker: str | None, block_size: int | None) -> PickRow:
    """The row of a pick."""
    question, outcome = fact.question, fact.outcome
    decode, prefill = outcome.decode.chosen, outcome.prefill.chosen
    return PickRow(
        fact.pick_id.hex(),
        text(question.request_id),
        whole(question.send),
        question.asked_at,
        fact.replica.hex(),
        LANE,
        offset,
        fact.as_of,
        whole(fact.config_version),
        None if picker is None else text(picker),
        text(question.model),
        None if outcome.namespace is None else text(outcome.namespace),
        None if decode is None else str(decode.instance_id),
        None if decode is None else decode.dp_rank,
        reason_of(outcome.decode),
        None if prefill is None else str(prefill.instance_id),
        None if prefill is None else prefill.dp_rank,
        reason_of(outcome.prefill),
        kv_result(outcome.kv_result),
        whole(question.isl_tokens) if question.prompt_result == KvResult.READY else None,
        whole(question.estimated_tokens),
        _maybe_whole(outcome.block_size or block_size),
        _overlap(outcome),
        max(outcome.prefill.candidates, outcome.decode.candidates),
        fact.suspect,
    )


def candidate_rows(
    offset: int,
    fact: PickMade,
    phase: str,
    outcome: PhaseOutcome,
    candidates: Sequence[Any],
    limit: int | None,
) -> list[tuple[Any, ...]]:
    """Rows of one phase in the order given, which is: the winner, then by cost; at most `limit`.

    candidates: `CandidateRow`s of the picker.
    """
    pick_id, chosen = fact.pick_id.hex(), outcome.chosen
    winner = None if chosen is None else (fact.outcome.namespace, chosen.instance_id, chosen.dp_rank)
    rows = []
    for position, row in enumerate(candidates[:limit]):
        namespace, instance, rank, cost, prefill, decode, tokens, blocks, age, verdict, excluded, overlap = (
            row[:12]
        )
        *lower, credit = row[12:]
        rows.append(
            (
                pick_id,
                LANE,
                offset,
                phase,
                position,
                text(namespace),
                str(instance),
                rank,
                (namespace, instance, rank) == winner,
                cost,
                whole(overlap),
                _maybe_whole(prefill),
                _maybe_whole(decode),
                whole(tokens),
                whole(blocks),
                _maybe_whole(age),
                _VERDICTS[verdict],
                _EXCLUDED[excluded],
                *((None,) * len(lower) if credit is None else map(whole, lower)),
                credit,
            )
        )
    return rows


def end_row(offset: int, fact: DispatchEnded) -> EndRow:
    """The row of an end."""
    return EndRow(
        fact.pick_id.hex(),
        fact.ended_at,
        _STATUSES.get(fact.status, str(fact.status)),
        _FAULTS.get(fact.fault, str(fact.fault)),
        fact.http_status or None,
        text(fact.backend) or None,
        _maybe_whole(fact.first_byte_us),
        whole(fact.duration_us),
        _maybe_whole(fact.prompt_tokens),
        _maybe_whole(fact.completion_tokens),
        _maybe_whole(fact.cached_tokens),
        LANE,
        offset,
    )


def worker_version(worker: Worker) -> WorkerVersion:
    """What the audit says of a published worker."""
    return WorkerVersion(
        text(worker.key.namespace),
        worker.key.to_decimal(),
        worker.role.name.lower(),
        None if worker.model is None else text(worker.model),
        text(worker.component),
        text(worker.endpoint),
        worker.dp_start_rank,
        worker.dp_size,
        _maybe_whole(worker.block_size),
        _maybe_whole(worker.total_kv_blocks),
        _maybe_whole(worker.max_num_batched_tokens),
        _maybe_whole(worker.max_num_seqs),
        _maybe_whole(worker.context_length),
        worker.first_seen,
    )


def config_row(offset: int, at: int, fact: ConfigAdopted) -> ConfigRow:
    """The row of an adopted settings version. `settings` is not cut: half a JSON text is none."""
    return ConfigRow(
        whole(fact.version),
        at,
        text(fact.proposed_by),
        text(fact.pick.picker),
        fact.enabled,
        fact.digest.hex(),
        _storable(fact.settings),
        LANE,
        offset,
    )


def replica_row(offset: int, at: int, fact: ReplicaStarted) -> ReplicaRow:
    """The row of a process that picks."""
    return ReplicaRow(
        fact.replica.hex(),
        text(fact.label),
        text(fact.role),
        text(fact.version),
        text(fact.python),
        text(",".join(str(flag) for flag in fact.flags)),
        at,
        LANE,
        offset,
    )


def shadow_row(
    offset: int,
    fact: PickMade,
    shadow_config: str,
    picker: str | None,
    outcome: Outcome | None,
    unverifiable: str | None = None,
) -> ShadowRow:
    """The row of what a shadow decided on the question of a recorded pick; outcome None: not asked."""
    head = (fact.pick_id.hex(), LANE, offset, fact.question.asked_at, text(shadow_config), picker)
    if outcome is None:
        return ShadowRow(*head, *(None,) * 11, unverifiable)
    decode, prefill = outcome.decode.chosen, outcome.prefill.chosen
    return ShadowRow(
        *head,
        None if outcome.namespace is None else text(outcome.namespace),
        None if decode is None else str(decode.instance_id),
        None if decode is None else decode.dp_rank,
        reason_of(outcome.decode),
        None if prefill is None else str(prefill.instance_id),
        None if prefill is None else prefill.dp_rank,
        reason_of(outcome.prefill),
        kv_result(outcome.kv_result),
        _overlap(outcome),
        max(outcome.prefill.candidates, outcome.decode.candidates),
        _ranks(outcome) != _ranks(fact.outcome),
        unverifiable,
    )


def verification_row(
    offset: int, fact: PickMade, at: int, verdict: str, first_difference: str | None, logic: str
) -> VerificationRow:
    """The row of a pick that was repeated."""
    difference = None if first_difference is None else text(first_difference)
    return VerificationRow(fact.pick_id.hex(), LANE, offset, at, text(verdict), difference, text(logic))


def audit_message(table: str, row: tuple[Any, ...], columns: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Key and value of an audit message (decision 48): the row by column name, and its table.

    The key is the pick id, or the replica, worker or version that the row speaks of.
    """
    value = dict(zip(columns, row, strict=True))
    key = next(value[name] for name in ("pick_id", "replica_id", "worker", "config_version") if name in value)
    return str(key), {"table": table, **value}


def reason_of(outcome: PhaseOutcome) -> str:
    """A phase's reason as it is spelled; the number of one that a newer release knows."""
    return _REASONS.get(outcome.reason, str(outcome.reason))


def kv_result(number: int) -> str | None:
    """What the prefix term was worth, or why there is none, as it is spelled; None where it is off.

    The number of a result that a newer release knows.
    """
    return _KV_RESULTS.get(number, str(number)) if number else None


def _overlap(outcome: Outcome) -> int | None:
    """Blocks that the rank that prefills was believed to hold, None where the term took no part."""
    return whole(outcome.overlap_blocks) if outcome.kv_result in _WITH_TERM else None


def _ranks(outcome: Outcome) -> tuple[Any, ...]:
    decode, prefill = outcome.decode.chosen, outcome.prefill.chosen
    return (
        outcome.namespace,
        None if decode is None else decode[:2],
        None if prefill is None else prefill[:2],
    )


def whole(number: int) -> int:
    """A number that fits a signed 64-bit column."""
    return number if -WHOLE_MAX <= number <= WHOLE_MAX else WHOLE_MAX if number > 0 else -WHOLE_MAX


def _maybe_whole(number: int | None) -> int | None:
    return None if number is None else whole(number)


def text(value: str) -> str:
    """Text that every database takes; see the module's text."""
    value = _cut(value)
    if value.isascii() and "\0" not in value:
        return value
    return _cut(_storable(value))


def _cut(value: str) -> str:
    return value if len(value) <= TEXT_CHARACTERS_MAX else value[: TEXT_CHARACTERS_MAX - 3] + "..."


def _storable(value: str) -> str:
    if "\0" in value:
        value = value.replace("\0", "\\u0000")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
