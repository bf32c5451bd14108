"""Jobs, their sites' answers and their events on disk. A step of the job machine is one transaction."""

import json
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from sqlalchemy import Connection, func, insert, select, update

from coordinator import job_machine, queries, rows, tables
from coordinator.job_machine import Job, JobEvent, JobState, JobStep
from coordinator.records import EventRecord, Fact, JobRecord, NewJob
from coordinator.site_machine import SiteInJob
from coordinator.transactions import Transactions
from federation.errors import InvalidInput
from federation.messages import JobId, SiteId


class JobStore:
    """The jobs of one database."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def by_key(self, idempotency_key: str) -> JobRecord | None:
        """Return the job that was submitted under a key, or None."""
        query = select(tables.job.c.id).where(tables.job.c.idempotency_key == idempotency_key)
        with self._database.read() as connection:
            found = connection.scalar(query)
            return None if found is None else queries.job(connection, JobId(found))

    def create(self, new: NewJob) -> tuple[JobRecord, bool]:
        """Store a submitted job in state queued; return it, and whether it is new.

        The same idempotency key with the same plan gives back the job that it made the first time.

        Raises:
            InvalidInput: The key was used for another plan; nothing was stored.
        """

        def work(connection: Connection) -> tuple[JobRecord, bool]:
            known = self._known_job(connection, new)
            if known is not None:
                return known, known.id == new.id
            now = self._database.now_us()
            fresh = Job(
                quorum=new.quorum,
                rounds=new.rounds,
                attempts=new.attempts,
                sites=MappingProxyType({site: SiteInJob(since_us=now) for site in new.invited}),
            )
            queued, _ = job_machine.step(fresh, job_machine.Submitted())
            number = connection.scalar(select(func.coalesce(func.max(tables.job.c.number), 0))) or 0
            values = {
                "id": new.id,
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
                    insert(tables.job_site).values(job=new.id, site=site, told="", **rows.site_values(standing))
                )
            queries.tell(
                connection, new.id, [("job.submitted", {"state": JobState.QUEUED.value})], self._database.now_us()
            )
            return queries.job(connection, new.id), True

        return self._database.once(work)

    def _known_job(self, connection: Connection, new: NewJob) -> JobRecord | None:
        """Return the job that this call, or an earlier one under the same key, has stored already."""
        where = tables.job.c.id == new.id
        if new.idempotency_key is not None:
            where = where | (tables.job.c.idempotency_key == new.idempotency_key)
        row = connection.execute(select(tables.job.c.id, tables.job.c.plan_digest).where(where)).first()
        if row is None:
            return None
        if row.plan_digest != new.plan_digest:
            raise InvalidInput("CFD-J05", f"the idempotency key was used for job {row.id}, which has another plan")
        return queries.job(connection, JobId(row.id))

    def get(self, job_id: JobId) -> JobRecord:
        """Return a job.

        Raises:
            InvalidInput: There is none of that id.
        """
        with self._database.read() as connection:
            return queries.job(connection, job_id)

    def page(
        self, states: Iterable[JobState] | None = None, *, before: int | None = None, limit: int = 100
    ) -> list[JobRecord]:
        """Return jobs, the newest first, at most `limit`; `before` is the number of the last one of the page before."""
        query = select(tables.job).order_by(tables.job.c.number.desc()).limit(limit)
        if states is not None:
            query = query.where(tables.job.c.state.in_([state.value for state in states]))
        if before is not None:
            query = query.where(tables.job.c.number < before)
        with self._database.read() as connection:
            found = connection.execute(query).all()
            sites = queries.sites(connection, [row.id for row in found])
            return [rows.job_record(row, sites.get(row.id, {})) for row in found]

    def step(self, job_id: JobId, event: JobEvent, facts: Sequence[Fact] = ()) -> tuple[JobRecord, tuple[JobStep, ...]]:
        """Take a job through `event`; the new state and the `facts` are on disk on return.

        Raises:
            OutOfOrder: The job's state doesn't know the event; nothing was written.
            InvalidInput: There is no such job.
        """

        def work(connection: Connection) -> tuple[JobRecord, tuple[JobStep, ...]]:
            before = queries.job(connection, job_id)
            after, actions = job_machine.step(before.job, event)
            return queries.save_job(connection, before, after, facts, self._database.now_us()), actions

        return self._database.change(job_id, work)

    def save_answer(self, job_id: JobId, site: SiteId, body: bytes, signature: bytes) -> None:
        """Keep the signed body of a site's last answer to an offer."""

        def work(connection: Connection) -> None:
            connection.execute(
                update(tables.job_site)
                .where(tables.job_site.c.job == job_id, tables.job_site.c.site == site)
                .values(answer=body, answer_signature=signature)
            )

        self._database.change(job_id, work)

    def answer(self, job_id: JobId, site: SiteId) -> tuple[bytes, bytes] | None:
        """Return body and signature of a site's last answer, or None."""
        with self._database.read() as connection:
            row = connection.execute(
                select(tables.job_site.c.answer, tables.job_site.c.answer_signature).where(
                    tables.job_site.c.job == job_id, tables.job_site.c.site == site
                )
            ).first()
        return None if row is None or row.answer is None else (row.answer, row.answer_signature)

    def of_site(self, site: SiteId, states: Iterable[JobState]) -> list[JobRecord]:
        """Return the jobs in `states` that invite a site, the oldest first."""
        query = (
            select(tables.job)
            .join(tables.job_site, tables.job_site.c.job == tables.job.c.id)
            .where(tables.job_site.c.site == site, tables.job.c.state.in_([state.value for state in states]))
            .order_by(tables.job.c.number)
        )
        with self._database.read() as connection:
            found = connection.execute(query).all()
            sites = queries.sites(connection, [row.id for row in found])
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
        with self._database.read() as connection:
            found = connection.execute(query).all()
            sites = queries.sites(connection, [row.id for row in found])
            return [(rows.job_record(row, sites.get(row.id, {})), row.told) for row in found]

    def told(self, job_id: JobId, site: SiteId, what: str) -> None:
        """Keep that a site's link has taken over the news `what` of a job."""

        def work(connection: Connection) -> None:
            connection.execute(
                update(tables.job_site)
                .where(tables.job_site.c.job == job_id, tables.job_site.c.site == site)
                .values(told=what)
            )

        self._database.change(job_id, work)

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in each state."""
        columns = tables.job.c
        with self._database.read() as connection:
            found = connection.execute(select(columns.state, func.count()).group_by(columns.state)).all()
        return {str(row[0]): int(row[1]) for row in found}

    def everybody_told(self, job_id: JobId) -> bool:
        """Return whether every site of an ended job that got the offer has been told of the end."""
        query = (
            select(tables.job_site.c.site)
            .join(tables.job, tables.job.c.id == tables.job_site.c.job)
            .where(tables.job_site.c.job == job_id, tables.job_site.c.told != tables.job.c.state)
        )
        with self._database.read() as connection:
            return connection.execute(query.limit(1)).first() is None

    def events(self, job_id: JobId, *, after: int = 0, limit: int = 500) -> list[EventRecord]:
        """Return a job's events with a number above `after`, the oldest first."""
        columns = tables.event.c
        query = (
            select(tables.event)
            .where(columns.job == job_id, columns.number > after)
            .order_by(columns.number)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [
                EventRecord(row.number, JobId(row.job), row.at_us, row.name, json.loads(row.fields))
                for row in connection.execute(query)
            ]
