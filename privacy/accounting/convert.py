"""From Rényi totals to ε, for people: same orders and shares as the filter, every rounding up.

ε(ρ) = min_α [ρ(α) + ln(1−1/α) − ln(δ_α·α)/(α−1)], not below 0; nothing spent is 0 (privacy design, 7.4). Epsilons
are never added up: a figure over several releases comes from the sum of their charges.
"""

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal, localcontext

from privacy.accounting.filter import offset, round_up, uniform_shares
from privacy.accounting.renyi import grains_as_float


def epsilon_of(total: Sequence[int], orders: Sequence[int], shares: Sequence[float]) -> float:
    """Return ε of a `total` in grains per order, rounded up; 0 where nothing was spent."""
    if not any(total):
        return 0.0
    candidates = (
        Decimal(grains_as_float(spent)) + offset(order, share)
        for spent, order, share in zip(total, orders, shares, strict=True)
    )
    return max(0.0, math.nextafter(round_up(min(candidates)), math.inf))


def epsilon_at(total: Sequence[int], delta: float, orders: Sequence[int]) -> float:
    """Return ε of a `total` at `delta` split equally among the orders."""
    return epsilon_of(total, orders, uniform_shares(delta, orders))


def printed(epsilon: float) -> str:
    """Return ε with two decimals, rounded up."""
    if math.isinf(epsilon):
        return "unbounded"
    return str(Decimal(epsilon).quantize(Decimal("0.01"), rounding=ROUND_CEILING))


def nano(epsilon: float) -> int:
    """Return ε·10⁹, rounded up: how the audit log writes it."""
    return int((Decimal(epsilon) * 10**9).to_integral_value(rounding=ROUND_CEILING))


def odds_percent(epsilon: float, delta: float) -> int:
    """Return how often, in percent rounded up, somebody guesses right whether a person took part.

    At most (e^ε + δ)/(1 + e^ε) of the time for who starts undecided.
    """
    with localcontext() as context:
        context.prec = 40
        growth = Decimal(epsilon).exp()
        share = (growth + Decimal(delta)) / (1 + growth) * 100
        return min(100, int(share.to_integral_value(rounding=ROUND_CEILING)))
