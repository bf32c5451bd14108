"""Entries that went to an archive, as later entries record it; pure.

Below a multiple of 256 the leaves and the tiles of level 0 go. The upper tiles stay, so every proof of an entry at or
above it, and between sizes at or above it, still works. What judges others stays in the trail: each such leaf with the
8 hashes inside of its tile, from which the upper tiles give the rest of its path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from audit.canonical import Event
from audit.errors import ProofRefused
from audit.frame import read_frame
from audit.merkle import leaf_hash, node_hash
from audit.proofs import Proof
from audit.tiles import HASH_BYTES, HASHES_PER_TILE, TileReader, split_hashes

INSIDE_HASHES: Final = 8


@dataclass(frozen=True, slots=True)
class Pruning:
    """One record.

    Attributes:
        below: The entries before this index went.
        archive: The hash of the archive's manifest.
        record: The entry that says so.
        approvers: How many people approved it.
    """

    below: int
    archive: str
    record: int
    approvers: int


def pruning_of(record: int, event: Event) -> Pruning | None:
    """Return what the entry at `record` says; None of an entry that prunes nothing before it."""
    if event.get("action") != "audit.pruned" or event.get("decision") != "allowed":
        return None
    try:
        found = Pruning(int(event["below"]), str(event["archive"]), record, len(event["approval"]["by"]))
    except (KeyError, TypeError, ValueError):
        return None
    return found if 0 < found.below <= record and found.below % HASHES_PER_TILE == 0 else None


def newest_pruning(trail: Iterable[tuple[int, bytes]], origin: str) -> Pruning | None:
    """Return the pruning that goes furthest of those that a log's trail records, None where there is none."""
    found: Pruning | None = None
    for record, leaf in trail:
        pruning = pruning_of(record, read_frame(leaf, origin=origin)[0])
        if pruning is not None and (found is None or pruning.below > found.below):
            found = pruning
    return found


def inside_of(tile: bytes, at: int) -> Proof:
    """Return the path of the leaf hash `at` inside of a full tile of level 0."""
    nodes, path = split_hashes(tile), []
    while len(nodes) > 1:
        path.append(nodes[at ^ 1])
        nodes = [node_hash(nodes[one], nodes[one + 1]) for one in range(0, len(nodes), 2)]
        at >>= 1
    return tuple(path)


def check_inside(tree: TileReader, index: int, leaf: bytes, inside: Proof) -> None:
    """Accept a leaf of the trail whose tile was pruned, if its path leads to the upper tiles.

    Raises:
        ProofRefused: It doesn't.
        AuditError: An upper tile is missing, or was altered.
    """
    if len(inside) != INSIDE_HASHES or any(len(node) != HASH_BYTES for node in inside):
        raise ProofRefused(f"entry {index} in the trail has no path inside of its tile", code="CFD-A02")
    node, at = leaf_hash(leaf), index
    for sibling in inside:
        node = node_hash(sibling, node) if at & 1 else node_hash(node, sibling)
        at >>= 1
    n, place = divmod(at, HASHES_PER_TILE)
    if tree.tile(1, n, place + 1)[-HASH_BYTES:] != node:
        raise ProofRefused(f"the copy of entry {index} in the trail was altered", code="CFD-A01")


def insides(paths: Mapping[int, bytes]) -> dict[int, Proof]:
    """Return the paths that the trail keeps, by index, as proofs."""
    return {index: tuple(split_hashes(path)) for index, path in paths.items() if path}
