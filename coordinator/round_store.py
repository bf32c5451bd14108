"""Attempts of rounds and the sites' answers to their phases, on disk.

An answer is kept once, while its phase is open: the same again changes nothing, other bytes are refused, one that comes
too late is refused and says so. Only the job's own thread writes attempts; answers come from the link's threads, and
the database decides which of the two came first.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select, update

from coordinator import job_machine, queries, round_machine, rows, tables
from coordinator.job_machine import Job, JobState, JobStep
from coordinator.records import AttemptRecord, Fact, JobRecord, ReplyRecord
from coordinator.round_machine import Round, RoundState, Standing
from coordinator.site_machine import SiteEvent, SiteState
from coordinator.transactions import Transactions
from federation.errors import OutOfOrder, PeerMisbehaved
from federation.messages import JobId, Phase


class RoundStore:
    """The rounds of one database."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    # --- attempts ---------------------------------------------------------------------------------------------

    def open(self, job_id: JobId, round_: Round, *, deadline_us: int, facts: Sequence[Fact] = ()) -> AttemptRecord:
        """Store a fresh attempt of the job's round, its sites asked; the same attempt again gives back what is stored.

        Raises:
            OutOfOrder: The job isn't running, or is at another round or attempt; nothing was written.
        """

        def work(connection: Connection) -> AttemptRecord:
            known = queries.attempt(connection, job_id, round_.number, round_.attempt)
            if known is not None:
                return known
            now = self._database.now_us()
            before = queries.job(connection, job_id)
            at = (before.job.round, before.job.attempt)
            if before.job.state is not JobState.RUNNING or at != (round_.number, round_.attempt):
                raise OutOfOrder("CFD-J01", f"job {job_id} is {before.job.state}, at round {at[0]} attempt {at[1]}")
            after = before.job
            for site in round_.sites:
                after, _ = job_machine.step(after, job_machine.SiteMoved(site, SiteEvent.ASK, (), now))
            connection.execute(
                insert(tables.attempt).values(
                    job=job_id,
                    round=round_.number,
                    attempt=round_.attempt,
                    secure=round_.secure,
                    quorum=round_.quorum,
                    cohort=rows.as_text(sorted(round_.sites)),
                    opened_us=now,
                    deadline_us=deadline_us,
                    ended_us=now if round_.state in round_machine.ENDS else None,
                    upload_bytes=0,
                    **rows.round_values(round_),
                )
            )
            queries.save_job(connection, before, after, facts, now)
            return queries.there(queries.attempt(connection, job_id, round_.number, round_.attempt))

        return self._database.change(job_id, work)

    def get(self, job_id: JobId, number: int, attempt: int) -> AttemptRecord | None:
        """Return one attempt of a round, or None."""
        with self._database.read() as connection:
            return queries.attempt(connection, job_id, number, attempt)

    def all(self, job_id: JobId) -> list[AttemptRecord]:
        """Return every attempt of a job's rounds in order."""
        columns = tables.attempt.c
        query = select(tables.attempt).where(columns.job == job_id).order_by(columns.round, columns.attempt)
        with self._database.read() as connection:
            return [rows.attempt_record(row) for row in connection.execute(query)]

    def save(self, job_id: JobId, round_: Round, facts: Sequence[Fact] = ()) -> AttemptRecord:
        """Store what an attempt of a round has become.

        Raises:
            OutOfOrder: The attempt has ended already; nothing was written.
        """

        def work(connection: Connection) -> AttemptRecord:
            now = self._database.now_us()
            before = queries.there(queries.attempt(connection, job_id, round_.number, round_.attempt))
            if before.round.state in round_machine.ENDS:
                raise OutOfOrder("CFD-R01", f"round {round_.number} attempt {round_.attempt} is {before.round.state}")
            queries.save_round(connection, job_id, before, round_, now)
            queries.tell(connection, job_id, facts, now)
            return queries.there(queries.attempt(connection, job_id, round_.number, round_.attempt))

        return self._database.change(job_id, work)

    def evaluate_by(self, job_id: JobId, number: int, attempt: int, deadline_us: int) -> int:
        """Open the evaluation of a released round, and return when it closes: the time that was fixed first."""

        def work(connection: Connection) -> int:
            known = queries.there(queries.attempt(connection, job_id, number, attempt))
            if known.evaluate_by_us is not None:
                return known.evaluate_by_us
            statement = queries.of(update(tables.attempt), job_id, number, attempt)
            connection.execute(statement.values(evaluate_by_us=deadline_us))
            return deadline_us

        return self._database.change(job_id, work)

    def close(
        self, job_id: JobId, event: job_machine.RoundReleased | job_machine.RoundAbandoned, facts: Sequence[Fact] = ()
    ) -> tuple[JobRecord, tuple[JobStep, ...]]:
        """Take the job past a round that ended; its sites stand as the attempt left them.

        Raises:
            OutOfOrder: The job has ended, or is at another round; nothing was written.
        """

        def work(connection: Connection) -> tuple[JobRecord, tuple[JobStep, ...]]:
            now = self._database.now_us()
            before = queries.job(connection, job_id)
            if before.job.state in job_machine.ENDS:
                raise OutOfOrder("CFD-J01", f"job {job_id} is {before.job.state}")
            attempt = queries.there(queries.attempt(connection, job_id, before.job.round, before.job.attempt))
            after, actions = job_machine.step(_heard(before.job, attempt.round, now), event)
            queries.save_job(connection, before, after, facts, now)
            return queries.job(connection, job_id), actions

        return self._database.change(job_id, work)

    # --- figures ----------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return how many attempts of rounds there are in each state."""
        columns = tables.attempt.c
        with self._database.read() as connection:
            found = connection.execute(select(columns.state, func.count()).group_by(columns.state)).all()
        return {str(row[0]): int(row[1]) for row in found}

    def upload_bytes(self) -> int:
        """Return the bytes of all updates that were ever taken in."""
        with self._database.read() as connection:
            return int(connection.scalar(select(func.coalesce(func.sum(tables.attempt.c.upload_bytes), 0))) or 0)

    def seconds(self, *, limit: int = 100) -> list[float]:
        """Return how long the newest released rounds took, the newest first."""
        columns = tables.attempt.c
        query = (
            select(columns.opened_us, columns.ended_us)
            .where(columns.state == RoundState.RELEASED.value)
            .order_by(columns.ended_us.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [(ended - opened) / 1e6 for opened, ended in connection.execute(query)]

    def reply_counts(self) -> dict[str, int]:
        """Return how many answers to each phase were ever taken in."""
        columns = tables.phase_reply.c
        with self._database.read() as connection:
            found = connection.execute(select(columns.phase, func.count()).group_by(columns.phase)).all()
        return {str(row[0]): int(row[1]) for row in found}

    # --- replies ----------------------------------------------------------------------------------------------

    def save_reply(self, reply: ReplyRecord, *, update_root: str | None = None, upload_bytes: int = 0) -> bool:
        """Keep a site's answer to a phase that is open; return whether it is new.

        Raises:
            PeerMisbehaved: The site wasn't asked, answered before with other bytes (the first answer stands), or is
                late: `CFD-R07`. Nothing was written.
        """
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
                if known != reply.fingerprint:
                    raise PeerMisbehaved(
                        "CFD-R02", f"site {reply.site} answered round {reply.round} ({reply.phase}) twice, differently"
                    )
                return False
            _check_open(connection, reply)
            connection.execute(
                insert(tables.phase_reply).values(
                    job=reply.job,
                    round=reply.round,
                    attempt=reply.attempt,
                    phase=reply.phase.value,
                    site=reply.site,
                    body=reply.body,
                    signature=reply.signature,
                    body_digest=reply.fingerprint,
                    update_root=update_root,
                    received_us=reply.received_us,
                )
            )
            if upload_bytes:
                total = tables.attempt.c.upload_bytes + upload_bytes
                statement = queries.of(update(tables.attempt), reply.job, reply.round, reply.attempt)
                connection.execute(statement.values(upload_bytes=total))
            return True

        return self._database.once(work)

    def replies(self, job_id: JobId, number: int, attempt: int, phase: Phase) -> list[ReplyRecord]:
        """Return the kept answers to a phase in the order of site ids."""
        query = (
            queries.of(select(tables.phase_reply), job_id, number, attempt, table=tables.phase_reply)
            .where(tables.phase_reply.c.phase == phase.value)
            .order_by(tables.phase_reply.c.site)
        )
        with self._database.read() as connection:
            return [rows.reply_record(row) for row in connection.execute(query)]

    def update_roots(self, job_id: JobId, number: int) -> list[str]:
        """Return the roots of a round's stored updates that no answer of another round names too."""
        columns = tables.phase_reply.c
        mine = select(columns.update_root).where(
            columns.job == job_id, columns.round == number, columns.update_root.is_not(None)
        )
        others = select(columns.update_root).where(
            columns.update_root.is_not(None), (columns.job != job_id) | (columns.round != number)
        )
        with self._database.read() as connection:
            kept = set(connection.scalars(others))
            return sorted({root for root in connection.scalars(mine) if root is not None and root not in kept})

    def forget_updates(self, job_id: JobId, number: int) -> None:
        """Keep that a round's updates are no longer stored."""

        def work(connection: Connection) -> None:
            columns = tables.phase_reply.c
            statement = update(tables.phase_reply).where(columns.job == job_id, columns.round == number)
            connection.execute(statement.values(update_root=None))

        self._database.change(job_id, work)


def _check_open(connection: Connection, reply: ReplyRecord) -> None:
    """Refuse an answer to a phase that isn't open for this site."""
    at = f"round {reply.round} attempt {reply.attempt} of job {reply.job}"
    state = connection.scalar(select(tables.job.c.state).where(tables.job.c.id == reply.job))
    attempt = queries.attempt(connection, reply.job, reply.round, reply.attempt)
    if state is None or attempt is None or reply.site not in attempt.round.sites:
        raise PeerMisbehaved("CFD-R02", f"site {reply.site} wasn't asked in {at}")
    if reply.phase is Phase.TRAIN:
        is_open = attempt.round.state is RoundState.TRAINING and not attempt.round.closed
    else:
        columns = tables.release.c
        metrics = select(columns.metrics).where(
            columns.job == reply.job, columns.round == reply.round, columns.step > 0
        )
        is_open = attempt.evaluate_by_us is not None and connection.scalar(metrics) is None
    if JobState(state) in job_machine.ENDS or not is_open:
        raise PeerMisbehaved("CFD-R07", f"the answer of site {reply.site} to {at} ({reply.phase}) came too late")


def _heard(job: Job, round_: Round, now_us: int) -> Job:
    """Return `job` with its sites standing as the ended attempt left them."""
    moves = {Standing.ANSWERED: SiteEvent.ANSWER, Standing.LOST: SiteEvent.LOSE}
    for site, standing in round_.sites.items():
        if job.sites[site].state is not SiteState.TRAINING:
            continue  # it left the job meanwhile
        reasons = (round_.late[site],) if site in round_.late else ()
        event = moves.get(standing, SiteEvent.MISS)
        job, _ = job_machine.step(job, job_machine.SiteMoved(site, event, reasons, now_us))
    return job
