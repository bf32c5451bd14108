"""A simulation's process: how it is started and heard, what it may see of the machine, and that nothing of it stays.

The simulation engine sets globals of its process, may end it, and starts a dozen processes and servers of its own
(Ray), which take orders from whoever reaches them. So:

- it runs in a process of its own, in a session of its own, with an environment that is built here: telemetry, update
  check and usage reports off, no credentials, one thread for each numerical library. With usage reports off, Ray would
  still ask the clouds' metadata services where it runs, unless a file in its home says what it runs on: an empty one;
- where the kernel allows it, that process first takes a network of its own that holds loopback only (`go_alone`):
  nobody reaches Ray, and Ray reaches nobody. Elsewhere Ray's servers are open to the machine's network; in both cases
  they take orders only with a token that lives as long as the simulation;
- every process that descends from it is known by its session, or by a mark in its environment. When the simulation is
  over, all of them are waited for, then told to end, then killed, each by its process id.
"""

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from coordinator.simulation import MAX_LINE_BYTES, Broken, Happened, Line, Order, Result, Up, decode, encode
from federation.edge.clock import Clock
from federation.edge.files import write_whole
from federation.errors import OutOfOrder

MODULE: Final = "confide_simulation"
MARK: Final = "CONFIDE_SIMULATION"
RAY_CLUSTER_FILE: Final = "ray_bootstrap_config.yaml"
PATIENCE_S: Final = 20.0
"""How long the engine may take to end by itself once the result is there."""
TERM_S: Final = 3.0
KILL_S: Final = 10.0
MAX_ENGINE_FOLDER: Final = 40
"""Longest path of the engine's folder: its sockets' paths are 66 characters longer, and 107 are possible (unix(7))."""
_POLL_S: Final = 0.1
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
_PROCESSES: Final = Path("/proc")
_CLONE_NEWUSER: Final = 0x1000_0000
_CLONE_NEWNET: Final = 0x4000_0000
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


# --- the parent's end -----------------------------------------------------------------------------------------


def short_folder() -> Path:
    """Return a new private folder whose path is short enough for the engine's sockets.

    Raises:
        OutOfOrder: There is no such place on this machine.
    """
    for place in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 (a private folder in it, made with mode 0700)
        if len(place) + len("/confide-12345678") <= MAX_ENGINE_FOLDER and os.access(place, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="confide-", dir=place))
    raise OutOfOrder("CFD-J12", "no folder for temporary files has a path short enough for the simulation engine")


def environment(variables: Mapping[str, str], *, folder: Path, mark: str) -> dict[str, str]:
    """Return the environment of a simulation.

    Args:
        variables: This process's environment.
        folder: The simulation's own folder; homes and caches of libraries go there.
        mark: Tells this simulation's processes from all others.
    """
    kept = {name: variables[name] for name in _PASSED_ON if name in variables}
    return {
        **kept,
        MARK: mark,
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder),
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


class SimulationProcess:
    """A running simulation; use it in a `with` block, which nothing of it outlives.

    Args:
        order: What to simulate.
        variables: This process's environment.
        log: File for what its libraries say, 0600.
        clock: The time.
    """

    def __init__(self, order: Order, *, variables: Mapping[str, str], log: Path, clock: Clock) -> None:
        self._clock = clock
        self.mark: Final = secrets.token_hex(16)
        write_whole(Path(order.folder) / RAY_CLUSTER_FILE, b"{}\n")
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # -P: the working folder is never searched for modules.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                env=environment(variables, folder=Path(order.folder), mark=self.mark),
                cwd=order.folder,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(encode(order))
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def lines(self) -> Iterator[Up | Happened | Result | Broken]:
        """Yield what the simulation says, until it has said how it ended.

        Raises:
            OutOfOrder: CFD-J12, it ended without a word, or said something that isn't understood.
        """
        pipe = self._process.stdout
        while pipe is not None and (data := pipe.readline(MAX_LINE_BYTES)):
            line = decode(data)
            yield line
            if isinstance(line, Result | Broken):
                return
        status = self._process.wait()
        raise OutOfOrder("CFD-J12", f"the simulation's process ended without a result (status {status})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(patience_s=PATIENCE_S if kind is None else 0.0)

    def end(self, *, patience_s: float) -> None:
        """Wait for every process of the simulation, and end those that don't end by themselves.

        Args:
            patience_s: How long they may take; then the pipe is closed, which ends the first of them.

        Raises:
            OutOfOrder: CFD-J12, a process can't be killed; its id is named.
        """
        left = self._wait_until_gone(patience_s)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            if not left:
                break
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            left = self._wait_until_gone(wait_s)
        if self._process.stdout is not None:
            self._process.stdout.close()
        if left:
            raise OutOfOrder("CFD-J12", f"processes of the simulation can't be ended: {', '.join(map(str, left))}")

    def _wait_until_gone(self, wait_s: float) -> list[int]:
        until_s = self._clock.monotonic_s() + wait_s
        while left := self.processes():
            if self._clock.monotonic_s() >= until_s:
                break
            self._clock.sleep(_POLL_S)
        return left

    def processes(self) -> list[int]:
        """Return the ids of every process of this simulation that still runs."""
        found = set(processes_of(self._process.pid, self.mark))
        if self._process.poll() is None:
            found.add(self._process.pid)
        return sorted(found)


def processes_of(session: int, mark: str) -> list[int]:
    """Return the ids of this account's running processes of a session, or with a mark in their environment.

    A session's number isn't given to another while a process of it runs. A process that changes its title may
    overwrite its environment, and one that leaves the session keeps the mark. Nothing where the system doesn't tell.

    Args:
        session: Its number, the id of the process that began it.
        mark: Empty looks for the session alone.
    """
    wanted = f"{MARK}={mark}".encode() if mark else b""
    found = []
    for folder in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            # proc_pid_stat(5): the name in brackets may hold anything; after it state, parent, group, session.
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            is_ours = int(fields[3]) == session or bool(
                wanted and wanted in (folder / "environ").read_bytes().split(b"\0")
            )
            if is_ours and fields[0] not in (b"Z", b"X"):
                found.append(int(folder.name))
    return found


# --- the simulation's own end ---------------------------------------------------------------------------------


class Voice:
    """The simulation's end of its pipes: the order in, lines out; what libraries print goes to the log.

    When the pipe in closes, whoever started the simulation is gone or done with it: the process ends at once, after
    every other process of its session, so that none outlives the one that would have ended it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        sys.stdout.flush()
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._in = os.fdopen(os.dup(0), "rb")
        self._lock = threading.Lock()
        self._parent = os.getppid()

    def order(self) -> bytes:
        """Return the order."""
        return self._in.readline(MAX_LINE_BYTES)

    def end_with_parent(self, folders: Sequence[str]) -> None:
        """From now on, end when the pipe closes. Starts a thread, so it comes after `go_alone`.

        Args:
            folders: To be removed where whoever made them is dead.
        """
        threading.Thread(target=self._hear, args=(folders,), name="parent", daemon=True).start()

    def say(self, line: Line) -> None:
        """Write one line; from any thread."""
        with self._lock:
            view = memoryview(encode(line))
            while view:
                view = view[os.write(self._out, view) :]

    def _hear(self, folders: Sequence[str]) -> None:
        while self._in.read(1):
            pass
        own = os.getpid()
        while others := [process for process in processes_of(own, "") if process != own]:
            for process in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self._clock.sleep(_POLL_S)
        if os.getppid() != self._parent:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def go_alone() -> bool:
    """Leave the machine's network for one of this process's own with loopback only; return whether that was possible.

    Works on Linux where an account may make user namespaces, in a process without other threads; `unshare(2)`. Every
    process started from here on is inside. A kernel may allow the beginning and not the end, so a child tries first.
    """
    child = os.fork()
    if child == 0:
        try:
            _enter_own_network()
        except BaseException:  # noqa: BLE001 (a forked child ends here, whatever it met)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        return False
    _enter_own_network()
    return True


def _enter_own_network() -> None:
    user, group = os.getuid(), os.getgid()
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        (_PROCESSES / "self" / name).write_text(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0)))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
