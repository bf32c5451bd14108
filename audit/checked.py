"""A stored log of which nothing is handed out that its tree doesn't hold.

The partial tiles give the stored root, the tree at the newest checkpoint's size has the checkpoint's root, and each
leaf hashes to what a checked tile has at its place. Entries that no checkpoint covers yet are opened in full, with
their writer's signature. Rows that the projection found are compared with their leaf.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from audit import checkpoint as checkpoints
from audit.canonical import Event
from audit.entry import Entry, read_leaf
from audit.errors import AuditError, EntryRefused, LogDamaged, LogUnreadable, NoteRefused, ProofRefused
from audit.filters import Filters
from audit.frame import hash_text, keyring_of, newest_origin, read_frame
from audit.history import open_at
from audit.keyring import Keyring
from audit.merkle import leaf_hash
from audit.opening import hash_in_tree
from audit.projection import Row as ProjectedRow
from audit.projection import row_of
from audit.proofs import Proof
from audit.pruning import check_inside, insides, newest_pruning
from audit.redactions import is_redacted, redactions_in
from audit.snapshot import Snapshot
from audit.stored import StoredEntry
from audit.tiles import Edge, TrustedTiles

_AT_ONCE: Final = 32
"""Leaves that are fetched at once of a page of rows, of which the reader may want only a few."""
_BEFORE: Final = 256
"""Entries below the newest checkpoint from which the chains of the writers above it are taken up."""


@dataclass(frozen=True, slots=True)
class Row:
    """An entry as a list shows it.

    Attributes:
        origin: The log, that is the epoch, that it stands in.
        index: Its place there.
        leaf_hash: As an event writes it.
        leaf: Its bytes.
        event: What they say.
        interpreted: Whether this version knows the action and all its fields.
        name: How a reader names it: its index, behind the epoch's number where the log has several.
    """

    origin: str
    index: int
    leaf_hash: str
    leaf: bytes
    event: Event
    interpreted: bool
    name: str


class ReadableLog(Protocol):
    """A log of which only what was found in its tree is handed out: one in a database, or in a bundle."""

    @property
    def origin(self) -> str:
        """Return its name."""
        ...

    @property
    def size(self) -> int:
        """Return the number of its entries."""
        ...

    @property
    def tree(self) -> TrustedTiles:
        """Return the tiles, each of which leads to the root."""
        ...

    @property
    def keyring(self) -> Keyring:
        """Return the keys that the log declares."""
        ...

    @property
    def begin(self) -> int:
        """Return the index below which entries went to an archive; 0 where none did."""
        ...

    def trail(self) -> list[tuple[int, bytes]]:
        """Return index and leaf of entry 0 and of all that others are judged by."""
        ...

    def inside(self, index: int) -> Proof:
        """Return the path inside of the tile of an entry of the trail whose tile was pruned, else nothing."""
        ...

    def quorums(self) -> dict[int, bytes]:
        """Return every kept checkpoint that reached its quorum, by size; whoever uses one checks it."""
        ...

    def leaves(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the leaves from `first` up to `end`, empty where one was redacted."""
        ...

    def rows(self, first: int = 0) -> Iterator[Row]:
        """Yield every entry from `first` on that wasn't redacted."""
        ...

    def row(self, index: int) -> Row:
        """Return one entry."""
        ...

    def find_id(self, event_id: bytes) -> int | None:
        """Return the index of the entry under an event's id."""
        ...

    def matching(self, filters: Filters) -> Iterator[Row]:
        """Yield the entries that `filters` ask for, in order; their limit is the caller's."""
        ...

    def count(self, filters: Filters) -> int:
        """Return how many entries `matching` yields."""
        ...


def refused(message: str, code: str) -> AuditError:
    """Return the refusal to show what doesn't agree with the log."""
    return AuditError(code, message, hint="run `confide audit verify` to see all that is wrong")


class CheckedLog:
    """What a reader sees of a log at one moment.

    Args:
        snapshot: The store; not trusted.
        newest_checkpoint: The file `checkpoint`, not newer than the store; empty where there is none, then each entry
            that is shown is opened with its writer's signature.
        one_of_several: The log has more epochs, so an index alone names no entry.

    Raises:
        AuditError: The log is shorter than its checkpoint, or another one, or its tiles were altered.
        LogUnreadable: There is no entry.
    """

    def __init__(self, snapshot: Snapshot, newest_checkpoint: bytes, *, one_of_several: bool = False) -> None:
        self._snapshot = snapshot
        self._linked = False
        try:
            head = snapshot.head()
            if head is None or head.size == 0:
                raise LogUnreadable("the log has no entry")
            self.size: Final = head.size
            self._tree = TrustedTiles(snapshot, head.size, head.root)
            trail = self._trail = self._checked_trail()
            self.origin: Final = newest_origin(trail[0][1]) if trail else ""
            self._redacted = redactions_in(trail, self.origin)
            pruned = newest_pruning(trail, self.origin)
            self.begin: Final = 0 if pruned is None else pruned.below
            self._epoch = f"{self.origin.rpartition('/')[2]}/" if one_of_several else ""
            self._keyring = keyring_of(trail, self.origin)
            self.signed_size: Final = self._check_signed(newest_checkpoint)
        except (ProofRefused, EntryRefused, LogDamaged) as wrong:
            raise refused(wrong.message, wrong.code) from None

    def _checked_trail(self) -> list[tuple[int, bytes]]:
        trail = self._snapshot.trail()
        self._inside = insides(self._snapshot.trail_paths())
        for index, leaf in trail:
            if index in self._inside:
                check_inside(self._tree, index, leaf, self._inside[index])
            elif leaf_hash(leaf) != hash_in_tree(self._tree, index):
                raise refused(f"the copy of entry {index} in the trail was altered", "CFD-A01")
        return trail

    def _check_signed(self, data: bytes) -> int:
        if not data:
            return 0
        try:
            keys = self._keyring.log_keys_at(checkpoints.parse(data).size)
            signed = checkpoints.open_checkpoint(data, origin=self.origin, log_keys=keys)
        except NoteRefused as wrong:
            raise refused(f"file checkpoint: {wrong.message}", "CFD-A05") from None
        if signed.size > self.size:
            raise refused(f"truncated: {signed.size} entries then, {self.size} now", "CFD-A07")
        if Edge.read(self._tree, signed.size).root() != signed.root:
            raise refused(f"the first {signed.size} entries aren't those that were signed", "CFD-A04")
        return signed.size

    @property
    def tree(self) -> TrustedTiles:
        """Return the tiles, each of which leads to the root."""
        return self._tree

    @property
    def keyring(self) -> Keyring:
        """Return the keys that the log declares."""
        return self._keyring

    def trail(self) -> list[tuple[int, bytes]]:
        """Return index and leaf of entry 0 and of all that others are judged by."""
        return self._trail

    def quorums(self) -> dict[int, bytes]:
        """Return every kept checkpoint that reached its quorum, by size; whoever uses one checks it."""
        return {size: note for size, note in self._snapshot.quorums().items() if 0 < size <= self.size}

    # --- entries ----------------------------------------------------------------------------------------------

    def rows(self, first: int = 0) -> Iterator[Row]:
        """Yield every entry from `first` on.

        Raises:
            AuditError: At the first entry that is missing or doesn't agree.
        """
        for stored in self._stored(max(first, self.begin), self.size):
            if not self._is_redacted(stored):
                yield self._row(stored)

    def leaves(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the leaves from `first` up to `end`, empty where one was redacted.

        Raises:
            AuditError: At the first that is missing or doesn't agree.
        """
        for stored in self._stored(first, end):
            yield b"" if self._is_redacted(stored) else self._row(stored).leaf

    def _stored(self, first: int, end: int) -> Iterator[StoredEntry]:
        if first < min(end, self.begin):
            raise _pruned(first, self.begin)
        expected = first
        for stored in self._snapshot.entries(first, end):
            if stored.index != expected:
                break
            yield stored
            expected += 1
        if expected != end:
            raise refused(f"entry {expected} is missing", "CFD-A02")

    def _is_redacted(self, stored: StoredEntry) -> bool:
        """Return whether the leaf is blank and a later entry, found in the tree, says why."""
        if stored.leaf or stored.damage or stored.index not in self._redacted:
            return False
        return is_redacted(stored.leaf, hash_in_tree(self._tree, stored.index), self._redacted[stored.index])

    def row(self, index: int) -> Row:
        """Return the entry at `index`.

        Raises:
            AuditError: It is missing or doesn't agree.
        """
        if index < self.begin:
            return self._trail_row(index)
        stored = self._snapshot.entry(index) if index < self.size else None
        if stored is None:
            raise refused(f"entry {index} is missing", "CFD-A02")
        if self._is_redacted(stored):
            hint = "`confide audit verify` names the record"
            raise AuditError("CFD-A41", f"entry {index} was redacted", hint=hint, exit_status=1)
        return self._row(stored)

    def _trail_row(self, index: int) -> Row:
        """Return a pruned entry that the trail keeps."""
        leaf = dict(self._trail).get(index)
        if leaf is None:
            raise _pruned(index, self.begin)
        entry, _ = read_leaf(leaf, origin=self.origin)
        hashed = hash_text(leaf_hash(leaf))
        return Row(self.origin, index, hashed, leaf, entry.event, entry.interpreted, f"{self._epoch}{index}")

    def inside(self, index: int) -> Proof:
        """Return the path inside of the tile of an entry of the trail whose tile was pruned, else nothing."""
        return self._inside.get(index, ())

    def find_id(self, event_id: bytes) -> int | None:
        """Return the index of the entry under an event's id, as the store has it."""
        found = self._snapshot.find_id(event_id)
        return None if found is None else found[0]

    def matching(self, filters: Filters) -> Iterator[Row]:
        """Yield the entries that `filters` ask for, in order; their limit is the caller's.

        Raises:
            AuditError: At the first that doesn't agree.
        """
        first = self.begin if filters.after is None else max(self.begin, filters.after + 1)
        projected = min(self._snapshot.next_projected(), self.size)
        for page in self._snapshot.matching(filters, first, projected):
            for start in range(0, len(page), _AT_ONCE):
                part = page[start : start + _AT_ONCE]
                stored = self._snapshot.entries_at([found[0] for found in part if type(found[0]) is int])
                for found in part:
                    yield self._projected_row(found, stored)
        for row in self.rows(max(first, projected)) if max(first, projected) < self.size else ():
            if filters.match(row.index, row.event):
                yield row

    def count(self, filters: Filters) -> int:
        """Return how many entries `matching` yields, as the projection counts them."""
        first = self.begin if filters.after is None else max(self.begin, filters.after + 1)
        projected = min(self._snapshot.next_projected(), self.size)
        tail = self.rows(max(first, projected)) if max(first, projected) < self.size else ()
        return self._snapshot.count_matching(filters, first, projected) + sum(
            filters.match(row.index, row.event) for row in tail
        )

    def _projected_row(self, found: ProjectedRow, stored: dict[int, StoredEntry]) -> Row:
        index = found[0]
        if type(index) is not int:
            raise refused("a row of the projection has no index", "CFD-A14")
        if index not in stored:
            raise refused(f"entry {index} is missing", "CFD-A02")
        row = self._row(stored[index])
        if row_of(index, row.event) != found:
            raise AuditError(
                "CFD-A14", f"the projection shows entry {index} otherwise", hint="run `confide audit rebuild`"
            )
        return row

    def _row(self, stored: StoredEntry) -> Row:
        index = stored.index
        if stored.damage or not stored.leaf:
            raise refused(f"entry {index} can't be read: {stored.damage or 'it is blank'}", "CFD-A02")
        hashed = leaf_hash(stored.leaf)
        try:
            if hashed != hash_in_tree(self._tree, index):
                raise refused(f"entry {index} was altered", "CFD-A01")
            entry = self._entry(index, stored.leaf)
        except (ProofRefused, EntryRefused) as wrong:
            raise refused(f"entry {index}: {wrong.message}", wrong.code) from None
        name = f"{self._epoch}{index}"
        return Row(self.origin, index, hash_text(hashed), stored.leaf, entry.event, entry.interpreted, name)

    def _check_links(self) -> None:
        """Refuse a tail, which no checkpoint covers yet, from which an entry was taken."""
        self._linked = True
        chains: dict[str, tuple[int, str]] = {}
        for stored in self._snapshot.entries(max(self.begin, self.signed_size - _BEFORE), self.size):
            if self._is_redacted(stored):
                chains.clear()
                continue
            event, _ = read_frame(stored.leaf, origin=self.origin)
            index, writer = stored.index, str(event["writer"])
            link = (event.get("seq"), event.get("prev"))
            if index >= self.signed_size and chains.get(writer, link) != link:
                raise refused(f"entry {index} doesn't follow its writer's last entry", "CFD-A11")
            chains[writer] = (int(event["seq"]) + 1, hash_text(hash_in_tree(self._tree, index)))

    def _entry(self, index: int, leaf: bytes) -> Entry:
        if index >= self.signed_size and not self._linked:
            self._check_links()
        if index >= self.signed_size or index == 0:
            return open_at(index, leaf, origin=self.origin, keyring=self._keyring)
        entry, _ = read_leaf(leaf, origin=self.origin)
        return entry


def _pruned(index: int, begin: int) -> AuditError:
    hint = "the entry audit.pruned names the archive that holds it"
    return AuditError("CFD-A30", f"entry {index} was pruned, with all below {begin} but the trail", hint=hint)
