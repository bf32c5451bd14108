"""Recording that a log was read, before anything of it is shown; and who reads."""

import os
import sys
from typing import Final, Literal

from audit import edge, reading
from audit.access import COMPLIANCE, COORDINATING, Access, Grant
from audit.clock import microseconds
from audit.errors import LogFrozen, ReadRefused
from audit.events import Actor, AuditRead, Draft, Query, new_event_id
from audit.filters import Filters
from audit.names import COORDINATOR, Origin
from audit.private import PrivateStore
from audit.readers_file import read_readers
from audit.reading import FoundLog
from audit.recording import record
from audit.visible import visible

_OUTPUTS: Final[dict[str, Literal["table", "json", "csv", "page", "report"]]] = {
    "table": "table",
    "csv": "csv",
    "report": "report",
}


def talk(text: str) -> None:
    """Say something to the person, beside the results."""
    sys.stderr.write(visible(text) + "\n")


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


def admit(log: FoundLog, verb: str) -> Access:
    """Return what the account at this process may see of `log`, where it may do what `verb` says.

    A copy or a bundle is read without asking: its export was the record.

    Raises:
        ReadRefused: It may not; the refusal is recorded.
        SettingsUnsafe: Who may is not understood.
    """
    if not log.live or log.home is None:
        return Access(Grant(COMPLIANCE))
    readers = read_readers(log.home)
    if readers.grants is None:
        return Access(Grant(COMPLIANCE))
    grant, who = readers.of(edge.account()), reader(log)
    origin = reading.origin_of(log)  # empty where what is damaged is the very entry that says it
    party = Origin.parse(origin).party if origin else ""
    access = None if grant is None else Access(grant, who.id, party, _jobs_of(log, who.id, grant))
    if access is not None and access.may(verb, microseconds(edge.SystemClock().now())):
        return access
    if origin and may_record(log):
        refused = AuditRead(
            id=new_event_id(edge.SystemClock(), os.urandom),
            decision="refused",
            code="CFD-A27",
            cause=verb,
            actor=who,
            site=site_of(origin),
            query=Query(),
            matched=0,
            output="table",
        )
        keep(log, refused)
    raise ReadRefused(
        f"account {edge.account()} may not {verb} in this log", hint="the compliance officer names readers in the home"
    )


def _jobs_of(log: FoundLog, pseudonym: str, grant: Grant) -> frozenset[str]:
    """Return the jobs that this person launched, where the role is bounded by them."""
    if grant.role != COORDINATING:
        return frozenset()
    with log.checked() as checked:
        found = checked.matching(Filters(action="job.submitted", actor=pseudonym))
        return frozenset(str(row.event.get("job", "")) for row in found)


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
        output=_OUTPUTS.get(output, "json"),
    )
    keep(log, draft)
