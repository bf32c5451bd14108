"""A file that proves one entry by itself, offline (C2SP tlog-proof); pure.

    c2sp.org/tlog-proof@v1
    extra <base64>                     optional: the leaf
    index <index of the entry>
    <base64 of a hash of the path>     from the leaf's sibling up, at most 63
    (an empty line)
    <the cosigned checkpoint>

`extra` holds the leaf, so that one file is enough. Nothing vouches for it but that it hashes to the leaf that is
proved. Whoever checks needs nothing else than the trust policy of the log.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from audit import note, proofs
from audit.canonical import Event
from audit.checkpoint import Checkpoint, OpenedCheckpoint, open_checkpoint, parse
from audit.errors import EntryRefused, NoteRefused, ProofRefused
from audit.frame import MAX_READ_BYTES, WriterKey, read_frame
from audit.merkle import leaf_hash
from audit.quorum import Quorum, require
from audit.tiles import MAX_SIZE
from audit.trust import TrustPolicy

HEADER: Final = "c2sp.org/tlog-proof@v1"
SUFFIX: Final = ".tlog-proof"
MAX_BYTES: Final = note.MAX_NOTE_BYTES + 2 * MAX_READ_BYTES
_INDEX: Final = re.compile(r"index (0|[1-9][0-9]{0,18})\Z")
_EXTRA: Final = "extra "


@dataclass(frozen=True, slots=True)
class ProofFile:
    """What a proof file says; nothing in it has been checked but its form.

    Attributes:
        index: Which entry.
        path: The inclusion proof.
        checkpoint: The checkpoint that it leads to, its signatures unchecked.
        leaf: The entry itself, where the file has it.
    """

    index: int
    path: proofs.Proof
    checkpoint: Checkpoint
    leaf: bytes | None = None

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Return the proof file whose bytes are exactly `data`.

        Raises:
            NoteRefused: Another form.
        """
        if len(data) > MAX_BYTES:
            raise NoteRefused(f"a proof file of {len(data)} bytes, at most {MAX_BYTES}")
        head, separator, signed = data.partition(b"\n\n")
        if not separator or not head.isascii():
            raise NoteRefused("a proof file has no empty line between path and checkpoint")
        header, *lines = head.decode().split("\n")
        if header != HEADER:
            raise NoteRefused(f"a proof file begins with {HEADER}")
        leaf = None
        if lines and lines[0].startswith(_EXTRA):
            leaf = note.decode_base64(lines.pop(0).removeprefix(_EXTRA))
            if not 0 < len(leaf) <= MAX_READ_BYTES:
                raise NoteRefused(f"the leaf of a proof file has 1 to {MAX_READ_BYTES} bytes")
        match = _INDEX.match(lines[0]) if lines else None
        if match is None or int(match[1]) >= MAX_SIZE:
            raise NoteRefused("a proof file names the index of its entry")
        return cls(int(match[1]), proofs.parse_hashes(lines[1:]), parse(signed), leaf)

    def __bytes__(self) -> bytes:
        extra = [] if self.leaf is None else [_EXTRA + note.encode_base64(self.leaf)]
        head = [HEADER, *extra, f"index {self.index}", *map(note.encode_base64, self.path)]
        return "\n".join(head).encode() + b"\n\n" + bytes(self.checkpoint.signed)


@dataclass(frozen=True, slots=True)
class ProvedEntry:
    """An entry that is in a log, under a checkpoint that was signed by the log and seen by its witnesses.

    Attributes:
        index: Which entry.
        leaf_hash: Its hash.
        event: What it says.
        checkpoint: The checkpoint that it is proved under.
        quorum: What the checkpoint's cosignatures amount to.
        writer_checked: Whether the writer's signature was checked; without it, the log vouches for the entry alone.
    """

    index: int
    leaf_hash: bytes
    event: Event
    checkpoint: OpenedCheckpoint
    quorum: Quorum
    writer_checked: bool


def check(
    proof: ProofFile, policy: TrustPolicy, *, leaf: bytes | None = None, writer_key: WriterKey | None = None
) -> ProvedEntry:
    """Return the entry that `proof` shows to be in the log of `policy`.

    Args:
        proof: The parsed file.
        policy: What the reader trusts about the log.
        leaf: The entry, where the file doesn't have it; with both, they must be the same.
        writer_key: Which writer key may sign where, if the reader knows.

    Raises:
        NoteRefused: The checkpoint isn't signed by a pinned key, or has too few cosignatures (CFD-A06).
        ProofRefused: No leaf, or the path doesn't show it.
        EntryRefused: The leaf isn't an entry of this log, or its writer's signature is wrong.
    """
    origin = proof.checkpoint.origin
    checkpoint = open_checkpoint(bytes(proof.checkpoint.signed), origin=origin, log_keys=policy.for_origin(origin))
    quorum = require(checkpoint, policy)
    leaves = {one for one in (leaf, proof.leaf) if one is not None}
    if len(leaves) != 1:
        raise ProofRefused(
            "the entry and that of the proof file differ" if leaves else "a proof without its entry",
            hint="name the file of the entry that the proof is about",
        )
    (proved,) = leaves
    hashed = leaf_hash(proved)
    proofs.check_inclusion(hashed, proof.index, proof.path, checkpoint)
    event, signed = read_frame(proved, origin=origin)
    if writer_key is not None:
        line = signed.signatures[0]
        if not writer_key(line.name, line.key_id).check(signed.text.encode(), line.signature):
            raise EntryRefused(f"the signature of {line.name} is wrong", code="CFD-A10")
    return ProvedEntry(proof.index, hashed, event, checkpoint, quorum, writer_key is not None)
