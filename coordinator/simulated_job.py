"""The coordinator of a simulation: a job in a database of its own, run by the same machines, store and round loop.

What is simulated: every virtual site's answer to the offer is known beforehand and stored in one transaction, the key
that signs releases lives as long as the process, and updates come as files. What isn't: the job and round machines,
the store, the checks of updates, the server step, signed releases and the coordinator's audit log, whose federation
is called ``<name>.simulation``; nobody witnesses it, and no data set is opened anywhere.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, update

from audit.log import AuditLog
from coordinator import job_machine, queries, showing, tables
from coordinator.job_machine import Job, JobState
from coordinator.migrations import bring_up
from coordinator.model_registry import ModelRegistry
from coordinator.recording import SERVICE, AuditRecorder
from coordinator.records import Fact, JobRecord, NewJob, ReleaseRecord
from coordinator.round_work import FirstModel, RoundEnd, RoundSettings, RoundWork
from coordinator.simulation import Result
from coordinator.site_machine import SiteEvent
from coordinator.store import Store
from coordinator.submission import model_layout
from coordinator.transactions import microseconds
from coordinator.views import EventView
from federation import canonical, contract, robust_means
from federation import plan as plans
from federation.contract import DataContract
from federation.edge.clock import Clock
from federation.edge.database import open_engine, sqlite_url
from federation.identity import IdentityKey
from federation.link.blobs import BlobStore
from federation.messages import (
    Answer,
    BlobReference,
    Decision,
    JobId,
    Phase,
    PhaseReply,
    Release,
    SiteId,
    decode_body,
    encode_body,
)
from federation.models import layout
from federation.plan import Plan

SUBMITTER: Final = "simulation"


class Depot:
    """Where blobs change hands between the coordinator and its virtual sites; see `virtual_grid.Depot`.

    Args:
        blobs: The coordinator's.
        folder: Gets ``releases``, which the sites read, and ``updates``, which they write.
    """

    def __init__(self, blobs: BlobStore, folder: Path) -> None:
        self._blobs = blobs
        self.releases: Final = folder / "releases"
        self.updates: Final = folder / "updates"
        for part in (self.releases, self.updates):
            part.mkdir(mode=0o700)

    def publish(self, release: BlobReference) -> None:
        """Let every virtual site read a release, its mean, and those before it."""
        reference: BlobReference | None = release
        while reference is not None and not (self.releases / reference.root).exists():
            body = decode_body("release", self._blobs.path(reference).read_bytes())
            if not isinstance(body, Release):
                return
            if not (self.releases / body.mean.root).exists():
                (self.releases / body.mean.root).hardlink_to(self._blobs.path(body.mean))
            (self.releases / reference.root).hardlink_to(self._blobs.path(reference))
            reference = body.previous

    def take_in(self, file: str) -> None:
        """Move an update that a virtual site put down, if it did, into the coordinator's blobs."""
        path = self.updates / Path(file).name
        if path.is_file():
            self._blobs.put_file(path)
            path.unlink()


class SimulatedJob:
    """One job with virtual sites.

    Args:
        job: Its id.
        plan: From `simulation.simulated_plan`.
        known: Its data contract.
        folder: An empty folder for database, blobs and scratch.
        log_folder: Where the audit log is begun.
        clock: The time.
        deadline_scale: Factor on the plan's deadlines; see `simulation.turns`.
        tell: Gets each event of the job, in order.
    """

    def __init__(
        self,
        job: str,
        plan: Plan,
        known: DataContract,
        *,
        folder: Path,
        log_folder: Path,
        clock: Clock,
        deadline_scale: float,
        tell: Callable[[EventView], None],
    ) -> None:
        self.id: Final = JobId(job)
        self.plan: Final = plan
        self._tell = tell
        self._told = 0
        self._begun_s = clock.monotonic_s()
        self._clock = clock
        self._log = AuditLog.create(
            log_folder, origin_federation=f"{plan.name[:50]}.simulation", party="coordinator", clock=clock
        )
        self._recorder = AuditRecorder(self._log)
        self._engine = open_engine(sqlite_url(folder / "coordinator.db"))
        bring_up(self._engine)
        self.store: Final = Store(self._engine, clock)
        self.blobs: Final = BlobStore(folder / "blobs")
        self.depot: Final = Depot(self.blobs, folder)
        self._identity = IdentityKey.generate()
        self._record = self._submitted(contract.canonical_bytes(known))
        arrays = layout.initial(plan.model, contract.width(known), known.label.classes_count, seed=plan.training.seed)
        self.work: Final = RoundWork(
            self._record,
            plan,
            FirstModel(model_layout(plan, known), arrays=arrays),
            store=self.store,
            registry=ModelRegistry(self.blobs, folder / "scratch", self._identity, lambda: microseconds(clock)),
            recorder=self._recorder,
            clock=clock,
            new_message_id=lambda: secrets.token_hex(8),
            settings=RoundSettings(deadline_scale=deadline_scale),
            close=self._close_round,
            combine_robustly=robust_means.robust_mean,
        )

    @property
    def identity_public(self) -> bytes:
        """Return the public key that releases are signed with."""
        return self._identity.public

    def close(self) -> None:
        """Close log and database."""
        self._log.close()
        self._engine.dispose()

    # --- from the plan to a running job -----------------------------------------------------------------------

    def _submitted(self, known: bytes) -> JobRecord:
        plan, data = self.plan, plans.canonical_bytes(self.plan)
        new = NewJob(
            id=self.id,
            name=plan.name,
            plan=data,
            plan_digest=canonical.digest(data),
            contract=known,
            submitter=SUBMITTER,
            signature=self._identity.sign("plan", data),
            vouched=True,
            priority=plan.priority,
            invited=tuple(SiteId(site) for site in plan.sites.invite),
            quorum=plan.sites.quorum or len(plan.sites.invite),
            rounds=plan.rounds,
            attempts=plan.round_attempts,
        )
        self._recorder.job_submitted(new, plan, SERVICE)
        return self.store.jobs.create(new)[0]

    def begin(self, answers: Mapping[SiteId, Answer]) -> bool:
        """Take the answers of all virtual sites at once; return whether a quorum accepted, else the job has failed."""

        before = self.store.jobs.get(self.id)
        after = _answered(before.job, answers, self.store.database.now_us())
        if after.state is JobState.RUNNING:
            self._recorder.job_moved(before, "started")
        facts: list[Fact] = [
            ("site.answered", {"site": site, "decision": answer.decision.value, "reasons": _reasons(answer)})
            for site, answer in answers.items()
            if answer.decision is not Decision.ACCEPTED
        ]
        columns = tables.job_site.c

        def work(connection: Connection) -> None:
            for site, answer in answers.items():
                row = update(tables.job_site).where(columns.job == self.id, columns.site == site)
                connection.execute(row.values(answer=encode_body(answer), answer_signature=b""))
            queries.save_job(connection, before, after, facts, self.store.database.now_us())

        self.store.database.change(self.id, work)
        self._ended(self.store.jobs.get(self.id))
        self._tell_new()
        return after.state is JobState.RUNNING

    # --- while it runs ----------------------------------------------------------------------------------------

    def _close_round(self, job: JobId, event: RoundEnd, facts: Sequence[Fact]) -> None:
        record, _ = self.store.rounds.close(job, event, facts)
        self._ended(record)
        self._tell_new()

    def fail(self, reason: str) -> None:
        """End the job, which can't go on."""
        record = self.store.jobs.get(self.id)
        if record.job.state not in job_machine.ENDS:
            record, _ = self.store.jobs.step(self.id, job_machine.Broke(reason))
            self._ended(record)
            self._tell_new()

    def _ended(self, record: JobRecord) -> None:
        match record.job.state:
            case JobState.COMPLETED:
                self._recorder.job_moved(record, "completed")
            case JobState.FAILED:
                self._recorder.job_moved(record, "failed", code="CFD-R05")
            case _:
                pass

    def _tell_new(self) -> None:
        while events := self.store.jobs.events(self.id, after=self._told):
            for event in events:
                self._tell(showing.event_view(event))
                self._told = event.number

    # --- what came of it --------------------------------------------------------------------------------------

    def newest(self) -> ReleaseRecord | None:
        """Return the newest released model, or None before the first round."""
        found = self.store.releases.newest(self.id)
        return None if found is None or found.step == 0 else found

    def result(self, data: str) -> Result:
        """Return what came of the job; `data` says in a sentence what rows the sites had."""
        record, newest = self.store.jobs.get(self.id), self.newest()
        evaluated = self.store.releases.newest_evaluated(self.id)
        metrics = None if evaluated is None or evaluated.metrics is None else dict(evaluated.metrics)
        return Result(
            job=self.id,
            state=record.job.state.value,
            reason=record.job.reason,
            sites=len(record.job.sites),
            refused=len(record.job.refused()),
            quorum=record.job.quorum,
            rounds=record.job.rounds,
            rounds_released=0 if newest is None else newest.step,
            metrics=metrics,
            epsilon=self._epsilon(newest),
            epsilon_allowed=self.plan.privacy.epsilon,
            model="" if newest is None else newest.model_digest,
            data=data,
            seconds=round(self._clock.monotonic_s() - self._begun_s, 3),
        )

    def _epsilon(self, newest: ReleaseRecord | None) -> float | None:
        if newest is None:
            return None
        replies = self.store.rounds.replies(self.id, newest.round, newest.attempt, Phase.TRAIN)
        bodies = [decode_body("phase-reply", reply.body) for reply in replies if reply.body is not None]
        spent = [showing.rounded_up(body.epsilon) for body in bodies if isinstance(body, PhaseReply)]
        return max((epsilon for epsilon in spent if epsilon is not None), default=None)


def _answered(job: Job, answers: Mapping[SiteId, Answer], now_us: int) -> Job:
    """Return what the job is once every site has answered its offer."""
    job, _ = job_machine.step(job, job_machine.Admitted())
    for site, answer in answers.items():
        if job.state is not JobState.OFFERED:
            break  # so many refused that there is no quorum any more
        event = SiteEvent.ACCEPT if answer.decision is Decision.ACCEPTED else SiteEvent.REFUSE
        job, _ = job_machine.step(job, job_machine.SiteAnswered(site, event, tuple(_reasons(answer)), now_us))
    return job if job.state is not JobState.OFFERED else job_machine.step(job, job_machine.Begun())[0]


def _reasons(answer: Answer) -> list[str]:
    return [f"{reason.code}: {reason.text}" for reason in answer.reasons]
