"""Exact discrete Gaussian integers: P(X = x) ∝ e^(−x²/2σ²), by integers and fractions alone.

Canonne, Kamath, Steinke 2020, algorithms 1 to 3. No float decides anything, so the attacks on floating-point noise
(Mironov 2012) have no hold. One number costs tens of microseconds; this is for counts and histograms, which are few.
"""

from fractions import Fraction
from math import isqrt

from privacy.noise.keystream import Purpose, WordStream, require


def discrete_gaussian(stream: WordStream, variance: Fraction) -> int:
    """Return one integer of the discrete Gaussian with parameter σ² = `variance`.

    Raises:
        NoiseSourceFailed: `stream` isn't a secret one for releases.
        ValueError: The variance isn't positive.
    """
    source = require(stream, Purpose.RELEASE)
    if variance <= 0:
        raise ValueError("the variance must be positive")
    scale = isqrt(variance.numerator // variance.denominator) + 1
    while True:
        proposal = _discrete_laplace(source, scale)
        distance = abs(proposal) - variance / scale
        if _bernoulli_exp(source, distance * distance / (2 * variance)):
            return proposal


def discrete_gaussians(stream: WordStream, variance: Fraction, count: int) -> list[int]:
    """Return `count` independent integers of the discrete Gaussian."""
    return [discrete_gaussian(stream, variance) for _ in range(count)]


def _discrete_laplace(stream: WordStream, scale: int) -> int:
    """Return an integer with P(x) ∝ e^(−|x|/scale) (algorithm 2 with s = 1)."""
    while True:
        low = stream.below(scale)
        if not _bernoulli_exp(stream, Fraction(low, scale)):
            continue
        high = 0
        while _bernoulli_exp(stream, Fraction(1)):
            high += 1
        size = low + scale * high
        negative = stream.below(2) == 1
        if negative and size == 0:
            continue
        return -size if negative else size


def _bernoulli_exp(stream: WordStream, exponent: Fraction) -> bool:
    """Return True with probability e^(−exponent) (algorithm 1)."""
    while exponent > 1:
        if not _bernoulli_exp(stream, Fraction(1)):
            return False
        exponent -= 1
    count = 1
    while stream.below(exponent.denominator * count) < exponent.numerator:
        count += 1
    return count % 2 == 1
