"""Who holds a port of this machine, so that a person who finds it taken needn't search."""

import errno
import socket
from pathlib import Path
from typing import Final

from federation.edge.tables import visible
from federation.errors import ConfigurationWrong

_LISTENING: Final = "0A"
_PROC: Final = Path("/proc")
_FIRST_API_PORT: Final = 8443
_PORTS_TRIED: Final = 100


def split_address(listen: str) -> tuple[str, int]:
    """Return host and port of ``ADDRESS:PORT``, IPv6 in brackets.

    Raises:
        ConfigurationWrong: No port there.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigurationWrong("CFD-C04", f"{listen} is no address to listen on", hint="such as 0.0.0.0:9443")
    return host.strip("[]"), int(port)


def refuse_taken(listen: str, what: str) -> None:
    """Return if `listen` is free to listen on, also right after another process let go of it.

    Raises:
        ConfigurationWrong: It is taken, by whom if that can be found out, or isn't an address of this machine.
    """
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                text = f"{what}: port {port} is in use{_by(port)}"
            else:
                text = f"{what}: {listen} can't be listened on: {problem.strerror}"
            raise ConfigurationWrong("CFD-J13", text) from None


def free_place(*, not_port: int, proc: Path = _PROC) -> str:
    """Return where on the loopback of this machine an API may listen: at 8443, else at the next port that is free.

    Args:
        not_port: The port that sites will dial, which nobody listens on yet.
        proc: Where the kernel says who listens; nothing is tried out.
    """
    for port in range(_FIRST_API_PORT, _FIRST_API_PORT + _PORTS_TRIED):
        if port != not_port and not any(_listeners(proc / "net" / name, port) for name in ("tcp", "tcp6")):
            return f"127.0.0.1:{port}"
    return f"127.0.0.1:{_FIRST_API_PORT}"  # `serve` will name who holds it


def _by(port: int) -> str:
    holder = holder_of(port)
    return "" if holder is None else f" by process {holder[0]} ({holder[1]})"


def holder_of(port: int, *, proc: Path = _PROC) -> tuple[int, str] | None:
    """Return process id and command of a process that listens on `port`, where this account may see it."""
    inodes = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listeners(proc / "net" / name, port)}
    if not inodes:
        return None
    for process in proc.iterdir():
        if process.name.isdigit() and _holds(process, inodes):
            try:
                command = (process / "comm").read_text("utf-8", "replace").strip()
            except OSError:
                command = "unknown"
            return int(process.name), visible(command)
    return None


def _listeners(table: Path, port: int) -> list[str]:
    # proc_net_tcp: sl local_address rem_address st … uid timeout inode; numbers in hex.
    try:
        lines = table.read_text("ascii", "replace").splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if len(row) > 9 and row[3] == _LISTENING and int(row[1].split(":")[1], 16) == port]


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(str(entry.readlink()) in inodes for entry in (process / "fd").iterdir())
    except OSError:
        return False  # it ended, or is another account's
