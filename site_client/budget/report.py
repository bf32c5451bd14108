"""The budget's figures as a table, as JSON and as a statement in plain words. Pure: figures in, lines out.

Not printed anywhere: "anonymous", "no risk", an ε without unit, relation and period, a sum of epsilons, an ε of a
single round (privacy design, 9).
"""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from privacy.accounting.convert import odds_percent, printed
from privacy.accounting.renyi import ACCOUNTANT
from privacy.accounting.statement import DataSetFigures, JobFigures, PolicyFigures

SCHEMA: Final = "confide/budget/v1"
WEAK_ABOVE: Final = 5.0
_PERSON: Final = {
    "record": "one row of the data set, with or without it",
    "entity": "one person with all their rows at this site, with or without that person",
    "site": "all data of this site, with or without them",
}
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
    lines += [f"used up: {atom}" for atom in figures.exhausted_atoms]
    lines += [f"NO BOUND HOLDS for {atom} since {since}" for atom, since in figures.unbounded_since.items()]
    lines += [
        "",
        "`left` is the epsilon that one more single release could have. Epsilons of jobs don't add up: what counts is",
        "the sum of their Rényi charges at orders 2 to 176, which `spent` is computed from.",
        f"ledger head {figures.head.seq} {figures.head.hash[:16]}…  accountant {ACCOUNTANT}",
    ]
    return lines


def statement(figures: DataSetFigures, exact: Mapping[str, float] = MappingProxyType({})) -> list[str]:
    """Return what a person who isn't a specialist should read.

    Args:
        figures: The data set's.
        exact: The exact epsilon of jobs whose schedule was fixed beforehand, where it is known (`exact`).
    """
    lines = [f"Privacy statement for {figures.data_set}, version {figures.version}", ""]
    for policy in figures.policies:
        lines += _policy_statement(policy)
    lines += ["Jobs so far, each with what it alone amounts to (these figures must not be added up):"]
    lines += [f"  {_job_statement(job, exact.get(job.job))}" for job in figures.jobs] or ["  none"]
    lines += _rests_on(figures)
    return lines


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


def _policy_statement(policy: PolicyFigures) -> list[str]:
    spent = policy.epsilon_spent
    against = "everyone" if policy.trust == "local" else f"the coordinator and some sites together ({policy.trust})"
    lines = [
        f"Under policy {policy.policy}, for the {_USE[policy.use]}:",
        f"  Who is protected: {_PERSON[policy.unit]}.",
        f"  Against whom: {against}.",
        (
            f"  How much: everything released so far, taken together, is epsilon {printed(spent)}, delta "
            f"{policy.delta:g}; the promise is epsilon {policy.epsilon:g}."
        ),
        (
            f"  As odds: whoever starts undecided whether they took part guesses right at most "
            f"{odds_percent(spent, policy.delta)} % of the time; at the whole promise "
            f"{odds_percent(policy.epsilon, policy.delta)} %."
        ),
    ]
    if policy.epsilon > WEAK_ABOVE:
        lines.append("  An epsilon above 5 is a weak promise.")
    return [*lines, ""]


def _job_statement(job: JobFigures, exact: float | None) -> str:
    alone = exact is not None and job.use == "train"
    whole = f"; exact for this job alone, taken to its end: epsilon {printed(exact or 0.0)}" if alone else ""
    return (
        f"{job.since}  {job.job} ({_USE[job.use]}): epsilon {printed(job.epsilon_so_far)} of at most "
        f"{job.epsilon_ceiling:g}, delta {job.delta:g}, {job.state}{whole}"
    )


def _rests_on(figures: DataSetFigures) -> list[str]:
    lines = [
        "",
        f"What it rests on: sampling and noise kept secret by this site; Rényi accounting ({ACCOUNTANT}), for adding",
        "or removing one unit; replacing one by another counts double.",
        (
            f"What isn't covered: the declared number of units ({figures.units_declared}, published by "
            f"{figures.declared_by}); people who are also"
        ),
        "in other data sets or at other sites; facts about groups; time and memory that training takes; floating-point",
        "noise, which approximates the real-valued noise that the theorems speak of.",
    ]
    if figures.held_out_public:
        lines.append("The held-out units were declared public: nothing is promised for them.")
    for atom, since in figures.unbounded_since.items():
        lines.append(f"No bound holds for {atom} since {since}: data were used without noise from that day on.")
    lines.append(
        f"How to check: ledger head {figures.head.seq}, {figures.head.hash}; it is in the audit log, see "
        "`confide audit query --dataset`."
    )
    return lines
