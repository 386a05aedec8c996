"""Row types of the audit: the columns of each SQL table, in the table's order.

Values only: integers, text, booleans, floats, None. Times are log time in microseconds; the
SQL edge makes timestamps of them. Ids and check words are decimal text, pick and replica
ids hex text.

Sources: contract, section 4; decisions 34, 63.
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_END = "unknown"  # status of a dispatch whose replica is gone; in the audit alone


class PickRow(NamedTuple):
    """A row of `picks`, unique by (lane, log_offset).

    kv_result: None where picks were not prefix-aware. isl_tokens: of a prompt that was read.
    overlap_blocks: that the rank that prefills was believed to hold, None without the prefix term.
    block_size: of that rank, else of the chosen decode worker, as the log stood at the pick's record.
    """

    pick_id: str
    request_id: str
    attempt: int
    asked_at: int
    replica_id: str
    lane: int
    log_offset: int
    as_of: int
    config_version: int
    picker: str | None
    model: str
    namespace: str | None
    decode_worker: str | None
    decode_dp_rank: int | None
    decode_reason: str
    prefill_worker: str | None
    prefill_dp_rank: int | None
    prefill_reason: str
    kv_result: str | None
    isl_tokens: int | None
    estimated_tokens: int
    block_size: int | None
    overlap_blocks: int | None
    candidates: int
    suspect: bool


CANDIDATE_COLUMNS = (
    "pick_id",
    "lane",
    "log_offset",
    "phase",
    "position",
    "namespace",
    "worker",
    "dp_rank",
    "chosen",
    "cost",
    "overlap_blocks",
    "active_prefill_tokens",
    "active_decode_blocks",
    "unanswered_tokens",
    "unanswered_blocks",
    "sample_age_us",
    "verdict",
    "excluded_reason",
    "host_blocks",
    "disk_blocks",
    "predicted_blocks",
    "credit",
)
"""Columns of `pick_candidates`, unique by (lane, log_offset, phase, position); its rows are plain tuples.

The last four are None where the prefix term took no part.
"""


class EndRow(NamedTuple):
    """A row of `dispatch_ends`, unique by (lane, log_offset)."""

    pick_id: str
    ended_at: int
    status: str
    fault: str
    http_status: int | None
    backend: str | None
    first_byte_us: int | None
    duration_us: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    lane: int
    log_offset: int


class WorkerVersion(NamedTuple):
    """What a row of `workers` says of a worker, without its time in force."""

    namespace: str
    worker: str
    role: str
    model: str | None
    component: str
    endpoint: str
    dp_start_rank: int
    dp_size: int
    block_size: int | None
    total_kv_blocks: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    context_length: int | None
    first_seen: int


class WorkerBegan(NamedTuple):
    """A version of a worker is in force from this offset on."""

    version: WorkerVersion
    offset: int
    at: int


class WorkerEnded(NamedTuple):
    """The version in force before this offset is over. cause: one of END_CAUSES."""

    namespace: str
    worker: str
    offset: int
    at: int
    cause: str


END_CAUSES = {
    "changed": "another version follows at the same offset",
    "deleted": "a key of it was deleted, or a discovery pass no longer saw it",
    "conflict": "its records contradict each other, or cannot be read",
    "dropped": "the router was told to forget the namespace",
    "gap": "records are missing here; what holds behind the gap has rows of its own",
}


class ConfigRow(NamedTuple):
    """A row of `configs`, unique by (lane, log_offset). settings: JSON, secrets masked."""

    config_version: int
    adopted_at: int
    proposed_by: str
    picker: str
    enabled: bool
    digest: str
    settings: str
    lane: int
    log_offset: int


class ReplicaRow(NamedTuple):
    """A row of `replicas`, unique by (lane, log_offset)."""

    replica_id: str
    label: str
    role: str
    version: str
    python: str
    flags: str
    started_at: int
    lane: int
    log_offset: int


class ReplicaLeft(NamedTuple):
    """A replica was declared gone: its open dispatches read `unknown`."""

    replica_id: str
    offset: int
    at: int


class ReplicaHeard(NamedTuple):
    """A replica that was declared gone spoke again."""

    replica_id: str
    offset: int


class PicksSuspected(NamedTuple):
    """Picks of a replica with records before `offset` and an as-of in (after, upto] are suspect."""

    replica_id: str
    after: int
    upto: int
    offset: int


class ShadowRow(NamedTuple):
    """A row of `shadow_picks`, unique by (lane, log_offset, shadow_config).

    shadow_config: digest of the shadow's settings. moved: whether it chose other ranks, None
    where it could not be asked; `unverifiable` says why then.
    """

    pick_id: str
    lane: int
    log_offset: int
    asked_at: int
    shadow_config: str
    picker: str | None
    namespace: str | None
    decode_worker: str | None
    decode_dp_rank: int | None
    decode_reason: str | None
    prefill_worker: str | None
    prefill_dp_rank: int | None
    prefill_reason: str | None
    kv_result: str | None
    overlap_blocks: int | None
    candidates: int | None
    moved: bool | None
    unverifiable: str | None


class VerificationRow(NamedTuple):
    """A row of `verifications`, unique by (lane, log_offset, logic).

    verdict: equal, different, unverifiable. first_difference: the field, or why it cannot be
    repeated. logic: the release whose code repeated the pick.
    """

    pick_id: str
    lane: int
    log_offset: int
    verified_at: int
    verdict: str
    first_difference: str | None
    logic: str
