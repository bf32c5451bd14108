"""The Rényi filter: the one rule that admits a step or doesn't (privacy design, 7.2).

A policy fixes ε, δ, orders A and shares δ_α of δ that sum to at most δ. Steps may be chosen after seeing earlier
outputs; everything released stays (ε, δ)-private as long as after each step there is an α in A with Σ ρ_i(α) ≤ B_α.
Rounding is always against the spender: B_α is computed in 60 decimal digits and rounded down.
"""

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal

from privacy.accounting.renyi import grains_below

_DIGITS = Context(prec=60, rounding=ROUND_FLOOR)


def uniform_shares(delta: float, orders: Sequence[int]) -> tuple[float, ...]:
    """Return δ split equally among the orders, each rounded down, so that the sum is at most `delta`."""
    return (round_down(_DIGITS.divide(Decimal(delta), Decimal(len(orders)))),) * len(orders)


def offset(order: int, share: float) -> Decimal:
    """Return ln(1 − 1/α) − ln(δ_α·α)/(α − 1): what the conversion adds to ρ(α), to 55 digits at least."""
    alpha = Decimal(order)
    first = _DIGITS.ln(_DIGITS.divide(alpha - 1, alpha))
    second = _DIGITS.divide(_DIGITS.ln(_DIGITS.multiply(Decimal(share), alpha)), alpha - 1)
    return _DIGITS.subtract(first, second)


def thresholds(epsilon: float, orders: Sequence[int], shares: Sequence[float]) -> tuple[float, ...]:
    """Return B_α = ε − ln(1 − 1/α) + ln(δ_α·α)/(α − 1) for each order, rounded down."""
    return tuple(
        round_down(_DIGITS.subtract(Decimal(epsilon), offset(order, share)))
        for order, share in zip(orders, shares, strict=True)
    )


def limits(epsilon: float, orders: Sequence[int], shares: Sequence[float]) -> tuple[int, ...]:
    """Return the thresholds in grains; a negative one admits nothing at its order."""
    return tuple(grains_below(bound) for bound in thresholds(epsilon, orders, shares))


def admits(total: Sequence[int], allowed: Sequence[int]) -> bool:
    """Return whether some order's total, in grains, is within its limit. Nothing spent is always admitted."""
    return not any(total) or any(spent <= limit for spent, limit in zip(total, allowed, strict=True))


def round_down(value: Decimal) -> float:
    """Return the largest float that isn't above `value`."""
    number = float(value)
    return number if Decimal(number) <= value else math.nextafter(number, -math.inf)


def round_up(value: Decimal) -> float:
    """Return the smallest float that isn't below `value`."""
    number = float(value)
    return number if Decimal(number) >= value else math.nextafter(number, math.inf)
