"""Signed releases, the blobs that they name, and their metrics, on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection, insert, select, update

from coordinator import job_machine, queries, round_machine, rows, tables
from coordinator.job_machine import JobState
from coordinator.records import AttemptRecord, Fact, ReleaseRecord
from coordinator.site_machine import TAKES_PART
from coordinator.transactions import Transactions
from federation.errors import OutOfOrder
from federation.messages import JobId, Phase, SiteId

_TAKES_PART: Final = tuple(sorted(state.value for state in TAKES_PART))


class ReleaseStore:
    """The releases of one database."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def save(
        self, release: ReleaseRecord, facts: Sequence[Fact] = (), *, evaluate_by_us: int | None = None
    ) -> AttemptRecord | None:
        """Store a release and, for a step above 0, its attempt as released, in one transaction; return that attempt.

        The release of a step that is stored already changes nothing, so that a repeated step releases once.

        Args:
            release: The signed release.
            facts: Events to store with it.
            evaluate_by_us: When its evaluation closes, where it is to be evaluated.

        Raises:
            OutOfOrder: The job ended meanwhile; nothing was written.
        """

        def work(connection: Connection) -> AttemptRecord | None:
            now = self._database.now_us()
            columns = tables.release.c
            known = select(columns.digest).where(columns.job == release.job, columns.step == release.step)
            attempt = queries.attempt(connection, release.job, release.round, release.attempt)
            if connection.scalar(known) is not None:
                return attempt
            state = connection.scalar(select(tables.job.c.state).where(tables.job.c.id == release.job))
            if JobState(str(state)) in job_machine.ENDS:
                raise OutOfOrder("CFD-J01", f"job {release.job} is {state}, nothing more is released")
            connection.execute(insert(tables.release).values(rows.release_values(release)))
            queries.tell(connection, release.job, facts, now)
            if release.step == 0:
                return None
            before = queries.there(attempt)
            after, _ = round_machine.step(before.round, round_machine.Released())
            saved = queries.save_round(connection, release.job, before, after, now)
            if evaluate_by_us is not None:
                statement = queries.of(update(tables.attempt), release.job, release.round, release.attempt)
                connection.execute(statement.values(evaluate_by_us=evaluate_by_us))
            return replace(saved, evaluate_by_us=evaluate_by_us)

        return self._database.change(release.job, work)

    def get(self, job_id: JobId, step: int) -> ReleaseRecord | None:
        """Return the release of the server step `step` (0: the initial model), or None."""
        columns = tables.release.c
        query = select(tables.release).where(columns.job == job_id, columns.step == step)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else rows.release_record(row)

    def newest(self, job_id: JobId) -> ReleaseRecord | None:
        """Return a job's release with the highest step, or None."""
        columns = tables.release.c
        query = select(tables.release).where(columns.job == job_id).order_by(columns.step.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else rows.release_record(row)

    def newest_evaluated(self, job_id: JobId) -> ReleaseRecord | None:
        """Return a job's newest release with metrics, or None."""
        columns = tables.release.c
        query = (
            select(tables.release)
            .where(columns.job == job_id, columns.metrics.is_not(None))
            .order_by(columns.step.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else rows.release_record(row)

    def all(self, job_id: JobId) -> list[ReleaseRecord]:
        """Return a job's releases in the order of their steps."""
        query = select(tables.release).where(tables.release.c.job == job_id).order_by(tables.release.c.step)
        with self._database.read() as connection:
            return [rows.release_record(row) for row in connection.execute(query)]

    def save_metrics(
        self,
        job_id: JobId,
        step: int,
        *,
        at: tuple[int, int],
        metrics: Mapping[str, float | None],
        facts: Sequence[Fact] = (),
    ) -> None:
        """Keep a release's metrics, and forget the single sites' figures behind them, in one transaction.

        Args:
            job_id: The job.
            step: The release's server step.
            at: Round and attempt that were evaluated.
            metrics: By name; None where undefined.
            facts: Events to store with them.
        """

        def work(connection: Connection) -> None:
            columns = tables.release.c
            kept = update(tables.release).where(columns.job == job_id, columns.step == step)
            connection.execute(kept.values(metrics=rows.as_text(dict(metrics))))
            replies = queries.of(update(tables.phase_reply), job_id, *at, table=tables.phase_reply)
            single = replies.where(tables.phase_reply.c.phase == Phase.EVALUATE.value)
            connection.execute(single.values(body=None, signature=None))
            queries.tell(connection, job_id, facts, self._database.now_us())

        self._database.change(job_id, work)

    def roots(self, *, except_job: JobId | None = None) -> set[str]:
        """Return the roots of every blob that a release names, of all jobs but one."""
        columns = tables.release.c
        named = select(columns.record_root, columns.mean_root, columns.model_root, columns.state_root)
        if except_job is not None:
            named = named.where(columns.job != except_job)
        with self._database.read() as connection:
            found = connection.execute(named).all()
        return {root for row in found for root in row if root is not None}

    def may_read(self, site: SiteId, root: str) -> bool:
        """Return whether a release of a job in which `site` takes part names the blob `root` as its record or mean."""
        release, invited = tables.release.c, tables.job_site.c
        query = (
            select(release.step)
            .join(tables.job_site, invited.job == release.job)
            .where(
                (release.record_root == root) | (release.mean_root == root),
                invited.site == site,
                invited.state.in_(_TAKES_PART),
            )
        )
        with self._database.read() as connection:
            return connection.execute(query.limit(1)).first() is not None
