"""A real PostgreSQL cluster in a temporary folder, run by another account when we are root.

It listens on a Unix socket in that folder and nowhere else, so that no port can be taken and no test needs the network.
"""

import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

ROOTS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs, or None where they are not installed."""
    found = shutil.which("initdb")
    return Path(found).parent if found else next((root for root in ROOTS if (root / "initdb").exists()), None)


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _as_other(account: str | None, command: list[str]) -> list[str]:
    if account is None:
        return command
    entry = pwd.getpwnam(account)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", *command]


def _wait_until_it_answers(folder: Path, user: str) -> None:
    for _ in range(300):
        try:
            psycopg.connect(host=str(folder), user=user, dbname="postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("PostgreSQL did not start")


@contextmanager
def cluster() -> Iterator[str]:
    """Yield the SQLAlchemy URL of a fresh database; the cluster and its files are gone afterwards."""
    binaries = programs()
    if binaries is None:
        raise RuntimeError("PostgreSQL's server programs are not installed: apt install postgresql")
    account = "postgres" if os.getuid() == 0 else None
    user = account or getpass.getuser()
    folder = Path(tempfile.mkdtemp(prefix="confide-postgres-"))
    if account:
        shutil.chown(folder, account, account)
    data = folder / "data"
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(folder)}
    initdb = [str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-N", "-U", user, "--encoding=UTF8"]
    subprocess.run(_as_other(account, initdb), check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment)
    arguments = ["-D", str(data), "-k", str(folder), "-h", ""]
    server = subprocess.Popen(
        _as_other(account, [str(binaries / "postgres"), *arguments]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=environment,
    )
    try:
        _wait_until_it_answers(folder, user)
        yield f"postgresql+psycopg://{user}@/postgres?host={folder}"
    finally:
        server.send_signal(signal.SIGQUIT)  # at once, without a checkpoint: its files are thrown away
        server.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)
