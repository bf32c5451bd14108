"""Invitations, members, people and charter epochs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "invitation",
        sa.Column("token_digest", sa.String(length=64), nullable=False),
        sa.Column("site", sa.String(length=64), nullable=False),
        sa.Column("operator", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("candidate", sa.Text(), nullable=True),
        sa.Column("certificate", sa.LargeBinary(), nullable=True),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_digest"),
    )
    op.create_index("ix_invitation_site", "invitation", ["site", "state"])
    op.create_table(
        "member",
        sa.Column("site", sa.String(length=64), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("site"),
    )
    op.create_table(
        "person",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("token_digest", sa.String(length=64), nullable=False),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("token_digest"),
    )
    op.create_table(
        "charter_epoch",
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=True),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("epoch"),
    )
