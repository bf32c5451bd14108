"""A count of units that may be told, with noise that hides any one of them (privacy design, 4.2)."""

from typing import Final

COUNT_NOISE: Final = 30
"""Deviation of the noise on a count of units."""


def noisy_count(count: int) -> int:
    """Return `count` with discrete Gaussian noise of deviation 30, rounded to two digits, at least 1."""
    from fractions import Fraction

    from privacy.noise.discrete_gaussian import discrete_gaussian
    from privacy.noise.keystream import KeyRoot, Purpose

    noise = discrete_gaussian(KeyRoot(Purpose.RELEASE).derive("units"), Fraction(COUNT_NOISE**2))
    return two_digits(max(count + noise, 1))


def two_digits(number: int) -> int:
    """Return a positive `number` rounded to its first two digits."""
    unit: int = 10 ** max(len(str(number)) - 2, 0)
    return (number + unit // 2) // unit * unit
