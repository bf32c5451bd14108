"""Offers and approvals at this site: what `offers` decided is carried out here, each step recorded before the next.

Accepting: the ledger's reservation is durable, then `budget.reserved`, then `job.accepted`, then the answer is stored
with its message. A crash between two of these decides the offer again, which reserves nothing twice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from audit import events
from federation import canonical
from federation.audit_parts import hash_text
from federation.edge.logs import Log
from federation.errors import InvalidInput
from federation.messages import Answer, Decision, JobId, PreviewReply, PreviewRequest, Reason
from federation.policy import within_hours
from privacy.accounting.convert import nano
from privacy.accounting.entries import Use
from privacy.errors import LedgerMisused, PrivacyError
from site_client import offers, session_machine
from site_client.jobs import approval_part
from site_client.machine import Machine
from site_client.offers import Judgement, Submission
from site_client.open_site import OpenSite
from site_client.records import COORDINATOR, DAEMON
from site_client.session import Session, Stage
from site_client.session_machine import Decided
from site_client.stored import Approval, StoredJob, Terms

WAITING: Final = "waiting"
DENIED: Final = "CFD-R69"
EXPIRED: Final = "CFD-R70"
NO_APPROVAL: Final = "CFD-R71"
_DAY_US: Final = 86_400_000_000


IdSource = Callable[[], str]


class Desk:
    """Decides offers of one opened site.

    Args:
        site: The opened home.
        log: The process log.
        new_message_id: Gives ids for messages.
        new_approval_id: Gives ids for approvals.
        machine: What this site has for trainers.
    """

    def __init__(
        self, site: OpenSite, log: Log, *, new_message_id: IdSource, new_approval_id: IdSource, machine: Machine
    ) -> None:
        self._site = site
        self._machine = machine
        self._log = log
        self._new_message_id = new_message_id
        self._new_approval_id = new_approval_id

    # --- offers -----------------------------------------------------------------------------------------------

    def preview(self, request: PreviewRequest) -> PreviewReply:
        """Return what the site would answer now; nothing is reserved or parked, and what is told is recorded."""
        submission = Submission(
            plan=bytes.fromhex(request.plan),
            contract=bytes.fromhex(request.contract),
            submitter=request.submitter,
            vouched=False,
            signature=None,
        )
        judged = self._with_ledger(self._judge(submission))
        self._validated(COORDINATOR, canonical.digest(submission.plan), judged)
        asks = judged.plan is not None and judged.plan.resources.accelerators > 0
        return offers.preview_of(
            judged,
            message_id=self._new_message_id(),
            request_id=request.message_id,
            on_cpu=asks and self._machine.accelerators_count() == 0,
        )

    def _judge(self, submission: Submission, *, approved: bool = False) -> Judgement:
        """Return what the site answers; it looks for accelerators only where the plan asks for them."""
        known = replace(self._site.known(), memory_gib=self._machine.memory_gib())
        judged = offers.judge(submission, known, approved=approved)
        if judged.plan is None or judged.plan.resources.accelerators < 2:
            return judged
        known = replace(known, accelerators_count=self._machine.accelerators_count())
        return offers.judge(submission, known, approved=approved)

    def _with_ledger(self, judged: Judgement) -> Judgement:
        if judged.decision is Decision.REFUSED or judged.candidate is None or judged.schedule is None:
            return judged
        problem = self._site.ledger.would_refuse(judged.candidate.name, judged.schedule, judged.evaluations)
        if problem is None:
            return judged
        tell = self._site.policy.policy.tell_budget_left
        return offers.refused(judged, offers.budget_reason(problem, tell_budget_left=tell))

    def decide(self, job: JobId, *, approval: Approval | None = None) -> Answer:
        """Decide a job that is offered or parked, and return the answer, which is stored to be sent."""
        stored = self._stored(job)
        submission = Submission(
            plan=stored.plan,
            contract=stored.contract,
            submitter=stored.submitter,
            vouched=stored.vouched,
            signature=stored.signature,
        )
        judged = self._judge(submission, approved=approval is not None)
        self._validated(DAEMON, stored.plan_digest, judged)
        terms = None
        if judged.decision is Decision.ACCEPTED:
            judged, terms = self._accept(stored, judged, approval)
        if judged.decision is Decision.PARKED:
            self._park(stored, judged)
        if judged.decision is Decision.REFUSED:
            self._site.records.refused(
                job, stored.plan_digest, code=judged.code, rule=judged.rule or None, plan=judged.plan
            )
        return self._answer(stored, judged, terms)

    def _validated(self, actor: events.Actor, plan_digest: str, judged: Judgement) -> None:
        findings = list(dict.fromkeys(reason.code for reason in judged.reasons))
        refused = judged.decision is Decision.REFUSED
        self._site.records.validated(actor, plan_digest, refused=refused, findings=findings)

    def _answer(self, stored: StoredJob, judged: Judgement, terms: Terms | None) -> Answer:
        answer = offers.answer_to(
            judged, message_id=self._new_message_id(), job=stored.job, plan_digest=stored.plan_digest
        )
        session = stored.session
        if not (session.stage is Stage.PARKED and judged.decision is Decision.PARKED):
            session, _ = session_machine.step(session, Decided(judged.decision))
        self._site.store.save_answer(session, answer, terms)
        self._log.info("job.answered", job=stored.job, phase=judged.decision.value, code=_code(judged))
        return answer

    def _accept(
        self, stored: StoredJob, judged: Judgement, approval: Approval | None
    ) -> tuple[Judgement, Terms | None]:
        plan, candidate = judged.plan, judged.candidate
        if plan is None or candidate is None:
            raise InvalidInput("CFD-R67", "an accepted offer has a plan and a data set")
        dataset = events.Dataset(id=candidate.name, version=hash_text(candidate.version))
        try:
            reservation = self._reserve(stored, judged, dataset)
        except PrivacyError as problem:
            self._exhausted(stored, judged, dataset, problem)
            tell = self._site.policy.policy.tell_budget_left
            return offers.refused(judged, offers.budget_reason(problem, tell_budget_left=tell)), None
        rule = judged.rule if approval is None else None
        policy = self._site.policy.digest
        self._site.records.accepted(
            stored.job,
            plan,
            stored.plan_digest,
            dataset=dataset,
            policy=policy,
            rule=rule,
            approval=approval_part(self._site, None if approval is None else approval.approval),
        )
        schedule = judged.schedule
        terms = Terms(
            dataset=candidate.name,
            version=candidate.version,
            policy=policy,
            rule=rule,
            approval=None if approval is None else approval.approval,
            reservation=reservation,
            epsilon=None if schedule is None else schedule.epsilon.hex(),
            noise_multiplier=None if schedule is None else schedule.noise_multiplier.hex(),
            sampling_rate=None if schedule is None else schedule.sampling_rate.hex(),
            units_declared=candidate.units_declared,
            held_out_public=candidate.held_out_public,
        )
        return judged, terms

    def _reserve(self, stored: StoredJob, judged: Judgement, dataset: events.Dataset) -> str | None:
        plan, candidate, ledger = judged.plan, judged.candidate, self._site.ledger
        if plan is None or candidate is None:
            return None
        trains_unbounded, evaluates_unbounded = offers.is_unbounded(plan, candidate.held_out_public)
        unit = plan.privacy.unit or candidate.unit
        if trains_unbounded:
            ledger.mark_unbounded(candidate.name, reason="mechanism none", job=stored.job)
        if evaluates_unbounded:
            ledger.mark_unbounded(candidate.name, reason="exact evaluation", job=stored.job, use="evaluate")
        if trains_unbounded or evaluates_unbounded:
            self._site.records.unbounded(dataset, self._site.unbounded_part(candidate.name, unit))
        uses: tuple[Use, ...]
        if judged.schedule is not None:
            ledger.reserve_job(stored.job, stored.plan_digest, candidate.name, judged.schedule, judged.evaluations)
            uses = ("train",) if judged.evaluations is None else ("train", "evaluate")
        elif judged.evaluations is not None:
            ledger.reserve_evaluations(stored.job, stored.plan_digest, candidate.name, judged.evaluations)
            uses = ("evaluate",)
        else:
            return None
        for use in uses:
            self._site.records.reserved(stored.job, dataset, ledger.audit_part(stored.job, use, whole=True))
        return stored.job

    def _exhausted(self, stored: StoredJob, judged: Judgement, dataset: events.Dataset, problem: PrivacyError) -> None:
        plan, schedule = judged.plan, judged.schedule
        if plan is None or schedule is None:
            return
        try:
            part = dict(self._site.unbounded_part(dataset.id, schedule.unit.value))
        except LedgerMisused:
            return  # the ledger doesn't know the data set, so there are no figures to record; job.refused says it
        part |= {"eps_nano": nano(schedule.epsilon), "delta_e15": round(schedule.delta * 1e15)}
        self._site.records.exhausted(stored.job, dataset, part, code=problem.code, cause=problem.cause)

    # --- approvals --------------------------------------------------------------------------------------------

    def _park(self, stored: StoredJob, judged: Judgement) -> None:
        if judged.rule == offers.HOURS:
            self._site.records.parked(
                stored.job, stored.plan_digest, rule=judged.rule, code=judged.code, approval=offers.HOURS, expires_us=0
            )
            return
        if any(waits.job == stored.job for waits in self._site.store.approvals(state=WAITING)):
            return
        now_us = self._site.now_us()
        approval = Approval(
            approval=self._new_approval_id(),
            job=stored.job,
            plan_digest=stored.plan_digest,
            rule=judged.rule,
            reasons=tuple(f"{reason.code} {reason.text}" for reason in judged.reasons),
            state=WAITING,
            filed_us=now_us,
            expires_us=now_us + self._site.configuration.approvals.expire_days * _DAY_US,
        )
        self._site.records.parked(
            stored.job,
            stored.plan_digest,
            rule=judged.rule,
            code=judged.code,
            approval=approval.approval,
            expires_us=approval.expires_us,
        )
        self._site.store.file_approval(approval)

    def decided(self, approval_id: str, *, account: str, reason: str, yes: bool) -> tuple[JobId, Answer]:
        """Carry out a person's yes or no, and return the job with the answer that is sent for it.

        Raises:
            InvalidInput: No such approval waits, or there is no reason.
        """
        waiting = self._site.store.approval(approval_id)
        if waiting is None or waiting.state != WAITING or self._stored(waiting.job).session.stage is not Stage.PARKED:
            raise InvalidInput(NO_APPROVAL, f"no approval {approval_id[:40]} waits here")
        if not reason.strip():
            raise InvalidInput(NO_APPROVAL, "a decision needs its reason", hint="add --reason TEXT")
        person = self._site.records.person(account, role="operator")
        self._site.records.decided(
            person,
            waiting.job,
            waiting.plan_digest,
            policy=self._site.policy.digest,
            approval=approval_id,
            reason=reason,
            yes=yes,
        )
        state = "approved" if yes else "denied"
        if not self._site.store.decide_approval(
            approval_id, state=state, by=person.id, at_us=self._site.now_us(), reason=reason[:1024]
        ):
            raise InvalidInput(NO_APPROVAL, f"no approval {approval_id[:40]} waits here")
        if yes:
            return waiting.job, self.decide(waiting.job, approval=replace(waiting, decided_by=person.id))
        return waiting.job, self._refuse(waiting.job, DENIED)

    def _refuse(self, job: JobId, code: str) -> Answer:
        stored = self._stored(job)
        self._site.records.refused(job, stored.plan_digest, code=code, rule=None, plan=None)
        return self._answer(stored, Judgement(Decision.REFUSED, (Reason(code=code),)), None)

    def expire(self) -> tuple[Answer, ...]:
        """Refuse what nobody decided in time, and return the answers."""
        now_us = self._site.now_us()
        late = [waiting for waiting in self._site.store.approvals(state=WAITING) if waiting.expires_us <= now_us]
        return tuple(
            self._refuse(waiting.job, EXPIRED)
            for waiting in late
            if self._site.store.decide_approval(waiting.approval, state="expired", by="nobody", at_us=now_us, reason="")
        )

    def reconsider(self) -> tuple[Answer, ...]:
        """Decide again what only waited for the site's hours, and return the answers."""
        if not within_hours(self._site.policy.policy, self._site.clock.now()):
            return ()
        return tuple(
            self.decide(stored.job)
            for stored in self._site.store.open_jobs()
            if stored.session.stage is Stage.PARKED
            and stored.answer is not None
            and any(reason.rule == offers.HOURS for reason in stored.answer.reasons)
        )

    def _stored(self, job: JobId) -> StoredJob:
        stored = self._site.store.job(job)
        if stored is None:
            raise InvalidInput("CFD-R42", f"job {job} is unknown here")
        return stored

    def session(self, job: JobId) -> Session:
        """Return where a job stands."""
        return self._stored(job).session


def _code(judged: Judgement) -> str | None:
    return judged.reasons[0].code if judged.reasons else None
