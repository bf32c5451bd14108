"""Lets the projections follow the log, batch by batch, outside the transactions that append.

For the committer's thread: it says when. What an entry adds is `projection`'s.
"""

import contextlib
from typing import Final

from audit import frame
from audit.canonical import Event
from audit.errors import EntryRefused
from audit.filters import Filters
from audit.projection import Projected
from audit.storage import Store

BEHIND: Final = 512
"""Entries that the projections may be behind while drafts keep coming, and that they follow by at once."""
_KEPT: Final = 8 * BEHIND


class Projector:
    """The cursor of a log's projections.

    Args:
        store: The log's database.
        origin: The log's name.
        timeout_s: How long to wait for a lost server.
    """

    def __init__(self, store: Store, origin: str, *, timeout_s: float) -> None:
        self._store = store
        self._origin = origin
        self._timeout_s = timeout_s
        self._next = store.snapshot.next_projected()
        self._known: list[tuple[int, Event]] = []

    def behind(self, size: int) -> int:
        """Return how many of the log's `size` entries have no row yet."""
        return size - self._next

    def take(self, entries: list[tuple[int, Event]]) -> None:
        """Keep new entries at hand, so that they needn't be read back; past a limit they are."""
        self._known.extend(entries)
        del self._known[:-_KEPT]

    def follow(self, size: int) -> None:
        """Add the rows of up to `BEHIND` entries.

        Raises:
            AuditError, OutcomeUnknown: None was added.
        """
        first = self._next
        end = min(size, first + BEHIND)
        found = [item for item in self._known if first <= item[0] < end]
        if len(found) != end - first:  # behind from before this process, or after a rebuild
            found = self._read(first, end)
        projected = Projected()
        for index, event in found:
            projected.take(index, event)
        self._store.project(projected, end)
        self._next = end
        self._known = [item for item in self._known if item[0] >= end]

    def catch_up(self, size: int) -> None:
        """Add the rows of all entries.

        Raises:
            AuditError, OutcomeUnknown: Some weren't added.
        """
        while self._next < size:
            self.follow(size)

    def rebuild(self, size: int) -> None:
        """Empty the projections and add the rows of all entries.

        Raises:
            AuditError, OutcomeUnknown: They are behind; they follow later.
        """
        self._store.forget_projections()
        self._next = 0
        self.catch_up(size)

    def left_open(self, size: int) -> dict[int, Event]:
        """Return the openings of data that have no end, by index."""
        self.catch_up(size)
        indices = self._store.read(lambda log: log.left_open(), timeout_s=self._timeout_s)
        return {index: event for one in indices for index, event in self._read(one, one + 1)}

    def erased(self, size: int) -> list[str]:
        """Return the pseudonyms whose erasure the log records."""
        self.catch_up(size)
        wanted = Filters(action="subject.erased", decision="allowed")
        pages = self._store.read(lambda log: list(log.matching(wanted, 0, size)), timeout_s=self._timeout_s)
        indices = [row[0] for page in pages for row in page if type(row[0]) is int]
        return [str(event.get("subject", "")) for one in indices for _, event in self._read(one, one + 1)]

    def are_committed(self, values: list[str], size: int) -> set[str]:
        """Return those of the commitments `values` that an entry names."""
        self.catch_up(size)
        return self._store.read(
            lambda log: {value for value in values if log.is_committed(value)}, timeout_s=self._timeout_s
        )

    def _read(self, first: int, end: int) -> list[tuple[int, Event]]:
        found = []
        for row in self._store.read(lambda log: list(log.entries(first, end)), timeout_s=self._timeout_s):
            with contextlib.suppress(EntryRefused):  # what isn't an entry has no row; `verify` names it
                found.append((row.index, frame.read_frame(row.leaf, origin=self._origin)[0]))
        return found
