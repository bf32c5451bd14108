"""Takes jobs from one state to the next and does what each step asks for: offers, threads, messages to sites.

A step is on disk, and recorded where it permits something, before anything is done; what was left undone by a crash is
done again at the next start, or when a site says hello. One thread keeps the time of offers; it sleeps until
something is due.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from audit.errors import AuditError
from audit.events import Actor
from coordinator import job_machine, queue, showing
from coordinator.configuration import Jobs
from coordinator.job_machine import JobState, JobStep, Telling
from coordinator.job_threads import JobThreads
from coordinator.recording import SERVICE, AuditRecorder
from coordinator.records import Fact, JobRecord
from coordinator.site_machine import UNDECIDED, SiteEvent
from coordinator.store import Store
from federation.edge.clock import Clock
from federation.edge.logs import Log
from federation.errors import ConfideError, OutOfOrder
from federation.messages import Body, JobAction, JobControl, JobId, Offer, SiteId

_LIVE: Final = (JobState.OFFERED, JobState.RUNNING, JobState.PAUSED)
_END_OF: Final = {
    JobState.COMPLETED: Telling.COMPLETE,
    JobState.FAILED: Telling.FAIL,
    JobState.CANCELLED: Telling.CANCEL,
}


class Sender(Protocol):
    """The part of the link that the conductor uses."""

    def send(self, site: str, body: Body) -> str:
        """Send a message until it is acknowledged."""
        ...

    def connected(self, site: str) -> bool:
        """Return whether work can reach `site` now."""
        ...


class Conductor:
    """The one that steps jobs.

    Args:
        store: The truth.
        recorder: Records steps.
        link: Sends messages.
        new_message_id: Makes their ids.
        settings: How jobs wait, start and are offered.
        clock: The time.
        log: The process's log.
        forget: Told a job whose sites all know its end.
    """

    def __init__(
        self,
        *,
        store: Store,
        recorder: AuditRecorder,
        link: Sender,
        new_message_id: Callable[[], str],
        settings: Jobs,
        clock: Clock,
        log: Log,
        forget: Callable[[JobId], None],
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._link = link
        self._new_message_id = new_message_id
        self._settings = settings
        self._clock = clock
        self._log = log
        self._forget = forget
        self._threads: JobThreads | None = None
        self._queue_lock = threading.Lock()
        # What is recorded of a step must be what the step does, so no other step comes between the two.
        self._step_lock = threading.Lock()
        self._wake = threading.Condition()
        self._awake = False
        self._stopping = False
        self._keeper = threading.Thread(target=self._keep_time, name="offers", daemon=True)

    # --- life -------------------------------------------------------------------------------------------------

    def start(self, threads: JobThreads) -> None:
        """Go on with every unfinished job where it was, and keep the time of offers."""
        self._threads = threads
        for record in self._store.jobs.page([JobState.RUNNING, JobState.PAUSED], limit=10_000):
            threads.start(record.id)  # a paused job's thread finishes a begun round, then ends
        self.pump()
        self._keeper.start()

    def stop(self) -> None:
        """Stop keeping time."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._keeper.is_alive():
            self._keeper.join()

    # --- steps ------------------------------------------------------------------------------------------------

    def step(
        self, job_id: JobId, event: job_machine.JobEvent, facts: Iterable[Fact] = (), *, actor: Actor = SERVICE
    ) -> JobRecord:
        """Record what `event` makes of a job, take the job through it, and do what follows.

        Raises:
            OutOfOrder: The job's state doesn't know the event.
        """
        with self._step_lock:
            before = self._store.jobs.get(job_id)
            self._record(before, event, actor)
            record, actions = self._store.jobs.step(job_id, event, list(facts))
        self._follow(before, record, actions)
        return record

    def close_round(
        self, job_id: JobId, event: job_machine.RoundReleased | job_machine.RoundAbandoned, facts: Iterable[Fact]
    ) -> None:
        """Take a job past a round, as `step` does; its sites stand as the attempt left them.

        Raises:
            OutOfOrder: The job has ended meanwhile.
        """
        with self._step_lock:
            before = self._store.jobs.get(job_id)
            self._record(before, event, SERVICE)
            record, actions = self._store.rounds.close(job_id, event, list(facts))
        self._follow(before, record, actions)

    def _record(self, before: JobRecord, event: job_machine.JobEvent, actor: Actor) -> None:
        """Record where `event` takes the job, durably, before it goes there."""
        after, _ = job_machine.step(before.job, event)
        if after.state is before.job.state:
            return
        match after.state:
            case JobState.RUNNING:
                action = "started" if before.job.state is JobState.OFFERED else "resumed"
            case JobState.PAUSED | JobState.CANCELLED | JobState.COMPLETED | JobState.FAILED:
                action = after.state.value
            case _:
                return
        code = None
        if after.state is JobState.FAILED:
            first = after.reason.split(":")[0]
            code = first if first.startswith("CFD-") else "CFD-R05"
        self._recorder.job_moved(before, action, actor, code)

    def _follow(self, before: JobRecord, record: JobRecord, actions: Iterable[JobStep]) -> None:
        if record.job.state is not before.job.state:
            self._log.info(f"job.{record.job.state}", job=record.id)
        self.act(record, actions)

    def act(self, record: JobRecord, actions: Iterable[JobStep]) -> None:
        """Do what a step asked for; whatever fails here is made good when a site says hello or at the next start."""
        for action in actions:
            match action:
                case job_machine.SendOffers(sites):
                    for site in sites:
                        self.offer(record, site)
                    self._notify()
                case job_machine.StartRounds():
                    if self._threads is not None:
                        self._threads.start(record.id)
                case job_machine.StopRounds():
                    if self._threads is not None:
                        self._threads.interrupt(record.id)
                case job_machine.TellSites():
                    self._tell(record, action)
        if record.job.state in job_machine.ENDS:
            self.pump()

    def pump(self) -> None:
        """Offer every queued job, and begin every ready one, whose sites have places."""
        with self._queue_lock:
            waiting, at_work = self.queue()
            start = queue.startable(waiting, at_work, self._places(), default_places=self._settings.jobs_per_site)
            for job_id in start:
                queued = self._store.jobs.get(job_id).job.state is JobState.QUEUED
                try:
                    self.step(job_id, job_machine.Admitted() if queued else job_machine.Begun())
                except OutOfOrder:
                    continue  # cancelled between the look and the step

    def queue(self) -> tuple[list[queue.Waiting], list[queue.AtWork]]:
        """Return the jobs that wait for places, and those that take places."""
        records = self._store.jobs.page([JobState.QUEUED, *_LIVE], limit=10_000)
        waiting, at_work = [], []
        for record in records:
            job, grace_over = record.job, self._offered_for_s(record) >= self._settings.offer_grace_s
            if job.state is JobState.QUEUED:
                waiting.append(queue.Waiting(record.id, record.priority, record.number, frozenset(job.sites)))
            elif job_machine.is_ready(job, grace_over=grace_over):
                waiting.append(queue.Waiting(record.id, record.priority, record.number, frozenset(job.cohort())))
            elif sites := job_machine.takes_places_at(job, grace_over=grace_over):
                at_work.append(queue.AtWork(record.id, sites))
        return waiting, at_work

    def _places(self) -> dict[SiteId, int]:
        return {SiteId(site): count for site, count in self._settings.places.items()}

    def _offered_for_s(self, record: JobRecord) -> float:
        now_us = self._store.database.now_us()
        return (now_us - (record.offered_us or now_us)) / 1e6

    def why(self, job_id: JobId) -> str:
        """Return in one sentence what a job waits for, or why it ended."""
        record = self._store.jobs.get(job_id)
        state = record.job.state
        if state in (JobState.QUEUED, JobState.OFFERED):
            waiting, at_work = self.queue()
            if any(found.id == job_id for found in waiting):
                places = self._places()
                return queue.why(job_id, waiting, at_work, places, default_places=self._settings.jobs_per_site)
            return showing.offer_sentence(record, self._store.presence.all()) or "the job starts now"
        if state in job_machine.ENDS:
            return record.job.reason or f"the job is {state}"
        return f"the job is {state}, at round {record.job.round + 1} of {record.job.rounds}"

    # --- messages ---------------------------------------------------------------------------------------------

    def offer(self, record: JobRecord, site: SiteId) -> None:
        """Offer a job to a site, after the entry that says so is durable."""
        self._recorder.job_offered(record, site)
        self._send(
            site,
            Offer(
                message_id=self._new_message_id(),
                job=record.id,
                plan=record.plan.hex(),
                submitter=record.submitter,
                signature=record.signature.hex(),
                vouched=record.vouched,
                contract=record.contract.hex(),
            ),
        )

    def greet(self, site: SiteId, busy_jobs: Iterable[str]) -> None:
        """Send a site that just said hello what it may have missed: offers, pauses, ends."""
        for record in self._store.jobs.of_site(site, _LIVE):
            if record.job.sites[site].state in UNDECIDED:
                self.offer(record, site)
            elif record.job.state is JobState.PAUSED:
                self._control(record, site, Telling.PAUSE, "")
        missed = {record.id: record for record, _ in self._store.jobs.untold(site)}
        for job in busy_jobs:
            if job not in missed:
                self._greet_busy(site, JobId(job), missed)
        for record in missed.values():
            self._control(record, site, _END_OF[record.job.state], record.job.reason)
            self._told(record, site)

    def _greet_busy(self, site: SiteId, job: JobId, missed: dict[JobId, JobRecord]) -> None:
        try:
            record = self._store.jobs.get(job)
        except ConfideError:
            return  # a job of another life of this coordinator; the site's own operator ends it
        if record.job.state in job_machine.ENDS and site in record.job.sites:
            missed[job] = record

    def _tell(self, record: JobRecord, action: job_machine.TellSites) -> None:
        for site in action.sites:
            if self._link.connected(site):
                self._control(record, site, action.what, action.reason)
                if record.job.state in job_machine.ENDS:
                    self._told(record, site)

    def _told(self, record: JobRecord, site: SiteId) -> None:
        self._store.jobs.told(record.id, site, record.job.state.value)
        if self._store.jobs.everybody_told(record.id):
            self._forget(record.id)

    def _control(self, record: JobRecord, site: SiteId, what: Telling, reason: str) -> None:
        self._send(
            site,
            JobControl(
                message_id=self._new_message_id(), job=record.id, action=JobAction(what.value), reason=reason[:500]
            ),
        )

    def _send(self, site: SiteId, body: Body) -> None:
        try:
            self._link.send(site, body)
        except OutOfOrder as problem:
            self._log.warning("site.outbox_full", site=site, code=problem.code)

    # --- answers ----------------------------------------------------------------------------------------------

    def answered(self, job_id: JobId, site: SiteId, answer: SiteEvent, reasons: tuple[str, ...]) -> None:
        """Take a site's answer to an offer, or its word that the job stopped there."""
        fact = {"site": site, "decision": _DECISIONS[answer], "reasons": list(reasons)}
        event = job_machine.SiteAnswered(site, answer, reasons, self._store.database.now_us())
        self.step(job_id, event, [("site.answered", fact)])
        self.pump()
        self._notify()  # with a quorum it's the grace that counts, and no longer the offer's deadline

    # --- the time of offers -----------------------------------------------------------------------------------

    def _notify(self) -> None:
        with self._wake:
            self._awake = True
            self._wake.notify_all()

    def _keep_time(self) -> None:
        while True:
            wait_s = self._due()
            with self._wake:
                if not self._awake and not self._stopping:
                    self._wake.wait(wait_s)
                self._awake = False
                if self._stopping:
                    return

    def _due(self) -> float:
        """Do what the time asks of offered jobs; return seconds until it asks again."""
        try:
            self.pump()
            return min((self._wait_s(record) for record in self._offered()), default=3600.0)
        except OutOfOrder:
            return 0.1  # a job moved between the look and the step
        except (ConfideError, AuditError) as problem:
            self._log.internal("offers.failed", problem)
            return 5.0

    def _offered(self) -> list[JobRecord]:
        return list(self._store.jobs.page([JobState.OFFERED], limit=10_000))

    def _wait_s(self, record: JobRecord) -> float:
        """End an offered job below its quorum at its deadline, and return seconds until its next time comes."""
        age_s = self._offered_for_s(record)
        left_s = [limit_s - age_s for limit_s in (self._settings.offer_grace_s, self._settings.offer_deadline_s)]
        if left_s[1] <= 0 and len(record.job.cohort()) < record.job.quorum:
            self.step(record.id, job_machine.OfferDeadline())
        return min((wait_s for wait_s in left_s if wait_s > 0), default=3600.0)

    def actor_of(self, name: str | None) -> Actor:
        """Return who acts: a person by name, or the service itself."""
        return SERVICE if name is None else self._recorder.person(name)


_DECISIONS: Final = {SiteEvent.ACCEPT: "accepted", SiteEvent.REFUSE: "refused", SiteEvent.PARK: "parked"}
