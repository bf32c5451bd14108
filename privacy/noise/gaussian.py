"""Normal numbers in binary64 from a secret stream: Box–Muller on 53-bit uniforms (privacy design, 6.3).

A mitigation, not the theorem's real-valued noise [P-3]: noise is made in binary64 even where tensors are binary32,
both outputs of a pair are used, on different coordinates, and gradient plus noise is rounded to a grid of 2^-20·σC
before anything else sees it. The largest value is about 8.6.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privacy.noise.keystream import Purpose, WordStream, require

CHUNK_WORDS: Final = 32 * 1024
GRID_BITS: Final = 20


Reals = NDArray[np.float64]
Transform = Callable[[Reals, Reals], tuple[Reals, Reals]]
"""From uniforms that become radii and uniforms that become angles to two arrays of independent normals."""


def box_muller(first: Reals, second: Reals) -> tuple[Reals, Reals]:
    """Return two arrays of independent normals from two arrays of uniforms on (0, 1), by numpy."""
    radius = np.sqrt(-2.0 * np.log(first))
    angle = (2.0 * math.pi) * second
    return radius * np.cos(angle), radius * np.sin(angle)


def normals(stream: WordStream, count: int, transform: Transform = box_muller) -> Reals:
    """Return `count` standard normals from a noise stream.

    Args:
        stream: A secret stream for noise.
        count: How many.
        transform: Box–Muller, by whatever computes it fastest; the self-test is run with it.

    Raises:
        NoiseSourceFailed: `stream` isn't a secret one for noise.
    """
    source = require(stream, Purpose.NOISE)
    result = np.empty(count, dtype=np.float64)
    done = 0
    while done < count:
        pairs = min(CHUNK_WORDS // 2, (count - done + 1) // 2)
        uniforms = (source.words(2 * pairs) >> np.uint64(11)).astype(np.float64)
        uniforms += 0.5
        uniforms *= 2.0**-53
        first, second = transform(uniforms[:pairs], uniforms[pairs:])
        result[done : done + pairs] = first
        rest = min(pairs, count - done - pairs)
        result[done + pairs : done + pairs + rest] = second[:rest]
        done += pairs + rest
    return result
