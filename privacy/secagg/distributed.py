"""The arithmetic of noise that is shared out: sensitivity, variance and what may be claimed for it.

Each site adds a share of discrete Gaussian noise that is too small alone; the shares of the fewest honest survivors
suffice. Calibrated to `quorum − colluding`, never to the number invited or the number that happened to survive: the
coordinator may drop sites down to the quorum, and colluders add nothing. All in integers and fractions. The corrected
deviation (accounting the sum as a continuous Gaussian) and the integer sensitivity are our own derivations.
"""

import math
from fractions import Fraction
from typing import Final

LEAST_SIGMA_SQ: Final = 2**8
SIGMA_SQ_LIMIT: Final = 2**52
SMOOTHING: Final = 16
"""Variance given up so that the sum of discrete Gaussians is a rounded continuous one (deviation 4)."""


def ceiling_root(value: int) -> int:
    """Return ⌈√value⌉ of a positive integer, exactly."""
    return math.isqrt(value - 1) + 1


def sensitivity(scale_log2: int, dim: int) -> int:
    """Return B: how long a vector of norm C can be after rounding, in steps of the grid, and how far two may differ."""
    return (1 << scale_log2) + ceiling_root(dim)


def least_sigma_sq(noise_multiplier: str, bound: int, honest: int) -> int:
    """Return the least variance of one share under which `honest` shares hide `bound` at this noise multiplier.

    Args:
        noise_multiplier: z as a decimal string, taken exactly.
        bound: The sensitivity in steps of the grid.
        honest: The fewest honest survivors, quorum − colluding.
    """
    wanted = Fraction(noise_multiplier) ** 2 * bound**2 + SMOOTHING
    return math.ceil(wanted / honest)


def claimed_multiplier(sigma_sq: int, bound: int, honest: int) -> float:
    """Return the noise multiplier that may be charged for such a sum; rounded down."""
    squared = Fraction(honest * sigma_sq - SMOOTHING, bound**2)
    claimed = math.sqrt(squared)
    while Fraction(claimed) ** 2 > squared:
        claimed = math.nextafter(claimed, 0.0)
    return claimed


def realised_multiplier(sigma_sq: int, bound: int, noisy: int) -> float:
    """Return the multiplier of the noise that `noisy` honest sites added; reported, never charged."""
    return math.sqrt(noisy * sigma_sq - SMOOTHING) / bound


def tail(sites: int, sigma_sq: int) -> int:
    """Return T: what the noise of `sites` shares exceeds with probability below 2e^−72 per coordinate."""
    return 12 * (math.isqrt(sites * sigma_sq) + 1) if sigma_sq else 0


def sum_norm_limit(survivors: int, bound: int, dim: int, sites: int, sigma_sq: int) -> int:
    """Return what the norm of an honest sum under site-level noise doesn't exceed."""
    return survivors * bound + (ceiling_root(dim) + 12) * (math.isqrt(sites * sigma_sq) + 1)
