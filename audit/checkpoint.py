"""Checkpoints: a log's signed word for how long it is and what it holds (C2SP tlog-checkpoint); pure.

    <origin>
    <size, decimal>
    <base64 of the root>
    (an empty line, then signature lines; see `audit.note`)

Witnesses add cosignature lines (C2SP tlog-cosignature, type 0x04): eight bytes of POSIX seconds and an Ed25519
signature over ``cosignature/v1`` LF ``time <seconds>`` LF and the checkpoint's text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from audit import note
from audit.errors import NoteRefused

_SIZE: Final = re.compile(r"(?:0|[1-9][0-9]{0,18})\Z")
_SIZE_LIMIT: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint says, and the note that says it.

    Attributes:
        origin: The log's name.
        size: Number of entries.
        root: RFC 6962 root over them, 32 bytes.
        signed: The note, with all its signature lines.
    """

    origin: str
    size: int
    root: bytes
    signed: note.Note


def text_of(origin: str, size: int, root: bytes) -> str:
    """Return the three lines that a log signs."""
    return f"{origin}\n{size}\n{note.encode_base64(root)}\n"


def parse(data: bytes) -> Checkpoint:
    """Return the checkpoint in `data`; its signatures are not checked.

    Raises:
        NoteRefused: Not a note, not exactly three lines, or a malformed size or root.
    """
    signed = note.parse_note(data)
    lines = signed.text[:-1].split("\n")
    if len(lines) != 3 or not lines[0]:
        raise NoteRefused("a checkpoint has three lines: origin, size and root")
    origin, size, root = lines
    if not _SIZE.match(size) or int(size) >= _SIZE_LIMIT:
        raise NoteRefused("the size of a checkpoint is a decimal below 2^63 without leading zero")
    decoded = note.decode_base64(root)
    if len(decoded) != 32:
        raise NoteRefused("the root of a checkpoint has 32 bytes")
    return Checkpoint(origin, int(size), decoded, signed)


def open_checkpoint(data: bytes, *, origin: str, log_keys: Iterable[note.VerifierKey]) -> Checkpoint:
    """Return the checkpoint in `data` after checking that a log key of `origin` signed it.

    Raises:
        NoteRefused: Malformed, of another origin, or not signed by one of `log_keys`.
    """
    checkpoint = parse(data)
    if checkpoint.origin != origin:
        raise NoteRefused(f"a checkpoint of {checkpoint.origin}, wanted {origin}")
    note.signers_of(checkpoint.signed, log_keys)
    return checkpoint


def sign(origin: str, size: int, root: bytes, signer: note.Signer) -> bytes:
    """Return the checkpoint of a log, signed by its log key."""
    return note.sign_note(text_of(origin, size, root), signer)


def cosigners_of(checkpoint: Checkpoint, witnesses: Iterable[note.VerifierKey]) -> tuple[note.VerifierKey, ...]:
    """Return those of `witnesses` that cosigned `checkpoint`, each once.

    Raises:
        NoteRefused: A line names a known witness and its time is 0 or its signature is wrong.
    """
    known = {(key.name, key.id): key for key in witnesses if key.kind == note.COSIGNATURE}
    found: dict[tuple[str, bytes], note.VerifierKey] = {}
    for line in checkpoint.signed.signatures:
        key = known.get((line.name, line.key_id))
        if key is None:
            continue
        time_s = int.from_bytes(line.signature[:8], "big")
        message = f"cosignature/v1\ntime {time_s}\n{checkpoint.signed.text}".encode()
        if len(line.signature) != 72 or time_s == 0 or not key.check(message, line.signature[8:]):
            raise NoteRefused(f"the cosignature of {key.name} is wrong")
        found[line.name, line.key_id] = key
    return tuple(found.values())
