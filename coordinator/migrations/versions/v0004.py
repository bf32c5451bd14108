"""The records of secure sums."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "sum_record",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("job", sa.String(72), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
    )
    op.create_index("ix_sum_record_job", "sum_record", ["job", "round", "attempt"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("sum_record")
