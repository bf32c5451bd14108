"""What a site allows: `policy.yaml`, edited by the site alone, and the decision it gives for a plan. Pure.

Three steps, for each data set that fulfils the plan's contract. **Floors** and ceilings always apply, whatever a rule
says; every one that the plan misses is named. Then the **rules**, in order: the first whose conditions all hold
decides. Then the **default**. A job without noise needs a rule that names `mechanism: [none]`; a job whose submitter
only the coordinator vouches for needs a rule with `vouched: true`, while refusals hit it like any other. So adding a
floor can turn yes into no, and nothing here can turn a floor's no into yes. Of several data sets the best answer wins.

Members that this site hasn't accepted count as colluding: they are taken off the quorum and added to the colluders
that the plan must survive. The privacy budget is asked elsewhere (`site_client.budget`), after this.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time
from enum import StrEnum
from typing import Any, Literal
from zoneinfo import ZoneInfo

from federation.edge.documents import parse_document
from federation.errors import ConfigurationWrong
from federation.messages import Decision as Verdict
from federation.plan_fields import Plan
from federation.policy_fields import HOURS, Ceilings, Conditions, Floors, Policy, Rule

__all__ = [
    "Ceilings",
    "Conditions",
    "DatasetFacts",
    "Decision",
    "Explanation",
    "Facts",
    "Floors",
    "Line",
    "Passed",
    "Policy",
    "Reason",
    "Rule",
    "Verdict",
    "check",
    "explain",
    "json_schema",
    "read",
    "within_hours",
]


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What the decision knows of one data set: schema and public figures, nothing measured.

    Attributes:
        name: The site's own name for it.
        contract: Name of the contract that it fulfils.
        contract_digest: SHA-256 of that contract's canonical bytes.
        units_declared: The public number of units.
        unit: The policy unit of the data set: record or entity.
        held_out_public: Whether the operator declared the held-out units public.
        delta: The data set's own δ, which a plan's δ may not exceed.
    """

    name: str
    contract: str
    contract_digest: str
    units_declared: int
    unit: Literal["record", "entity"]
    held_out_public: bool = False
    delta: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the decision knows besides plan and policy.

    Attributes:
        datasets: The site's data sets that are neither retired nor broken.
        coordinator: Name of the coordinator that made the offer.
        submitter: The person who signed the plan, or whom the coordinator vouches for.
        vouched: True where only the coordinator's service signed.
        members_accepted_count: How many of the invited members this site has accepted, itself included.
        now: The present time, with a zone.
        memory_gib: Main memory of the site's machine, None where it isn't known.
        accelerators_count: Accelerators that the site has for jobs, None where it isn't known.
    """

    datasets: tuple[DatasetFacts, ...]
    coordinator: str
    submitter: str
    vouched: bool
    members_accepted_count: int
    now: datetime
    memory_gib: int | None = None
    accelerators_count: int | None = None


class Passed(StrEnum):
    """How one line of the policy answered."""

    HELD = "held"
    MISSED = "missed"
    DECIDED = "decided"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the explanation: where in the policy, how it answered, and why."""

    rule: str
    result: Passed
    text: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the answer isn't yes: the deciding path in the policy file, a code, and a sentence without data."""

    rule: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The site's answer, the rule that gave it, and the data set that it is about (None if none fits)."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    rule: str
    dataset: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with every line of the policy that was looked at, for one data set."""

    decision: Decision
    lines: tuple[Line, ...]


def read(text: str | bytes, *, source: str = "policy.yaml") -> Policy:
    """Return the policy that the site's operator wrote as YAML.

    Raises:
        ConfigurationWrong: CFD-S01, naming line and key.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return parse_document(data, Policy, name=source, raises=ConfigurationWrong, codes=("CFD-S01", "CFD-S01"))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `policy.yaml`."""
    schema = Policy.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "confide/policy/v1", **schema}


def check(policy: Policy, plan: Plan, facts: Facts) -> Decision:
    """Return what the site answers to `plan` now; no person is asked and nothing is reserved."""
    return explain(policy, plan, facts).decision


def explain(policy: Policy, plan: Plan, facts: Facts) -> Explanation:
    """Return the decision of `check` with the lines of the policy that led to it, in the order of the file."""
    fitting = sorted(
        (item for item in facts.datasets if item.contract == plan.data.contract and _same_contract(item, plan)),
        key=lambda item: item.name,
    )
    if not fitting:
        text = f"no data set here fulfils contract {plan.data.contract} as the plan has it"
        decision = Decision(Verdict.REFUSED, (Reason("", "CFD-S02", text),), "", None)
        return Explanation(decision, (Line("", Passed.MISSED, text, "CFD-S02"),))
    order = [Verdict.ACCEPTED, Verdict.PARKED, Verdict.REFUSED]
    return min(
        (_for_dataset(policy, plan, facts, item) for item in fitting), key=lambda e: order.index(e.decision.verdict)
    )


def within_hours(policy: Policy, now: datetime) -> bool:
    """Return whether `now` (with a zone) lies in the site's hours; a site without hours works at all hours."""
    if policy.hours is None:
        return True
    parts = HOURS.match(policy.hours)
    if parts is None:
        return False
    begin, end = time(int(parts[1]), int(parts[2])), time(int(parts[3]), int(parts[4]))
    local = now.astimezone(ZoneInfo(parts[5])).time()
    return begin <= local < end if begin < end else local >= begin or local < end


def _same_contract(dataset: DatasetFacts, plan: Plan) -> bool:
    return plan.data.contract_digest is None or plan.data.contract_digest == dataset.contract_digest


def _for_dataset(policy: Policy, plan: Plan, facts: Facts, dataset: DatasetFacts) -> Explanation:
    floors = [*_floors(policy.floors, plan, facts, dataset), *_fit(plan, dataset), *_metrics(policy, plan, dataset)]
    floors += [*_ceilings(policy.resources, plan), *_machine(plan, facts)]
    missed = [line for line in floors if line.result is Passed.MISSED]
    rules = list(_rules(policy, plan, facts, dataset))
    decided = rules[-1]
    reasons = [Reason(line.rule, line.code, line.text) for line in missed]
    hours = [] if within_hours(policy, facts.now) else [Line("hours", Passed.MISSED, policy.hours or "", "CFD-S09")]
    if missed or decided.code in ("CFD-S03", "CFD-S07", "CFD-S11"):
        verdict, rule = Verdict.REFUSED, (missed[0].rule if missed else decided.rule)
        if decided.code in ("CFD-S03", "CFD-S07", "CFD-S11"):
            reasons.append(Reason(decided.rule, decided.code, decided.text))
    elif decided.code:
        verdict, rule = Verdict.PARKED, decided.rule
        reasons.append(Reason(decided.rule, decided.code, decided.text))
    elif hours:
        verdict, rule = Verdict.PARKED, "hours"
        reasons.append(Reason("hours", "CFD-S09", f"the site works {policy.hours}"))
    else:
        verdict, rule = Verdict.ACCEPTED, decided.rule
    decision = Decision(verdict, tuple(reasons), rule, dataset.name)
    return Explanation(decision, (*floors, *rules, *hours))


def _line(held: bool, rule: str, code: str, text: str) -> Line:
    return Line(rule, Passed.HELD if held else Passed.MISSED, text, "" if held else code)


def _floors(floors: Floors, plan: Plan, facts: Facts, dataset: DatasetFacts) -> Iterator[Line]:
    strangers = max(0, len(plan.sites.invite) - facts.members_accepted_count)
    quorum = (plan.sites.quorum or 1) - strangers
    less = f" - {strangers} members not accepted here = {quorum}" if strangers else ""
    text = f"quorum {plan.sites.quorum or 1}{less}, floor {floors.quorum}"
    yield _line(quorum >= floors.quorum, "floors/quorum", "CFD-S04", text)
    secure = plan.secure_aggregation
    required = floors.secure_aggregation == "required"
    text = f"secure aggregation is {'on' if secure.enabled else 'off'}, floor {floors.secure_aggregation}"
    yield _line(secure.enabled or not required, "floors/secure_aggregation", "CFD-S04", text)
    if secure.enabled:
        more = f" + {strangers} members not accepted here" if strangers else ""
        text = f"colluding {secure.colluding}, floor {floors.colluding}{more}"
        yield _line(secure.colluding >= floors.colluding + strangers, "floors/colluding", "CFD-S04", text)
    if floors.epsilon_per_job is not None:
        for name, value in _epsilons(plan):
            text = f"{name} {_shown(value)}, floor {floors.epsilon_per_job:g}"
            yield _line(value <= floors.epsilon_per_job, "floors/epsilon_per_job", "CFD-S04", text)
    if floors.delta_per_job is not None:
        delta = plan.privacy.delta or 0.0
        text = f"delta {delta:g}, floor {floors.delta_per_job:g}"
        yield _line(delta <= floors.delta_per_job, "floors/delta_per_job", "CFD-S04", text)
    units = dataset.units_declared
    text = "the data set is below this site's least size" if units < floors.units_declared else "size of the data set"
    yield _line(units >= floors.units_declared, "floors/units_declared", "CFD-S04", text)
    if floors.sampling_rate < 1:
        held = plan.training.batch <= floors.sampling_rate * units
        text = f"batch {plan.training.batch} {'keeps' if held else 'is over'} the site's sampling rate"
        yield _line(held, "floors/sampling_rate", "CFD-S04", text)


def _epsilons(plan: Plan) -> Iterator[tuple[str, float]]:
    yield "epsilon", plan.privacy.epsilon or 0.0 if plan.privacy.mechanism != "none" else float("inf")
    if plan.evaluate is not None and plan.evaluate.release == "charged":
        yield "epsilon of the metrics", plan.evaluate.epsilon or plan.privacy.epsilon or 0.0


def _shown(epsilon: float) -> str:
    return "unbounded" if epsilon == float("inf") else f"{epsilon:g}"


def _fit(plan: Plan, dataset: DatasetFacts) -> Iterator[Line]:
    privacy = plan.privacy
    unit = privacy.unit or dataset.unit
    if privacy.mechanism != "none":
        weaker = dataset.unit == "entity" and unit == "record"
        text = f"unit {unit}, the data set's unit is {dataset.unit}" + (
            ": noise for a row understates the risk of a person with several" if weaker else ""
        )
        yield _line(not weaker, "", "CFD-S08", text)
    if privacy.delta is None:
        return
    # δ at or above 1/units would let a mechanism publish whole units; the figure is public by declaration.
    text = f"delta {privacy.delta:g} against 1 / units of the data set"
    yield _line(privacy.delta * dataset.units_declared < 1, "", "CFD-S08", text)
    if dataset.delta is not None:
        text = f"delta {privacy.delta:g}, the data set allows {dataset.delta:g}"
        yield _line(privacy.delta <= dataset.delta, "", "CFD-S08", text)


def _metrics(policy: Policy, plan: Plan, dataset: DatasetFacts) -> Iterator[Line]:
    evaluate = plan.evaluate
    if evaluate is None:
        return
    exact = evaluate.release == "exact"
    rule, allowed = (
        ("exact_metrics", policy.exact_metrics) if exact else ("metrics_may_leave", policy.metrics_may_leave)
    )
    for metric in evaluate.metrics:
        held = metric in allowed
        yield _line(held, rule, "CFD-S05", f"{metric} ({evaluate.release}) {'may' if held else 'may not'} leave")
    if evaluate.release == "public":
        text = "the held-out units are declared public" if dataset.held_out_public else "held-out units are not public"
        yield _line(dataset.held_out_public, "", "CFD-S05", text)


def _ceilings(ceilings: Ceilings, plan: Plan) -> Iterator[Line]:
    asked = plan.resources
    if ceilings.accelerators is not None:
        text = f"accelerators {asked.accelerators}, at most {ceilings.accelerators}"
        yield _line(asked.accelerators <= ceilings.accelerators, "resources/accelerators", "CFD-S06", text)
    if ceilings.memory_gib is not None:
        text = f"memory {asked.memory_gib} GiB, at most {ceilings.memory_gib} GiB"
        yield _line(asked.memory_gib <= ceilings.memory_gib, "resources/memory_gib", "CFD-S06", text)


def _machine(plan: Plan, facts: Facts) -> Iterator[Line]:
    """Yield whether the site has what the plan asks for; in place of a single accelerator its CPU does."""
    asked = plan.resources
    if facts.accelerators_count is not None and asked.accelerators > 1:
        text = f"accelerators {asked.accelerators}, this site has {facts.accelerators_count}"
        yield _line(asked.accelerators <= facts.accelerators_count, "", "CFD-S06", text)
    if facts.memory_gib is not None:
        text = f"memory {asked.memory_gib} GiB, this site has {facts.memory_gib} GiB"
        yield _line(asked.memory_gib <= facts.memory_gib, "", "CFD-S06", text)


def _rules(policy: Policy, plan: Plan, facts: Facts, dataset: DatasetFacts) -> Iterator[Line]:
    """Yield a line for each rule up to the one that decides; the last line is the decision."""
    for number, rule in enumerate(policy.rules):
        path = f"rules/{number}"
        differs = _first_difference(rule, plan, facts, dataset)
        if differs is not None:
            yield Line(path, Passed.SKIPPED, f"{rule.verb}: {differs}")
            continue
        text = rule.conditions.reason or f"{rule.verb} by rule {number}"
        yield Line(path, Passed.DECIDED, text, {"allow": "", "ask": "CFD-S10", "refuse": "CFD-S03"}[rule.verb])
        return
    if policy.default == "refuse":
        yield Line("default", Passed.DECIDED, "no rule allows it", "CFD-S03")
    elif plan.privacy.mechanism == "none":
        yield Line("default", Passed.DECIDED, "no rule allows mechanism none", "CFD-S07")
    elif facts.vouched and policy.default == "allow":
        yield Line("default", Passed.DECIDED, "no rule allows a submitter who is only vouched for", "CFD-S10")
    else:
        yield Line(
            "default", Passed.DECIDED, f"{policy.default} by default", "CFD-S10" if policy.default == "ask" else ""
        )


def _first_difference(rule: Rule, plan: Plan, facts: Facts, dataset: DatasetFacts) -> str | None:
    """Return why `rule` doesn't decide, or None where all its conditions hold."""
    wanted, privacy = rule.conditions, plan.privacy
    unit = privacy.unit or dataset.unit
    for name, listed, found in (
        ("purpose", wanted.purpose, plan.purpose.code),
        ("dataset", wanted.dataset, dataset.name),
        ("contract", wanted.contract, plan.data.contract),
        ("unit", wanted.unit, unit),
        ("mechanism", wanted.mechanism, privacy.mechanism),
    ):
        if listed is not None and found not in listed:
            return f"{name} is {found}"
    people = {facts.submitter, facts.coordinator}
    if wanted.coordinator is not None and not people & set(wanted.coordinator):
        return f"coordinator is {facts.submitter}"
    if rule.verb == "refuse":
        return None
    if privacy.mechanism == "none" and "none" not in (wanted.mechanism or ()):
        return "mechanism none must be named by the rule"
    if facts.vouched and not wanted.vouched:
        return "the submitter is only vouched for"
    limit = wanted.epsilon_per_job
    over = [name for name, value in _epsilons(plan) if limit is not None and value > limit]
    return f"{over[0]} is above {limit:g}" if over else None
