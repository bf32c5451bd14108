"""The tables of the daemon in `site.db`: jobs, replies, the outbox, what was applied, approvals and flags.

The registry's tables of data sets live in the same file and are declared in `site_client.data`. One daemon writes;
commands that run beside it ask it over its socket, or take the home's lock where no daemon runs.
"""

from typing import Final

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table

METADATA: Final = MetaData()

JOB: Final = Table(
    "job",
    METADATA,
    Column("job", String(70), primary_key=True),
    Column("plan", LargeBinary, nullable=False),
    Column("plan_digest", String(64), nullable=False),
    Column("contract", LargeBinary, nullable=False),
    Column("submitter", String(128), nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("vouched", Integer, nullable=False),
    Column("session", String, nullable=False),
    Column("stage", String(16), nullable=False, index=True),
    Column("answer", LargeBinary, nullable=True),
    Column("terms", String, nullable=True),
    Column("closed", Integer, nullable=False),
    Column("received_us", BigInteger, nullable=False),
)
REPLY: Final = Table(
    "reply",
    METADATA,
    Column("job", String(70), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("phase", String(16), primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("update_root", String(64), nullable=True),
    Column("update_bytes", BigInteger, nullable=True),
)
OUTBOX: Final = Table(
    "outbox",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("message_id", String(128), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("body", LargeBinary, nullable=False),
)
LINEAGE: Final = Table(
    "lineage",
    METADATA,
    Column("job", String(70), primary_key=True),
    Column("release", String(64), nullable=False),
    Column("round", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
)
SUM_RECORD: Final = Table(
    "sum_record",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("job", String(70), nullable=False, index=True),
    Column("kind", String(32), nullable=False),
    Column("record", String, nullable=False),
)
APPROVAL: Final = Table(
    "approval",
    METADATA,
    Column("approval", String(32), primary_key=True),
    Column("job", String(70), nullable=False, index=True),
    Column("plan_digest", String(64), nullable=False),
    Column("rule", String(128), nullable=False),
    Column("reasons", String, nullable=False),
    Column("state", String(16), nullable=False),
    Column("filed_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("decided_by", String(128), nullable=True),
    Column("decided_us", BigInteger, nullable=True),
    Column("reason", String(1024), nullable=True),
)
POLICY_VERSION: Final = Table(
    "policy_version",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("taken_us", BigInteger, nullable=False),
)
FLAG: Final = Table(
    "flag",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("value", String(256), nullable=False),
)
