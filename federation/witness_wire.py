"""Between the audit log's own forms and the bodies of messages about it; pure."""

from collections.abc import Iterable, Mapping

from audit import proofs
from audit.checkpoint import Checkpoint, parse
from audit.cosigned_log import Cosigned
from audit.errors import NoteRefused
from audit.merkle import leaf_hash
from audit.note import SignatureLine
from audit.proof_file import ProofFile
from audit.receipts import Place
from audit.witness import AddCheckpoint
from federation.witness_messages import CosignedTree, Growth, OwnCheckpoint, ProvedLeaf, ReceiptPlace


def tree_out(origin: str, size: int, root: bytes, line: str) -> CosignedTree:
    """Return a cosignature line as it travels."""
    return CosignedTree(origin=origin, size=size, root=root.hex(), line=line.rstrip("\n"))


def tree_in(tree: CosignedTree) -> Cosigned | None:
    """Return the line that travelled, None where it is no signature line."""
    try:
        return Cosigned(tree.size, bytes.fromhex(tree.root), SignatureLine.parse(tree.line))
    except NoteRefused:
        return None


def trees_in(trees: Iterable[CosignedTree], origin: str) -> list[Cosigned]:
    """Return the lines about one log."""
    found = (tree_in(tree) for tree in trees if tree.origin == origin)
    return [one for one in found if one is not None]


def own_out(checkpoint: Checkpoint, growth: Mapping[int, proofs.Proof]) -> OwnCheckpoint:
    """Return a checkpoint and its proofs as they travel."""
    return OwnCheckpoint(
        checkpoint=bytes(checkpoint.signed).hex(),
        growth=tuple(Growth(old_size=old, hashes=tuple(node.hex() for node in proof)) for old, proof in growth.items()),
    )


def own_in(own: OwnCheckpoint) -> tuple[Checkpoint, dict[int, proofs.Proof]]:
    """Return the checkpoint and the proofs that travelled, by old size; nothing of them is checked.

    Raises:
        NoteRefused: It is no checkpoint.
    """
    growth = {one.old_size: tuple(bytes.fromhex(node) for node in one.hashes) for one in own.growth}
    return parse(bytes.fromhex(own.checkpoint)), growth


def request_of(checkpoint: Checkpoint, growth: Mapping[int, proofs.Proof], held_size: int) -> AddCheckpoint | None:
    """Return the request to a witness that holds `held_size`, None where no proof from there came along."""
    if held_size in (0, checkpoint.size):
        return AddCheckpoint(held_size, (), checkpoint)
    proof = growth.get(held_size)
    return None if proof is None else AddCheckpoint(held_size, proof, checkpoint)


def place_out(place: Place) -> ReceiptPlace:
    """Return a receipt's place as it travels."""
    return ReceiptPlace(index=place.index, count=place.count, path=tuple(node.hex() for node in place.path))


def place_in(place: ReceiptPlace) -> Place:
    """Return the place that travelled."""
    return Place(place.index, place.count, tuple(bytes.fromhex(node) for node in place.path))


def leaf_out(proof: ProofFile, *, visible: bool) -> ProvedLeaf:
    """Return a proved entry as it travels: its hash alone where the receiver may not see it."""
    leaf = proof.leaf or b""
    return ProvedLeaf(
        index=proof.index,
        leaf_hash=leaf_hash(leaf).hex(),
        leaf=leaf.hex() if visible else "",
        path=tuple(node.hex() for node in proof.path),
    )
