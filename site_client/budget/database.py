"""Opening the ledger's database so that a commit is on disk when it returns, and one writer goes at a time.

SQLite: the driver is in autocommit, so that this module alone says when a transaction begins (`BEGIN IMMEDIATE`);
WAL with `synchronous=FULL` syncs the log at each commit. PostgreSQL: SERIALIZABLE, `synchronous_commit=on`; a
transaction that lost against another is run again as a whole.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from privacy.errors import LedgerUnavailable

Result = TypeVar("Result")

ATTEMPTS_MAX: Final = 8
SQLITE_BUSY_TIMEOUT_S: Final = 30
_SERIALIZATION_STATES: Final = frozenset({"40001", "40P01"})


def open_database(place: Path | str) -> Engine:
    """Return an engine for a SQLite file (a path) or for a database URL."""
    if isinstance(place, Path):
        place = f"sqlite+pysqlite:///{place}"
    url = make_url(place)
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"isolation_level": None, "timeout": SQLITE_BUSY_TIMEOUT_S})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_immediate)
        return engine
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    return create_engine(
        url, isolation_level="SERIALIZABLE", pool_pre_ping=True, connect_args={"options": "-c synchronous_commit=on"}
    )


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def transact(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    """Return what `work` returns, after its transaction is durable; run again as a whole after a lost race.

    Durability: on disk when this returns. Atomicity: all or nothing. `work` must have no effect outside its
    connection until this returns.

    Raises:
        LedgerUnavailable: The database can't be written; nothing was changed, or the outcome is unknown and the same
            command may be given again.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            with engine.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if attempt < ATTEMPTS_MAX and _lost_race(error):
                continue
            raise LedgerUnavailable(f"the privacy ledger can't be written: {_short(error)}") from error
    raise LedgerUnavailable("the privacy ledger is busy")


def _lost_race(error: DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) in _SERIALIZATION_STATES:
        return True
    # Two writers that insert the same sequence number: the second folds the first one's entry and decides again.
    return getattr(error.orig, "sqlstate", None) == "23505"


def _short(error: DBAPIError) -> str:
    kind = "database error" if isinstance(error, OperationalError) else type(error).__name__
    return f"{kind}: {str(error.orig).splitlines()[0] if str(error.orig) else 'no text'}"
