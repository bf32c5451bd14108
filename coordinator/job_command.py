"""`confide job …`: from a plan in a file to a model in a folder. A thin edge over the coordinator's API."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from coordinator.api_client import Federation
from coordinator.people import Person, add_person_options, person_of
from coordinator.round_line import phase_line, round_line
from coordinator.views import JobView, PreviewView
from federation.edge.arguments import VerbParser
from federation.edge.files import decode_input, read_text_input
from federation.edge.tables import FORMATS, print_record, print_rows, visible
from federation.errors import CheckFailed, ConfideError, InvalidInput

HELP: Final = """\
Launch and watch federated jobs.

usage: confide job VERB [options]

  init       print a plan to begin with: confide job init > job.yaml
  validate   check a plan, and ask the sites what they would answer
  submit     sign a plan and submit it
  list       the jobs, newest first
  show       one job: sites, rounds, metrics
  watch      a line a round, until the job has ended
  why        why a job isn't running
  pause      stop at the end of the phase      resume   go on
  cancel     end a job for good                retry    a new job from an earlier round's model
  diff       what two jobs' plans say differently
  simulate   the same job with virtual sites on this machine
  result     the model, its card, provenance, privacy statement and proofs

Example: confide job submit job.yaml --wait
"""

MAX_PLAN_BYTES: Final = 1 << 20
ERASE_LINE: Final = "\x1b[2K"


def _parser(verb: str, about: str) -> VerbParser:
    parser = VerbParser(f"confide job {verb}", about=about)
    add_person_options(parser)
    return parser


def _with_format(parser: VerbParser) -> None:
    parser.add_argument(
        "--format", choices=FORMATS, default="table", help="table for people, json or jsonl for programs"
    )


def _read_plan(path: str) -> str:
    if path == "-":
        return decode_input(sys.stdin.buffer.read(MAX_PLAN_BYTES + 1), "standard input")
    return read_text_input(Path(path), limit_bytes=MAX_PLAN_BYTES)


def _contract_beside(path: str, named: Path | None, contract_name: str) -> str | None:
    """Return the contract document given, or the one beside the plan that has the plan's contract name."""
    from federation.contract import DataContract
    from federation.edge.documents import read_document

    if named is not None:
        return read_text_input(named)
    if path == "-":
        return None
    folder = Path(path).resolve().parent
    for candidate in sorted([*folder.glob("*.yaml"), *(folder / "contracts").glob("*.yaml")]):
        try:
            if read_document(candidate, DataContract).name == contract_name:
                return read_text_input(candidate)
        except ConfideError:
            continue  # another kind of document, or nobody's business here
    return None


def _documents(options: argparse.Namespace) -> tuple[str, str | None]:
    from federation import plan

    text = _read_plan(options.plan)
    name = "plan" if options.plan == "-" else Path(options.plan).name
    contract = plan.read(text, source=name).data.contract
    return text, _contract_beside(options.plan, options.contract, contract)


def _init(arguments: list[str]) -> int:
    parser = VerbParser("confide job init", about="Print a plan to begin with.")
    parser.add_argument("--template", choices=tuple(_OTHERWISE), default="tabular", help="kind of data")
    otherwise = _OTHERWISE[parser.parse_args(arguments).template]
    for line in TEMPLATE.splitlines():
        print(otherwise.get(line.partition(":")[0], line))
    return 0


def _validate(arguments: list[str]) -> int:
    parser = _parser("validate", "Check a plan here and at the coordinator, and ask sites what they would answer.")
    parser.add_argument("plan", help="the plan's file, or - for standard input")
    parser.add_argument(
        "--contract", type=Path, help="the data contract (default: beside the plan, else the sites' own)"
    )
    parser.add_argument("--sites", help="all, or site ids with commas: ask these sites for a preview")
    parser.add_argument("--units", type=int, help="print schedules that keep the plan's epsilon for so many units")
    _with_format(parser)
    options = parser.parse_args(arguments)
    text, contract = _documents(options)
    with person_of(options).federation() as federation:
        found = federation.validate(text, contract=contract)
        previews: tuple[PreviewView, ...] = ()
        if options.sites:
            sites = None if options.sites == "all" else tuple(options.sites.split(","))
            previews = federation.previews(text, sites, contract=contract)
    if options.format == "table":
        print(f"the plan is valid: {found.plan_digest}")
        print(
            f"{found.parameters} parameters, {_bytes(found.update_bytes)} an update, "
            f"contract from the {found.contract_from}"
        )
        for notice in found.notices:
            print(f"note: {visible(notice)}")
        if previews:
            print_rows([_preview_row(item) for item in previews], PREVIEW_COLUMNS, schema="confide/previews/v1")
        if options.units is not None:
            print(PROPOSED)
            print_rows(_proposals(text, options.units), PROPOSAL_COLUMNS, schema="confide/schedules/v1")
    else:
        record = {**found.model_dump(mode="json"), "previews": [item.model_dump(mode="json") for item in previews]}
        if options.units is not None:
            record["schedules"] = _proposals(text, options.units)
        print_record(record, schema="confide/validation/v1", form=options.format)
    return 4 if any(item.decision == "refused" for item in previews) else 0


PROPOSED: Final = """
schedules that keep the plan's epsilon and delta, each with its least noise; all use a unit as often as the plan does.
noise: that of the average step, in clips. Few large batches beat many small ones; tuning runs are charged too."""
PROPOSAL_COLUMNS: Final = ("rate", "batch", "steps", "sigma", "epochs", "noise", "plan")


def _proposals(text: str, units: int) -> list[dict[str, Any]]:
    from federation import plan as plans
    from federation.errors import InvalidInput
    from privacy.accounting.proposals import proposals

    plan = plans.read(text)
    if plan.privacy.mechanism == "none" or plan.privacy.epsilon is None or plan.privacy.delta is None:
        raise InvalidInput("CFD-G02", "the plan makes no promise that a schedule could keep", hint="leave out --units")
    found = proposals(
        epsilon=plan.privacy.epsilon,
        delta=plan.privacy.delta,
        units=units,
        batch=plan.training.batch,
        steps=plan.steps,
    )
    return [
        {
            "rate": f"{one.sampling_rate:.4g}",
            "batch": round(one.batch, 1),
            "steps": one.steps,
            "sigma": one.noise_multiplier,
            "epochs": round(one.epochs, 1),
            "noise": f"{one.noise:.4f}",
            "plan": "yes" if one.is_plans else "",
        }
        for one in found
    ]


PREVIEW_COLUMNS: Final = ("site", "decision", "epsilon", "noise", "steps", "memory", "upload", "why")


def _preview_row(item: PreviewView) -> dict[str, Any]:
    return {
        "site": item.site,
        "decision": item.decision,
        "epsilon": item.epsilon,
        "noise": item.noise_multiplier,
        "steps": item.steps,
        "memory": _bytes(item.memory_bytes),
        "upload": _bytes(item.update_bytes),
        "why": "; ".join(f"{reason.text or reason.code} [{reason.code}]" for reason in item.reasons),
    }


def _submit(arguments: list[str]) -> int:
    parser = _parser("submit", "Sign a plan and submit it.")
    parser.add_argument("plan", help="the plan's file, or - for standard input")
    parser.add_argument(
        "--contract", type=Path, help="the data contract (default: beside the plan, else the sites' own)"
    )
    parser.add_argument("--idempotency-key", help="the same key gives the same job")
    parser.add_argument("--priority", type=int, help="0 to 100, in place of the plan's")
    parser.add_argument("--wait", action="store_true", help="watch the job to its end; status 1 unless it completes")
    _with_format(parser)
    options = parser.parse_args(arguments)
    text, contract = _documents(options)
    person = person_of(options)
    with person.federation() as federation:
        resolved = federation.resolve(text, contract=contract)
        data = _checked(text, resolved.plan, resolved.contract)
        job = _sign_and_submit(federation, person, data, options, contract)
        return _after_submit(federation, job, options)


def _checked(text: str, claimed: str, contract: str) -> bytes:
    """Return the resolved plan's bytes, after making them again from what the person wrote."""
    from federation import contract as contracts
    from federation import plan

    parsed = contracts.from_canonical(contract.encode("utf-8"))
    resolved = plan.resolve(
        plan.read(text), contract_digest=contracts.digest(parsed), has_entities=parsed.entity is not None
    )
    data = plan.canonical_bytes(resolved)
    if data.hex() != claimed:
        text = "the coordinator resolved another plan than the one in the file; nothing was signed"
        raise CheckFailed("CFD-P04", text, hint="use the same version of confide at both ends")
    return data


def _sign_and_submit(
    federation: Federation, person: Person, data: bytes, options: argparse.Namespace, contract: str | None
) -> JobView:
    from federation import plan

    signature = plan.sign_plan(plan.decode(data), person.key())
    done = federation.submit(
        data,
        signature=signature,
        contract=contract,
        priority=options.priority,
        idempotency_key=options.idempotency_key,
    )
    if not done.new:
        print(f"this idempotency key already stands for {done.job.job}", file=sys.stderr)
    return done.job


def _after_submit(federation: Federation, job: JobView, options: argparse.Namespace) -> int:
    if options.format == "table":
        print(job.job)
    else:
        print_record(job.model_dump(mode="json"), schema="confide/job/v1", form=options.format)
    if not options.wait:
        print(f"watch it: confide job watch {job.job}", file=sys.stderr)
        return 0
    sys.stdout.flush()
    return _follow(federation, job.job)


def _list(arguments: list[str]) -> int:
    parser = _parser("list", "List jobs, newest first.")
    parser.add_argument("--state", action="append", default=[], help="only jobs in this state; may be repeated")
    parser.add_argument("--limit", type=int, default=100, help="at most so many (default 100)")
    _with_format(parser)
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        jobs = federation.jobs(options.state, limit=options.limit)
    rows = [{**job.model_dump(mode="json"), "progress": f"{job.round}/{job.rounds}"} for job in jobs]
    columns = ("job", "state", "progress", "priority", "submitter", "submitted", "waiting")
    print_rows(rows, columns, schema="confide/jobs/v1", form=options.format)
    return 0


def _show(arguments: list[str]) -> int:
    parser = _parser("show", "Show one job.")
    parser.add_argument("job")
    _with_format(parser)
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        job = federation.job(options.job)
    if options.format != "table":
        print_record(job.model_dump(mode="json"), schema="confide/job/v1", form=options.format)
        return 0
    shown = job.model_dump(mode="json", exclude={"sites", "rounds_done"})
    print_record({key: value for key, value in shown.items() if value not in (None, "")}, schema="confide/job/v1")
    print()
    rows = [site.model_dump(mode="json") for site in job.sites]
    print_rows(rows, ("site", "state", "connected", "epsilon", "reasons"), schema="confide/job/v1")
    if job.rounds_done:
        print()
        print_rows(
            [_round_row(item.model_dump(mode="json")) for item in job.rounds_done],
            ("round", "attempt", "state", "survivors", "late", "metrics", "epsilon", "seconds"),
            schema="confide/job/v1",
        )
    return 0


def _round_row(row: Mapping[str, Any]) -> dict[str, Any]:
    metrics = row["metrics"] or {}
    shown = {name: "not available" if value is None else f"{value:.3f}" for name, value in metrics.items()}
    return {**row, "round": row["round"] + 1, "metrics": shown}


def _watch(arguments: list[str]) -> int:
    parser = _parser("watch", "Print a line a round, until the job has ended; status 1 unless it completed.")
    parser.add_argument("job")
    parser.add_argument("--format", choices=("table", "jsonl"), default="table")
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        return _follow(federation, options.job, as_json=options.format == "jsonl")


def _follow(federation: Federation, job: str, *, as_json: bool = False) -> int:
    for event in federation.watch(job):
        if as_json:
            print(json.dumps({"schema": "confide/event/v1", **event.model_dump(mode="json")}))
        else:
            line, doing = round_line(event), phase_line(event) if sys.stdout.isatty() else ""
            if doing:
                print(f"{ERASE_LINE}{doing}\r", end="")
            elif line:
                print(f"{ERASE_LINE}{line}" if sys.stdout.isatty() else line)
        sys.stdout.flush()
    ended = federation.job(job)
    if ended.state == "completed":
        return 0
    if not as_json:
        print(f"{job} {ended.state}: {visible(ended.reason)}", file=sys.stderr)
    return 1


def _why(arguments: list[str]) -> int:
    parser = _parser("why", "Say why a job isn't running.")
    parser.add_argument("job")
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        print(visible(federation.why(options.job)))
    return 0


def _act(verb: str, arguments: list[str]) -> int:
    parser = _parser(verb, f"{verb.capitalize()} a job.")
    parser.add_argument("job")
    if verb == "cancel":
        parser.add_argument("--reason", default="", help="kept in the record")
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        if verb == "cancel":
            job = federation.cancel(options.job, options.reason)
        else:
            job = federation.pause(options.job) if verb == "pause" else federation.resume(options.job)
    print(f"{job.job} {job.state}")
    return 0


def _retry(arguments: list[str]) -> int:
    parser = _parser("retry", "Make a new job whose first model is the one released before a round.")
    parser.add_argument("job")
    parser.add_argument("--from-round", type=int, required=True, metavar="R", help="counted from 1, as `watch` does")
    parser.add_argument("--wait", action="store_true", help="watch the new job to its end")
    parser.add_argument("--priority", type=int, help="0 to 100, in place of the plan's")
    parser.add_argument("--idempotency-key", help="the same key gives the same job")
    _with_format(parser)
    options = parser.parse_args(arguments)
    if options.from_round < 1:
        raise InvalidInput("CFD-J02", "rounds are counted from 1")
    person = person_of(options)
    with person.federation() as federation:
        resolved = federation.resolve_retry(options.job, options.from_round - 1)
        contract = resolved.contract
        job = _sign_and_submit(federation, person, bytes.fromhex(resolved.plan), options, contract)
        return _after_submit(federation, job, options)


def _diff(arguments: list[str]) -> int:
    parser = _parser("diff", "Show what two jobs' plans say differently; status 1 if anything.")
    parser.add_argument("job")
    parser.add_argument("other")
    _with_format(parser)
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        plans = [_flat(federation.plan(job)) for job in (options.job, options.other)]
    rows = [
        {"field": key, "first": plans[0].get(key), "second": plans[1].get(key)}
        for key in sorted(plans[0].keys() | plans[1].keys())
        if plans[0].get(key) != plans[1].get(key)
    ]
    print_rows(rows, ("field", "first", "second"), schema="confide/job-diff/v1", form=options.format)
    return 1 if rows else 0


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= _flat(item, f"{path}.{key}" if path else key)
        return found
    return {path: value}


def _simulate(arguments: list[str]) -> int:
    from coordinator.simulation_command import main

    return main(arguments)


def _result(arguments: list[str]) -> int:
    parser = _parser("result", "Write a job's model, card, provenance, privacy statement and proofs into a folder.")
    parser.add_argument("job")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    options = parser.parse_args(arguments)
    from coordinator.result import write_result

    with person_of(options).federation() as federation:
        written = write_result(federation, options.job, options.out)
    for path in written:
        print(path)
    return 0


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} B"


def main(arguments: list[str]) -> int:
    """Run `confide job …`."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise InvalidInput("CFD-G02", f"there is no `confide job {verb}`", hint="see `confide job --help`")
    return VERBS[verb](rest)


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "init": _init,
    "validate": _validate,
    "submit": _submit,
    "list": _list,
    "show": _show,
    "watch": _watch,
    "why": _why,
    "pause": lambda arguments: _act("pause", arguments),
    "resume": lambda arguments: _act("resume", arguments),
    "cancel": lambda arguments: _act("cancel", arguments),
    "retry": _retry,
    "diff": _diff,
    "simulate": _simulate,
    "result": _result,
}

TEMPLATE: Final = """\
# A plan: one training job, as data. Every field has a default or is explained by `confide schema plan`.
apiVersion: confide/v1
kind: TrainingJob
name: heart-risk
purpose: {code: "DUO:0000007", text: "risk of coronary heart disease"}
data: {contract: heart-disease/v1, label: disease}
model: {kind: mlp, hidden: [16], activation: relu}          # logistic | mlp | cnn | resnet18 | transformer
training: {local_steps: 20, batch: 64, optimizer: {name: sgd, lr: 0.1}, seed: 7}
privacy: {unit: record, mechanism: local-dp-sgd, epsilon: 4.0, delta: 1.0e-5, clip: 1.0}
secure_aggregation: {colluding: 1, dropouts: 1}             # or {enabled: false}, where every site allows it
rounds: 20
sites: {invite: [cleveland, hungary, switzerland, long-beach], quorum: 3}
deadlines: {training_s: 600, phase_s: 60}
server: {strategy: FedAvg}                                  # FedAvg | FedAvgM | FedAdam | FedYogi | FedAdagrad
weights: uniform                                            # uniform | declared
evaluate: {every: 1, metrics: [loss, accuracy, auc], release: charged, epsilon: 1.0}
priority: 50
"""
_OTHERWISE: Final[dict[str, dict[str, str]]] = {
    "tabular": {},
    "image": {
        "name": "name: chest-images",
        "purpose": 'purpose: {code: "DUO:0000007", text: "findings on chest radiographs"}',
        "data": "data: {contract: chest-images/v1, label: finding}      # a column for each pixel",
        "model": "model: {kind: cnn, channels: 1, height: 28, width: 28}      # cnn | resnet18",
    },
    "text": {
        "name": "name: visit-notes",
        "purpose": 'purpose: {code: "DUO:0000007", text: "readmission by what was noted at a visit"}',
        "data": "data: {contract: visit-codes/v1, label: readmitted}  # a column for each token",
        "model": "model: {kind: transformer, tokens: 64, vocabulary: 4096, dim: 64, layers: 2, heads: 4}",
    },
}
"""The lines of a template that are others than those of `TEMPLATE`, by kind of data and key."""
