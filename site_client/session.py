"""A job at this site as data: where it stands, who holds it, which phase is under way; and its stored form.

A session is never changed, only replaced by the one that `session_machine.step` returns. What is stored is the whole of
it, so that a restart goes on from exactly what was decided. No decision is made here.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from federation import canonical
from federation.messages import JobId, Phase


class Stage(StrEnum):
    """Where a job stands at this site."""

    OFFERED = "offered"
    PARKED = "parked"
    REFUSED = "refused"
    ACCEPTED = "accepted"
    IDLE = "idle"
    TRAINING = "training"
    EVALUATING = "evaluating"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ABORTED = "aborted"


ENDED: Final = frozenset({Stage.COMPLETED, Stage.CANCELLED, Stage.FAILED, Stage.ABORTED})
WORKING: Final = frozenset({Stage.TRAINING, Stage.EVALUATING})
UNDECIDED: Final = frozenset({Stage.OFFERED, Stage.PARKED})


class Holder(StrEnum):
    """Who holds a job; it goes on when nobody does."""

    COORDINATOR = "coordinator"
    OPERATOR = "operator"


class Ending(StrEnum):
    """How a job ends."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """One phase of one attempt of one round: the unit that is done at most once."""

    round: int
    attempt: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Session:
    """A job at this site.

    Attributes:
        job: The job's id.
        plan_digest: The plan that was offered; never replaced.
        rounds: How many rounds the plan has; a request beyond is refused.
        stage: Where the job stands.
        started: Whether a phase was ever begun.
        held_by: Who holds the job.
        work: The phase under way, exactly while the stage is training or evaluating.
        waiting: A newer phase that begins when the one under way has ended.
        last_train: Round and attempt of the newest training that was begun.
        last_evaluate: Round and attempt of the newest evaluation that was begun.
    """

    job: JobId
    plan_digest: str
    rounds: int
    stage: Stage = Stage.OFFERED
    started: bool = False
    held_by: frozenset[Holder] = frozenset()
    work: Work | None = None
    waiting: Work | None = None
    last_train: tuple[int, int] | None = None
    last_evaluate: tuple[int, int] | None = None

    def last(self, phase: Phase) -> tuple[int, int] | None:
        """Return round and attempt of the newest `phase` that was begun or refused."""
        return self.last_train if phase is Phase.TRAIN else self.last_evaluate


def _work_out(work: Work | None) -> list[Any] | None:
    return None if work is None else [work.round, work.attempt, work.phase.value]


def _work_in(value: list[Any] | None) -> Work | None:
    return None if value is None else Work(value[0], value[1], Phase(value[2]))


def encode_session(session: Session) -> str:
    """Return `session` as the JSON that is stored."""
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
