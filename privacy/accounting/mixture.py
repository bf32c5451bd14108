"""Rényi divergence of Gaussian noise on sampled rows, as somebody with k rows sees it (privacy design, 7.9).

Each row of the person is drawn with probability q, so the sum moves by j clips with the binomial probability w_j:
P = Σ_j w_j N(j, σ²) against Q = N(0, σ²) (Charles et al. 2024). At an integer order α the first direction is a finite
sum: with z = e^(x/σ²), P/Q = Σ_j w_j e^(−j²/2σ²) z^j, and E_Q[z^m] = e^(m²/2σ²). The other direction is a quadrature of
an analytic function on an even grid, whose error falls exponentially in 1/step; a margin covers what is left.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

MARGIN: Final = 1e-6

Floats = npt.NDArray[np.float64]


def mixture_divergence(rate: float, noise: float, rows: int, order: int) -> float:
    """Return an upper bound of both directions' divergence at the integer `order`, in nats."""
    if rate >= 1.0:
        return order * (rows / noise) ** 2 / 2.0
    weights = _log_weights(rate, rows)
    larger = max(_towards_the_plain(weights, noise, order), _from_the_plain(weights, noise, order))
    return max(0.0, larger) * (1 + MARGIN)


def _log_weights(rate: float, rows: int) -> Floats:
    stay, drawn = math.log1p(-rate), math.log(rate)
    return np.array([math.log(math.comb(rows, j)) + j * drawn + (rows - j) * stay for j in range(rows + 1)])


def _towards_the_plain(weights: Floats, noise: float, order: int) -> float:
    """Return D_α(P‖Q) = ln(Σ_m c_m e^(m²/2σ²)) / (α−1), where Σ_m c_m z^m = (Σ_j w_j e^(−j²/2σ²) z^j)^α."""
    steps = np.arange(len(weights), dtype=np.float64)
    once = weights - steps**2 / 2.0 / noise / noise
    power = once
    for _ in range(order - 1):
        power = _log_product(power, once)
    places = np.arange(len(power), dtype=np.float64)
    return _log_sum(power + places**2 / 2.0 / noise / noise) / (order - 1)


def _log_product(left: Floats, right: Floats) -> Floats:
    """Return the logarithms of the coefficients of a product of polynomials, given those of its factors."""
    parts = np.full((len(right), len(left) + len(right) - 1), -np.inf)
    for place, coefficient in enumerate(right):
        parts[place, place : place + len(left)] = left + coefficient
    top = parts.max(axis=0)
    product: Floats = top + np.log(np.exp(parts - top).sum(axis=0))
    return product


def _from_the_plain(weights: Floats, noise: float, order: int) -> float:
    """Return D_α(Q‖P) by the trapezoid rule.

    The integrand is at most w_0^(1−α)·Q, so it ends where that is negligible; its poles are πσ² off the real line.
    """
    reach = noise * math.sqrt(2.0 * ((order - 1) * -float(weights[0]) + 800.0))
    step = min(noise, noise * noise) / 16.0
    total = -math.inf
    count = math.ceil(2 * reach / step) + 1
    for first in range(0, count, _CHUNK):
        x = -reach + step * np.arange(first, min(first + _CHUNK, count), dtype=np.float64)
        plain = -(x**2) / 2.0 / noise / noise
        mixed = weights[0] + plain
        for j in range(1, len(weights)):
            mixed = np.logaddexp(mixed, weights[j] - (x - j) ** 2 / 2.0 / noise / noise)
        total = float(np.logaddexp(total, _log_sum(order * plain - (order - 1) * mixed)))
    return (total + math.log(step / noise / math.sqrt(2 * math.pi))) / (order - 1)


_CHUNK: Final = 1 << 16


def _log_sum(logs: Floats) -> float:
    top = float(logs.max())
    return top + math.log(math.fsum(np.exp(logs - top)))
