"""What people are told about a budget: figures of the ledger's state, every ε rounded up, none of them added up.

An entity's loss is its atom's loss, so a data set's figure is the largest over its atoms; disjoint atoms compose in
parallel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf

from privacy.accounting.admission import epsilon_left, epsilon_spent
from privacy.accounting.convert import epsilon_at, epsilon_of
from privacy.accounting.entries import Head, Use
from privacy.accounting.events import LOCAL, PureEpsilon, claimed_trust, event_under, for_rows
from privacy.accounting.filter import offset
from privacy.accounting.releases import newest_version
from privacy.accounting.renyi import DEFAULT_ORDERS, charges, grains, grains_as_float
from privacy.accounting.state import Policy, Reservation, State


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """What one job did to a data set here."""

    job: str
    use: Use
    since: str
    state: str
    epsilon_ceiling: float
    delta: float
    epsilon_so_far: float
    steps: int
    steps_charged: int
    steps_used: int
    steps_lost: int
    noise_multiplier: float | None
    sampling_rate: float
    trust: str = LOCAL
    unit: str = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """How an epsilon comes from what was charged: at the order where the bound is smallest.

    Attributes:
        order: α, the order of that bound.
        charged: What all releases together were charged at it.
        conversion: What turning a charge at this order into an epsilon adds, for the policy's δ.
        elsewhere: ε of releases made elsewhere that have a δ.
    """

    order: int
    charged: float
    conversion: float
    elsewhere: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """What all releases together have spent under one policy, over the atoms of one use."""

    policy: str
    use: Use
    unit: str
    trust: str
    epsilon: float
    delta: float
    epsilon_spent: float
    epsilon_committed: float
    epsilon_left: float
    approved_by: tuple[str, ...]
    since: str = ""
    replaces: str | None = None
    foreign_delta: float = 0.0
    arithmetic: Arithmetic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFigures:
    """A release made outside of this ledger."""

    foreign: str
    what: str
    epsilon: float
    delta: float
    approved_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFigures:
    """How the ledger was made good after a restored backup."""

    time: str
    means: str
    charged: tuple[str, ...]
    atoms: tuple[str, ...]
    approved_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalFigures:
    """A job that the budget didn't admit, and the largest epsilon that it could have had."""

    time: str
    job: str
    epsilon: float
    cause: str
    policy: str | None
    admissible_epsilon: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSetFigures:
    """The budget of a data set, as `confide site budget show` prints it."""

    data_set: str
    version: str
    population: str
    units_declared: int
    declared_by: str
    held_out_public: bool
    policies: tuple[PolicyFigures, ...]
    jobs: tuple[JobFigures, ...]
    single_releases: tuple[tuple[str, str, int], ...]
    foreign: tuple[ForeignFigures, ...]
    recoveries: tuple[RecoveryFigures, ...]
    refusals: tuple[RefusalFigures, ...]
    raised: tuple[PolicyFigures, ...]
    exhausted_atoms: tuple[str, ...]
    unbounded_since: Mapping[str, str]
    head: Head


def job_epsilon(job: Reservation, steps: int) -> float:
    """Return ε of `steps` steps of a job at its own δ, rounded up, under the trust model that the job claims."""
    event = event_under(job.body.events, claimed_trust(job.body.events))
    total = [steps * grains(charge) for charge in charges(event, DEFAULT_ORDERS)]
    return epsilon_at(total, job.body.delta, DEFAULT_ORDERS)


def job_figures(job: Reservation) -> JobFigures:
    """Return the figures of one reservation."""
    event = event_under(job.body.events, claimed_trust(job.body.events))
    return JobFigures(
        job=job.body.job,
        use=job.body.use,
        since=job.since,
        state=job.state.value,
        epsilon_ceiling=job.body.epsilon,
        delta=job.body.delta,
        epsilon_so_far=job_epsilon(job, job.leased),
        steps=job.body.steps,
        steps_charged=job.leased,
        steps_used=job.used,
        steps_lost=job.lost,
        noise_multiplier=getattr(event, "noise_multiplier", None),
        sampling_rate=getattr(event, "sampling_rate", 1.0),
        trust=claimed_trust(job.body.events),
        unit=job.body.unit,
    )


def policy_figures(state: State, policy: Policy, atoms: Sequence[str], use: Use) -> PolicyFigures:
    """Return what the worst of `atoms` has spent under a policy."""
    body = policy.body
    usable = tuple(atom for atom in atoms if atom not in state.exhausted)
    return PolicyFigures(
        policy=body.policy,
        use=use,
        unit=body.unit,
        trust=body.trust,
        epsilon=body.epsilon,
        delta=body.delta,
        epsilon_spent=max(epsilon_spent(state, policy, atom) for atom in atoms),
        epsilon_committed=max(epsilon_spent(state, policy, atom, held=True) for atom in atoms),
        epsilon_left=epsilon_left(state, policy, usable, body.delta) if usable else 0.0,
        approved_by=body.approved_by,
        since=policy.since,
        replaces=body.replaces,
        foreign_delta=body.foreign_delta,
        arithmetic=_arithmetic(state, policy, atoms),
    )


def _arithmetic(state: State, policy: Policy, atoms: Sequence[str]) -> Arithmetic | None:
    """Return how the worst atom's ε is computed, None where nothing was charged."""
    worst = max(atoms, key=lambda atom: epsilon_spent(state, policy, atom))
    total = state.total(worst, policy).charged
    if not any(total):
        return None
    steps = zip(policy.body.orders, policy.body.shares, total, strict=True)
    found = [(grains_as_float(spent), float(offset(order, share)), order) for order, share, spent in steps]
    charged, conversion, order = min(found, key=lambda item: item[0] + item[1])
    elsewhere = fsum(state.foreign_epsilons(worst))
    return Arithmetic(order=order, charged=charged, conversion=conversion, elsewhere=elsewhere)


def epsilon_for_rows(state: State, policy: Policy, atom: str, rows: int) -> float:
    """Return ε for somebody with `rows` rows, where the policy's unit is one row: each charge is computed for them.

    It grows faster than the number of rows; multiplying would say too little (privacy design, 2).
    """
    total = [0] * len(policy.body.orders)
    done = [(job.body.atoms, job.body.events, job.leased) for job in state.reservations.values()]
    done += [(single.atoms, single.events, single.count) for single in state.single]
    done += [(body.atoms, {LOCAL: PureEpsilon(epsilon=body.epsilon)}, 1) for body in state.foreign if body.delta == 0]
    for atoms, events, count in done:
        if atom in atoms and count:
            event = for_rows(event_under(events, policy.body.trust), rows)
            total = [
                spent + count * grains(step)
                for spent, step in zip(total, charges(event, policy.body.orders), strict=True)
            ]
    own = epsilon_of(total, policy.body.orders, policy.body.shares)
    return inf if state.foreign_epsilons(atom) else own


def data_set_figures(state: State, data_set: str) -> DataSetFigures:
    """Return the budget of a data set.

    Raises:
        LedgerMisused: The ledger doesn't hold it.
    """
    version = newest_version(state, data_set)
    uses: list[tuple[Use, tuple[str, ...]]] = [("train", version.train), ("evaluate", version.evaluate)]
    atoms = {*version.train, *version.evaluate}
    return DataSetFigures(
        data_set=data_set,
        version=version.version,
        population=version.population,
        units_declared=version.units_declared,
        declared_by=version.declared_by,
        held_out_public=version.held_out_public,
        policies=tuple(
            policy_figures(state, policy, members, use)
            for policy in state.active_policies(version.population)
            for use, members in uses
            if members
        ),
        jobs=tuple(job_figures(job) for job in state.reservations.values() if atoms & set(job.body.atoms)),
        single_releases=tuple(
            (single.charge, single.purpose, single.count) for single in state.single if atoms & set(single.atoms)
        ),
        foreign=tuple(
            ForeignFigures(
                foreign=body.foreign,
                what=body.what,
                epsilon=body.epsilon,
                delta=body.delta,
                approved_by=body.approved_by,
            )
            for body in state.foreign
            if atoms & set(body.atoms)
        ),
        recoveries=tuple(
            RecoveryFigures(
                time=time, means=body.means, charged=body.charged, atoms=body.atoms, approved_by=body.approved_by
            )
            for time, body in state.recovered
        ),
        refusals=tuple(
            RefusalFigures(
                time=time,
                job=body.job,
                epsilon=body.epsilon,
                cause=body.cause,
                policy=body.policy,
                admissible_epsilon=body.admissible_epsilon,
            )
            for time, body in state.refused
            if body.data_set == data_set
        ),
        raised=tuple(
            policy_figures(state, policy, members, use)
            for policy in state.policies.values()
            if policy.replaced and policy.body.population == version.population
            for use, members in uses[:1]
        ),
        exhausted_atoms=tuple(sorted(atoms & state.exhausted)),
        unbounded_since={atom: state.unbounded[atom] for atom in sorted(atoms & set(state.unbounded))},
        head=state.head,
    )
