"""`confide site approvals list | show | approve | deny`: jobs that wait for a person of this site."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from federation.edge.arguments import run_verb
from federation.edge.tables import print_record, print_rows
from site_client.command_line import Parser, open_home, open_ledger_of, reading_store, wants_help

if TYPE_CHECKING:
    from site_client.store import Store
    from site_client.stored import Approval

HELP: Final = """confide site approvals: jobs that wait for a person of this site

  confide site approvals list [--all] [--format table|json|jsonl]
  confide site approvals show ID [--diff] [--format table|json]
  confide site approvals approve ID --reason TEXT
  confide site approvals deny ID --reason TEXT

--all: also what was decided. --diff: what is new against the newest accepted job of the same name.
approve and deny of a job need the running daemon; the reason stays at this site, the audit log holds a commitment to
it. An ID that begins with r- is a change of a privacy budget; another account than the asking one confirms it.

Example:
  confide site approvals approve 5c1f09a2b7d3 --reason "ethics board, protocol 2026-14"
"""


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit status."""
    if wants_help(arguments):
        arguments = ["--help"]
    return run_verb("site approvals", VERBS, arguments, help_text=HELP)


def list_(arguments: list[str]) -> int:
    """List what waits."""
    parser = Parser("approvals list", HELP)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args(arguments)
    with reading_store(open_home(options.home)) as store:
        rows = [_row(item) for item in store.approvals(state=None if options.all else "waiting")]
        rows += _budget_rows(options.home)
    columns = ["id", "job", "rule", "state", "filed", "expires"]
    print_rows(rows, columns, schema="confide/site-approvals/v1", form=options.format)
    return 0


def show(arguments: list[str]) -> int:
    """Show one approval with its plan."""
    parser = Parser("approvals show", HELP)
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--diff", action="store_true")
    options = parser.parse_args(arguments)
    from federation.errors import InvalidInput

    with reading_store(open_home(options.home)) as store:
        found = store.approval(options.id)
        if found is None:
            raise InvalidInput("CFD-R71", f"there is no approval {options.id}")
        plan = _plan(store, found)
        lines = _difference(store, found, plan) if options.diff else json.dumps(plan, indent=2).splitlines()
        stored = store.job(found.job)
    record = {**_row(found), "submitter": None if stored is None else stored.submitter, "reasons": found.reasons}
    if options.format != "table":
        print_record({**record, "plan": plan}, schema="confide/site-approval/v1", form=options.format)
        return 0
    print_record(record, schema="confide/site-approval/v1")
    print()
    print("\n".join(lines))
    return 0


def approve(arguments: list[str]) -> int:
    """Say yes to a job."""
    return _decide(arguments, "approve")


def deny(arguments: list[str]) -> int:
    """Say no to a job."""
    return _decide(arguments, "deny")


def _decide(arguments: list[str], verb: Literal["approve", "deny"]) -> int:
    parser = Parser(f"approvals {verb}", HELP)
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--reason", metavar="TEXT")
    options = parser.parse_args(arguments)
    if options.id.startswith("r-"):
        return _decide_budget(options, verb)
    if options.reason is None:
        parser.error("a decision about a job needs --reason TEXT")
    from site_client.control import Request, ask

    found = ask(open_home(options.home).path, Request(verb=verb, subject=options.id, reason=options.reason))
    print_record(found, schema="confide/site-decision/v1", form=options.format)
    return 4 if verb == "approve" and found["decision"] == "refused" else 0


def _decide_budget(options: Any, verb: str) -> int:
    """Confirm, or forget, a change of a budget that another person asked for."""
    from federation.edge.clock import SystemClock
    from site_client.budget_changes import changes_of, described

    home, store = open_home(options.home), open_ledger_of(options.home)
    try:
        changes = changes_of(home.path, store, SystemClock())
        if verb == "approve":
            change = changes.confirm(options.id)
            decided, lines = change.request, change.lines
        else:
            decided, lines = changes.deny(options.id), ("nothing changed",)
    finally:
        store.close()
    record = {"request": decided.id, "decision": verb, "asked": described(decided), "done": "; ".join(lines)}
    print_record(record, schema="confide/site-decision/v1", form=options.format)
    return 0


def _budget_rows(home: str | None) -> list[dict[str, Any]]:
    from audit.requests import EXPIRES_US
    from federation.edge.clock import SystemClock
    from site_client.budget_changes import described, requests_of

    now_us = int(SystemClock().now().timestamp() * 1_000_000)
    return [
        {
            "id": one.id,
            "job": described(one),
            "rule": "two people",
            "state": "waiting",
            "filed": _time(one.proposed_us),
            "expires": _time(one.proposed_us + EXPIRES_US),
        }
        for one in requests_of(open_home(home).path).waiting(now_us)
    ]


def _row(found: "Approval") -> dict[str, Any]:
    return {
        "id": found.approval,
        "job": found.job,
        "rule": found.rule or "default",
        "state": found.state,
        "filed": _time(found.filed_us),
        "expires": _time(found.expires_us),
        "plan_digest": found.plan_digest,
    }


def _time(microseconds: int) -> str:
    from federation.edge.clock import rfc3339

    return rfc3339(datetime.fromtimestamp(microseconds / 1e6, UTC))


def _plan(store: "Store", found: "Approval") -> dict[str, Any]:
    stored = store.job(found.job)
    if stored is None:
        return {}
    plan: dict[str, Any] = json.loads(stored.plan)
    return plan


def _difference(store: "Store", found: "Approval", plan: dict[str, Any]) -> list[str]:
    import difflib

    earlier = [
        job
        for job in store.jobs()
        if job.job != found.job and job.terms is not None and json.loads(job.plan)["name"] == plan.get("name")
    ]
    if not earlier:
        return ["no accepted job of this name to compare with"]
    before = json.dumps(json.loads(earlier[-1].plan), indent=2).splitlines()
    after = json.dumps(plan, indent=2).splitlines()
    return list(difflib.unified_diff(before, after, earlier[-1].job, found.job, lineterm="", n=1)) or ["no difference"]


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "list": list_,
    "show": show,
    "approve": approve,
    "deny": deny,
}
