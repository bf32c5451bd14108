"""What this site's audit log has seen of the ledger: the head that each `budget.*` entry carries, and what was lost.

The log is what the site's witnesses cosign, so a ledger that is older than the log's newest head, or has another entry
there, was rolled back or forked; and a log that was itself rolled back is found by its witnesses, ends, and says in the
opening of its next epoch what it lost. Until the ledger was recovered after that, nobody here knows what the ledger
should hold. What was recorded before the newest `budget.recovered` is answered by it (privacy design, 8.7).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.errors import AuditError, LogUnreadable
from audit.filters import Filters
from audit.frame import read_frame
from audit.reading import FoundLog, find_log, opening_of
from audit.snapshot import Snapshot
from privacy.accounting.entries import Head

Event = dict[str, Any]

RECOVERED: Final = "budget.recovered"
_FIRST_WINDOW: Final = 4096


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest head of the ledger that the audit log holds, and whether entries of the log were lost since."""

    head: Head | None = None
    lost: bool = False


def recorded_in(folder: Path) -> Recorded:
    """Return what the audit log of the home's folder `folder` has seen of the ledger; nothing where there is no log.

    Raises:
        LogUnreadable: There is a log, and it can't be read.
    """
    newest: Recorded | None = None
    for log in _epochs(folder):
        found = _in_epoch(log)
        if newest is None or newest.head is None:
            newest = found if newest is None else Recorded(found.head, newest.lost)
        if newest.head is not None or newest.lost:
            break
    return newest or Recorded()


def events_since_recovery(folder: Path) -> Iterator[Event]:
    """Yield the entries about budget and data that no recovery has answered, in order.

    Raises:
        LogUnreadable: The log can't be read.
    """
    kept: list[Event] = []
    for log in reversed(_epochs(folder)):
        with log.moment() as (snapshot, _):
            for event in _events(snapshot, 0, snapshot.last_index() + 1):
                if event["action"] == RECOVERED:
                    kept.clear()
                elif str(event["action"]).startswith(("budget.", "data.")):
                    kept.append(event)
    yield from kept


def head_of(event: Mapping[str, Any]) -> Head:
    """Return the ledger's head that an entry carries."""
    head = event["budget"]["head"]
    return Head(head["seq"], head["hash"].removeprefix("sha256:"))


def _epochs(folder: Path) -> list[FoundLog]:
    """Return the epochs of the log, the newest first; none where there is no log."""
    try:
        return list(reversed(find_log(folder).epochs()))
    except LogUnreadable:
        return []


def _in_epoch(log: FoundLog) -> Recorded:
    lost = "lost" in opening_of(log)
    with log.moment() as (snapshot, _):
        size = snapshot.last_index() + 1
        projected = min(snapshot.next_projected(), size)
        late = [event for event in _events(snapshot, projected, size) if "budget" in event]
        answered = _last(snapshot, RECOVERED, projected)
        answered = max([answered, *(int(event["index"]) for event in late if event["action"] == RECOVERED)])
        heads = [head_of(event) for event in late if event["index"] >= answered]
        for action in ("budget", "data.registered"):
            heads += _newest_heads(snapshot, action, max(answered, 0), projected)
    newest = max(heads, key=lambda head: head.seq, default=None)
    return Recorded(newest, lost and answered < 0)


def _events(snapshot: Snapshot, first: int, end: int) -> Iterator[Event]:
    """Yield the events from `first` up to `end`, each with its index; what can't be read is left out."""
    for stored in snapshot.entries(first, end):
        try:
            event, _ = read_frame(stored.leaf, origin=None)
        except AuditError:
            continue  # damaged or emptied: verification speaks of it, and the heads around it stay
        yield {**event, "index": stored.index}


def _last(snapshot: Snapshot, action: str, end: int) -> int:
    """Return the index of the last entry of an action, -1 where there is none."""
    last = -1
    for page in snapshot.matching(Filters(action=action), 0, end):
        last = int(page[-1][0] or 0)
    return last


def _newest_heads(snapshot: Snapshot, action: str, first: int, end: int) -> list[Head]:
    """Return the heads of the newest entries of an action or family: those of a window that has any."""
    window, stop = _FIRST_WINDOW, end
    while stop > first:
        start = max(first, stop - window)
        found = [int(row[0] or 0) for page in snapshot.matching(Filters(action=action), start, stop) for row in page]
        if found:
            events = (event for index in found[-64:] for event in _events(snapshot, index, index + 1))
            return [head_of(event) for event in events if "budget" in event]
        window, stop = 4 * window, start
    return []
