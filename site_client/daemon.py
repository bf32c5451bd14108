"""The site's daemon: one loop over one queue. Everything that happens is an event; nothing polls.

The link, the trainers, background transfers, the operator's socket, signals and timers put events into the queue; the
loop takes them one at a time, lets `session_machine` decide, stores the result, and carries the actions out. So no two
decisions of this site race, and each has the last one's result on disk. A message of the coordinator is acknowledged
when the loop has dealt with it.

Stopping: after the first signal no phase begins, those under way have `stopping.grace_s`, then they end at their next
step; after the second everything ends at once. Either way what was charged is recorded, and the exit status is 0.
"""

import os
import queue
import secrets
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from audit import events as audit_events
from audit.errors import AuditError
from federation import canonical, enrolment_messages
from federation import plan as plans
from federation.certificates import certificate_from_der, certificate_request, certificate_to_pem, renewal_due
from federation.edge.files import make_folder, write_whole
from federation.edge.homes import load_tls_key
from federation.edge.logs import Log
from federation.errors import ConfideError, InvalidInput, OutOfOrder, PeerMisbehaved
from federation.link.client import LinkClient
from federation.messages import (
    Answer,
    BlobReference,
    Body,
    CharterNotice,
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
    PreviewRequest,
    Reason,
    decode_body,
)
from federation.plan import PlanRefused
from privacy.errors import PrivacyError
from site_client import session_machine as machine
from site_client.control import Asked, ControlSocket
from site_client.desk import Desk
from site_client.events import (
    Acknowledged,
    Arrived,
    Connected,
    Deadline,
    Event,
    GraceOver,
    KillUnless,
    Lost,
    MessageRefused,
    Renewed,
    Signalled,
    StartOverdue,
    Tick,
)
from site_client.jobs import JobFacts, budget_part, facts_of, job_folder
from site_client.open_site import OpenSite, account_name
from site_client.phases import Background, PhaseRun
from site_client.records import COORDINATOR, DAEMON
from site_client.session_machine import Ending, Holder, Session, Stage, Work
from site_client.store import Applied, StoredJob
from site_client.timers import Timers
from site_client.trainer_messages import Failed, Ready
from site_client.trainer_process import TrainerGone, TrainerSaid
from site_client.trainers import Trainers

TICK_S: Final = 5.0
KILL_AFTER_S: Final = 5.0
STOPPING: Final = "CFD-R56"
RESTARTED: Final = "CFD-R53"
NO_PLAN: Final = "CFD-R67"
MAX_JOBS_KNOWN: Final = 10_000
_CONTROL: Final[Mapping[JobAction, Ending]] = {
    JobAction.CANCEL: Ending.CANCELLED,
    JobAction.COMPLETE: Ending.COMPLETED,
    JobAction.FAIL: Ending.FAILED,
}


class Daemon:
    """The daemon of one opened site.

    Args:
        site: The opened home; the caller closes it.
        log: The process log.
        variables: This process's environment, for trainers.
        notify: Tells the service manager (``READY=1``, ``STOPPING=1``).
    """

    def __init__(
        self, site: OpenSite, log: Log, *, variables: Mapping[str, str], notify: Callable[[str], None]
    ) -> None:
        self._site = site
        self._log = log
        self._notify = notify
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._timers = Timers(site.clock.monotonic_s)
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="background")
        self._job_locks: dict[JobId, threading.Lock] = {}
        self._sessions: dict[JobId, Session] = {}
        self._facts: dict[JobId, JobFacts] = {}
        self._requests: dict[tuple[JobId, Work], PhaseRequest] = {}
        self._runs: dict[JobId, PhaseRun] = {}
        self._pending: deque[tuple[JobId, Work]] = deque()
        self._acknowledged: set[str] = set()
        self._trainers = Trainers(site, variables=variables, post=self._queue.put)
        self._link: LinkClient | None = None
        self._desk: Desk | None = None
        self._stopping: Literal["", "drain", "signal"] = ""
        self._ended = False
        self._renewing = False

    # --- the link's side ----------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Put an event into the queue; from any thread."""
        self._queue.put(event)

    def take_message(self, body: Body) -> None:
        """Have the loop deal with a message of the coordinator, and return when it has; from the link's thread.

        Raises:
            ConfideError: The loop's final no.
        """
        arrived = Arrived(body)
        self._queue.put(arrived)
        while not arrived.done.wait(1.0):
            if self._ended:
                raise OutOfOrder(STOPPING, "the site is stopping")
        if arrived.problem is not None:
            raise arrived.problem

    @property
    def link(self) -> LinkClient:
        """Return the link."""
        if self._link is None:
            raise OutOfOrder("CFD-G01", "the daemon has no link yet")
        return self._link

    @property
    def desk(self) -> Desk:
        """Return who decides offers."""
        if self._desk is None:
            raise OutOfOrder("CFD-G01", "the daemon has no link yet")
        return self._desk

    def busy_jobs(self) -> tuple[JobId, ...]:
        """Return the jobs that this site works on, for the hello."""
        return tuple(job for job, session in list(self._sessions.items()) if session.stage not in machine.ENDED)[:256]

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self, link: LinkClient, control: ControlSocket) -> None:
        """Recover what a crash left, then work until a signal ends it."""
        self._link = link
        self._desk = Desk(
            self._site,
            self._log,
            new_message_id=link.message_ids.next,
            new_approval_id=lambda: secrets.token_hex(6),
        )
        try:
            self._recover()
            self._timers.after(TICK_S, Tick())
            link.start()
            self._notify("READY=1")
            self._log.info("site.ready", site=self._site.site)
            while not self._ended:
                self._once()
        finally:
            self._ended = True
            self._notify("STOPPING=1")
            control.close()
            for run in list(self._runs.values()):
                run.cut()
            self._trainers.close_all()
            link.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._flush_acknowledged()

    def _once(self) -> None:
        for event in self._timers.due():
            self._handle(event)
        wait_s = self._timers.next_s()
        try:
            event = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return
        self._handle(event)

    def _handle(self, event: Event) -> None:  # noqa: C901 (one line for each kind of event)
        match event:
            case Arrived():
                self._on_arrived(event)
            case TrainerSaid():
                self._on_trainer(event)
            case TrainerGone():
                self._on_trainer_gone(event)
            case Background():
                run = self._runs.get(event.job)
                if run is not None and run.work == event.work:
                    run.on_background(event)
            case Acknowledged():
                self._acknowledged.add(event.message_id)
            case MessageRefused():
                self._log.warning("message.refused", code=event.problem.code)
                self._acknowledged.add(event.message_id)
            case Connected():
                self._on_connected()
            case Lost():
                self._log.warning("link.lost", code=event.problem.code)
            case Deadline():
                self._step(event.job, machine.DeadlinePassed(event.work))
            case KillUnless():
                self._kill_unless(event)
            case StartOverdue():
                trainer = self._trainers.of(event.job, event.generation)
                if trainer is not None and trainer.ready is None:
                    trainer.process.kill()
            case Tick():
                self._tick()
            case GraceOver():
                self._stop_runs()
            case Signalled():
                self._on_signal(event.number)
            case Renewed():
                self._on_renewed(event)
            case Asked():
                self._on_asked(event)

    # --- recovery -------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        lost = self._site.ledger.lose_open_leases()
        if lost:
            self._log.warning("leases.lost", reason="restart")
        self._site.reload_policy()
        for stored in self._site.store.jobs():
            self._sessions[stored.job] = stored.session
            self._step(stored.job, machine.Restarted())
        for stored in self._site.store.unclosed():
            self._close_job(stored)
        self._apply_hold()

    def _apply_hold(self) -> None:
        """Bring the jobs in line with the operator's wish, which may have been given while no daemon ran."""
        paused = self._site.store.flag("paused") is not None
        event = machine.Held(Holder.OPERATOR) if paused else machine.Freed(Holder.OPERATOR)
        for job in list(self._sessions):
            self._step(job, event)

    # --- messages of the coordinator ------------------------------------------------------------------------------

    def _on_arrived(self, arrived: Arrived) -> None:
        try:
            self._take(arrived.body)
        except (ConfideError, AuditError, PrivacyError) as problem:
            code = problem.code
            self._log.warning("message.not_taken", code=code)
            arrived.problem = problem if isinstance(problem, ConfideError) else OutOfOrder("CFD-R63", "not recorded")
        except Exception as problem:  # noqa: BLE001 (one bad message must not end the site; the reference says where)
            reference = self._log.internal("message.broke", problem)
            arrived.problem = OutOfOrder("CFD-G01", "the site met an error", reference=reference)
        finally:
            arrived.done.set()

    def _take(self, body: Body) -> None:
        match body:
            case Offer():
                self._on_offer(body)
            case PreviewRequest():
                self._send(self.desk.preview(body, submitter="preview"), keep=False)
            case PhaseRequest():
                self._on_phase(body)
            case JobControl():
                self._on_control(body)
            case CharterNotice():
                self._site.receive_charter(bytes.fromhex(body.charter), bytes.fromhex(body.signature))
                self._facts.clear()
            case _:
                raise PeerMisbehaved("CFD-L09", "a message that a coordinator doesn't send")

    def _on_offer(self, offer: Offer) -> None:
        job = JobId(offer.job)
        plan = bytes.fromhex(offer.plan)
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
        self._perform(job, actions)

    def _refuse_offer(self, job: JobId, plan_digest: str, code: str) -> None:
        self._site.records.refused(job, plan_digest, code=code, rule=None, plan=None)
        self._send(
            Answer(
                message_id=self.link.message_ids.next(),
                job=job,
                plan_digest=plan_digest,
                decision=Decision.REFUSED,
                reasons=(Reason(code=code),),
            )
        )

    def _on_phase(self, request: PhaseRequest) -> None:
        job, work = JobId(request.job), Work(request.round, request.attempt, request.phase)
        if job not in self._sessions:
            self._perform_unknown(job, work)
            return
        if self._stopping:
            self._refuse_work(job, work, STOPPING, kept=False)
            return
        self._requests[job, work] = request
        self._step(job, machine.WorkAsked(work))
        if self._sessions[job].work != work and self._sessions[job].waiting != work:
            self._requests.pop((job, work), None)

    def _on_control(self, control: JobControl) -> None:
        job = JobId(control.job)
        if job not in self._sessions:
            return
        match control.action:
            case JobAction.PAUSE:
                self._step(job, machine.Held(Holder.COORDINATOR), actor=COORDINATOR)
            case JobAction.RESUME:
                self._step(job, machine.Freed(Holder.COORDINATOR), actor=COORDINATOR)
            case JobAction.CANCEL | JobAction.COMPLETE | JobAction.FAIL:
                self._step(job, machine.Ended(_CONTROL[control.action]), actor=COORDINATOR)

    # --- the machine ------------------------------------------------------------------------------------------------

    def _step(self, job: JobId, event: machine.Event, *, actor: audit_events.Actor = DAEMON) -> None:
        before = self._sessions[job]
        after, actions = machine.step(before, event)
        if after != before:
            self._site.store.save_session(after)
            self._sessions[job] = after
        self._perform(job, actions, actor=actor)

    def _perform(  # noqa: C901 (one line for each kind of action)
        self, job: JobId, actions: machine.Actions, *, actor: audit_events.Actor = DAEMON
    ) -> None:
        for action in actions:
            match action:
                case machine.Decide():
                    self._answered(job, self.desk.decide(job))
                case machine.RepeatAnswer():
                    self._repeat_answer(job)
                case machine.RefuseOffer():
                    self._refuse_offer(job, self._sessions[job].plan_digest, action.code)
                case machine.Start():
                    self._start(job, action.work)
                case machine.RepeatReply():
                    self._repeat_reply(job, action.work)
                case machine.RefuseWork():
                    self._refuse_work(job, action.work, action.code, kept=action.kept)
                case machine.Stop():
                    self._stop_work(job, action.work, action.code)
                case machine.AnswerAbandoned():
                    self._answer_abandoned(job, action.work)
                case machine.Record():
                    self._site.records.moved(action.change, actor, job, self._sessions[job].plan_digest)
                case machine.Close():
                    self._close(job)
                case machine.TellAborted():
                    message_id = self.link.message_ids.next()
                    self._send(JobStatus(message_id=message_id, job=job, reason=Reason(code=action.code)))

    def _perform_unknown(self, job: JobId, work: Work) -> None:
        for action in machine.unknown_work(work):
            if isinstance(action, machine.RefuseWork):
                self._refuse_work(job, action.work, action.code, kept=False)

    def _answered(self, job: JobId, answer: Answer) -> None:
        """Take over what the desk decided and stored; the answer goes out."""
        self._sessions[job] = self.desk.session(job)
        self._send(answer, keep=False)
        if self._sessions[job].stage is Stage.ACCEPTED:
            if self._site.store.flag("paused") is not None:
                self._step(job, machine.Held(Holder.OPERATOR))
            elif len(self._trainers) < self._site.configuration.training.jobs_at_once:
                self._warm(job)

    def _repeat_answer(self, job: JobId) -> None:
        stored = self._site.store.job(job)
        if stored is not None and stored.answer is not None:
            self._send(stored.answer.model_copy(update={"message_id": self.link.message_ids.next()}))

    def _repeat_reply(self, job: JobId, work: Work) -> None:
        reply = self._site.store.reply(job, work)
        if reply is not None:
            self._send(reply.model_copy(update={"message_id": self.link.message_ids.next()}))

    def _refuse_work(self, job: JobId, work: Work, code: str, *, kept: bool) -> None:
        self._site.records.phase_refused(job, work.round, code=code)
        reply = self._failed_reply(job, work, code)
        if kept:
            self._site.store.keep_reply(job, work, reply)
            self._send(reply, keep=False)
        else:
            self._send(reply)

    def _failed_reply(self, job: JobId, work: Work, code: str) -> PhaseReply:
        return PhaseReply(
            message_id=self.link.message_ids.next(),
            job=job,
            round=work.round,
            attempt=work.attempt,
            phase=work.phase,
            outcome=Outcome.FAILED,
            reason=Reason(code=code),
            reference=self.new_reference("phase.refused", job=job, code=code),
        )

    def _answer_abandoned(self, job: JobId, work: Work) -> None:
        stored = self._site.store.job(job)
        if stored is None:
            return
        facts = self._facts_of(job)
        charged = facts.trains_charged if work.phase is Phase.TRAIN else facts.evaluates_charged
        if charged:
            use: Literal["train", "evaluate"] = "train" if work.phase is Phase.TRAIN else "evaluate"
            self._site.records.spent(job, work.round, facts.dataset, budget_part(self._site, facts, use))
        # Leases are given up by the ledger, the open reading is closed by the log; both when they were opened.
        self._site.store.save_reply(self._sessions[job], work, self._failed_reply(job, work, RESTARTED), None)

    # --- phases -----------------------------------------------------------------------------------------------------

    def _facts_of(self, job: JobId) -> JobFacts:
        if job not in self._facts:
            stored = self._site.store.job(job)
            if stored is None:
                raise InvalidInput("CFD-R42", f"job {job} is unknown here")
            self._facts[job] = facts_of(self._site, stored)
        return self._facts[job]

    def _warm(self, job: JobId) -> None:
        """Start the job's trainer before the first round asks for it: loading and checks cost the round nothing."""
        trainer = self._trainers.for_job(self._facts_of(job))
        start_s = self._site.configuration.training.start_timeout_s
        self._timers.after(start_s, StartOverdue(job, trainer.process.generation))

    def _start(self, job: JobId, work: Work) -> None:
        request = self._requests[job, work]
        self._timers.after(float(request.deadline_s), Deadline(job, work))
        if len(self._runs) >= self._site.configuration.training.jobs_at_once:
            self._pending.append((job, work))
            return
        self._begin(job, work)

    def _begin(self, job: JobId, work: Work) -> None:
        request = self._requests.pop((job, work))
        facts = self._facts_of(job)
        make_folder(facts.lineage.folder)
        known = len(self._trainers)
        trainer = self._trainers.for_job(facts)
        if len(self._trainers) > known:
            self._warm(job)
        run = PhaseRun(self._site, facts, work, request, trainer.process, self)
        self._runs[job] = run
        self._log.info("phase.begun", job=job, round=work.round, phase=work.phase.value)
        run.begin(trainer_ready=trainer.ready is not None)

    def _begin_pending(self) -> None:
        while self._pending and len(self._runs) < self._site.configuration.training.jobs_at_once:
            job, work = self._pending.popleft()
            if self._sessions[job].work == work and (job, work) in self._requests:
                self._begin(job, work)

    def _stop_work(self, job: JobId, work: Work, code: str) -> None:
        run = self._runs.get(job)
        if run is None or run.work != work:
            if (job, work) in self._pending:
                self._pending.remove((job, work))
                self._requests.pop((job, work), None)
                if self._sessions[job].work == work:
                    self._conclude(job, work, self._failed_reply(job, work, code), None)
            return
        run.stop(code)
        if self._runs.get(job) is run:
            self._timers.after(KILL_AFTER_S, KillUnless(job, work, run.trainer.generation))

    def _kill_unless(self, event: KillUnless) -> None:
        run = self._runs.get(event.job)
        if run is not None and run.work == event.work and run.trainer.generation == event.generation:
            run.trainer.kill()

    def _on_trainer(self, said: TrainerSaid) -> None:
        trainer = self._trainers.of(said.job, said.generation)
        if trainer is None:
            return
        if isinstance(said.line, Ready):
            trainer.ready = said.line
            session = self._sessions[said.job]
            self._site.records.preflight(
                said.job, session.plan_digest, engine=said.line.engine, versions=said.line.versions
            )
        run = self._runs.get(said.job)
        if run is not None and run.trainer is trainer.process:
            run.on_line(said.line)
        elif isinstance(said.line, Failed):
            self._log.warning("trainer.failed", job=said.job, code=said.line.code, ref=said.line.reference)

    def _on_trainer_gone(self, gone: TrainerGone) -> None:
        trainer = self._trainers.of(gone.job, gone.generation)
        if trainer is None:
            return
        self._trainers.gone(gone.job)
        self._log.warning("trainer.gone", job=gone.job, reason=_how(gone))
        run = self._runs.get(gone.job)
        if run is not None and run.trainer is trainer.process:
            run.on_gone(gone.status)

    # --- Tools of a phase -------------------------------------------------------------------------------------------

    def background(self, job: JobId, work: Work, step: str, task: Callable[[], Any]) -> None:
        """Run `task` in a thread; its end comes back as `Background`. Tasks of one job never run side by side."""
        lock = self._job_locks.setdefault(job, threading.Lock())

        def run() -> None:
            with lock:
                try:
                    done = Background(job, work, step, task())
                except ConfideError as problem:
                    done = Background(job, work, step, None, problem)
                except OSError as problem:
                    done = Background(job, work, step, None, OutOfOrder("CFD-R63", f"disk: {problem.strerror}"))
                except Exception as problem:  # noqa: BLE001 (a phase always ends in a reply)
                    reference = self._log.internal("background.broke", problem, job=job)
                    done = Background(
                        job, work, step, None, OutOfOrder("CFD-G01", "the site met an error", reference=reference)
                    )
            self._queue.put(done)

        self._pool.submit(run)

    def fetch(self, reference: BlobReference, deadline_s: float) -> Path:
        """Return a blob's file."""
        return self.link.fetch(reference, deadline_s=deadline_s)

    def deliver(self, reference: BlobReference, deadline_s: float) -> None:
        """Bring a blob to the coordinator."""
        self.link.deliver(reference, deadline_s=deadline_s)

    def new_message_id(self) -> str:
        """Return an id for a message of this site."""
        return self.link.message_ids.next()

    def new_reference(self, event: str, *, job: str, code: str) -> str:
        """Log an event and return the reference under which it stands there."""
        reference = secrets.token_hex(6)
        self._log.warning(event, job=job, code=code, ref=reference)
        return reference

    def finished(self, run: PhaseRun, reply: PhaseReply, applied: Applied | None) -> None:
        """Take a phase's one reply: store it with its message, send it, go on."""
        job = run.facts.job
        if self._runs.get(job) is run:
            del self._runs[job]
        self._conclude(job, run.work, reply, applied)
        self._log.info(
            "phase.ended",
            job=job,
            round=run.work.round,
            phase=run.work.phase.value,
            code=None if reply.reason is None else reply.reason.code,
        )
        self._forget_updates(job, run.work)
        self._begin_pending()
        if self._stopping and not self._runs:
            self._ended = True

    def _conclude(self, job: JobId, work: Work, reply: PhaseReply, applied: Applied | None) -> None:
        session, actions = machine.step(self._sessions[job], machine.WorkDone(work))
        if session.stage in machine.ENDED:
            return
        self._site.store.save_reply(session, work, reply, applied)
        self._sessions[job] = session
        self._send(reply, keep=False)
        self._perform(job, tuple(action for action in actions if action != machine.RepeatReply(work)))

    def _forget_updates(self, job: JobId, work: Work) -> None:
        if work.phase is not Phase.TRAIN:
            return
        for root, size_bytes in self._site.store.updates_before(job, work.round):
            self._site.blobs.remove(BlobReference(root=root, size_bytes=size_bytes))
            self._site.store.forget_update(job, root)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _close(self, job: JobId) -> None:
        run = self._runs.pop(job, None)
        self._trainers.close(job)
        if run is not None:
            run.cut()
        stored = self._site.store.job(job)
        if stored is not None:
            self._close_job(stored)
        self._begin_pending()
        if self._stopping and not self._runs:
            self._ended = True

    def _close_job(self, stored: StoredJob) -> None:
        """Give back what was never leased, and remove what the job kept in the home; a crash does it again."""
        terms, job = stored.terms, stored.job
        if terms is not None and terms.reservation is not None:
            facts = self._facts_of(job)
            self._site.ledger.settle(job)
            for use in facts.uses():
                self._site.records.released(job, facts.dataset, self._site.ledger.audit_part(job, use))
        for root, size_bytes in self._site.store.updates_before(job, 1 << 31):
            self._site.blobs.remove(BlobReference(root=root, size_bytes=size_bytes))
            self._site.store.forget_update(job, root)
        shutil.rmtree(job_folder(self._site, job), ignore_errors=True)
        self._facts.pop(job, None)
        self._site.store.mark_closed(job)

    # --- messages out -----------------------------------------------------------------------------------------------

    def _send(self, message: Body, *, keep: bool = True) -> None:
        """Send a message; with `keep` it is stored first, so that it is sent again after a crash."""
        if keep:
            self._site.store.queue(message, str(getattr(message, "message_id", "")))
        try:
            self.link.send(message)
        except OutOfOrder as problem:
            self._log.warning("message.waits", code=problem.code)  # it is in the store, and goes when connected

    def _on_connected(self) -> None:
        self._log.info("link.connected")
        self._flush_acknowledged()
        for waiting in self._site.store.outbox():
            self._send(decode_body(waiting.kind, waiting.body), keep=False)

    def _flush_acknowledged(self) -> None:
        if self._acknowledged:
            self._site.store.acknowledge(tuple(self._acknowledged))
            self._acknowledged.clear()

    # --- time -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timers.after(TICK_S, Tick())
        self._flush_acknowledged()
        for answer in (*self.desk.expire(), *self.desk.reconsider()):
            self._answered(JobId(answer.job), answer)
        self._renew_when_due()

    def _renew_when_due(self) -> None:
        before = timedelta(seconds=self._site.configuration.certificates.renew_before_s)
        if self._renewing or not renewal_due(self._site.home.certificate(), now=self._site.clock.now(), before=before):
            return
        self._renewing = True
        key = load_tls_key(self._site.home.tls_file)
        federation = self._site.charter.charter.federation
        request = enrolment_messages.sign(
            enrolment_messages.RenewRequest(
                site=self._site.site,
                certificate_request=certificate_request(key, federation=federation, site=self._site.site).hex(),
            ),
            self._site.identity,
        )

        def renew() -> None:
            try:
                reply = enrolment_messages.decode(
                    enrolment_messages.RenewReply, self.link.renew(enrolment_messages.encode(request))
                )
                certificate = certificate_from_der(bytes.fromhex(reply.certificate))
                self._queue.put(Renewed(certificate_to_pem(certificate)))
            except ConfideError as problem:
                self._queue.put(Renewed(b"", problem))

        self._pool.submit(renew)

    def _on_renewed(self, event: Renewed) -> None:
        self._renewing = False
        if event.problem is not None:
            self._log.warning("certificate.not_renewed", code=event.problem.code)
            return
        write_whole(self._site.home.certificate_file, event.certificate_pem)
        self._log.info("certificate.renewed")
        self.link.reconnect()

    # --- signals and the operator -----------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload(DAEMON)
            return
        if self._stopping:
            self._log.warning("site.stopping", reason="at once")
            self._ended = True
            return
        self._stop("signal", grace_s=self._site.configuration.stopping.grace_s)

    def _stop(self, why: Literal["drain", "signal"], *, grace_s: float | None) -> None:
        self._stopping = why
        self._notify("STOPPING=1")
        self._log.info("site.stopping", reason="after the phases under way" if self._runs else "now")
        if not self._runs:
            self._ended = True
        elif grace_s is not None:
            self._timers.after(grace_s, GraceOver())

    def _stop_runs(self) -> None:
        for job, run in list(self._runs.items()):
            self._stop_work(job, run.work, STOPPING)

    def _reload(self, actor: audit_events.Actor) -> bool:
        try:
            changed = self._site.reload_policy(actor)
        except (ConfideError, AuditError) as problem:
            self._log.error("policy.not_reloaded", code=problem.code)
            raise
        self._facts.clear()
        self._log.info("policy.reloaded", reason="changed" if changed else "same")
        self.link.reconnect()
        return changed

    def _on_asked(self, asked: Asked) -> None:
        try:
            asked.answer(**self._answer_operator(asked))
        except ConfideError as problem:
            asked.refuse(problem)
        except (AuditError, PrivacyError) as problem:
            asked.refuse(OutOfOrder("CFD-R63", problem.message, hint=problem.hint))

    def _answer_operator(self, asked: Asked) -> dict[str, Any]:
        account = account_name(asked.account)
        match asked.request.verb:
            case "status":
                return self.status()
            case "pause" | "resume":
                return self._hold(asked.request.verb, account)
            case "drain":
                self._stop("drain", grace_s=None)
                return {"phases": len(self._runs)}
            case "abort":
                return self._abort(JobId(asked.request.subject), account)
            case "approve" | "deny":
                job, answer = self.desk.decided(
                    asked.request.subject,
                    account=account,
                    reason=asked.request.reason,
                    yes=asked.request.verb == "approve",
                )
                self._answered(job, answer)
                return {"job": job, "decision": answer.decision.value, "reasons": [r.code for r in answer.reasons]}
            case "reload":
                return {"changed": self._reload(self._site.records.person(account, role="operator"))}

    def _hold(self, verb: Literal["pause", "resume"], account: str) -> dict[str, Any]:
        actor = self._site.records.person(account, role="operator")
        self._site.store.set_flag("paused", account if verb == "pause" else None)
        event = machine.Held(Holder.OPERATOR) if verb == "pause" else machine.Freed(Holder.OPERATOR)
        moved = []
        for job in list(self._sessions):
            before = self._sessions[job]
            self._step(job, event, actor=actor)
            if self._sessions[job] != before:
                moved.append(job)
        return {"paused": verb == "pause", "jobs": moved}

    def _abort(self, job: JobId, account: str) -> dict[str, Any]:
        session = self._sessions.get(job)
        if session is None:
            raise InvalidInput("CFD-R42", f"job {job} is unknown here")
        if session.stage in machine.ENDED or session.stage is Stage.REFUSED:
            raise OutOfOrder("CFD-R44", f"job {job} is {session.stage} here already")
        self._step(job, machine.Ended(Ending.ABORTED), actor=self._site.records.person(account, role="operator"))
        return {"job": job, "stage": self._sessions[job].stage.value}

    def status(self) -> dict[str, Any]:
        """Return what `confide site status` shows."""
        link = self.link.status()
        trainers = dict(self._trainers.all())
        return {
            "site": self._site.site,
            "running": True,
            "process": os.getpid(),
            "stopping": bool(self._stopping),
            "paused": self._site.store.flag("paused") is not None,
            "link": {
                "state": link.state.value,
                "since": link.since.isoformat(),
                "route": link.route,
                "problem": None if link.problem is None else f"{link.problem.code} {link.problem.message}",
                "certificate_ends": None if link.certificate_ends is None else link.certificate_ends.isoformat(),
                "messages_waiting": link.pending_count,
            },
            "approvals_waiting": len(self._site.store.approvals(state="waiting")),
            "jobs": [
                {
                    "job": job,
                    "stage": session.stage.value,
                    "round": None if session.work is None else session.work.round,
                    "phase": None if session.work is None else session.work.phase.value,
                    "held_by": sorted(holder.value for holder in session.held_by),
                    "device": _device(trainers[job].ready) if job in trainers else None,
                }
                for job, session in self._sessions.items()
            ],
        }


def _device(ready: Ready | None) -> str:
    return "loading" if ready is None else ready.device


def _how(gone: TrainerGone) -> str:
    if gone.refused:
        return "said something unknown"
    return f"signal {-gone.status}" if gone.status < 0 else f"exit {gone.status}"


def _rounds(plan: bytes) -> int:
    try:
        return plans.decode(plan).rounds
    except PlanRefused:
        return 0
