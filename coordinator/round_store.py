"""Attempts of rounds and the sites' answers to their phases, on disk.

An answer is kept once, while its phase is open: the same again changes nothing, other bytes are refused, one that comes
too late is refused and says so. Only the job's own thread writes attempts; answers come from the link's threads, and
the database decides which of the two came first.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, func, insert, select, union_all, update

from coordinator import job_machine, queries, round_machine, rows, tables
from coordinator.job_machine import Job, JobState, JobStep
from coordinator.records import AttemptRecord, Fact, JobRecord, ReplyRecord
from coordinator.round_machine import Round, RoundState, Standing
from coordinator.site_machine import SiteEvent, SiteState
from coordinator.transactions import Transactions
from federation.errors import OutOfOrder, PeerMisbehaved
from federation.messages import SUM_PHASES, JobId, Phase

_REPLY: Final = tables.phase_reply.c
_ONE_REPLY: Final = (
    _REPLY.job == bindparam("job_id"),
    _REPLY.round == bindparam("number"),
    _REPLY.attempt == bindparam("attempt_number"),
    _REPLY.phase == bindparam("phase_name"),
    _REPLY.site == bindparam("site_id"),
)
_KNOWN: Final = select(_REPLY.body_digest).where(*_ONE_REPLY)
_PEER: Final = select(_REPLY.peer).where(*_ONE_REPLY)
_KEEP: Final = insert(tables.phase_reply)
_ADD_BYTES: Final = (
    update(tables.attempt)
    .where(
        tables.attempt.c.job == bindparam("job_id"),
        tables.attempt.c.round == bindparam("number"),
        tables.attempt.c.attempt == bindparam("attempt_number"),
    )
    .values(upload_bytes=tables.attempt.c.upload_bytes + bindparam("more"))
)
_STATE: Final = select(tables.job.c.state).where(tables.job.c.id == bindparam("job_id"))


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
            ended_us = now if round_.state in round_machine.ENDS else None
            return AttemptRecord(job_id, round_, now, deadline_us, None, ended_us, 0)

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
            queries.tell(connection, job_id, facts, now)
            return queries.save_round(connection, job_id, before, round_, now)

        return self._database.change(job_id, work)

    def close(
        self, job_id: JobId, event: job_machine.RoundReleased | job_machine.RoundAbandoned, facts: Sequence[Fact] = ()
    ) -> tuple[JobRecord, tuple[JobStep, ...]]:
        """Take the job past a round that ended and whose updates are removed; its sites stand as the attempt left them.

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
            forget = update(tables.phase_reply).where(
                tables.phase_reply.c.job == job_id, tables.phase_reply.c.round == before.job.round
            )
            connection.execute(forget.values(update_root=None))
            return queries.save_job(connection, before, after, facts, now), actions

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
        key = {
            "job_id": reply.job,
            "number": reply.round,
            "attempt_number": reply.attempt,
            "phase_name": reply.phase.value,
            "site_id": reply.site,
        }

        def work(connection: Connection) -> bool:
            known = connection.scalar(_KNOWN, key)
            if known is not None:
                if known != reply.fingerprint:
                    raise PeerMisbehaved(
                        "CFD-R02", f"site {reply.site} answered round {reply.round} ({reply.phase}) twice, differently"
                    )
                return False
            _check_open(connection, reply)
            connection.execute(
                _KEEP,
                {
                    "job": reply.job,
                    "round": reply.round,
                    "attempt": reply.attempt,
                    "phase": reply.phase.value,
                    "site": reply.site,
                    "body": reply.body,
                    "signature": reply.signature,
                    "body_digest": reply.fingerprint,
                    "update_root": update_root,
                    "received_us": reply.received_us,
                    "peer": reply.peer,
                },
            )
            if upload_bytes:
                connection.execute(_ADD_BYTES, {**key, "more": upload_bytes})
            return True

        return self._database.once(work)

    def fingerprint(self, job_id: JobId, number: int, attempt: int, phase: Phase, site: str) -> str | None:
        """Return by what a site's kept answer to a phase is known, None where there is none."""
        key = {
            "job_id": job_id,
            "number": number,
            "attempt_number": attempt,
            "phase_name": phase.value,
            "site_id": site,
        }
        with self._database.read() as connection:
            found: str | None = connection.scalar(_KNOWN, key)
        return found

    def peer(self, job_id: JobId, number: int, attempt: int, site: str, phase: Phase = Phase.TRAIN) -> str | None:
        """Return the log entry that a site proved with the answer that names its upload, as JSON, or None."""
        key = {
            "job_id": job_id,
            "number": number,
            "attempt_number": attempt,
            "phase_name": phase.value,
            "site_id": site,
        }
        with self._database.read() as connection:
            found: str | None = connection.scalar(_PEER, key)
        return found

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
        """Return the roots of a round's stored updates that no other round's answer and no release names too."""
        columns, released = tables.phase_reply.c, tables.release.c
        mine = select(columns.update_root).where(
            columns.job == job_id, columns.round == number, columns.update_root.is_not(None)
        )
        others = select(columns.update_root).where(
            columns.update_root.in_(mine), (columns.job != job_id) | (columns.round != number)
        )
        named = [
            select(column).where(column.in_(mine))
            for column in (released.mean_root, released.model_root, released.state_root, released.record_root)
        ]
        with self._database.read() as connection:
            kept = set(connection.scalars(union_all(others, *named)))
            return sorted({str(root) for root in connection.scalars(mine)} - kept)


def _check_open(connection: Connection, reply: ReplyRecord) -> None:
    """Refuse an answer to a phase that isn't open for this site."""
    at = f"round {reply.round} attempt {reply.attempt} of job {reply.job}"
    state = connection.scalar(_STATE, {"job_id": reply.job})
    attempt = queries.attempt(connection, reply.job, reply.round, reply.attempt)
    if state is None or attempt is None or reply.site not in attempt.round.sites:
        raise PeerMisbehaved("CFD-R02", f"site {reply.site} wasn't asked in {at}")
    if reply.phase is Phase.TRAIN:
        is_open = attempt.round.state is RoundState.TRAINING and not attempt.round.closed
    elif reply.phase is Phase.CONCLUDE:
        is_open = attempt.round.secure and attempt.round.state is RoundState.RELEASED
    elif reply.phase in SUM_PHASES:
        is_open = attempt.round.secure and attempt.round.awaits_mean
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
