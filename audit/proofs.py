"""Proofs that an entry is in a log, and that a log only grew (RFC 6962 §2.1), made from tiles; pure.

Making and checking come in pairs. A root that somebody computed proves nothing: `check_inclusion` and
`check_consistency` take checkpoints whose signatures were checked. The two functions beneath, for trees whose root is
known otherwise (a tree of receipts, what a witness saw before), say so in their names.
"""

import hmac
from collections.abc import Iterable, Sequence
from typing import Final

from audit.checkpoint import OpenedCheckpoint
from audit.errors import NoteRefused, ProofRefused
from audit.merkle import EMPTY_ROOT, node_hash
from audit.note import decode_base64
from audit.tiles import (
    HASH_BYTES,
    HASHES_PER_TILE,
    MAX_SIZE,
    TileReader,
    read_tile,
    root_from_partial_tiles,
    subtree_root,
    tile_width,
)

MAX_HASHES: Final = 63
Proof = tuple[bytes, ...]


def parse_hashes(lines: Sequence[str]) -> Proof:
    """Return the hashes of a proof, one a line in base64.

    Raises:
        NoteRefused: More than 63, or one that isn't a hash.
    """
    if len(lines) > MAX_HASHES:
        raise NoteRefused(f"a proof of {len(lines)} hashes, at most {MAX_HASHES}")
    hashes = tuple(map(decode_base64, lines))
    if any(len(node) != HASH_BYTES for node in hashes):
        raise NoteRefused("a hash of a proof has another length than 32 bytes")
    return hashes


class _Tree:
    """The tree of `size` leaves over tiles; reads each tile and hashes each complete subtree once."""

    def __init__(self, tiles: TileReader, size: int) -> None:
        self._tiles = tiles
        self._size = size
        self._read: dict[tuple[int, int], bytes] = {}
        self._roots: dict[tuple[int, int], bytes] = {}

    def _complete(self, start: int, height: int) -> bytes:
        """Return the root of the 2^height leaves from `start` on."""
        if (start, height) not in self._roots:
            self._roots[start, height] = self._hashed(start, height)
        return self._roots[start, height]

    def _hashed(self, start: int, height: int) -> bytes:
        level, inside = divmod(height, 8)
        n, at = divmod(start >> 8 * level, HASHES_PER_TILE)
        if (level, n) not in self._read:
            self._read[level, n] = read_tile(self._tiles, level, n, tile_width(level, n, self._size))
        hashes = self._read[level, n]
        nodes = range(at, at + (1 << inside))
        return subtree_root([hashes[HASH_BYTES * node : HASH_BYTES * (node + 1)] for node in nodes])

    def root(self, start: int, end: int) -> bytes:
        """Return MTH(D[start:end]) of a range that the recursions of RFC 6962 come to."""
        subtrees = []
        for height in reversed(range((end - start).bit_length())):
            if (end - start) >> height & 1:
                subtrees.append(self._complete(start, height))
                start += 1 << height
        node = subtrees.pop()
        while subtrees:
            node = node_hash(subtrees.pop(), node)
        return node


def _split(count: int) -> int:
    """Return the largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def prove_inclusion(tiles: TileReader, index: int, size: int, inside: Proof = ()) -> Proof:
    """Return PATH(index, D[size]), from the leaf's sibling up (RFC 6962 §2.1.1).

    Args:
        tiles: The tiles.
        index: The leaf.
        size: The number of leaves.
        inside: The path inside of the leaf's tile of level 0, where that tile was pruned.

    Raises:
        ProofRefused: The tree of `size` leaves has no leaf `index`.
        AuditError: A tile is missing, or `tiles` finds it altered.
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise ProofRefused(f"a tree of {size} entries has no entry {index}")
    tree, path = _Tree(tiles, size), []
    start, end = 0, size
    while end - start > (HASHES_PER_TILE if inside else 1):
        middle = start + _split(end - start)
        if index < middle:
            path.append(tree.root(middle, end))
            end = middle
        else:
            path.append(tree.root(start, middle))
            start = middle
    return (*inside, *reversed(path))


def prove_consistency(tiles: TileReader, old_size: int, size: int) -> Proof:
    """Return PROOF(old_size, D[size]); empty from 0 and between equal sizes (RFC 6962 §2.1.2).

    Raises:
        ProofRefused: `old_size` lies above `size`, or below 0.
        AuditError: A tile is missing, or `tiles` finds it altered.
    """
    return prove_growth(tiles, [old_size], size)[old_size]


def prove_growth(tiles: TileReader, old_sizes: Iterable[int], size: int) -> dict[int, Proof]:
    """Return the consistency proof from each of `old_sizes`, by old size; what they share is read and hashed once.

    Raises:
        ProofRefused: An old size lies above `size`, or below 0.
    """
    tree = _Tree(tiles, size)
    return {old: _consistency(tree, old, size) for old in old_sizes}


def _consistency(tree: _Tree, old_size: int, size: int) -> Proof:
    if not 0 <= old_size <= size <= MAX_SIZE:
        raise ProofRefused(f"a tree of {size} entries was never one of {old_size}")
    if old_size in (0, size):
        return ()
    proof: list[bytes] = []
    start, end = 0, size
    while end != old_size:
        middle = start + _split(end - start)
        if old_size <= middle:
            proof.append(tree.root(middle, end))
            end = middle
        else:
            proof.append(tree.root(start, middle))
            start = middle
    if start:  # the old tree's own root is known to whoever checks
        proof.append(tree.root(start, end))
    return tuple(reversed(proof))


def root_at(tiles: TileReader, size: int) -> bytes:
    """Return the root that the tree had when it had `size` leaves.

    Raises:
        AuditError: A tile is missing, or `tiles` finds it altered.
    """
    return root_from_partial_tiles(tiles, size)


def _check_hashes(*hashes: bytes) -> None:
    if any(len(node) != HASH_BYTES for node in hashes):
        raise ProofRefused("a hash of another length than 32 bytes")


def _refuse_unless_equal(found: bytes, wanted: bytes, what: str) -> None:
    if not hmac.compare_digest(found, wanted):
        raise ProofRefused(what)


def check_inclusion_under_root(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Accept the one proof that the tree of `size` leaves with `root` holds `leaf_hash` at `index` (RFC 9162 §2.1.3.2).

    Raises:
        ProofRefused: It doesn't show that.
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise ProofRefused(f"a tree of {size} entries has no entry {index}")
    _check_hashes(leaf_hash, root, *proof)
    node, at, last = leaf_hash, index, size - 1
    for sibling in proof:
        if not last:
            raise ProofRefused("the proof is too long")
        if at & 1 or at == last:
            node = node_hash(sibling, node)
            while at and not at & 1:  # levels on which the node has no sibling
                at, last = at >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        at, last = at >> 1, last >> 1
    if last:
        raise ProofRefused("the proof is too short")
    _refuse_unless_equal(node, root, f"the proof doesn't show entry {index} under this root")


def check_consistency_of_roots(old_size: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """Accept the one proof that the tree of `size` leaves begins with that of `old_size` (RFC 9162 §2.1.4.2).

    Raises:
        ProofRefused: It doesn't show that.
    """
    if not 0 <= old_size <= size <= MAX_SIZE:
        raise ProofRefused(f"a tree of {size} entries was never one of {old_size}")
    _check_hashes(old_root, root, *proof)
    if old_size in (0, size):
        if proof:
            raise ProofRefused("a proof where none is needed")
        wanted = root if old_size else EMPTY_ROOT
        _refuse_unless_equal(old_root, wanted, f"another root of the first {old_size} entries")
        if not size:
            _refuse_unless_equal(root, EMPTY_ROOT, "an empty tree has one root")
        return
    if not proof:
        raise ProofRefused("the proof is too short")
    # RFC 9162 §2.1.4.2: the old tree's root begins the proof where the old tree is one complete subtree
    first, *rest = [old_root, *proof] if old_size & (old_size - 1) == 0 else proof
    at, last = old_size - 1, size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    old_node = node = first
    for sibling in rest:
        if not last:
            raise ProofRefused("the proof is too long")
        if at & 1 or at == last:
            old_node, node = node_hash(sibling, old_node), node_hash(sibling, node)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        at, last = at >> 1, last >> 1
    if last:
        raise ProofRefused("the proof is too short")
    _refuse_unless_equal(old_node, old_root, f"the proof doesn't show the old root of {old_size} entries")
    _refuse_unless_equal(node, root, f"the proof doesn't show the root of {size} entries")


def check_inclusion(leaf_hash: bytes, index: int, proof: Sequence[bytes], checkpoint: OpenedCheckpoint) -> None:
    """Accept the one proof that the log of `checkpoint` holds `leaf_hash` at `index`.

    Raises:
        ProofRefused: It doesn't show that.
    """
    check_inclusion_under_root(leaf_hash, index, checkpoint.size, proof, checkpoint.root)


def check_consistency(old: OpenedCheckpoint, new: OpenedCheckpoint, proof: Sequence[bytes]) -> None:
    """Accept the one proof that a log only grew between two of its checkpoints.

    Raises:
        ProofRefused: They are of two logs, or the proof doesn't show that.
    """
    if old.origin != new.origin:
        raise ProofRefused(f"checkpoints of two logs, {old.origin} and {new.origin}")
    check_consistency_of_roots(old.size, old.root, new.size, new.root, proof)
