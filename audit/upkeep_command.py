"""`confide audit rebuild` and `new-epoch`: what keeps a log in use, or begins the next."""

import argparse
import os
from pathlib import Path

from audit import edge, two_people
from audit.epochs import NEW_EPOCH, LeftEpoch, begin_next
from audit.errors import LogUnreadable
from audit.frame import hash_text
from audit.log import AuditLog
from audit.names import Origin
from audit.private import PrivateStore
from audit.read_record import admit, talk
from audit.reading import FoundLog
from audit.settings import LogSettings
from audit.two_people import Approved
from audit.visible import json_text


def refuse_a_folder(log: FoundLog) -> None:
    """Refuse a log that doesn't lie in a home with its keys."""
    if log.audit_folder is None or not log.is_home:
        raise LogUnreadable("a copy is only read", hint="run this on the machine whose home it is")


def rebuild(given: argparse.Namespace, log: FoundLog) -> int:
    """Make the projections anew from the leaves."""
    refuse_a_folder(log)
    with AuditLog.open(log.places.folder, clock=edge.SystemClock(), process="cli") as opened:
        count = opened.rebuild()
    if given.format == "table":
        talk(f"{count} entries")
    else:
        print(json_text({"schema": "confide/audit-rebuilt/v1", "entries": count}))
    return 0


def new_epoch(given: argparse.Namespace, log: FoundLog) -> int:
    """Ask that the newest epoch be closed and the next begun; a second person approves it."""
    refuse_a_folder(log)
    admit(log, "new-epoch")
    if not log.places.has_log:
        raise LogUnreadable(f"no log in {log.places.folder}", hint="make the home first, or name another --home")
    arguments: dict[str, str | int] = {
        "reason": given.reason,
        "database": given.database or "",
        "password_file": "" if given.password_file is None else str(given.password_file.resolve()),
    }
    approved = two_people.ask(log, NEW_EPOCH, arguments)
    if approved is None:
        return 0
    left, origin = begin_epoch(log, approved)
    if given.format != "table":
        value = {
            "schema": "confide/audit-epoch/v1",
            "log": str(origin),
            "previous": left.previous.model_dump(),
            "lost": None if left.lost is None else left.lost.model_dump(),
        }
        print(json_text(value, indent=2 if given.format == "json" else None))
    two_people.done(log, approved)
    return 0


def begin_epoch(log: FoundLog, approved: Approved) -> tuple[LeftEpoch, Origin]:
    """Close the newest epoch and begin the next, as was asked for and confirmed; return both.

    Raises:
        SecondWriter: The home's daemon runs.
    """
    folder, clock, wanted = log.places.folder, edge.SystemClock(), approved.request.arguments
    database, password_file = str(wanted["database"]), str(wanted["password_file"])
    store = PrivateStore(folder, clock=clock, random_bytes=os.urandom)
    try:
        left, origin = begin_next(
            folder,
            reason=str(wanted["reason"]),
            commit=lambda reason: store.commit("reason", reason, subject=approved.request.proposer),
            actor=approved.by,
            approval=approved.approval,
            clock=clock,
            settings=LogSettings(
                database=database or None, password_file=Path(password_file) if password_file else None
            ),
        )
    finally:
        store.close()
    talk(f"closed  {left.origin}, {left.size} entries, root {hash_text(left.root)}")
    if left.lost is not None:
        talk(f"lost    a tree of {left.lost.size} entries, root {left.lost.root} ({left.lost.cause})")
    talk(f"begun   {origin}")
    talk("the other parties pin the new log by the next change of the charter")
    return left, origin
