"""Recording that a log was read, before anything of it is shown; and who reads."""

import os
import sys

from audit import edge, reading, rendering
from audit.errors import LogFrozen
from audit.events import Actor, AuditRead, Draft, Query, new_event_id
from audit.names import COORDINATOR, Origin
from audit.private import PrivateStore
from audit.reading import FoundLog
from audit.recording import record


def talk(text: str) -> None:
    """Say something to the person, beside the results."""
    sys.stderr.write(rendering.visible(text) + "\n")


def site_of(origin: str) -> str | None:
    """Return the site whose log this is, None for the coordinator's."""
    party = Origin.parse(origin).party
    return None if party == COORDINATOR else party


def reader(log: FoundLog) -> Actor:
    """Return the account that reads, by its pseudonym in this home."""
    store = PrivateStore(log.places.folder, clock=edge.SystemClock(), random_bytes=os.urandom)
    try:
        return Actor(kind="person", id=store.pseudonym(edge.account()), auth="local")
    finally:
        store.close()


def may_record(log: FoundLog) -> bool:
    """Return whether readings of `log` are recorded; a live home on a read-only disk is read like a copy."""
    if not log.live or log.audit_folder is None:
        return False
    if log.places.frozen.exists():
        talk("note: this reading is not recorded: the log is frozen (CFD-A26)")
        return False
    if not os.access(log.audit_folder, os.W_OK):
        talk("note: this reading is not recorded: the home can't be written")
        return False
    return True


def keep(log: FoundLog, draft: Draft) -> None:
    """Record a reading of a live home; a log that takes nothing is read like a copy."""
    try:
        record(log.places.folder, draft, clock=edge.SystemClock())
    except LogFrozen as frozen:
        talk(f"note: this reading is not recorded: {frozen.message} ({frozen.code})")


def read_entry(log: FoundLog, query: Query, matched: int, output: str) -> None:
    """Record that entries are about to be shown."""
    if not may_record(log):
        return
    draft = AuditRead(
        id=new_event_id(edge.SystemClock(), os.urandom),
        decision="allowed",
        actor=reader(log),
        site=site_of(reading.origin_of(log)),
        query=query,
        matched=matched,
        output="csv" if output == "csv" else "table" if output == "table" else "json",
    )
    keep(log, draft)
