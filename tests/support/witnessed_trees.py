"""Logs and witnesses in memory: signed trees of counted leaves, and keys that tests may know."""

from collections.abc import Iterable, Sequence

from audit import checkpoint, cosignature, note, tiles, trust, witness
from audit.errors import ProofRefused

FEDERATION = "heart.example.org"
ORIGIN = f"{FEDERATION}/cleveland/audit/1"
LOG = note.Ed25519Signer(ORIGIN, bytes([1]) * 32)
NOW_S = 1_767_225_610


def witness_signer(party: str, federation: str = FEDERATION) -> note.Ed25519Signer:
    """The witness key of a party, made from its name."""
    return note.Ed25519Signer(f"{federation}/{party}/witness", party.encode().ljust(32, b"\0"), note.COSIGNATURE)


class Grown:
    """A log's tiles over leaf hashes, in memory; gives the beginning of what it holds."""

    def __init__(self, leaf_hashes: Iterable[bytes] = ()) -> None:
        self.edge = tiles.Edge()
        self.kept: dict[tuple[int, int], bytes] = {}
        self.append(leaf_hashes)

    def append(self, leaf_hashes: Iterable[bytes]) -> tuple[tiles.Tile, ...]:
        growth = self.edge.grow(leaf_hashes)
        self.edge = growth.edge
        self.kept.update({(tile.level, tile.n): tile.hashes for tile in growth.tiles})
        return growth.tiles

    def tile(self, level: int, n: int, width: int) -> bytes:
        if (level, n) not in self.kept:
            raise ProofRefused("no such tile", code="CFD-A03")
        return self.kept[level, n][: 32 * width]


def signed(size: int, root: bytes, *, signer: note.Ed25519Signer = LOG, origin: str = ORIGIN) -> bytes:
    """A checkpoint of a log."""
    return checkpoint.sign(origin, size, root, signer)


def opened(data: bytes) -> checkpoint.OpenedCheckpoint:
    """The same, opened with the log's key."""
    return checkpoint.open_checkpoint(data, origin=ORIGIN, log_keys=[LOG.key])


def cosigned(data: bytes, *signers: note.Signer, time_s: int = NOW_S) -> bytes:
    """A checkpoint with lines by these witnesses."""
    lines = "".join(str(cosignature.cosign(opened(data), signer, time_s)) for signer in signers)
    return data + lines.encode()


def policy_of(parties: Sequence[str], quorum: int, operators: dict[str, list[str]] | None = None) -> trust.TrustPolicy:
    """What a reader trusts about the log, with these witnesses."""
    keys = {party: str(witness_signer(party).key) for party in parties}
    return trust.parse_policy(trust.format_policy([str(LOG.key)], keys, operators or {}, quorum))


def party_of(name: str) -> witness.Witness:
    """A party that witnesses the log."""
    return witness.Witness({ORIGIN: (LOG.key,)}, (witness_signer(name),))
