"""The tables of a log, the same on SQLite and PostgreSQL.

`entry`, `tile`, `writer`, `head` and `trail` change together, in the one transaction of a batch. `event`,
`budget_last`, `left_open` and `commitment` are projections: they follow with a cursor, find entries and prove nothing,
and `confide audit rebuild` makes them anew from the leaves. Times are microseconds UTC; leaves, hashes and ids are
binary.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    text,
)

metadata: Final = MetaData()

# SQLite keeps rows in the order of a key that is declared exactly INTEGER, and gives it 64 bits.
_INDEX: Final = BigInteger().with_variant(Integer, "sqlite")

entry: Final = Table(
    "entry",
    metadata,
    Column("idx", _INDEX, primary_key=True, autoincrement=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("leaf_hash", LargeBinary(32), nullable=False),
    Column("event_id", LargeBinary(16), nullable=False, unique=True),
)

tile: Final = Table(  # the partial tile of level 0 is not kept: its hashes are the last rows of `entry`
    "tile",
    metadata,
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("hashes", LargeBinary, nullable=False),
)

head: Final = Table(
    "head",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),  # always 1
    Column("size", BigInteger, nullable=False),
    Column("root", LargeBinary(32), nullable=False),
    Column("t_us", BigInteger, nullable=False),
    Column("running", Boolean, nullable=False),  # a boot was recorded, and its end not
)

writer: Final = Table(
    "writer",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("key_id", LargeBinary(4), nullable=False),
    Column("next_seq", BigInteger, nullable=False),
    Column("last_hash", LargeBinary(32), nullable=False),
    Column("last_idx", BigInteger, nullable=False),
)

trail: Final = Table(  # entry 0 and all entries that change keys: what judges the others
    "trail",
    metadata,
    Column("idx", _INDEX, primary_key=True, autoincrement=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("path", LargeBinary),  # the 8 hashes inside the tile of level 0, once that tile was pruned
)

checkpoint: Final = Table(
    "checkpoint",
    metadata,
    Column("size", _INDEX, primary_key=True, autoincrement=False),
    Column("note", LargeBinary, nullable=False),
    Column("quorum", Boolean, nullable=False),
)

witnessed: Final = Table(  # what this party, as a witness, last cosigned of another log
    "witnessed",
    metadata,
    Column("origin", String(200), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("root", LargeBinary(32), nullable=False),
    Column("note", LargeBinary, nullable=False),
)

evidence: Final = Table(
    "evidence",
    metadata,
    Column("id", _INDEX, primary_key=True),
    Column("origin", String(200), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("notes", LargeBinary, nullable=False),
)

_REFUSED: Final = text("decision <> 'allowed'")

# Within a log times never decrease, so a range of times is a range of indices: each index ends in `idx`, by which
# pages go on.
event: Final = Table(
    "event",
    metadata,
    Column("idx", _INDEX, primary_key=True, autoincrement=False),
    Column("t_us", BigInteger, nullable=False),
    Column("action", String(64), nullable=False),
    Column("decision", String(8), nullable=False),
    Column("site", String(128)),
    Column("job", String(128)),
    Column("round", BigInteger),
    Column("dataset", String(128)),
    Column("version", String(71)),
    Column("purpose", String(128)),
    Column("actor", String(128)),
    Column("rule", String(128)),
    Column("approval", String(128)),
    Column("code", String(16)),
    Column("eps_nano", BigInteger),
    Column("egress_bytes", BigInteger),
    Index("ix_event_dataset", "dataset", "idx"),
    Index("ix_event_job", "job", "idx"),
    Index("ix_event_actor", "actor", "idx"),
    Index("ix_event_site", "site", "idx"),
    Index("ix_event_action", "action", "idx"),
    Index("ix_event_refused", "decision", "idx", sqlite_where=_REFUSED, postgresql_where=_REFUSED),
)

budget_last: Final = Table(
    "budget_last",
    metadata,
    Column("dataset", String(128), primary_key=True),
    Column("policy", String(128), primary_key=True),
    Column("unit", String(8), primary_key=True),
    Column("idx", BigInteger, nullable=False),
    Column("eps_nano", BigInteger, nullable=False),
    Column("delta_e15", BigInteger, nullable=False),
    Column("total_eps_nano", BigInteger),
    Column("left_eps_nano", BigInteger),
)

left_open: Final = Table(  # openings of data without an end
    "left_open",
    metadata,
    Column("idx", _INDEX, primary_key=True, autoincrement=False),
)

commitment: Final = Table(  # values of the side store that an entry names
    "commitment",
    metadata,
    Column("value", String(46), primary_key=True),
)

cursor: Final = Table(
    "cursor",
    metadata,
    Column("projection", String(32), primary_key=True),
    Column("next_idx", BigInteger, nullable=False),
)

PROJECTIONS: Final = (event, budget_last, left_open, commitment)
