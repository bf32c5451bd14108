"""Schedules that keep one promise: sampling rates from all units at once downwards, each with its least noise.

Computed from public figures alone, before any data is touched (privacy design, 4.3). Every row goes over the data as
often as the plan does, so it says what many small steps cost against few large ones: the same ε needs less noise in
the average step where more units take part in it.
"""

from dataclasses import dataclass
from typing import Final

from privacy.accounting.calibrate import noise_for
from privacy.accounting.schedule import check_guarantee
from privacy.errors import ScheduleInvalid

RATES: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
STEPS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One schedule.

    Attributes:
        sampling_rate: q, the chance of each unit to be in a step.
        batch: q times the declared number of units.
        steps: T, of the whole job.
        noise_multiplier: σ, the least that keeps the promise.
        epochs: q·T, how often a unit is used on average.
        noise: σ divided by the batch: the noise in the average gradient, in clips.
        is_plans: Whether this is the plan's own rate and number of steps.
    """

    sampling_rate: float
    batch: float
    steps: int
    noise_multiplier: float
    epochs: float
    noise: float
    is_plans: bool


def proposals(*, epsilon: float, delta: float, units: int, batch: int, steps: int) -> tuple[Proposal, ...]:
    """Return the schedules that cost at most (`epsilon`, `delta`), the largest rate first, with the plan's own.

    Args:
        epsilon: The plan's ε.
        delta: The plan's δ.
        units: The declared number of units.
        batch: The plan's batch.
        steps: The plan's steps.

    Raises:
        EpsilonInvalid, DeltaInvalid, UnitsUndeclared: There is no guarantee to be kept.
        ScheduleInvalid: The plan's own schedule can't keep it, however much noise.
    """
    check_guarantee(epsilon=epsilon, delta=delta, units_declared=units)
    if batch < 1 or not 1 <= steps <= STEPS_MAX:
        raise ScheduleInvalid(f"a batch of {batch} and {steps} steps make no schedule")
    own = min(1.0, batch / units)
    found = [_proposal(epsilon, delta, units, own, steps, is_plans=True)]
    for rate in RATES:
        wanted = max(1, round(steps * own / rate))
        if rate == own or rate * units < 1 or wanted > STEPS_MAX:
            continue
        try:
            found.append(_proposal(epsilon, delta, units, rate, wanted, is_plans=False))
        except ScheduleInvalid:
            continue
    return tuple(sorted(found, key=lambda one: -one.sampling_rate))


def _proposal(epsilon: float, delta: float, units: int, rate: float, steps: int, *, is_plans: bool) -> Proposal:
    noise = noise_for(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps)
    return Proposal(
        sampling_rate=rate,
        batch=rate * units,
        steps=steps,
        noise_multiplier=noise,
        epochs=rate * steps,
        noise=noise / (rate * units),
        is_plans=is_plans,
    )
