"""From a site's real numbers to the integers of the sum: a grid, random rounding, and what can refuse an update.

Stochastic rounding is unbiased, keeps integers, and never leaves ±q_max: the dither has so few bits that adding it
is exact in binary64. The inspection reads the vector once, in chunks, before anything is sent.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privacy.secagg.errors import SumRefused
from privacy.secagg.field import CHUNK_WORDS, Integers, Words, chunk_count, chunk_span, to_words
from privacy.secagg.keys import Keystream
from privacy.secagg.secret import Secret

Vector = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]

NORM_MARGIN: Final = 1 + 2.0**-40
SHRINK_STEP: Final = 1 - 2.0**-12
BLOCK_WORDS: Final = 16_384


class Rounding(StrEnum):
    """How a value between two points of the grid becomes one of them."""

    STOCHASTIC = "stochastic"
    NEAREST = "nearest"
    INTEGER = "integer"


@dataclass(frozen=True, slots=True)
class Grid:
    """The points that a coordinate may take: multiples of clip · 2^−scale_log2, from −q_max to q_max.

    Attributes:
        clip: C, in the update's units.
        scale_log2: s.
        q_max: The largest point, in steps.
        rounding: How values become points.
        weight: What the update is multiplied with first: this site's weight over the largest.
        shrink: What it is multiplied with then, to bound its norm.
    """

    clip: float
    scale_log2: int
    q_max: int
    rounding: Rounding
    weight: float = 1.0
    shrink: float = 1.0

    @property
    def dither_bits(self) -> int:
        """Return D: with more, adding the dither could carry beyond q_max."""
        return min(32, 53 - self.q_max.bit_length())

    def scaled(self, values: NDArray[Any], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return `values` in steps of the grid, before clamping, in `out` or a new array."""
        scaled = np.empty(values.shape, dtype=np.float64) if out is None else out
        np.copyto(scaled, values)
        with np.errstate(over="ignore"):  # what overflows is beyond every clip, and is clamped
            for factor in (self.weight, self.shrink):
                if factor != 1.0:
                    scaled *= factor
            scaled *= math.ldexp(1.0, self.scale_log2) / self.clip
        return scaled

    def holds(self, values: NDArray[Any]) -> bool:
        """Return whether all `values` are numbers within ±q_max; scaling keeps their order, so the ends decide."""
        ends = self.scaled(np.array([values.max(), values.min()]))  # either is NaN if any value is
        return bool(np.abs(ends).max() <= self.q_max)

    def rounded(
        self, values: NDArray[Any], dither: NDArray[np.uint32] | None, scratch: "Scratch"
    ) -> NDArray[np.float64]:
        """Return the points of at most a block of `values` as whole numbers in binary64, in `scratch`.

        Args:
            values: Finite numbers.
            dither: A random word for each, where the rounding is stochastic.
            scratch: Memory that the next call writes over.
        """
        scaled = self.scaled(values, scratch.scaled[: len(values)])
        if not self.holds(values):
            np.clip(scaled, -self.q_max, self.q_max, out=scaled)
        if dither is None:
            return np.rint(scaled, out=scaled)
        bits, top, fraction = self.dither_bits, scratch.top[: len(values)], scratch.fraction[: len(values)]
        np.right_shift(dither, np.uint32(32 - bits), out=top)
        np.copyto(fraction, top if bits == 32 else top.view(np.int32))  # signed words convert faster
        fraction *= 2.0**-bits
        scaled += fraction
        return np.floor(scaled, out=scaled)


class Scratch:
    """Memory for one block, used again and again; never by two threads."""

    def __init__(self) -> None:
        self.scaled: Final = np.empty(BLOCK_WORDS)
        self.fraction: Final = np.empty(BLOCK_WORDS)
        self.top: Final = np.empty(BLOCK_WORDS, dtype=np.uint32)
        self.narrow: Final = np.empty(BLOCK_WORDS, dtype=np.int32)
        self.drawn: Final = bytearray(4 * CHUNK_WORDS)
        self.dither: Final = np.frombuffer(self.drawn, dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class Clamped:
    """How many coordinates of each tensor lay outside ±clip; for the site's own operator, never sent."""

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Return the number over all tensors."""
        return sum(self.counts)


def chunks_of(values: Vector) -> Iterator[Vector]:
    """Yield `values` chunk by chunk, as views."""
    for index in range(chunk_count(len(values))):
        start, stop = chunk_span(index, len(values))
        yield values[start:stop]


def inspect(
    values: Vector, grid: Grid, dim: int, *, clamp_ppm_max: int | None, tensor_starts: Sequence[int] = (0,)
) -> Clamped:
    """Return what was clamped, after all that can refuse an update has been looked at.

    Args:
        values: The flat update.
        grid: Its grid.
        dim: How many words the plan expects.
        clamp_ppm_max: The largest share of clamped coordinates in millionths; None where a refusal would depend on data
            that noise must hide.
        tensor_starts: Where each tensor begins in the vector.

    Raises:
        SumRefused: E_RANGE.
    """
    if values.shape != (dim,):
        raise SumRefused("E_RANGE", f"an update of shape {values.shape}, the plan expects {dim} words")
    if (values.dtype.kind == "i") != (grid.rounding is Rounding.INTEGER):
        raise SumRefused("E_RANGE", f"an update of type {values.dtype} where the rounding is {grid.rounding.value}")
    starts = np.asarray(tensor_starts, dtype=np.int64)
    counts = np.zeros(len(starts), dtype=np.int64)
    for number, chunk in enumerate(chunks_of(values)):
        beyond = _beyond(chunk, grid)
        if beyond is not None:
            places = np.flatnonzero(beyond) + number * CHUNK_WORDS
            counts += np.bincount(np.searchsorted(starts, places, side="right") - 1, minlength=len(starts))
    clamped = Clamped(tuple(int(count) for count in counts))
    if grid.rounding is Rounding.INTEGER and clamped.total:
        raise SumRefused("E_RANGE", f"{clamped.total} integers lie beyond ±{grid.q_max}")
    if clamp_ppm_max is not None and clamped.total * 10**6 > clamp_ppm_max * dim:
        raise SumRefused(
            "E_RANGE", f"{clamped.total} of {dim} values lie beyond ±clip, allowed are {clamp_ppm_max} ppm"
        )
    return clamped


def _beyond(chunk: Vector, grid: Grid) -> NDArray[np.bool_] | None:
    """Return which values lie beyond the grid, or None if none does."""
    if grid.rounding is Rounding.INTEGER:
        inside = int(chunk.max()) <= grid.q_max and int(chunk.min()) >= -grid.q_max  # not abs(): −2^63 has none
        return None if inside else (chunk > grid.q_max) | (chunk < -grid.q_max)
    if grid.holds(chunk):
        return None
    if not np.isfinite(chunk).all():
        raise SumRefused("E_RANGE", "the update holds a value that isn't finite")
    return np.abs(grid.scaled(chunk)) > grid.q_max


def shrink_to(values: Vector, grid: Grid) -> float:
    """Return the factor under which `values`, after the grid's weight, have a norm of at most the clip."""
    with np.errstate(over="ignore"):
        squares = sum(float(np.dot(chunk, chunk)) for chunk in (part.astype(np.float64) for part in chunks_of(values)))
    norm = math.sqrt(squares) * abs(grid.weight) * NORM_MARGIN
    return 1.0 if norm <= grid.clip else grid.clip / norm


class Points:
    """A site's quantised vector, made chunk by chunk, any chunk at any time, always the same.

    Args:
        values: The flat update; not copied.
        grid: Its grid.
        dither_key: The key of the random rounding; every other rounding ignores it.
    """

    def __init__(self, values: Vector, grid: Grid, dither_key: Secret) -> None:
        self._values: Vector | None = values
        self._grid = grid
        self._key = dither_key

    def chunk(self, index: int) -> Integers:
        """Return the points of one chunk.

        Raises:
            ValueError: The points were dropped.
        """
        points = np.empty(len(self._span(index)), dtype=np.int64)
        for block, whole in self._blocks(index, Scratch()):
            points[block] = whole
        return points

    def write(self, index: int, words: Words, scratch: Scratch) -> None:
        """Fill `words` with the points of one chunk modulo 2^w, in blocks that stay in the processor's cache.

        Raises:
            ValueError: The points were dropped.
        """
        narrow = words.dtype == np.uint32 and self._grid.rounding is not Rounding.INTEGER and self._grid.q_max < 2**31
        for block, whole in self._blocks(index, scratch):
            if narrow:
                fitting = scratch.narrow[: len(whole)]
                np.copyto(fitting, whole, casting="unsafe")
                words[block] = fitting.view(np.uint32)
            else:
                words[block] = to_words(whole.astype(np.int64), words.dtype.itemsize * 8)

    def _span(self, index: int) -> range:
        return range(*chunk_span(index, len(self._kept())))

    def _kept(self) -> Vector:
        if self._values is None:
            raise ValueError("these points were dropped")
        return self._values

    def _blocks(self, index: int, scratch: Scratch) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the points of one chunk block by block, as whole numbers of some type."""
        span, grid = self._span(index), self._grid
        chunk, dither = self._kept()[span.start : span.stop], None
        if grid.rounding is Rounding.STOCHASTIC:
            Keystream(self._key, 4 * span.start).write(memoryview(scratch.drawn)[: 4 * len(span)])
            dither = scratch.dither
        for start in range(0, len(span), BLOCK_WORDS):
            block = slice(start, min(start + BLOCK_WORDS, len(span)))
            if grid.rounding is Rounding.INTEGER:
                yield block, chunk[block]
            else:
                yield block, grid.rounded(chunk[block], None if dither is None else dither[block], scratch)

    def norm_sq(self) -> int:
        """Return the squared norm of all points, exactly (below 2^44 a coordinate, so that a chunk fits int64)."""
        total = 0
        for index in range(chunk_count(len(self._values) if self._values is not None else 0)):
            chunk = self.chunk(index)
            total += int(np.dot(chunk, chunk))
        return total

    def drop(self) -> None:
        """Forget the update and the key."""
        self._values = None
        self._key.wipe()
