"""Poisson sampling of units: each is in or out independently, each step anew (privacy design, 5.2).

The sizes and members of a batch are secret: a known batch voids what sampling gives. They never leave the trainer.
"""

from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

from privacy.errors import ScheduleInvalid
from privacy.noise.keystream import PlannedStream, Purpose, WordStream, require


def poisson_sample(stream: WordStream, units: int, rate: float) -> NDArray[np.int64]:
    """Return the indices i with w_i < ⌊rate·2^64⌋, w_i being unit i's own 64-bit word; all of them at rate 1.

    Args:
        stream: A secret sampling stream of this step alone.
        units: How many units there are.
        rate: Chance of each, above 0 and at most 1.

    Raises:
        ScheduleInvalid: The rate is out of range.
        NoiseSourceFailed: `stream` isn't a secret one for sampling.
    """
    source = require(stream, Purpose.SAMPLING)
    if not 0 < rate <= 1:
        raise ScheduleInvalid(f"the sampling rate is {rate}, it must be above 0 and at most 1")
    if rate == 1:
        return np.arange(units, dtype=np.int64)
    threshold = np.uint64(floor(Fraction(rate) * 2**64))
    return np.flatnonzero(source.words(units) < threshold).astype(np.int64)


def planned_order(seed: int, site: str, round_number: int, epoch: int, units: int) -> NDArray[np.int64]:
    """Return a permutation of the units that the plan fixes. For mechanism none alone."""
    stream = PlannedStream(seed, "order", site, round_number, epoch)
    return np.argsort(stream.words(units), kind="stable").astype(np.int64)
