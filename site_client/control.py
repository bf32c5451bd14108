"""The operator's commands to a running daemon: one request and one answer over a socket in the home, 0600.

Who asks is what the kernel says of the other end (its account), never what the request claims. The daemon's loop
answers between two events, so a command sees one moment of it. Only this account reaches the socket at all.
"""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from federation.codes import CODES
from federation.errors import CheckFailed, ConfideError, TimedOut, Unreachable

SOCKET_NAME: Final = "control.sock"
MAX_REQUEST_BYTES: Final = 64 << 10
MAX_ANSWER_BYTES: Final = 16 << 20
_UCRED: Final = struct.Struct("3i")


class Request(BaseModel):
    """What an operator asks of the daemon."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    verb: Literal["status", "pause", "resume", "drain", "abort", "approve", "deny", "reload"]
    subject: Annotated[str, Field(max_length=128)] = ""
    reason: Annotated[str, Field(max_length=1000)] = ""


@dataclass(slots=True)
class Asked:
    """A request in the daemon's queue; the loop calls `answer` or `refuse` once."""

    request: Request
    account: int
    _done: threading.Event = field(default_factory=threading.Event)
    _answer: dict[str, Any] = field(default_factory=dict)

    def answer(self, **values: Any) -> None:
        """Answer the operator."""
        self._answer = {"ok": True, **values}
        self._done.set()

    def refuse(self, problem: ConfideError) -> None:
        """Answer with an error, printed by the command as its own."""
        self._answer = {
            "ok": False,
            "code": problem.code,
            "message": problem.message,
            "hint": problem.hint,
            "reference": problem.reference,
        }
        self._done.set()

    def wait(self, seconds: float) -> dict[str, Any]:
        """Return the answer once there is one, or an error after `seconds`."""
        if not self._done.wait(seconds):
            self.refuse(TimedOut("CFD-R76", "the daemon is busy and didn't answer in time"))
        return self._answer


class ControlSocket:
    """The daemon's end: a thread that turns connections into `Asked` events.

    Args:
        home: Where the socket is made; a socket that a dead daemon left is replaced (the home's lock is held).
        post: Puts an event into the daemon's queue.
        answer_timeout_s: How long an operator waits for the loop.
    """

    def __init__(self, home: Path, post: Callable[[Asked], None], *, answer_timeout_s: float = 60.0) -> None:
        self._path = home / SOCKET_NAME
        self._post = post
        self._answer_timeout_s = answer_timeout_s
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(self._path) as short:
            before = os.umask(0o177)
            try:
                self._socket.bind(short)
            finally:
                os.umask(before)
        self._socket.listen(16)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="control", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10.0)
            _, account, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            try:
                request = Request.model_validate_json(_read_line(connection, MAX_REQUEST_BYTES))
            except (ValidationError, ValueError):
                return
            asked = Asked(request, account)
            self._post(asked)
            connection.settimeout(None)
            connection.sendall(json.dumps(asked.wait(self._answer_timeout_s)).encode() + b"\n")


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    # A socket's address holds at most 107 bytes (unix(7)); a home may lie deeper than that.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _read_line(connection: socket.socket, limit_bytes: int) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = connection.recv(65_536)
        if not piece or len(data) + len(piece) > limit_bytes:
            raise ValueError("not one line")
        data += piece
    return bytes(data)


@contextlib.contextmanager
def _connected(home: Path, seconds: float) -> Iterator[socket.socket]:
    path = home / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            with _short(path) as short:
                connection.connect(short)
        except OSError:
            raise Unreachable("CFD-R72", f"no daemon runs on {home}") from None
        yield connection


def ask(home: Path, request: Request, *, timeout_s: float = 90.0) -> dict[str, Any]:
    """Return the running daemon's answer to `request`.

    Raises:
        Unreachable: CFD-R72, no daemon runs on this home.
        ConfideError: What the daemon answered.
    """
    with _connected(home, timeout_s) as connection:
        try:
            connection.sendall(request.model_dump_json().encode() + b"\n")
            answer: dict[str, Any] = json.loads(_read_line(connection, MAX_ANSWER_BYTES))
        except (OSError, ValueError):
            raise Unreachable("CFD-R72", f"the daemon on {home} ended before it answered") from None
    if not answer.pop("ok"):
        code = answer["code"] if answer["code"] in CODES else "CFD-G01"
        raise CheckFailed(code, answer["message"], hint=answer["hint"], reference=answer["reference"])
    return answer
