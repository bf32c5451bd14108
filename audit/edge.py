"""Where `audit` meets the machine: clock, environment, accounts, file systems. The one module that asks for them."""

import os
import pwd
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre"})

_NO_LOGIN: Final = (1 << 32) - 1


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        return datetime.now(UTC)  # noqa: TID251 (the edge that the ban points to)

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps."""
        return time.monotonic()


def environment(name: str) -> str:
    """Return an environment variable, empty where it isn't set."""
    return os.environ.get(name, "")  # noqa: TID251 (the edge that the ban points to)


def account() -> str:
    """Return the name of the account of the person at this process.

    Homes belong to a service's account, under which several people act through sudo: the kernel remembers who logged
    in, and sudo says who called it. Whoever is root can say either.
    """
    number = _login_uid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid-{number}"


def _login_uid() -> int:
    try:
        number = int(Path("/proc/self/loginuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        number = _NO_LOGIN
    if number not in (_NO_LOGIN, 0):
        return number
    called = os.environ.get("SUDO_UID", "")  # noqa: TID251 (the edge that the ban points to)
    return int(called) if called.isascii() and called.isdigit() and len(called) < 10 else os.getuid()


def host() -> str:
    """Return this machine's name, by which a copied home is told from the original."""
    return os.uname().nodename


def clock_is_synchronised() -> bool:
    """Return whether the system's time service says that the clock is synchronised."""
    return Path("/run/systemd/timesync/synchronized").exists()


def software_version() -> str:
    """Return the version of the installed distribution, or `source` when run from a checkout."""
    try:
        return metadata.version("confide")
    except metadata.PackageNotFoundError:
        return "source"


def network_file_system(path: Path, mounts: str | None = None) -> str:
    """Return the type of the network file system that `path` lies on, empty for a local one.

    Locks and syncs on a network or user-space file system don't promise what the log needs.

    Args:
        path: An existing folder.
        mounts: The text of `/proc/mounts`, for tests; where the system has none, every place counts as local.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
    wanted = path.resolve()
    best, kind = -1, ""
    for line in mounts.split("\n"):
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if wanted.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse.") else ""
