"""`confide site budget …`: what a data set's privacy budget has gone into, and settling a job by hand."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from federation.edge.arguments import VerbParser, run_verb

if TYPE_CHECKING:
    from federation.edge.clock import Clock
    from privacy.accounting.statement import DataSetFigures
    from site_client.budget.plain_words import Exact
    from site_client.budget.store import BudgetStore

ROWS_SHOWN: Final = (2, 4, 8)

HELP: Final = """confide site budget: the privacy budget of a data set

  confide site budget show NAME [--statement] [--format table|json]
      reserved, spent and left, by policy and by job; --statement says in plain words what it means for a person, with
      the exact epsilon of each job's own schedule where that is computed in ten seconds

  confide site budget settle JOB --reason TEXT
      end a job's reservation by hand and give back what was never leased; what was leased stays spent

  confide site budget raise NAME --epsilon E [--delta D] [--epsilon-per-job E] [--foreign-delta D]
                                 [--trust local|secagg-C]
      replace the promise by another one; what was spent carries over. --foreign-delta: what of delta is set aside for
      releases made elsewhere. --trust secagg-C: hold against the coordinator and up to C sites together, not everyone

  confide site budget foreign NAME --epsilon E --delta D --what TEXT [--held-out]
      count a release that was made without this ledger, such as a table published last year

  confide site budget recover --means replayed|charged|retired --reason TEXT
                              [--rounds JOB=N,JOB=N] [--retire NAME]
      after DP_LEDGER_BEHIND or DP_LEDGER_FORK: charge again what the audit log recorded; or the rounds that the
      coordinator's log names; or retire the data (all of this site's, or NAME's)

raise, foreign and recover take two people: another account confirms with `confide site approvals approve ID` within 14
days. A home whose configuration says `audit: {two_people: false}` needs one, and every statement says so.

Example:
  confide site budget show heart --statement
"""


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit status."""
    return run_verb("site budget", VERBS, arguments, help_text=HELP)


def show(arguments: list[str]) -> int:
    """Print the budget of a data set."""
    parser = VerbParser("confide site budget show", about="Reserved, spent and left of a data set.")
    parser.add_argument("name", metavar="NAME", help="the data set")
    parser.add_argument("--statement", action="store_true", help="what it means for a person, in plain words")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--home", metavar="DIR", default=None)
    options = parser.parse_args(arguments)
    from site_client.budget.report import figures_as_json, table
    from site_client.command_line import open_ledger_of

    store = open_ledger_of(options.home)
    try:
        figures, problem = store.show(options.name), store.problem
        lines = _statement(store, figures, options.home) if options.statement else table(figures)
    finally:
        store.close()
    if options.format == "json":
        document: dict[str, Any] = figures_as_json(figures)
        if options.statement:
            document["statement"] = lines
        document["problem"] = None if problem is None else {"code": problem.code, "text": problem.message}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        from site_client.budget.plain_words import folded

        print("\n".join(folded(lines) if options.statement else lines))
    if problem is not None:
        print(f"error {problem.code}: {problem.message}\nhint: {problem.hint}", file=sys.stderr)
    return 0 if problem is None else 1


def _statement(store: "BudgetStore", figures: "DataSetFigures", home: str | None) -> list[str]:
    from audit.readers_file import read_readers
    from federation.edge.clock import SystemClock, rfc3339
    from federation.edge.configuration import resolve_home
    from site_client.budget.plain_words import statement

    clock = SystemClock()
    return statement(
        figures,
        exact=exact_of(figures, clock),
        for_rows=store.epsilon_for_rows(figures.data_set, ROWS_SHOWN),
        one_person=not read_readers(resolve_home("site", home)).two_people,
        now=rfc3339(clock.now()),
    )


def exact_of(figures: "DataSetFigures", clock: "Clock") -> dict[str, "Exact"]:
    """Return the exact epsilon of each job's whole schedule, as far as it is said in ten seconds altogether."""
    from privacy.accounting.events import PoissonGaussian
    from privacy.accounting.profile import TIME_LIMIT_S, exact_epsilon
    from site_client.budget.plain_words import Exact

    found: dict[str, Exact] = {}
    until_s = clock.monotonic_s() + TIME_LIMIT_S
    for job in reversed(figures.jobs):  # the newest first: of the others the bound is known
        left_s = until_s - clock.monotonic_s()
        if job.use != "train" or not job.noise_multiplier or left_s <= 0:
            continue
        event = PoissonGaussian(sampling_rate=job.sampling_rate, noise_multiplier=job.noise_multiplier)
        steps = [(event, job.steps)]
        epsilon = exact_epsilon(steps, job.delta, time_limit_s=left_s)
        if epsilon is not None:
            left_s = until_s - clock.monotonic_s()
            replaced = exact_epsilon(steps, job.delta, relation="replace", time_limit_s=left_s) if left_s > 0 else None
            found[job.job] = Exact(epsilon, replaced)
    return found


def settle(arguments: list[str]) -> int:
    """End a job's reservation."""
    parser = VerbParser("confide site budget settle", about="End a job's reservation by hand.")
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
    from site_client.command_line import open_ledger_of

    store = open_ledger_of(options.home)
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


def raise_(arguments: list[str]) -> int:
    """Ask for another promise."""
    parser = VerbParser("confide site budget raise", about="Replace a data set's promise.")
    parser.add_argument("data_set", metavar="NAME")
    parser.add_argument("--epsilon", required=True)
    parser.add_argument("--delta")
    parser.add_argument("--epsilon-per-job")
    parser.add_argument("--foreign-delta")
    parser.add_argument("--trust")
    return _ask("raise", parser, arguments)


def foreign(arguments: list[str]) -> int:
    """Ask that a release made elsewhere be counted."""
    parser = VerbParser("confide site budget foreign", about="Count a release made elsewhere.")
    parser.add_argument("data_set", metavar="NAME")
    parser.add_argument("--epsilon", required=True)
    parser.add_argument("--delta", required=True, help="0 for a release known by its epsilon alone")
    parser.add_argument("--what", required=True, help="what was released, kept in the ledger")
    parser.add_argument("--held-out", dest="use", action="store_const", const="evaluate", help="of held-out units")
    return _ask("foreign", parser, arguments)


def recover(arguments: list[str]) -> int:
    """Ask that a restored ledger be made good."""
    parser = VerbParser("confide site budget recover", about="Make a restored ledger good.")
    parser.add_argument("--means", required=True, choices=("replayed", "charged", "retired"))
    parser.add_argument("--reason", required=True, help="kept in the ledger")
    parser.add_argument("--rounds", metavar="JOB=N,…", help="rounds that the coordinator's log names")
    parser.add_argument("--retire", metavar="NAME", help="also, or only, retire the data of this data set")
    return _ask("recover", parser, arguments)


def _ask(verb: str, parser: VerbParser, arguments: list[str]) -> int:
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--home", metavar="DIR", default=None)
    options = vars(parser.parse_args(arguments))
    home, form = options.pop("home"), options.pop("format")
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import resolve_home
    from site_client.budget_changes import changes_of, described
    from site_client.command_line import open_ledger_of

    store = open_ledger_of(home)
    try:
        given = {name: value for name, value in options.items() if value is not None}
        change = changes_of(resolve_home("site", home), store, SystemClock()).ask(verb, given)
    finally:
        store.close()
    if form == "json":
        document = {"schema": "confide/budget-change/v1", "request": change.request.id, "done": change.done}
        print(json.dumps({**document, "lines": list(change.lines)}, indent=2, ensure_ascii=False))
    elif change.done:
        print("\n".join(change.lines))
        print("note: two_people is false in this home: one person alone changed the promise", file=sys.stderr)
    else:
        print(f"request {change.request.id} waits: {described(change.request)}")
        print(f"another person confirms it within 14 days: confide site approvals approve {change.request.id}")
    return 0


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "show": show,
    "settle": settle,
    "raise": raise_,
    "foreign": foreign,
    "recover": recover,
}
