"""A party's identity: one Ed25519 key that signs its protocol messages, apart from every other use of a key.

Rules: the key never signs bare bytes, only `messages.signing_input(kind, body)`, so a signature for one kind of
message is none for another, and the 32-byte digests of secure sums, which are shorter than any of those; a secret key
has a representation without its bytes; public keys travel as 32 raw bytes and are checked for the weak ones (points of
small order, with which anybody can make signatures that verify, and encodings that aren't canonical) before they are
believed. The root key of a federation and people's keys are of this type too, each with its own kinds. Files are read
and written by `federation.edge.homes`.
"""

import re
from functools import lru_cache
from typing import Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from federation.errors import ConfigurationWrong, InvalidInput, NotAuthenticated
from federation.messages import signing_input

PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
# y-coordinates of the points whose order divides 8 (RFC 8032 §5.1.3 encoding, sign bit cleared).
_FIELD: Final = 2**255 - 19
_ORDER_EIGHT: Final = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_SMALL_ORDER: Final = frozenset({0, 1, _FIELD - 1, _ORDER_EIGHT, _FIELD - _ORDER_EIGHT})
_WHITE: Final = re.compile(rb"[ \t\r]*\n[ \t]*")


def tidy_pem(content: bytes) -> bytes:
    """Return PEM text as a Unix program writes it: without byte-order mark, CR LF, or blanks around lines."""
    text = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return _WHITE.sub(b"\n", text).strip() + b"\n"


@lru_cache(maxsize=1024)  # a few hundred members, asked for every message
def check_public_key(public: bytes) -> bytes:
    """Return `public` if it is a usable Ed25519 public key.

    Raises:
        InvalidInput: Not 32 bytes, not canonical, not on the curve, or of small order.
    """
    if len(public) != PUBLIC_KEY_BYTES:
        raise InvalidInput("CFD-E25", f"a public key has {len(public)} bytes, needed are {PUBLIC_KEY_BYTES}")
    height = int.from_bytes(public, "little") & ((1 << 255) - 1)
    if height >= _FIELD or height in _SMALL_ORDER or not _on_curve(height):
        raise InvalidInput("CFD-E25", "a public key is weak: anybody could sign for it")
    return public


def _on_curve(height: int) -> bool:
    # RFC 8032 §5.1.3: x² = (y² − 1) / (d y² + 1) must be a square modulo p.
    square = height * height % _FIELD
    twist = -121665 * pow(121666, -1, _FIELD) % _FIELD
    quotient = (square - 1) * pow(twist * square + 1, -1, _FIELD) % _FIELD
    return pow(quotient, (_FIELD - 1) // 2, _FIELD) in (0, 1)


def check_signature(public_key: bytes, kind: str, body: bytes, signature: bytes) -> None:
    """Return if `signature` is by `public_key` over a message of `kind` with `body`.

    Raises:
        NotAuthenticated: It is not; `body` must not be used.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(check_public_key(public_key))
        key.verify(signature, signing_input(kind, body))
    except (InvalidSignature, InvalidInput, UnsupportedAlgorithm, ValueError):
        raise NotAuthenticated("CFD-E01", f"the signature of a {kind} is not by the key that it should be") from None


class IdentityKey:
    """A secret Ed25519 key of a party, a person or a federation's root."""

    __slots__ = ("_key", "_public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key: Final = key
        self._public: Final = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        """Return a new key from the operating system's random source."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, content: bytes, *, name: str) -> Self:
        """Return the key in PKCS#8 PEM `content`; `name` stands for its file in messages.

        Raises:
            ConfigurationWrong: No key, a key of another kind, or one with a passphrase.
        """
        try:
            key = load_pem_private_key(tidy_pem(content), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ConfigurationWrong("CFD-E02", f"{name} holds no private key in PEM that can be read") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigurationWrong("CFD-E02", f"{name} holds a key of another kind, needed is Ed25519")
        return cls(key)

    def to_pem(self) -> bytes:
        """Return the secret key as PKCS#8 PEM, for a file with mode 0600."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def public(self) -> bytes:
        """Return the public key, 32 bytes."""
        return self._public

    def sign(self, kind: str, body: bytes) -> bytes:
        """Return the signature, 64 bytes, of a message of `kind` with the canonical bytes `body`."""
        return self._key.sign(signing_input(kind, body))

    def sign_digest(self, digest: bytes) -> bytes:
        """Return the signature, 64 bytes, of a 32-byte digest of a secure sum; too short to be any other message."""
        if len(digest) != 32:
            raise InvalidInput("CFD-G01", f"a digest of {len(digest)} bytes can't be signed")
        return self._key.sign(digest)

    def __repr__(self) -> str:
        return f"IdentityKey(<hidden>, public={self._public.hex()[:16]}…)"

    def __reduce__(self) -> str:
        raise TypeError("a secret key is not serialised")
