"""The rule of a witness: cosign only what extends all that was seen before (C2SP tlog-witness, add-checkpoint); pure.

    old <size that the witness last cosigned>
    <base64 of a hash of the consistency proof>     up to 63 such lines
    (an empty line)
    <the checkpoint, signed by the log>

`step` answers one request over what the witness has seen of that log. Whoever calls it takes one lock for each origin,
and makes what `step` returns durable **before** the reply leaves; else a witness may cosign two histories.

A proof that fails may have been spoiled on the way and is a suspicion only. Two checkpoints of one size and two roots
by one log key *prove* that the log has two histories; they are handed out to be kept for ever, whatever the answer was.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from audit import note, proofs
from audit.checkpoint import Checkpoint, OpenedCheckpoint, open_checkpoint, parse
from audit.cosignature import cosign
from audit.errors import NoteRefused, ProofRefused
from audit.merkle import EMPTY_ROOT
from audit.tiles import MAX_SIZE

MAX_REQUEST_BYTES: Final = note.MAX_NOTE_BYTES + 46 * (proofs.MAX_HASHES + 1)
_OLD: Final = re.compile(r"old (0|[1-9][0-9]{0,18})\Z")


class Status(IntEnum):
    """How a witness answers; the numbers are those of HTTP."""

    COSIGNED = 200
    UNREADABLE = 400
    UNSIGNED = 403
    UNKNOWN_LOG = 404
    OTHER_SIZE = 409
    CONTRADICTED = 422


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """A request to cosign a checkpoint; nothing in it has been checked but its form.

    Attributes:
        old_size: What the asker believes that the witness last cosigned.
        proof: Consistency proof from there.
        checkpoint: The checkpoint, its signatures unchecked.
    """

    old_size: int
    proof: proofs.Proof
    checkpoint: Checkpoint

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Return the request whose bytes are exactly `body`.

        Raises:
            NoteRefused: Not a request; `UNREADABLE` is the answer.
        """
        if len(body) > MAX_REQUEST_BYTES:
            raise NoteRefused(f"a request of {len(body)} bytes, at most {MAX_REQUEST_BYTES}")
        head, separator, signed = body.partition(b"\n\n")
        if not separator or not head.isascii():
            raise NoteRefused("a request has no empty line between proof and checkpoint")
        old, *lines = head.decode().split("\n")
        match = _OLD.match(old)
        if match is None or int(match[1]) > MAX_SIZE:
            raise NoteRefused("a request begins with `old` and a size below 2^63")
        return cls(int(match[1]), proofs.parse_hashes(lines), parse(signed))

    def __bytes__(self) -> bytes:
        head = [f"old {self.old_size}", *map(note.encode_base64, self.proof)]
        return "\n".join(head).encode() + b"\n\n" + bytes(self.checkpoint.signed)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a witness has seen of one log: the largest tree that it cosigned.

    Attributes:
        size: Its size; 0 before the first.
        root: Its root.
        note: The checkpoint with the log's signatures; empty before the first.
    """

    size: int = 0
    root: bytes = EMPTY_ROOT
    note: bytes = b""


@dataclass(frozen=True, slots=True)
class Fork:
    """Two checkpoints by one key of one log, of one size and with two roots: proof of two histories."""

    origin: str
    size: int
    notes: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Witness:
    """Whose logs a party witnesses, and by which keys.

    Attributes:
        log_keys: The pinned keys of each log, by its origin; never those of the party's own logs.
        signers: The party's witness keys: one of type 0x04, and perhaps one of type 0x06.
    """

    log_keys: Mapping[str, Sequence[note.VerifierKey]]
    signers: Sequence[note.Signer]


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of a request.

    Attributes:
        seen: What the witness has seen from now on; durable before the reply leaves.
        status: How it answers.
        reply: The cosignature lines where it cosigned, the size that it has seen where the asker named another.
        fork: Proof of two histories, to be kept for ever.
    """

    seen: Seen
    status: Status
    reply: str = ""
    fork: Fork | None = None


def step(witness: Witness, seen: Seen, request: AddCheckpoint, now_s: int) -> Answer:
    """Return the answer to `request` by the first rule that applies (C2SP tlog-witness).

    Args:
        witness: The logs and keys.
        seen: What was seen of the request's origin.
        request: The request; one that can't be parsed is answered `UNREADABLE` without a step.
        now_s: The time of the cosignature, POSIX seconds.
    """
    keys = witness.log_keys.get(request.checkpoint.origin)
    if keys is None:
        return Answer(seen, Status.UNKNOWN_LOG)
    try:
        offered = open_checkpoint(bytes(request.checkpoint.signed), origin=request.checkpoint.origin, log_keys=keys)
    except NoteRefused:
        return Answer(seen, Status.UNSIGNED)
    fork = fork_of(seen.note, offered, keys) if seen.note else None
    if request.old_size > offered.size:
        return Answer(seen, Status.UNREADABLE, fork=fork)
    if request.old_size != seen.size:
        return Answer(seen, Status.OTHER_SIZE, f"{seen.size}\n", fork)
    try:
        proofs.check_consistency_of_roots(seen.size, seen.root, offered.size, offered.root, request.proof)
    except ProofRefused:
        return Answer(seen, Status.CONTRADICTED, fork=fork)
    lines = "".join(str(cosign(offered, signer, now_s)) for signer in witness.signers)
    if seen.note and offered.size == seen.size:
        return Answer(seen, Status.COSIGNED, lines)
    return Answer(Seen(offered.size, offered.root, bytes(offered.signed)), Status.COSIGNED, lines)


def fork_of(earlier: bytes, later: OpenedCheckpoint, log_keys: Sequence[note.VerifierKey]) -> Fork | None:
    """Return the proof that `earlier` and `later` are of two histories of one log, where they are one.

    Args:
        earlier: A checkpoint as it was kept.
        later: Another one.
        log_keys: The pinned keys of the log; a key that signed both makes it a proof.
    """
    try:
        kept = open_checkpoint(earlier, origin=later.origin, log_keys=log_keys)
    except NoteRefused:
        return None
    by_one_key = set(kept.signers) & set(later.signers)
    if not by_one_key or kept.size != later.size or kept.root == later.root:
        return None
    return Fork(later.origin, later.size, (earlier, bytes(later.signed)))
