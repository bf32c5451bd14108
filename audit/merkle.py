"""The Merkle tree of RFC 6962 (SHA-256), as far as one root at a time needs it; pure.

A `Frontier` is the list of the roots of the complete subtrees, from the largest to the smallest: at most 63 hashes,
from which the root of the whole tree follows. Adding a leaf costs one node hash, amortised.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

EMPTY_ROOT: Final = hashlib.sha256(b"").digest()


def leaf_hash(leaf: bytes) -> bytes:
    """Return the hash of a leaf (RFC 6962 §2.1: SHA-256(0x00 ‖ leaf))."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node (RFC 6962 §2.1: SHA-256(0x01 ‖ left ‖ right))."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The complete subtrees of a tree of `size` leaves; a value, so that a failed commit leaves the old one whole.

    Attributes:
        size: The number of leaves.
        subtrees: Roots of the complete subtrees, largest first; as many as `size` has one bits.
    """

    size: int = 0
    subtrees: tuple[bytes, ...] = ()

    @classmethod
    def unknown(cls, size: int) -> Self:
        """Return a frontier of `size` leaves whose hashes aren't known, to go on counting behind a damage."""
        return cls(size, (bytes(32),) * size.bit_count())

    def add(self, hashed_leaf: bytes) -> Self:
        """Return the frontier of the tree with one leaf more, whose leaf hash is `hashed_leaf`."""
        subtrees = list(self.subtrees)
        node = hashed_leaf
        ones = self.size
        while ones & 1:  # two complete subtrees of equal size are one of twice that size
            node = node_hash(subtrees.pop(), node)
            ones >>= 1
        return type(self)(self.size + 1, (*subtrees, node))

    def root(self) -> bytes:
        """Return the root of the tree (RFC 6962 §2.1: split at the largest power of two below the size)."""
        if not self.subtrees:
            return EMPTY_ROOT
        *rest, node = self.subtrees
        for subtree in reversed(rest):
            node = node_hash(subtree, node)
        return node


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Return the root of the tree over `leaves`."""
    frontier = Frontier()
    for leaf in leaves:
        frontier = frontier.add(leaf_hash(leaf))
    return frontier.root()
