"""What the daemon must still know after it was killed: jobs, answers, replies, unsent messages, applied releases.

Each method is one transaction that is on disk when it returns (see `federation.edge.database`), or did nothing.
One process writes; the home's lock sees to that. A reply is stored together with the message that carries it, so a
phase is either still under way after a crash or has the one reply that it will ever have.
"""

import json
from typing import Any, Final

from sqlalchemy import Connection, Engine, delete, insert, select, update

from federation.edge.database import read, transact
from federation.errors import ConfideError, ConfigurationWrong
from federation.messages import (
    Answer,
    BlobReference,
    Body,
    JobId,
    MessageRefused,
    Phase,
    PhaseReply,
    decode_body,
    encode_body,
    kind_of,
)
from site_client.migrations import bring_up
from site_client.session import ENDED, Session, Stage, Work, decode_session, encode_session
from site_client.stored import Applied, Approval, Outgoing, PolicyVersion, StoredJob, Terms
from site_client.tables import APPROVAL, FLAG, JOB, LINEAGE, OUTBOX, POLICY_VERSION, REPLY

OUTBOX_LIMIT: Final = 10_000


class StoreFull(ConfideError):
    """Too many messages wait for the coordinator; nothing was stored."""


class Store:
    """The daemon's tables in `site.db`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        bring_up(engine)

    def close(self) -> None:
        """Give the database back."""
        self._engine.dispose()

    # --- jobs -------------------------------------------------------------------------------------------------

    def job(self, job: JobId) -> StoredJob | None:
        """Return the job, or None where this site never heard of it."""
        with read(self._engine) as connection:
            row = connection.execute(select(JOB).where(JOB.c.job == job)).one_or_none()
        return None if row is None else _stored(row)

    def jobs(self) -> tuple[StoredJob, ...]:
        """Return every job, oldest first."""
        with read(self._engine) as connection:
            rows = connection.execute(select(JOB).order_by(JOB.c.received_us, JOB.c.job)).all()
        return tuple(_stored(row) for row in rows)

    def open_jobs(self) -> tuple[StoredJob, ...]:
        """Return the jobs that have neither ended nor been refused."""
        closed = [stage.value for stage in (*ENDED, Stage.REFUSED)]
        with read(self._engine) as connection:
            rows = connection.execute(
                select(JOB).where(JOB.c.stage.not_in(closed)).order_by(JOB.c.received_us, JOB.c.job)
            ).all()
        return tuple(_stored(row) for row in rows)

    def add_job(self, job: StoredJob) -> None:
        """Store a job that is new to this site."""

        def write(connection: Connection) -> None:
            connection.execute(
                insert(JOB).values(
                    job=job.job,
                    plan=job.plan,
                    plan_digest=job.plan_digest,
                    contract=job.contract,
                    submitter=job.submitter,
                    signature=job.signature,
                    vouched=int(job.vouched),
                    session=encode_session(job.session),
                    stage=job.session.stage.value,
                    answer=None,
                    terms=None,
                    closed=0,
                    received_us=job.received_us,
                )
            )

        transact(self._engine, write)

    def unclosed(self) -> tuple[StoredJob, ...]:
        """Return the jobs that have ended, and whose end isn't wholly carried out yet."""
        ended = [stage.value for stage in ENDED]
        with read(self._engine) as connection:
            rows = connection.execute(select(JOB).where(JOB.c.stage.in_(ended), JOB.c.closed == 0)).all()
        return tuple(_stored(row) for row in rows)

    def mark_closed(self, job: JobId) -> None:
        """Note that a job's end is wholly carried out: settled, recorded, its files removed."""

        def write(connection: Connection) -> None:
            connection.execute(update(JOB).where(JOB.c.job == job).values(closed=1))

        transact(self._engine, write)

    def save_session(self, session: Session) -> None:
        """Store where the job stands now."""

        def write(connection: Connection) -> None:
            _save_session(connection, session)

        transact(self._engine, write)

    def save_answer(self, session: Session, answer: Answer, terms: Terms | None) -> None:
        """Store the decision, its terms, and the message that tells the coordinator, all or none."""

        def write(connection: Connection) -> None:
            _save_session(connection, session)
            values: dict[str, Any] = {"answer": encode_body(answer)}
            if terms is not None:
                values["terms"] = json.dumps(_terms_out(terms), sort_keys=True)
            connection.execute(update(JOB).where(JOB.c.job == session.job).values(**values))
            _queue(connection, answer, answer.message_id)

        transact(self._engine, write)

    # --- replies and the outbox -------------------------------------------------------------------------------

    def reply(self, job: JobId, work: Work) -> PhaseReply | None:
        """Return the one reply of a phase, or None where it has none."""
        with read(self._engine) as connection:
            body = connection.execute(select(REPLY.c.body).where(*_key(job, work))).scalar_one_or_none()
        if body is None:
            return None
        reply = _body("phase-reply", body)
        if not isinstance(reply, PhaseReply):
            raise TypeError("a stored reply is of another kind")
        return reply

    def receipts(self, job: JobId, round_number: int) -> tuple[bytes, ...]:
        """Return the leaves of the entries `update.sent` that this site sent for a round, one for each attempt."""
        carriers = (Phase.TRAIN.value, Phase.MASK.value)
        wanted = (REPLY.c.job == job, REPLY.c.round == round_number, REPLY.c.phase.in_(carriers))
        with read(self._engine) as connection:
            bodies = connection.execute(select(REPLY.c.body).where(*wanted)).scalars().all()
        replies = (_body("phase-reply", body) for body in bodies)
        return tuple(
            bytes.fromhex(reply.receipt) for reply in replies if isinstance(reply, PhaseReply) and reply.receipt
        )

    def save_reply(self, session: Session, work: Work, reply: PhaseReply, applied: Applied | None) -> None:
        """Store how a phase ended, its message and the applied release; a phase that has a reply keeps it."""

        def write(connection: Connection) -> None:
            _save_session(connection, session)
            if applied is not None:
                _save_applied(connection, session.job, applied)
            _keep_reply(connection, session.job, work, reply)

        transact(self._engine, write)

    def keep_reply(self, job: JobId, work: Work, reply: PhaseReply) -> None:
        """Store the reply of a phase that wasn't begun, with its message; a phase that has one keeps it."""

        def write(connection: Connection) -> None:
            _keep_reply(connection, job, work, reply)

        transact(self._engine, write)

    def update_of_round(self, job: JobId, round_number: int) -> BlobReference | None:
        """Return the newest update that this site made for a round and still holds, whichever attempt it was for."""
        query = (
            select(REPLY.c.update_root, REPLY.c.update_bytes)
            .where(REPLY.c.job == job, REPLY.c.round == round_number, REPLY.c.phase == Phase.TRAIN.value)
            .where(REPLY.c.update_root.is_not(None))
            .order_by(REPLY.c.attempt.desc())
            .limit(1)
        )
        with read(self._engine) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else BlobReference(root=row.update_root, size_bytes=row.update_bytes)

    def updates_before(self, job: JobId, round_number: int) -> tuple[tuple[str, int], ...]:
        """Return root and size of update blobs of rounds before `round_number`, which nobody will ask for again."""
        query = select(REPLY.c.update_root, REPLY.c.update_bytes).where(
            REPLY.c.job == job, REPLY.c.round < round_number, REPLY.c.update_root.is_not(None)
        )
        with read(self._engine) as connection:
            return tuple((row.update_root, row.update_bytes) for row in connection.execute(query).all())

    def forget_update(self, job: JobId, root: str) -> None:
        """Note that the update's blob is gone from the home."""

        def write(connection: Connection) -> None:
            connection.execute(
                update(REPLY).where(REPLY.c.job == job, REPLY.c.update_root == root).values(update_root=None)
            )

        transact(self._engine, write)

    def queue(self, message: Body, message_id: str) -> None:
        """Store a message until the coordinator acknowledges it.

        Raises:
            StoreFull: The coordinator has been away for too long.
        """

        def write(connection: Connection) -> None:
            _queue(connection, message, message_id)

        transact(self._engine, write)

    def outbox(self) -> tuple[Outgoing, ...]:
        """Return what the coordinator hasn't acknowledged, oldest first."""
        with read(self._engine) as connection:
            rows = connection.execute(select(OUTBOX).order_by(OUTBOX.c.number)).all()
        return tuple(Outgoing(row.number, row.message_id, row.kind, row.body) for row in rows)

    def outgoing(self, message_id: str) -> Body | None:
        """Return a message that the coordinator hasn't acknowledged, None where there is none of that id."""
        with read(self._engine) as connection:
            row = connection.execute(select(OUTBOX).where(OUTBOX.c.message_id == message_id)).one_or_none()
        return None if row is None else _body(row.kind, row.body)

    def acknowledge(self, message_ids: tuple[str, ...]) -> None:
        """Forget messages that the coordinator has."""

        def write(connection: Connection) -> None:
            connection.execute(delete(OUTBOX).where(OUTBOX.c.message_id.in_(message_ids)))

        transact(self._engine, write)

    # --- lineage ----------------------------------------------------------------------------------------------

    def applied(self, job: JobId) -> Applied | None:
        """Return the newest release that the site followed in the job."""
        with read(self._engine) as connection:
            row = connection.execute(select(LINEAGE).where(LINEAGE.c.job == job)).one_or_none()
        return None if row is None else Applied(row.release, row.round, row.step, row.digest)

    # --- approvals --------------------------------------------------------------------------------------------

    def file_approval(self, approval: Approval) -> None:
        """Store a request for a person's decision."""

        def write(connection: Connection) -> None:
            connection.execute(
                insert(APPROVAL).values(
                    approval=approval.approval,
                    job=approval.job,
                    plan_digest=approval.plan_digest,
                    rule=approval.rule,
                    reasons=json.dumps(list(approval.reasons)),
                    state=approval.state,
                    filed_us=approval.filed_us,
                    expires_us=approval.expires_us,
                )
            )

        transact(self._engine, write)

    def decide_approval(self, approval: str, *, state: str, by: str, at_us: int, reason: str) -> bool:
        """Store a person's decision; returns False where it no longer waits for one."""

        def write(connection: Connection) -> bool:
            changed = connection.execute(
                update(APPROVAL)
                .where(APPROVAL.c.approval == approval, APPROVAL.c.state == "waiting")
                .values(state=state, decided_by=by, decided_us=at_us, reason=reason)
            )
            return changed.rowcount == 1

        return transact(self._engine, write)

    def approvals(self, *, state: str | None = None) -> tuple[Approval, ...]:
        """Return approvals, oldest first, of one state or of all."""
        query = select(APPROVAL).order_by(APPROVAL.c.filed_us, APPROVAL.c.approval)
        if state is not None:
            query = query.where(APPROVAL.c.state == state)
        with read(self._engine) as connection:
            return tuple(_approval(row) for row in connection.execute(query).all())

    def approval(self, approval: str) -> Approval | None:
        """Return one approval."""
        with read(self._engine) as connection:
            row = connection.execute(select(APPROVAL).where(APPROVAL.c.approval == approval)).one_or_none()
        return None if row is None else _approval(row)

    # --- policies ---------------------------------------------------------------------------------------------

    def policies(self) -> tuple[PolicyVersion, ...]:
        """Return every content of the policy file that this daemon has worked with, oldest first."""
        with read(self._engine) as connection:
            rows = connection.execute(select(POLICY_VERSION).order_by(POLICY_VERSION.c.number)).all()
        return tuple(PolicyVersion(row.number, row.digest, row.content, row.taken_us) for row in rows)

    def add_policy(self, *, digest: str, content: bytes, taken_us: int) -> None:
        """Keep a content of the policy file."""

        def write(connection: Connection) -> None:
            connection.execute(insert(POLICY_VERSION).values(digest=digest, content=content, taken_us=taken_us))

        transact(self._engine, write)

    # --- flags ------------------------------------------------------------------------------------------------

    def flag(self, name: str) -> str | None:
        """Return a remembered setting of the operator, such as ``paused``."""
        with read(self._engine) as connection:
            return connection.execute(select(FLAG.c.value).where(FLAG.c.name == name)).scalar_one_or_none()

    def set_flag(self, name: str, value: str | None) -> None:
        """Remember a setting of the operator, or forget it with None."""

        def write(connection: Connection) -> None:
            connection.execute(delete(FLAG).where(FLAG.c.name == name))
            if value is not None:
                connection.execute(insert(FLAG).values(name=name, value=value))

        transact(self._engine, write)


def _body(kind: str, data: bytes) -> Body:
    """Return a message that this site stored.

    Raises:
        ConfigurationWrong: The bytes in the database are no such message any more.
    """
    try:
        return decode_body(kind, data)
    except MessageRefused as problem:
        raise ConfigurationWrong("CFD-G09", f"a row of the site's database is damaged: {problem}") from problem


def _key(job: JobId, work: Work) -> tuple[Any, ...]:
    return (
        REPLY.c.job == job,
        REPLY.c.round == work.round,
        REPLY.c.attempt == work.attempt,
        REPLY.c.phase == work.phase.value,
    )


def _save_session(connection: Connection, session: Session) -> None:
    connection.execute(
        update(JOB).where(JOB.c.job == session.job).values(session=encode_session(session), stage=session.stage.value)
    )


def _keep_reply(connection: Connection, job: JobId, work: Work, reply: PhaseReply) -> None:
    held = connection.execute(select(REPLY.c.round).where(*_key(job, work))).one_or_none()
    if held is not None:
        return
    connection.execute(
        insert(REPLY).values(
            job=job,
            round=work.round,
            attempt=work.attempt,
            phase=work.phase.value,
            body=encode_body(reply),
            update_root=None if reply.update is None else reply.update.root,
            update_bytes=None if reply.update is None else reply.update.size_bytes,
        )
    )
    _queue(connection, reply, reply.message_id)


def _queue(connection: Connection, message: Body, message_id: str) -> None:
    newest = connection.execute(select(OUTBOX.c.number).order_by(OUTBOX.c.number.desc()).limit(1)).scalar()
    oldest = connection.execute(select(OUTBOX.c.number).order_by(OUTBOX.c.number).limit(1)).scalar()
    if newest is not None and oldest is not None and newest - oldest >= OUTBOX_LIMIT:
        raise StoreFull("CFD-R63", f"{OUTBOX_LIMIT} messages wait for the coordinator")
    waits = connection.execute(select(OUTBOX.c.number).where(OUTBOX.c.message_id == message_id)).one_or_none()
    if waits is None:
        values = {"message_id": message_id, "kind": kind_of(message), "body": encode_body(message)}
        connection.execute(insert(OUTBOX).values(**values))


def _save_applied(connection: Connection, job: JobId, applied: Applied) -> None:
    values = {
        "release": applied.release,
        "round": applied.round,
        "step": applied.step,
        "digest": applied.digest,
    }
    changed = connection.execute(update(LINEAGE).where(LINEAGE.c.job == job).values(**values))
    if changed.rowcount == 0:
        connection.execute(insert(LINEAGE).values(job=job, **values))


def _terms_out(terms: Terms) -> dict[str, Any]:
    return {name: getattr(terms, name) for name in Terms.__dataclass_fields__}


def _stored(row: Any) -> StoredJob:
    answer = None if row.answer is None else _body("answer", row.answer)
    if answer is not None and not isinstance(answer, Answer):
        raise TypeError("a stored answer is of another kind")
    return StoredJob(
        job=JobId(row.job),
        plan=row.plan,
        plan_digest=row.plan_digest,
        contract=row.contract,
        submitter=row.submitter,
        signature=row.signature,
        vouched=bool(row.vouched),
        session=decode_session(row.session),
        answer=answer,
        terms=None if row.terms is None else Terms(**json.loads(row.terms)),
        received_us=row.received_us,
    )


def _approval(row: Any) -> Approval:
    return Approval(
        approval=row.approval,
        job=JobId(row.job),
        plan_digest=row.plan_digest,
        rule=row.rule,
        reasons=tuple(json.loads(row.reasons)),
        state=row.state,
        filed_us=row.filed_us,
        expires_us=row.expires_us,
        decided_by=row.decided_by,
        decided_us=row.decided_us,
        reason=row.reason,
    )
