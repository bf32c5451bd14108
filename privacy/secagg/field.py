"""The two number systems of a sum: the prime field of the shares, and words modulo 2^w for the vectors.

Words are numpy's unsigned integers with natural wrap-around, little-endian in memory and on the wire.
"""

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PRIME: Final = 2**256 + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
CHUNK_WORDS: Final = 65_536

Words = NDArray[np.unsignedinteger[Any]]
Integers = NDArray[np.int64]

_UNSIGNED: Final[dict[int, np.dtype[Any]]] = {bits: np.dtype(f"<u{bits // 8}") for bits in (16, 32, 64)}
_SIGNED: Final[dict[int, np.dtype[Any]]] = {bits: np.dtype(f"<i{bits // 8}") for bits in (16, 32, 64)}


def require_little_endian(order: str) -> None:
    """Refuse a host whose words lie the other way round.

    Raises:
        ImportError: `order` is that of a big-endian host.
    """
    if order != "little":
        raise ImportError("secure sums need a little-endian processor")


require_little_endian(sys.byteorder)


def word_type(word_bits: int) -> np.dtype[Any]:
    """Return numpy's unsigned type of `word_bits` bits (16, 32 or 64)."""
    return _UNSIGNED[word_bits]


def to_words(values: Integers, word_bits: int) -> Words:
    """Return `values` modulo 2^`word_bits` (two's complement), as a new array."""
    return values.astype(_UNSIGNED[word_bits])


def centred(words: Words) -> Integers:
    """Return words as the integers of [−2^(w−1), 2^(w−1)) that they stand for."""
    return words.view(_SIGNED[words.dtype.itemsize * 8]).astype(np.int64)


def chunk_count(dim: int) -> int:
    """Return how many chunks a vector of `dim` words has; the last may be short."""
    return -(-dim // CHUNK_WORDS)


def chunk_span(index: int, dim: int) -> tuple[int, int]:
    """Return the first word of chunk `index` and the first behind it.

    Raises:
        ValueError: There is no such chunk.
    """
    if not 0 <= index < chunk_count(dim):
        raise ValueError(f"chunk {index} of a vector of {dim} words")
    start = index * CHUNK_WORDS
    return start, min(dim, start + CHUNK_WORDS)
