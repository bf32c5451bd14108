"""The replay of a stored log, entry by entry, in memory independent of their number; pure.

Leaves, their hashes in the rows, and the tiles say the same thing three times. Where one of them differs from the
other two it is the one that was altered; where an entry and its row agree against the tile, the signed root decides
(`verification`). A flaw names its entry or its tile, and the walk goes on behind it, so that one altered byte isn't
reported as a thousand flaws.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from audit import tiles
from audit.canonical import Event
from audit.entry import Entry, event_of
from audit.errors import AuditError, EntryRefused
from audit.findings import Flaw, span
from audit.frame import MAX_READ_BYTES, TRAIL_ACTIONS, hash_text, keyring_of, newest_origin, read_frame
from audit.history import History
from audit.keyring import Keyring
from audit.merkle import leaf_hash
from audit.projection import row_of
from audit.proofs import root_at
from audit.pruning import Pruning, check_inside, insides, newest_pruning, pruning_of
from audit.sequence import SequenceRules
from audit.stored import Head, StoredEntry, StoredLog
from audit.tiles import HASHES_PER_TILE, Edge, TrustedTiles

MAX_FLAWS: Final = 1000
_UNKNOWN: Final = bytes(32)


class Opener(Protocol):
    """Somebody else who opens leaves: form, schema and signature. One tile at a time: `begin`, then `end`."""

    def begin(self, origin: str, keyring: Keyring, leaves: dict[int, bytes]) -> None:
        """Start on the leaves of a tile, by index, under the keys of the log as they stand now."""
        ...

    def end(self) -> dict[int, bool]:
        """Return which of them are entries, and whether this version knows all their fields; others are left out."""
        ...


class _Ahead(NamedTuple):
    """A tile of which the entries are opened while those before it are replayed."""

    n: int
    stored: dict[int, StoredEntry]
    opener: Opener
    keyring: Keyring


@dataclass(slots=True)
class Walk:
    """The replay of one store; `run` it once.

    Attributes:
        log: What is stored.
        wanted_sizes: Sizes at which the root is asked for.
        complete: Replay the rules of order and compare the projections, too.
        openers: Who opens leaves meanwhile; without any, the replay does it all. They say only that an entry is right:
            one that they don't name is opened here, so what is wrong with it is found and told here.
        history: Where the replay stands.
        flaws: What is wrong.
        notes: What is no flaw, but to be known.
        roots: By size, over the entries.
        other_roots: By size, over what else has the entries' hashes: their tiles, and behind the last full one their
            leaves.
        disputed: Entries that agree with their row and not with their tile.
        broken: Some entry's hash isn't known, so no root follows.
        begin: Where the walk begins, if the first entries went to an archive.
        stopped: Without the keys that entry 0 lists, nothing behind it can be judged.
    """

    log: StoredLog
    wanted_sizes: set[int]
    complete: bool
    openers: Sequence[Opener] = ()
    history: History = field(default_factory=lambda: History(""))
    flaws: list[Flaw] = field(default_factory=list)
    notes: list[Flaw] = field(default_factory=list)
    roots: dict[int, bytes] = field(default_factory=dict)
    other_roots: dict[int, bytes] = field(default_factory=dict)
    disputed: list[int] = field(default_factory=list)
    broken: bool = False
    stopped: bool = False
    rules: SequenceRules = field(default_factory=SequenceRules)
    last_event: Event | None = None
    running: bool = False
    begin: int = 0
    _pruning: Pruning | None = None
    _edge: Edge = field(default_factory=Edge)
    _other_edge: Edge = field(default_factory=Edge)
    _linked: set[str] | None = None
    """Writers whose last entry is known since one was lost; None while none was."""
    _trail: dict[int, bytes] = field(default_factory=dict)
    _blank: dict[int, bytes] = field(default_factory=dict)
    _writer_ends: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    _opened: dict[int, bool] = field(default_factory=dict)
    """Of this tile: what an opener said, under which keys."""
    _opened_under: Keyring | None = None
    _events: dict[int, Event] = field(default_factory=dict)
    """Of this tile: what was opened."""

    @property
    def root(self) -> bytes:
        """Return the root over the entries."""
        return self._edge.root()

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return self.history.size

    def has_root(self, root: bytes, size: int | None = None) -> bool:
        """Return whether the first `size` entries, or all, or what else has their hashes, give `root`."""
        if size is None:
            return root in (self.root, self._other_edge.root())
        return root in (self.roots.get(size), self.other_roots.get(size))

    def flaw(self, code: str, where: str, what: str) -> None:
        """Add a flaw, up to a thousand."""
        if len(self.flaws) < MAX_FLAWS:
            self.flaws.append(Flaw(code, where, what))

    def run(self, progress: Callable[[int], None]) -> None:
        """Replay the whole store, telling `progress` how many entries were read."""
        head = self.log.head()
        size = self.log.last_index() + 1
        if head is None:
            self.flaw("CFD-A02", "the head", "missing: nothing in the store says how long the log is")
        elif head.size < size:
            self.flaw("CFD-A01", span(head.size, size), "stored behind the end of the log")
            size = head.size
        elif head.size > size:
            self.flaw("CFD-A02", span(size, head.size), "missing: written, and not stored")
        next_projected = self.log.next_projected() if self.complete else 0
        self._begin_behind_the_pruned(size)
        for n, stored in self._opened_ahead(_tilewise(self.log.entries(self.begin, size))):
            self._pass_over(n * HASHES_PER_TILE)
            self._take_tile(n, stored, size)
            if self.stopped:
                return
            if self.complete:
                first = n * HASHES_PER_TILE
                self._compare_projection(first, min(first + HASHES_PER_TILE, next_projected), stored)
            progress(self.size)
        if not self.broken:
            self._compare_upper(self._edge.partial)
        self._finish(head)

    def _begin_behind_the_pruned(self, size: int) -> None:
        """Where the trail says that the first entries went to an archive, take up what is left of them.

        That it is so is believed only once the walk has met the entry that says it (`_finish`).
        """
        try:
            trail = self.log.trail()
            origin = newest_origin(trail[0][1]) if trail else ""
            pruning = newest_pruning(trail, origin)
            if pruning is None or not 0 < pruning.below <= size:
                return
            edge = Edge.read(self.log, pruning.below)
            tree = TrustedTiles(self.log, pruning.below, edge.root())
            inside = insides(self.log.trail_paths())
            before = [(index, leaf) for index, leaf in trail if index < pruning.below]
            if any(index not in inside for index, _ in before):
                return  # recorded and not done yet: all entries are there
            for index, leaf in before:
                check_inside(tree, index, leaf, inside[index])
            keyring = keyring_of(before, origin)
        except EntryRefused:
            return  # the walk itself names what is wrong with entries
        except AuditError as refused:
            self.flaw(refused.code, "trail", refused.message)
            return
        self._pruning, self.begin = pruning, pruning.below
        self._edge = self._other_edge = edge
        self._trail = {index: leaf_hash(leaf) for index, leaf in before}
        self.history = History(origin, pruning.below, keyring)
        self._linked = set()
        self.rules.pass_over_all_before(pruning.below)
        for wanted in self.wanted_sizes:
            if wanted <= pruning.below:
                with contextlib.suppress(AuditError):  # within a tile that is gone nothing can be compared
                    self.roots[wanted] = self.other_roots[wanted] = root_at(tree, wanted)

    def _opened_ahead(
        self, tiles_of_rows: Iterator[tuple[int, dict[int, StoredEntry]]]
    ) -> Iterator[tuple[int, dict[int, StoredEntry]]]:
        """Yield the tiles, each after an opener went through it; the first one alone, since it brings the keys."""
        waiting: deque[_Ahead] = deque()
        free = deque(self.openers)
        for n, stored in tiles_of_rows:
            if not self.openers or not self.history.origin:
                yield n, stored
                continue
            ready = None if free else waiting.popleft()
            opened = {} if ready is None else ready.opener.end()
            opener = free.popleft() if ready is None else ready.opener
            opener.begin(self.history.origin, self.history.keyring, _openable(stored))
            waiting.append(_Ahead(n, stored, opener, self.history.keyring))
            if ready is not None:
                yield self._use(ready, opened)
        for ready in waiting:
            yield self._use(ready, ready.opener.end())

    def _use(self, ready: _Ahead, opened: dict[int, bool]) -> tuple[int, dict[int, StoredEntry]]:
        self._opened, self._opened_under = opened, ready.keyring
        return ready.n, ready.stored

    def _pass_over(self, first: int) -> None:
        """Name whole tiles of entries of which nothing is stored."""
        if self.size < first:
            self.flaw("CFD-A02", span(self.size, first), "missing: removed, or moved elsewhere")
            self.broken = True
            self._lose(first - 1, None)
            if self._edge.size == 0:
                self._go_on_without_keys(None)

    # --- one tile of entries ----------------------------------------------------------------------------------

    def _take_tile(self, n: int, stored: dict[int, StoredEntry], size: int) -> None:
        first = n * HASHES_PER_TILE
        end = min(first + HASHES_PER_TILE, size)
        kept = self._tile_hashes(n, end - first, stored)
        hashes, others = [], []
        self._events.clear()
        for index in range(first, end):
            row = stored.get(index)
            hashes.append(self._take(index, row, kept.get(index)))
            others.append(kept.get(index, hashes[-1]))
            if end - first < HASHES_PER_TILE and row is not None and row.leaf:
                others[-1] = leaf_hash(row.leaf)  # here the row is all there is beside the leaf
            if self.stopped:
                return
        self._grow(hashes, others)

    def _tile_hashes(self, n: int, width: int, stored: dict[int, StoredEntry]) -> dict[int, bytes]:
        """Return the hashes that level 0 has, which for its partial tile are those of the rows."""
        first = n * HASHES_PER_TILE
        if width < HASHES_PER_TILE:
            return {index: row.leaf_hash for index, row in stored.items() if len(row.leaf_hash) == tiles.HASH_BYTES}
        try:
            hashes = tiles.split_hashes(self.log.tile(0, n, width))
        except AuditError as refused:
            self.flaw("CFD-A03", tiles.tile_path(0, n), refused.message)
            return {}
        return dict(enumerate(hashes, first))

    def _take(self, index: int, row: StoredEntry | None, kept: bytes | None) -> bytes:
        """Go on by one entry and return its hash."""
        where = f"entry {index}"
        if row is None or row.damage:
            what = "missing: removed, or moved elsewhere" if row is None else f"can't be read: {row.damage}"
            self.flaw("CFD-A02", where, what)
            return self._lose(index, kept)
        if not row.leaf:
            self._blank[index] = kept or row.leaf_hash
            self.rules.pass_over(index)
            return self._lose(index, kept or row.leaf_hash)
        hashed = leaf_hash(row.leaf)
        if hashed != row.leaf_hash:
            altered = "was altered" if hashed != kept else "was altered: its row has another hash"
            self.flaw("CFD-A01", where, altered)
            return self._lose(index, kept if kept is not None else row.leaf_hash)
        disputed = kept is not None and kept != hashed
        opened = self._open(index, row, hashed, disputed=disputed)
        return kept if kept is not None and disputed and not opened else hashed

    def _lose(self, index: int, known: bytes | None) -> bytes:
        """Go on behind an entry that can't be read, and return its hash as far as something else has it."""
        self.history = self.history.skip_to(index + 1)
        self._linked = set()
        self.broken = self.broken or not known
        if index == 0:
            self._go_on_without_keys(None)
        return known or _UNKNOWN

    def _go_on_without_keys(self, leaf: bytes | None) -> None:
        """Where entry 0 is flawed, go on by the keys that it may still show, or else stop."""
        with contextlib.suppress(EntryRefused):
            if leaf is not None:
                event, _ = read_frame(leaf, origin=None)
                self.history = replace(self.history, origin=newest_origin(leaf), keyring=Keyring.opened(event))
                return
            for index, copy in self.log.trail():
                if index == 0:
                    self._go_on_without_keys(copy)
                    return
        self.flaw("CFD-A02", "entry 0", "without the keys that it lists, the entries behind it can't be judged")
        self.stopped = True

    def _open(self, index: int, row: StoredEntry, hashed: bytes, *, disputed: bool) -> bool:
        """Open the entry in full and return whether it is one."""
        where = f"entry {index}"
        if index == 0:
            with contextlib.suppress(EntryRefused):
                self.history = History(newest_origin(row.leaf))
        try:
            entry = self._entry(index, row.leaf)
            history = self.history.after(entry.event, hashed)
        except EntryRefused as refused:
            # An altered byte breaks tile and signature alike; the first is the plainer word for it.
            what = f"was altered: {refused.message}" if disputed else refused.message
            self.flaw("CFD-A01" if disputed else refused.code, where, what)
            self.history = self.history.skip_to(index + 1)
            self._linked = set()
            if index == 0:
                self._go_on_without_keys(row.leaf)
            return False
        if disputed:
            self.disputed.append(index)
        event = entry.event
        self._check_link(event)
        self.history = history
        if event["id"] != row.event_id.hex():
            self.flaw("CFD-A01", where, "is kept under another id than its own")
        self._note(event, index, hashed, interpreted=entry.interpreted)
        return True

    def _entry(self, index: int, leaf: bytes) -> Entry:
        # What was said under other keys than those of now isn't heard.
        if index in self._opened and self._opened_under is self.history.keyring:
            return Entry(leaf, event_of(leaf), self._opened[index])
        return self.history.open_next(leaf)

    def _check_link(self, event: Event) -> None:
        writer = event["writer"]
        for flaw in self.history.flaws_of(event):
            if flaw.code != "CFD-A11" or self._linked is None or writer in self._linked:
                self.flaw(flaw.code, flaw.where, flaw.what)
        if self._linked is not None:
            self._linked.add(writer)

    def _note(self, event: Event, index: int, hashed: bytes, *, interpreted: bool) -> None:
        where = f"entry {index}"
        self.last_event = self._events[index] = event
        self._writer_ends[event["writer"]] = (index, hashed)
        if not interpreted:
            self.notes.append(Flaw("CFD-A44", where, "not interpreted by this version; its bytes and signature agree"))
            return
        action = event["action"]
        self.running = {"log.booted": True, "log.closed": False}.get(action, self.running)
        if action in TRAIL_ACTIONS:
            self._trail[index] = hashed
        if action == "log.booted" and event.get("unclean"):
            self.notes.append(Flaw("CFD-A40", where, "unclean end before this entry, repaired at boot"))
        if action == "key.revoked" and "suspect_from" in event:
            suspect = f"entries {event['suspect_from']} to {index}"
            self.notes.append(Flaw("CFD-A43", suspect, "may be by a thief of the writer's key"))
        if action == "audit.redacted" and hash_text(self._blank.get(event["index"], b"")) == event["leaf_hash"]:
            del self._blank[event["index"]]
            alone = "" if len(event["approval"]["by"]) > 1 else ", approved by one person alone"
            self.notes.append(Flaw("CFD-A41", f"entry {event['index']}", f"redacted, record {index}{alone}"))
        pruning = pruning_of(index, event)
        if pruning is not None:
            alone = "" if pruning.approvers > 1 else ", approved by one person alone"
            what = f"pruned, record {index}, archive {pruning.archive}{alone}"
            self.notes.append(Flaw("CFD-A42", span(0, pruning.below), what))
        if self.complete:
            self.rules.take(index, event)

    # --- tree -------------------------------------------------------------------------------------------------

    def _grow(self, hashes: list[bytes], others: list[bytes]) -> None:
        if self.broken:
            return
        before = self._edge.size
        for size in sorted(self.wanted_sizes):
            if before < size <= before + len(hashes):
                self.roots[size] = self._edge.grow(hashes[: size - before]).edge.root()
                self.other_roots[size] = self._other_edge.grow(others[: size - before]).edge.root()
        growth = self._edge.grow(hashes)
        self._other_edge = self._other_edge.grow(others).edge
        self._edge = growth.edge
        for tile in growth.tiles:
            if tile.level and tile.full:
                self._compare_tile(tile.level, tile.n, tile.hashes)

    def _compare_upper(self, partial: tuple[bytes, ...]) -> None:
        for level, hashes in enumerate(partial):
            if level and hashes:
                n = (self._edge.size >> (8 * level)) // HASHES_PER_TILE
                self._compare_tile(level, n, hashes)

    def _compare_tile(self, level: int, n: int, hashes: bytes) -> None:
        width = len(hashes) // tiles.HASH_BYTES
        where = tiles.tile_path(level, n, width)
        try:
            if self.log.tile(level, n, width) != hashes:
                self.flaw("CFD-A03", where, "isn't the tile over these entries")
        except AuditError as refused:
            self.flaw("CFD-A03", where, refused.message)

    # --- what is derived --------------------------------------------------------------------------------------

    def _compare_projection(self, first: int, end: int, stored: dict[int, StoredEntry]) -> None:
        rows = self.log.projected(first, end)
        for index in range(first, end):
            if index in self._blank and index in rows:
                self.flaw("CFD-A14", f"entry {index}", "the projection has a row for it, and it is blank; rebuild it")
            event = self._events.get(index)  # a flawed entry has been named already
            if event is not None and rows.get(index) != row_of(index, event):
                what = "another" if index in rows else "no"
                self.flaw("CFD-A14", f"entry {index}", f"the projection has {what} row for it; rebuild it")

    def _finish(self, head: Head | None) -> None:
        """Compare what the store says besides its entries."""
        for index, hashed in self._blank.items():
            self.flaw("CFD-A02", f"entry {index}", f"blank, and no later entry records why ({hash_text(hashed)[:23]})")
        for later, earlier in self.log.repeated_ids():
            self.flaw("CFD-A12", f"entry {later}", f"repeats the id of entry {earlier}")
        copies = {index: leaf_hash(leaf) for index, leaf in self.log.trail()}
        wrong = {index for index, hashed in self._trail.items() if copies.get(index) != hashed}
        if self._pruning is not None and self._trail.get(self._pruning.record) != copies.get(self._pruning.record):
            self.flaw("CFD-A02", span(0, self.begin), "missing, and no entry records that they were pruned")
        if self._linked is None:  # else it may be the copy of an entry that was named already
            wrong |= copies.keys() - self._trail.keys()
        for index in sorted(wrong):
            self.flaw("CFD-A14", f"entry {index}", "the trail has another copy of it, or none")
        self._compare_writers()
        if head is not None and not self.broken and not self.has_root(head.root):
            self.flaw("CFD-A04", "the head", f"the root over the {self.size} entries isn't the one stored with them")
        if head is not None and not self.flaws and (head.t_us, head.running) != (self.history.t_us, self.running):
            self.flaw("CFD-A14", "the head", "its time or state isn't that of the entries")

    def _compare_writers(self) -> None:
        stored = {row.name: row for row in self.log.writers()}
        for name, (index, hashed) in self._writer_ends.items():
            row = stored.get(name)
            if self._linked is not None and name not in self._linked:
                continue
            if row is None or (row.last_index, row.last_hash) != (index, hashed):
                self.flaw("CFD-A14", f"writer {name}", f"its row isn't about its last entry, {index}")


def _openable(stored: dict[int, StoredEntry]) -> dict[int, bytes]:
    return {index: row.leaf for index, row in stored.items() if 0 < len(row.leaf) <= MAX_READ_BYTES}


def _tilewise(rows: Iterator[StoredEntry]) -> Iterator[tuple[int, dict[int, StoredEntry]]]:
    """Yield the number of each tile of level 0 that has an entry, with their rows by index."""
    for n, group in groupby(rows, key=lambda row: row.index // HASHES_PER_TILE):
        yield n, {row.index: row for row in group}
