"""`confide audit rebuild` and `new-epoch`: what keeps a log in use, or begins the next."""

import argparse
import os
import sys

from audit import edge, epochs
from audit.errors import LogUnreadable
from audit.events import Actor
from audit.frame import hash_text
from audit.log import AuditLog
from audit.private import PrivateStore
from audit.read_record import talk
from audit.reading import FoundLog
from audit.settings import LogSettings
from audit.visible import json_text, visible


def _refuse_a_copy(log: FoundLog) -> None:
    if log.audit_folder is None or not log.is_home:
        raise LogUnreadable("a copy is only read", hint="run this on the machine whose home it is")


def rebuild(given: argparse.Namespace, log: FoundLog) -> int:
    """Make the projections anew from the leaves."""
    _refuse_a_copy(log)
    with AuditLog.open(log.places.folder, clock=edge.SystemClock(), process="cli") as opened:
        count = opened.rebuild()
    if given.format == "table":
        talk(f"{count} entries")
    else:
        print(json_text({"schema": "confide/audit-rebuilt/v1", "entries": count}))
    return 0


def new_epoch(given: argparse.Namespace, log: FoundLog) -> int:
    """Close the newest epoch and begin the next."""
    _refuse_a_copy(log)
    folder, clock = log.places.folder, edge.SystemClock()
    store = PrivateStore(folder, clock=clock, random_bytes=os.urandom)
    try:
        actor = Actor(kind="person", id=store.pseudonym(edge.account()), auth="local")
        left, origin = epochs.begin_next(
            folder,
            reason=given.reason,
            commit=lambda reason: store.commit("reason", reason, subject=actor.id),
            actor=actor,
            clock=clock,
            settings=LogSettings(database=given.database, password_file=given.password_file),
        )
    finally:
        store.close()
    if given.format == "table":
        lines = [("closed", f"{left.origin}, {left.size} entries, root {hash_text(left.root)}")]
        if left.lost is not None:
            lines.append(("lost", f"a tree of {left.lost.size} entries, root {left.lost.root} ({left.lost.cause})"))
        lines.append(("begun", str(origin)))
        sys.stdout.writelines(f"{name:<8}{visible(text)}\n" for name, text in lines)
        talk("note: one person began this epoch; a second person's confirmation is not asked for yet")
        talk("the other parties pin the new log by the next change of the charter")
    else:
        value = {
            "schema": "confide/audit-epoch/v1",
            "log": str(origin),
            "previous": left.previous.model_dump(),
            "lost": None if left.lost is None else left.lost.model_dump(),
        }
        print(json_text(value, indent=2 if given.format == "json" else None))
    return 0
