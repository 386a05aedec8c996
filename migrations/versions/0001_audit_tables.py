"""The first tables of the audit: all of contract section 4, shadow picks, verifications, gaps."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _picks()
    _pick_candidates()
    _dispatch_ends()
    _workers()
    _configs()
    _replicas()
    _shadow_picks()
    _verifications()
    _sink_marks()
    _sink_gaps()


def downgrade() -> None:
    op.drop_table("sink_gaps")
    op.drop_table("sink_marks")
    op.drop_table("verifications")
    op.drop_table("shadow_picks")
    op.drop_table("replicas")
    op.drop_table("configs")
    op.drop_table("workers")
    op.drop_table("dispatch_ends")
    op.drop_table("pick_candidates")
    op.drop_table("picks")


def _picks() -> None:
    op.create_table(
        "picks",
        sa.Column("pick_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("asked_at", sa.DateTime(), nullable=False),
        sa.Column("replica_id", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.Column("as_of", sa.BigInteger(), nullable=False),
        sa.Column("config_version", sa.BigInteger(), nullable=False),
        sa.Column("picker", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=True),
        sa.Column("decode_worker", sa.Text(), nullable=True),
        sa.Column("decode_dp_rank", sa.BigInteger(), nullable=True),
        sa.Column("decode_reason", sa.Text(), nullable=False),
        sa.Column("prefill_worker", sa.Text(), nullable=True),
        sa.Column("prefill_dp_rank", sa.BigInteger(), nullable=True),
        sa.Column("prefill_reason", sa.Text(), nullable=False),
        sa.Column("kv_result", sa.Text(), nullable=True),
        sa.Column("isl_tokens", sa.BigInteger(), nullable=True),
        sa.Column("estimated_tokens", sa.BigInteger(), nullable=False),
        sa.Column("block_size", sa.BigInteger(), nullable=True),
        sa.Column("overlap_blocks", sa.BigInteger(), nullable=True),
        sa.Column("candidates", sa.BigInteger(), nullable=False),
        sa.Column("suspect", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "log_offset", name="picks_pkey"),
    )
    op.create_index("picks_by_pick_id", "picks", ["pick_id"])
    op.create_index("picks_by_request_id", "picks", ["request_id"])
    op.create_index("picks_by_time", "picks", ["asked_at"])


def _pick_candidates() -> None:
    op.create_table(
        "pick_candidates",
        sa.Column("pick_id", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("dp_rank", sa.BigInteger(), nullable=False),
        sa.Column("chosen", sa.Boolean(), nullable=False),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.Column("overlap_blocks", sa.BigInteger(), nullable=False),
        sa.Column("active_prefill_tokens", sa.BigInteger(), nullable=True),
        sa.Column("active_decode_blocks", sa.BigInteger(), nullable=True),
        sa.Column("unanswered_tokens", sa.BigInteger(), nullable=False),
        sa.Column("unanswered_blocks", sa.BigInteger(), nullable=False),
        sa.Column("sample_age_us", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("excluded_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("lane", "log_offset", "phase", "position", name="pick_candidates_pkey"),
        sqlite_with_rowid=False,
    )


def _dispatch_ends() -> None:
    op.create_table(
        "dispatch_ends",
        sa.Column("pick_id", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.DateTime(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=False),
        sa.Column("http_status", sa.BigInteger(), nullable=True),
        sa.Column("backend", sa.Text(), nullable=True),
        sa.Column("first_byte_us", sa.BigInteger(), nullable=True),
        sa.Column("duration_us", sa.BigInteger(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "log_offset", name="dispatch_ends_pkey"),
    )
    op.create_index("dispatch_ends_by_pick_id", "dispatch_ends", ["pick_id"])
    unknown = sa.text("status = 'unknown'")
    op.create_index(
        "dispatch_ends_unknown", "dispatch_ends", ["pick_id"], sqlite_where=unknown, postgresql_where=unknown
    )


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("dp_start_rank", sa.BigInteger(), nullable=False),
        sa.Column("dp_size", sa.BigInteger(), nullable=False),
        sa.Column("block_size", sa.BigInteger(), nullable=True),
        sa.Column("total_kv_blocks", sa.BigInteger(), nullable=True),
        sa.Column("max_num_batched_tokens", sa.BigInteger(), nullable=True),
        sa.Column("max_num_seqs", sa.BigInteger(), nullable=True),
        sa.Column("context_length", sa.BigInteger(), nullable=True),
        sa.Column("first_seen", sa.DateTime(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("from_offset", sa.BigInteger(), nullable=False),
        sa.Column("from_at", sa.DateTime(), nullable=False),
        sa.Column("to_offset", sa.BigInteger(), nullable=True),
        sa.Column("to_at", sa.DateTime(), nullable=True),
        sa.Column("end_cause", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("lane", "from_offset", "namespace", "worker", name="workers_pkey"),
    )
    op.create_index("workers_by_worker", "workers", ["namespace", "worker"])


def _configs() -> None:
    op.create_table(
        "configs",
        sa.Column("config_version", sa.BigInteger(), nullable=False),
        sa.Column("adopted_at", sa.DateTime(), nullable=False),
        sa.Column("proposed_by", sa.Text(), nullable=False),
        sa.Column("picker", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "log_offset", name="configs_pkey"),
    )


def _replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("replica_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("python", sa.Text(), nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=False),
        sa.Column("gone_at", sa.DateTime(), nullable=True),
        sa.Column("gone_offset", sa.BigInteger(), nullable=True),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.Column("changed_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "log_offset", name="replicas_pkey"),
    )
    op.create_index("replicas_by_replica_id", "replicas", ["replica_id"])


def _shadow_picks() -> None:
    op.create_table(
        "shadow_picks",
        sa.Column("pick_id", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.Column("asked_at", sa.DateTime(), nullable=False),
        sa.Column("shadow_config", sa.Text(), nullable=False),
        sa.Column("picker", sa.Text(), nullable=True),
        sa.Column("namespace", sa.Text(), nullable=True),
        sa.Column("decode_worker", sa.Text(), nullable=True),
        sa.Column("decode_dp_rank", sa.BigInteger(), nullable=True),
        sa.Column("decode_reason", sa.Text(), nullable=True),
        sa.Column("prefill_worker", sa.Text(), nullable=True),
        sa.Column("prefill_dp_rank", sa.BigInteger(), nullable=True),
        sa.Column("prefill_reason", sa.Text(), nullable=True),
        sa.Column("kv_result", sa.Text(), nullable=True),
        sa.Column("overlap_blocks", sa.BigInteger(), nullable=True),
        sa.Column("candidates", sa.BigInteger(), nullable=True),
        sa.Column("moved", sa.Boolean(), nullable=True),
        sa.Column("unverifiable", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("lane", "log_offset", "shadow_config", name="shadow_picks_pkey"),
    )


def _verifications() -> None:
    op.create_table(
        "verifications",
        sa.Column("pick_id", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.Column("verified_at", sa.DateTime(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("first_difference", sa.Text(), nullable=True),
        sa.Column("logic", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "log_offset", "logic", name="verifications_pkey"),
    )


def _sink_marks() -> None:
    op.create_table(
        "sink_marks",
        sa.Column("sink", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.Column("check_word", sa.Text(), nullable=False),
        sa.Column("written_at", sa.DateTime(), nullable=False),
        sa.Column("log_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sink", "lane", name="sink_marks_pkey"),
    )


def _sink_gaps() -> None:
    op.create_table(
        "sink_gaps",
        sa.Column("sink", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("from_offset", sa.BigInteger(), nullable=False),
        sa.Column("to_offset", sa.BigInteger(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("noticed_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("sink", "lane", "from_offset", name="sink_gaps_pkey"),
    )
