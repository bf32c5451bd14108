"""Pseudonyms of people and commitments to values: all of them that an entry holds; pure.

A pseudonym is keyed by 32 bytes of the person's own, so that deleting them ends what can be linked. A commitment is
keyed by fresh salt, so that its value can't be guessed; who has salt and value can open it.
"""

import base64
import hmac


def _mac(prefix: str, key: bytes, message: bytes) -> str:
    digest = hmac.digest(key, message, "sha256")
    return prefix + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def pseudonym_of(person_key: bytes, login: str) -> str:
    """Return the pseudonym of `login` under a person's 32-byte key."""
    return _mac("p1:", person_key, b"audit-actor/v1\x00" + login.encode())


def commitment_of(salt: bytes, field: str, value: bytes) -> str:
    """Return the commitment to `value` of `field` under 32 bytes of salt."""
    return _mac("c1:", salt, field.encode() + b"\x00" + value)
