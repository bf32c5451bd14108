"""Entries, tiles, head, writers, trail; checkpoints and what a witness keeps; projections and their cursor."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INDEX = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "entry",
        sa.Column("idx", _INDEX, autoincrement=False, nullable=False),
        sa.Column("leaf", sa.LargeBinary(), nullable=False),
        sa.Column("leaf_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("event_id", sa.LargeBinary(length=16), nullable=False),
        sa.PrimaryKeyConstraint("idx"),
        sa.UniqueConstraint("event_id"),
    )
    op.create_table(
        "tile",
        sa.Column("level", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "n"),
    )
    op.create_table(
        "head",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.LargeBinary(length=32), nullable=False),
        sa.Column("t_us", sa.BigInteger(), nullable=False),
        sa.Column("running", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "writer",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("key_id", sa.LargeBinary(length=4), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("last_idx", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "trail",
        sa.Column("idx", _INDEX, autoincrement=False, nullable=False),
        sa.Column("leaf", sa.LargeBinary(), nullable=False),
        sa.Column("path", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("idx"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("size", _INDEX, autoincrement=False, nullable=False),
        sa.Column("note", sa.LargeBinary(), nullable=False),
        sa.Column("quorum", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("size"),
    )
    op.create_table(
        "witnessed",
        sa.Column("origin", sa.String(length=200), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.LargeBinary(length=32), nullable=False),
        sa.Column("note", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("origin"),
    )
    op.create_table(
        "evidence",
        sa.Column("id", _INDEX, nullable=False),
        sa.Column("origin", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("notes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    _make_projections()


def _make_projections() -> None:
    op.create_table(
        "event",
        sa.Column("idx", _INDEX, autoincrement=False, nullable=False),
        sa.Column("t_us", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("decision", sa.String(length=8), nullable=False),
        sa.Column("site", sa.String(length=128), nullable=True),
        sa.Column("job", sa.String(length=128), nullable=True),
        sa.Column("round", sa.BigInteger(), nullable=True),
        sa.Column("dataset", sa.String(length=128), nullable=True),
        sa.Column("version", sa.String(length=71), nullable=True),
        sa.Column("purpose", sa.String(length=128), nullable=True),
        sa.Column("actor", sa.String(length=128), nullable=True),
        sa.Column("rule", sa.String(length=128), nullable=True),
        sa.Column("approval", sa.String(length=128), nullable=True),
        sa.Column("code", sa.String(length=16), nullable=True),
        sa.Column("eps_nano", sa.BigInteger(), nullable=True),
        sa.Column("egress_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("idx"),
    )
    for name in ("dataset", "job", "actor", "site", "action"):
        op.create_index(f"ix_event_{name}", "event", [name, "idx"])
    refused = sa.text("decision <> 'allowed'")
    op.create_index("ix_event_refused", "event", ["decision", "idx"], sqlite_where=refused, postgresql_where=refused)
    op.create_table(
        "budget_last",
        sa.Column("dataset", sa.String(length=128), nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("unit", sa.String(length=8), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=False),
        sa.Column("eps_nano", sa.BigInteger(), nullable=False),
        sa.Column("delta_e15", sa.BigInteger(), nullable=False),
        sa.Column("total_eps_nano", sa.BigInteger(), nullable=True),
        sa.Column("left_eps_nano", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("dataset", "policy", "unit"),
    )
    op.create_table(
        "left_open",
        sa.Column("idx", _INDEX, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("idx"),
    )
    op.create_table(
        "commitment", sa.Column("value", sa.String(length=46), nullable=False), sa.PrimaryKeyConstraint("value")
    )
    op.create_table(
        "cursor",
        sa.Column("projection", sa.String(length=32), nullable=False),
        sa.Column("next_idx", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("projection"),
    )
