"""The statement that a person who isn't a specialist can read, such as a member of an ethics board. Pure.

Six parts, in this order: who is protected, against whom, how much, what it rests on, what isn't covered, how to check
it (privacy design, 9). Not printed: "anonymous", "no risk", an ε without unit, relation and period, a sum of epsilons,
an ε of a single round.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from privacy.accounting.convert import odds_percent, printed
from privacy.accounting.renyi import ACCOUNTANT
from privacy.accounting.statement import Arithmetic, DataSetFigures, JobFigures, PolicyFigures

WEAK_ABOVE: Final = 5.0
ODDS_SHOWN: Final = (0.5, 1.0, 2.0, 4.0)
_PERSON: Final = {
    "record": "one row of the data set",
    "entity": "one person with all their rows at this site",
    "site": "all data of this site together",
}
WIDTH: Final = 116
_COMPARED: Final = {
    "record": "the same data with that row, and without it",
    "entity": "the same data with all rows of that person, and with none of them",
    "site": "the same exchange with this site's data, and without them",
}
_USE: Final = {"train": "the units that jobs train on", "evaluate": "the units held out to test models"}


@dataclass(frozen=True, slots=True)
class Exact:
    """The exact ε of a job's own schedule taken to its end, for one unit more or less, and for one unit replaced."""

    alone: float
    replaced: float | None = None


def statement(
    figures: DataSetFigures,
    *,
    exact: Mapping[str, Exact] = MappingProxyType({}),
    for_rows: Mapping[int, float] = MappingProxyType({}),
    one_person: bool = False,
    now: str = "",
) -> list[str]:
    """Return the statement's lines.

    Args:
        figures: The data set's.
        exact: The exact ε of jobs whose schedule was fixed beforehand, where it is known.
        for_rows: ε of everything so far for somebody with so many rows, where the promise is about one row.
        one_person: Whether this site lets one person alone change a promise.
        now: When this is said, RFC 3339.
    """
    lines = [f"Privacy statement for {figures.data_set}, version {figures.version}" + (f", {now}" if now else ""), ""]
    lines += _who(figures)
    lines += _against(figures)
    lines += ["3. How much"]
    for policy in figures.policies:
        lines += _how_much(policy)
    lines += _rows(for_rows)
    lines += _jobs(figures, exact)
    lines += _changes(figures, one_person=one_person)
    lines += _rests_on()
    lines += _not_covered(figures)
    lines += _check(figures)
    return lines


def folded(lines: Sequence[str]) -> list[str]:
    """Return the lines, none wider than a page."""
    found: list[str] = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        found += textwrap.wrap(line.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent) or [""]
    return found


def _who(figures: DataSetFigures) -> list[str]:
    units = list(dict.fromkeys(policy.unit for policy in figures.policies))
    return [
        "1. Who is protected",
        *(f"   {_PERSON[unit].capitalize()}. Compared are {_COMPARED[unit]}." for unit in units),
        "   A promise about one of them is a promise about each of them.",
        "",
    ]


def _against(figures: DataSetFigures) -> list[str]:
    return [
        "2. Against whom",
        *(
            f"   {_opponents(trust)}: whoever sees all models, figures and messages that leave, and chooses the jobs."
            for trust in dict.fromkeys(policy.trust for policy in figures.policies)
        ),
        "",
    ]


def _opponents(trust: str) -> str:
    if trust == "local":
        return "Everyone, also the coordinator and all other sites acting together"
    return f"The coordinator and up to {trust.removeprefix('secagg-')} sites acting together"


def _how_much(policy: PolicyFigures) -> list[str]:
    spent, delta = policy.epsilon_spent, policy.delta
    since = f"since {policy.since}" if policy.since else "so far"
    lines = [
        f"   For {_USE[policy.use]}, per {_PERSON[policy.unit]}, with or without it, under policy {policy.policy}:",
        (
            f"   everything released {since}, taken together: epsilon {printed(spent)} at delta {delta:g}; the promise "
            f"is that it never exceeds {policy.epsilon:g}."
        ),
        *_explained(policy.arithmetic, spent),
        (
            f"   As odds: whoever starts undecided whether one took part guesses right at most "
            f"{odds_percent(spent, delta)} % of the time now, and {odds_percent(policy.epsilon, delta)} % when "
            "the whole promise is used."
        ),
        "   For comparison: "
        + ", ".join(f"{odds_percent(epsilon, delta)} % at epsilon {epsilon:g}" for epsilon in ODDS_SHOWN)
        + "; 50 % is tossing a coin.",
    ]
    if policy.epsilon > WEAK_ABOVE:
        lines.append("   An epsilon above 5 is a weak promise.")
    return [*lines, ""]


def _explained(arithmetic: Arithmetic | None, spent: float) -> list[str]:
    if arithmetic is None:
        return ["   Nothing was released from them yet." if spent == 0 else "   All of it was released elsewhere."]
    elsewhere = f", + {arithmetic.elsewhere:.4f} for releases made elsewhere" if arithmetic.elsewhere else ""
    return [
        (
            f"   Where {printed(spent)} comes from: each step was charged an amount that its noise and its chance of "
            "including a unit fix"
        ),
        (
            f"   beforehand; all charges of all jobs add up to {arithmetic.charged:.4f} (at order {arithmetic.order}, "
            f"the best of several), {arithmetic.conversion:+.4f} to"
        ),
        f"   turn such a sum into an epsilon at this delta{elsewhere}; rounded up.",
    ]


def _rows(for_rows: Mapping[int, float]) -> list[str]:
    if not for_rows:
        return []
    shown = ", ".join(f"{printed(epsilon)} for {rows} rows" for rows, epsilon in sorted(for_rows.items()))
    return [
        f"   The promise is about one row. Somebody with several rows has less: epsilon {shown} (all releases so far,",
        "   with or without all rows of that person). It grows faster than the number of rows.",
        "",
    ]


def _jobs(figures: DataSetFigures, exact: Mapping[str, Exact]) -> list[str]:
    lines = ["   Jobs so far, each with what it alone amounts to; what counts is the line above, never their sum:"]
    lines += [f"     {_job(job, exact.get(job.job))}" for job in figures.jobs] or ["     none"]
    lines += [f"     single release {name}: {purpose}, {count}" for name, purpose, count in figures.single_releases]
    lines += [
        f"     made elsewhere: {one.what}, epsilon {one.epsilon:g}, delta {one.delta:g}, declared by "
        f"{', '.join(one.approved_by)}"
        for one in figures.foreign
    ]
    return [*lines, ""]


def _job(job: JobFigures, exact: Exact | None) -> str:
    said = (
        f"{job.since}  {job.job} ({job.unit}, {'training' if job.use == 'train' else 'testing'}): epsilon "
        f"{printed(job.epsilon_so_far)} of at most {job.epsilon_ceiling:g} at delta {job.delta:g}, {job.state}"
    )
    if exact is None or job.use != "train":
        return said
    said += f"; exact for this job alone, taken to its end: epsilon {printed(exact.alone)}"
    return said if exact.replaced is None else f"{said}, and {printed(exact.replaced)} for one replaced by another"


def _changes(figures: DataSetFigures, *, one_person: bool) -> list[str]:
    lines = [
        f"   Policy {old.policy} (epsilon {old.epsilon:g}, delta {old.delta:g}) was replaced." for old in figures.raised
    ]
    lines += [
        f"   Policy {policy.policy} replaced {policy.replaces} on {policy.since}, approved by "
        f"{', '.join(policy.approved_by)}; what had been spent stayed spent."
        for policy in figures.policies
        if policy.replaces is not None and policy.use == "train"
    ]
    lines += [
        f"   On {one.time} the ledger was recovered after a restored backup ({one.means}), approved by "
        f"{', '.join(one.approved_by)}."
        for one in figures.recoveries
    ]
    if one_person:
        lines.append("   At this site one person alone may change a promise: its configuration says so.")
    return [*lines, ""] if lines else []


def _rests_on() -> list[str]:
    return [
        "4. What it rests on",
        "   This site keeps secret which units each step drew, and the noise. Every step was charged before it was",
        f"   taken, by Rényi accounting ({ACCOUNTANT}, orders 2 to 176) for adding or removing one unit. Replacing one",
        "   by another counts as one removal and one addition: at most twice the epsilon, delta times (1 + e^epsilon).",
        "",
    ]


def _not_covered(figures: DataSetFigures) -> list[str]:
    lines = [
        "5. What isn't covered",
        f"   Figures declared public: the number of units ({figures.units_declared}, by {figures.declared_by}).",
        "   People who are also in other data sets or at other sites: their epsilons come together there.",
        "   Facts about groups, which hold whoever took part; time, memory and failures of a training step.",
        "   Noise made of floating-point numbers, which approximates the real-valued noise that the theorems speak of.",
        "   Steps of the proof that are this project's own and wait for an outside review: the filter over several",
        "   orders, jobs side by side as one sequence, budgets by parts of the data, and releases made elsewhere.",
    ]
    if figures.held_out_public:
        lines.append("   The held-out units were declared public: nothing is promised for them.")
    lines += _unbounded(figures.unbounded_since)
    return [*lines, ""]


def _unbounded(since: Mapping[str, str]) -> Sequence[str]:
    return [
        f"   NO BOUND HOLDS for {atom} since {time}: something was released without noise from that day on."
        for atom, time in since.items()
    ]


def _check(figures: DataSetFigures) -> list[str]:
    return [
        "6. How to check it",
        f"   The ledger ends at entry {figures.head.seq}, {figures.head.hash}.",
        "   The audit log holds that head, and others have cosigned the log:",
        f"   confide audit query --dataset {figures.data_set} --action budget; confide audit verify",
        f"   The figures: confide site budget show {figures.data_set} --format json",
    ]
