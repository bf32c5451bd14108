"""The one hash and the one key derivation of the suite: every input has a label and its length beside it.

So no two uses can ever be given the same bytes by moving a boundary, and no value of one use stands for another.
"""

import hashlib
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SUITE: Final = "FSA-1"
ZERO_SALT: Final = bytes(32)

Part = bytes | bytearray | str | int


def _part_bytes(part: Part) -> bytes | bytearray:
    if isinstance(part, str):
        return part.encode("ascii")
    return part.to_bytes(8, "big") if isinstance(part, int) else part


def digest(label: str, *parts: Part) -> bytes:
    """Return SHA-256(u32be(len L) ‖ L ‖ Σ u64be(len p) ‖ p) with L the suite, a slash and `label`.

    Args:
        label: What the digest is for.
        parts: Bytes as they are, ids as ASCII, integers as u64 big-endian.
    """
    name = f"{SUITE}/{label}".encode("ascii")
    hashed = hashlib.sha256(len(name).to_bytes(4, "big") + name)
    for part in parts:
        data = _part_bytes(part)
        hashed.update(len(data).to_bytes(8, "big"))
        hashed.update(data)
    return hashed.digest()


def derive_key(key_material: bytes | bytearray, salt: bytes, label: str, *ids: Part) -> bytes:
    """Return 32 bytes by HKDF-SHA256 (RFC 5869), info = L ‖ Σ u16be(len id) ‖ id."""
    info = bytearray(f"{SUITE}/{label}".encode("ascii"))
    for item in ids:
        data = _part_bytes(item)
        info += len(data).to_bytes(2, "big") + data
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=bytes(info)).derive(key_material)
