"""How other local processes of the same account hand drafts to the process that holds the log.

A Unix socket in the audit folder, mode 0600. A request and its answer are each four bytes of length (big-endian)
and canonical JSON: a draft, then ``{"origin", "index", "leaf"}`` or ``{"code", "message"}``.
"""

import contextlib
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from audit import canonical, durable
from audit.canonical import Event
from audit.errors import AppendFailed, AuditError, EntryRefused
from audit.places import SOCKET
from audit.receipt import Receipt

TIMEOUT_S: Final = 30.0
_LENGTH: Final = struct.Struct(">I")
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: process, user, group


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a path of the socket that fits the 108 bytes of a socket address, however deep `folder` lies."""
    if not Path("/proc/self/fd").exists():
        yield str(folder / SOCKET)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise AppendFailed("the other process closed the connection")
        data += piece
    return data


def _receive_value(connection: socket.socket) -> Event:
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if length > canonical.MAX_BYTES:
        raise EntryRefused(f"a message of {length} bytes, at most {canonical.MAX_BYTES}")
    return canonical.decode(_receive(connection, length))


def _send_value(connection: socket.socket, value: Event) -> None:
    data = canonical.encode(value)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _is_own_account(connection: socket.socket) -> bool:
    """Return whether the process at the other end runs under this account, or as root."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True  # the socket's mode has let in its owner only
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return user in (os.getuid(), 0)


def _answer(connection: socket.socket, append: Callable[[Event], Receipt]) -> None:
    """Take one draft from `connection` and answer it; a connection that breaks has nothing to be told."""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(TIMEOUT_S)
        if not _is_own_account(connection):
            return
        try:
            receipt = append(_receive_value(connection))
            answer = {"origin": receipt.origin, "index": receipt.index, "leaf": receipt.leaf.decode()}
        except AuditError as error:
            answer = {"code": error.code, "message": error.message}
        _send_value(connection, answer)


@contextlib.contextmanager
def serve(folder: Path, append: Callable[[Event], Receipt]) -> Iterator[None]:
    """Take drafts on the socket in `folder` until the block ends; the caller holds the log's lock."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (folder / SOCKET).unlink(missing_ok=True)  # of a process that ended without removing it: we hold the lock
        with _short_path(folder) as path:
            listener.bind(path)  # the folder is the owner's alone, so nobody else connects before the next line
        (folder / SOCKET).chmod(durable.PRIVATE_FILE)
        listener.listen()
        # accept() doesn't return when another thread closes the socket, so it looks up twice a second.
        listener.settimeout(0.5)
        ended = threading.Event()
        thread = threading.Thread(target=_accept, args=(listener, append, ended), name="audit-socket", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            (folder / SOCKET).unlink(missing_ok=True)
    finally:
        listener.close()


def _accept(listener: socket.socket, append: Callable[[Event], Receipt], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        threading.Thread(target=_answer, args=(connection, append), name="audit-draft", daemon=True).start()


def hand_over(folder: Path, draft: Event) -> tuple[int, bytes] | None:
    """Return index and leaf of `draft` after the process that holds the log has appended it; None if none listens.

    Raises:
        AppendFailed: That process couldn't append it, or didn't answer.
        EntryRefused: It didn't take the draft.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        connection.settimeout(TIMEOUT_S)
        try:
            with _short_path(folder) as path:
                connection.connect(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
                return None
            raise AppendFailed(f"the process that holds the log can't be reached: {error.strerror}") from None
        try:
            _send_value(connection, draft)
            answer = _receive_value(connection)
        except OSError as error:
            raise AppendFailed(f"the process that holds the log didn't answer: {error}") from None
    if "code" in answer:
        refused = EntryRefused if answer["code"] == "CFD-A09" else AppendFailed
        raise refused(str(answer["message"]))
    return answer["index"], answer["leaf"].encode()
