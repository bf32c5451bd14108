"""The Merkle tree in tiles of 256 hashes (C2SP tlog-tiles), and how a reader comes to trust one; pure.

Tile n of level L holds the roots of the complete subtrees of 256^L leaves, from the (256·n)th on. A full tile never
changes; the partial tile of a level is its right edge. The partial tiles of all levels alone determine the root, so
whoever knows the root can check them; every full tile is then checked against the one hash of it in the tile above.

Level 0 is made of leaf hashes; the leaves themselves lie in entry bundles, one for each tile of level 0.
"""

import hmac
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, Self

from audit.errors import ProofRefused
from audit.merkle import Frontier, node_hash

HASH_BYTES: Final = 32
HASHES_PER_TILE: Final = 256
MAX_SIZE: Final = (1 << 63) - 1
MAX_LEAF_BYTES: Final = 65_535
MAX_LEVEL: Final = 7
_TILE_BITS: Final = 8  # 256 hashes are the leaves of a subtree of this height
_PATH: Final = re.compile(r"tile/(entries|[0-7])/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?\Z")


class TileReader(Protocol):
    """Something that holds the tiles of a tree."""

    def tile(self, level: int, n: int, width: int) -> bytes:
        """Return the first `width` hashes (1 to 256) of a tile, 32 bytes each.

        A reader that holds more hashes of that tile returns its beginning: a tree only grows to the right.

        Raises:
            AuditError: There is no such tile, or it has fewer hashes.
        """
        ...


class TilePath(NamedTuple):
    """What a path of C2SP tlog-tiles names: a tile of hashes, or a bundle of entries where `level` is None."""

    level: int | None
    n: int
    width: int = HASHES_PER_TILE

    def exists(self) -> bool:
        """Return whether a tree of fewer than 2^63 leaves can have this tile."""
        level = self.level or 0
        fits = 0 <= level <= MAX_LEVEL and 0 <= self.n <= MAX_SIZE >> (_TILE_BITS * (level + 1))
        return fits and 0 < self.width <= HASHES_PER_TILE

    def __str__(self) -> str:
        thousands, last = divmod(self.n, 1000)
        number = f"{last:03}"
        while thousands:
            thousands, group = divmod(thousands, 1000)
            number = f"x{group:03}/{number}"
        kind = "entries" if self.level is None else self.level
        partial = "" if self.width == HASHES_PER_TILE else f".p/{self.width}"
        return f"tile/{kind}/{number}{partial}"

    @classmethod
    def parse(cls, path: str) -> Self:
        """Return what `path` names.

        Raises:
            ProofRefused: Not the one path of a tile or bundle in a tree of fewer than 2^63 leaves.
        """
        match = _PATH.match(path)
        if match is None:
            raise ProofRefused("not the path of a tile", code="CFD-A03")
        kind, number, partial = match.groups()
        level = None if kind == "entries" else int(kind)
        parsed = cls(level, int(re.sub("[x/]", "", number)), int(partial or HASHES_PER_TILE))
        if not parsed.exists() or str(parsed) != path:
            raise ProofRefused("not the path of a tile", code="CFD-A03")
        return parsed


def tile_path(level: int, n: int, width: int = HASHES_PER_TILE) -> str:
    """Return the path of tile `n` of `level` with `width` hashes, such as ``tile/0/x001/x234/067.p/8``.

    Raises:
        ProofRefused: No tree of fewer than 2^63 leaves has such a tile.
    """
    return _path(TilePath(level, n, width))


def entries_path(n: int, width: int = HASHES_PER_TILE) -> str:
    """Return the path of the bundle of the `width` entries from the (256·n)th on.

    Raises:
        ProofRefused: No tree of fewer than 2^63 leaves has such a bundle.
    """
    return _path(TilePath(None, n, width))


def _path(named: TilePath) -> str:
    if not named.exists():
        raise ProofRefused("a tree has no such tile", code="CFD-A03")
    return str(named)


def tile_width(level: int, n: int, size: int) -> int:
    """Return how many hashes tile `n` of `level` has in a tree of `size` leaves; 0 where there is no such tile."""
    return min(max((size >> (_TILE_BITS * level)) - HASHES_PER_TILE * n, 0), HASHES_PER_TILE)


def partial_widths(size: int) -> tuple[int, ...]:
    """Return the width of each level's partial tile in a tree of `size` leaves, from level 0 up; 0 for none."""
    widths = []
    while size:
        size, width = divmod(size, HASHES_PER_TILE)
        widths.append(width)
    return tuple(widths)


def split_hashes(hashes: bytes) -> list[bytes]:
    """Return the hashes of a tile one by one."""
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def encode_entries(leaves: Iterable[bytes]) -> bytes:
    """Return the bundle of `leaves`: each with its length in two bytes, big-endian; a redacted one is empty.

    Raises:
        ProofRefused: A leaf is longer than two bytes can say.
    """
    bundle = bytearray()
    for leaf in leaves:
        if len(leaf) > MAX_LEAF_BYTES:
            raise ProofRefused(f"a leaf of {len(leaf)} bytes, at most {MAX_LEAF_BYTES}", code="CFD-A02")
        bundle += len(leaf).to_bytes(2, "big") + leaf
    return bytes(bundle)


def decode_entries(bundle: bytes, width: int) -> tuple[bytes, ...]:
    """Return the `width` leaves of a bundle, empty where one was redacted.

    Raises:
        ProofRefused: The bundle ends early, or goes on behind them.
    """
    leaves: list[bytes] = []
    at = 0
    for _ in range(width):
        end = at + 2 + int.from_bytes(bundle[at : at + 2], "big")
        if at + 2 > len(bundle) or end > len(bundle):
            raise ProofRefused(f"a bundle of {width} entries ends in entry {len(leaves)}", code="CFD-A02")
        leaves.append(bundle[at + 2 : end])
        at = end
    if at != len(bundle):
        raise ProofRefused(f"a bundle goes on behind its {width} entries", code="CFD-A02")
    return tuple(leaves)


class Tile(NamedTuple):
    """A tile that an append made or changed."""

    level: int
    n: int
    hashes: bytes

    @property
    def width(self) -> int:
        """Return the number of its hashes."""
        return len(self.hashes) // HASH_BYTES

    @property
    def full(self) -> bool:
        """Return whether it will never change again."""
        return len(self.hashes) == HASH_BYTES * HASHES_PER_TILE


@dataclass(frozen=True, slots=True)
class Edge:
    """The right edge of a tree, which is all that appending needs; a value, so that a failed commit changes nothing.

    Attributes:
        frontier: The roots of the complete subtrees, from which the root of the tree follows.
        partial: The hashes of each level's partial tile, from level 0 up; empty where it has none.
    """

    frontier: Frontier = field(default_factory=Frontier)
    partial: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, reader: TileReader, size: int) -> Self:
        """Return the edge of the tree of `size` leaves from its partial tiles; whose tree it is the root must show.

        Raises:
            AuditError: A partial tile is missing.
            ProofRefused: The reader gave a tile of another width.
        """
        partial = tuple(
            read_tile(reader, level, (size >> (_TILE_BITS * level)) // HASHES_PER_TILE, width) if width else b""
            for level, width in enumerate(partial_widths(size))
        )
        subtrees = (root for hashes in reversed(partial) for root in _complete_subtrees(split_hashes(hashes)))
        return cls(Frontier(size, tuple(subtrees)), partial)

    @property
    def size(self) -> int:
        """Return the number of leaves."""
        return self.frontier.size

    def root(self) -> bytes:
        """Return the root of the tree."""
        return self.frontier.root()

    def grow(self, leaf_hashes: Iterable[bytes]) -> "Growth":
        """Return what the tree becomes by these leaves; one node hash for each of them, amortised.

        Raises:
            ProofRefused: The tree would have 2^63 leaves.
        """
        subtrees = list(self.frontier.subtrees)
        levels = [bytearray(hashes) for hashes in self.partial]
        size, full, grown = self.size, [], 0

        def put(level: int, node: bytes) -> None:
            nonlocal grown
            if level == len(levels):
                levels.append(bytearray())
            levels[level] += node
            grown = max(grown, level + 1)
            if len(levels[level]) == HASH_BYTES * HASHES_PER_TILE:
                n = (size >> (_TILE_BITS * level)) // HASHES_PER_TILE
                full.append(Tile(level, n, bytes(levels[level])))
                levels[level].clear()

        for node in leaf_hashes:
            if size == MAX_SIZE:
                raise ProofRefused("a log has fewer than 2^63 entries")
            put(0, node)
            height = 0
            while size >> height & 1:  # two complete subtrees of equal size are one of twice that size
                node = node_hash(subtrees.pop(), node)  # noqa: PLW2901 (the leaf became a subtree)
                height += 1
                if height % _TILE_BITS == 0:
                    put(height // _TILE_BITS, node)
            subtrees.append(node)
            size += 1
        edge = type(self)(Frontier(size, tuple(subtrees)), tuple(map(bytes, levels)))
        partial = [
            Tile(level, (size >> (_TILE_BITS * level)) // HASHES_PER_TILE, hashes)
            for level, hashes in enumerate(edge.partial[:grown])
            if hashes
        ]
        return Growth(edge, (*full, *partial))


@dataclass(frozen=True, slots=True)
class Growth:
    """What an append makes of a tree.

    Attributes:
        edge: The right edge afterwards, with size and root.
        tiles: The tiles that changed: the full ones in the order in which they filled, then the partial ones.
    """

    edge: Edge
    tiles: tuple[Tile, ...]


def _complete_subtrees(nodes: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the roots of the complete subtrees over `nodes`, the largest first."""
    at = 0
    for bit in reversed(range(_TILE_BITS)):
        if len(nodes) >> bit & 1:
            yield subtree_root(nodes[at : at + (1 << bit)])
            at += 1 << bit


def subtree_root(nodes: Sequence[bytes]) -> bytes:
    """Return the root of the complete subtree over `nodes`, as many as a power of two."""
    while len(nodes) > 1:
        nodes = [node_hash(nodes[at], nodes[at + 1]) for at in range(0, len(nodes), 2)]
    return nodes[0]


def read_tile(reader: TileReader, level: int, n: int, width: int) -> bytes:
    """Return the tile that `reader` gives, which has exactly `width` hashes.

    Raises:
        AuditError: The tile is missing.
        ProofRefused: It has another width.
    """
    hashes = reader.tile(level, n, width)
    if len(hashes) != HASH_BYTES * width:
        where = tile_path(level, n, width)
        raise ProofRefused(f"{where} has {len(hashes)} bytes, not {HASH_BYTES * width}", code="CFD-A03")
    return hashes


def root_from_partial_tiles(reader: TileReader, size: int) -> bytes:
    """Return the root of the tree of `size` leaves, which follows from its partial tiles alone.

    Raises:
        AuditError: A partial tile is missing.
        ProofRefused: The reader gave a tile of another width.
    """
    return Edge.read(reader, size).root()


class TrustedTiles:
    """The tiles of the tree with this size and root: each one that is handed out leads to the root.

    The partial tiles give the root together. A full tile must give the one hash that the tile above has of it, and that
    tile is checked in the same way. Every tile is checked so, whatever was read before: a check that depends on what
    else was asked for leaves some tile unchecked (CVE-2026-56865).

    Args:
        reader: Where the tiles are; not trusted.
        size: The number of leaves, from a checkpoint whose signatures were checked.
        root: The root, from the same checkpoint.
        kept_tiles: How many checked full tiles are kept in memory, 8 kB each.

    Raises:
        AuditError: A partial tile is missing.
        ProofRefused: The partial tiles don't give `root`.
    """

    def __init__(self, reader: TileReader, size: int, root: bytes, *, kept_tiles: int = 256) -> None:
        edge = Edge.read(reader, size)
        if not hmac.compare_digest(edge.root(), root):
            raise ProofRefused(f"the partial tiles of {size} entries don't give the root", code="CFD-A03")
        self.size: Final = size
        self.root: Final = root
        self._reader = reader
        self._partial = edge.partial
        self._full: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._kept_tiles = kept_tiles

    def tile(self, level: int, n: int, width: int) -> bytes:
        """Return the first `width` hashes of a tile, which lead to the root.

        Raises:
            AuditError: The tile, or one above it, is missing.
            ProofRefused: The tree has no such tile, or the tile or one above it was altered.
        """
        there = tile_width(level, n, self.size) if min(level, n) >= 0 else 0
        if not 0 < width <= there:
            what = f"tile {n} of level {level} with {width} hashes"
            raise ProofRefused(f"a tree of {self.size} entries has no {what}", code="CFD-A03")
        hashes = self._partial[level] if there < HASHES_PER_TILE else self._checked(level, n)
        return hashes[: HASH_BYTES * width]

    def _checked(self, level: int, n: int) -> bytes:
        if (level, n) in self._full:
            self._full.move_to_end((level, n))
            return self._full[level, n]
        hashes = read_tile(self._reader, level, n, HASHES_PER_TILE)
        above, at = divmod(n, HASHES_PER_TILE)
        wanted = self.tile(level + 1, above, at + 1)[-HASH_BYTES:]
        if not hmac.compare_digest(subtree_root(split_hashes(hashes)), wanted):
            raise ProofRefused(f"{tile_path(level, n)} was altered", code="CFD-A03")
        self._full[level, n] = hashes
        if len(self._full) > self._kept_tiles:
            self._full.popitem(last=False)
        return hashes
