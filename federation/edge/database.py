"""Open a database so that what was committed stays committed: SQLite for one machine, PostgreSQL for production.

SQLite runs in write-ahead mode with `synchronous=FULL`, its transactions are begun by us (the driver would begin them
late, and a read followed by a write would not be serialisable), writers wait for each other, and a file on a network
file system is refused, because its locks can't be trusted. PostgreSQL runs at SERIALIZABLE and its connections are
tried before use. On both, `transact` runs a whole transaction again when the database asks for that. No transaction
stays open while something is computed: hand in small functions. A database per file has one writing process at a
time beside short commands.
"""

import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from federation.edge.files import FILE_MODE, cannot_write, make_folder, read_secret
from federation.errors import ConfideError, ConfigurationWrong

T = TypeVar("T")

BUSY_TIMEOUT_S: Final = 30
MAX_ATTEMPTS: Final = 20
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "lustre",
        "gfs2",
        "ocfs2",
        "beegfs",
        "gpfs",
        "9p",
        "glusterfs",
    }
)
# FUSE is how most others come (sshfs, s3fs, glusterfs); these two are local disks.
LOCAL_FUSE: Final = frozenset({"fuseblk", "fuse.fuse-overlayfs"})
# The second: its shared memory, a file beside the database, can't grow. PostgreSQL says 53100, disk_full.
_SQLITE_IS_FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
_SQLITE_IS_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_READ_ONLY: Final = "confide_read_only"
_MOUNTS: Final = Path("/proc/self/mountinfo")


def sqlite_url(path: Path) -> str:
    """Return the address of the SQLite database in the file `path`."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def file_system_of(path: Path, *, mounts: Path = _MOUNTS) -> str:
    """Return the kind of file system that holds `path`, or an empty text where the system doesn't tell."""
    place = path.resolve()
    try:
        lines = mounts.read_text("utf-8", "replace").split("\n")
    except OSError:
        return ""
    best, kind = Path("/"), ""
    for fields in (line.split(" ") for line in lines):
        if "-" not in fields[6:]:
            continue
        # Blanks in a mount point are written in octal (proc_pid_mountinfo(5)).
        mount = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]))
        if place.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, fields[fields.index("-", 6) + 1]
    return kind


def refuse_network_file_system(path: Path, *, mounts: Path = _MOUNTS) -> None:
    """Refuse a database file whose locks another machine would have to keep.

    Raises:
        ConfigurationWrong: `path` lies on NFS, SMB, FUSE or the like.
    """
    kind = file_system_of(path, mounts=mounts)
    if kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse") and kind not in LOCAL_FUSE):
        raise ConfigurationWrong(
            "CFD-C06",
            f"{path} lies on a network file system ({kind}), where SQLite's locks can't be trusted",
            hint="move the home to a local disk, use PostgreSQL, or set allow_network_filesystem: true",
        )


def open_engine(
    url: str,
    *,
    password_file: Path | None = None,
    busy_timeout_s: int = BUSY_TIMEOUT_S,
    allow_network_filesystem: bool = False,
) -> Engine:
    """Return an engine for `url`, its settings checked on a first connection.

    Args:
        url: ``sqlite:////path/to/file`` or ``postgresql+psycopg://user@host/database``; a password in it is refused.
        password_file: File (0600) with PostgreSQL's password.
        busy_timeout_s: How long a writer waits for another one.
        allow_network_filesystem: True takes the risk of a SQLite file on a network file system.

    Raises:
        ConfigurationWrong: Not an address, a password in it, a network file system, no connection, or a setting that
            the database didn't take.
    """
    try:
        address = make_url(url)
    except ArgumentError:
        raise ConfigurationWrong("CFD-C07", "the address of the database can't be read") from None
    if address.password is not None:
        raise ConfigurationWrong(
            "CFD-C07",
            "the address of the database holds a password",
            hint="put the password into a file with mode 0600, and name the file as password_file",
        )
    backend = address.get_backend_name()
    if backend == "sqlite":
        return _open_sqlite(address, busy_timeout_s, allow_network_filesystem)
    if backend == "postgresql":
        return _open_postgresql(address, password_file, busy_timeout_s)
    raise ConfigurationWrong("CFD-C07", f"a database of the kind {backend} is not supported: sqlite, postgresql")


def _open_sqlite(address: URL, busy_timeout_s: int, allow_network_filesystem: bool) -> Engine:
    if not address.database or address.database == ":memory:":
        raise ConfigurationWrong("CFD-C07", "a database in memory would forget everything; name a file")
    path = Path(address.database)
    make_folder(path.parent)
    if not allow_network_filesystem:
        refuse_network_file_system(path)
    try:
        # Made here, since SQLite would make it with the permissions of the umask; its WAL file takes over the mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    except OSError as problem:
        raise cannot_write(path, problem) from problem
    engine = create_engine(
        address, connect_args={"timeout": busy_timeout_s, "check_same_thread": False, "isolation_level": None}
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    event.listen(engine, "handle_error", _name_damage)
    return _checked(engine)


def _name_damage(context: ExceptionContext) -> None:
    """Raise, in place of SQLite's own error, that a file is damaged or is no database."""
    code = getattr(context.original_exception, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _SQLITE_IS_DAMAGED:
        file = context.engine.url.database if context.engine is not None else None
        raise ConfigurationWrong("CFD-G09", f"{file}: {context.original_exception}") from context.original_exception


def _set_up_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    cursor = connection.cursor()
    journal_mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    cursor.execute("PRAGMA synchronous=FULL")
    synchronous = cursor.execute("PRAGMA synchronous").fetchone()[0]
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA fullfsync=ON")
    cursor.execute("PRAGMA trusted_schema=OFF")
    cursor.close()
    if (journal_mode, synchronous) != ("wal", 2):
        raise ConfigurationWrong(
            "CFD-C07", f"SQLite runs with journal_mode {journal_mode}, synchronous {synchronous}; needed are wal, 2"
        )


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _open_postgresql(address: URL, password_file: Path | None, busy_timeout_s: int) -> Engine:
    arguments: dict[str, Any] = {"connect_timeout": 10, "options": f"-c lock_timeout={busy_timeout_s * 1000}"}
    if password_file is not None:
        arguments["password"] = read_secret(password_file).decode("utf-8").strip("\ufeff \t\r\n")
    engine = create_engine(address, connect_args=arguments, isolation_level="SERIALIZABLE", pool_pre_ping=True)
    event.listen(engine, "connect", _set_up_postgresql)
    return _checked(engine)


def _set_up_postgresql(connection: Any, record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
        cursor.execute("SELECT current_setting('fsync'), current_setting('full_page_writes')")
        found = cursor.fetchone()
    connection.commit()
    if found != ("on", "on"):
        raise ConfigurationWrong(
            "CFD-C07", f"PostgreSQL runs with fsync, full_page_writes = {found}, needed are on, on"
        )


def _checked(engine: Engine) -> Engine:
    try:
        with read(engine):
            return engine
    except DBAPIError as problem:
        engine.dispose()
        if is_disk_full(problem):
            raise disk_full(engine) from problem
        raise ConfigurationWrong(
            "CFD-C07", f"the database {engine.url.render_as_string()} can't be opened: {_cause(problem)}"
        ) from problem


def is_disk_full(problem: BaseException | None) -> bool:
    """Return whether `problem`, or what caused it, is that a disk has no space left."""
    while problem is not None:
        said = problem.orig if isinstance(problem, DBAPIError) else problem
        if isinstance(said, OSError) and said.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if getattr(said, "sqlite_errorcode", None) in _SQLITE_IS_FULL or getattr(said, "sqlstate", None) == "53100":
            return True
        problem = problem.__cause__
    return False


def disk_full(engine: Engine) -> ConfideError:
    """Return the error that says which database's disk is full."""
    if engine.url.get_backend_name() == "sqlite":
        return cannot_write(Path(engine.url.database or ""), OSError(errno.ENOSPC, "full"))
    return ConfigurationWrong("CFD-G08", f"the disk of the database {engine.url.render_as_string()} is full")


def _cause(problem: DBAPIError) -> str:
    return (str(problem.orig).strip().splitlines() or [type(problem.orig).__name__])[0][:200]


@contextmanager
def read(engine: Engine) -> Iterator[Connection]:
    """Give a connection that sees one moment of the database and doesn't hold up a writer."""
    with engine.connect() as connection:
        quiet = connection.execution_options(**{_READ_ONLY: True})
        with quiet.begin():
            yield quiet


def transact(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Run `work` in one transaction, durable on return; run it again, from the start, when the database asks.

    `work` may run several times, so it does nothing but read and write through its connection. When the connection is
    lost at COMMIT, nobody knows whether it happened; that error is raised, and the caller looks its key up.

    Raises:
        DBAPIError: What the database said at the last attempt; nothing was written, but see above.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        connection = engine.connect()
        try:
            with connection, connection.begin() as transaction:
                result = work(connection)
                transaction.commit()
                return result
        except DBAPIError as problem:
            if attempt == MAX_ATTEMPTS or not _asks_for_another(problem):
                raise
    raise OperationalError("transact", {}, RuntimeError("no attempt was made"))


def _asks_for_another(problem: DBAPIError) -> bool:
    # 40001: serialisation failure; 40P01: deadlock found. Both say that the whole transaction was undone.
    return getattr(problem.orig, "sqlstate", None) in ("40001", "40P01")
