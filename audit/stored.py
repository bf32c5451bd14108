"""What a stored log consists of, and what reads it one moment at a time; pure.

Nothing here has been checked: a database says what whoever wrote last into its file wanted it to say.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One row of the table of entries.

    Attributes:
        index: Its place.
        leaf: The bytes of the leaf; empty where they can't be read or were redacted.
        leaf_hash: What the row says the leaf hashes to.
        event_id: The id by which a repeated draft is found.
        damage: Why the row can't be read, where that is so.
    """

    index: int
    leaf: bytes
    leaf_hash: bytes
    event_id: bytes
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """How long the log is, and what it holds.

    Attributes:
        size: The number of entries.
        root: The root over them.
        t_us: The time of the last.
        running: A process recorded that it began, and not that it ended.
    """

    size: int
    root: bytes
    t_us: int
    running: bool


@dataclass(frozen=True, slots=True)
class WriterRow:
    """How far one writer's own chain goes.

    Attributes:
        name: The name of its key.
        key_id: Four bytes of the key that signed last.
        next_seq: Its next sequence number.
        last_hash: The leaf hash of its last entry.
        last_index: Where that entry is.
    """

    name: str
    key_id: bytes
    next_seq: int
    last_hash: bytes
    last_index: int


class StoredLog(Protocol):
    """One moment of a stored log."""

    def head(self) -> Head | None:
        """Return the head, None where there is none that can be read."""
        ...

    def last_index(self) -> int:
        """Return the index of the last row, -1 where there is none."""
        ...

    def entries(self, first: int, end: int) -> Iterator[StoredEntry]:
        """Yield the rows from `first` up to `end` in order; a missing row is left out, a damaged one says so."""
        ...

    def tile(self, level: int, n: int, width: int) -> bytes:
        """Return the first `width` hashes of a tile.

        Raises:
            ProofRefused: There is no such tile, or it has fewer hashes.
        """
        ...

    def writers(self) -> list[WriterRow]:
        """Return the writers by name."""
        ...

    def trail(self) -> list[tuple[int, bytes]]:
        """Return index and leaf of entry 0 and of all that change keys, in order."""
        ...

    def trail_paths(self) -> dict[int, bytes]:
        """Return, by index, the hashes inside of the tile of each leaf of the trail whose tile was pruned."""
        ...

    def projected(self, first: int, end: int) -> dict[int, tuple[str | int | None, ...]]:
        """Return the rows of the projection from `first` up to `end`, by index."""
        ...

    def next_projected(self) -> int:
        """Return the index from which on entries have no row in the projection yet."""
        ...

    def quorums(self) -> dict[int, bytes]:
        """Return every kept checkpoint that reached its quorum, by size; whoever uses one checks it."""
        ...

    def repeated_ids(self) -> list[tuple[int, int]]:
        """Return an entry and the first before it under the same id, for each that has one."""
        ...
