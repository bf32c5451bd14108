"""Adding masks to a vector without holding a second one: chunk by chunk, each chunk at any time, always the same bytes.

y = q(x) + noise + PRG(self) + Σ ± PRG(pair) mod 2^w. A resend must repeat the same bytes, since two vectors under one
mask would show their difference; so rounding and noise come from keys that live as long as the masks do.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from privacy.secagg.derivation import digest
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import CHUNK_WORDS, Integers, Words, chunk_count, chunk_span, to_words, word_type
from privacy.secagg.keys import ZEROS, Keystream
from privacy.secagg.quantize import Points, Scratch
from privacy.secagg.secret import Secret

Noise = Callable[[bytearray, int, int], Integers]
"""Takes the noise key, a chunk's index and its length; returns its noise."""

BLOCK_BYTES: Final = 2**17


@dataclass(frozen=True, slots=True)
class Mask:
    """One keystream that is added to a vector, or taken from it."""

    key: Secret
    added: bool


class Masks:
    """Streams over one vector, applied in ascending order of words from where they start."""

    def __init__(self, masks: Sequence[Mask], word_bits: int, first_word: int) -> None:
        offset = first_word * word_bits // 8
        self._type = word_type(word_bits)
        streams = [(Keystream(mask.key, offset), mask.added) for mask in masks]
        self._streams = [(stream.update_into, np.add if added else np.subtract) for stream, added in streams]
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._words = np.frombuffer(self._buffer, dtype=self._type)

    def apply(self, words: Words) -> None:
        """Add the next stretch of every stream to `words`, in place; but for the last, 16 bytes or a multiple."""
        step = len(self._words)
        for start in range(0, len(words), step):
            block = words[start : start + step]
            buffer, stream_words = self._buffer[: block.nbytes], self._words[: len(block)]
            zeros = ZEROS[: block.nbytes]
            for update_into, combine in self._streams:
                update_into(zeros, buffer)
                combine(block, stream_words, block)


def pair_mask(key: Secret, own: str, peer: str) -> Mask:
    """Return the mask that `own` shares with `peer`: the smaller id adds, the larger takes away."""
    return Mask(key, own < peer)


class Payload:
    """The digest of an uploaded vector, from the digests of its chunks in any order."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._leaves: list[bytes | None] = [None] * chunk_count(dim)

    def add(self, index: int, data: bytes | memoryview) -> None:
        """Take note of one chunk."""
        self._leaves[index] = leaf(chunk_span(index, self._dim)[0], data)

    @property
    def missing(self) -> int:
        """Return how many chunks haven't been seen."""
        return self._leaves.count(None)

    def digest(self) -> bytes:
        """Return the digest over all chunks.

        Raises:
            ValueError: A chunk is missing.
        """
        leaves = [found for found in self._leaves if found is not None]
        if len(leaves) != len(self._leaves):
            raise ValueError("chunks are missing")
        return digest("payload", *leaves)

    def fits(self, index: int, data: bytes) -> bool:
        """Return whether `data` is the chunk that was seen at `index`."""
        return self._leaves[index] == leaf(chunk_span(index, self._dim)[0], data)


def leaf(first_word: int, data: bytes | memoryview) -> bytes:
    """Return the digest of one chunk: H("chunk"; u64be(index of its first word), its bytes)."""
    name = b"FSA-1/chunk"
    hashed = hashlib.sha256(
        len(name).to_bytes(4, "big") + name + (8).to_bytes(8, "big") + first_word.to_bytes(8, "big")
    )
    hashed.update(len(data).to_bytes(8, "big"))
    hashed.update(data)
    return hashed.digest()


class MaskJob:
    """A site's masked vector, as it is uploaded.

    Args:
        points: The quantised vector.
        masks: Its own mask and those it shares.
        dim: d, in words.
        word_bits: w.
        noise: The noise of a chunk, or None.
        noise_key: What `noise` is called with; from the random source alone, since other seeds are rebuilt by others.
    """

    def __init__(
        self,
        points: Points,
        masks: Sequence[Mask],
        *,
        dim: int,
        word_bits: int,
        noise: Noise | None = None,
        noise_key: Secret | None = None,
    ) -> None:
        self._points = points
        self._masks = tuple(masks)
        self._word_bits = word_bits
        self._noise = noise
        self._noise_key = noise_key or Secret(b"")
        self.dim: Final = dim
        self.payload: Final = Payload(dim)

    def __repr__(self) -> str:
        return f"MaskJob(dim={self.dim}, <hidden>)"

    @property
    def spent(self) -> bool:
        """Return whether the keys were wiped."""
        return any(mask.key.spent for mask in self._masks)

    @property
    def chunks_count(self) -> int:
        """Return how many chunks there are."""
        return chunk_count(self.dim)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the index and the bytes of each chunk from `start` on; threads may take ranges of their own.

        Raises:
            SumRefused: E_PHASE, the keys were wiped.
        """
        if self.spent:
            raise SumRefused("E_PHASE", "the masks of this sum were wiped")
        masks = Masks(self._masks, self._word_bits, chunk_span(start, self.dim)[0])
        whole, scratch = np.empty(CHUNK_WORDS, dtype=word_type(self._word_bits)), Scratch()
        for index in range(start, self.chunks_count if stop is None else stop):
            first, behind = chunk_span(index, self.dim)
            words = whole[: behind - first]
            self._points.write(index, words, scratch)
            if self._noise is not None:
                words += to_words(self._noise(self._noise_key.reveal(), index, behind - first), self._word_bits)
            masks.apply(words)
            data = words.tobytes()
            self.payload.add(index, data)
            yield index, data

    def wipe(self) -> None:
        """Forget keys, rounding, noise and update: the bytes can't be made again."""
        for mask in self._masks:
            mask.key.wipe()
        self._noise_key.wipe()
        self._points.drop()
