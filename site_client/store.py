"""What the daemon must still know after it was killed: jobs, answers, replies, unsent messages, applied releases.

Each method is one transaction that is on disk when it returns (see `federation.edge.database`), or did nothing.
One process writes; the home's lock sees to that. A reply is stored together with the message that carries it, so a
phase is either still under way after a crash or has the one reply that it will ever have.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, delete, insert, select, update

from federation import canonical
from federation.edge.database import read, transact
from federation.errors import ConfideError
from federation.messages import Answer, Body, JobId, Phase, PhaseReply, decode_body, encode_body, kind_of
from site_client.session_machine import ENDED, Holder, Session, Stage, Work
from site_client.tables import APPROVAL, FLAG, JOB, LINEAGE, METADATA, OUTBOX, POLICY_VERSION, REPLY

OUTBOX_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Terms:
    """What the site agreed to, fixed when it accepted and used for every round of the job.

    Attributes:
        dataset: Name of the data set.
        version: Content hash of its version, 64 hex digits.
        policy: SHA-256 of the policy file that decided, 64 hex digits.
        rule: Path of the deciding rule in the policy file; None where a person decided.
        approval: Id of the approval; None where a rule decided.
        reservation: The ledger's reservation; None where nothing is charged.
        epsilon: The job's epsilon at this site as `float.hex`; None for an unbounded job.
        noise_multiplier: Noise as `float.hex`, relative to the clip.
        sampling_rate: Poisson rate as `float.hex`.
        units_declared: The data set's public size.
        held_out_public: Whether its held-out units were declared public.
    """

    dataset: str
    version: str
    policy: str
    rule: str | None
    approval: str | None
    reservation: str | None
    epsilon: str | None
    noise_multiplier: str | None
    sampling_rate: str | None
    units_declared: int
    held_out_public: bool


@dataclass(frozen=True, slots=True)
class StoredJob:
    """One job as the store holds it; bytes are as they arrived."""

    job: JobId
    plan: bytes
    plan_digest: str
    contract: bytes
    submitter: str
    signature: bytes
    vouched: bool
    session: Session
    answer: Answer | None
    terms: Terms | None
    received_us: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The newest release that the site followed: where its own copy of the model stands."""

    release: str
    round: int
    step: int
    digest: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that the coordinator hasn't acknowledged yet."""

    number: int
    message_id: str
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Approval:
    """A parked job that waits for a person, or what the person said."""

    approval: str
    job: JobId
    plan_digest: str
    rule: str
    reasons: tuple[str, ...]
    state: str
    filed_us: int
    expires_us: int
    decided_by: str | None = None
    decided_us: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A content of the policy file, and since when it was in force."""

    number: int
    digest: str
    content: bytes
    taken_us: int


class StoreFull(ConfideError):
    """Too many messages wait for the coordinator; nothing was stored."""


def _work_out(work: Work | None) -> list[Any] | None:
    return None if work is None else [work.round, work.attempt, work.phase.value]


def _work_in(value: list[Any] | None) -> Work | None:
    return None if value is None else Work(value[0], value[1], Phase(value[2]))


def encode_session(session: Session) -> str:
    """Return `session` as the JSON that the store keeps."""
    return canonical.encode(
        {
            "job": session.job,
            "plan_digest": session.plan_digest,
            "rounds": session.rounds,
            "stage": session.stage.value,
            "started": session.started,
            "held_by": sorted(holder.value for holder in session.held_by),
            "work": _work_out(session.work),
            "waiting": _work_out(session.waiting),
            "last_train": session.last_train,
            "last_evaluate": session.last_evaluate,
        }
    ).decode()


def decode_session(text: str) -> Session:
    """Return the session that `encode_session` wrote."""
    value = json.loads(text)
    return Session(
        job=JobId(value["job"]),
        plan_digest=value["plan_digest"],
        rounds=value["rounds"],
        stage=Stage(value["stage"]),
        started=value["started"],
        held_by=frozenset(Holder(name) for name in value["held_by"]),
        work=_work_in(value["work"]),
        waiting=_work_in(value["waiting"]),
        last_train=None if value["last_train"] is None else (value["last_train"][0], value["last_train"][1]),
        last_evaluate=None
        if value["last_evaluate"] is None
        else (value["last_evaluate"][0], value["last_evaluate"][1]),
    )


class Store:
    """The daemon's tables in `site.db`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        METADATA.create_all(engine, checkfirst=True)

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
        reply = decode_body("phase-reply", body)
        if not isinstance(reply, PhaseReply):
            raise TypeError("a stored reply is of another kind")
        return reply

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

    def save_applied(self, job: JobId, applied: Applied) -> None:
        """Store the newest release that the site followed."""

        def write(connection: Connection) -> None:
            _save_applied(connection, job, applied)

        transact(self._engine, write)

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
    answer = None if row.answer is None else decode_body("answer", row.answer)
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
