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
from privacy.secagg.field import CHUNK_WORDS, Integers, chunk_count, chunk_span
from privacy.secagg.keys import Keystream
from privacy.secagg.secret import Secret

Vector = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]

NORM_MARGIN: Final = 1 + 2.0**-40
SHRINK_STEP: Final = 1 - 2.0**-12


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

    def scaled(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return `values` in steps of the grid, before clamping, as a new array."""
        scaled = values.astype(np.float64)
        with np.errstate(over="ignore"):  # what overflows is beyond every clip, and is clamped
            for factor in (self.weight, self.shrink):
                if factor != 1.0:
                    scaled *= factor
            scaled *= math.ldexp(1.0, self.scale_log2) / self.clip
        return scaled

    def points(self, values: NDArray[Any], dither: NDArray[np.uint32] | None) -> Integers:
        """Return the points of `values`.

        Args:
            values: Finite numbers; integers where the rounding is `integer`.
            dither: A random word for each, where the rounding is stochastic.
        """
        if self.rounding is Rounding.INTEGER:
            return values.astype(np.int64)
        scaled = self.scaled(values)
        np.clip(scaled, -self.q_max, self.q_max, out=scaled)
        if dither is None:
            np.rint(scaled, out=scaled)
        else:
            bits = self.dither_bits
            fraction = (dither >> np.uint32(32 - bits)).astype(np.float64)
            fraction *= 2.0**-bits
            scaled += fraction
            np.floor(scaled, out=scaled)
        return scaled.astype(np.int64)


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
        if beyond.any():
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


def _beyond(chunk: Vector, grid: Grid) -> NDArray[np.bool_]:
    if grid.rounding is Rounding.INTEGER:
        integers = chunk.astype(np.int64)
        return (integers > grid.q_max) | (integers < -grid.q_max)  # not abs(): −2^63 has none
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
        if self._values is None:
            raise ValueError("these points were dropped")
        start, stop = chunk_span(index, len(self._values))
        dither = None
        if self._grid.rounding is Rounding.STOCHASTIC:
            drawn = bytearray(4 * (stop - start))
            Keystream(self._key, 4 * start).write(memoryview(drawn))
            dither = np.frombuffer(drawn, dtype=np.uint32)
        return self._grid.points(self._values[start:stop], dither)

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
