"""Key agreement, mask keys, boxes and the keystream of suite FSA-1.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), HPKE base mode (RFC 9180) with ChaCha20-Poly1305, AES-256-CTR
(SP 800-38A), Ed25519 (RFC 8032). Boxes and masks have separate keys, so a rebuilt mask seed opens no box.
"""

from collections.abc import Callable
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from privacy.secagg.derivation import SUITE, derive_key, digest
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import SHARE_BYTES
from privacy.secagg.secret import Secret

KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
DEAL_BYTES: Final = 2 * (SHARE_BYTES + SALT_BYTES)
BOX_BYTES: Final = 32 + DEAL_BYTES + 16
KEYSTREAM_LIMIT_BYTES: Final = 2**36
_FIELD_25519: Final = 2**255 - 19
_HPKE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
ZEROS: Final = memoryview(bytes(2**19))

Verify = Callable[[bytes, bytes], bool]
"""Takes a signature and a message; returns whether the one is of the other."""


class Signer(Protocol):
    """A site's or the coordinator's signing key, wherever it is kept."""

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of `message`."""


def ed25519_verify(public_key: bytes) -> Verify:
    """Return the check of signatures by the owner of `public_key` (32 bytes)."""
    key = Ed25519PublicKey.from_public_bytes(public_key)

    def verify(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return verify


def public_key(private: Secret) -> bytes:
    """Return the X25519 public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private.reveal()).public_key().public_bytes_raw()


def check_public_key(key: bytes) -> None:
    """Refuse an X25519 key that isn't the one spelling of its point, or that gives everyone the same secret.

    Raises:
        SumRefused: E_KEY.
    """
    if len(key) != KEY_BYTES or int.from_bytes(key, "little") >= _FIELD_25519:
        raise SumRefused("E_KEY", "a public key isn't reduced modulo 2^255 − 19")
    if key in _LOW_ORDER:
        raise SumRefused("E_KEY", "a public key is of low order")


_ORDER_8: Final = (
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)
_LOW_ORDER: Final = frozenset(
    value.to_bytes(KEY_BYTES, "little") for value in (0, 1, _FIELD_25519 - 1, *_ORDER_8)
)  # RFC 7748 §6.1: the points that give everyone the same secret; tested against the exchange itself


def self_key(self_seed: Secret | bytearray, view: bytes, site: str) -> Secret:
    """Return the key of a site's own mask."""
    seed = self_seed.reveal() if isinstance(self_seed, Secret) else self_seed
    return Secret(derive_key(seed, view, "self", site))


class MaskSeed:
    """An X25519 private key, ready to agree with many peers; drop it soon, the library's copy can't be wiped."""

    __slots__ = ("_key",)

    def __init__(self, seed: Secret) -> None:
        self._key = X25519PrivateKey.from_private_bytes(seed.reveal())

    def __repr__(self) -> str:
        return "MaskSeed(<hidden>)"

    def pair_key(self, peer_key: bytes, view: bytes, own: str, peer: str) -> Secret:
        """Return the mask key that `own` and `peer` share under `view`; both sides get the same.

        Raises:
            SumRefused: E_KEY, the peer's public key is of low order.
        """
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(peer_key))
        except ValueError:
            raise SumRefused("E_KEY", f"the mask key of {peer} is of low order") from None
        low, high = sorted((own, peer))
        return Secret(derive_key(shared, view, "pair", low, high))


def _box_info(roster: bytes, sender: str, to: str) -> bytes:
    return f"{SUITE}/box".encode("ascii") + roster + digest("pair", sender, to)


def seal_box(plain: Secret, recipient_key: bytes, roster: bytes, sender: str, to: str) -> bytes:
    """Return `plain` sealed for the owner of `recipient_key`: enc (32) ‖ ciphertext (114).

    The one call of the protocol that draws random bytes inside the library.
    """
    key = X25519PublicKey.from_public_bytes(recipient_key)
    return _HPKE.encrypt(bytes(plain.reveal()), key, _box_info(roster, sender, to))


class BoxKey:
    """An X25519 private key, ready to open many boxes; drop it soon, the library's copy can't be wiped."""

    __slots__ = ("_key",)

    def __init__(self, private: Secret) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private.reveal())

    def __repr__(self) -> str:
        return "BoxKey(<hidden>)"

    def open(self, box: bytes, roster: bytes, sender: str, to: str) -> Secret:
        """Return what `sender` sealed for `to`.

        Raises:
            SumRefused: E_BOX, it doesn't open or has the wrong length.
        """
        if len(box) != BOX_BYTES:
            raise SumRefused("E_BOX", f"a box of {len(box)} bytes, it must have {BOX_BYTES}")
        try:
            return Secret(_HPKE.decrypt(box, self._key, _box_info(roster, sender, to)))
        except (InvalidTag, ValueError):
            raise SumRefused("E_BOX", f"the box from {sender} to {to} doesn't open") from None


class Keystream:
    """The AES-256-CTR keystream of one key from `byte_offset` on, a multiple of 16."""

    __slots__ = ("update_into",)

    def __init__(self, key: Secret | bytes, byte_offset: int = 0) -> None:
        if byte_offset % 16 or not 0 <= byte_offset < KEYSTREAM_LIMIT_BYTES:
            raise ValueError(f"a keystream can't start at byte {byte_offset}")
        raw = key.reveal() if isinstance(key, Secret) else key
        counter = (byte_offset // 16).to_bytes(16, "big")
        self.update_into: Final = Cipher(algorithms.AES256(raw), modes.CTR(counter)).encryptor().update_into

    def __repr__(self) -> str:
        return "Keystream(<hidden>)"

    def write(self, buffer: memoryview) -> None:
        """Fill `buffer` (bytes, at most 512 KiB) with what comes next."""
        self.update_into(ZEROS[: len(buffer)], buffer)
