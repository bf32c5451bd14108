"""Do the entries of a bundle's range follow each other: chains of writers, times, ids? Pure.

Behind an entry that can't be read, which is named by whoever read it, the chains are taken up anew, so that one altered
entry isn't named again by each behind it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from audit.canonical import Event
from audit.findings import Flaw
from audit.frame import hash_text
from audit.redactions import Redaction


@dataclass(frozen=True, slots=True)
class _Chain:
    next_seq: int
    last: str


_BEGIN: Final = _Chain(0, "")


@dataclass(slots=True)
class EntryOrder:
    """Takes the entries of a range in order.

    Attributes:
        from_start: The range begins with the log, so that every writer's first entry is in it.
    """

    from_start: bool
    _chains: dict[str, _Chain] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)
    _t_us: int = 0

    def pass_over(self, redaction: Redaction) -> None:
        """Go on behind an entry that was redacted, by the place that its record gives it."""
        self._chains[redaction.writer] = _Chain(redaction.seq + 1, redaction.leaf_hash)

    def forget(self) -> None:
        """Go on behind an entry that can't be read."""
        self.from_start = False
        self._chains.clear()

    def take(self, index: int, event: Event, hashed: bytes) -> Iterator[Flaw]:
        """Yield what is wrong with the place of the entry at `index`."""
        where, writer = f"entry {index}", event["writer"]
        chain = self._chains.get(writer, _BEGIN if self.from_start else None)
        if chain is not None and (event["seq"], event.get("prev", "")) != (chain.next_seq, chain.last):
            yield Flaw("CFD-A11", where, f"doesn't follow the last entry of {writer}")
        self._chains[writer] = _Chain(event["seq"] + 1, hash_text(hashed))
        if event["t_us"] < self._t_us:
            yield Flaw("CFD-A13", where, "its time is before that of the entry before it")
        if event["id"] in self._ids:
            yield Flaw("CFD-A12", where, f"repeats the id of entry {self._ids[event['id']]}")
        self._ids[event["id"]] = index
        self._t_us = max(self._t_us, event["t_us"])
