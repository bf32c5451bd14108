"""Checkpoints: a log's signed word for how long it is and what it holds (C2SP tlog-checkpoint); pure.

    <origin>
    <size, decimal>
    <base64 of the root>
    (an empty line, then signature lines; see `audit.note`)

Witnesses add their lines to it (`audit.cosignature`).
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


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint(Checkpoint):
    """A checkpoint that a known log key signed; only `open_checkpoint` makes one.

    Attributes:
        signers: The log keys that signed it.
    """

    signers: tuple[note.VerifierKey, ...]


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


def open_checkpoint(data: bytes, *, origin: str, log_keys: Iterable[note.VerifierKey]) -> OpenedCheckpoint:
    """Return the checkpoint in `data` after checking that a log key of `origin` signed it.

    Raises:
        NoteRefused: Malformed, of another origin, or not signed by one of `log_keys`.
    """
    checkpoint = parse(data)
    if checkpoint.origin != origin:
        raise NoteRefused(f"a checkpoint of {checkpoint.origin}, wanted {origin}")
    signers = note.signers_of(checkpoint.signed, log_keys)
    return OpenedCheckpoint(checkpoint.origin, checkpoint.size, checkpoint.root, checkpoint.signed, signers)


def sign(origin: str, size: int, root: bytes, signer: note.Signer) -> bytes:
    """Return the checkpoint of a log, signed by its log key."""
    return note.sign_note(text_of(origin, size, root), signer)
