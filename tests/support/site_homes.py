"""A site's home with an audit log, and what its log holds, for tests of acts that are recorded."""

from pathlib import Path
from typing import Any

from audit.log import AuditLog
from federation.edge.clock import SystemClock
from federation.edge.files import make_folder
from tests.support.audit_logs import events_in


def make(folder: Path) -> Path:
    """Return the home of an enrolled site."""
    home = make_folder(folder)
    AuditLog.create(home / "audit", origin_federation="heart.example.org", party="mercy", clock=SystemClock()).close()
    return home


def events(home: Path) -> list[dict[str, Any]]:
    """Return the events of the home's log with their `index`, without those that the log writes about itself."""
    numbered = [{**event, "index": index} for index, event in enumerate(events_in(home / "audit"))]
    return [event for event in numbered if not event["action"].startswith("log.")]


def actions(home: Path) -> list[str]:
    """Return the actions of the home's log, in order."""
    return [event["action"] for event in events(home)]
