"""The lock of a log that PostgreSQL keeps: an advisory lock that ends with the connection that took it.

The home's own lock (`home_lock`) says that no other process of this home writes. So whoever else holds the server's
lock is the writer of another home, and is refused, or a process of this home that was killed: its server process goes
on with what it was doing, a COMMIT on a slow disk, or a wait, until it notices. Such a one is ended and waited for:
what it was committing has happened or not when the lock is free. Connections of one home are known by their
`application_name`.
"""

import hashlib
import time
from typing import Final

from sqlalchemy import Connection

from audit import edge
from audit.errors import SecondWriter
from audit.places import Places

WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.05
_HOLDERS: Final = (
    "SELECT l.pid, a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND ((l.classid::bigint << 32) | l.objid::bigint) = %s"
)


def home_name(places: Places) -> str:
    """Return by what the server knows connections of this home: a hash of the machine and of the home's lock file."""
    found = places.lock.stat()
    mark = f"{edge.host()} {found.st_dev} {found.st_ino}"
    return f"confide-{hashlib.sha256(mark.encode()).hexdigest()[:32]}"


def hold_server_lock(connection: Connection, places: Places, schema: str) -> None:
    """Hold the log's lock for as long as this connection lives; the caller holds the home's own.

    Raises:
        SecondWriter: Another home's process writes the log, or one of this home, which was killed, doesn't end.
    """
    number = int.from_bytes(hashlib.sha256(f"confide {schema}".encode()).digest()[:8], "big", signed=True)
    name = home_name(places)
    connection.exec_driver_sql("SELECT set_config('application_name', %s, false)", (name,))
    until_s = time.monotonic() + WAIT_S
    while not connection.exec_driver_sql("SELECT pg_try_advisory_lock(%s)", (number,)).scalar():
        holders = connection.exec_driver_sql(_HOLDERS, (number,)).fetchall()
        if any(holder != name for _, holder in holders) or time.monotonic() > until_s:
            raise SecondWriter(f"another process writes the log in {schema} of this database")
        for pid, _ in holders:
            connection.exec_driver_sql("SELECT pg_terminate_backend(%s)", (pid,))
        time.sleep(_PAUSE_S)
