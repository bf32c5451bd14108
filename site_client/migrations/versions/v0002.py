"""The journal of secure sums: what must be on disk before a message of a sum leaves."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "sum_record",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job", sa.String(70), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("record", sa.String, nullable=False),
    )
    op.create_index("ix_sum_record_job", "sum_record", ["job"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("sum_record")
