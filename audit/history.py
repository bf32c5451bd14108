"""What a log's entries so far say of the next one: keys, writers' chains, time; pure.

The committer goes on from a `History`, opening and verification come to one by reading. It is a value: a failed
commit leaves the old one whole. The tree over the entries is `tiles.Edge`.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Self

from audit.canonical import Event
from audit.entry import Entry, open_leaf
from audit.errors import EntryRefused
from audit.findings import Flaw
from audit.frame import hash_text, read_frame
from audit.keyring import Keyring
from audit.note import VerifierKey


@dataclass(frozen=True, slots=True)
class WriterTail:
    """How far a writer's own chain goes: its next sequence number and its last entry's leaf hash."""

    next_seq: int
    last: str


FIRST: Final = WriterTail(0, "")


@dataclass(frozen=True, slots=True)
class History:
    """The state after `size` entries."""

    origin: str
    size: int = 0
    keyring: Keyring = field(default_factory=Keyring)
    writers: dict[str, WriterTail] = field(default_factory=dict)
    t_us: int = 0

    def tail(self, writer: str) -> WriterTail:
        """Return where `writer` goes on."""
        return self.writers.get(writer, FIRST)

    def after(self, event: Event, leaf_hash: bytes) -> Self:
        """Return the history with one entry more; what was wrong with it has been said before.

        Raises:
            EntryRefused: The entry is to change the keys and can't.
        """
        keyring = Keyring.opened(event) if self.size == 0 else self.keyring.after(self.size, event)
        tail = WriterTail(event["seq"] + 1, hash_text(leaf_hash))
        return replace(
            self,
            size=self.size + 1,
            keyring=keyring,
            writers={**self.writers, event["writer"]: tail},
            t_us=max(self.t_us, event["t_us"]),
        )

    def skip_to(self, size: int) -> Self:
        """Return a history of `size` entries after some that couldn't be read, to name the flaws behind them."""
        return replace(self, size=size)

    def open_next(self, leaf: bytes) -> Entry:
        """Return the next entry, fully checked by itself.

        Raises:
            EntryRefused: Any check of `audit.entry.open_leaf` failed.
        """
        opening: Event | None = None
        if self.size == 0:
            opening, _ = read_frame(leaf, origin=self.origin)
            if opening.get("action") != "log.opened":
                raise EntryRefused("entry 0 is not a log.opened")
        # Entry 0 lists the keys it is itself signed by; that they are the owner's, only a pinned log key says.
        keyring = self.keyring if opening is None else Keyring.opened(opening)
        return open_at(self.size, leaf, origin=self.origin, keyring=keyring)

    def flaws_of(self, event: Event) -> list[Flaw]:
        """Return what is wrong with `event` as the next entry: its writer's chain, and time."""
        where = f"entry {self.size}"
        flaws = []
        tail = self.tail(event["writer"])
        if event["seq"] != tail.next_seq:
            flaws.append(
                Flaw("CFD-A11", where, f"{event['writer']} continues at seq {event['seq']}, wanted {tail.next_seq}")
            )
        elif event.get("prev", "") != tail.last:
            flaws.append(Flaw("CFD-A11", where, f"`prev` isn't the last entry of {event['writer']}"))
        if event["t_us"] < self.t_us:
            flaws.append(Flaw("CFD-A13", where, "its time is before that of the entry before it"))
        return flaws


def open_at(index: int, leaf: bytes, *, origin: str, keyring: Keyring) -> Entry:
    """Return the entry at `index`, fully checked by itself under the keys of the log.

    Raises:
        EntryRefused: Any check of `audit.entry.open_leaf` failed.
    """

    def writer_key(name: str, key_id: bytes) -> VerifierKey:
        return keyring.writer(name, key_id, index)

    return open_leaf(leaf, origin=origin, writer_key=writer_key)
