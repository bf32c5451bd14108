"""One job at this site, decided purely: what the site does when it is offered, asked, held, ended or restarted.

`step(session, event) -> (session, actions)` takes no clock, opens nothing and remembers nothing, so every path of a
job at a site is a list of events in a test. The daemon stores the returned session *before* it carries the actions
out; after a crash it sends `Restarted` to each stored session and learns what is left to do.

The rules it keeps:

- A job is one plan: an offer of another plan under the same job is refused.
- A phase is done at most once. (job, round, attempt, phase) that was answered is answered again with the same reply;
  an older one is refused and recorded; a newer one replaces the one under way.
- A hold (by the coordinator or by this site's operator) lets the phase under way end, and starts no other.
- An end is final, stops what is under way and settles the budget.
- What a crash cut off is never trained again under the same key: it is answered as failed.
"""

from dataclasses import dataclass, replace
from typing import Final

from federation.messages import Decision, JobId, Phase
from site_client.session import ENDED, UNDECIDED, Ending, Holder, Session, Stage, Work

# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offered:
    """The coordinator offers the job."""

    plan_digest: str


@dataclass(frozen=True, slots=True)
class Decided:
    """The policy, or a person for a parked job, decided."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class WorkAsked:
    """The coordinator asks for a phase."""

    work: Work


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The phase under way ended, well or not, and its reply is stored."""

    work: Work


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time that the coordinator gave for a phase is over."""

    work: Work


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody pauses the job."""

    by: Holder


@dataclass(frozen=True, slots=True)
class Freed:
    """Somebody who paused the job lets it go on."""

    by: Holder


@dataclass(frozen=True, slots=True)
class Ended:
    """The job ends, for the coordinator's reason or the operator's."""

    how: Ending


@dataclass(frozen=True, slots=True)
class Restarted:
    """The daemon starts and finds this session in its store."""


Event = Offered | Decided | WorkAsked | WorkDone | DeadlinePassed | Held | Freed | Ended | Restarted


# --- actions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decide:
    """Check the offer against charter, contract, policy and budget, then come back with `Decided`."""


@dataclass(frozen=True, slots=True)
class RepeatAnswer:
    """Send the stored answer to the offer again."""


@dataclass(frozen=True, slots=True)
class RefuseOffer:
    """Refuse an offer that contradicts the job's first one; the job itself is unchanged."""

    code: str


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a phase."""

    work: Work


@dataclass(frozen=True, slots=True)
class RepeatReply:
    """Send the stored reply of a phase again."""

    work: Work


@dataclass(frozen=True, slots=True)
class RefuseWork:
    """Answer a phase as failed without beginning it, and record that; `kept` makes it the phase's only reply."""

    work: Work
    code: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """End the phase under way at its next step; it is answered as failed with `code`."""

    work: Work
    code: str


@dataclass(frozen=True, slots=True)
class AnswerAbandoned:
    """A phase was cut off by a crash: give up its leases, close its data, answer it as failed."""

    work: Work


@dataclass(frozen=True, slots=True)
class Record:
    """Append ``job.<change>`` to the audit log."""

    change: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the job's trainer, give back what was never leased, remove the job's folder."""


@dataclass(frozen=True, slots=True)
class TellAborted:
    """Tell the coordinator that the job ended here."""

    code: str


Action = (
    Decide
    | RepeatAnswer
    | RefuseOffer
    | Start
    | RepeatReply
    | RefuseWork
    | Stop
    | AnswerAbandoned
    | Record
    | Close
    | TellAborted
)
Actions = tuple[Action, ...]

# The codes that the machine itself gives; see `federation.codes`.
OTHER_PLAN: Final = "CFD-R40"
OLD_WORK: Final = "CFD-R41"
UNKNOWN_JOB: Final = "CFD-R42"
NOT_ACCEPTED: Final = "CFD-R43"
JOB_ENDED: Final = "CFD-R44"
JOB_HELD: Final = "CFD-R45"
OUTSIDE_PLAN: Final = "CFD-R46"
DEADLINE: Final = "CFD-R47"
REPLACED: Final = "CFD-R48"
OPERATOR_ABORTED: Final = "CFD-R49"


class Impossible(RuntimeError):
    """The event can't happen in this state; the caller has a fault, and the session is unchanged."""


# Every change of stage that `step` may make, by event. `step` is held to it, and the diagram is drawn from it.
TRANSITIONS: Final[dict[Stage, dict[str, frozenset[Stage]]]] = {
    Stage.OFFERED: {
        "decided": frozenset({Stage.ACCEPTED, Stage.REFUSED, Stage.PARKED, Stage.PAUSED}),
        "ended": frozenset(Stage(how) for how in Ending),
    },
    Stage.PARKED: {
        "decided": frozenset({Stage.ACCEPTED, Stage.REFUSED, Stage.PAUSED}),
        "ended": frozenset(Stage(how) for how in Ending),
    },
    Stage.REFUSED: {},
    Stage.ACCEPTED: {
        "asked": frozenset({Stage.TRAINING, Stage.EVALUATING}),
        "held": frozenset({Stage.PAUSED}),
        "ended": frozenset(Stage(how) for how in Ending),
    },
    Stage.IDLE: {
        "asked": frozenset({Stage.TRAINING, Stage.EVALUATING}),
        "held": frozenset({Stage.PAUSED}),
        "ended": frozenset(Stage(how) for how in Ending),
    },
    Stage.TRAINING: {
        "done": frozenset({Stage.IDLE, Stage.PAUSED, Stage.TRAINING, Stage.EVALUATING}),
        "restarted": frozenset({Stage.IDLE, Stage.PAUSED}),
        "ended": frozenset(Stage(how) for how in Ending),
    },
    Stage.EVALUATING: {
        "done": frozenset({Stage.IDLE, Stage.PAUSED, Stage.TRAINING, Stage.EVALUATING}),
        "restarted": frozenset({Stage.IDLE, Stage.PAUSED}),
        "ended": frozenset(Stage(how) for how in Ending),
    },
    Stage.PAUSED: {
        "freed": frozenset({Stage.IDLE, Stage.ACCEPTED}),
        "ended": frozenset(Stage(how) for how in Ending),
    },
    Stage.COMPLETED: {},
    Stage.CANCELLED: {},
    Stage.FAILED: {},
    Stage.ABORTED: {},
}
_EVENT_NAMES: Final[dict[type[Event], str]] = {
    Offered: "offered",
    Decided: "decided",
    WorkAsked: "asked",
    WorkDone: "done",
    DeadlinePassed: "deadline",
    Held: "held",
    Freed: "freed",
    Ended: "ended",
    Restarted: "restarted",
}


def first_offer(job: JobId, *, plan_digest: str, rounds: int) -> tuple[Session, Actions]:
    """Return the session of a job that this site hears of for the first time."""
    return Session(job, plan_digest, rounds), (Decide(),)


def unknown_work(work: Work) -> RefuseWork:
    """Return what a site does that is asked to work on a job which it doesn't know."""
    return RefuseWork(work, UNKNOWN_JOB)


def step(session: Session, event: Event) -> tuple[Session, Actions]:
    """Return the session after `event`, and what the daemon has to do, in this order.

    Raises:
        Impossible: The caller reports something that can't be, such as the end of a phase that isn't under way.
    """
    after, actions = _decide(session, event)
    if after.stage is not session.stage:
        allowed = TRANSITIONS[session.stage].get(_EVENT_NAMES[type(event)], frozenset())
        if after.stage not in allowed:
            raise Impossible(f"{session.stage} to {after.stage} on {_EVENT_NAMES[type(event)]}")
    return after, actions


def _decide(session: Session, event: Event) -> tuple[Session, Actions]:
    match event:
        case Offered():
            return _offered(session, event)
        case Decided():
            return _decided(session, event)
        case WorkAsked():
            return _asked(session, event.work)
        case WorkDone():
            return _done(session, event.work)
        case DeadlinePassed():
            under_way = session.work == event.work
            return session, (Stop(event.work, DEADLINE),) if under_way else ()
        case Held():
            return _held(session, event.by)
        case Freed():
            return _freed(session, event.by)
        case Ended():
            return _ended(session, event.how)
        case Restarted():
            return _restarted(session)


def _offered(session: Session, event: Offered) -> tuple[Session, Actions]:
    if event.plan_digest != session.plan_digest:
        return session, (RefuseOffer(OTHER_PLAN),)
    if session.stage is Stage.OFFERED:
        return session, (Decide(),)
    return session, (RepeatAnswer(),)


def _decided(session: Session, event: Decided) -> tuple[Session, Actions]:
    if session.stage not in UNDECIDED:
        raise Impossible(f"a decision on a job that is {session.stage}")
    stage = {
        Decision.ACCEPTED: Stage.ACCEPTED,
        Decision.REFUSED: Stage.REFUSED,
        Decision.PARKED: Stage.PARKED,
    }[event.decision]
    if stage is Stage.REFUSED:
        return replace(session, stage=stage, held_by=frozenset()), (RepeatAnswer(),)
    if stage is Stage.ACCEPTED and session.held_by:
        stage = Stage.PAUSED
    return replace(session, stage=stage), (RepeatAnswer(),)


def _refusal(session: Session, work: Work) -> str | None:
    if session.stage in UNDECIDED or session.stage is Stage.REFUSED:
        return NOT_ACCEPTED
    if session.stage in ENDED:
        return JOB_ENDED
    if work.round >= session.rounds:
        return OUTSIDE_PLAN
    last = session.last(work.phase)
    if last is not None and (work.round, work.attempt) < last:
        return OLD_WORK
    return None


def _asked(session: Session, work: Work) -> tuple[Session, Actions]:
    if session.last(work.phase) == (work.round, work.attempt):
        if work in (session.work, session.waiting):
            return session, ()
        return session, (RepeatReply(work),)
    code = _refusal(session, work)
    if code is not None:
        return session, (RefuseWork(work, code),)
    if session.held_by:
        return session, (RefuseWork(work, JOB_HELD),)
    noted = _note(session, work)
    if session.work is not None:
        dropped = _drop(session.waiting, REPLACED)
        return replace(noted, waiting=work), (*dropped, Stop(session.work, REPLACED))
    return _begin(noted, work)


def _note(session: Session, work: Work) -> Session:
    newest = (work.round, work.attempt)
    if work.phase is Phase.TRAIN:
        return replace(session, last_train=newest)
    return replace(session, last_evaluate=newest)


def _begin(session: Session, work: Work) -> tuple[Session, Actions]:
    stage = Stage.TRAINING if work.phase is Phase.TRAIN else Stage.EVALUATING
    first: Actions = () if session.started else (Record("started"),)
    begun = replace(session, stage=stage, started=True, work=work, waiting=None)
    return begun, (*first, Start(work))


def _done(session: Session, work: Work) -> tuple[Session, Actions]:
    if session.stage in ENDED and session.work is None:
        return session, ()
    if session.work != work:
        raise Impossible(f"round {work.round} {work.phase} ended, which is not under way")
    waiting = session.waiting
    rested = _rest(session)
    reply: Actions = (RepeatReply(work),)
    if waiting is None:
        return rested, reply
    if rested.stage is Stage.PAUSED:
        return rested, (*reply, *_drop(waiting, JOB_HELD))
    begun, actions = _begin(rested, waiting)
    return begun, (*reply, *actions)


def _rest(session: Session) -> Session:
    stage = Stage.PAUSED if session.held_by else Stage.IDLE
    return replace(session, stage=stage, work=None, waiting=None)


def _held(session: Session, by: Holder) -> tuple[Session, Actions]:
    if session.stage in ENDED or session.stage is Stage.REFUSED or by in session.held_by:
        return session, ()
    held = replace(session, held_by=session.held_by | {by})
    recorded: Actions = (Record("paused"),) if not session.held_by else ()
    if session.stage in (Stage.ACCEPTED, Stage.IDLE):
        return replace(held, stage=Stage.PAUSED), recorded
    return held, recorded


def _freed(session: Session, by: Holder) -> tuple[Session, Actions]:
    if by not in session.held_by:
        return session, ()
    freed = replace(session, held_by=session.held_by - {by})
    if freed.held_by:
        return freed, ()
    if session.stage is Stage.PAUSED:
        freed = replace(freed, stage=Stage.IDLE if session.started else Stage.ACCEPTED)
    return freed, (Record("resumed"),)


def _ended(session: Session, how: Ending) -> tuple[Session, Actions]:
    if session.stage in ENDED or session.stage is Stage.REFUSED:
        return session, ()
    stops: Actions = ()
    if session.work is not None:
        stops = (Stop(session.work, OPERATOR_ABORTED if how is Ending.ABORTED else JOB_ENDED),)
    told: Actions = (TellAborted(OPERATOR_ABORTED),) if how is Ending.ABORTED else ()
    recorded = Record("cancelled" if how is Ending.ABORTED else how.value)
    closed = replace(session, stage=Stage(how), work=None, waiting=None, held_by=frozenset())
    return closed, (*stops, recorded, *told, Close())


def _restarted(session: Session) -> tuple[Session, Actions]:
    if session.stage is Stage.OFFERED:
        return session, (Decide(),)
    if session.work is None:
        return session, ()
    work, waiting = session.work, session.waiting
    return _rest(session), (AnswerAbandoned(work), *_drop(waiting, REPLACED))


def _drop(waiting: Work | None, code: str) -> Actions:
    return () if waiting is None else (RefuseWork(waiting, code, kept=True),)


def diagram() -> str:
    """Return the table of transitions as a Mermaid state diagram, one line for each pair of stages."""
    lines = ["stateDiagram-v2", "    [*] --> offered: offer"]
    for stage, events in TRANSITIONS.items():
        arrows: dict[Stage, list[str]] = {}
        for name, targets in events.items():
            for target in targets:
                arrows.setdefault(target, []).append(name)
        lines += [f"    {stage} --> {target}: {', '.join(arrows[target])}" for target in Stage if target in arrows]
        if not events:
            lines.append(f"    {stage} --> [*]")
    return "\n".join(lines) + "\n"
