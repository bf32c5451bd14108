"""Rényi divergence ρ(α) of an event at integer orders, for adding and for removing one unit.

Every event is mapped or refused: one without a bound here can't be charged. For the Poisson-sampled Gaussian at an
integer order the divergence is a finite sum (Mironov, Talwar, Zhang 2019, section 3.3), evaluated in log space and
written so that only positive terms are added; the direction from the mixture to the plain Gaussian, which the sum
gives, is the larger of the two (the same paper, theorem 5). The discrete Gaussian on integers with integer
sensitivity has the same bound as the continuous one (Canonne, Kamath, Steinke 2020, theorem 4).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, assert_never

from privacy.accounting.events import Event, Gaussian, Laplace, PoissonGaussian, PureEpsilon, RowSampledGaussian
from privacy.accounting.mixture import mixture_divergence

ACCOUNTANT: Final = "confide-renyi/1"
DEFAULT_ORDERS: Final[tuple[int, ...]] = (2, 3, 4, 6, 11, 25, 64, 176)

_GRAINS: Final = 2**60
"""Totals are integers of 2^-60: sums are exact, in any order, and a refund gives back what was held."""


def divergences(event: Event, orders: Sequence[int]) -> tuple[float, ...]:
    """Return ρ(α) of `event` for each α in `orders` (integers of at least 2), in nats."""
    return tuple(_divergence(event, order) for order in orders)


def charge_per_step(divergence: float) -> float:
    """Return what one step of this divergence is charged: never less, by a margin above any rounding here.

    ρ·(1+1e-9) + 1e-14, then up to a multiple of 2^-60, which is again a float (privacy design, 7.4).
    """
    raised = math.nextafter(divergence * (1 + 1e-9) + 1e-14, math.inf)
    return math.ceil(raised * _GRAINS) / _GRAINS


def charges(event: Event, orders: Sequence[int]) -> tuple[float, ...]:
    """Return what one step of `event` is charged at each order."""
    return _charges(event, tuple(orders))


@lru_cache(maxsize=4096)
def _charges(event: Event, orders: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(charge_per_step(divergence) for divergence in divergences(event, orders))


def grains(charge: float) -> int:
    """Return `charge` as an exact integer of 2^-60.

    Raises:
        ValueError: It isn't a multiple, so it isn't a charge that was made here.
    """
    scaled = charge * _GRAINS
    if not math.isfinite(scaled) or scaled != math.floor(scaled):
        raise ValueError("not a multiple of 2^-60")
    return int(scaled)


def grains_below(bound: float) -> int:
    """Return the largest integer of 2^-60 that isn't above `bound`."""
    return math.floor(bound * _GRAINS)


def grains_above(amount: float) -> int:
    """Return the smallest integer of 2^-60 that isn't below `amount`."""
    return math.ceil(amount * _GRAINS)


def grains_as_float(count: int) -> float:
    """Return `count` × 2^-60 as a float, rounded up where it doesn't fit."""
    value = count / _GRAINS
    return value if int(value * _GRAINS) >= count else math.nextafter(value, math.inf)


def _divergence(event: Event, order: int) -> float:
    match event:
        case Gaussian():
            return order / (2.0 * event.noise_multiplier) / event.noise_multiplier
        case PoissonGaussian():
            return _sampled_gaussian(event.sampling_rate, event.noise_multiplier, order)
        case Laplace():
            return _laplace(event.noise_multiplier, order)
        case PureEpsilon():
            return min(event.epsilon, order * event.epsilon**2 / 2.0)
        case RowSampledGaussian():
            return mixture_divergence(event.sampling_rate, event.noise_multiplier, event.rows, order)
        case _:
            assert_never(event)


def _sampled_gaussian(rate: float, noise: float, order: int) -> float:
    """Return ln(Σ_k C(α,k)(1−q)^(α−k) q^k e^((k²−k)/2σ²)) / (α−1).

    The k = 0 and k = 1 terms have exponent 0, so the sum is 1 + Σ_{k≥2} C(α,k)(1−q)^(α−k) q^k (e^(…) − 1).
    """
    if rate >= 1.0:
        return order / (2.0 * noise) / noise
    log_stay, log_rate = math.log1p(-rate), math.log(rate)
    terms = [
        math.log(math.comb(order, k))
        + (order - k) * log_stay
        + k * log_rate
        + _log_expm1((k * k - k) / 2.0 / noise / noise)
        for k in range(2, order + 1)
    ]
    top = max(terms)
    log_excess = top + math.log(math.fsum(math.exp(term - top) for term in terms))
    return _log1p_exp(log_excess) / (order - 1)


def _laplace(scale: float, order: int) -> float:
    """Return the closed form of Mironov 2017, table II."""
    first = math.log(order / (2 * order - 1)) + (order - 1) / scale
    second = math.log((order - 1) / (2 * order - 1)) - order / scale
    return max(0.0, (first + math.log1p(math.exp(second - first))) / (order - 1))


def _log_expm1(x: float) -> float:
    """Return ln(e^x − 1) for x > 0; where e^x − 1 is below the smallest float, ln x."""
    if x > 30.0:
        return x + math.log1p(-math.exp(-x))
    return math.log(math.expm1(x)) if x > 0.0 else -math.inf


def _log1p_exp(x: float) -> float:
    return x + math.log1p(math.exp(-x)) if x > 30.0 else math.log1p(math.exp(x))
