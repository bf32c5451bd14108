"""Writes a bundle: from a checked log at one checkpoint, file by file, in memory independent of its size; pure.

Where the bytes go is the sink's. What is written is only what was found in the tree of the checkpoint.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from audit import checkpoint as checkpoints
from audit import proofs, tiles
from audit.canonical import Event
from audit.columns import Selection
from audit.errors import LogUnreadable
from audit.export import bundle
from audit.export.bundle import FileSum, Manifest
from audit.export.verifier import verifier_source
from audit.frame import hash_text, read_frame
from audit.merkle import leaf_hash
from audit.note import VerifierKey, encode_base64
from audit.proof_file import ProofFile
from audit.tiles import HASHES_PER_TILE, TileReader

Piece = Iterable[bytes]
Proved = tuple[int, bytes, Event]
"""Index, leaf and event of an entry that was found in the tree."""


class ProvableLog(Protocol):
    """A log of which nothing is handed out that its tree doesn't hold."""

    @property
    def tree(self) -> TileReader:
        """Return its checked tiles."""
        ...

    @property
    def begin(self) -> int:
        """Return the index below which entries went to an archive; 0 where none did."""
        ...

    def inside(self, index: int) -> proofs.Proof:
        """Return the path inside of the tile of an entry of the trail whose tile was pruned, else nothing."""
        ...

    def leaves(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the leaves from `first` up to `end`, empty where one was redacted.

        Raises:
            AuditError: At the first that is missing or doesn't agree.
        """
        ...

    def trail(self) -> list[tuple[int, bytes]]:
        """Return index and leaf of entry 0 and of all that others are judged by."""
        ...


class Sink(Protocol):
    """Where the files of a bundle go."""

    def put(self, name: str, pieces: Piece) -> None:
        """Write one file."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be exported.

    Attributes:
        filters: What is asked for, of `columns.FILTERS`.
        complete: All entries of the range, so that nothing can be missing.
        policy: The text of the trust policy, as information.
        others: Other checkpoints of the log, by size, as they are signed.
        renderings: What else goes in, by file name.
        private: The lines that open commitments.
    """

    filters: Mapping[str, str | int]
    complete: bool
    policy: str
    others: Mapping[int, bytes] = field(default_factory=dict)
    renderings: Mapping[str, Piece] = field(default_factory=dict)
    private: Piece | None = None


@dataclass(slots=True)
class BundleWriter:
    """One bundle of `log` under `signed`, into `sink`.

    Attributes:
        log: The log.
        signed: The checkpoint that all proofs lead to.
        sink: Where the files go.
        request: What is asked for.
        first: The first index of the range.
        end: The index behind its last.
    """

    log: ProvableLog
    signed: checkpoints.OpenedCheckpoint
    sink: Sink
    request: Request
    first: int
    end: int
    matched: int = 0
    _sums: dict[str, FileSum] = field(default_factory=dict)

    def write(self) -> Manifest:
        """Write all files, the manifest last, and return it."""
        request, signed = self.request, self.signed
        self._put(bundle.POLICY, request.policy.encode())
        self._put(bundle.CHECKPOINT, bytes(signed.signed))
        self._write_trail()
        if request.complete:
            self._write_tiles()
        else:
            self._write_selection()
        self._put_pieces(bundle.ROWS, self._rows())
        for size, note in request.others.items():
            self._write_other(size, note)
        for name, pieces in request.renderings.items():
            self._put_pieces(name, pieces)
        if request.private is not None:
            self._put_pieces(bundle.PRIVATE, request.private)
        self._put(bundle.VERIFIER, verifier_source())
        self._put(bundle.READ_ME, self._read_me().encode())
        manifest = Manifest(
            signed.origin,
            signed.size,
            signed.root,
            request.complete,
            self.first,
            self.end,
            request.filters,
            dict(self._sums),
        )
        self.sink.put(bundle.MANIFEST, [bytes(manifest)])
        return manifest

    def matching(self) -> Iterator[Proved]:
        """Yield what is asked for, in order."""
        selection = Selection(self.request.filters)
        for index, leaf in enumerate(self.log.leaves(self.first, self.end), self.first):
            if leaf:
                event, _ = read_frame(leaf, origin=self.signed.origin)
                if selection.take(event):
                    yield index, leaf, event

    def _put(self, name: str, data: bytes) -> None:
        self._put_pieces(name, [data])

    def _put_pieces(self, name: str, pieces: Piece) -> None:
        hashed, size = hashlib.sha256(), 0

        def passing() -> Iterator[bytes]:
            nonlocal size
            for piece in pieces:
                hashed.update(piece)
                size += len(piece)
                yield piece

        self.sink.put(name, passing())
        self._sums[name] = FileSum(name, size, "sha256:" + hashed.hexdigest())

    def _proof(self, index: int, leaf: bytes | None = None) -> bytes:
        return bytes(proof_of(self.log, self.signed, index, leaf))

    def _rows(self) -> Iterator[bytes]:
        for index, leaf, event in self.matching():
            self.matched += 1
            yield bundle.row_line(index, hash_text(leaf_hash(leaf)), event)

    def _write_trail(self) -> None:
        for index, leaf in self.log.trail():
            if index < self.signed.size:
                self._put(bundle.trail_path(index), leaf)
                self._put(bundle.trail_proof_path(index), self._proof(index))

    def _write_selection(self) -> None:
        for index, leaf, _ in self.matching():
            self._put(bundle.entry_path(index), leaf)
            self._put(bundle.proof_path(index), self._proof(index))

    def _write_tiles(self) -> None:
        for path, data in tiles_of(self.log, self.signed.size, self.first, self.end):
            self._put(bundle.TILES + path, data)

    def _write_other(self, size: int, note: bytes) -> None:
        small, large = sorted((size, self.signed.size))
        if large > self.signed.size or size == self.signed.size or not size:
            return  # a later one leads out of the tree that this bundle is about
        proof = proofs.prove_consistency(self.log.tree, small, large)
        self._put(bundle.checkpoint_path(size), note)
        self._put(bundle.consistency_path(size), "".join(f"{encode_base64(node)}\n" for node in proof).encode())

    def _read_me(self) -> str:
        asked = ", ".join(f"{name} {value}" for name, value in sorted(self.request.filters.items())) or "everything"
        keys = "\n".join(fingerprint(key) for key in self.signed.signers)
        what = "all entries that match" if self.request.complete else "a selection of entries, each with its proof"
        return READ_ME.format(origin=self.signed.origin, what=what, asked=asked, size=self.signed.size, keys=keys)


READ_ME: Final = """\
Entries of the audit log {origin}

This bundle holds {what}: {asked}.
All proofs lead to the checkpoint of {size} entries in log/checkpoint.

To check it, offline, with Python 3.11 or newer and the package `cryptography`:

    python3 verify.py --trust POLICY

or, with Confide installed:

    confide audit verify THIS-BUNDLE --trust POLICY

POLICY holds the keys that you trust. The file `policy` here is the exporter's: use a copy of it only after you
compared, over the phone or from a letter, that these are the keys of the log:

{keys}

What is proved: that these entries are in the log, unchanged and signed by their writers, and with a complete bundle
that none of the range is missing. What is not: that nothing was left unrecorded, and that what was written is true.
rows.jsonl is what the check compares with the entries. Renderings (.csv, .html, .pdf, .ndjson) are for reading only.
"""


def fingerprint(key: VerifierKey) -> str:
    """Return a key as two people compare it: its name, id and the key itself in groups of four hex digits."""
    digits = key.public.hex()
    groups = " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))
    return f"    {key.name}  id {key.id.hex()}\n    {groups}"


def proof_of(
    log: ProvableLog, signed: checkpoints.OpenedCheckpoint, index: int, leaf: bytes | None = None
) -> ProofFile:
    """Return the proof file of entry `index` under `signed`, with the leaf where that is given."""
    path = proofs.prove_inclusion(log.tree, index, signed.size, log.inside(index))
    return ProofFile(index, path, signed, leaf)


def tiles_of(log: ProvableLog, size: int, first: int, end: int) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of the tiles of a tree of `size`: all upper ones, and those of level 0 that are needed.

    Level 0 and the entries beside it are those that overlap the range from `first` up to `end`, and the partial tile;
    entries outside of the range are blank.
    """
    wanted = set(range(first // HASHES_PER_TILE, -(-end // HASHES_PER_TILE)))
    for n in sorted(wanted | ({size // HASHES_PER_TILE} if size % HASHES_PER_TILE else set())):
        width = tiles.tile_width(0, n, size)
        yield tiles.tile_path(0, n, width), log.tree.tile(0, n, width)
        if n in wanted:
            yield tiles.entries_path(n, width), _entries(log, n * HASHES_PER_TILE, width, first, end)
    level = 1
    while size >> (8 * level):
        for n in range(-(-(size >> (8 * level)) // HASHES_PER_TILE)):
            width = tiles.tile_width(level, n, size)
            yield tiles.tile_path(level, n, width), log.tree.tile(level, n, width)
        level += 1


def _entries(log: ProvableLog, begin: int, width: int, first: int, end: int) -> bytes:
    start, stop = max(begin, first), min(begin + width, end)
    leaves = [b""] * (start - begin) + list(log.leaves(start, stop))
    if len(leaves) != stop - begin:
        raise LogUnreadable(f"entries {start} to {stop - 1} can't all be read")
    return tiles.encode_entries([*leaves, *([b""] * (begin + width - stop))])


def fences(log: ProvableLog, origin: str, size: int, filters: Mapping[str, str | int]) -> tuple[int, int]:
    """Return the range that shows that nothing which matches is missing: it begins before `since_us`, ends at or
    behind `until_us`, or where the log does."""
    since, until = filters.get("since_us"), filters.get("until_us")
    first, end = log.begin, size
    if since is not None:
        begun = first_at(log, origin, size, int(since))
        first = next(
            (at for at in range(begun - 1, log.begin - 1, -1) if _time(log, origin, at) is not None), log.begin
        )
    if until is not None:
        ended = first_at(log, origin, size, int(until))
        end = next((at + 1 for at in range(ended, size) if _time(log, origin, at) is not None), size)
    return first, max(end, first + 1)


def _time(log: ProvableLog, origin: str, index: int) -> int | None:
    """Return the time of an entry, None of a redacted one."""
    (leaf,) = islice(log.leaves(index, index + 1), 1)
    return int(read_frame(leaf, origin=origin)[0]["t_us"]) if leaf else None


def first_at(log: ProvableLog, origin: str, size: int, t_us: int) -> int:
    """Return the first index at or after a time: times never decrease within a log."""
    low, high = log.begin, size
    while low < high:
        middle = (low + high) // 2
        at = next((one for one in range(middle, high) if _time(log, origin, one) is not None), None)
        if at is None:
            high = middle
            continue
        if (_time(log, origin, at) or 0) < t_us:
            low = at + 1
        else:
            high = middle
    return low
