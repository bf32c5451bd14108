"""`confide site budget …`: what a data set's privacy budget has gone into, and settling a job by hand."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from federation.edge.clock import Clock
    from privacy.accounting.statement import DataSetFigures
    from site_client.budget.store import BudgetStore

HELP: Final = """confide site budget: the privacy budget of a data set

  confide site budget show NAME [--statement] [--format table|json]
      reserved, spent and left, by policy and by job; --statement says in plain words what it means for a person, with
      the exact epsilon of each job's own schedule where that is computed in ten seconds

  confide site budget settle JOB --reason TEXT
      end a job's reservation by hand and give back what was never leased; what was leased stays spent

Example:
  confide site budget show heart --statement
"""


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    verb = VERBS.get(arguments[0])
    if verb is None:
        print(f"confide site budget: unknown verb {arguments[0]!r}\n\n{HELP}", file=sys.stderr, end="")
        return 2
    return verb(arguments[1:])


def show(arguments: list[str]) -> int:
    """Print the budget of a data set."""
    parser = argparse.ArgumentParser("confide site budget show", description="Reserved, spent and left of a data set.")
    parser.add_argument("name", metavar="NAME", help="the data set")
    parser.add_argument("--statement", action="store_true", help="what it means for a person, in plain words")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--home", metavar="DIR", default=None)
    options = parser.parse_args(arguments)
    from federation.edge.clock import SystemClock
    from site_client.budget.report import figures_as_json, statement, table

    store = _open(options.home)
    try:
        figures = store.show(options.name)
    finally:
        store.close()
    lines = statement(figures, exact_of(figures, SystemClock())) if options.statement else table(figures)
    if options.format == "json":
        document: dict[str, Any] = figures_as_json(figures)
        if options.statement:
            document["statement"] = lines
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines))
    return 0


def exact_of(figures: "DataSetFigures", clock: "Clock") -> dict[str, float]:
    """Return the exact epsilon of each job's whole schedule, as far as it is said in ten seconds altogether."""
    from privacy.accounting.events import PoissonGaussian
    from privacy.accounting.profile import TIME_LIMIT_S, exact_epsilon

    found: dict[str, float] = {}
    until_s = clock.monotonic_s() + TIME_LIMIT_S
    for job in reversed(figures.jobs):  # the newest first: of the others the bound is known
        left_s = until_s - clock.monotonic_s()
        if job.use != "train" or not job.noise_multiplier or left_s <= 0:
            continue
        event = PoissonGaussian(sampling_rate=job.sampling_rate, noise_multiplier=job.noise_multiplier)
        epsilon = exact_epsilon([(event, job.steps)], job.delta, time_limit_s=left_s)
        if epsilon is not None:
            found[job.job] = epsilon
    return found


def settle(arguments: list[str]) -> int:
    """End a job's reservation."""
    parser = argparse.ArgumentParser("confide site budget settle", description="End a job's reservation by hand.")
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("--reason", required=True, help="kept in the ledger, and sealed in the audit log")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--home", metavar="DIR", default=None)
    options = parser.parse_args(arguments)
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import resolve_home
    from privacy.accounting.convert import printed
    from site_client.settlement import settle_by_hand

    audit = resolve_home("site", options.home) / "audit"
    store = _open(options.home)
    try:
        done = settle_by_hand(audit, store, options.job, reason=options.reason, clock=SystemClock())
    finally:
        store.close()
    returned, figures = done.returned_steps, done.figures
    if options.format == "json":
        document = {"schema": "confide/budget-settlement/v1", "returned_steps": returned, **asdict(figures)}
        print(json.dumps(document, indent=2))
    else:
        print(
            f"{options.job} is settled: epsilon {printed(figures.epsilon_so_far)} spent in {figures.steps_charged} "
            f"steps, {returned} steps given back"
        )
    return 0


def _open(home: str | None) -> "BudgetStore":
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import resolve_home
    from privacy.errors import LedgerMisused
    from site_client.budget.store import BudgetStore

    place = resolve_home("site", home) / "ledger.db"
    if not place.exists():
        raise LedgerMisused("this site has no privacy ledger yet", hint="add a data set with `confide site data add`")
    return BudgetStore.open(place, clock=SystemClock(), actor="operator")


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {"show": show, "settle": settle}
