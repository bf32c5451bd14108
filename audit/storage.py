"""What the one writer does to a log's database: a batch in one transaction, and the projections behind it.

`commit` returns after the batch is on the disk; entries, grown tiles, writers and head change together or not at all.
A full disk fails the batch and heals. After an I/O error nobody knows what the disk holds, since a second sync may
succeed without having written anything: the store then takes nothing more, and its process must end. A connection to
a server that breaks leaves the outcome of a COMMIT unknown: `settle` finds out.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from audit import database, statements, tables, tiles
from audit.errors import AppendFailed, AuditError, LogUnreadable, SecondWriter
from audit.keeper import keeping
from audit.places import Places
from audit.projection import Projected
from audit.snapshot import Snapshot
from audit.statements import POSTGRESQL, SQLITE
from audit.stored import Head, WriterRow

T = TypeVar("T")

WAL_PAGES: Final = 1000
"""Pages in SQLite's write-ahead log from which on they are moved into its file."""
_PAGE_BYTES: Final = 4096
_RETRY_S: Final = 0.05
# Codes after which the file, or what the disk holds of it, isn't known; all others leave it as it was.
_UNKNOWN_DISK: Final = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}
)


class OutcomeUnknown(Exception):
    """The connection broke while a batch was being committed; `Store.settle` finds out whether it was."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction writes.

    Attributes:
        old_size: The size that the log must have.
        head: Its head afterwards.
        entries: Index, leaf, leaf hash and event id.
        tiles: Level, number and hashes of the tiles that changed, the partial one of level 0 left out.
        writers: The writers that appended.
        trail: Index and leaf of entries that judge others.
    """

    old_size: int
    head: Head
    entries: list[tuple[int, bytes, bytes, bytes]]
    tiles: list[tuple[int, int, bytes]]
    writers: list[WriterRow]
    trail: list[tuple[int, bytes]]


class Store:
    """The database of an opened log, for the one thread that writes.

    Args:
        connection: From `database.open_to_write`; closed by `close`.
        places: Where the log lies.
    """

    def __init__(self, connection: Connection, places: Places) -> None:
        self._places = places
        self._pages = 0
        self._broken = ""
        self._lost = False
        self._backend: tuple[int, Any] | None = None
        self._use(connection)

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._kind: str = connection.dialect.name
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._begin = "BEGIN IMMEDIATE" if self._kind == SQLITE else "BEGIN"
        if self._kind == SQLITE:
            self._errors: tuple[type[Exception], ...] = (sqlite3.Error,)
            # By ourselves, since SQLite would keep a failed sync of its file to itself and try it again.
            driver.execute("PRAGMA wal_autocheckpoint=0")
        else:
            import psycopg

            self._errors = (psycopg.Error,)
        self._backend = database.backend_of(connection)
        self._lost = False

    @property
    def broken(self) -> str:
        """Return why this process may append no more, or nothing."""
        return self._broken

    @property
    def snapshot(self) -> Snapshot:
        """Return what the writer itself sees."""
        return Snapshot(self._connection)

    def read(self, work: Callable[[Snapshot], T], *, timeout_s: float) -> T:
        """Return what `work` reads, once more from the start where the connection was lost meanwhile.

        Raises:
            AppendFailed: The server couldn't be reached in time.
            LogDamaged: The database can't be read.
        """
        try:
            return work(self.snapshot)
        except LogUnreadable:
            self._lost = True
            self._reconnect(until_s=time.monotonic() + timeout_s, now_s=time.monotonic)
            return work(self.snapshot)

    def find_ids(self, event_ids: list[bytes], *, timeout_s: float) -> dict[bytes, tuple[int, bytes]]:
        """Return index and leaf of the entries under some of `event_ids`, of which there are any, by id.

        Raises:
            AppendFailed: The server couldn't be reached in time.
            LogDamaged: The database can't be read.
        """
        asked = statements.filled_up(event_ids)
        text = statements.text_of(statements.entries_of_ids(len(asked)), self._kind)
        try:  # for each append: by the driver, which takes a third of the time
            found = self._driver.execute(text, asked).fetchall()
        except self._errors:
            return self.read(lambda log: log.find_ids(event_ids), timeout_s=timeout_s)
        return {bytes(event_id): (index, bytes(leaf)) for index, leaf, event_id in found}

    # --- batches ----------------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """Write `batch` and return once it is on the disk.

        Raises:
            AppendFailed: It isn't; a later batch may be, unless `broken` says why not.
            SecondWriter: The log has another size than this process gave it; nothing was written, and nothing will be.
            OutcomeUnknown: The connection broke; call `settle`.
        """
        with self._transaction() as cursor:
            self._write(cursor, batch)
        self._pages += 4 + sum(2 + len(row[1]) // _PAGE_BYTES for row in batch.entries)

    def _write(self, cursor: Any, batch: Batch) -> None:
        head = batch.head
        # In the transaction and conditional, so that it shows when somebody else appended.
        cursor.execute(
            statements.text_of(statements.MOVE_HEAD, self._kind),
            (head.size, head.root, head.t_us, head.running, batch.old_size),
        )
        if cursor.rowcount != 1:
            self._broken = f"the log doesn't end at {batch.old_size} entries any more"
            raise SecondWriter(f"another process appended to the log: {self._broken}")
        cursor.executemany(statements.text_of(statements.ADD_ENTRY, self._kind), batch.entries)
        for row in batch.writers:
            cursor.execute(
                statements.put(tables.writer.name, self._kind),
                (row.name, row.key_id, row.next_seq, row.last_hash, row.last_index),
            )
        if batch.tiles:
            cursor.executemany(statements.put(tables.tile.name, self._kind), batch.tiles)
        if batch.trail:
            cursor.executemany(statements.text_of(statements.ADD_TRAIL, self._kind), batch.trail)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        if self._broken:
            raise AppendFailed(f"the log takes nothing more in this process: {self._broken}")
        if self._lost:
            raise OutcomeUnknown
        committing = False
        try:
            # Closed here: a cursor that an error's traceback keeps would keep SQLite's file open beyond `close`.
            with contextlib.closing(self._driver.cursor()) as cursor:
                cursor.execute(self._begin)
                yield cursor
                committing = True
                cursor.execute("COMMIT")
        except self._errors as problem:
            self._take_back()
            self._judge(problem, committing=committing)
        except BaseException:
            self._take_back()
            raise

    def _take_back(self) -> None:
        # A full disk makes SQLite roll back by itself; a lost connection has nothing to be told.
        with contextlib.suppress(*self._errors):
            self._driver.execute("ROLLBACK")

    def _judge(self, problem: Exception, *, committing: bool) -> None:
        """Raise what an error of the driver means."""
        said = database.cause(problem)
        if self._kind == POSTGRESQL:
            if self._driver.closed or self._driver.broken:
                self._lost = True
                raise OutcomeUnknown from problem
        elif database.sqlite_code(problem) in _UNKNOWN_DISK or self._driver.in_transaction:
            self._broken = f"the disk failed: {said}"
            raise AppendFailed(self._broken, hint="repair the disk, then start again") from problem
        elif isinstance(problem, sqlite3.IntegrityError):
            self._broken = f"a row is there already: {said}"
            raise SecondWriter(f"another process appended to the log: {self._broken}") from problem
        doing = "committing to" if committing else "writing"
        raise AppendFailed(f"{doing} the log failed: {said}") from problem

    def settle(self, batch: Batch, *, timeout_s: float, now_s: Callable[[], float] = time.monotonic) -> bool:
        """Return whether `batch` is in the log, after its connection broke.

        The log's lock is taken anew first, so a COMMIT that is still on its way has ended by then.

        Raises:
            AppendFailed: The server couldn't be reached in time; the outcome stays unknown.
            SecondWriter: The log has become another one.
        """
        self._reconnect(until_s=now_s() + timeout_s, now_s=now_s)
        head = self.snapshot.head()
        if head is not None and (head.size, head.root) == (batch.head.size, batch.head.root):
            return True
        if head is None or head.size != batch.old_size:
            self._broken = f"the log doesn't end at {batch.old_size} entries any more"
            raise SecondWriter(f"another process appended to the log: {self._broken}")
        return False

    def _reconnect(self, *, until_s: float, now_s: Callable[[], float]) -> None:
        while True:
            with contextlib.suppress(DBAPIError, *self._errors):
                database.close(self._connection)
            try:
                self._use(database.open_to_write(self._places))
            except AuditError as error:
                if now_s() >= until_s:
                    raise AppendFailed(f"the log's database can't be reached: {error.message}") from None
                if isinstance(error, SecondWriter) and self._backend is not None:
                    with contextlib.suppress(DBAPIError):
                        database.end_backend(self._places, self._backend)
                time.sleep(_RETRY_S)
            else:
                return

    # --- what follows -----------------------------------------------------------------------------------------

    def project(self, projected: Projected, next_index: int) -> None:
        """Add rows to the projections and move their cursor to `next_index`.

        Raises:
            AppendFailed: Nothing was added.
            OutcomeUnknown: The connection broke.
        """
        with self._transaction() as cursor:
            for name, rows in (
                (tables.event.name, projected.rows),
                (tables.budget_last.name, projected.budgets),
                (tables.left_open.name, [(index,) for index in projected.opened]),
                (tables.commitment.name, [(value,) for value in projected.commitments]),
            ):
                if rows:
                    cursor.executemany(statements.put(name, self._kind), rows)
            if projected.ended:
                text = statements.text_of(statements.NOT_LEFT_OPEN, self._kind)
                cursor.executemany(text, [(index,) for index in projected.ended])
            cursor.execute(statements.text_of(statements.MOVE_CURSOR, self._kind), (next_index,))
        self._pages += 4 + 2 * len(projected.rows)

    def empty_leaf(self, index: int, leaf_hash: bytes) -> None:
        """Empty the leaf of an entry, and remove its row of the projection; overwritten on the disk, where that can be.

        Doing it again changes nothing.

        Raises:
            AppendFailed: It isn't done; opening the log does it.
            OutcomeUnknown: The connection broke.
        """
        sqlite = self._kind == SQLITE
        if sqlite:
            self._driver.execute("PRAGMA secure_delete=ON")
        with self._transaction() as cursor:
            text = statements.text_of(statements.EMPTY_LEAF, self._kind)
            with contextlib.nullcontext() if sqlite else keeping(cursor, "UPDATE"):
                cursor.execute(text, (b"", index, leaf_hash))
            cursor.execute(statements.text_of(statements.FORGET_ROW, self._kind), (index,))
        if sqlite:
            with contextlib.suppress(sqlite3.Error):  # a reader holds it: what was there goes with the next
                self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def prune(self, below: int, paths: dict[int, bytes]) -> None:
        """Remove the entries below an index, their tiles of level 0 and their rows; keep the trail's paths.

        Doing it again changes nothing.

        Raises:
            AppendFailed: Nothing was removed; opening the log does it.
            OutcomeUnknown: The connection broke.
        """
        sqlite = self._kind == SQLITE
        with self._transaction() as cursor:
            keep = statements.text_of(statements.KEEP_PATH, self._kind)
            for index, path in paths.items():
                cursor.execute(keep, (path, index))
            with contextlib.nullcontext() if sqlite else keeping(cursor, "DELETE"):
                cursor.execute(statements.text_of(statements.PRUNE_ENTRIES, self._kind), (below,))
            for statement in statements.PRUNE_ROWS:
                cursor.execute(statements.text_of(statement, self._kind), (below,))
            cursor.execute(statements.text_of(statements.PRUNE_TILES, self._kind), (below // tiles.HASHES_PER_TILE,))

    def forget_projections(self) -> None:
        """Empty the projections; they follow again from the first entry."""
        with self._transaction() as cursor:
            for table in tables.PROJECTIONS:
                cursor.execute(f"DELETE FROM {table.name}")  # noqa: S608 (a constant of this program)
            cursor.execute(statements.text_of(statements.MOVE_CURSOR, self._kind), (0,))

    def keep_checkpoint(self, size: int, note: bytes, *, quorum: bool) -> None:
        """Keep a checkpoint with its cosignatures; one with a quorum lets the smaller ones without go.

        Raises:
            AppendFailed: It isn't kept.
            OutcomeUnknown: The connection broke.
        """
        with self._transaction() as cursor:
            cursor.execute(statements.put(tables.checkpoint.name, self._kind), (size, note, quorum))
            if quorum:
                cursor.execute(statements.text_of(statements.DROP_SMALLER, self._kind), (size,))

    def keep_witnessed(
        self, rows: Sequence[tuple[str, int, bytes, bytes]], evidence: Sequence[tuple[str, str, bytes]]
    ) -> None:
        """Keep, in one transaction, what this party cosigned of other logs, and what it holds against them.

        Args:
            rows: Origin, size, root and note; each replaces what was kept of that log.
            evidence: Origin, kind and notes; added, and never removed.

        Raises:
            AppendFailed: Nothing is kept.
            OutcomeUnknown: The connection broke.
        """
        with self._transaction() as cursor:
            if rows:
                cursor.executemany(statements.put(tables.witnessed.name, self._kind), list(rows))
            if evidence:
                cursor.executemany(statements.text_of(statements.ADD_EVIDENCE, self._kind), list(evidence))

    def move_pages(self, *, at_once: bool = False) -> None:
        """Move what SQLite's write-ahead log holds into its file, where that is due.

        Raises:
            AppendFailed: The disk failed under it; the write-ahead log still holds everything.
        """
        if self._kind != SQLITE or self._broken or (self._pages < WAL_PAGES and not at_once):
            return
        self._pages = 0
        try:
            self._driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as problem:
            if database.sqlite_code(problem) in _UNKNOWN_DISK:
                self._judge(problem, committing=False)

    def close(self) -> None:
        """Let go of the database; a second call does nothing."""
        with contextlib.suppress(AppendFailed):
            self.move_pages(at_once=True)
        with contextlib.suppress(DBAPIError, *self._errors):
            database.close(self._connection)
