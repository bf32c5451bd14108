"""The coordinator's durable state: jobs, sites' answers, attempts of rounds, replies, releases, events, presence.

Rules:

- The database is the only truth. A step of a machine reads the state, decides and writes in one transaction; callers
  act on the returned actions only afterwards. Nothing is cached between transactions.
- A method that returns has its effect on disk; a method that raises has none, also when the connection was lost at
  COMMIT: every change has a name of its own, which is looked up before it is tried again.
- An answer of a site to a phase is kept once; the same again changes nothing, other bytes are refused.
- No transaction stays open while anything waits or computes.

Any number of threads may share a store.
"""

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, func, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from coordinator import job_machine, round_machine, rows, tables
from coordinator.job_machine import Job, JobEvent, JobState, JobStep
from coordinator.records import (
    AttemptRecord,
    EventRecord,
    JobRecord,
    NewJob,
    PresenceRecord,
    ReleaseRecord,
    ReplyRecord,
)
from coordinator.round_machine import Round, RoundEvent, RoundState, RoundStep, Standing
from coordinator.site_machine import SiteEvent, SiteInJob, SiteState
from federation import canonical
from federation.edge.clock import Clock
from federation.edge.database import read, transact
from federation.errors import InvalidInput, OutOfOrder, PeerMisbehaved
from federation.messages import JobId, Phase, SiteId

T = TypeVar("T")
Fact = tuple[str, Mapping[str, Any]]
"""The name and the fields of an event that is stored with a change."""

RECONNECT_DELAYS_S: Final = (0.2, 1.0, 3.0, 8.0, 15.0)
"""How long a change waits before it is tried again after the database's connection was lost."""


def microseconds(clock: Clock) -> int:
    """Return the wall time as microseconds UTC."""
    now = clock.now()
    return int(now.timestamp()) * 1_000_000 + now.microsecond


class Store:
    """Durable state behind one engine, whose tables `migrations.bring_up` has made."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._news = threading.Condition()
        self._news_count = 0

    # --- jobs -------------------------------------------------------------------------------------------------

    def create_job(self, new: NewJob) -> tuple[JobRecord, bool]:
        """Store a submitted job in state queued; return it, and whether it is new.

        The same idempotency key with the same plan gives back the job that it made the first time.

        Raises:
            InvalidInput: The key was used for another plan; nothing was stored.
        """
        job_id = JobId(f"{new.name}-{secrets.token_hex(3)}")

        def work(connection: Connection) -> tuple[JobRecord, bool]:
            known = self._known_job(connection, new, job_id)
            if known is not None:
                return known, known.id == job_id
            now = microseconds(self._clock)
            fresh = Job(
                quorum=new.quorum,
                rounds=new.rounds,
                attempts=new.attempts,
                sites=MappingProxyType({site: SiteInJob(since_us=now) for site in new.invited}),
            )
            queued, _ = job_machine.step(fresh, job_machine.Submitted())
            number = connection.scalar(select(func.coalesce(func.max(tables.job.c.number), 0))) or 0
            values = {
                "id": job_id,
                "number": number + 1,
                "name": new.name,
                "plan": new.plan,
                "plan_digest": new.plan_digest,
                "contract": new.contract,
                "submitter": new.submitter,
                "signature": new.signature,
                "vouched": new.vouched,
                "priority": new.priority,
                "idempotency_key": new.idempotency_key,
                "parent": new.parent,
                "parent_round": new.parent_round,
                "submitted_us": now,
                "change": "",
                **rows.job_values(queued),
            }
            connection.execute(insert(tables.job).values(values))
            for site, standing in queued.sites.items():
                connection.execute(
                    insert(tables.job_site).values(job=job_id, site=site, told="", **rows.site_values(standing))
                )
            self._tell(connection, job_id, [("job.submitted", {"state": JobState.QUEUED.value})])
            return self._job(connection, job_id), True

        return self._again(work)

    def _known_job(self, connection: Connection, new: NewJob, job_id: JobId) -> JobRecord | None:
        """Return the job that this call, or an earlier one under the same key, has stored already."""
        where = tables.job.c.id == job_id
        if new.idempotency_key is not None:
            where = where | (tables.job.c.idempotency_key == new.idempotency_key)
        row = connection.execute(select(tables.job.c.id, tables.job.c.plan_digest).where(where)).first()
        if row is None:
            return None
        if row.plan_digest != new.plan_digest:
            raise InvalidInput("CFD-J05", f"the idempotency key was used for job {row.id}, which has another plan")
        return self._job(connection, JobId(row.id))

    def job(self, job_id: JobId) -> JobRecord:
        """Return a job.

        Raises:
            InvalidInput: There is none of that id.
        """
        with read(self._engine) as connection:
            return self._job(connection, job_id)

    def jobs(
        self, states: Iterable[JobState] | None = None, *, before: int | None = None, limit: int = 100
    ) -> list[JobRecord]:
        """Return jobs, the newest first, at most `limit`; `before` is the number of the last one of the page before."""
        query = select(tables.job).order_by(tables.job.c.number.desc()).limit(limit)
        if states is not None:
            query = query.where(tables.job.c.state.in_([state.value for state in states]))
        if before is not None:
            query = query.where(tables.job.c.number < before)
        with read(self._engine) as connection:
            found = connection.execute(query).all()
            sites = self._sites(connection, [row.id for row in found])
            return [rows.job_record(row, sites.get(row.id, {})) for row in found]

    def step_job(
        self, job_id: JobId, event: JobEvent, facts: Sequence[Fact] = ()
    ) -> tuple[JobRecord, tuple[JobStep, ...]]:
        """Take a job through `event`; the new state and the `facts` are on disk on return.

        Raises:
            OutOfOrder: The job's state doesn't know the event; nothing was written.
            InvalidInput: There is no such job.
        """

        def work(connection: Connection) -> tuple[JobRecord, tuple[JobStep, ...]]:
            before = self._job(connection, job_id)
            after, actions = job_machine.step(before.job, event)
            self._save_job(connection, before, after, facts)
            return self._job(connection, job_id), actions

        return self._change(job_id, work)

    def save_answer(self, job_id: JobId, site: SiteId, body: bytes, signature: bytes) -> None:
        """Keep the signed body of a site's last answer to an offer."""

        def work(connection: Connection) -> None:
            connection.execute(
                update(tables.job_site)
                .where(tables.job_site.c.job == job_id, tables.job_site.c.site == site)
                .values(answer=body, answer_signature=signature)
            )

        self._change(job_id, work)

    def answer(self, job_id: JobId, site: SiteId) -> tuple[bytes, bytes] | None:
        """Return body and signature of a site's last answer, or None."""
        with read(self._engine) as connection:
            row = connection.execute(
                select(tables.job_site.c.answer, tables.job_site.c.answer_signature).where(
                    tables.job_site.c.job == job_id, tables.job_site.c.site == site
                )
            ).first()
        return None if row is None or row.answer is None else (row.answer, row.answer_signature)

    def jobs_of(self, site: SiteId, states: Iterable[JobState]) -> list[JobRecord]:
        """Return the jobs in `states` that invite a site, the oldest first."""
        query = (
            select(tables.job)
            .join(tables.job_site, tables.job_site.c.job == tables.job.c.id)
            .where(tables.job_site.c.site == site, tables.job.c.state.in_([state.value for state in states]))
            .order_by(tables.job.c.number)
        )
        with read(self._engine) as connection:
            found = connection.execute(query).all()
            sites = self._sites(connection, [row.id for row in found])
            return [rows.job_record(row, sites.get(row.id, {})) for row in found]

    def untold(self, site: SiteId) -> list[tuple[JobRecord, str]]:
        """Return the ended jobs whose end this site's link hasn't taken over yet, with what it was told last."""
        ended = [state.value for state in job_machine.ENDS]
        query = (
            select(tables.job, tables.job_site.c.told)
            .join(tables.job_site, tables.job_site.c.job == tables.job.c.id)
            .where(
                tables.job_site.c.site == site,
                tables.job.c.state.in_(ended),
                tables.job.c.offered_us.is_not(None),
                tables.job_site.c.told != tables.job.c.state,
            )
            .order_by(tables.job.c.number)
        )
        with read(self._engine) as connection:
            found = connection.execute(query).all()
            sites = self._sites(connection, [row.id for row in found])
            return [(rows.job_record(row, sites.get(row.id, {})), row.told) for row in found]

    def told(self, job_id: JobId, site: SiteId, what: str) -> None:
        """Keep that a site's link has taken over the news `what` of a job."""

        def work(connection: Connection) -> None:
            connection.execute(
                update(tables.job_site)
                .where(tables.job_site.c.job == job_id, tables.job_site.c.site == site)
                .values(told=what)
            )

        self._change(job_id, work)

    # --- rounds -----------------------------------------------------------------------------------------------

    def open_attempt(
        self, job_id: JobId, round_: Round, *, deadline_us: int, facts: Sequence[Fact] = ()
    ) -> AttemptRecord:
        """Store a fresh attempt of a round; the same attempt again gives back what is stored."""

        def work(connection: Connection) -> AttemptRecord:
            known = self._attempt(connection, job_id, round_.number, round_.attempt)
            if known is not None:
                return known
            connection.execute(
                insert(tables.attempt).values(
                    job=job_id,
                    round=round_.number,
                    attempt=round_.attempt,
                    secure=round_.secure,
                    quorum=round_.quorum,
                    cohort=rows.as_text(sorted(round_.sites)),
                    opened_us=microseconds(self._clock),
                    deadline_us=deadline_us,
                    upload_bytes=0,
                    **rows.round_values(round_),
                )
            )
            self._tell(connection, job_id, facts)
            return _there(self._attempt(connection, job_id, round_.number, round_.attempt))

        return self._change(job_id, work)

    def attempt(self, job_id: JobId, number: int, attempt: int) -> AttemptRecord | None:
        """Return one attempt of a round, or None."""
        with read(self._engine) as connection:
            return self._attempt(connection, job_id, number, attempt)

    def attempts(self, job_id: JobId) -> list[AttemptRecord]:
        """Return every attempt of a job's rounds in order."""
        columns = tables.attempt.c
        query = select(tables.attempt).where(columns.job == job_id).order_by(columns.round, columns.attempt)
        with read(self._engine) as connection:
            return [rows.attempt_record(row) for row in connection.execute(query)]

    def step_attempt(
        self, job_id: JobId, number: int, attempt: int, event: RoundEvent, facts: Sequence[Fact] = ()
    ) -> tuple[AttemptRecord, tuple[RoundStep, ...]]:
        """Take an attempt of a round through `event`; the new state and the `facts` are on disk on return.

        Raises:
            OutOfOrder: The attempt's state doesn't know the event; nothing was written.
        """

        def work(connection: Connection) -> tuple[AttemptRecord, tuple[RoundStep, ...]]:
            before = _there(self._attempt(connection, job_id, number, attempt))
            after, actions = round_machine.step(before.round, event)
            if after != before.round:
                self._save_round(connection, job_id, before, after)
            self._tell(connection, job_id, facts)
            return _there(self._attempt(connection, job_id, number, attempt)), actions

        return self._change(job_id, work)

    def evaluate_by(self, job_id: JobId, number: int, attempt: int, deadline_us: int) -> int:
        """Fix when the evaluation of a released round closes; return the time that was fixed first."""

        def work(connection: Connection) -> int:
            known = _there(self._attempt(connection, job_id, number, attempt))
            if known.evaluate_by_us is not None:
                return known.evaluate_by_us
            connection.execute(_of(update(tables.attempt), job_id, number, attempt).values(evaluate_by_us=deadline_us))
            return deadline_us

        return self._change(job_id, work)

    def close_round(
        self, job_id: JobId, event: job_machine.RoundReleased | job_machine.RoundAbandoned, facts: Sequence[Fact] = ()
    ) -> tuple[JobRecord, tuple[JobStep, ...]]:
        """Take the job past a round that ended; its sites stand as the attempt left them."""

        def work(connection: Connection) -> tuple[JobRecord, tuple[JobStep, ...]]:
            before = self._job(connection, job_id)
            attempt = _there(self._attempt(connection, job_id, before.job.round, before.job.attempt))
            after, actions = job_machine.step(_heard(before.job, attempt.round, microseconds(self._clock)), event)
            self._save_job(connection, before, after, facts)
            return self._job(connection, job_id), actions

        return self._change(job_id, work)

    # --- replies ----------------------------------------------------------------------------------------------

    def save_reply(self, reply: ReplyRecord, *, upload_bytes: int = 0) -> bool:
        """Keep a site's answer to a phase; return whether it is new.

        Raises:
            PeerMisbehaved: The site answered this phase before with other bytes; the first answer stands.
        """
        fingerprint = canonical.digest(reply.body or b"")
        columns = tables.phase_reply.c
        same = (
            (columns.job == reply.job)
            & (columns.round == reply.round)
            & (columns.attempt == reply.attempt)
            & (columns.phase == reply.phase.value)
            & (columns.site == reply.site)
        )

        def work(connection: Connection) -> bool:
            known = connection.scalar(select(columns.body_digest).where(same))
            if known is not None:
                if known != fingerprint:
                    raise PeerMisbehaved(
                        "CFD-R02", f"site {reply.site} answered round {reply.round} ({reply.phase}) twice, differently"
                    )
                return False
            connection.execute(
                insert(tables.phase_reply).values(
                    job=reply.job,
                    round=reply.round,
                    attempt=reply.attempt,
                    phase=reply.phase.value,
                    site=reply.site,
                    body=reply.body,
                    signature=reply.signature,
                    body_digest=fingerprint,
                    received_us=reply.received_us,
                )
            )
            if upload_bytes:
                total = tables.attempt.c.upload_bytes + upload_bytes
                connection.execute(
                    _of(update(tables.attempt), reply.job, reply.round, reply.attempt).values(upload_bytes=total)
                )
            return True

        return self._again(work)

    def replies(self, job_id: JobId, number: int, attempt: int, phase: Phase) -> list[ReplyRecord]:
        """Return the kept answers to a phase in the order of site ids."""
        query = (
            _of(select(tables.phase_reply), job_id, number, attempt, table=tables.phase_reply)
            .where(tables.phase_reply.c.phase == phase.value)
            .order_by(tables.phase_reply.c.site)
        )
        with read(self._engine) as connection:
            return [rows.reply_record(row) for row in connection.execute(query)]

    # --- releases ---------------------------------------------------------------------------------------------

    def save_release(self, release: ReleaseRecord, facts: Sequence[Fact] = ()) -> AttemptRecord | None:
        """Store a release and, for a step above 0, its attempt as released, in one transaction.

        The release of a step that is stored already changes nothing, so that a repeated step releases once.
        """

        def work(connection: Connection) -> AttemptRecord | None:
            columns = tables.release.c
            known = connection.scalar(
                select(columns.digest).where(columns.job == release.job, columns.step == release.step)
            )
            if known is None:
                connection.execute(insert(tables.release).values(rows.release_values(release)))
                self._tell(connection, release.job, facts)
            if release.step == 0:
                return None
            before = _there(self._attempt(connection, release.job, release.round, release.attempt))
            if before.round.state is not RoundState.RELEASED:
                after, _ = round_machine.step(before.round, round_machine.Released())
                self._save_round(connection, release.job, before, after)
            return self._attempt(connection, release.job, release.round, release.attempt)

        return self._change(release.job, work)

    def release(self, job_id: JobId, step: int) -> ReleaseRecord | None:
        """Return the release of the server step `step` (0: the initial model), or None."""
        columns = tables.release.c
        query = select(tables.release).where(columns.job == job_id, columns.step == step)
        with read(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else rows.release_record(row)

    def releases(self, job_id: JobId) -> list[ReleaseRecord]:
        """Return a job's releases in the order of their steps."""
        query = select(tables.release).where(tables.release.c.job == job_id).order_by(tables.release.c.step)
        with read(self._engine) as connection:
            return [rows.release_record(row) for row in connection.execute(query)]

    def save_metrics(
        self, job_id: JobId, step: int, number: int, attempt: int, metrics: Mapping[str, float | None]
    ) -> None:
        """Keep a release's metrics, and forget the single sites' counts behind them, in one transaction."""

        def work(connection: Connection) -> None:
            columns = tables.release.c
            connection.execute(
                update(tables.release)
                .where(columns.job == job_id, columns.step == step)
                .values(metrics=rows.as_text(dict(metrics)))
            )
            connection.execute(
                _of(update(tables.phase_reply), job_id, number, attempt, table=tables.phase_reply)
                .where(tables.phase_reply.c.phase == Phase.EVALUATE.value)
                .values(body=None, signature=None)
            )

        self._change(job_id, work)

    # --- events -----------------------------------------------------------------------------------------------

    def events(self, job_id: JobId, *, after: int = 0, limit: int = 500) -> list[EventRecord]:
        """Return a job's events with a number above `after`, the oldest first."""
        columns = tables.event.c
        query = (
            select(tables.event)
            .where(columns.job == job_id, columns.number > after)
            .order_by(columns.number)
            .limit(limit)
        )
        with read(self._engine) as connection:
            return [
                EventRecord(row.number, JobId(row.job), row.at_us, row.name, json.loads(row.fields))
                for row in connection.execute(query)
            ]

    def wait_for_news(self, seen: int, *, timeout_s: float) -> int:
        """Wait until something changed after the count `seen`, at most `timeout_s`; return the count now."""
        with self._news:
            self._news.wait_for(lambda: self._news_count != seen, timeout=timeout_s)
            return self._news_count

    # --- presence ---------------------------------------------------------------------------------------------

    def save_presence(self, site: SiteId, *, connected: bool, hello: bytes | None = None) -> None:
        """Keep that a site's link stands or broke just now; its last hello stays unless a new one is given."""

        def work(connection: Connection) -> None:
            now = microseconds(self._clock)
            columns = tables.presence.c
            known = connection.execute(select(tables.presence).where(columns.site == site)).first()
            if known is None:
                values = {"connected": connected, "since_us": now, "seen_us": now, "hello": hello}
                connection.execute(insert(tables.presence).values(site=site, **values))
                return
            values = {"connected": connected, "seen_us": now, "hello": hello or known.hello}
            values["since_us"] = now if known.connected != connected else known.since_us
            connection.execute(update(tables.presence).where(columns.site == site).values(values))

        self._again(work)

    def presences(self) -> dict[SiteId, PresenceRecord]:
        """Return what is known of every site's link."""
        with read(self._engine) as connection:
            return {
                SiteId(row.site): PresenceRecord(SiteId(row.site), row.connected, row.since_us, row.seen_us, row.hello)
                for row in connection.execute(select(tables.presence))
            }

    def everyone_is_lost(self) -> None:
        """Keep at the start of the service that no link stands yet."""

        def work(connection: Connection) -> None:
            connection.execute(
                update(tables.presence)
                .where(tables.presence.c.connected.is_(True))
                .values(connected=False, since_us=microseconds(self._clock))
            )

        self._again(work)

    # --- inside -----------------------------------------------------------------------------------------------

    def _change(self, job_id: JobId, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction that bears a name, and only once, whatever happens to the connection."""
        name = secrets.token_hex(8)
        kept: list[T] = []

        def once(connection: Connection) -> T:
            found = connection.execute(
                select(tables.job.c.change).where(tables.job.c.id == job_id).with_for_update()
            ).first()
            if found is None:
                raise InvalidInput("CFD-J02", f"no job {job_id}")
            if kept and found.change == name:
                return kept[0]
            result = work(connection)
            connection.execute(update(tables.job).where(tables.job.c.id == job_id).values(change=name))
            kept[:] = [result]
            return result

        return self._again(once)

    def _again(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which finds out itself whether it is done already, until the database is back, with an end."""
        for delay_s in (*RECONNECT_DELAYS_S, None):
            try:
                result = transact(self._engine, work)
            except IntegrityError:
                if delay_s is None:
                    raise
                # Two writers at once on one key: the second run finds what the first one stored.
            except DBAPIError as problem:
                if delay_s is None or not problem.connection_invalidated:
                    raise
                self._clock.sleep(delay_s)
            else:
                with self._news:
                    self._news_count += 1
                    self._news.notify_all()
                return result
        raise OutOfOrder("CFD-G01", "a change of the database was neither made nor refused")

    def _job(self, connection: Connection, job_id: JobId) -> JobRecord:
        row = connection.execute(select(tables.job).where(tables.job.c.id == job_id)).first()
        if row is None:
            raise InvalidInput("CFD-J02", f"no job {job_id}")
        return rows.job_record(row, self._sites(connection, [job_id]).get(job_id, {}))

    def _sites(self, connection: Connection, jobs: Sequence[str]) -> dict[str, dict[SiteId, SiteInJob]]:
        columns = tables.job_site.c
        query = select(columns.job, columns.site, columns.state, columns.reasons, columns.since_us)
        found: dict[str, dict[SiteId, SiteInJob]] = {}
        for row in connection.execute(query.where(columns.job.in_(jobs)).order_by(columns.site)):
            standing = SiteInJob(SiteState(row.state), tuple(json.loads(row.reasons)), row.since_us)
            found.setdefault(row.job, {})[SiteId(row.site)] = standing
        return found

    def _save_job(self, connection: Connection, before: JobRecord, after: Job, facts: Sequence[Fact]) -> None:
        now = microseconds(self._clock)
        values = rows.job_values(after)
        if after.state is not before.job.state:
            if after.state is JobState.OFFERED:
                values["offered_us"] = now
            if after.state is JobState.RUNNING and before.started_us is None:
                values["started_us"] = now
            if after.state in job_machine.ENDS:
                values["ended_us"] = now
            facts = [*facts, (f"job.{after.state}", {"reason": after.reason} if after.reason else {})]
        connection.execute(update(tables.job).where(tables.job.c.id == before.id).values(values))
        for site, standing in after.sites.items():
            if standing != before.job.sites[site]:
                columns = tables.job_site.c
                connection.execute(
                    update(tables.job_site)
                    .where(columns.job == before.id, columns.site == site)
                    .values(rows.site_values(standing))
                )
        self._tell(connection, before.id, facts)

    def _attempt(self, connection: Connection, job_id: JobId, number: int, attempt: int) -> AttemptRecord | None:
        row = connection.execute(_of(select(tables.attempt), job_id, number, attempt)).first()
        return None if row is None else rows.attempt_record(row)

    def _save_round(self, connection: Connection, job_id: JobId, before: AttemptRecord, after: Round) -> None:
        values = rows.round_values(after)
        if after.state in round_machine.ENDS:
            values["ended_us"] = microseconds(self._clock)
        statement = _of(update(tables.attempt), job_id, before.round.number, before.round.attempt)
        connection.execute(statement.values(values))

    def _tell(self, connection: Connection, job_id: JobId, facts: Sequence[Fact]) -> None:
        now = microseconds(self._clock)
        lines = [
            {"job": job_id, "at_us": now, "name": name, "fields": rows.as_text(dict(fields))} for name, fields in facts
        ]
        if lines:
            connection.execute(insert(tables.event), lines)


def _heard(job: Job, round_: Round, now_us: int) -> Job:
    """Return `job` with its sites standing as the ended attempt left them."""
    for site, standing in round_.sites.items():
        if not job.sites[site].takes_part:
            continue
        event = SiteEvent.ANSWER if standing is Standing.ANSWERED else SiteEvent.MISS
        if standing is Standing.LOST:
            event = SiteEvent.LOSE
        if event is SiteEvent.ANSWER and job.sites[site].state is not SiteState.TRAINING:
            event = SiteEvent.ACCEPT
        reasons = (round_.late[site],) if site in round_.late else ()
        job, _ = job_machine.step(job, job_machine.SiteMoved(site, event, reasons, now_us))
    return job


def _there(record: AttemptRecord | None) -> AttemptRecord:
    if record is None:
        raise OutOfOrder("CFD-R01", "the attempt of the round isn't stored")
    return record


def _of(statement: Any, job_id: JobId, number: int, attempt: int, *, table: Any = tables.attempt) -> Any:
    return statement.where(table.c.job == job_id, table.c.round == number, table.c.attempt == attempt)
