"""What is personal, kept apart and erasable: pseudonyms, commitments, and the encrypted values behind them.

A leaf holds a pseudonym ``p1:`` (HMAC under a key of the person's own) or a commitment ``c1:`` (HMAC under fresh
salt); this store holds what they stand for, encrypted with AES-256-GCM under a key of the month that lies in a file
outside the database. Deleting a person's key ends what can be linked to the person; destroying a month's file also
ends what backups hold of that month. What pseudonyms and commitments are is `commitments`'s.
"""

import hmac
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit import durable, key_files
from audit.clock import Clock, microseconds
from audit.commitments import commitment_of, pseudonym_of
from audit.errors import AppendFailed, AuditError, EntryRefused, SettingsUnsafe

MAX_VALUE_BYTES: Final = 65_536
SWEEP_AFTER_US: Final = 3_600_000_000
_NONCE_BYTES: Final = 12
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS subject (
  pseudonym TEXT PRIMARY KEY, lookup BLOB NOT NULL UNIQUE, month TEXT NOT NULL,
  k_subject BLOB NOT NULL, name BLOB NOT NULL, mail BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS private_value (
  commitment TEXT PRIMARY KEY, field TEXT NOT NULL, month TEXT NOT NULL, created_us INTEGER NOT NULL,
  salt BLOB NOT NULL, value BLOB NOT NULL, subject TEXT, named INTEGER NOT NULL DEFAULT 0
) STRICT;
"""


def _exact_bytes(text: str) -> bytes:
    """Return `text` as UTF-8; a file name that isn't UTF-8 comes back as the bytes that it was on the disk."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


@contextmanager
def _disk_named() -> Iterator[None]:
    """Turn what SQLite says of a full, slow or broken disk into the error that says what wasn't written."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.ProgrammingError) as problem:  # the latter: closed already
        raise AppendFailed(f"the log's private store can't be written: {problem}") from problem


class PrivateStore:
    """The side store of one party. Safe for threads; several processes may share the file.

    Args:
        folder: The audit folder; the database is `private.db` there, the keys are in `keys/`.
        clock: Gives the month.
        random_bytes: Gives keys, salt and nonces.
    """

    def __init__(self, folder: Path, *, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._folder = folder
        self._clock = clock
        self._random = random_bytes
        self._lock = threading.Lock()
        path = folder / "private.db"
        if not path.exists():
            path.touch(mode=durable.PRIVATE_FILE)
        with _disk_named():
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute("PRAGMA secure_delete=ON")
            self._database.executescript(_TABLES)
        self._index_key = self._key("private-index")

    def _key(self, name: str) -> bytes:
        path = self._folder / "keys" / f"{name}.key"
        if not path.exists():
            durable.replace_file(path, self._random(32))
        key = key_files.read_private(path)
        if len(key) != 32:
            raise SettingsUnsafe(f"key file {path.name} doesn't hold 32 bytes")
        return key

    def _month(self) -> str:
        return self._clock.now().strftime("%Y-%m")

    def _seal(self, month: str, name: str, data: bytes) -> bytes:
        nonce = self._random(_NONCE_BYTES)
        return nonce + AESGCM(self._key(f"private-{month}")).encrypt(nonce, data, name.encode())

    def _open(self, month: str, name: str, sealed: bytes) -> bytes:
        try:
            return AESGCM(self._key(f"private-{month}")).decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode()
            )
        except InvalidTag:
            raise AuditError("CFD-A15", "a private value was altered, or its month's key is another") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _disk_named():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk makes SQLite roll back by itself
                    self._database.execute("ROLLBACK")
                raise

    def _lookup(self, login: str) -> bytes:
        return hmac.digest(self._index_key, login.encode(), "sha256")

    def find(self, login: str) -> str | None:
        """Return the pseudonym that `login` has, or None for a person without one."""
        with self._lock:
            row = self._database.execute(
                "SELECT pseudonym FROM subject WHERE lookup = ?", (self._lookup(login),)
            ).fetchone()
        return None if row is None else str(row[0])

    def pseudonym(self, login: str, *, mail: str = "") -> str:
        """Return the pseudonym of the person `login`, durable before it returns; made at first use."""
        lookup = self._lookup(login)
        with self._transaction() as database:
            row = database.execute("SELECT pseudonym FROM subject WHERE lookup = ?", (lookup,)).fetchone()
            if row is not None:
                return str(row[0])
            key = self._random(32)
            name = pseudonym_of(key, login)
            month = self._month()
            database.execute(
                "INSERT INTO subject (pseudonym, lookup, month, k_subject, name, mail) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    name,
                    lookup,
                    month,
                    self._seal(month, name, key),
                    self._seal(month, name, login.encode()),
                    self._seal(month, name, mail.encode()) if mail else None,
                ),
            )
        return name

    def name_of(self, pseudonym: str) -> str | None:
        """Return the login behind `pseudonym`, or None when it is unknown or was erased."""
        with self._lock:
            row = self._database.execute("SELECT month, name FROM subject WHERE pseudonym = ?", (pseudonym,)).fetchone()
        return None if row is None else self._open(row[0], pseudonym, row[1]).decode()

    def commit(self, field: str, value: bytes | str, *, subject: str | None = None) -> str:
        """Return the commitment to `value`, which is durable here before it returns.

        Args:
            field: The name under `private` in the event.
            value: At most 64 KiB, in bytes exactly as it came; a string is taken as UTF-8.
            subject: The pseudonym of the person whose value it is.

        Raises:
            EntryRefused: The value is too long.
        """
        data = _exact_bytes(value) if isinstance(value, str) else value
        if len(data) > MAX_VALUE_BYTES:
            raise EntryRefused(f"a private value of {len(data)} bytes, at most {MAX_VALUE_BYTES}")
        salt = self._random(32)
        commitment = commitment_of(salt, field, data)
        month = self._month()
        row = (
            commitment,
            field,
            month,
            microseconds(self._clock.now()),
            self._seal(month, commitment, salt),
            self._seal(month, commitment, data),
            subject,
        )
        with self._transaction() as database:
            database.execute(
                "INSERT INTO private_value (commitment, field, month, created_us, salt, value, subject)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        return commitment

    def value_of(self, commitment: str) -> bytes | None:
        """Return the value behind `commitment` after checking that it opens it, or None when there is none.

        Raises:
            AuditError: CFD-A15, the stored value isn't the one committed to.
        """
        opened = self.opening_of(commitment)
        return None if opened is None else opened[1]

    def opening_of(self, commitment: str) -> tuple[bytes, bytes] | None:
        """Return salt and value behind `commitment` after checking that they open it, or None when there are none.

        Raises:
            AuditError: CFD-A15, the stored value isn't the one committed to.
        """
        with self._lock:
            row = self._database.execute(
                "SELECT field, month, salt, value FROM private_value WHERE commitment = ?", (commitment,)
            ).fetchone()
        if row is None:
            return None
        field, month, sealed, value = row
        salt, opened = self._open(month, commitment, sealed), self._open(month, commitment, value)
        if not hmac.compare_digest(commitment_of(salt, field, opened), commitment):
            raise AuditError("CFD-A15", "a private value doesn't open its commitment")
        return salt, opened

    def erase(self, pseudonym: str) -> bool:
        """Delete a person's key, name and values, overwritten on the disk; return whether there was anything.

        From then on nothing here links the person to the pseudonym, or a value to its commitment. What backups hold of
        it ends with the months' key files.
        """
        with self._transaction() as database:
            gone = database.execute("DELETE FROM subject WHERE pseudonym = ?", (pseudonym,)).rowcount
            gone += database.execute("DELETE FROM private_value WHERE subject = ?", (pseudonym,)).rowcount
        with self._lock, _disk_named():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return gone > 0

    def sweep(self, named: Callable[[list[str]], set[str]]) -> int:
        """Remove values that no entry names and that are over an hour old; return how many.

        A value is durable before its entry, so a crash between the two leaves one that nothing points to. One that was
        found named is not asked for again.

        Args:
            named: Returns those of the commitments given that an entry holds.
        """
        before = microseconds(self._clock.now()) - SWEEP_AFTER_US
        with self._lock:
            rows = self._database.execute(
                "SELECT commitment FROM private_value WHERE created_us < ? AND named = 0", (before,)
            ).fetchall()
        kept = named([row[0] for row in rows])
        unnamed = [row for row in rows if row[0] not in kept]
        with self._transaction() as database:
            database.executemany("DELETE FROM private_value WHERE commitment = ?", unnamed)
            database.executemany("UPDATE private_value SET named = 1 WHERE commitment = ?", [(one,) for one in kept])
        return len(unnamed)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()
