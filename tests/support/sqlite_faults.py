"""A disk that fails under SQLite when a test says so: its own file methods, with one of them exchanged.

The write-ahead log of a connection is an open file with a table of methods (sqlite3_io_methods). The table is copied
and the copy's entry for writing or syncing is a function of the test, which may call the real one.
"""

import _sqlite3
import ctypes
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FULL = 13  # SQLITE_FULL: no space left
SYNC_FAILED = 1034  # SQLITE_IOERR_FSYNC
_FILE, _WRITE_AHEAD = 7, 28  # SQLITE_FCNTL_FILE_POINTER, SQLITE_FCNTL_JOURNAL_POINTER
_METHODS = 18
_WRITE, _SYNC = 2, 4

_library = ctypes.CDLL(_sqlite3.__file__)
_write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Table(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("methods", ctypes.c_void_p * _METHODS))


class _File(ctypes.Structure):
    _fields_ = (("table", ctypes.c_void_p),)


def _open_file(connection: sqlite3.Connection, which: int) -> Any:
    # The first field of the connection object behind Python's own head is the handle that the library knows.
    handle = ctypes.c_void_p.from_address(id(connection) + object.__basicsize__)
    file = ctypes.POINTER(_File)()
    status = _library.sqlite3_file_control(handle, b"main", which, ctypes.byref(file))
    assert status == 0
    return file


@contextmanager
def _exchanged(connection: sqlite3.Connection, which: int, method: int, kind: Any, make: Any) -> Iterator[None]:
    file = _open_file(connection, which)
    real = file.contents.table
    copy = _Table.from_buffer_copy(_Table.from_address(real))
    called = kind(make(kind(copy.methods[method])))
    copy.methods[method] = ctypes.cast(called, ctypes.c_void_p).value
    file.contents.table = ctypes.addressof(copy)
    try:
        yield
    finally:
        file.contents.table = real


@contextmanager
def syncing(
    connection: sqlite3.Connection, sync: Callable[[], int | None], *, own_file: bool = False
) -> Iterator[None]:
    """Call `sync` instead of syncing the write-ahead log (or the file itself); None does what is asked, too."""

    def make(real: Any) -> Any:
        def replaced(file: int, flags: int) -> int:
            status = sync()
            return int(real(file, flags)) if status is None else status

        return replaced

    with _exchanged(connection, _FILE if own_file else _WRITE_AHEAD, _SYNC, _sync, make):
        yield


@contextmanager
def writing(connection: sqlite3.Connection, write: Callable[[int], int | None]) -> Iterator[None]:
    """Ask `write`, which is told the offset, before each write of the write-ahead log; None lets it happen."""

    def make(real: Any) -> Any:
        def replaced(file: int, data: int, length: int, offset: int) -> int:
            status = write(offset)
            return int(real(file, data, length, offset)) if status is None else status

        return replaced

    with _exchanged(connection, _WRITE_AHEAD, _WRITE, _write, make):
        yield
