"""The tables of the coordinator's database, the same on SQLite and PostgreSQL; migrations create them.

Times are microseconds UTC. Documents that are signed are kept as the bytes that were signed. Bulk bytes are never
here: a row names a blob by root and size.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata: Final = MetaData()

job: Final = Table(
    "job",
    metadata,
    Column("id", String(72), primary_key=True),
    Column("number", Integer, nullable=False, unique=True),  # the order of submission, for paging and for the queue
    Column("name", String(64), nullable=False),
    Column("plan", LargeBinary, nullable=False),
    Column("plan_digest", String(64), nullable=False),
    Column("contract", LargeBinary, nullable=False),
    Column("submitter", String(128), nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("vouched", Boolean, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("idempotency_key", String(128)),
    Column("parent", String(72)),
    Column("parent_round", Integer),
    Column("state", String(16), nullable=False),
    Column("quorum", Integer, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("submitted_us", BigInteger, nullable=False),
    Column("offered_us", BigInteger),
    Column("started_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("change", String(32), nullable=False),  # names the last transaction, to look an unknown COMMIT up
    UniqueConstraint("idempotency_key", name="uq_job_idempotency_key"),
    Index("ix_job_state", "state", "number"),
)

job_site: Final = Table(
    "job_site",
    metadata,
    Column("job", String(72), nullable=False),
    Column("site", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reasons", Text, nullable=False),  # JSON list of lines
    Column("since_us", BigInteger, nullable=False),
    Column("answer", LargeBinary),  # the signed body of the site's last answer
    Column("answer_signature", LargeBinary),
    Column("told", String(16), nullable=False),  # the last job control that was handed to the site's link
    PrimaryKeyConstraint("job", "site"),
    ForeignKeyConstraint(["job"], ["job.id"]),
    Index("ix_job_site_site", "site", "state"),
)

attempt: Final = Table(
    "round_attempt",
    metadata,
    Column("job", String(72), nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("secure", Boolean, nullable=False),
    Column("closed", Boolean, nullable=False),
    Column("quorum", Integer, nullable=False),
    Column("cohort", Text, nullable=False),  # JSON list of sites asked
    Column("sites", Text, nullable=False),  # JSON object: site to standing in the running phase
    Column("reasons", Text, nullable=False),  # JSON object: site to reason
    Column("late", Text, nullable=False),  # JSON object: site to reason
    Column("survivors", Text, nullable=False),
    Column("summed", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("opened_us", BigInteger, nullable=False),
    Column("deadline_us", BigInteger, nullable=False),
    Column("evaluate_by_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("upload_bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("job", "round", "attempt"),
    ForeignKeyConstraint(["job"], ["job.id"]),
)

phase_reply: Final = Table(
    "phase_reply",
    metadata,
    Column("job", String(72), nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("site", String(64), nullable=False),
    Column("body", LargeBinary),  # nothing once an evaluation's counts are in the sum
    Column("signature", LargeBinary),
    Column("body_digest", String(64), nullable=False),  # of the body without its message id and proof
    Column("update_root", String(64)),  # while the update is stored
    Column("received_us", BigInteger, nullable=False),
    Column("peer", Text),  # the site's log entry that its proof showed, as JSON
    PrimaryKeyConstraint("job", "round", "attempt", "phase", "site"),
    ForeignKeyConstraint(["job"], ["job.id"]),
    Index("ix_phase_reply_update_root", "update_root"),
)

release: Final = Table(
    "model_release",
    metadata,
    Column("job", String(72), nullable=False),
    Column("step", Integer, nullable=False),  # 0 is the initial model
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("record_root", String(64), nullable=False),
    Column("record_bytes", BigInteger, nullable=False),
    Column("mean_root", String(64), nullable=False),
    Column("mean_bytes", BigInteger, nullable=False),
    Column("model_digest", String(64), nullable=False),
    Column("model_root", String(64), nullable=False),
    Column("model_bytes", BigInteger, nullable=False),
    Column("state_root", String(64)),
    Column("state_bytes", BigInteger),
    Column("metrics", Text),  # JSON object; nothing until the round is evaluated
    Column("released_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("job", "step"),
    ForeignKeyConstraint(["job"], ["job.id"]),
    Index("ix_model_release_digest", "digest"),
    Index("ix_model_release_record_root", "record_root"),
    Index("ix_model_release_mean_root", "mean_root"),
)

sum_record: Final = Table(
    "sum_record",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("job", String(72), nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("record", Text, nullable=False),  # JSON
    Column("at_us", BigInteger, nullable=False),
    ForeignKeyConstraint(["job"], ["job.id"]),
    Index("ix_sum_record_job", "job", "round", "attempt"),
)

event: Final = Table(
    "job_event",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("job", String(72), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("name", String(64), nullable=False),
    Column("fields", Text, nullable=False),  # JSON object
    ForeignKeyConstraint(["job"], ["job.id"]),
    Index("ix_job_event_job", "job", "number"),
)

presence: Final = Table(
    "presence",
    metadata,
    Column("site", String(64), primary_key=True),
    Column("connected", Boolean, nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Column("seen_us", BigInteger, nullable=False),
    Column("hello", LargeBinary),  # the signed body of the site's last hello: versions, data sets, contracts
)
