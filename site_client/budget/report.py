"""The budget's figures as a table and as JSON. Pure: figures in, lines out."""

from dataclasses import asdict
from typing import Any, Final

from privacy.accounting.convert import printed
from privacy.accounting.renyi import ACCOUNTANT
from privacy.accounting.statement import DataSetFigures, JobFigures, PolicyFigures, RefusalFigures

REFUSALS_SHOWN: Final = 5
SCHEMA: Final = "confide/budget/v1"
_USE: Final = {"train": "training units", "evaluate": "held-out units"}


def figures_as_json(figures: DataSetFigures) -> dict[str, Any]:
    """Return the figures with stable keys; every ε also as the text that people see, rounded up."""
    document: dict[str, Any] = {"schema": SCHEMA, **asdict(figures)}
    document["unbounded_since"] = dict(figures.unbounded_since)
    document["single_releases"] = [
        {"charge": charge, "purpose": purpose, "count": count} for charge, purpose, count in figures.single_releases
    ]
    document["accountant"] = ACCOUNTANT
    for row, policy in zip(document["policies"], figures.policies, strict=True):
        row["spent"] = printed(policy.epsilon_spent)
    for row, job in zip(document["jobs"], figures.jobs, strict=True):
        row["so_far"] = printed(job.epsilon_so_far)
    return document


def table(figures: DataSetFigures) -> list[str]:
    """Return the lines of `budget show`."""
    lines = [
        (
            f"{figures.data_set}  version {figures.version}  declared units {figures.units_declared} "
            f"(by {figures.declared_by})"
        ),
        "",
        f"{'policy':<20} {'units':<15} {'unit':<7} {'budget':>8} {'spent':>8} {'with held':>10} {'left':>7}  delta",
    ]
    lines += [_policy_line(policy) for policy in figures.policies]
    if figures.held_out_public:
        lines.append("held-out units are declared public: their figures are exact and cost nothing")
    lines += [
        "",
        f"{'job':<28} {'units':<15} {'state':<8} {'spent':>6}/{'most':<6} {'steps':>6} {'used':>6} {'lost':>6}  how",
    ]
    lines += [_job_line(job) for job in figures.jobs]
    lines += [f"single release {charge}: {purpose}, {count}" for charge, purpose, count in figures.single_releases]
    lines += [
        f"made elsewhere {one.foreign}: {one.what}, epsilon {one.epsilon:g}, delta {one.delta:g}"
        for one in figures.foreign
    ]
    lines += [_refusal_line(one) for one in figures.refusals[-REFUSALS_SHOWN:]]
    lines += [
        f"recovered {one.time} ({one.means}): {len(one.charged)} charges, {len(one.atoms)} parts retired"
        for one in figures.recoveries
    ]
    lines += [f"used up: {atom}" for atom in figures.exhausted_atoms]
    lines += [f"NO BOUND HOLDS for {atom} since {since}" for atom, since in figures.unbounded_since.items()]
    lines += [
        "",
        "`left` is the epsilon that one more single release could have. Epsilons of jobs don't add up: what counts is",
        "the sum of their Rényi charges at orders 2 to 176, which `spent` is computed from.",
        f"ledger head {figures.head.seq} {figures.head.hash[:16]}…  accountant {ACCOUNTANT}",
    ]
    return lines


def _refusal_line(refusal: RefusalFigures) -> str:
    could = refusal.admissible_epsilon
    what = "" if could is None else f"; could have had {could:.2f}" if could else "; no job of its schedule fits"
    under = "" if refusal.policy is None else f" under policy {refusal.policy}"
    return f"refused {refusal.job} ({refusal.cause}): asked epsilon {refusal.epsilon:.2f}{what}{under}"


def _policy_line(policy: PolicyFigures) -> str:
    return (
        f"{policy.policy:<20} {_USE[policy.use]:<15} {policy.unit:<7} {policy.epsilon:>8.2f} "
        f"{printed(policy.epsilon_spent):>8} {printed(policy.epsilon_committed):>10} {policy.epsilon_left:>7.2f}  "
        f"{policy.delta:g}"
    )


def _job_line(job: JobFigures) -> str:
    how = (
        f"sigma {job.noise_multiplier:g}, rate {job.sampling_rate:.4g}, delta {job.delta:g}"
        if job.noise_multiplier
        else ""
    )
    return (
        f"{job.job:<28} {_USE[job.use]:<15} {job.state:<8} {printed(job.epsilon_so_far):>6}/{job.epsilon_ceiling:<6g} "
        f"{job.steps_charged:>6} {job.steps_used:>6} {job.steps_lost:>6}  {how}"
    )
