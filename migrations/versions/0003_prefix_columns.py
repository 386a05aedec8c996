"""What the prefix term saw and was worth, of each candidate; rows of before say nothing of it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BLOCKS = ("host_blocks", "disk_blocks", "predicted_blocks")


def upgrade() -> None:
    for name in _BLOCKS:
        op.add_column("pick_candidates", sa.Column(name, sa.BigInteger(), nullable=True))
    op.add_column("pick_candidates", sa.Column("credit", sa.Double(), nullable=True))


def downgrade() -> None:
    for name in ("credit", *reversed(_BLOCKS)):
        op.drop_column("pick_candidates", name)
