"""The running sum of masked vectors, and the look at what it became once the masks are off."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from privacy.secagg import distributed
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import CHUNK_WORDS, Integers, Words, centred, chunk_count, chunk_span, word_type
from privacy.secagg.masking import Mask, Masks, Payload


class Accumulator:
    """One vector of d words that uploads are added to in place; its memory doesn't depend on the number of sites.

    Each vector is added whole, once. If a stored chunk turns out to have changed since it was staged, the words are in
    an unknown state: the accumulator is *broken* and has to be made again from all stages.
    """

    def __init__(self, dim: int, word_bits: int) -> None:
        self.dim: Final = dim
        self.word_bits: Final = word_bits
        self._words: Words = np.zeros(dim, dtype=word_type(word_bits))
        self.senders: Final[set[str]] = set()
        self.broken = False

    def add(self, sender: str, staged: "Stage", read: Callable[[int], bytes]) -> None:
        """Add a staged upload chunk by chunk.

        Args:
            sender: Whose it is.
            staged: What was staged, complete.
            read: Returns the bytes of a chunk from where it was staged.

        Raises:
            SumRefused: E_DUP, the sender's vector is in the sum already (nothing changed); E_PAYLOAD, a chunk isn't
                what was staged (the accumulator is broken).
        """
        if sender in self.senders:
            raise SumRefused("E_DUP", f"the vector of {sender} is in the sum already")
        for index in range(chunk_count(self.dim)):
            data = read(index)
            if not staged.payload.fits(index, data):
                self.broken = True
                raise SumRefused("E_PAYLOAD", f"chunk {index} of {sender} isn't what was staged")
            start, stop = chunk_span(index, self.dim)
            self._words[start:stop] += np.frombuffer(data, dtype=self._words.dtype)
        self.senders.add(sender)

    def unmask(self, masks: Sequence[Mask], start: int = 0, stop: int | None = None) -> None:
        """Take `masks` off the chunks from `start` to `stop`, in place; threads may take disjoint ranges."""
        streams = Masks(masks, self.word_bits, chunk_span(start, self.dim)[0])
        for index in range(start, chunk_count(self.dim) if stop is None else stop):
            first, behind = chunk_span(index, self.dim)
            streams.apply(self._words[first:behind])

    def words(self, index: int) -> Words:
        """Return one chunk of the sum, as a view that can't be written.

        Raises:
            SumRefused: E_PAYLOAD, the accumulator is broken.
        """
        if self.broken:
            raise SumRefused("E_PAYLOAD", "a stored upload changed; the sum must be made again")
        start, stop = chunk_span(index, self.dim)
        view = self._words[start:stop]
        view.flags.writeable = False
        return view


class Stage:
    """One upload before it counts: in order, whole chunks, at most d words; held apart from the sum."""

    def __init__(self, dim: int, word_bits: int) -> None:
        self._dim = dim
        self._bytes_each = word_bits // 8
        self.payload: Final = Payload(dim)
        self.next_index = 0

    @property
    def complete(self) -> bool:
        """Return whether every chunk is there."""
        return self.next_index == chunk_count(self._dim)

    def take(self, index: int, data: bytes) -> None:
        """Take note of the next chunk.

        Raises:
            SumRefused: E_PAYLOAD, it isn't the next one, or not of its length; nothing changed.
        """
        if self.complete or index != self.next_index:
            raise SumRefused("E_PAYLOAD", f"chunk {index} came where chunk {self.next_index} was expected")
        start, stop = chunk_span(index, self._dim)
        if len(data) != (stop - start) * self._bytes_each:
            raise SumRefused("E_PAYLOAD", f"chunk {index} has {len(data)} bytes")
        self.payload.add(index, data)
        self.next_index += 1

    @classmethod
    def read_again(cls, dim: int, word_bits: int, signed: bytes, read: Callable[[int], bytes]) -> "Stage":
        """Return the stage of an upload that was committed before a restart.

        Raises:
            SumRefused: E_PAYLOAD, its bytes aren't those that its sender signed.
        """
        stage = cls(dim, word_bits)
        for index in range(chunk_count(dim)):
            stage.take(index, read(index))
        if stage.payload.digest() != signed:
            raise SumRefused("E_PAYLOAD", "a stored upload isn't what its sender signed")
        return stage


@dataclass(frozen=True, slots=True)
class SumFigures:
    """What a look through an unmasked sum found.

    Attributes:
        digest: `sum_digest`, over the words as they lie in memory.
        largest: The largest absolute word.
        norm_sq: The squared norm.
    """

    digest: bytes
    largest: int
    norm_sq: int


class SumInspection:
    """Reads a sum chunk by chunk, wherever it comes from."""

    def __init__(self, dim: int, word_bits: int) -> None:
        name = b"FSA-1/sum"
        self._hashed: Any = hashlib.sha256(len(name).to_bytes(4, "big") + name)
        self._hashed.update((dim * word_bits // 8).to_bytes(8, "big"))
        self._type = word_type(word_bits)
        self._left = dim
        self._largest = 0
        self._norm_sq = 0

    def read(self, data: bytes | Words) -> None:
        """Take the next words.

        Raises:
            SumRefused: E_RESULT, there are more words than the plan has.
        """
        words = np.frombuffer(data, dtype=self._type) if isinstance(data, bytes) else data
        if len(words) > self._left:
            raise SumRefused("E_RESULT", "the sum has more words than the plan")
        self._left -= len(words)
        self._hashed.update(np.ascontiguousarray(words).data)
        for start in range(0, len(words), CHUNK_WORDS):
            values = centred(words[start : start + CHUNK_WORDS])
            largest = max(int(values.max()), -int(values.min()))
            self._largest = max(self._largest, largest)
            self._norm_sq += _square(values, largest)

    def figures(self) -> SumFigures:
        """Return what was found.

        Raises:
            SumRefused: E_RESULT, words are missing.
        """
        if self._left:
            raise SumRefused("E_RESULT", f"{self._left} words of the sum are missing")
        return SumFigures(self._hashed.digest(), self._largest, self._norm_sq)


def _square(values: Integers, largest: int) -> int:
    """Return the exact squared norm of at most one chunk, in parts above and below 2^20 so that none wraps."""
    if largest < 2**23:
        return int(np.dot(values, values))
    if largest >= 2**43:  # 64-bit words out of all bounds
        return sum(value * value for value in values.tolist())
    low, high = values & 0xFFFFF, values >> 20
    return (int(np.dot(high, high)) << 40) + (int(np.dot(high, low)) << 21) + int(np.dot(low, low))


def check_bounds(
    figures: SumFigures, *, survivors: int, q_max: int, sites: int, sigma_sq: int, dim: int, norm_sq_max: int
) -> None:
    """Refuse a sum that no honest vectors add up to.

    Raises:
        SumRefused: E_SUM_RANGE.
    """
    limit = survivors * q_max + distributed.tail(sites, sigma_sq)
    if figures.largest > limit:
        raise SumRefused("E_SUM_RANGE", f"a word of the sum lies beyond ±{limit}")
    if norm_sq_max:
        bound = distributed.ceiling_root(norm_sq_max)
        longest = distributed.sum_norm_limit(survivors, bound, dim, sites, sigma_sq)
        if figures.norm_sq > longest**2:
            raise SumRefused("E_SUM_RANGE", f"the norm of the sum is beyond {longest}")
