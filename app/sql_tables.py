"""The audit's tables, as SQLAlchemy Core describes them; `migrations/` creates them.

One schema for SQLite and PostgreSQL. Times are UTC timestamps without a zone, so that both
databases print, compare and cut them alike whatever zone a session has; the code side
gives and takes log time in microseconds. Whatever may need more than 63 bits, and every id, is
text. Each table is keyed by log positions, so that a row written twice stays one row.

Names are public: columns are added, never renamed (docs/sql-audit.md). A change here needs
a migration; a test compares both.

Source: contract, section 4; decision 63.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
    text,
)

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # all columns are UTC without a zone
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001


class UtcTime(TypeDecorator[int]):
    """Microseconds since 1970 here, a UTC timestamp in the database; the year 9999 for what lies beyond."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Any) -> datetime | None:
        return None if value is None else moment(value)

    def process_result_value(self, value: datetime | None, dialect: Any) -> int | None:
        return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)


def moment(at_us: int) -> datetime:
    """A time as the database holds it."""
    try:
        return _EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return _LAST


def _text(name: str, null: bool = False) -> Column[Any]:
    return Column(name, Text, nullable=null)


def _whole(name: str, null: bool = False) -> Column[Any]:
    return Column(name, BigInteger, nullable=null)


def _time(name: str, null: bool = False) -> Column[Any]:
    return Column(name, UtcTime, nullable=null)


def _flag(name: str, null: bool = False) -> Column[Any]:
    return Column(name, Boolean, nullable=null)


metadata = MetaData()

picks = Table(
    "picks",
    metadata,
    _text("pick_id"),
    _text("request_id"),
    _whole("attempt"),
    _time("asked_at"),
    _text("replica_id"),
    _whole("lane"),
    _whole("log_offset"),
    _whole("as_of"),
    _whole("config_version"),
    _text("picker", null=True),
    _text("model"),
    _text("namespace", null=True),
    _text("decode_worker", null=True),
    _whole("decode_dp_rank", null=True),
    _text("decode_reason"),
    _text("prefill_worker", null=True),
    _whole("prefill_dp_rank", null=True),
    _text("prefill_reason"),
    _text("kv_result", null=True),
    _whole("isl_tokens", null=True),
    _whole("estimated_tokens"),
    _whole("block_size", null=True),
    _whole("overlap_blocks", null=True),
    _whole("candidates"),
    _flag("suspect"),
    PrimaryKeyConstraint("lane", "log_offset", name="picks_pkey"),
    Index("picks_by_pick_id", "pick_id"),
    Index("picks_by_request_id", "request_id"),
    Index("picks_by_time", "asked_at"),
)

pick_candidates = Table(
    "pick_candidates",
    metadata,
    _text("pick_id"),
    _whole("lane"),
    _whole("log_offset"),
    _text("phase"),
    _whole("position"),
    _text("namespace"),
    _text("worker"),
    _whole("dp_rank"),
    _flag("chosen"),
    Column("cost", Double, nullable=True),
    _whole("overlap_blocks"),
    _whole("active_prefill_tokens", null=True),
    _whole("active_decode_blocks", null=True),
    _whole("unanswered_tokens"),
    _whole("unanswered_blocks"),
    _whole("sample_age_us", null=True),
    _text("verdict"),
    _text("excluded_reason", null=True),
    _whole("host_blocks", null=True),
    _whole("disk_blocks", null=True),
    _whole("predicted_blocks", null=True),
    Column("credit", Double, nullable=True),
    PrimaryKeyConstraint("lane", "log_offset", "phase", "position", name="pick_candidates_pkey"),
    sqlite_with_rowid=False,
)

dispatch_ends = Table(
    "dispatch_ends",
    metadata,
    _text("pick_id"),
    _time("ended_at"),
    _text("status"),
    _text("fault"),
    _whole("http_status", null=True),
    _text("backend", null=True),
    _whole("first_byte_us", null=True),
    _whole("duration_us", null=True),
    _whole("prompt_tokens", null=True),
    _whole("completion_tokens", null=True),
    _whole("cached_tokens", null=True),
    _whole("lane"),
    _whole("log_offset"),
    PrimaryKeyConstraint("lane", "log_offset", name="dispatch_ends_pkey"),
    Index("dispatch_ends_by_pick_id", "pick_id"),
    Index(
        "dispatch_ends_unknown",
        "pick_id",
        sqlite_where=text("status = 'unknown'"),
        postgresql_where=text("status = 'unknown'"),
    ),
)

workers = Table(
    "workers",
    metadata,
    _text("namespace"),
    _text("worker"),
    _text("role"),
    _text("model", null=True),
    _text("component"),
    _text("endpoint"),
    _whole("dp_start_rank"),
    _whole("dp_size"),
    _whole("block_size", null=True),
    _whole("total_kv_blocks", null=True),
    _whole("max_num_batched_tokens", null=True),
    _whole("max_num_seqs", null=True),
    _whole("context_length", null=True),
    _time("first_seen"),
    _whole("lane"),
    _whole("from_offset"),
    _time("from_at"),
    _whole("to_offset", null=True),
    _time("to_at", null=True),
    _text("end_cause", null=True),
    PrimaryKeyConstraint("lane", "from_offset", "namespace", "worker", name="workers_pkey"),
    Index("workers_by_worker", "namespace", "worker"),
)

configs = Table(
    "configs",
    metadata,
    _whole("config_version"),
    _time("adopted_at"),
    _text("proposed_by"),
    _text("picker"),
    _flag("enabled"),
    _text("digest"),
    _text("settings"),
    _whole("lane"),
    _whole("log_offset"),
    PrimaryKeyConstraint("lane", "log_offset", name="configs_pkey"),
)

replicas = Table(
    "replicas",
    metadata,
    _text("replica_id"),
    _text("label"),
    _text("role"),
    _text("version"),
    _text("python"),
    _text("flags"),
    _time("started_at"),
    _time("gone_at", null=True),
    _whole("gone_offset", null=True),
    _whole("lane"),
    _whole("log_offset"),
    _whole("changed_offset"),
    PrimaryKeyConstraint("lane", "log_offset", name="replicas_pkey"),
    Index("replicas_by_replica_id", "replica_id"),
)

shadow_picks = Table(
    "shadow_picks",
    metadata,
    _text("pick_id"),
    _whole("lane"),
    _whole("log_offset"),
    _time("asked_at"),
    _text("shadow_config"),
    _text("picker", null=True),
    _text("namespace", null=True),
    _text("decode_worker", null=True),
    _whole("decode_dp_rank", null=True),
    _text("decode_reason", null=True),
    _text("prefill_worker", null=True),
    _whole("prefill_dp_rank", null=True),
    _text("prefill_reason", null=True),
    _text("kv_result", null=True),
    _whole("overlap_blocks", null=True),
    _whole("candidates", null=True),
    _flag("moved", null=True),
    _text("unverifiable", null=True),
    PrimaryKeyConstraint("lane", "log_offset", "shadow_config", name="shadow_picks_pkey"),
)

verifications = Table(
    "verifications",
    metadata,
    _text("pick_id"),
    _whole("lane"),
    _whole("log_offset"),
    _time("verified_at"),
    _text("verdict"),
    _text("first_difference", null=True),
    _text("logic"),
    PrimaryKeyConstraint("lane", "log_offset", "logic", name="verifications_pkey"),
)

sink_marks = Table(
    "sink_marks",
    metadata,
    _text("sink"),
    _whole("lane"),
    _whole("log_offset"),
    _text("check_word"),
    _time("written_at"),
    _text("log_id"),
    PrimaryKeyConstraint("sink", "lane", name="sink_marks_pkey"),
)

sink_gaps = Table(
    "sink_gaps",
    metadata,
    _text("sink"),
    _whole("lane"),
    _whole("from_offset"),
    _whole("to_offset"),
    _text("cause"),
    _time("noticed_at"),
    PrimaryKeyConstraint("sink", "lane", "from_offset", name="sink_gaps_pkey"),
)

rollups = Table(
    "rollups",
    metadata,
    _time("minute"),
    _text("model"),
    _whole("picks"),
    _whole("by_load"),
    _whole("by_round_robin_stale"),
    _whole("by_kv_aware"),
    _whole("by_conditional_bypass"),
    _whole("by_no_candidate"),
    _whole("by_other"),
    _whole("prefilled"),
    _whole("estimated_tokens"),
    _whole("predicted_picks"),
    _whole("predicted_tokens"),
    _whole("ended"),
    _whole("ok"),
    _whole("refused"),
    _whole("failed"),
    _whole("cancelled"),
    _whole("expired"),
    _whole("prompt_tokens"),
    _whole("completion_tokens"),
    _whole("cached_tokens"),
    _whole("first_bytes"),
    _whole("first_byte_p50_us", null=True),
    _whole("first_byte_p90_us", null=True),
    _whole("first_byte_p99_us", null=True),
    _text("first_byte_buckets"),
    _whole("lane"),
    _whole("to_offset"),
    PrimaryKeyConstraint("lane", "minute", "model", name="rollups_pkey"),
)

rollup_windows = Table(
    "rollup_windows",
    metadata,
    _time("minute"),
    _text("model"),
    _flag("rolled"),
    _whole("lane"),
    PrimaryKeyConstraint("lane", "minute", "model", name="rollup_windows_pkey"),
)

stream_changes = Table(
    "stream_changes",
    metadata,
    _text("change"),
    _text("namespace"),
    _text("subject"),
    _time("at"),
    _text("cause"),
    _whole("to_offset", null=True),
    _whole("lane"),
    _whole("log_offset"),
    PrimaryKeyConstraint("lane", "log_offset", "change", "namespace", "subject", name="stream_changes_pkey"),
    Index("stream_changes_by_subject", "subject"),
)

stream_positions = Table(
    "stream_positions",
    metadata,
    _text("topic"),
    _whole("partition"),
    _whole("position"),
    _text("log_id"),
    PrimaryKeyConstraint("topic", "partition", name="stream_positions_pkey"),
)
