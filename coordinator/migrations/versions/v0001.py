"""Jobs, sites in jobs, attempts of rounds, replies, releases, events, presence; members, people, charter epochs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "job",
        sa.Column("id", sa.String(length=72), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("plan", sa.LargeBinary(), nullable=False),
        sa.Column("plan_digest", sa.String(length=64), nullable=False),
        sa.Column("contract", sa.LargeBinary(), nullable=False),
        sa.Column("submitter", sa.String(length=128), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("vouched", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("parent", sa.String(length=72), nullable=True),
        sa.Column("parent_round", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("quorum", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("submitted_us", sa.BigInteger(), nullable=False),
        sa.Column("offered_us", sa.BigInteger(), nullable=True),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("change", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key", name="uq_job_idempotency_key"),
        sa.UniqueConstraint("number"),
    )
    op.create_index("ix_job_state", "job", ["state", "number"], unique=False)
    op.create_table(
        "presence",
        sa.Column("site", sa.String(length=64), nullable=False),
        sa.Column("connected", sa.Boolean(), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("hello", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("site"),
    )
    op.create_table(
        "job_event",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=72), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("ix_job_event_job", "job_event", ["job", "number"], unique=False)
    op.create_table(
        "job_site",
        sa.Column("job", sa.String(length=72), nullable=False),
        sa.Column("site", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("answer_signature", sa.LargeBinary(), nullable=True),
        sa.Column("told", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("job", "site"),
    )
    op.create_index("ix_job_site_site", "job_site", ["site", "state"], unique=False)
    op.create_table(
        "model_release",
        sa.Column("job", sa.String(length=72), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("record_root", sa.String(length=64), nullable=False),
        sa.Column("record_bytes", sa.BigInteger(), nullable=False),
        sa.Column("mean_root", sa.String(length=64), nullable=False),
        sa.Column("mean_bytes", sa.BigInteger(), nullable=False),
        sa.Column("model_digest", sa.String(length=64), nullable=False),
        sa.Column("model_root", sa.String(length=64), nullable=False),
        sa.Column("model_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state_root", sa.String(length=64), nullable=True),
        sa.Column("state_bytes", sa.BigInteger(), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=True),
        sa.Column("released_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("job", "step"),
    )
    op.create_index("ix_model_release_digest", "model_release", ["digest"], unique=False)
    op.create_table(
        "phase_reply",
        sa.Column("job", sa.String(length=72), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("site", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("signature", sa.LargeBinary(), nullable=True),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("update_root", sa.String(length=64), nullable=True),
        sa.Column("received_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("job", "round", "attempt", "phase", "site"),
    )
    op.create_index("ix_phase_reply_update_root", "phase_reply", ["update_root"], unique=False)
    op.create_table(
        "round_attempt",
        sa.Column("job", sa.String(length=72), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("secure", sa.Boolean(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("quorum", sa.Integer(), nullable=False),
        sa.Column("cohort", sa.Text(), nullable=False),
        sa.Column("sites", sa.Text(), nullable=False),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("late", sa.Text(), nullable=False),
        sa.Column("survivors", sa.Text(), nullable=False),
        sa.Column("summed", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("opened_us", sa.BigInteger(), nullable=False),
        sa.Column("deadline_us", sa.BigInteger(), nullable=False),
        sa.Column("evaluate_by_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("upload_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("job", "round", "attempt"),
    )
    op.create_table(
        "charter_epoch",
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=True),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("epoch"),
    )
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
    op.create_index("ix_invitation_site", "invitation", ["site", "state"], unique=False)
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
