"""Open the database of a log: SQLite in its epoch's folder, or a PostgreSQL server that a file there names.

What was committed must stay committed. SQLite: write-ahead log, ``synchronous=FULL``, transactions begun and ended by
us and never by the driver, every setting read back. PostgreSQL: ``synchronous_commit`` on for the connection, a server
with `fsync` or `full_page_writes` off refused, an advisory lock that ends with the connection.

A reader changes nothing: its transactions are read-only, and a copied SQLite file is opened so that no file beside it
is made or touched.
"""

import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema, DropSchema

from audit import durable, key_files, tables
from audit.errors import AuditError, LogDamaged, LogUnreadable, SettingsUnsafe
from audit.places import Places
from audit.server_lock import hold_server_lock

BUSY_TIMEOUT_S: Final = 30
SCHEMA: Final = "0001"
"""The newest file in `migrations/versions`; a fresh database begins there."""
_VERSION_TABLE: Final = "alembic_version"


@dataclass(frozen=True, slots=True)
class Server:
    """A PostgreSQL database that keeps a log.

    Attributes:
        url: ``postgresql+psycopg://user@host/name``, without a password.
        password_file: A file (0600) with the password, where one is needed.
    """

    url: str
    password_file: Path | None = None

    def __post_init__(self) -> None:
        address = _address(self.url)
        if address.get_backend_name() != "postgresql":
            raise SettingsUnsafe("audit.database names no PostgreSQL database", hint=_URL_HINT)
        if address.password is not None:
            raise SettingsUnsafe(
                "the address in audit.database holds a password",
                hint="put the password into a file with mode 0600, and name that file",
            )

    @classmethod
    def read(cls, path: Path) -> "Server":
        """Return what the file `path` names.

        Raises:
            SettingsUnsafe: It can't be read, or names no PostgreSQL database.
        """
        try:
            found = json.loads(path.read_bytes())
            password_file = found.get("password_file")
            return cls(found["url"], None if password_file is None else Path(password_file))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise SettingsUnsafe(f"{path} doesn't say where the log is", hint=_URL_HINT) from None

    def __bytes__(self) -> bytes:
        file = None if self.password_file is None else str(self.password_file)
        return json.dumps({"password_file": file, "url": self.url}).encode() + b"\n"


_URL_HINT: Final = "write postgresql+psycopg://USER@HOST/NAME"


def _address(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError:
        raise SettingsUnsafe("audit.database is no address of a database", hint=_URL_HINT) from None


# --- for the one writer -----------------------------------------------------------------------------------------


def create(places: Places, server: Server | None) -> Connection:
    """Return a connection to a new, empty log; what an interrupted creation left is removed first.

    Nobody has seen a log whose first checkpoint isn't there yet.

    Raises:
        SettingsUnsafe: There is a log with entries already, or the database doesn't keep what the log needs.
    """
    if places.has_log:
        with _reported(places):
            connection = open_to_write(places, check_version=False)
        try:
            if _entries(connection) > (0 if places.checkpoint.exists() else 1):
                raise SettingsUnsafe(
                    f"there is a log in {places.folder} already", hint="open it, or name an empty folder"
                )
        finally:
            close(connection)
        _remove(places)
    if server is None:
        places.sqlite.touch(mode=durable.PRIVATE_FILE)
    else:
        durable.replace_file(places.server, bytes(server))
    durable.sync_folder(places.epoch_folder)
    connection = open_to_write(places, check_version=False)
    try:
        if _entries(connection):
            places.server.unlink()  # what we wrote; the log that is there belongs to another home
            raise SettingsUnsafe(
                f"the database has a log in its schema {schema_of(places)} already", hint="name an empty database"
            )
        _make_tables(connection)
    except BaseException:
        close(connection)
        raise
    return connection


def _entries(connection: Connection) -> int:
    if not inspect(connection).has_table(tables.head.name):
        return 0
    return int(connection.scalar(select(tables.head.c.size)) or 0)


def _remove(places: Places) -> None:
    if places.server.exists():
        engine = _postgresql(places, Server.read(places.server), reads=False)
        with engine.connect() as connection:
            connection.execute(DropSchema(schema_of(places), cascade=True, if_exists=True))
        engine.dispose()
        places.server.unlink()
    for path in places.epoch_folder.glob(f"{places.sqlite.name}*"):
        path.unlink()


def _make_tables(connection: Connection) -> None:
    """Make all tables of `SCHEMA` in one transaction, and note the version as Alembic would."""
    connection.exec_driver_sql("BEGIN")
    tables.metadata.create_all(connection, checkfirst=False)
    connection.exec_driver_sql(f"CREATE TABLE {_VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    connection.exec_driver_sql(f"INSERT INTO {_VERSION_TABLE} VALUES ('{SCHEMA}')")  # noqa: S608 (two constants)
    if connection.dialect.name == "postgresql":
        # Against a slip and an injected statement; the owner of the tables could grant it again.
        connection.exec_driver_sql("REVOKE UPDATE, DELETE, TRUNCATE ON entry FROM CURRENT_USER")
    connection.execute(insert(tables.head), {"id": 1, "size": 0, "root": hashlib.sha256().digest(), **_NOTHING_YET})
    connection.execute(insert(tables.cursor), {"projection": tables.event.name, "next_idx": 0})
    connection.exec_driver_sql("COMMIT")


_NOTHING_YET: Final = {"t_us": 0, "running": False}


def open_to_write(places: Places, *, check_version: bool = True) -> Connection:
    """Return a connection for the one writer; the caller holds the home's lock.

    Raises:
        SettingsUnsafe: A setting isn't what the log needs (CFD-A25), or a newer program wrote the log (CFD-A29).
        SecondWriter: Another machine writes the log in this PostgreSQL database.
        LogDamaged: The database can't be read.
        LogUnreadable: The server can't be reached.
    """
    with _reported(places):
        if places.server.exists():
            engine = _postgresql(places, Server.read(places.server), reads=False)
        else:
            engine = _engine(lambda: _connect(places.sqlite, "mode=rw"))
            event.listen(engine, "connect", _set_up_sqlite)
        connection = engine.connect()
        try:
            if places.server.exists():
                hold_server_lock(connection, places, schema_of(places))
            if check_version:
                _bring_up(connection)
        except BaseException:
            close(connection)
            raise
        return connection


def close(connection: Connection) -> None:
    """Close the connection and all of its engine."""
    engine = connection.engine
    connection.close()
    engine.dispose()


def _engine(creator: Callable[[], Any], **more: Any) -> Engine:
    return create_engine("sqlite://", creator=creator, poolclass=NullPool, isolation_level="AUTOCOMMIT", **more)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # With isolation_level None the driver neither begins nor ends a transaction behind our back.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_S,
    )


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    wanted: dict[str, str | int] = {"journal_mode": "wal", "synchronous": 2}
    if sys.platform == "darwin":  # elsewhere fsync reaches the disk by itself
        wanted["fullfsync"] = 1
    for name, value in wanted.items():
        connection.execute(f"PRAGMA {name}={value}")
    found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted}
    if found != wanted:
        raise SettingsUnsafe(f"SQLite runs with {found}, needed are {wanted}")
    connection.execute("PRAGMA trusted_schema=OFF")


def schema_of(places: Places) -> str:
    """Return the schema of a PostgreSQL database in which this epoch lies."""
    return f"audit_{places.epoch}"


def _postgresql(places: Places, server: Server, *, reads: bool) -> Engine:
    schema = schema_of(places)
    arguments: dict[str, Any] = {
        "connect_timeout": 10,
        "options": f"-c search_path={schema} -c lock_timeout={BUSY_TIMEOUT_S}s -c client_min_messages=warning",
    }
    if server.password_file is not None:
        arguments["password"] = key_files.read_private(server.password_file).decode().strip("\ufeff \t\r\n")
    try:
        engine = create_engine(
            _address(server.url).set(drivername="postgresql+psycopg"),
            connect_args=arguments,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            paramstyle="format",
        )
    except ModuleNotFoundError as missing:
        raise LogUnreadable(
            f"the log is in a PostgreSQL database, and {missing.name} isn't installed",
            hint="pip install 'confide[link]'",
        ) from None
    if not reads:
        event.listen(engine, "connect", _set_up_postgresql)
        with engine.connect() as connection:
            connection.execute(CreateSchema(schema, if_not_exists=True))
    return engine


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    connection.execute("SET synchronous_commit TO on")
    names = ("synchronous_commit", "fsync", "full_page_writes")
    found = {name: connection.execute("SELECT current_setting(%s)", (name,)).fetchone()[0] for name in names}
    if set(found.values()) != {"on"}:
        raise SettingsUnsafe(f"PostgreSQL runs with {found}, all must be on", hint="ask the server's administrator")


def backend_of(connection: Connection) -> tuple[int, Any] | None:
    """Return by what a server knows this connection, None for SQLite."""
    if connection.dialect.name != "postgresql":
        return None
    found = connection.exec_driver_sql(
        "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    ).fetchone()
    return None if found is None else (found[0], found[1])


def end_backend(places: Places, backend: tuple[int, Any]) -> None:
    """End a lost connection of ours at the server, where it may hold the log's lock until a time-out of hours.

    What it was doing has happened or not when this returns, or will have when the lock is free.
    """
    engine = _postgresql(places, Server.read(places.server), reads=True)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s", backend
            )
    finally:
        engine.dispose()


def _bring_up(connection: Connection) -> None:
    """Give the database the tables of `SCHEMA`.

    Raises:
        SettingsUnsafe: CFD-A29, the database belongs to a newer program; it is unchanged.
    """
    found = _version(connection)
    if found == SCHEMA:
        return
    if found is None or found > SCHEMA:
        raise SettingsUnsafe(f"the log has shape {found}, this program knows {SCHEMA}", code="CFD-A29")
    from audit.migrations import upgrade

    try:
        upgrade(connection)
    except ModuleNotFoundError as missing:
        raise SettingsUnsafe(
            f"the log has shape {found}, and {missing.name}, which brings it to {SCHEMA}, isn't installed",
            hint="pip install 'confide[link]'",
        ) from None


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    version: str | None = connection.exec_driver_sql(f"SELECT version_num FROM {_VERSION_TABLE}").scalar()  # noqa: S608
    return version


# --- for readers ------------------------------------------------------------------------------------------------


@contextmanager
def open_to_read(places: Places, *, live: bool) -> Iterator[Connection]:
    """Give a connection that sees one moment of the log and changes nothing.

    Args:
        places: Where the log lies.
        live: The home is in use. In a copy, no file is made or touched, even by SQLite itself.

    Raises:
        LogUnreadable: The database can't be opened.
        AuditError: CFD-A29, a newer program wrote it.
        LogDamaged: The file isn't a database any more.
    """
    with _sqlite_copy(places, live=live) as path:
        if path is None:
            engine = _postgresql(places, Server.read(places.server), reads=True)
            begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        else:
            engine = _engine(lambda: _connect(*path))
            begin = "BEGIN"
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql(begin)
                if (found := _version(connection)) is not None and found > SCHEMA:
                    raise AuditError("CFD-A29", f"the log has shape {found}, this program knows {SCHEMA}")
                yield connection
        except DBAPIError as problem:
            said = f"the log in {places.epoch_folder} can't be read: {cause(problem)}"
            if is_malformed(problem):
                raise LogDamaged(said, code="CFD-A02", hint="keep the file as evidence") from None
            raise LogUnreadable(said) from None
        finally:
            engine.dispose()


@contextmanager
def _sqlite_copy(places: Places, *, live: bool) -> Iterator[tuple[Path, str] | None]:
    """Yield the SQLite file to open and how, or None where a server keeps the log."""
    if places.server.exists():
        yield None
    elif live:
        yield places.sqlite, "mode=ro"
    elif not places.write_ahead.exists() or places.write_ahead.stat().st_size == 0:
        yield places.sqlite, "immutable=1"
    elif places.sqlite.with_name(f"{places.sqlite.name}-shm").exists():
        # SQLite then keeps its index of the write-ahead log in memory and leaves all three files as they are.
        yield places.sqlite, "mode=ro&readonly_shm=1"
    else:
        import shutil
        import tempfile

        with tempfile.TemporaryDirectory(prefix="confide-audit-") as folder:
            for path in (places.sqlite, places.write_ahead):
                shutil.copyfile(path, Path(folder) / path.name)
            yield Path(folder) / places.sqlite.name, "mode=rw"


def cause(problem: Exception) -> str:
    """Return the first line of what the database said."""
    said = problem.orig if isinstance(problem, DBAPIError) and problem.orig is not None else problem
    return (str(said).strip().splitlines() or [type(said).__name__])[0][:200]


@contextmanager
def _reported(places: Places) -> Iterator[None]:
    """Turn what a database says at opening into the refusal that names the log."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as problem:
        if places.server.exists():
            raise LogUnreadable(
                f"the database of the log in {places.epoch_folder} can't be opened: {cause(problem)}",
                hint="start the server, or ask its administrator",
            ) from None
        said = f"{places.sqlite} can't be opened: {cause(problem)}"
        if is_malformed(problem):
            raise LogDamaged(said, code="CFD-A02", hint="keep the file as evidence") from None
        raise SettingsUnsafe(said) from None


def is_malformed(problem: Exception) -> bool:
    """Return whether SQLite said that the file's pages aren't those of a database."""
    return sqlite_code(problem) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def sqlite_code(problem: Exception) -> int | None:
    """Return SQLite's primary result code of an error, None where it isn't SQLite's."""
    said = problem.orig if isinstance(problem, DBAPIError) else problem
    code = getattr(said, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF
