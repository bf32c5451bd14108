"""Normal numbers in binary64 from a secret stream: Box–Muller on 53-bit uniforms (privacy design, 6.3).

A mitigation, not the theorem's real-valued noise [P-3]: noise is made in binary64 even where tensors are binary32,
both outputs of a pair are used, on different coordinates, and gradient plus noise is rounded to a grid of 2^-20·σC
before anything else sees it. The largest value is about 8.6.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privacy.noise.keystream import Purpose, WordStream, require

CHUNK_WORDS: Final = 32 * 1024
GRID_BITS: Final = 20


def box_muller(first: Any, second: Any, namespace: Any) -> tuple[Any, Any]:
    """Return two arrays of independent normals from two arrays of uniforms on (0, 1).

    Args:
        first: Uniforms that become radii.
        second: Uniforms that become angles.
        namespace: The module whose `log`, `sqrt`, `cos` and `sin` work on these arrays, such as numpy.
    """
    radius = namespace.sqrt(-2.0 * namespace.log(first))
    angle = (2.0 * math.pi) * second
    return radius * namespace.cos(angle), radius * namespace.sin(angle)


def normals(stream: WordStream, count: int) -> NDArray[np.float64]:
    """Return `count` standard normals from a noise stream.

    Raises:
        NoiseSourceFailed: `stream` isn't a secret one for noise.
    """
    source = require(stream, Purpose.NOISE)
    result = np.empty(count, dtype=np.float64)
    done = 0
    while done < count:
        pairs = min(CHUNK_WORDS // 2, (count - done + 1) // 2)
        uniforms = ((source.words(2 * pairs) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        first, second = box_muller(uniforms[:pairs], uniforms[pairs:], np)
        result[done : done + pairs] = first
        rest = min(pairs, count - done - pairs)
        result[done + pairs : done + pairs + rest] = second[:rest]
        done += pairs + rest
    return result


def on_grid(values: NDArray[np.float64], deviation: float) -> NDArray[np.float64]:
    """Return `values` rounded to the grid of 2^-20 times the noise's `deviation`."""
    grid = math.ldexp(deviation, -GRID_BITS)
    rounded: NDArray[np.float64] = np.rint(values / grid) * grid
    return rounded
