"""The tables of members, invitations, people and charter epochs, in the coordinator's database.

Times are microseconds UTC. Secrets are kept as digests only. What is signed is kept as the bytes that were signed.
"""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata: Final = MetaData()

invitation: Final = Table(
    "invitation",
    metadata,
    Column("token_digest", String(64), primary_key=True),
    Column("site", String(64), nullable=False),
    Column("operator", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("candidate", Text),  # canonical JSON of what the site sent, once the token was used
    Column("certificate", LargeBinary),
    Column("changed_us", BigInteger, nullable=False),
    Index("ix_invitation_site", "site", "state"),
)

member: Final = Table(
    "member",
    metadata,
    Column("site", String(64), primary_key=True),
    Column("content", Text, nullable=False),  # canonical JSON of `federation.charter.Member`
    Column("certificate", LargeBinary, nullable=False),
    Column("changed_us", BigInteger, nullable=False),
)

person: Final = Table(
    "person",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("key", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("token_digest", String(64), nullable=False, unique=True),
    Column("changed_us", BigInteger, nullable=False),
)

charter_epoch: Final = Table(
    "charter_epoch",
    metadata,
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    Column("signature", LargeBinary),  # absent while the root key has not signed
    Column("changed_us", BigInteger, nullable=False),
)
