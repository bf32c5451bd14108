"""Jobs, replies, the outbox, what was applied, approvals, policies, flags; data sets and their versions.

A home that was made before its database had versions has these tables already; they are left as they are.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


INDEXES = {"job": ("stage",), "approval": ("job",)}


def upgrade() -> None:
    """Make the tables that aren't there."""
    present = set(sa.inspect(op.get_bind()).get_table_names())
    for name, columns in _tables().items():
        if name not in present:
            op.create_table(name, *columns)
            for index in INDEXES.get(name, ()):
                op.create_index(f"ix_{name}_{index}", name, [index])


def _tables() -> dict[str, tuple[sa.Column[Any], ...]]:
    return {
        "job": (
            sa.Column("job", sa.String(70), primary_key=True),
            sa.Column("plan", sa.LargeBinary, nullable=False),
            sa.Column("plan_digest", sa.String(64), nullable=False),
            sa.Column("contract", sa.LargeBinary, nullable=False),
            sa.Column("submitter", sa.String(128), nullable=False),
            sa.Column("signature", sa.LargeBinary, nullable=False),
            sa.Column("vouched", sa.Integer, nullable=False),
            sa.Column("session", sa.String, nullable=False),
            sa.Column("stage", sa.String(16), nullable=False),
            sa.Column("answer", sa.LargeBinary, nullable=True),
            sa.Column("terms", sa.String, nullable=True),
            sa.Column("closed", sa.Integer, nullable=False),
            sa.Column("received_us", sa.BigInteger, nullable=False),
        ),
        "reply": (
            sa.Column("job", sa.String(70), primary_key=True),
            sa.Column("round", sa.Integer, primary_key=True),
            sa.Column("attempt", sa.Integer, primary_key=True),
            sa.Column("phase", sa.String(16), primary_key=True),
            sa.Column("body", sa.LargeBinary, nullable=False),
            sa.Column("update_root", sa.String(64), nullable=True),
            sa.Column("update_bytes", sa.BigInteger, nullable=True),
        ),
        "outbox": (
            sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
            sa.Column("message_id", sa.String(128), nullable=False, unique=True),
            sa.Column("kind", sa.String(32), nullable=False),
            sa.Column("body", sa.LargeBinary, nullable=False),
        ),
        "lineage": (
            sa.Column("job", sa.String(70), primary_key=True),
            sa.Column("release", sa.String(64), nullable=False),
            sa.Column("round", sa.Integer, nullable=False),
            sa.Column("step", sa.Integer, nullable=False),
            sa.Column("digest", sa.String(64), nullable=False),
        ),
        "approval": (
            sa.Column("approval", sa.String(32), primary_key=True),
            sa.Column("job", sa.String(70), nullable=False),
            sa.Column("plan_digest", sa.String(64), nullable=False),
            sa.Column("rule", sa.String(128), nullable=False),
            sa.Column("reasons", sa.String, nullable=False),
            sa.Column("state", sa.String(16), nullable=False),
            sa.Column("filed_us", sa.BigInteger, nullable=False),
            sa.Column("expires_us", sa.BigInteger, nullable=False),
            sa.Column("decided_by", sa.String(128), nullable=True),
            sa.Column("decided_us", sa.BigInteger, nullable=True),
            sa.Column("reason", sa.String(1024), nullable=True),
        ),
        "policy_version": (
            sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
            sa.Column("digest", sa.String(64), nullable=False),
            sa.Column("content", sa.LargeBinary, nullable=False),
            sa.Column("taken_us", sa.BigInteger, nullable=False),
        ),
        "flag": (
            sa.Column("name", sa.String(32), primary_key=True),
            sa.Column("value", sa.String(256), nullable=False),
        ),
        "data_set": (
            sa.Column("name", sa.String(63), primary_key=True),
            sa.Column("contract", sa.LargeBinary, nullable=False),
            sa.Column("data_map", sa.String, nullable=False),
            sa.Column("path", sa.LargeBinary, nullable=False),
            sa.Column("entity", sa.String(256), nullable=True),
            sa.Column("split", sa.String, nullable=False),
            sa.Column("held_out_public", sa.Boolean, nullable=False),
            sa.Column("same_people_as", sa.String(63), nullable=True),
            sa.Column("epsilon", sa.String(32), nullable=False),
            sa.Column("delta", sa.String(32), nullable=False),
            sa.Column("state", sa.String(16), nullable=False),
            sa.Column("added_us", sa.BigInteger, nullable=False),
        ),
        "data_version": (
            sa.Column("name", sa.String(63), primary_key=True),
            sa.Column("number", sa.Integer, primary_key=True),
            sa.Column("version", sa.String(64), nullable=False),
            sa.Column("units_declared", sa.BigInteger, nullable=False),
            sa.Column("report", sa.String, nullable=False),
            sa.Column("files", sa.String, nullable=False),
            sa.Column("registered_us", sa.BigInteger, nullable=False),
        ),
    }
