"""Where phases run: as many side by side as the site lends, each with its job's trainer and its background work.

A phase that finds no free place, or whose job rests after its trainer died, waits within its own deadline. Trainers are
started before the first phase asks, when a job is accepted and a place is free. What a phase asks of the daemon
(`phases.Tools`) is here.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from audit.events import Peer
from audit.receipt import Receipt
from federation.edge.files import make_folder
from federation.edge.logs import Log
from federation.errors import ConfideError, InvalidInput, OutOfOrder
from federation.link.client import LinkClient
from federation.messages import BlobReference, JobId, PhaseReply, PhaseRequest
from federation.witness_messages import Proved
from site_client.events import Deadline, KillUnless, Rested, StartOverdue
from site_client.jobs import JobFacts, facts_of
from site_client.mailbox import Mailbox
from site_client.open_site import OpenSite
from site_client.phases import Background, PhaseRun
from site_client.rests import Rests
from site_client.session import Work
from site_client.stored import Applied
from site_client.timers import Timers
from site_client.trainer_messages import Failed, Ready
from site_client.trainer_process import TrainerGone, TrainerSaid
from site_client.trainers import Trainer, Trainers
from site_client.uploads import Uploads
from site_client.witnessing import SiteWitnessing

KILL_AFTER_S: Final = 5.0
BACKGROUND_THREADS: Final = 8
Ended = Callable[[JobId, Work, PhaseReply | None, str, Applied | None], None]
"""Takes how a phase ended: its reply, or the code for a phase that ended before it began."""


class Floor:
    """The running phases of one daemon.

    Args:
        site: The opened home.
        link: Fetches and delivers.
        log: The process log.
        mailbox: Gets what trainers and background work say.
        timers: Holds deadlines.
        variables: This process's environment, for trainers.
        witnessing: Says whether a round may open, and proves what left.
    """

    def __init__(
        self,
        site: OpenSite,
        link: LinkClient,
        log: Log,
        *,
        mailbox: Mailbox,
        timers: Timers,
        variables: Mapping[str, str],
        witnessing: SiteWitnessing,
    ) -> None:
        self._site = site
        self._link = link
        self._log = log
        self._mailbox = mailbox
        self._timers = timers
        self._witnessing = witnessing
        self._pool = ThreadPoolExecutor(max_workers=BACKGROUND_THREADS, thread_name_prefix="background")
        self._job_locks: dict[JobId, threading.Lock] = {}
        self._facts: dict[JobId, JobFacts] = {}
        self._requests: dict[tuple[JobId, Work], PhaseRequest] = {}
        self._runs: dict[JobId, PhaseRun] = {}
        self._waiting: deque[tuple[JobId, Work]] = deque()
        self._trainers = Trainers(site, variables=variables, post=mailbox.post)
        training = site.configuration.training
        self._uploads = Uploads(link)
        self._rests = Rests(first_s=training.rest_first_s, bound_s=training.rest_bound_s)
        self.ended: Ended | None = None
        self.closed: Callable[[JobId], None] = lambda job: None

    # --- jobs -------------------------------------------------------------------------------------------------

    def facts(self, job: JobId) -> JobFacts:
        """Return what holds for every phase of an accepted job.

        Raises:
            InvalidInput: It is unknown here.
        """
        if job not in self._facts:
            stored = self._site.store.job(job)
            if stored is None:
                raise InvalidInput("CFD-R42", f"job {job} is unknown here")
            self._facts[job] = facts_of(self._site, stored)
        return self._facts[job]

    def forget_facts(self) -> None:
        """Work the facts of jobs out anew: policy or charter changed."""
        self._facts.clear()

    def warm(self, job: JobId) -> None:
        """Start the job's trainer before the first round asks for it, if there is room: loading costs no round then."""
        if len(self._trainers) < self._site.configuration.training.jobs_at_once:
            self._trainer_of(job)

    def close(self, job: JobId) -> None:
        """End the job's phase and trainer at once; the job is over."""
        self._trainers.close(job)
        run = self._runs.pop(job, None)
        if run is not None:
            run.cut()
        self._facts.pop(job, None)
        self._rests.forget(job)
        self.closed(job)
        self.begin_waiting()

    # --- phases -----------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether no phase runs or waits for a place."""
        return not self._runs and not self._waiting

    def running(self) -> tuple[tuple[JobId, Work], ...]:
        """Return the phases that run."""
        return tuple((job, run.work) for job, run in self._runs.items())

    def expect(self, job: JobId, work: Work, request: PhaseRequest) -> None:
        """Keep the request of a phase that may begin later."""
        self._requests[job, work] = request

    def forget(self, job: JobId, work: Work) -> None:
        """Drop the request of a phase that won't begin."""
        self._requests.pop((job, work), None)

    def start(self, job: JobId, work: Work) -> None:
        """Begin a phase, now or when a place is free."""
        self._timers.after(float(self._requests[job, work].deadline_s), Deadline(job, work))
        self._waiting.append((job, work))
        rest_s = self._rests.left_s(job, self._site.clock.monotonic_s())
        if rest_s > 0:
            self._log.info("phase.rests", job=job, round=work.round, phase=work.phase.value)
            self._timers.after(rest_s, Rested())
        self.begin_waiting()

    def begin_waiting(self) -> None:
        """Begin the phases that wait, in order, while there are places; a job that rests is passed."""
        for job, work in list(self._waiting):
            if len(self._runs) >= self._site.configuration.training.jobs_at_once:
                return
            if self._rests.left_s(job, self._site.clock.monotonic_s()) > 0:
                continue
            self._waiting.remove((job, work))
            request = self._requests.pop((job, work), None)
            if request is not None:
                self._begin(job, work, request)

    def _begin(self, job: JobId, work: Work, request: PhaseRequest) -> None:
        facts = self.facts(job)
        make_folder(facts.lineage.folder)
        trainer = self._trainer_of(job)
        run = PhaseRun(self._site, facts, work, request, trainer.process, self)
        self._runs[job] = run
        self._log.info("phase.begun", job=job, round=work.round, phase=work.phase.value)
        run.begin(trainer_ready=trainer.ready is not None)

    def _trainer_of(self, job: JobId) -> Trainer:
        known = len(self._trainers)
        trainer = self._trainers.for_job(self.facts(job))
        if len(self._trainers) > known:
            start_s = self._site.configuration.training.start_timeout_s
            self._timers.after(start_s, StartOverdue(job, trainer.process.generation))
        return trainer

    def stop(self, job: JobId, work: Work, code: str) -> None:
        """End a phase as failed with `code`: at its next step, or before it begins."""
        run = self._runs.get(job)
        if run is not None and run.work == work:
            run.stop(code)
            if self._runs.get(job) is run:
                self._timers.after(KILL_AFTER_S, KillUnless(job, work, run.trainer.generation))
        elif (job, work) in self._waiting:
            self._waiting.remove((job, work))
            self.forget(job, work)
            self._tell_ended(job, work, None, code, None)

    def stop_all(self, code: str) -> None:
        """End every phase as failed with `code`, those that wait too."""
        for job, work in (*self.running(), *tuple(self._waiting)):
            self.stop(job, work, code)

    def shut(self) -> None:
        """End everything at once and without replies; what was charged is recorded."""
        self._trainers.close_all()
        for run in list(self._runs.values()):
            run.cut()
        self._runs.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- what trainers and threads say ------------------------------------------------------------------------

    def on_trainer(self, said: TrainerSaid) -> None:
        """Go on after a line of a trainer."""
        trainer = self._trainers.of(said.job, said.generation)
        if trainer is None:
            return
        if isinstance(said.line, Ready):
            trainer.ready = said.line
            self._site.records.preflight(
                said.job, self.facts(said.job).plan_digest, engine=said.line.engine, versions=said.line.versions
            )
        run = self._runs.get(said.job)
        if run is not None and run.trainer is trainer.process:
            run.on_line(said.line)
        elif isinstance(said.line, Failed):
            self._log.warning("trainer.failed", job=said.job, code=said.line.code, ref=said.line.reference)

    def on_trainer_gone(self, gone: TrainerGone) -> None:
        """Go on after the end of a trainer."""
        trainer = self._trainers.of(gone.job, gone.generation)
        if trainer is None:
            return
        self._trainers.gone(gone.job)
        self._log.warning("trainer.gone", job=gone.job, reason=_how(gone))
        run = self._runs.get(gone.job)
        if run is None or not run.is_stopping:
            self._rests.died(gone.job, self._site.clock.monotonic_s())
        if run is not None and run.trainer is trainer.process:
            run.on_gone(gone.status)

    def on_background(self, done: Background) -> None:
        """Go on after something in the background."""
        run = self._runs.get(done.job)
        if run is not None and run.work == done.work:
            run.on_background(done)

    def on_kill_unless(self, event: KillUnless) -> None:
        """Kill a trainer that was told to stop and didn't."""
        run = self._runs.get(event.job)
        if run is not None and run.work == event.work and run.trainer.generation == event.generation:
            run.trainer.kill()

    def on_start_overdue(self, event: StartOverdue) -> None:
        """Kill a trainer that has loaded for too long."""
        trainer = self._trainers.of(event.job, event.generation)
        if trainer is not None and trainer.ready is None:
            trainer.process.kill()

    def devices(self) -> dict[JobId, str]:
        """Return the device of each trainer, for people."""
        return {
            job: "loading" if trainer.ready is None else trainer.ready.device for job, trainer in self._trainers.all()
        }

    # --- Tools of a phase -------------------------------------------------------------------------------------

    def background(self, job: JobId, work: Work, step: str, task: Callable[[], Any]) -> None:
        """Run `task` in a thread; its end comes back as `Background`. Tasks of one job never run side by side."""
        lock = self._job_locks.setdefault(job, threading.Lock())

        def run() -> None:
            with lock:
                done = self._done(job, work, step, task)
            self._mailbox.post(done)

        self._pool.submit(run)

    def _done(self, job: JobId, work: Work, step: str, task: Callable[[], Any]) -> Background:
        try:
            return Background(job, work, step, task())
        except ConfideError as problem:
            return Background(job, work, step, None, problem)
        except OSError as problem:
            return Background(job, work, step, None, OutOfOrder("CFD-R63", f"disk: {problem.strerror}"))
        except Exception as problem:  # noqa: BLE001 (a phase always ends in a reply)
            reference = self._log.internal("background.broke", problem, job=job)
            wrong = OutOfOrder("CFD-G01", "the site met an error", reference=reference)
            return Background(job, work, step, None, wrong)

    def in_turn(self, job: JobId, task: Callable[[], None]) -> None:
        """Run `task` in a thread, never beside another of the same job; it says for itself how it ended."""
        lock = self._job_locks.setdefault(job, threading.Lock())

        def run() -> None:
            with lock:
                task()

        self._pool.submit(run)

    def in_thread(self, task: Callable[[], None]) -> None:
        """Run `task` in a thread; it says for itself how it ended."""
        self._pool.submit(task)

    def fetch(self, reference: BlobReference, deadline_s: float) -> Path:
        """Return a blob's file."""
        return self._link.fetch(reference, deadline_s=deadline_s)

    def deliver(self, sent: Receipt, deadline_s: float) -> None:
        """Bring the update that the entry names to the coordinator."""
        self._uploads.deliver(sent, deadline_s=deadline_s)

    def opening_problem(self, request: PhaseRequest) -> str | None:
        """Return the code for which a round may not open here."""
        return self._witnessing.opening_problem(request)

    def contradict(self, request: PhaseRequest) -> None:
        """Record that the coordinator counts an update of this site and doesn't show its receipt."""
        self._witnessing.contradict_release(request)

    def model_peer(self, job: str, round_number: int) -> Peer | None:
        """Return the coordinator's entry of a released model, where it was shown."""
        return self._witnessing.model_peer(job, round_number)

    def roster_peer(self, shown: str, *, job: str, round_number: int, sum_id: str, roster: str) -> Peer | None:
        """Return the coordinator's entry of a sum's roster, None where it wasn't shown."""
        return self._witnessing.roster_peer(shown, job=job, round_number=round_number, sum_id=sum_id, roster=roster)

    def prove(self, leaf: bytes, timeout_s: float) -> Proved | None:
        """Return the proof that this site's log holds an entry."""
        return self._witnessing.prove(leaf, timeout_s=timeout_s)

    def new_message_id(self) -> str:
        """Return an id for a message of this site."""
        return str(self._link.message_ids.next())

    def new_reference(self, event: str, *, job: str, code: str) -> str:
        """Log an event and return the reference under which it stands there."""
        reference = secrets.token_hex(6)
        self._log.warning(event, job=job, code=code, ref=reference)
        return reference

    def finished(self, run: PhaseRun, reply: PhaseReply, applied: Applied | None) -> None:
        """Take a phase's one reply, and begin the next that waits."""
        job, work = run.facts.job, run.work
        if self._runs.get(job) is run:
            del self._runs[job]
        code = None if reply.reason is None else reply.reason.code
        if code is None:
            self._rests.forget(job)
        self._tell_ended(job, work, reply, code or "", applied)
        self._log.info("phase.ended", job=job, round=work.round, phase=work.phase.value, code=code)
        self.begin_waiting()

    def _tell_ended(self, job: JobId, work: Work, reply: PhaseReply | None, code: str, applied: Applied | None) -> None:
        if self.ended is not None:
            self.ended(job, work, reply, code, applied)


def _how(gone: TrainerGone) -> str:
    if gone.refused:
        return "said something unknown"
    return f"signal {-gone.status}" if gone.status < 0 else f"exit {gone.status}"
