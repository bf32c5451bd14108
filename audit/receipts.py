"""The tree of a round's receipts: what each survivor's log says of what it sent, under one root; pure.

The leaves are the leaf hashes of the survivors' entries `update.sent`, in the order of site ids. The coordinator's
entry that ends the round holds the root (RFC 6962 §2.1); each survivor gets the path to its own leaf.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from audit import proofs
from audit.merkle import EMPTY_ROOT
from audit.tiles import HASH_BYTES, Edge


@dataclass(frozen=True, slots=True)
class Place:
    """Where one site's receipt is in a round's tree.

    Attributes:
        index: Which of the leaves.
        count: How many there are.
        path: The inclusion proof.
    """

    index: int
    count: int
    path: proofs.Proof


class _Leaves:
    """The tree in memory."""

    def __init__(self, leaf_hashes: list[bytes]) -> None:
        growth = Edge().grow(leaf_hashes)
        self._tiles = {(tile.level, tile.n): tile.hashes for tile in growth.tiles}
        self.root = growth.edge.root() if leaf_hashes else EMPTY_ROOT

    def tile(self, level: int, n: int, width: int) -> bytes:
        """Return the first `width` hashes of a tile."""
        return self._tiles[level, n][: HASH_BYTES * width]


def receipts_root(leaf_hashes: Mapping[str, bytes]) -> bytes:
    """Return the root over these leaf hashes, given by site id."""
    return _Leaves([leaf_hashes[site] for site in sorted(leaf_hashes)]).root


def places(leaf_hashes: Mapping[str, bytes]) -> dict[str, Place]:
    """Return where each site's receipt is in the tree, by site id."""
    sites = sorted(leaf_hashes)
    tree = _Leaves([leaf_hashes[site] for site in sites])
    return {
        site: Place(index, len(sites), proofs.prove_inclusion(tree, index, len(sites)))
        for index, site in enumerate(sites)
    }


def check_place(place: Place, leaf_hash: bytes, root: bytes) -> None:
    """Accept the one proof that the tree with `root` holds `leaf_hash` at its place.

    Raises:
        ProofRefused: It doesn't show that.
    """
    proofs.check_inclusion_under_root(leaf_hash, place.index, place.count, place.path, root)
