"""`confide audit rebuild`: what keeps a log in use."""

import argparse

from audit import edge, rendering
from audit.errors import LogUnreadable
from audit.log import AuditLog
from audit.read_record import talk
from audit.reading import FoundLog


def _audit_folder(log: FoundLog) -> None:
    if not log.live or log.audit_folder is None:
        raise LogUnreadable("a copy is only read", hint="run this on the machine whose home it is")


def rebuild(given: argparse.Namespace, log: FoundLog) -> int:
    """Make the projections anew from the leaves."""
    _audit_folder(log)
    with AuditLog.open(log.places.folder, clock=edge.SystemClock(), process="cli") as opened:
        count = opened.rebuild()
    if given.format == "table":
        talk(f"{count} entries")
    else:
        print(rendering.json_text({"schema": "confide/audit-rebuilt/v1", "entries": count}))
    return 0
