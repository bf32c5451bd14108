"""Every job of this site: its session, and what the machine's actions mean here.

`session_machine` decides, this stores the decision and then carries it out, in that order, so that a crash between
the two leaves something that `recover` can finish.
"""

import shutil
from collections.abc import Mapping
from typing import Final

from audit import events as audit_events
from federation import canonical
from federation import plan as plans
from federation.edge.logs import Log
from federation.errors import InvalidInput, OutOfOrder
from federation.messages import (
    Answer,
    BlobReference,
    Decision,
    JobAction,
    JobControl,
    JobId,
    JobStatus,
    Offer,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    Reason,
)
from federation.plan import PlanRefused
from privacy.accounting.entries import Use
from site_client import session_machine as machine
from site_client.desk import Desk
from site_client.floor import Floor
from site_client.jobs import budget_part, job_folder
from site_client.mailbox import STOPPING
from site_client.open_site import OpenSite
from site_client.outgoing import Outgoing
from site_client.records import COORDINATOR, DAEMON
from site_client.session import ENDED, Ending, Holder, Session, Stage, Work
from site_client.stored import Applied, StoredJob

RESTARTED: Final = "CFD-R53"
NO_PLAN: Final = "CFD-R67"
MAX_JOBS_KNOWN: Final = 10_000
PAUSED: Final = "paused"
_EVERY_ROUND: Final = 1 << 31
_CONTROL: Final[Mapping[JobAction, Ending]] = {
    JobAction.CANCEL: Ending.CANCELLED,
    JobAction.COMPLETE: Ending.COMPLETED,
    JobAction.FAIL: Ending.FAILED,
}


class JobBook:
    """The jobs of one daemon.

    Args:
        site: The opened home.
        log: The process log.
        desk: Decides offers.
        floor: Runs phases; its `ended` is set here.
        out: Sends messages.
    """

    def __init__(self, site: OpenSite, log: Log, *, desk: Desk, floor: Floor, out: Outgoing) -> None:
        self._site = site
        self._log = log
        self._desk = desk
        self._floor = floor
        self._out = out
        self._sessions: dict[JobId, Session] = {}
        self.begins_nothing = False
        floor.ended = self._phase_ended

    def sessions(self) -> tuple[Session, ...]:
        """Return where every job stands; from any thread."""
        return tuple(self._sessions.values())

    # --- what comes in ----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish what a crash or a stop left, and bring the jobs in line with the operator's wish."""
        for stored in self._site.store.jobs():
            self._sessions[stored.job] = stored.session
            self._step(stored.job, machine.Restarted())
        for stored in self._site.store.unclosed():
            self._carry_out_end(stored)
        paused = self._site.store.flag(PAUSED) is not None
        self._hold_all(machine.Held(Holder.OPERATOR) if paused else machine.Freed(Holder.OPERATOR), DAEMON)

    def offer(self, offer: Offer) -> None:
        """Take an offer: a new one is stored and decided, a known one answered again."""
        job, plan = JobId(offer.job), bytes.fromhex(offer.plan)
        digest = canonical.digest(plan)
        if job in self._sessions:
            self._step(job, machine.Offered(digest))
            return
        if len(plan) > plans.MAX_DOCUMENT_BYTES or len(self._sessions) >= MAX_JOBS_KNOWN:
            self._refuse_offer(job, digest, NO_PLAN)
            return
        self._site.records.offered(job, digest)
        session, actions = machine.first_offer(job, plan_digest=digest, rounds=_rounds(plan))
        self._site.store.add_job(
            StoredJob(
                job=job,
                plan=plan,
                plan_digest=digest,
                contract=bytes.fromhex(offer.contract),
                submitter=offer.submitter,
                signature=bytes.fromhex(offer.signature),
                vouched=offer.vouched,
                session=session,
                answer=None,
                terms=None,
                received_us=self._site.now_us(),
            )
        )
        self._sessions[job] = session
        self._perform(job, actions, DAEMON)

    def phase(self, request: PhaseRequest) -> None:
        """Take a request to work."""
        job, work = JobId(request.job), Work(request.round, request.attempt, request.phase)
        if job not in self._sessions:
            self._refuse_work(job, machine.unknown_work(work))
        elif self.begins_nothing:
            self._refuse_work(job, machine.RefuseWork(work, STOPPING))
        else:
            self._floor.expect(job, work, request)
            self._step(job, machine.WorkAsked(work))
            if work not in (self._sessions[job].work, self._sessions[job].waiting):
                self._floor.forget(job, work)

    def control(self, control: JobControl) -> None:
        """Follow a change of the job at the coordinator; a job that was never offered here changes nothing."""
        job = JobId(control.job)
        if job not in self._sessions:
            return
        match control.action:
            case JobAction.PAUSE:
                self._step(job, machine.Held(Holder.COORDINATOR), COORDINATOR)
            case JobAction.RESUME:
                self._step(job, machine.Freed(Holder.COORDINATOR), COORDINATOR)
            case JobAction.CANCEL | JobAction.COMPLETE | JobAction.FAIL:
                self._step(job, machine.Ended(_CONTROL[control.action]), COORDINATOR)

    def deadline(self, job: JobId, work: Work) -> None:
        """End a phase whose time is over."""
        self._step(job, machine.DeadlinePassed(work))

    def answered(self, answer: Answer) -> None:
        """Take over what the desk decided and stored for a job; the answer goes out."""
        job = JobId(answer.job)
        self._sessions[job] = self._desk.session(job)
        self._out.send(answer, keep=False)
        if self._sessions[job].stage is Stage.ACCEPTED:
            if self._site.store.flag(PAUSED) is not None:
                self._step(job, machine.Held(Holder.OPERATOR))
            else:
                self._floor.warm(job)

    def hold(self, *, paused: bool, account: str) -> tuple[JobId, ...]:
        """Pause this site, or let it go on; return the jobs that changed. It holds over restarts."""
        self._site.store.set_flag(PAUSED, account if paused else None)
        event = machine.Held(Holder.OPERATOR) if paused else machine.Freed(Holder.OPERATOR)
        return self._hold_all(event, self._site.records.person(account, role="operator"))

    def _hold_all(self, event: machine.Held | machine.Freed, actor: audit_events.Actor) -> tuple[JobId, ...]:
        before = dict(self._sessions)
        for job in before:
            self._step(job, event, actor)
        return tuple(job for job, session in before.items() if self._sessions[job] != session)

    def abort(self, job: JobId, *, account: str) -> Session:
        """End a job here for the operator, and return where it stands.

        Raises:
            InvalidInput: It is unknown here.
            OutOfOrder: It has ended already.
        """
        session = self._sessions.get(job)
        if session is None:
            raise InvalidInput("CFD-R42", f"job {job} is unknown here")
        if session.stage in ENDED or session.stage is Stage.REFUSED:
            raise OutOfOrder("CFD-R44", f"job {job} is {session.stage} here already")
        self._step(job, machine.Ended(Ending.ABORTED), self._site.records.person(account, role="operator"))
        return self._sessions[job]

    # --- the machine ------------------------------------------------------------------------------------------

    def _step(self, job: JobId, event: machine.Event, actor: audit_events.Actor = DAEMON) -> None:
        before = self._sessions[job]
        after, actions = machine.step(before, event)
        if after != before:
            self._site.store.save_session(after)
            self._sessions[job] = after
        self._perform(job, actions, actor)

    def _perform(self, job: JobId, actions: machine.Actions, actor: audit_events.Actor) -> None:
        for action in actions:
            self._do(job, action, actor)

    def _do(self, job: JobId, action: machine.Action, actor: audit_events.Actor) -> None:  # noqa: C901 (one line each)
        match action:
            case machine.Decide():
                self.answered(self._desk.decide(job))
            case machine.RepeatAnswer():
                self._repeat_answer(job)
            case machine.RefuseOffer():
                self._refuse_offer(job, self._sessions[job].plan_digest, action.code)
            case machine.Start() if self.begins_nothing:
                self._floor.forget(job, action.work)
                self._phase_ended(job, action.work, None, STOPPING, None)
            case machine.Start():
                self._floor.start(job, action.work)
            case machine.RepeatReply():
                self._repeat_reply(job, action.work)
            case machine.RefuseWork():
                self._refuse_work(job, action)
            case machine.Stop():
                self._floor.stop(job, action.work, action.code)
            case machine.AnswerAbandoned():
                self._answer_abandoned(job, action.work)
            case machine.Record():
                self._site.records.moved(action.change, actor, job, self._sessions[job].plan_digest)
            case machine.Close():
                self._close(job)
            case machine.TellAborted():
                status = JobStatus(message_id=self._out.new_id(), job=job, reason=Reason(code=action.code))
                self._out.send(status)

    # --- answers and replies ----------------------------------------------------------------------------------

    def _refuse_offer(self, job: JobId, plan_digest: str, code: str) -> None:
        self._site.records.refused(job, plan_digest, code=code, rule=None, plan=None)
        self._out.send(
            Answer(
                message_id=self._out.new_id(),
                job=job,
                plan_digest=plan_digest,
                decision=Decision.REFUSED,
                reasons=(Reason(code=code),),
            )
        )

    def _repeat_answer(self, job: JobId) -> None:
        stored = self._site.store.job(job)
        if stored is not None and stored.answer is not None:
            self._out.send(stored.answer.model_copy(update={"message_id": self._out.new_id()}))

    def _repeat_reply(self, job: JobId, work: Work) -> None:
        reply = self._site.store.reply(job, work)
        if reply is not None:
            self._out.send(reply.model_copy(update={"message_id": self._out.new_id()}))

    def _refuse_work(self, job: JobId, refusal: machine.RefuseWork) -> None:
        self._site.records.phase_refused(job, refusal.work.round, code=refusal.code)
        reply = self._failed_reply(job, refusal.work, refusal.code)
        if refusal.kept:
            self._site.store.keep_reply(job, refusal.work, reply)
        self._out.send(reply, keep=not refusal.kept)

    def _failed_reply(self, job: JobId, work: Work, code: str) -> PhaseReply:
        return PhaseReply(
            message_id=self._out.new_id(),
            job=job,
            round=work.round,
            attempt=work.attempt,
            phase=work.phase,
            outcome=Outcome.FAILED,
            reason=Reason(code=code),
            reference=self._floor.new_reference("phase.refused", job=job, code=code),
        )

    def _answer_abandoned(self, job: JobId, work: Work) -> None:
        # Leases were given up by the ledger, and the open reading closed by the log, when they were opened.
        facts = self._floor.facts(job)
        use: Use = "train" if work.phase is Phase.TRAIN else "evaluate"
        if use in facts.uses():
            self._site.records.spent(job, work.round, facts.dataset, budget_part(self._site, facts, use))
        self._site.store.save_reply(self._sessions[job], work, self._failed_reply(job, work, RESTARTED), None)

    def _phase_ended(
        self, job: JobId, work: Work, reply: PhaseReply | None, code: str, applied: Applied | None
    ) -> None:
        """Store a phase's one reply with its message, send it, go on."""
        session, actions = machine.step(self._sessions[job], machine.WorkDone(work))
        if session.stage in ENDED:
            return
        told = reply or self._failed_reply(job, work, code)
        self._site.store.save_reply(session, work, told, applied)
        self._sessions[job] = session
        self._out.send(told, keep=False)
        self._perform(job, tuple(action for action in actions if action != machine.RepeatReply(work)), DAEMON)
        if work.phase is Phase.TRAIN:
            self._forget_updates(job, work.round)

    # --- ends -------------------------------------------------------------------------------------------------

    def _close(self, job: JobId) -> None:
        self._floor.close(job)
        stored = self._site.store.job(job)
        if stored is not None:
            self._carry_out_end(stored)

    def _carry_out_end(self, stored: StoredJob) -> None:
        """Give back what was never leased, and remove what the job kept in the home; a crash does it again."""
        terms, job = stored.terms, stored.job
        if terms is not None and terms.reservation is not None:
            facts = self._floor.facts(job)
            self._site.ledger.settle(job)
            for use in facts.uses():
                self._site.records.released(job, facts.dataset, self._site.ledger.audit_part(job, use))
        self._forget_updates(job, _EVERY_ROUND)
        shutil.rmtree(job_folder(self._site, job), ignore_errors=True)
        self._site.store.mark_closed(job)

    def _forget_updates(self, job: JobId, before_round: int) -> None:
        for root, size_bytes in self._site.store.updates_before(job, before_round):
            self._site.blobs.remove(BlobReference(root=root, size_bytes=size_bytes))
            self._site.store.forget_update(job, root)


def _rounds(plan: bytes) -> int:
    try:
        return plans.decode(plan).rounds
    except PlanRefused:
        return 0
