"""`confide site policy show | edit | test | history`: what may run here."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from federation.edge.arguments import run_verb
from federation.edge.tables import print_record, print_rows
from site_client.command_line import Parser, open_home, reading_store, wants_help

if TYPE_CHECKING:
    from federation.edge.homes import SiteHome
    from federation.plan import Plan
    from federation.policy import Facts, Policy

HELP: Final = """confide site policy: what may run, be read or leave

  confide site policy show [--format table|json]
  confide site policy edit [--from FILE]
  confide site policy test job.yaml [--submitter NAME] [--vouched] [--format table|json]
  confide site policy history [--format table|json|jsonl]

The policy is the file policy.yaml in the home. edit opens a copy in EDITOR (or takes FILE), checks it, puts it in place
and tells the running daemon; what reads badly changes nothing. Without it: change the file, send the daemon SIGHUP.
test: exit status 0 where the job would be accepted, 4 where it would be refused or wait for a person.

Example:
  confide site policy test job.yaml --submitter alice
"""


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit status."""
    if wants_help(arguments):
        arguments = ["--help"]
    return run_verb("site policy", VERBS, arguments, help_text=HELP)


def show(arguments: list[str]) -> int:
    """Print the policy."""
    options = Parser("policy show", HELP).parse_args(arguments)
    from federation import policy as policies
    from federation.edge.files import read_bytes

    home = open_home(options.home)
    content = read_bytes(home.policy_file)
    read = policies.read(content, source=str(home.policy_file))
    if options.format == "table":
        print(content.decode("utf-8", "replace").removeprefix("\ufeff").rstrip())
    else:
        print_record(read.model_dump(mode="json"), schema="confide/site-policy/v1", form=options.format)
    return 0


def edit(arguments: list[str]) -> int:
    """Put another policy into force."""
    parser = Parser("policy edit", HELP)
    parser.add_argument("--from", dest="source", metavar="FILE", default=None)
    options = parser.parse_args(arguments)
    from site_client import policy_editing

    source = None if options.source is None else Path(options.source)
    result = policy_editing.replace(open_home(options.home), source)
    print_record({"policy": result}, schema="confide/site-policy-edit/v1", form=options.format)
    return 0


def test(arguments: list[str]) -> int:
    """Say what the policy answers to a plan, line by line."""
    parser = Parser("policy test", HELP)
    parser.add_argument("plan", metavar="job.yaml")
    parser.add_argument("--submitter", metavar="NAME", default="somebody")
    parser.add_argument("--vouched", action="store_true")
    options = parser.parse_args(arguments)
    from federation import plan as plans
    from federation import policy as policies
    from federation.edge.files import read_bytes, read_input
    from federation.messages import Decision

    home = open_home(options.home)
    plan = plans.read(read_input(Path(options.plan)), source=options.plan)
    policy = policies.read(read_bytes(home.policy_file), source=str(home.policy_file))
    facts = _facts(home, policy, plan, submitter=options.submitter, vouched=options.vouched)
    found = policies.explain(policy, plan, facts)
    lines = [{"rule": line.rule or "-", "result": line.result.value, "text": line.text} for line in found.lines]
    decision = found.decision
    if options.format == "table":
        print_rows(lines, ["rule", "result", "text"], schema="confide/site-policy-test/v1")
        print()
        print_record(
            {"decision": decision.verdict.value, "by": decision.rule or "-", "data_set": decision.dataset},
            schema="confide/site-policy-test/v1",
        )
    else:
        record = {
            "decision": decision.verdict.value,
            "rule": decision.rule,
            "dataset": decision.dataset,
            "reasons": [{"code": item.code, "rule": item.rule, "text": item.text} for item in decision.reasons],
            "lines": lines,
        }
        print_record(record, schema="confide/site-policy-test/v1", form=options.format)
    return 0 if decision.verdict is Decision.ACCEPTED else 4


def _facts(home: "SiteHome", policy: "Policy", plan: "Plan", *, submitter: str, vouched: bool) -> "Facts":
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import environment, load_configuration
    from federation.policy import DatasetFacts, Facts
    from site_client.charter_store import CharterStore
    from site_client.configuration import SiteConfiguration
    from site_client.data.registry import Registry
    from site_client.machine import Machine

    configuration = load_configuration(SiteConfiguration, home.configuration_file)
    accept_all = policy.members == "accept"
    charter = CharterStore(home, own_site=configuration.site, accept_all=accept_all).load()
    registry = Registry.open(home.path)
    try:
        datasets = tuple(
            DatasetFacts(
                name=item.name,
                contract=item.contract.name,
                contract_digest=item.contract_digest,
                units_declared=registry.newest(item.name).units_declared,
                unit=item.unit,
                held_out_public=item.held_out_public,
                delta=item.delta,
            )
            for item in registry.all()
        )
    finally:
        registry.close()
    machine = Machine(home.path / "cache", environment(), accelerators=configuration.training.accelerators)
    return Facts(
        datasets=datasets,
        coordinator="coordinator",
        submitter=submitter,
        vouched=vouched,
        members_accepted_count=len(plan.sites.invite) if charter is None else charter.accepted_among(plan.sites.invite),
        now=SystemClock().now(),
        memory_gib=machine.memory_gib(),
        accelerators_count=machine.accelerators_count() if plan.resources.accelerators > 1 else None,
    )


def history(arguments: list[str]) -> int:
    """List the contents of the policy file that the daemon has worked with."""
    options = Parser("policy history", HELP).parse_args(arguments)
    from federation.edge.clock import rfc3339

    with reading_store(open_home(options.home)) as store:
        rows: list[dict[str, Any]] = [
            {
                "number": item.number,
                "since": rfc3339(datetime.fromtimestamp(item.taken_us / 1e6, UTC)),
                "digest": item.digest,
                "content": item.content.decode("utf-8", "replace"),
            }
            for item in store.policies()
        ]
    print_rows(rows, ["number", "since", "digest"], schema="confide/site-policy-history/v1", form=options.format)
    return 0


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "show": show,
    "edit": edit,
    "test": test,
    "history": history,
}
