"""A bundle, or a directory of tiles, as a log that is read: nothing of it is shown unless all of it was verified."""

from collections.abc import Iterator
from typing import Final

from audit import checkpoint as checkpoints
from audit import proofs
from audit.checked import Row, refused
from audit.entry import read_leaf
from audit.errors import AuditError, LogUnreadable
from audit.export import bundle, container
from audit.export.bundle import Manifest
from audit.export.bundle_check import BundleReader, check_files
from audit.export.container import BundleFiles
from audit.export.tile_files import TileFiles
from audit.filters import Filters
from audit.findings import Verdict
from audit.frame import hash_text
from audit.keyring import Keyring
from audit.merkle import leaf_hash
from audit.proof_file import ProofFile
from audit.pruning import INSIDE_HASHES
from audit.tiles import HASHES_PER_TILE, TrustedTiles


class BundleLog:
    """The entries of a container that was verified as a whole.

    Args:
        files: The container.
        reader: Whose keys the reader trusts.

    Raises:
        AuditError: It has a flaw; the first one says which.
        LogUnreadable: It is no bundle.
    """

    def __init__(self, files: BundleFiles, reader: BundleReader) -> None:
        found = check_files(files, reader)
        if found.verdict is Verdict.FLAWED:
            first = found.flaws[0]
            raise refused(f"{first.where}: {first.what}", first.code)
        self._files = files
        data = container.read(files, bundle.MANIFEST, limit_bytes=bundle.MAX_MANIFEST_BYTES)
        self._manifest = Manifest.parse(data) if data else None
        note = container.read(files, bundle.CHECKPOINT if data else "checkpoint")
        self._note: Final = checkpoints.parse(note)
        self.origin: Final = found.origin
        self.size: Final = found.size
        self.signed_size: Final = found.size
        self.witnessed: Final = bool(found.cosigned)

    @property
    def complete(self) -> bool:
        """Return whether the container has tiles, so that proofs can be made from it."""
        return self._manifest is None or self._manifest.complete

    def _prefix(self) -> str:
        return "" if self._manifest is None else bundle.TILES

    @property
    def tree(self) -> TrustedTiles:
        """Return the tiles, each of which leads to the checkpoint's root.

        Raises:
            LogUnreadable: The container is a selection.
        """
        if not self.complete:
            raise LogUnreadable("a selection has no tiles", hint="its folder proofs/ has the proof of each entry")
        return TrustedTiles(TileFiles(self._files, self._prefix(), self.size), self.size, self._note.root)

    @property
    def begin(self) -> int:
        """Return the first index that the container has."""
        return 0 if self._manifest is None else self._manifest.first

    @property
    def end(self) -> int:
        """Return the index behind the last that the container has."""
        return self.size if self._manifest is None else self._manifest.end

    def inside(self, index: int) -> proofs.Proof:
        """Return the path inside of the tile of an entry of the trail that isn't in the container's tiles."""
        n = index // HASHES_PER_TILE
        data = container.read(self._files, bundle.trail_proof_path(index))
        gone = index < self.begin and n < self.size // HASHES_PER_TILE and n < self.begin // HASHES_PER_TILE
        return ProofFile.parse(data).path[:INSIDE_HASHES] if data and gone else ()

    def trail(self) -> list[tuple[int, bytes]]:
        """Return index and leaf of entry 0 and of all that others are judged by."""
        indices = bundle.numbered(self._files.sizes, "trail", "entry")
        return [(index, container.read(self._files, bundle.trail_path(index))) for index in indices]

    @property
    def keyring(self) -> Keyring:
        """Return the keys that the log declares."""
        from audit.frame import keyring_of

        return keyring_of(self.trail(), self.origin)

    def checkpoint(self) -> bytes:
        """Return the checkpoint that everything here leads to."""
        return bytes(self._note.signed)

    def quorums(self) -> dict[int, bytes]:
        """Return the checkpoints that the container has, by size."""
        sizes = bundle.numbered(self._files.sizes, "checkpoints", "checkpoint")
        found = {size: container.read(self._files, bundle.checkpoint_path(size)) for size in sizes}
        return {**found, **({self.size: self.checkpoint()} if self.witnessed else {})}

    def leaves(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the leaves from `first` up to `end`, empty where one was redacted.

        Raises:
            AuditError: The container doesn't have them all.
        """
        begin, stop = (0, self.size) if self._manifest is None else (self._manifest.first, self._manifest.end)
        if not self.complete or not begin <= first <= end <= stop:
            raise LogUnreadable(f"the container doesn't have all entries from {first} to {end - 1}")
        files = TileFiles(self._files, self._prefix(), self.size)
        for n in range(first // HASHES_PER_TILE, -(-end // HASHES_PER_TILE)):
            for index, leaf in enumerate(files.leaves(n), n * HASHES_PER_TILE):
                if first <= index < end:
                    yield leaf

    def _indexed(self) -> Iterator[tuple[int, bytes]]:
        if self.complete:
            first, end = (0, self.size) if self._manifest is None else (self._manifest.first, self._manifest.end)
            yield from enumerate(self.leaves(first, end), first)
            return
        for index in bundle.numbered(self._files.sizes, "entries", "entry"):
            yield index, container.read(self._files, bundle.entry_path(index))

    def rows(self, first: int = 0) -> Iterator[Row]:
        """Yield the entries that the container has from `first` on."""
        for index, leaf in self._indexed():
            if index >= first and leaf:
                entry, _ = read_leaf(leaf, origin=self.origin)
                hashed = hash_text(leaf_hash(leaf))
                yield Row(self.origin, index, hashed, leaf, entry.event, entry.interpreted, str(index))

    def row(self, index: int) -> Row:
        """Return the entry at `index`.

        Raises:
            AuditError: The container doesn't have it.
        """
        found = next(self.rows(index), None)
        if found is None or found.index != index:
            raise AuditError("CFD-A19", f"the container doesn't have entry {index}", hint="ask for a larger export")
        return found

    def find_id(self, event_id: bytes) -> int | None:
        """Return the index of the entry under an event's id."""
        return next((row.index for row in self.rows() if row.event["id"] == event_id.hex()), None)

    def matching(self, filters: Filters) -> Iterator[Row]:
        """Yield the entries that `filters` ask for, in order; their limit is the caller's."""
        return (row for row in self.rows() if filters.match(row.index, row.event))

    def count(self, filters: Filters) -> int:
        """Return how many entries `matching` yields."""
        return sum(1 for _ in self.matching(filters))

    def prove(self, index: int) -> bytes | None:
        """Return the proof file of an entry that a selection has."""
        data = container.read(self._files, bundle.proof_path(index), limit_bytes=proofs.MAX_HASHES << 20)
        return data or None
