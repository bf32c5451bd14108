"""The coordinator's service: everything of one home, wired together; what the API and the commands call.

`open_service` opens a home (lock, configuration, log, database, blobs), `start` goes on with every unfinished job
where it was and opens the link, `stop` ends at the next safe point. All methods are safe for threads; they block, and
raise the errors of `federation.errors`. Decisions are the machines', acts are the conductor's, and this class holds
neither.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from audit.errors import AuditError
from audit.log import AuditLog
from audit.names import COORDINATOR
from audit.trust_file import TrustFolder
from coordinator import job_machine, membership_home, retention, showing
from coordinator.access_recording import AccessRecorder
from coordinator.conductor import Conductor
from coordinator.configuration import CoordinatorConfiguration
from coordinator.enrolment import Enrolment
from coordinator.housekeeping import Housekeeping
from coordinator.job_threads import JobThreads
from coordinator.membership_store import MembershipStore
from coordinator.model_registry import ModelRegistry
from coordinator.overview import Overview
from coordinator.previews import Previews
from coordinator.reception import Reception
from coordinator.recording import AuditRecorder
from coordinator.released_files import ReleasedFiles
from coordinator.round_witness import about_of
from coordinator.round_work import RoundSettings, RoundWork
from coordinator.secure_round import SumSetting
from coordinator.store import Store
from coordinator.submission import ResolvedPlan, Submissions
from coordinator.transactions import microseconds
from coordinator.views import (
    EventView,
    JobView,
    PreviewView,
    ResultView,
    SiteView,
    ValidationView,
)
from coordinator.witnessing import Witnessing
from federation import canonical, contract, flower, plan, robust_means
from federation.charter import Charter
from federation.edge.audit_settings import end_this_process
from federation.edge.audit_trail import witness_signer
from federation.edge.clock import Clock
from federation.edge.configuration_trail import record_settings
from federation.edge.files import HomeLock
from federation.edge.homes import CoordinatorHome
from federation.edge.logs import Log
from federation.errors import ConfideError, InvalidInput, OutOfOrder
from federation.identity import IdentityKey
from federation.link.blobs import BlobStore
from federation.link.server import LinkServer, ServerTls
from federation.messages import (
    PROTOCOL_VERSION,
    JobId,
    MemberStatus,
    PreviewRequest,
    SiteId,
    Versions,
)
from federation.secure_sums import DigestSigner

STOP_WAIT_S: Final = 30.0
"""How long an orderly stop waits for a job that is just writing a model."""


def own_versions() -> Versions:
    """Return what this program is, for the hello of the link."""
    try:
        found = version("confide")
    except PackageNotFoundError:
        found = "0.0.0"
    return Versions(confide=found, protocol=PROTOCOL_VERSION, oldest_protocol=PROTOCOL_VERSION)


class CoordinatorService:
    """One home at work. Made by `open_service`."""

    def __init__(
        self,
        home: CoordinatorHome,
        configuration: CoordinatorConfiguration,
        *,
        engine: Engine,
        lock: HomeLock,
        audit: AuditLog,
        membership: MembershipStore,
        enrolment: Enrolment,
        identity: IdentityKey,
        clock: Clock,
        log: Log,
    ) -> None:
        self.home: Final = home
        self.configuration: Final = configuration
        self.audit: Final = audit
        self.membership: Final = membership
        self.log: Final = log
        self.clock: Final = clock
        self._engine = engine
        self._lock = lock
        self._identity = identity
        self._store = Store(engine, clock)
        self._blobs = BlobStore(home.blobs)
        self._registry = ModelRegistry(self._blobs, home.path / "scratch", identity, lambda: microseconds(clock))
        self._recorder = AuditRecorder(audit)
        self.callers: Final = AccessRecorder(audit, self._store.jobs.get)
        self._previews = Previews(self._store.presence.all, clock, grace_s=configuration.jobs.reconnect_grace_s)
        self.witnessing: Final = Witnessing(
            audit,
            TrustFolder(home.trust),
            witness_signer(home.audit, federation=configuration.federation, party=COORDINATOR),
            clock=clock,
            process_log=log,
            stale_after_s=configuration.audit.stale_after_s,
            sites=self._active_sites,
            invited=self._invited,
            on_fatal=self._on_fatal,
        )
        self._reception = Reception(
            store=self._store,
            membership=membership,
            enrolment=enrolment,
            recorder=self._recorder,
            versions=own_versions(),
            previews=self._previews,
            log=log,
            witnessing=self.witnessing,
        )
        self.link: Final = LinkServer(
            listen=configuration.link.listen,
            tls=self._tls,
            identity=identity,
            versions=own_versions(),
            backend=self._reception,
            blobs=self._blobs,
            limits=configuration.link_limits,
            clock=clock,
            randomness=secrets.token_bytes,
        )
        self._submissions = Submissions(
            store=self._store,
            recorder=self._recorder,
            identity=identity,
            charter=lambda: None if (signed := membership.charter()) is None else signed.charter,
            status=membership.status,
            contracts=home.contracts,
        )
        self._conductor = Conductor(
            store=self._store,
            recorder=self._recorder,
            link=self.link,
            new_message_id=self.link.message_ids.next,
            settings=configuration.jobs,
            clock=clock,
            log=log,
            forget=lambda job: retention.forget_means(self._store, self._blobs, job),
        )
        self._threads = JobThreads(
            prepare=self._prepare,
            has_ended=lambda job: self._store.jobs.get(job).job.state in job_machine.ENDS,
            on_broken=self._break,
            on_stopped=lambda job: self._conductor.pump(),
            log=log,
        )
        self._reception.connect(
            conductor=self._conductor,
            threads=self._threads,
            send=self.link.send,
            new_message_id=self.link.message_ids.next,
        )
        self.witnessing.connect(self.link, self.link.message_ids.next)
        self._housekeeping = Housekeeping(
            home,
            configuration,
            membership=membership,
            link=self.link,
            reception=self._reception,
            blobs=self._blobs,
            clock=clock,
            log=log,
        )
        self._overview = Overview(self._store, why=self._conductor.why)
        self._released = ReleasedFiles(self._store, self._blobs)
        self.fatal: AuditError | None = None
        self.on_fatal: Callable[[], None] = lambda: None
        self._started = False
        self._closed = False

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> int:
        """Go on with every unfinished job where it was, open the link, and return its port.

        Raises:
            ConfigurationWrong: The address can't be listened on.
        """
        record_settings(self.home.path, self.configuration, append=self.audit.append, new_id=self.audit.new_id)
        self._store.presence.everyone_is_lost()
        port = self.link.start()
        self._conductor.start(self._threads)
        self._housekeeping.start()
        self.witnessing.start()
        self._started = True
        self.log.info("coordinator.started")
        return port

    def stop(self, *, at_once: bool = False, broke: bool = False) -> None:
        """Stop at the next safe point: no model is half written, every round goes on after the next start.

        Args:
            at_once: Don't wait; what is being written is written again after the next start.
            broke: An error ends the service; the log says so.
        """
        if self._closed:
            return
        self._closed = True
        self.witnessing.stop()
        self._housekeeping.stop()
        self._conductor.stop()
        left = self._threads.stop(timeout_s=0.2 if at_once else STOP_WAIT_S)
        if self._started:
            self.link.stop(0.0 if at_once else 1.0)
        for job in left:
            self.log.warning("job.cut", job=job)
        self.audit.close("error" if broke else "signal" if at_once else "drain")
        self._engine.dispose()
        self._lock.release()

    def ready(self) -> dict[str, str]:
        """Return what isn't ready, by part; nothing when the service can work."""
        problems: dict[str, str] = {}
        try:
            self._store.jobs.page(limit=1)
        except DBAPIError:
            problems["database"] = "the database doesn't answer"
        if self.audit.broken:
            problems["audit"] = "the audit log can't be written"
        if not self._started or self._closed:
            problems["link"] = "the link isn't open"
        return problems

    @property
    def identity_public(self) -> bytes:
        """Return the coordinator's public identity key, 32 bytes."""
        return self._identity.public

    # --- plans and jobs ---------------------------------------------------------------------------------------

    def resolve(self, text: bytes, *, contract: bytes | None = None) -> ResolvedPlan:
        """Return the plan in `text` (YAML or canonical bytes) with every open field filled in, to be signed."""
        return self._submissions.resolve(text, contract_text=contract)

    def resolve_retry(self, job: str, from_round: int) -> ResolvedPlan:
        """Return the plan of a new job that does a job's rounds again from round `from_round`, counted from 0."""
        return self._submissions.resolve_retry(JobId(job), from_round)

    def validate(self, text: bytes, *, contract: bytes | None = None, actor: str | None = None) -> ValidationView:
        """Return what a valid plan means; every problem of an invalid one is raised at once. `actor` is recorded."""
        try:
            found = self._submissions.validate(text, contract_text=contract)
        except ConfideError as problem:
            if actor is not None:
                self.callers.plan_validated(actor, canonical.digest(text), problem.code)
            raise
        if actor is not None:
            self.callers.plan_validated(actor, found.plan_digest, None)
        return found

    def awaits(self, site: str) -> bool:
        """Return whether a round of this process waits for an update of `site` that hasn't been handed to it."""
        return bool(self._threads.waiting_for(SiteId(site)))

    def previews(
        self,
        text: bytes,
        sites: Sequence[str] | None = None,
        *,
        submitter: str,
        contract: bytes | None = None,
        timeout_s: float | None = None,
    ) -> tuple[PreviewView, ...]:
        """Ask sites (None: all invited) what they would answer if `submitter` signed the plan; nothing is promised."""
        resolved = self.resolve(text, contract=contract)
        wanted = sorted(resolved.plan.sites.invite if sites is None else sites)
        unknown = sorted(set(wanted) - set(resolved.plan.sites.invite))
        if unknown:
            raise InvalidInput("CFD-J02", f"the plan doesn't invite {', '.join(unknown)}")
        answers = self._previews.ask(
            self.link,
            wanted,
            lambda: PreviewRequest(
                message_id=self.link.message_ids.next(),
                plan=resolved.data.hex(),
                contract=resolved.contract.hex(),
                submitter=submitter,
            ),
            timeout_s=self.configuration.jobs.preview_s if timeout_s is None else timeout_s,
        )
        return tuple(showing.preview_view(site, answers.get(site)) for site in wanted)

    def submit(
        self,
        data: bytes,
        *,
        submitter: str,
        signature: bytes | None,
        contract: bytes | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[JobView, bool]:
        """Put a resolved plan into the queue; return the job, and whether it is new. See `Submissions.submit`."""
        record, new = self._submissions.submit(
            data,
            submitter=submitter,
            signature=signature,
            contract_text=contract,
            priority=priority,
            idempotency_key=idempotency_key,
        )
        if new:
            self.log.info("job.submitted", job=record.id)
            self._conductor.pump()
            self.witnessing.announce(about_of(record.id, None))
        return self.show(record.id), new

    def pause(self, job: str, actor: str | None = None) -> JobView:
        """Let the job's round end and begin no other."""
        return self._move(job, "pause", job_machine.PauseAsked(), actor)

    def resume(self, job: str, actor: str | None = None) -> JobView:
        """Go on with a paused job."""
        return self._move(job, "resume", job_machine.ResumeAsked(), actor)

    def cancel(self, job: str, actor: str | None = None, reason: str = "") -> JobView:
        """End a job for good; nothing of its open round is released, and its sites settle their budgets."""
        return self._move(job, "cancel", job_machine.CancelAsked(reason or "cancelled by a person"), actor)

    def _move(self, job: str, act: str, event: job_machine.JobEvent, actor: str | None) -> JobView:
        """Take a job through what a person asked for; where its state doesn't allow that, the no is recorded."""
        try:
            self._conductor.step(JobId(job), event, actor=self._conductor.actor_of(actor))
        except OutOfOrder as problem:
            if actor is not None:
                self.callers.act_refused(actor, "coordinator", act, job, problem.code)
            raise
        return self.show(job)

    def why(self, job: str) -> str:
        """Return in one sentence what a job waits for, or why it ended."""
        return self._overview.show(JobId(job)).waiting or self._conductor.why(JobId(job))

    # --- showing ----------------------------------------------------------------------------------------------

    def plan(self, job: str) -> bytes:
        """Return the canonical bytes of a job's plan."""
        return self._store.jobs.get(JobId(job)).plan

    def contract(self, job: str) -> bytes:
        """Return the canonical bytes of a job's data contract."""
        return self._store.jobs.get(JobId(job)).contract

    def list_jobs(
        self, states: Iterable[str] | None = None, *, before: int | None = None, limit: int = 100
    ) -> tuple[JobView, ...]:
        """Return jobs, the newest first; `before` is the `number` of the last one of the page before."""
        return self._overview.jobs(states, before=before, limit=limit)

    def show(self, job: str) -> JobView:
        """Return a job with its sites and rounds."""
        return self._overview.show(JobId(job))

    def events(self, job: str, *, after: int = 0, limit: int = 500) -> tuple[EventView, ...]:
        """Return a job's events with a number above `after`, the oldest first."""
        found = self._store.jobs.events(JobId(job), after=after, limit=limit)
        return tuple(showing.event_view(event) for event in found)

    def watch(self, job: str, *, after: int = 0, wait_s: float = 15.0) -> tuple[EventView, ...]:
        """Return a job's events above `after` as soon as there are any, or nothing after `wait_s`."""
        until_s = self.clock.monotonic_s() + wait_s
        seen = self._store.database.wait_for_news(-1, timeout_s=0)
        while not (found := self.events(job, after=after)):
            left_s = until_s - self.clock.monotonic_s()
            if left_s <= 0 or self._closed:
                return ()
            seen = self._store.database.wait_for_news(seen, timeout_s=left_s)
        return found

    def sites(self) -> tuple[SiteView, ...]:
        """Return every site that ever said hello, and what it works on."""
        return self._overview.sites()

    def result_files(self, job: str, round: int | None = None) -> ResultView:  # noqa: A002 (the word that people use)
        """Return the files of a job's newest released model, or of the one after `round`, counted from 0.

        Raises:
            InvalidInput: There is no such model, or it is no longer kept.
        """
        return self._released.of(JobId(job), round)

    def metrics(self) -> Mapping[str, Any]:
        """Return figures for monitoring: jobs by state, rounds by outcome, sites up, bytes, free places."""
        return self._overview.metrics()

    # --- jobs at work -----------------------------------------------------------------------------------------

    def _prepare(self, job: JobId) -> tuple[RoundWork, Any, Callable[[], None]]:
        flower.quieten_flower(self.home.path)
        from coordinator.flower_server import LinkGrid, make_server_app

        record = self._store.jobs.get(job)
        wanted = plan.decode(record.plan)
        known = contract.from_canonical(record.contract)
        bounds = self.configuration.rounds
        work = RoundWork(
            record,
            wanted,
            self._submissions.first_model(wanted, known),
            store=self._store,
            registry=self._registry,
            recorder=self._recorder,
            clock=self.clock,
            new_message_id=self.link.message_ids.next,
            settings=RoundSettings(
                max_update_norm=bounds.max_update_norm,
                deadline_scale=bounds.deadline_scale,
                models_kept_count=self.configuration.retention.models_count,
            ),
            close=self._conductor.close_round,
            combine_robustly=robust_means.robust_mean,
            witness=self.witnessing,
            sums=SumSetting(self._charter, DigestSigner(self._identity), lambda: secrets.token_bytes(32)),
        )
        grid = LinkGrid(job, record.job.sites, self.link, self.clock, lost_after_s=bounds.lost_after_s)
        app = make_server_app(work)
        return work, grid, lambda: app(grid, flower.context_for(job, "coordinator"))

    def _charter(self) -> Charter:
        signed = self.membership.charter()
        if signed is None:
            raise OutOfOrder("CFD-G01", "no charter was signed yet")
        return signed.charter

    def _active_sites(self) -> tuple[str, ...]:
        signed = self.membership.charter()
        if signed is None:
            return ()
        return tuple(member.site for member in signed.charter.members if member.status is MemberStatus.ACTIVE)

    def _invited(self, job: str) -> Collection[str]:
        try:
            return self._store.jobs.get(JobId(job)).job.sites
        except InvalidInput:
            return ()

    def _on_fatal(self, problem: AuditError) -> None:
        """The log here is behind or forked, and frozen: this process must end."""
        self.fatal = problem
        self.on_fatal()

    def _break(self, job: JobId, reason: str) -> None:
        self._conductor.step(job, job_machine.Broke(reason))

    def _tls(self) -> ServerTls:
        files = self.home.credentials()
        return ServerTls(key_pem=files.private_key, certificate_pem=files.certificate, authority_pem=files.authority)


def open_service(home: CoordinatorHome, *, clock: Clock, log: Log) -> CoordinatorService:
    """Return the service of `home`, opened and not yet started.

    Raises:
        ConfigurationWrong: Another process uses the home, or something in it is wrong. Nothing was changed.
        AuditError: The audit log can't be opened.
    """
    configuration = membership_home.load(home)
    lock = HomeLock(home.lock_folder).acquire()
    try:
        engine = membership_home.open_database(home, configuration)
        membership = membership_home.open_membership(home, configuration, engine, clock)
        network = configuration.database.allow_network_filesystem
        audit = AuditLog.open(
            home.audit,
            clock=clock,
            settings=configuration.audit.log_settings(allow_network_filesystem=network),
            serve_socket=True,
            on_broken=end_this_process,
        )
        try:
            return CoordinatorService(
                home,
                configuration,
                engine=engine,
                lock=lock,
                audit=audit,
                membership=membership,
                enrolment=membership_home.open_enrolment(home, configuration, membership, log=audit, clock=clock),
                identity=home.identity(),
                clock=clock,
                log=log,
            )
        except BaseException:
            audit.close("error")
            raise
    except BaseException:
        lock.release()
        raise
