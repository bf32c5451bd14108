"""The name of what was read: a hash over the decoded rows, and one over the raw files; pure.

A version is SHA-256 over the digests of the contract, of the map's meaning and of the split, then over the digest of
each used row in order (files by name, rows as they stand). Rows are hashed as decoded values, so a byte-order mark,
line ends, the delimiter, quoting, the encoding, the order of columns and the container leave a version as it is.
A version is a deterministic function of people's data: it stays in the site's own log and is told to no other party.
"""

import datetime as dt
import hashlib
import hmac
import struct
from typing import Final

from federation import canonical
from site_client.data.cells import Value

_DOMAIN: Final = b"confide-data/v1\n"
_ORDER: Final = b"confide-row-order/v1\n"
_HELD_OUT: Final = b"confide-held-out/v1\n"


def value_bytes(value: Value) -> bytes:
    """Return the bytes of one value, which say where they end: a row's bytes are its values' bytes in order.

    Two rows have the same bytes if and only if they are equal.
    """
    if value is None:
        return b"-"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"i%d;" % value
    if isinstance(value, float):
        return b"r" + struct.pack(">d", value)
    if isinstance(value, dt.date):
        return b"d" + value.isoformat().encode("ascii")
    text = value.encode("utf-8")
    return b"s" + struct.pack(">I", len(text)) + text


class VersionHash:
    """Takes the used rows one by one and gives the version."""

    def __init__(self, *, contract_digest: str, map_digest: str, split: dict[str, str]) -> None:
        self._hash = hashlib.sha256(_DOMAIN)
        head = canonical.encode({"contract": contract_digest, "map": map_digest, "split": split})
        self._hash.update(hashlib.sha256(head).digest())

    def add(self, row_digest: bytes, *, entity: str | None, held_out: bool) -> None:
        """Add a row by its digest (32 bytes), with the entity it belongs to and its side of the split."""
        tail = value_bytes(entity) + value_bytes(held_out)
        self._hash.update(hashlib.sha256(row_digest + tail).digest())

    def hexdigest(self) -> str:
        """Return the version as 64 hex digits."""
        return self._hash.hexdigest()


def is_held_out(key: bytes, unit: bytes, share: float) -> bool:
    """Return whether the unit is held out: HMAC-SHA256 under the site's key, so that nobody else can tell or steer it.

    The answer depends on the unit alone, so a unit is on the same side in every version and every data set.
    """
    word = int.from_bytes(hmac.digest(key, _HELD_OUT + unit, "sha256")[:8], "big")
    return word < int(share * 2**64)


def row_place(key: bytes, row_digest: bytes) -> int:
    """Return the 64-bit place of a row among those of its entity: keyed, so that nobody else can tell or steer it."""
    return int.from_bytes(hmac.digest(key, _ORDER + row_digest, "sha256")[:8], "big")


def key_name(key: bytes) -> str:
    """Return a name of the split key that says nothing about it: a version made with another key is another one."""
    return hmac.digest(key, _HELD_OUT + b"name", "sha256")[:8].hex()
