"""SQL of both databases from one set of statements, run as text with values by position.

SQLAlchemy writes each statement once for a database; running it costs what the driver alone costs. Values come back
as the driver gives them: a file that somebody altered may hold a text where bytes belong, and whoever reads it looks.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Dialect, Select, bindparam, delete, func, insert, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ClauseElement

from audit import tables

T = TypeVar("T")

PAGE: Final = 256
SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"


@cache
def _dialect(kind: str) -> Dialect:
    if kind == SQLITE:
        return sqlite.dialect()
    from sqlalchemy.dialects.postgresql.psycopg import dialect

    return dialect(paramstyle="format")  # type: ignore[no-untyped-call]


@cache
def text_of(statement: ClauseElement, kind: str) -> str:
    """Return the text of a statement that lives as long as the process, for the database `kind`."""
    return str(statement.compile(dialect=_dialect(kind)))


def fetch(connection: Connection, statement: ClauseElement, *values: Any) -> Sequence[Sequence[Any]]:
    """Return all rows of a statement of this module, for `values` in the order of its parameters.

    Raises:
        DBAPIError: The database can't answer.
    """
    if connection.dialect.name == SQLITE:
        driver: Any = connection.connection.driver_connection
        with contextlib.suppress(sqlite3.Error):  # asked again below, for the error's one form
            rows: Sequence[Sequence[Any]] = driver.execute(text_of(statement, SQLITE), values).fetchall()
            return rows
    return connection.exec_driver_sql(text_of(statement, connection.dialect.name), values).fetchall()


def fetch_built(connection: Connection, statement: Select[Any]) -> Sequence[Sequence[Any]]:
    """Return all rows of a statement that was built with its values, for this one use."""
    compiled: Any = statement.compile(dialect=_dialect(connection.dialect.name))
    values = tuple(compiled.params[name] for name in compiled.positiontup or ())
    return connection.exec_driver_sql(compiled.string, values).fetchall()


# --- what a batch writes ----------------------------------------------------------------------------------------

_NONE: Final[Any] = literal_column("0")
_ONE: Final[Any] = literal_column("1")
_head, _entry, _tile, _writer, _event = tables.head.c, tables.entry.c, tables.tile.c, tables.writer.c, tables.event.c

MOVE_HEAD: Final = (
    update(tables.head)
    .where(_head.size == bindparam("old_size"))
    .values(
        size=bindparam("new_size"),
        root=bindparam("new_root"),
        t_us=bindparam("new_t_us"),
        running=bindparam("new_running"),
    )
)
"""New size, root, time, running, and the size that it must have had: what makes a second writer show."""
ADD_ENTRY: Final = insert(tables.entry)
ADD_TRAIL: Final = insert(tables.trail).values(idx=bindparam("idx"), leaf=bindparam("leaf"))


def _upserts(kind: str) -> dict[str, ClauseElement]:
    new: Any = postgresql.insert if kind == POSTGRESQL else sqlite.insert
    made: dict[str, ClauseElement] = {}
    for table in (tables.tile, tables.writer, tables.checkpoint, tables.witnessed, tables.budget_last, tables.event):
        statement = new(table)
        keys = [column.name for column in table.primary_key]
        rest = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
        made[table.name] = statement.on_conflict_do_update(index_elements=keys, set_=rest)
    for table in (tables.left_open, tables.commitment):
        made[table.name] = new(table).on_conflict_do_nothing()
    return made


@cache
def put(name: str, kind: str) -> str:
    """Return the text that adds a row of the table `name`, or replaces the one of the same key."""
    return str(_upserts(kind)[name].compile(dialect=_dialect(kind)))


NOT_LEFT_OPEN: Final = delete(tables.left_open).where(tables.left_open.c.idx == bindparam("opened"))
DROP_SMALLER: Final = delete(tables.checkpoint).where(
    tables.checkpoint.c.size < bindparam("size"), tables.checkpoint.c.quorum.is_(False)
)
ADD_EVIDENCE: Final = insert(tables.evidence).values(
    origin=bindparam("origin"), kind=bindparam("kind"), notes=bindparam("notes")
)
KEEP_PATH: Final = (
    update(tables.trail).where(tables.trail.c.idx == bindparam("index")).values(path=bindparam("new_path"))
)
PRUNE_ENTRIES: Final = delete(tables.entry).where(tables.entry.c.idx < bindparam("below"))
PRUNE_ROWS: Final = (
    delete(tables.event).where(tables.event.c.idx < bindparam("below")),
    delete(tables.left_open).where(tables.left_open.c.idx < bindparam("below")),
)
PRUNE_TILES: Final = delete(tables.tile).where(
    tables.tile.c.level == literal_column("0"), tables.tile.c.n < bindparam("n")
)
EMPTY_LEAF: Final = (
    update(tables.entry)
    .where(tables.entry.c.idx == bindparam("index"), tables.entry.c.leaf_hash == bindparam("hash"))
    .values(leaf=bindparam("new_leaf"))
)
FORGET_ROW: Final = delete(tables.event).where(tables.event.c.idx == bindparam("index"))
MOVE_CURSOR: Final = update(tables.cursor).values(next_idx=bindparam("next"))

# --- what readers ask -------------------------------------------------------------------------------------------

HEAD: Final = select(_head.size, _head.root, _head.t_us, _head.running)
ENTRY: Final = select(tables.entry).where(_entry.idx == bindparam("idx"))
ENTRIES: Final = (
    select(tables.entry)
    .where(_entry.idx >= bindparam("first"), _entry.idx < bindparam("end"))
    .order_by(_entry.idx)
    .limit(literal_column(str(PAGE)))
    .offset(_NONE)
)
"""A page of them: what a reader holds at once doesn't grow with the log."""
LEAF_HASHES: Final = (
    select(_entry.leaf_hash).where(_entry.idx >= bindparam("first"), _entry.idx < bindparam("end")).order_by(_entry.idx)
)
ENTRY_OF_ID: Final = select(_entry.idx, _entry.leaf).where(_entry.event_id == bindparam("event_id"))


@cache
def entries_of_ids(count: int) -> ClauseElement:
    """Return the statement for index, leaf and id of the entries under `count` ids."""
    return select(_entry.idx, _entry.leaf, _entry.event_id).where(
        _entry.event_id.in_([bindparam(f"event_id_{number}") for number in range(count)])
    )


@cache
def entries_at(count: int) -> ClauseElement:
    """Return the statement for the entries at `count` places."""
    return select(tables.entry).where(_entry.idx.in_([bindparam(f"idx_{number}") for number in range(count)]))


def filled_up(asked: list[T]) -> tuple[T, ...]:
    """Return what is asked for filled up to a power of two, so that few statements serve lists of every length."""
    count = 1 << (len(asked) - 1).bit_length()
    return (*asked, *asked[:1] * (count - len(asked)))


LAST_INDEX: Final = select(func.max(_entry.idx))
TILE: Final = select(_tile.hashes).where(_tile.level == bindparam("level"), _tile.n == bindparam("n"))
WRITERS: Final = select(tables.writer).order_by(_writer.name)
TRAIL: Final = select(tables.trail.c.idx, tables.trail.c.leaf).order_by(tables.trail.c.idx)
TRAIL_PATHS: Final = select(tables.trail.c.idx, tables.trail.c.path).where(tables.trail.c.path.is_not(None))
FIRST_INDEX: Final = select(func.min(_entry.idx))
NEXT_PROJECTED: Final = select(func.min(tables.cursor.c.next_idx))
PROJECTED: Final = (
    select(tables.event).where(_event.idx >= bindparam("first"), _event.idx < bindparam("end")).order_by(_event.idx)
)
TIME_AT: Final = (
    select(_event.idx, _event.t_us).where(_event.idx >= bindparam("idx")).order_by(_event.idx).limit(_ONE).offset(_NONE)
)
NEXT_ACTION: Final = select(func.min(_event.action)).where(_event.action > bindparam("action"))
LEFT_OPEN: Final = select(tables.left_open.c.idx).order_by(tables.left_open.c.idx)
IS_COMMITTED: Final = select(tables.commitment.c.value).where(tables.commitment.c.value == bindparam("value"))
WITNESSED: Final = select(tables.witnessed).order_by(tables.witnessed.c.origin)
EVIDENCE: Final = select(tables.evidence.c.origin, tables.evidence.c.kind, tables.evidence.c.notes).order_by(
    tables.evidence.c.id
)
CHECKPOINTS: Final = select(tables.checkpoint).order_by(tables.checkpoint.c.size)
NEWEST_QUORUM: Final = (
    select(tables.checkpoint.c.note)
    .where(tables.checkpoint.c.quorum)
    .order_by(tables.checkpoint.c.size.desc())
    .limit(_ONE)
    .offset(_NONE)
)
QUORUMS: Final = (
    select(tables.checkpoint.c.size, tables.checkpoint.c.note)
    .where(tables.checkpoint.c.quorum)
    .order_by(tables.checkpoint.c.size)
)
