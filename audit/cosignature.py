"""Cosignatures: a witness's word that a log only grew (C2SP tlog-cosignature); pure.

    — <witness key name> <base64( key id[4] ‖ u64be(time) ‖ signature )>

It says: of this origin I have seen no larger tree than this checkpoint's, and this one extends all that I saw. Type
0x04 is Ed25519 over ``cosignature/v1`` LF ``time <seconds>`` LF and the checkpoint's text; it doesn't name its signer,
so such a key has no other use. Type 0x06 is ML-DSA-44 over a structure with signer, time, origin, size and root, for
readers who expect computers that forge Ed25519. Times are POSIX seconds, never 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from audit import note
from audit.checkpoint import Checkpoint, OpenedCheckpoint
from audit.errors import NoteRefused

_TIME_LIMIT: Final = 1 << 63
_SIGNATURE_BYTES: Final = {note.COSIGNATURE: 64, note.MLDSA44: 2420}


@dataclass(frozen=True, slots=True)
class Cosignature:
    """That a witness cosigned a checkpoint, checked.

    Attributes:
        key: The witness's key.
        time_s: When, by the witness's clock; POSIX seconds.
    """

    key: note.VerifierKey
    time_s: int


class MLDSA44Signer:
    """A private ML-DSA-44 key of a witness in memory; its repr doesn't show it.

    Raises:
        NoteRefused: The cryptographic library here has no ML-DSA-44.
    """

    def __init__(self, name: str, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

        try:
            self._private = MLDSA44PrivateKey.from_seed_bytes(seed)
        except UnsupportedAlgorithm:
            raise NoteRefused("the cryptographic library here has no ML-DSA-44", hint="use an Ed25519 key") from None
        self._key = note.VerifierKey(name, note.MLDSA44, self._private.public_key().public_bytes_raw())

    @property
    def key(self) -> note.VerifierKey:
        """Return the public half."""
        return self._key

    def sign(self, message: bytes) -> bytes:
        """Return the 2,420 bytes of the signature over `message`."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"MLDSA44Signer({self._key.name}, <hidden>)"


def message_of(checkpoint: Checkpoint, key: note.VerifierKey, time_s: int) -> bytes:
    """Return what `key` signs to cosign `checkpoint` at `time_s`.

    Raises:
        NoteRefused: The time is 0, negative or 2^63 and more, or a type 0x06 message can't hold the origin.
    """
    if not 0 < time_s < _TIME_LIMIT:
        raise NoteRefused("the time of a cosignature is 1 to 2^63 − 1 seconds")
    if key.kind == note.COSIGNATURE:
        return f"cosignature/v1\ntime {time_s}\n{checkpoint.signed.text}".encode()
    name, origin = key.name.encode(), checkpoint.origin.encode()
    if len(origin) > 255:
        raise NoteRefused("an ML-DSA-44 cosignature holds an origin of at most 255 bytes")
    return b"".join(
        (
            b"subtree/v1\n\x00",
            bytes([len(name)]) + name,
            time_s.to_bytes(8, "big"),
            bytes([len(origin)]) + origin,
            bytes(8),
            checkpoint.size.to_bytes(8, "big"),
            checkpoint.root,
        )
    )


def cosign(checkpoint: OpenedCheckpoint, signer: note.Signer, time_s: int) -> note.SignatureLine:
    """Return the line by which a witness cosigns `checkpoint`.

    Raises:
        NoteRefused: The key is of another kind than a witness's, or the time isn't one.
    """
    if signer.key.kind not in _SIGNATURE_BYTES:
        raise NoteRefused(f"key {signer.key.name} is not a witness's")
    signature = signer.sign(message_of(checkpoint, signer.key, time_s))
    return note.SignatureLine(signer.key.name, signer.key.id, time_s.to_bytes(8, "big") + signature)


def _holds(key: note.VerifierKey, message: bytes, signature: bytes) -> bool:
    if key.kind == note.COSIGNATURE:
        return key.check(message, signature)
    try:
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey
    except ImportError:  # an exported bundle is checked with whatever version there is
        raise UnsupportedAlgorithm("no ML-DSA-44") from None
    try:
        MLDSA44PublicKey.from_public_bytes(key.public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _opened(checkpoint: Checkpoint, key: note.VerifierKey, line: note.SignatureLine) -> Cosignature:
    time_s = int.from_bytes(line.signature[:8], "big")
    fits = len(line.signature) == 8 + _SIGNATURE_BYTES[key.kind] and 0 < time_s < _TIME_LIMIT
    if not fits or not _holds(key, message_of(checkpoint, key, time_s), line.signature[8:]):
        raise NoteRefused(f"the cosignature of {key.name} is wrong")
    return Cosignature(key, time_s)


def cosignatures_of(checkpoint: Checkpoint, witnesses: Iterable[note.VerifierKey]) -> tuple[Cosignature, ...]:
    """Return the cosignatures of `checkpoint` by `witnesses`, one for each key: its earliest.

    Unknown keys are passed over, and so is an ML-DSA-44 key where the cryptographic library here can't check it.

    Raises:
        NoteRefused: A line names a known witness, and its time or its signature is wrong.
    """
    known = {(key.name, key.id): key for key in witnesses if key.kind in _SIGNATURE_BYTES}
    found: dict[tuple[str, bytes], Cosignature] = {}
    for line in checkpoint.signed.signatures:
        key = known.get((line.name, line.key_id))
        if key is None:
            continue
        try:
            cosignature = _opened(checkpoint, key, line)
        except UnsupportedAlgorithm:
            continue
        before = found.get((line.name, line.key_id), cosignature)
        found[line.name, line.key_id] = min(before, cosignature, key=lambda one: one.time_s)
    return tuple(found.values())


def with_cosignatures(
    checkpoint: OpenedCheckpoint, lines: Iterable[note.SignatureLine], witnesses: Iterable[note.VerifierKey]
) -> OpenedCheckpoint:
    """Return `checkpoint` with those of `lines` that are cosignatures of it by `witnesses`, one more line for each key.

    Lines by unknown keys, wrong ones, and those of a key that the checkpoint already has are passed over: they came
    over a relay, which may have spoiled them.
    """
    known = tuple(witnesses)
    signed = checkpoint.signed
    for line in lines:
        has = {(there.name, there.key_id) for there in signed.signatures}
        if (line.name, line.key_id) in has or len(has) == note.MAX_SIGNATURES:
            continue
        alone = replace(checkpoint, signed=note.Note(signed.text, (line,)))
        try:
            found = cosignatures_of(alone, known)
        except NoteRefused:
            continue
        if found:
            signed = note.Note(signed.text, (*signed.signatures, line))
    return replace(checkpoint, signed=signed)
