"""The tree over all boxes of one dealer: its signed root fixes what every recipient was sent (shape: RFC 9162 §2.1)."""

from collections.abc import Sequence

from privacy.secagg.derivation import digest
from privacy.secagg.messages import Box


def deal_leaf(roster: bytes, box: Box) -> bytes:
    """Return the leaf of a box and its two commitments."""
    parts = (bytes.fromhex(text) for text in (box.c_b, box.c_m, box.box))
    return digest("deal", roster, box.sender, box.to, *parts)


def _node(left: bytes, right: bytes) -> bytes:
    return digest("node", left, right)


def _left_size(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over at least one leaf."""
    if len(leaves) == 1:
        return leaves[0]
    cut = _left_size(len(leaves))
    return _node(tree_root(leaves[:cut]), tree_root(leaves[cut:]))


def tree_paths(leaves: Sequence[bytes]) -> tuple[bytes, list[list[bytes]]]:
    """Return the root and the path of each leaf, from the leaf upwards."""
    if len(leaves) == 1:
        return leaves[0], [[]]
    cut = _left_size(len(leaves))
    left, left_paths = tree_paths(leaves[:cut])
    right, right_paths = tree_paths(leaves[cut:])
    return _node(left, right), [[*path, right] for path in left_paths] + [[*path, left] for path in right_paths]


def root_from(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root to which `path` leads from a leaf, or None if its length doesn't fit the tree."""
    if size == 1:
        return leaf if not path else None
    if not path:
        return None
    cut = _left_size(size)
    if index < cut:
        below = root_from(leaf, index, cut, path[:-1])
        return None if below is None else _node(below, path[-1])
    below = root_from(leaf, index - cut, size - cut, path[:-1])
    return None if below is None else _node(path[-1], below)
