"""Shamir's secret sharing of 32-byte secrets over the prime field p = 2^256 + 297 (Shamir 1979).

Any `threshold` shares give the secret; fewer fit every secret equally well. Python's integers take no constant time;
they hold a secret only while it is split or joined.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from privacy.secagg.errors import SumRefused
from privacy.secagg.field import PRIME, SECRET_BYTES, SHARE_BYTES
from privacy.secagg.secret import RandomSource


def coefficient(random: RandomSource) -> int:
    """Return an integer that is uniform on [0, p), by rejection on 257 bits."""
    while True:
        drawn = bytearray(random.take(SHARE_BYTES))
        drawn[0] &= 1
        value = int.from_bytes(drawn, "big")
        if value < PRIME:
            return value


def split(secret: bytes | bytearray, places: Iterable[int], threshold: int, random: RandomSource) -> dict[int, bytes]:
    """Return a share of `secret` for each x-coordinate of `places`.

    Raises:
        ValueError: The secret isn't 32 bytes, or a place is zero or beyond the field.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, it must have {SECRET_BYTES}")
    polynomial = [int.from_bytes(secret, "big"), *(coefficient(random) for _ in range(threshold - 1))]
    return {place: evaluate(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in places}


def evaluate(polynomial: list[int], place: int) -> int:
    """Return the value of a polynomial (lowest degree first) at `place`.

    Raises:
        ValueError: `place` is zero, where the secret lies, or beyond the field.
    """
    if not 0 < place < PRIME:
        raise ValueError("a place must lie between 1 and p − 1")
    value = 0
    for term in reversed(polynomial):
        value = (value * place + term) % PRIME
    return value


@lru_cache(maxsize=8192)
def lagrange_at_zero(places: tuple[int, ...]) -> tuple[int, ...]:
    """Return the coefficients with which shares at `places` add up to the secret; cached for each set."""
    found = []
    for own in places:
        above = below = 1
        for other in places:
            if other != own:
                above = above * -other % PRIME
                below = below * (own - other) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


def join(shares: Mapping[int, bytes], threshold: int) -> bytearray:
    """Return the secret from the `threshold` shares with the smallest x-coordinates.

    Raises:
        SumRefused: E_TOO_FEW_SHARES; E_SHARE_X for a zero or foreign place; E_SHARE_RANGE for a share of the wrong
            length or at least p, or a result that is no 32 bytes.
    """
    if any(not 0 < place < PRIME for place in shares):
        raise SumRefused("E_SHARE_X", "a share at a place outside the field")
    if len(shares) < threshold:
        raise SumRefused("E_TOO_FEW_SHARES", f"{len(shares)} shares, {threshold} are needed")
    places = tuple(sorted(shares)[:threshold])
    values = [int.from_bytes(shares[place], "big") for place in places]
    if any(len(shares[place]) != SHARE_BYTES for place in places) or any(value >= PRIME for value in values):
        raise SumRefused("E_SHARE_RANGE", "a share isn't an element of the field")
    joined = sum(value * part for value, part in zip(values, lagrange_at_zero(places), strict=True)) % PRIME
    if joined >> (8 * SECRET_BYTES):
        raise SumRefused("E_SHARE_RANGE", "the joined secret is no 32 bytes")
    return bytearray(joined.to_bytes(SECRET_BYTES, "big"))
