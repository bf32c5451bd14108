"""The schedule of a job at one site: constants made of the plan and of public figures only (privacy design, 4).

Under "add or remove one unit" the number of units is itself secret, so rate and normaliser come from the declared
number. Nothing here, and nothing later, divides by a realised batch size or by the true number.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from privacy.accounting.calibrate import cost, noise_for
from privacy.accounting.convert import epsilon_at, printed
from privacy.accounting.events import Event, Gaussian, training_event
from privacy.accounting.filter import admits, limits, uniform_shares
from privacy.accounting.renyi import DEFAULT_ORDERS
from privacy.errors import DeltaInvalid, EpsilonInvalid, ScheduleInvalid, Unbounded, UnitInvalid, UnitsUndeclared


class Unit(StrEnum):
    """Whom the guarantee is about."""

    RECORD = "record"
    ENTITY = "entity"
    SITE = "site"


class Mechanism(StrEnum):
    """Where the noise comes from."""

    LOCAL = "local-dp-sgd"
    DISTRIBUTED = "distributed"
    NONE = "none"


class Clipping(StrEnum):
    """How a unit's gradient is brought below the clip."""

    NORMALISED = "normalised"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a job does at this site.

    Attributes:
        unit: Privacy unit of the guarantee.
        epsilon: The plan's ceiling.
        delta: The plan's δ.
        sampling_rate: q, the chance of each unit to be in a step.
        normaliser: B, the public number that the noisy sum is divided by.
        rounds: Rounds of the job.
        local_steps: Steps per round.
        noise_multiplier: σ, deviation of the noise divided by the clip.
        clip: C, the L2 norm that no unit exceeds.
        clipping: How it is kept.
        units_declared: The public number of units.
    """

    unit: Unit
    epsilon: float
    delta: float
    sampling_rate: float
    normaliser: float
    rounds: int
    local_steps: int
    noise_multiplier: float
    clip: float
    clipping: Clipping
    units_declared: int

    @property
    def steps(self) -> int:
        """Return T, the steps of the whole job."""
        return self.rounds * self.local_steps

    @property
    def event(self) -> Event:
        """Return the event of one step."""
        return training_event(self.sampling_rate, self.noise_multiplier)

    def epsilon_after(self, steps: int) -> float:
        """Return ε at the plan's δ after `steps` charged steps, rounded up."""
        return epsilon_at(cost(self.event, steps), self.delta, DEFAULT_ORDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSchedule:
    """What the evaluations of a job do to the held-out units.

    Attributes:
        epsilon: Total for all evaluations of the job.
        delta: The plan's δ.
        evaluations: How many there will be at most.
        noise_multiplier: Of one evaluation as a whole, in units of its joint sensitivity.
    """

    epsilon: float
    delta: float
    evaluations: int
    noise_multiplier: float

    @property
    def event(self) -> Event:
        """Return the event of one evaluation."""
        return Gaussian(noise_multiplier=self.noise_multiplier)


def check_guarantee(*, epsilon: float, delta: float, units_declared: int | None, delta_override: bool = False) -> int:
    """Return `units_declared`, once ε and δ make sense for it.

    Raises:
        UnitsUndeclared: There is no public number of units.
        EpsilonInvalid: ε is not finite and positive.
        DeltaInvalid: δ is not within (0, 1), or not below 1/units_declared and the site didn't override that.
    """
    if units_declared is None or units_declared < 1:
        raise UnitsUndeclared("the data set has no declared number of units")
    if not math.isfinite(epsilon) or epsilon <= 0:
        raise EpsilonInvalid(f"epsilon is {epsilon}, it must be finite and positive")
    if not 0 < delta < 1:
        raise DeltaInvalid(f"delta is {delta}, it must be between 0 and 1")
    if delta * units_declared >= 1 and not delta_override:
        raise DeltaInvalid(
            f"delta is {delta:g}, it must be below 1/{units_declared} for {units_declared} declared units",
            hint=f"choose delta below {1 / units_declared:.1e}, or have the site's operator override this",
        )
    return units_declared


def schedule_for(
    *,
    epsilon: float,
    delta: float,
    batch: int,
    rounds: int,
    local_steps: int,
    clip: float,
    units_declared: int | None,
    unit: str = "record",
    mechanism: str = "local-dp-sgd",
    clipping: str = "normalised",
    noise_multiplier: float | None = None,
    delta_override: bool = False,
) -> Schedule:
    """Return the schedule of a plan's fields at a site with `units_declared` units.

    Raises:
        UnitInvalid: The mechanism gives no guarantee for the unit, or isn't one of local noise.
        Unbounded: Mechanism none, or a noise multiplier of zero.
        UnitsUndeclared, EpsilonInvalid, DeltaInvalid, ScheduleInvalid: As named.
    """
    kind = _checked_mechanism(unit, mechanism)
    units = check_guarantee(epsilon=epsilon, delta=delta, units_declared=units_declared, delta_override=delta_override)
    for name, value in (("batch", batch), ("rounds", rounds), ("local_steps", local_steps)):
        if value < 1:
            raise ScheduleInvalid(f"{name} is {value}, it must be at least 1")
    if not math.isfinite(clip) or clip <= 0:
        raise ScheduleInvalid(f"clip is {clip}, it must be finite and positive")
    if clipping not in tuple(Clipping):
        raise ScheduleInvalid(f"clipping is {clipping!r}, it must be normalised or threshold")
    rate = min(1.0, batch / units)
    schedule = Schedule(
        unit=kind,
        epsilon=epsilon,
        delta=delta,
        sampling_rate=rate,
        normaliser=float(units if rate >= 1.0 else batch),
        rounds=rounds,
        local_steps=local_steps,
        noise_multiplier=_noise(epsilon, delta, rate, rounds * local_steps, noise_multiplier),
        clip=clip,
        clipping=Clipping(clipping),
        units_declared=units,
    )
    _check_ceiling(schedule)
    return schedule


def evaluation_schedule(*, epsilon: float, delta: float, evaluations: int) -> EvaluationSchedule:
    """Return the noise with which `evaluations` evaluations together cost at most (`epsilon`, `delta`).

    Raises:
        EpsilonInvalid, ScheduleInvalid: As named.
    """
    if not math.isfinite(epsilon) or epsilon <= 0:
        raise EpsilonInvalid(f"evaluate.epsilon is {epsilon}, it must be finite and positive")
    if evaluations < 1:
        raise ScheduleInvalid(f"the job has {evaluations} evaluations, it must have at least 1")
    noise = noise_for(epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=evaluations)
    return EvaluationSchedule(epsilon=epsilon, delta=delta, evaluations=evaluations, noise_multiplier=noise)


def _checked_mechanism(unit: str, mechanism: str) -> Unit:
    if unit not in tuple(Unit):
        raise UnitInvalid(f"unit is {unit!r}, it must be record, entity or site")
    if mechanism == Mechanism.NONE:
        raise Unbounded("mechanism none adds no noise and has no epsilon")
    if mechanism != Mechanism.LOCAL:
        raise UnitInvalid(f"mechanism {mechanism!r} has no schedule of local noise", hint="use mechanism local-dp-sgd")
    if unit == Unit.SITE:
        raise UnitInvalid("mechanism local-dp-sgd protects records or entities, not a whole site")
    return Unit(unit)


def _noise(epsilon: float, delta: float, rate: float, steps: int, given: float | None) -> float:
    if given is None:
        return noise_for(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps)
    if given == 0:
        raise Unbounded("a noise multiplier of 0 adds no noise and has no epsilon")
    if not math.isfinite(given) or given < 0:
        raise ScheduleInvalid(f"noise_multiplier is {given}, it must be finite and positive")
    return given


def _check_ceiling(schedule: Schedule) -> None:
    allowed = limits(schedule.epsilon, DEFAULT_ORDERS, uniform_shares(schedule.delta, DEFAULT_ORDERS))
    if not admits(cost(schedule.event, schedule.steps), allowed):
        spent = printed(schedule.epsilon_after(schedule.steps))
        raise EpsilonInvalid(
            f"noise multiplier {schedule.noise_multiplier} over {schedule.steps} steps costs epsilon {spent}, "
            f"the plan allows {schedule.epsilon}"
        )
