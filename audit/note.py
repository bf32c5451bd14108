"""Signed notes and their keys (C2SP signed-note), the one frame of entries and checkpoints; pure.

    text, one or more lines, each ended by LF
    (an empty line)
    — <key name> <base64( key id[4] ‖ signature )>          one or more such lines

A key's id is ``SHA-256(name ‖ LF ‖ type ‖ public key)[:4]``, its public text form (*vkey*)
``name+hex(key id)+base64(type ‖ public key)``. Type 0x01 signs the text as it stands (Ed25519); type 0x04 is a
witness, whose signature carries a time (C2SP tlog-cosignature). Base64 is strict: encoding again gives the same text.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.errors import NoteRefused

ED25519: Final = 0x01
COSIGNATURE: Final = 0x04
MLDSA44: Final = 0x06
_PUBLIC_KEY_BYTES: Final = {ED25519: 32, COSIGNATURE: 32, MLDSA44: 1312}
_NAME: Final = re.compile(r"[A-Za-z0-9._:/-]{1,200}\Z")
_KEY_ID: Final = re.compile(r"[0-9a-f]{8}\Z")
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f]")
_SIGNATURE_PREFIX: Final = "\u2014 "  # an em dash and a space
MAX_NOTE_BYTES: Final = 1 << 20
MAX_SIGNATURES: Final = 128


def decode_base64(text: str) -> bytes:
    """Return the bytes of `text`, which must be their one standard base64 form with padding.

    Raises:
        NoteRefused: Other characters, wrong padding, or spare bits that aren't zero.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteRefused("a field is not base64") from None
    if base64.b64encode(data).decode() != text:
        raise NoteRefused("a base64 field is not in its one standard form")
    return data


def encode_base64(data: bytes) -> str:
    """Return the standard base64 form of `data`, with padding."""
    return base64.b64encode(data).decode()


@lru_cache(maxsize=256)
def key_id(name: str, kind: int, public: bytes) -> bytes:
    """Return the four bytes that name a key in a signature line (C2SP signed-note)."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


@lru_cache(maxsize=256)
def _ed25519(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


_REMEMBERED_BYTES: Final = 1024
"""Longer messages than a checkpoint are checked each time."""


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key with its name.

    Attributes:
        name: `[A-Za-z0-9._:/-]{1,200}`, such as ``heart.example.org/cleveland/audit/1``.
        kind: The signature type: `ED25519`, `COSIGNATURE` or `MLDSA44`.
        public: The raw public key.
    """

    name: str
    kind: int
    public: bytes

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise NoteRefused("a key name has characters outside A-Z a-z 0-9 . _ : / - or is longer than 200")
        if _PUBLIC_KEY_BYTES.get(self.kind) != len(self.public):
            raise NoteRefused(f"key {self.name} has an unknown type or a wrong length")

    @classmethod
    def parse(cls, vkey: str) -> Self:
        """Return the key that `vkey` describes.

        Raises:
            NoteRefused: Another form, an unknown type, or an id that doesn't belong to the key.
        """
        parts = vkey.split("+", 2)
        if len(parts) != 3 or not _KEY_ID.match(parts[1]):
            raise NoteRefused("a verifier key is not of the form name+id+key")
        data = decode_base64(parts[2])
        key = cls(parts[0], data[0] if data else 0, data[1:])
        if key.id.hex() != parts[1]:
            raise NoteRefused(f"the id of verifier key {key.name} doesn't belong to it")
        return key

    @property
    def id(self) -> bytes:
        """Return the four bytes that name this key in a signature line."""
        return key_id(self.name, self.kind, self.public)

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{encode_base64(bytes([self.kind]) + self.public)}"

    def check(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is this key's over `message`; False for a key that isn't of Ed25519."""
        if self.kind == MLDSA44:
            return False
        check = _is_signed if len(message) <= _REMEMBERED_BYTES else _is_signed.__wrapped__
        return check(self.public, message, signature)


@lru_cache(maxsize=1024)
def _is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether a signature holds; the same few checkpoints come by in several exchanges of a round."""
    try:
        _ed25519(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


class Signer(Protocol):
    """Something that signs under one key: a file today, a hardware module behind the same two members."""

    @property
    def key(self) -> VerifierKey:
        """Return the public half."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the signature over `message`."""
        ...


class Ed25519Signer:
    """A private key in memory, of type 0x01 or, for a witness, 0x04; its repr doesn't show it."""

    def __init__(self, name: str, seed: bytes, kind: int = ED25519) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._key = VerifierKey(name, kind, self._private.public_key().public_bytes_raw())

    @property
    def key(self) -> VerifierKey:
        """Return the public half."""
        return self._key

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the Ed25519 signature over `message`."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"Ed25519Signer({self._key.name}, <hidden>)"


@dataclass(frozen=True, slots=True)
class SignatureLine:
    """One line under a note: who claims to have signed, and the bytes after the key id."""

    name: str
    key_id: bytes
    signature: bytes

    @classmethod
    def parse(cls, line: str) -> Self:
        """Return the signature in `line`, which has no LF at its end.

        Raises:
            NoteRefused: Another form, no valid name, or no signature.
        """
        if not line.startswith(_SIGNATURE_PREFIX):
            raise NoteRefused("a signature line doesn't begin with an em dash and a space")
        name, _, encoded = line.removeprefix(_SIGNATURE_PREFIX).partition(" ")
        if not _NAME.match(name):
            raise NoteRefused("a signature line has no valid key name")
        data = decode_base64(encoded)
        if len(data) < 5:
            raise NoteRefused("a signature line holds no signature")
        return cls(name, data[:4], data[4:])

    def __str__(self) -> str:
        return f"{_SIGNATURE_PREFIX}{self.name} {encode_base64(self.key_id + self.signature)}\n"


@dataclass(frozen=True, slots=True)
class Note:
    """A parsed note; nothing in it has been checked but its form.

    Attributes:
        text: All lines above the empty line, with their LF: exactly what is signed.
        signatures: The lines below it, in their order.
    """

    text: str
    signatures: tuple[SignatureLine, ...]

    def __bytes__(self) -> bytes:
        return (self.text + "\n" + "".join(map(str, self.signatures))).encode()


def parse_note(data: bytes, *, limit_bytes: int = MAX_NOTE_BYTES) -> Note:
    """Return the note whose bytes are exactly `data`.

    Lines end at LF and nowhere else: `str.splitlines` would see line ends where a verifier sees none.

    Raises:
        NoteRefused: Too long, not UTF-8, a control character, no empty line, no or too many or malformed signatures.
    """
    if len(data) > limit_bytes:
        raise NoteRefused(f"a note of {len(data)} bytes, at most {limit_bytes}")
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        raise NoteRefused("a note is not UTF-8") from None
    if _CONTROL.search(whole):
        raise NoteRefused("a note holds a control character")
    split = whole.rfind("\n\n")
    if split < 0 or not whole.endswith("\n"):
        raise NoteRefused("a note has no empty line between text and signatures, or no final newline")
    below = whole[split + 2 :]
    if not below:
        raise NoteRefused("a note has no signature")
    lines = below[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise NoteRefused(f"a note has {len(lines)} signatures, at most {MAX_SIGNATURES}")
    return Note(whole[: split + 1], tuple(map(SignatureLine.parse, lines)))


def sign_note(text: str, signer: Signer) -> bytes:
    """Return the note of `text` with one signature of type 0x01 by `signer`."""
    signed = text.encode()
    line = SignatureLine(signer.key.name, signer.key.id, signer.sign(signed))
    return signed + b"\n" + str(line).encode()


def signers_of(note: Note, keys: Iterable[VerifierKey]) -> tuple[VerifierKey, ...]:
    """Return those of `keys` (type 0x01) that signed `note`, each once, in the order of the lines.

    Raises:
        NoteRefused: A line names a known key and its signature is wrong, or no known key signed.
    """
    known = {(key.name, key.id): key for key in keys if key.kind == ED25519}
    found: dict[tuple[str, bytes], VerifierKey] = {}
    for line in note.signatures:
        key = known.get((line.name, line.key_id))
        if key is None:
            continue
        if not key.check(note.text.encode(), line.signature):
            raise NoteRefused(f"the signature of {key.name} is wrong")
        found[line.name, line.key_id] = key
    if not found:
        raise NoteRefused("no known key signed the note")
    return tuple(found.values())
