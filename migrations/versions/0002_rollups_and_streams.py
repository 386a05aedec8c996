"""Roll-ups of picks by minute and model, and what stream workers know of their topic."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _rollups()
    _rollup_windows()
    _stream_changes()
    _stream_positions()


def downgrade() -> None:
    op.drop_table("stream_positions")
    op.drop_table("stream_changes")
    op.drop_table("rollup_windows")
    op.drop_table("rollups")


def _rollups() -> None:
    op.create_table(
        "rollups",
        sa.Column("minute", sa.DateTime(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("picks", sa.BigInteger(), nullable=False),
        sa.Column("by_load", sa.BigInteger(), nullable=False),
        sa.Column("by_round_robin_stale", sa.BigInteger(), nullable=False),
        sa.Column("by_kv_aware", sa.BigInteger(), nullable=False),
        sa.Column("by_conditional_bypass", sa.BigInteger(), nullable=False),
        sa.Column("by_no_candidate", sa.BigInteger(), nullable=False),
        sa.Column("by_other", sa.BigInteger(), nullable=False),
        sa.Column("prefilled", sa.BigInteger(), nullable=False),
        sa.Column("estimated_tokens", sa.BigInteger(), nullable=False),
        sa.Column("predicted_picks", sa.BigInteger(), nullable=False),
        sa.Column("predicted_tokens", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=False),
        sa.Column("ok", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("cancelled", sa.BigInteger(), nullable=False),
        sa.Column("expired", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_bytes", sa.BigInteger(), nullable=False),
        sa.Column("first_byte_p50_us", sa.BigInteger(), nullable=True),
        sa.Column("first_byte_p90_us", sa.BigInteger(), nullable=True),
        sa.Column("first_byte_p99_us", sa.BigInteger(), nullable=True),
        sa.Column("first_byte_buckets", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("to_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "minute", "model", name="rollups_pkey"),
    )


def _rollup_windows() -> None:
    op.create_table(
        "rollup_windows",
        sa.Column("minute", sa.DateTime(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("rolled", sa.Boolean(), nullable=False),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "minute", "model", name="rollup_windows_pkey"),
    )


def _stream_changes() -> None:
    op.create_table(
        "stream_changes",
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("to_offset", sa.BigInteger(), nullable=True),
        sa.Column("lane", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "lane", "log_offset", "change", "namespace", "subject", name="stream_changes_pkey"
        ),
    )
    op.create_index("stream_changes_by_subject", "stream_changes", ["subject"])


def _stream_positions() -> None:
    op.create_table(
        "stream_positions",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("log_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic", "partition", name="stream_positions_pkey"),
    )
