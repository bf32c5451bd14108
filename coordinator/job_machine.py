"""What happens next in a job: a pure function from a state and an event to a state and actions.

The rules:

- An event that a state doesn't know raises `OutOfOrder`, and the state stays as it was.
- A job is ready once a quorum accepts and every other site has answered or the grace time is over; it begins when its
  sites have places. It ends at once when so many sites refused that a quorum can't come together, and at the offer
  deadline where none came together.
- A job takes places where it works, and for the grace time where it was just offered. One that then still waits for
  answers takes none, so that a site which never comes holds nobody up.
- A site that accepts later takes part from the next round on.
- A pause lets the running round finish; no other begins until the job is resumed.
- A round that released nothing is tried again, at most `attempts` times in all; then the job fails and says why.
- Cancelling works in every state that isn't an end, and an end is final.

Not here: rounds themselves (`round_machine`), clocks, storage, messages. Callers act on the returned actions only
after the new state is on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from coordinator import site_machine
from coordinator.site_machine import UNDECIDED, SiteEvent, SiteInJob, SiteState
from federation.errors import OutOfOrder
from federation.messages import SiteId


class JobState(StrEnum):
    """Where a job stands."""

    DRAFT = "draft"
    QUEUED = "queued"
    OFFERED = "offered"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
"""The states that nothing leads out of."""
AT_WORK: Final = frozenset({JobState.OFFERED, JobState.RUNNING, JobState.PAUSED})
"""The states in which sites know of a job."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its machine sees it.

    Attributes:
        state: Where the job stands.
        quorum: Fewest sites that may release a round.
        rounds: How many rounds the plan asks for.
        attempts: How often one round may be tried.
        sites: Every invited site and how it stands.
        round: The round that is open or opens next, counted from 0.
        attempt: The attempt of that round, counted from 0.
        reason: Why the job ended, where it didn't complete.
    """

    quorum: int
    rounds: int
    attempts: int
    sites: Mapping[SiteId, SiteInJob]
    state: JobState = JobState.DRAFT
    round: int = 0
    attempt: int = 0
    reason: str = ""

    def cohort(self) -> tuple[SiteId, ...]:
        """Return the sites that the next round asks, in the order of their ids."""
        return tuple(sorted(site for site, standing in self.sites.items() if standing.takes_part))

    def undecided(self) -> tuple[SiteId, ...]:
        """Return the sites without a last answer, in the order of their ids."""
        return tuple(sorted(site for site, standing in self.sites.items() if standing.state in UNDECIDED))

    def refused(self) -> tuple[SiteId, ...]:
        """Return the sites that said no, in the order of their ids."""
        return tuple(sorted(site for site, standing in self.sites.items() if standing.state is SiteState.REFUSED))


# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job's plan was accepted for the queue."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The queue gives the job its sites' places."""


@dataclass(frozen=True, slots=True)
class SiteAnswered:
    """A site gave an answer to the offer; the last one counts."""

    site: SiteId
    answer: SiteEvent
    reasons: tuple[str, ...] = ()
    now_us: int = 0


@dataclass(frozen=True, slots=True)
class SiteMoved:
    """A round asked a site, heard from it, or missed it."""

    site: SiteId
    event: SiteEvent
    reasons: tuple[str, ...] = ()
    now_us: int = 0


@dataclass(frozen=True, slots=True)
class Begun:
    """The queue gives the job, whose quorum accepted, the places at its sites; others are no longer waited for."""


@dataclass(frozen=True, slots=True)
class OfferDeadline:
    """The offer isn't held open any longer."""


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """A person asked for a pause."""


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """A person asked to go on."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A person ended the job."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RoundReleased:
    """The round is released and evaluated."""

    round: int


@dataclass(frozen=True, slots=True)
class RoundAbandoned:
    """The attempt of the round released nothing."""

    round: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Broke:
    """The job can't go on for a reason of the coordinator's own."""

    reason: str


JobEvent = (
    Submitted
    | Admitted
    | SiteAnswered
    | SiteMoved
    | Begun
    | OfferDeadline
    | PauseAsked
    | ResumeAsked
    | CancelAsked
    | RoundReleased
    | RoundAbandoned
    | Broke
)

# --- actions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendOffers:
    """Offer the job to these sites."""

    sites: tuple[SiteId, ...]


@dataclass(frozen=True, slots=True)
class StartRounds:
    """Let the round loop run, from the job's round on."""


@dataclass(frozen=True, slots=True)
class StopRounds:
    """Interrupt the round loop; nothing of an open round is released."""


class Telling(StrEnum):
    """What the sites of a job are told."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    COMPLETE = "complete"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class TellSites:
    """Tell these sites that the job changed."""

    what: Telling
    sites: tuple[SiteId, ...]
    reason: str = ""


JobStep = SendOffers | StartRounds | StopRounds | TellSites

_S = JobState
TABLE: Final[Mapping[JobState, Mapping[type[JobEvent], frozenset[JobState]]]] = MappingProxyType(
    {
        _S.DRAFT: {
            Submitted: frozenset({_S.QUEUED}),
            CancelAsked: frozenset({_S.CANCELLED}),
        },
        _S.QUEUED: {
            Admitted: frozenset({_S.OFFERED}),
            CancelAsked: frozenset({_S.CANCELLED}),
            Broke: frozenset({_S.FAILED}),
        },
        _S.OFFERED: {
            SiteAnswered: frozenset({_S.OFFERED, _S.FAILED}),
            Begun: frozenset({_S.OFFERED, _S.RUNNING}),
            OfferDeadline: frozenset({_S.OFFERED, _S.FAILED}),
            CancelAsked: frozenset({_S.CANCELLED}),
            Broke: frozenset({_S.FAILED}),
        },
        _S.RUNNING: {
            SiteAnswered: frozenset({_S.RUNNING, _S.FAILED}),
            SiteMoved: frozenset({_S.RUNNING}),
            PauseAsked: frozenset({_S.PAUSED}),
            CancelAsked: frozenset({_S.CANCELLED}),
            RoundReleased: frozenset({_S.RUNNING, _S.COMPLETED}),
            RoundAbandoned: frozenset({_S.RUNNING, _S.FAILED}),
            Broke: frozenset({_S.FAILED}),
        },
        _S.PAUSED: {
            SiteAnswered: frozenset({_S.PAUSED, _S.FAILED}),
            SiteMoved: frozenset({_S.PAUSED}),
            ResumeAsked: frozenset({_S.RUNNING}),
            CancelAsked: frozenset({_S.CANCELLED}),
            RoundReleased: frozenset({_S.PAUSED, _S.COMPLETED}),
            RoundAbandoned: frozenset({_S.PAUSED, _S.FAILED}),
            Broke: frozenset({_S.FAILED}),
        },
        _S.COMPLETED: {},
        _S.FAILED: {},
        _S.CANCELLED: {},
    }
)
"""Which states an event may lead to; `step` keeps to it, the diagram in the README is drawn from it."""


@dataclass(slots=True)
class _Moved:
    """The job after an event, and what is to be done."""

    job: Job
    actions: list[JobStep] = field(default_factory=list)


def step(job: Job, event: JobEvent) -> tuple[Job, tuple[JobStep, ...]]:
    """Return the job after `event` and what its coordinator does next.

    Raises:
        OutOfOrder: The job's state doesn't know the event, or it speaks of another round; the job is unchanged.
    """
    targets = TABLE[job.state].get(type(event))
    if targets is None:
        asked = _ASKED.get(type(event)) or f"take {_words(event)}"
        raise OutOfOrder("CFD-J01", f"a job that is {job.state} can't {asked}")
    moved = _apply(job, event)
    if moved.job.state not in targets:
        raise OutOfOrder("CFD-G01", f"{_words(event)} led a {job.state} job to {moved.job.state}")
    return moved.job, tuple(moved.actions)


def _apply(job: Job, event: JobEvent) -> _Moved:
    match event:
        case Submitted():
            return _Moved(replace(job, state=JobState.QUEUED))
        case Admitted():
            return _Moved(replace(job, state=JobState.OFFERED), [SendOffers(tuple(sorted(job.sites)))])
        case SiteAnswered():
            return _answered(job, event)
        case SiteMoved():
            return _Moved(_with_site(job, event.site, event.event, event.reasons, event.now_us))
        case Begun() | OfferDeadline():
            return _waited(job, event)
        case PauseAsked() | ResumeAsked():
            return _paused_or_resumed(job, event)
        case CancelAsked():
            return _end(job, JobState.CANCELLED, event.reason)
        case RoundReleased():
            return _released(job, event)
        case RoundAbandoned():
            return _abandoned(job, event)
        case Broke():
            return _end(job, JobState.FAILED, event.reason)


def _answered(job: Job, event: SiteAnswered) -> _Moved:
    job = _with_site(job, event.site, event.answer, event.reasons, event.now_us)
    if len(job.sites) - len(job.refused()) < job.quorum:
        return _end(job, JobState.FAILED, _missing(job))
    return _Moved(job)


def _waited(job: Job, event: Begun | OfferDeadline) -> _Moved:
    quorum = len(job.cohort()) >= job.quorum
    if isinstance(event, OfferDeadline):
        return _Moved(job) if quorum else _end(job, JobState.FAILED, _missing(job))
    return _Moved(replace(job, state=JobState.RUNNING), [StartRounds()]) if quorum else _Moved(job)


def _paused_or_resumed(job: Job, event: PauseAsked | ResumeAsked) -> _Moved:
    if isinstance(event, PauseAsked):
        return _Moved(replace(job, state=JobState.PAUSED), [TellSites(Telling.PAUSE, job.cohort())])
    return _Moved(replace(job, state=JobState.RUNNING), [TellSites(Telling.RESUME, job.cohort()), StartRounds()])


def _released(job: Job, event: RoundReleased) -> _Moved:
    _same_round(job, event.round, job.attempt)
    job = replace(job, round=job.round + 1, attempt=0)
    return _end(job, JobState.COMPLETED, "") if job.round >= job.rounds else _Moved(job)


def _abandoned(job: Job, event: RoundAbandoned) -> _Moved:
    _same_round(job, event.round, event.attempt)
    if job.attempt + 1 < job.attempts:
        return _Moved(replace(job, attempt=job.attempt + 1))
    times = "once" if job.attempts == 1 else f"{job.attempts} times"
    return _end(job, JobState.FAILED, f"round {job.round} was tried {times}: {event.reason}")


def _end(job: Job, state: JobState, reason: str) -> _Moved:
    """Return the ended job; every site that may hold a reservation or an open question for it is told."""
    telling = {JobState.COMPLETED: Telling.COMPLETE, JobState.FAILED: Telling.FAIL, JobState.CANCELLED: Telling.CANCEL}
    actions: list[JobStep] = []
    if job.state in (JobState.RUNNING, JobState.PAUSED) and state is not JobState.COMPLETED:
        actions.append(StopRounds())
    if job.state in AT_WORK:
        actions.append(TellSites(telling[state], tuple(sorted(job.sites)), reason))
    return _Moved(replace(job, state=state, reason=reason), actions)


def _with_site(job: Job, site: SiteId, event: SiteEvent, reasons: tuple[str, ...], now_us: int) -> Job:
    standing = job.sites.get(site)
    if standing is None:
        raise OutOfOrder("CFD-J02", f"site {site} isn't invited to this job")
    moved = site_machine.step(standing, event, now_us=now_us, reasons=reasons)
    return replace(job, sites=MappingProxyType({**job.sites, site: moved}))


def _same_round(job: Job, number: int, attempt: int) -> None:
    if (number, attempt) != (job.round, job.attempt):
        raise OutOfOrder(
            "CFD-J01",
            f"round {number} attempt {attempt} isn't the open one, round {job.round} attempt {job.attempt} is",
        )


def _missing(job: Job) -> str:
    """Return why a quorum didn't come together, naming the sites."""
    code = "CFD-J06" if job.refused() else "CFD-J16"
    parts = [f"{code}: {len(job.cohort())} of {job.quorum} sites accepted"]
    if job.refused():
        parts.append("refused: " + ", ".join(job.refused()))
    if job.undecided():
        parts.append("no answer: " + ", ".join(job.undecided()))
    return "; ".join(parts)


def is_ready(job: Job, *, grace_over: bool) -> bool:
    """Return whether an offered job begins as soon as its sites have places."""
    decided = grace_over or not job.undecided()
    return job.state is JobState.OFFERED and len(job.cohort()) >= job.quorum and decided


def takes_places_at(job: Job, *, grace_over: bool) -> frozenset[SiteId]:
    """Return the sites at which the job takes a place now.

    Args:
        job: The job.
        grace_over: Whether it was offered longer ago than the grace time.
    """
    match job.state:
        case JobState.RUNNING | JobState.PAUSED:
            return frozenset(job.cohort())
        case JobState.OFFERED if not grace_over:
            return frozenset(job.sites) - frozenset(job.refused())
        case _:
            return frozenset()


def waiting_for(job: Job) -> str:
    """Return the one line that a person reads while an offered job waits, or nothing."""
    missing = job.undecided()
    if job.state is not JobState.OFFERED or not missing:
        return ""
    return f"waiting for sites: {len(job.cohort())} of {job.quorum} (missing: {', '.join(missing)})"


_ASKED: Final[Mapping[type, str]] = {
    PauseAsked: "be paused",
    ResumeAsked: "be resumed",
    CancelAsked: "be cancelled",
}


def _words(event: JobEvent) -> str:
    name = type(event).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
