"""What the audit log is measured against: a bare insert, a bare sync, and pymerkle.

pymerkle is under the GPL. It is no dependency of the project and is imported by no module of it: a child process runs
it from a temporary folder, into which this benchmark alone installs it.
"""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PYMERKLE: Final = ("pymerkle==7.0.0", "cachetools==7.2.1")

Row = tuple[bytes, bytes, bytes]
"""Leaf, leaf hash and event id, as the log's table of entries has them."""


class BareInserts:
    """A table of the same columns, in a database with the log's settings; nothing is signed, hashed or chained."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        for text in ("PRAGMA journal_mode=wal", "PRAGMA synchronous=2"):
            self._connection.execute(text).fetchall()
        self._connection.execute(
            "CREATE TABLE entry (idx INTEGER PRIMARY KEY, leaf BLOB NOT NULL, leaf_hash BLOB NOT NULL,"
            " event_id BLOB NOT NULL UNIQUE)"
        )
        self._next = 0

    def seconds(self, rows: Sequence[Row], *, at_once: int) -> float:
        """Return how long `rows` took, `at_once` of them in each transaction."""
        numbered = [(self._next + number, *row) for number, row in enumerate(rows)]
        self._next += len(rows)
        began = time.perf_counter()
        for start in range(0, len(rows), at_once):
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?)", numbered[start : start + at_once])
            self._connection.execute("COMMIT")
        return time.perf_counter() - began


class BareSyncs:
    """A file to which bytes are written and synced."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "bare").open("wb", buffering=0)

    def seconds(self, written: Sequence[bytes]) -> float:
        """Return how long it took to write each of these and wait for the disk."""
        began = time.perf_counter()
        for data in written:
            self._file.write(data)
            os.fdatasync(self._file.fileno())
        return time.perf_counter() - began


_CHILD: Final = """
import hashlib, json, os, sys, time
sys.path.insert(0, sys.argv[1])
from pymerkle import SqliteTree

folder = sys.argv[2]
single = SqliteTree(folder + "/single.db")
for line in sys.stdin:
    asked = json.loads(line)
    if "append" in asked:
        entries = [os.urandom(asked["bytes"]) for _ in range(asked["append"])]
        began = time.perf_counter()
        for entry in entries:
            single.append_entry(entry)
    elif "fill" in asked:
        with SqliteTree(folder + "/filled.db") as tree:
            began = time.perf_counter()
            tree.append_entries(os.urandom(asked["bytes"]) for _ in range(asked["fill"]))
    else:
        descriptor = os.open(folder + "/filled.db", os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        began = time.perf_counter()
        with SqliteTree(folder + "/filled.db") as tree:
            tree.prove_inclusion(asked["prove"] + 1)
    print(json.dumps(time.perf_counter() - began), flush=True)
"""


class Pymerkle:
    """pymerkle's tree in SQLite, in a process of its own.

    Raises:
        subprocess.CalledProcessError: It can't be installed.
    """

    def __init__(self, folder: Path) -> None:
        installed = folder / "pymerkle"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), *PYMERKLE],
            check=True,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(installed), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, **asked: Any) -> float:
        """Return how long it took to append, fill, or prove from a cold file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """End the process."""
        self._process.communicate()
