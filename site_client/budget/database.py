"""The ledger's transactions: `federation.edge.database`, with what can go wrong said as one refusal.

Durability: on disk when `transact` returns. Atomicity: all or nothing. Concurrency: SQLite takes one writer at a time;
on PostgreSQL (SERIALIZABLE) a transaction that lost against another is run again as a whole.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from federation.edge import database
from privacy.errors import LedgerUnavailable

Result = TypeVar("Result")

ATTEMPTS_MAX: Final = 8
_UNIQUE_VIOLATION: Final = "23505"
_SERIALIZATION_FAILURE: Final = "40001"


def open_ledger(place: Path | str) -> Engine:
    """Return an engine for a SQLite file (a path) or for a database URL.

    Raises:
        ConfigurationWrong: No connection, or a setting that the database didn't take.
    """
    return database.open_engine(database.sqlite_url(place) if isinstance(place, Path) else place)


def transact(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    """Return what `work` returns, after its transaction is durable. `work` may run more than once.

    Raises:
        LedgerUnavailable: The database can't be written; nothing was changed, or the outcome is unknown and the same
            command is to be given again.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return database.transact(engine, work)
        except DBAPIError as error:
            # Two writers appended the same sequence number: the second reads the first one's entry and decides again.
            if attempt == ATTEMPTS_MAX or getattr(error.orig, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise _unavailable(error) from error
    raise LedgerUnavailable("the privacy ledger is busy")


def look(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    """Return what `work` reads at one moment, without holding up a writer.

    Raises:
        LedgerUnavailable: The database can't be read.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            with database.read(engine) as connection:
                return work(connection)
        except DBAPIError as error:
            # PostgreSQL may ask a serialisable reader, too, to begin again.
            if attempt == ATTEMPTS_MAX or getattr(error.orig, "sqlstate", None) != _SERIALIZATION_FAILURE:
                raise _unavailable(error) from error
    raise LedgerUnavailable("the privacy ledger is busy")


def _unavailable(error: DBAPIError) -> LedgerUnavailable:
    lines = str(error.orig).splitlines()
    return LedgerUnavailable(f"the privacy ledger can't be used: {lines[0] if lines else type(error.orig).__name__}")
