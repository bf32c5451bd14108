"""What this site answers to an offer or a preview: decode, signature, contract, policy, schedule. Pure.

The steps, each of which may say no: the plan is decoded strictly and within its limit; its submitter's signature is
checked against the people of the charter that this site holds, or the coordinator's where it only vouches for them;
this site is among the invited; the contract is the one that the plan was written for; the policy, with its floors,
decides on a data set; the schedule gives the noise at this site's declared size. Only then does the daemon ask the
ledger, which reserves the whole job or refuses it. A reason that leaves the site has a code, a rule and a sentence
about the plan, never about the data.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from federation import plan as plans
from federation import policy as policies
from federation.charter import AcceptedCharter, Role
from federation.contract import DataContract, width
from federation.errors import ConfideError, NotAuthenticated
from federation.messages import Answer, Decision, JobId, PreviewReply, Reason
from federation.models import layout
from federation.plan import Plan, PlanRefused
from federation.policy import Policy
from privacy.accounting.schedule import EvaluationSchedule, Schedule, evaluation_schedule, schedule_for
from privacy.errors import PrivacyError

NOT_SIGNED: Final = "CFD-R64"
OTHER_CONTRACT: Final = "CFD-R65"
NO_PLAN: Final = "CFD-R67"
WAITS: Final = "CFD-R68"
NOT_INVITED: Final = "CFD-R77"
ON_CPU: Final = "CFD-S12"
HOURS: Final = "hours"
_REASON_CHARACTERS: Final = 500
_MEMORY_BYTES_PER_PARAMETER: Final = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data set that could serve a job, with what the operator declared of it.

    Attributes:
        name: The site's own name for it.
        version: Content hash, ``sha256:`` and 64 hex digits.
        contract: What its rows mean.
        contract_digest: Digest of the contract.
        units_declared: The public number of units.
        unit: The policy unit.
        held_out_public: Whether its held-out units were declared public.
        delta: The data set's own δ.
    """

    name: str
    version: str
    contract: DataContract
    contract_digest: str
    units_declared: int
    unit: Literal["record", "entity"]
    held_out_public: bool
    delta: float


@dataclass(frozen=True, slots=True)
class Known:
    """What the site knows when it judges; of its machine, None is what it hasn't looked at."""

    site: str
    charter: AcceptedCharter
    policy: Policy
    candidates: Sequence[Candidate]
    now: datetime
    memory_gib: int | None = None
    accelerators_count: int | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A plan as it arrived. `signature` is None in a preview, which binds nobody."""

    plan: bytes
    contract: bytes
    submitter: str
    vouched: bool
    signature: bytes | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the site would answer, before the ledger is asked.

    Attributes:
        decision: Accepted, refused or parked.
        reasons: Why not, as the coordinator is told.
        rule: Path of the deciding rule in the policy file; empty where none decided.
        plan: The plan, where it could be read.
        candidate: The data set that would serve.
        schedule: Of the training; None where it adds no noise.
        evaluations: Of charged evaluations; None where nothing is charged.
    """

    decision: Decision
    reasons: tuple[Reason, ...] = ()
    rule: str = ""
    plan: Plan | None = None
    candidate: Candidate | None = None
    schedule: Schedule | None = None
    evaluations: EvaluationSchedule | None = None

    @property
    def code(self) -> str:
        """Return the code of the first reason."""
        return self.reasons[0].code if self.reasons else WAITS


def judge(submission: Submission, known: Known, *, approved: bool = False) -> Judgement:
    """Return what the site answers to `submission` now.

    Args:
        submission: What arrived.
        known: What the site knows.
        approved: Whether a person of this site has approved the job: then what was left to a person is a yes, while
            floors and refusals still hold.
    """
    try:
        plan = _read(submission, known)
    except ConfideError as problem:
        code = problem.problems[0].code if isinstance(problem, PlanRefused) else problem.code
        return _no(code, "" if isinstance(problem, PlanRefused) else problem.message)
    if known.site not in plan.sites.invite:
        return replace(_no(NOT_INVITED, "this site is not among the invited"), plan=plan)
    if hashlib.sha256(submission.contract).hexdigest() != plan.data.contract_digest:
        return replace(_no(OTHER_CONTRACT, "the contract sent is not the one that the plan names"), plan=plan)
    facts = _facts(plan, submission, known)
    decided = policies.check(known.policy, plan, facts)
    candidate = next((item for item in known.candidates if item.name == decided.dataset), None)
    reasons = tuple(_reason(found.code, found.text, found.rule) for found in decided.reasons)
    judged = Judgement(decided.verdict, reasons, decided.rule, plan, candidate)
    if judged.decision is Decision.PARKED and approved and decided.rule != HOURS:
        judged = replace(judged, decision=Decision.ACCEPTED, reasons=())
    if judged.decision is Decision.REFUSED or candidate is None:
        return replace(judged, decision=Decision.REFUSED)
    return _scheduled(judged, plan, candidate)


def submitter_of(submission: Submission, known: Known) -> bytes:
    """Return the public key that must have signed the plan.

    Raises:
        NotAuthenticated: CFD-R64, nobody of that name may submit.
    """
    charter = known.charter.charter
    if submission.vouched:
        return bytes.fromhex(charter.coordinator.identity)
    person = charter.person(submission.submitter)
    if person is None or person.role is not Role.COORDINATOR:
        raise NotAuthenticated(NOT_SIGNED, "the submitter is nobody of the charter who may submit")
    return bytes.fromhex(person.key)


def _read(submission: Submission, known: Known) -> Plan:
    key = submitter_of(submission, known)
    if submission.signature is None:
        return plans.decode(submission.plan)
    try:
        return plans.check(submission.plan, public_key=key, signature=submission.signature)
    except NotAuthenticated:
        raise NotAuthenticated(NOT_SIGNED, "the plan is not signed by the key of its submitter") from None


def _facts(plan: Plan, submission: Submission, known: Known) -> policies.Facts:
    return policies.Facts(
        datasets=tuple(
            policies.DatasetFacts(
                name=item.name,
                contract=item.contract.name,
                contract_digest=item.contract_digest,
                units_declared=item.units_declared,
                unit=item.unit,
                held_out_public=item.held_out_public,
                delta=item.delta,
            )
            for item in known.candidates
        ),
        coordinator="coordinator",
        submitter=submission.submitter,
        vouched=submission.vouched,
        members_accepted_count=known.charter.accepted_among(plan.sites.invite),
        now=known.now,
        memory_gib=known.memory_gib,
        accelerators_count=known.accelerators_count,
    )


def _scheduled(judged: Judgement, plan: Plan, candidate: Candidate) -> Judgement:
    try:
        return replace(
            judged,
            schedule=training_schedule(plan, candidate.units_declared),
            evaluations=evaluations_of(plan, candidate.held_out_public),
        )
    except PrivacyError as problem:
        return replace(judged, decision=Decision.REFUSED, reasons=(_reason(problem.code, problem.text_for_others),))


def training_schedule(plan: Plan, units_declared: int) -> Schedule | None:
    """Return the schedule of the plan's training at a site with `units_declared` units; None without noise.

    Raises:
        PrivacyError: The plan makes no guarantee at this site.
    """
    privacy = plan.privacy
    if privacy.mechanism == "none":
        return None
    return schedule_for(
        epsilon=privacy.epsilon or 0.0,
        delta=privacy.delta or 0.0,
        batch=plan.training.batch,
        rounds=plan.rounds,
        local_steps=plan.training.local_steps,
        clip=privacy.clip,
        units_declared=units_declared,
        unit=privacy.unit or "record",
        mechanism=privacy.mechanism,
        clipping=privacy.clipping,
        noise_multiplier=privacy.noise_multiplier,
    )


def evaluations_of(plan: Plan, held_out_public: bool) -> EvaluationSchedule | None:
    """Return the noise of the plan's evaluations, or None where none is charged.

    Raises:
        PrivacyError: The plan makes no guarantee at this site.
    """
    evaluate = plan.evaluate
    if evaluate is None or evaluate.release != "charged":
        return None
    return evaluation_schedule(
        epsilon=evaluate.epsilon or plan.privacy.epsilon or 0.0,
        delta=plan.privacy.delta or 1e-5,
        evaluations=-(-plan.rounds // evaluate.every),
    )


def is_unbounded(plan: Plan, held_out_public: bool) -> tuple[bool, bool]:
    """Return whether training, and whether evaluation, releases something that no epsilon bounds."""
    exact = plan.evaluate is not None and plan.evaluate.release == "exact" and not held_out_public
    return plan.privacy.mechanism == "none", exact


def budget_reason(problem: PrivacyError, *, tell_budget_left: bool) -> Reason:
    """Return why the ledger said no, as the coordinator is told: the code; more only if the policy says so."""
    return _reason(problem.code, problem.message if tell_budget_left else problem.text_for_others)


def answer_to(judged: Judgement, *, message_id: str, job: JobId, plan_digest: str) -> Answer:
    """Return the answer that tells the coordinator of `judged`."""
    schedule, candidate = judged.schedule, judged.candidate
    accepted = judged.decision is Decision.ACCEPTED
    return Answer(
        message_id=message_id,
        job=job,
        plan_digest=plan_digest,
        decision=judged.decision,
        reasons=judged.reasons[:32],
        units_declared=candidate.units_declared if accepted and candidate is not None else 0,
        epsilon=schedule.epsilon_after(schedule.steps).hex() if accepted and schedule is not None else None,
        noise_multiplier=schedule.noise_multiplier.hex() if accepted and schedule is not None else None,
        sampling_rate=schedule.sampling_rate.hex() if accepted and schedule is not None else None,
    )


def preview_of(judged: Judgement, *, message_id: str, request_id: str, on_cpu: bool = False) -> PreviewReply:
    """Return what `job validate` is told; nothing is reserved, parked or promised.

    Args:
        judged: What the site would answer.
        message_id: The reply's id.
        request_id: The request's.
        on_cpu: The plan asks for an accelerator, and the site would train on its CPU.
    """
    schedule, candidate, plan = judged.schedule, judged.candidate, judged.plan
    known = candidate is not None and plan is not None and judged.decision is not Decision.REFUSED
    update_bytes = memory_bytes = 0
    if known and candidate is not None and plan is not None:
        manifest = layout.manifest(plan.model, width(candidate.contract), candidate.contract.label.classes_count)
        update_bytes = manifest.floats.size_bytes
        memory_bytes = _MEMORY_BYTES_PER_PARAMETER * manifest.elements
    return PreviewReply(
        message_id=message_id,
        request_id=request_id,
        decision=judged.decision,
        reasons=(
            *judged.reasons[:31],
            *([_reason(ON_CPU, "no accelerator here, it trains on the CPU")] if on_cpu else []),
        ),
        units_declared=candidate.units_declared if known and candidate is not None else 0,
        epsilon=schedule.epsilon_after(schedule.steps).hex() if known and schedule is not None else None,
        noise_multiplier=schedule.noise_multiplier.hex() if known and schedule is not None else None,
        steps=plan.steps if known and plan is not None else 0,
        update_bytes=update_bytes,
        memory_bytes=memory_bytes,
    )


def refused(judged: Judgement, reason: Reason) -> Judgement:
    """Return `judged` as a refusal for `reason`."""
    return replace(judged, decision=Decision.REFUSED, reasons=(reason,))


def _no(code: str, text: str) -> Judgement:
    return Judgement(Decision.REFUSED, (_reason(code, text),))


def _reason(code: str, text: str, rule: str | None = None) -> Reason:
    token = rule if rule and rule.replace("/", "").replace("_", "").isalnum() else None
    return Reason(code=code, rule=token, text=text[:_REASON_CHARACTERS])
