"""The least noise that a budget admits, by bisection on thousandths, checked on both sides (privacy design, 7.7).

The search asks the same question that the ledger will ask, so a job that was calibrated to ε is admitted by a fresh
budget of ε exactly. More noise never costs more, which makes bisection right; the answer is checked all the same.
"""

from collections.abc import Callable, Sequence
from typing import Final

from privacy.accounting.events import Event, training_event
from privacy.accounting.filter import admits, limits, uniform_shares
from privacy.accounting.renyi import DEFAULT_ORDERS, charges, grains
from privacy.errors import EngineWrong, ScheduleInvalid

THOUSANDTHS_MAX: Final = 10_000_000
"""A noise multiplier above 10,000 drowns everything; such a schedule is refused."""


def cost(event: Event, steps: int, orders: Sequence[int] = DEFAULT_ORDERS) -> tuple[int, ...]:
    """Return what `steps` executions of `event` are charged, in grains per order."""
    return tuple(steps * grains(charge) for charge in charges(event, orders))


def least_noise(fits: Callable[[float], bool]) -> float:
    """Return the least noise multiplier, in thousandths, for which `fits` holds.

    Args:
        fits: Whether a noise multiplier is admitted; must not turn false as noise grows.

    Raises:
        ScheduleInvalid: Not even a noise multiplier of 10,000 fits.
    """
    low, high = 0, 1_000  # low doesn't fit, high is to
    while not fits(high / 1000):
        low, high = high, high * 2
        if low >= THOUSANDTHS_MAX:
            raise ScheduleInvalid("no noise multiplier up to 10000 meets the asked epsilon and delta")
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle / 1000):
            high = middle
        else:
            low = middle
    if not fits(high / 1000) or (high > 2 and fits((high - 2) / 1000)):
        raise EngineWrong("the noise calibration contradicts itself")
    return high / 1000


def noise_for(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, orders: Sequence[int] = DEFAULT_ORDERS
) -> float:
    """Return the least noise multiplier with which `steps` steps cost at most (`epsilon`, `delta`).

    Raises:
        ScheduleInvalid: No noise is enough.
    """
    allowed = limits(epsilon, orders, uniform_shares(delta, orders))
    return least_noise(lambda noise: admits(cost(training_event(sampling_rate, noise), steps, orders), allowed))
