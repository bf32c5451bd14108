"""May this job have this much? All checks of rule R1, and what the job could have had instead (R7).

The answer is a function of schedules, policies and totals, never of rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, fsum, inf, nextafter
from typing import assert_never

from privacy.accounting.calibrate import cost, noise_for
from privacy.accounting.convert import epsilon_at, epsilon_of, printed
from privacy.accounting.events import (
    Event,
    Gaussian,
    Laplace,
    PoissonGaussian,
    PureEpsilon,
    RowSampledGaussian,
    claimed_trust,
    event_under,
    training_event,
)
from privacy.accounting.filter import admits, limits, uniform_shares
from privacy.accounting.renyi import DEFAULT_ORDERS, charges, grains
from privacy.accounting.state import Policy, State
from privacy.errors import (
    AtomExhausted,
    BudgetRefused,
    DeltaInvalid,
    EpsilonInvalid,
    LedgerMisused,
    PrivacyError,
    ScheduleInvalid,
    UnitInvalid,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job as the admission sees it."""

    job: str
    data_set: str
    population: str
    unit: str
    epsilon: float
    delta: float
    events: Mapping[str, Event]
    steps: int
    atoms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChargeRequest:
    """A single release as the admission sees it."""

    data_set: str
    population: str
    atoms: tuple[str, ...]
    events: Mapping[str, Event]
    count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, under which policy, and the largest ε that would have been admitted."""

    error: PrivacyError
    policy: str | None = None
    admissible_epsilon: float | None = None


def charge_rows(state: State, population: str, events: Mapping[str, Event]) -> dict[str, tuple[float, ...]]:
    """Return the charge per step under each policy in force. A local event counts under every trust model."""
    return {
        policy.body.policy: charges(_event_under(policy, events), policy.body.orders)
        for policy in _policies(state, population)
    }


def check(state: State, request: Request) -> Refusal | None:
    """Return why `request` isn't admitted, or None if it is.

    Raises:
        LedgerMisused: No policy is in force for the population, so nothing can be admitted.
    """
    policies = _policies(state, request.population)
    if not request.atoms:
        return Refusal(AtomExhausted(f"the privacy budget of {request.data_set} is used up"))
    if not admits(
        cost(event_under(request.events, claimed_trust(request.events)), request.steps),
        limits(request.epsilon, DEFAULT_ORDERS, uniform_shares(request.delta, DEFAULT_ORDERS)),
    ):
        return Refusal(EpsilonInvalid(f"job {request.job} costs more than its own epsilon {request.epsilon}"))
    for policy in policies:
        refusal = _check_terms(policy, request)
        if refusal is not None:
            return refusal
    for policy in policies:
        if not _fits(state, policy, request.atoms, _event_under(policy, request.events), request.steps):
            return _budget_refusal(state, policy, request)
    return None


def admissible(state: State, request: ChargeRequest) -> PrivacyError | None:
    """Return why a single release isn't admitted, or None if it is."""
    if state.exhausted.intersection(request.atoms):
        return AtomExhausted(f"the privacy budget of {request.data_set} is used up")
    for policy in _policies(state, request.population):
        if not _fits(state, policy, request.atoms, _event_under(policy, request.events), request.count):
            return BudgetRefused(f"policy {policy.body.policy} doesn't cover this release of {request.data_set}")
    return None


def largest_epsilon(
    state: State, policy: Policy, atoms: tuple[str, ...], shape: tuple[float, int], *, delta: float, ceiling: float
) -> float:
    """Return the largest multiple of 0.01 up to `ceiling` that a job could have as its ε, or 0.

    Args:
        state: The ledger.
        policy: Whose limits.
        atoms: All of them must have room.
        shape: Sampling rate and steps of the job.
        delta: The job's δ.
        ceiling: Where to stop.
    """
    low, high = 0, floor(ceiling * 100 + 1e-6) + 1  # low fits, high doesn't
    while high - low > 1:
        middle = (low + high) // 2
        event = _calibrated(middle / 100, delta, shape)
        if event is None or _fits(state, policy, atoms, event, shape[1]):
            low = middle
        else:
            high = middle
    # An ε that is too small for any noise to reach costs next to nothing, so it fits, but no job can have it.
    return low / 100 if low and _calibrated(low / 100, delta, shape) is not None else 0.0


def epsilon_left(state: State, policy: Policy, atoms: tuple[str, ...], delta: float) -> float:
    """Return the largest ε that one more full-batch step could have, to 0.01 below."""
    return largest_epsilon(state, policy, atoms, (1.0, 1), delta=delta, ceiling=policy.body.epsilon)


def _policies(state: State, population: str) -> tuple[Policy, ...]:
    policies = state.active_policies(population)
    if not policies:
        raise LedgerMisused(f"population {population} has no privacy policy")
    return policies


def _event_under(policy: Policy, events: Mapping[str, Event]) -> Event:
    return event_under(events, policy.body.trust)


def epsilon_spent(state: State, policy: Policy, atom: str, *, held: bool = False) -> float:
    """Return ε of all that was released about an atom, and with `held` of what jobs may still release; rounded up.

    Releases made elsewhere with a δ count by their own ε (R10); all others by the sum of their charges.
    """
    total = state.total(atom, policy)
    own = epsilon_of(total.committed if held else total.charged, policy.body.orders, policy.body.shares)
    elsewhere = state.foreign_epsilons(atom)
    return nextafter(fsum((own, *elsewhere)), inf) if elsewhere else own


def _fits(state: State, policy: Policy, atoms: tuple[str, ...], event: Event, steps: int) -> bool:
    row = [steps * grains(charge) for charge in charges(event, policy.body.orders)]
    for atom in atoms:
        committed = state.total(atom, policy).committed
        if not admits([old + new for old, new in zip(committed, row, strict=True)], state.limits(atom, policy)):
            return False
    return True


def _check_terms(policy: Policy, request: Request) -> Refusal | None:
    body = policy.body
    if request.unit != body.unit:
        hint = (
            "record-level noise understates the risk of people with several rows; use unit entity"
            if body.unit == "entity"
            else f"use unit {body.unit}"
        )
        return Refusal(
            UnitInvalid(
                f"job {request.job} protects {request.unit}, policy {body.policy} protects {body.unit}", hint=hint
            ),
            body.policy,
        )
    if request.delta > body.delta:
        return Refusal(
            DeltaInvalid(f"job {request.job} has delta {request.delta:g}, policy {body.policy} allows {body.delta:g}"),
            body.policy,
        )
    spent = epsilon_at(cost(_event_under(policy, request.events), request.steps), request.delta, DEFAULT_ORDERS)
    if body.epsilon_per_job is not None and spent > body.epsilon_per_job:
        return Refusal(
            BudgetRefused(
                f"job {request.job} asks epsilon {printed(spent)} on {request.data_set}, policy {body.policy} allows "
                f"{body.epsilon_per_job} per job"
            ),
            body.policy,
            body.epsilon_per_job,
        )
    return None


def _budget_refusal(state: State, policy: Policy, request: Request) -> Refusal:
    shape = (_rate(_event_under(policy, request.events)), request.steps)
    possible = largest_epsilon(state, policy, request.atoms, shape, delta=request.delta, ceiling=request.epsilon)
    could = f"a job of this schedule could have {possible:.2f}" if possible else "no job of this schedule fits"
    other = _other_data(state, policy, request)
    error = BudgetRefused(
        f"job {request.job} asks epsilon {request.epsilon:.2f} on {request.data_set} (unit {request.unit}, "
        f"delta {request.delta:g}); {could} under policy {policy.body.policy}",
        hint=f"lower epsilon to {possible:.2f}, or ask for {other}" if possible else f"ask for {other}",
    )
    return Refusal(error, policy.body.policy, possible)


def _other_data(state: State, policy: Policy, request: Request) -> str:
    """Return what else could be asked for: data of the same people's kind that nothing was taken from."""
    use = state.atoms[request.atoms[0]].use
    unused = [
        name
        for name, atom in state.atoms.items()
        if (atom.population, atom.use) == (request.population, use)
        and name not in request.atoms
        and name not in state.exhausted
        and not any(state.total(name, policy).committed)
    ]
    return f"data added later ({len(unused)} unused parts)" if unused else "other data"


def _calibrated(epsilon: float, delta: float, shape: tuple[float, int]) -> Event | None:
    rate, steps = shape
    try:
        return training_event(rate, noise_for(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps))
    except ScheduleInvalid:
        return None


def _rate(event: Event) -> float:
    match event:
        case PoissonGaussian() | RowSampledGaussian():
            return event.sampling_rate
        case Gaussian() | Laplace() | PureEpsilon():
            return 1.0
        case _:
            assert_never(event)
