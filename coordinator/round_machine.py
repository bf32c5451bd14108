"""What happens next in one attempt of a round: a pure function from a state and an event to a state and actions.

The rules:

- A phase closes when every invited site has answered, when so many sites failed that a quorum can't come together,
  or at its deadline, whichever is first.
- At the deadline a round with a quorum of good answers goes on with those sites, the survivors, and the others are
  named late or lost; a round below quorum is abandoned and releases nothing.
- Once a phase is closed its survivors are fixed. A later answer changes nothing in this attempt.
- A site whose answer is bad is out of this attempt and named with the reason; the round goes on without it.
- Under secure aggregation the phases advertise-and-share, mask, consent and reveal follow the training, each with
  the survivors of the one before; without it the mean is taken straight after the training.

Not here: jobs (`job_machine`), clocks, storage, messages, updates. Callers act only after the new state is on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from federation.errors import OutOfOrder
from federation.messages import SiteId


class RoundState(StrEnum):
    """Where an attempt of a round stands."""

    OPEN = "open"
    TRAINING = "training"
    KEYED = "keyed"
    MASKED = "masked"
    CONSENTED = "consented"
    REVEALED = "revealed"
    RELEASED = "released"
    ABANDONED = "abandoned"


ENDS: Final = frozenset({RoundState.RELEASED, RoundState.ABANDONED})
"""The states that nothing leads out of."""


class Standing(StrEnum):
    """How an invited site stands in the running phase."""

    ASKED = "asked"
    ANSWERED = "answered"
    BAD = "bad"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Round:
    """One attempt of a round.

    Attributes:
        number: The round, counted from 0.
        attempt: The attempt of it, counted from 0.
        quorum: Fewest survivors that may be released.
        secure: Whether the secure sum's phases follow the training.
        sites: Every site asked in the running phase and how it stands.
        reasons: Why a site is bad, by site.
        late: The sites that an earlier or this phase closed without, by reason.
        survivors: Fixed when a phase closes: the sites that answered it well.
        summed: The sites in the sum: the survivors of the training, or of the masking under secure aggregation.
        closed: Whether the running phase is over.
        state: Where the attempt stands.
        reason: Why it was abandoned.
    """

    number: int
    attempt: int
    quorum: int
    sites: Mapping[SiteId, Standing]
    secure: bool = False
    reasons: Mapping[SiteId, str] = field(default_factory=lambda: MappingProxyType({}))
    late: Mapping[SiteId, str] = field(default_factory=lambda: MappingProxyType({}))
    survivors: tuple[SiteId, ...] = ()
    summed: tuple[SiteId, ...] = ()
    closed: bool = False
    state: RoundState = RoundState.OPEN
    reason: str = ""

    def standing(self, *standings: Standing) -> tuple[SiteId, ...]:
        """Return the sites that stand so, in the order of their ids."""
        return tuple(sorted(site for site, found in self.sites.items() if found in standings))

    @property
    def is_collecting(self) -> bool:
        """Return whether answers to the training still count."""
        return self.state is RoundState.TRAINING and not self.closed

    @property
    def awaits_mean(self) -> bool:
        """Return whether the training is over and the sum or the mean of the survivors is due."""
        within_sum = self.secure and self.state not in (RoundState.OPEN, RoundState.TRAINING)
        return (self.closed or within_sum) and self.state not in ENDS

    @property
    def needed_count(self) -> int:
        """Return with how many answers the running phase may close.

        The quorum is for who is summed. Once that is fixed, the protocol says how many must consent and reveal.
        """
        return 1 if self.state in (RoundState.CONSENTED, RoundState.REVEALED) else self.quorum


# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """The training request is on disk and goes out."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A site's answer to the running phase is on disk and found good."""

    site: SiteId


@dataclass(frozen=True, slots=True)
class FoundBad:
    """A site's answer to the running phase is unusable, or the site said that it failed."""

    site: SiteId
    reason: str


@dataclass(frozen=True, slots=True)
class SiteLost:
    """The link to a site broke; it may come back before the deadline."""

    site: SiteId


@dataclass(frozen=True, slots=True)
class SiteBack:
    """The link to a lost site stands again."""

    site: SiteId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The running phase's time is over."""


@dataclass(frozen=True, slots=True)
class PhaseDone:
    """The coordinator did its part after a closed phase of the secure sum; the next phase begins."""


@dataclass(frozen=True, slots=True)
class Released:
    """Model, state and signed release are on disk."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """The attempt can't be released: the result was unusable, or the job ended."""

    reason: str


RoundEvent = Asked | Answered | FoundBad | SiteLost | SiteBack | DeadlinePassed | PhaseDone | Released | Abandon

# --- actions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRequests:
    """Ask these sites to do the phase."""

    phase: RoundState
    sites: tuple[SiteId, ...]


@dataclass(frozen=True, slots=True)
class NameLate:
    """Name the sites that the closed phase goes on without, and why."""

    late: Mapping[SiteId, str]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Take the mean over exactly these sites (under secure aggregation: unmask their sum), step and release."""

    survivors: tuple[SiteId, ...]


@dataclass(frozen=True, slots=True)
class FinishPhase:
    """Do the coordinator's part after a closed phase of the secure sum."""

    phase: RoundState
    survivors: tuple[SiteId, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Release nothing of this attempt."""

    reason: str


RoundStep = SendRequests | NameLate | Aggregate | FinishPhase | GiveUp

_S = RoundState
_NEXT: Final[Mapping[RoundState, RoundState]] = MappingProxyType(
    {_S.TRAINING: _S.KEYED, _S.KEYED: _S.MASKED, _S.MASKED: _S.CONSENTED, _S.CONSENTED: _S.REVEALED}
)
_WORKING: Final = (_S.TRAINING, _S.KEYED, _S.MASKED, _S.CONSENTED, _S.REVEALED)


def _working(state: RoundState) -> dict[type[RoundEvent], frozenset[RoundState]]:
    stay_or_end = frozenset({state, _S.ABANDONED})
    events: dict[type[RoundEvent], frozenset[RoundState]] = {
        Answered: stay_or_end,
        FoundBad: stay_or_end,
        SiteLost: frozenset({state}),
        SiteBack: frozenset({state}),
        DeadlinePassed: stay_or_end,
        Abandon: frozenset({_S.ABANDONED}),
    }
    if state in _NEXT:
        events[PhaseDone] = frozenset({_NEXT[state]})
    if state in (_S.TRAINING, _S.REVEALED):
        events[Released] = frozenset({_S.RELEASED})
    return events


TABLE: Final[Mapping[RoundState, Mapping[type[RoundEvent], frozenset[RoundState]]]] = MappingProxyType(
    {
        _S.OPEN: {Asked: frozenset({_S.TRAINING}), Abandon: frozenset({_S.ABANDONED})},
        **{state: _working(state) for state in _WORKING},
        _S.RELEASED: {},
        _S.ABANDONED: {},
    }
)
"""Which states an event may lead to; `step` keeps to it, the diagram in the README is drawn from it."""


def opened(number: int, attempt: int, *, quorum: int, cohort: tuple[SiteId, ...], secure: bool = False) -> Round:
    """Return a fresh attempt that asks `cohort`."""
    sites = MappingProxyType(dict.fromkeys(sorted(cohort), Standing.ASKED))
    return Round(number=number, attempt=attempt, quorum=quorum, sites=sites, secure=secure)


def step(round_: Round, event: RoundEvent) -> tuple[Round, tuple[RoundStep, ...]]:
    """Return the attempt after `event` and what its coordinator does next.

    An answer to a phase that is closed already, or a second answer of a site, changes nothing and asks for nothing.

    Raises:
        OutOfOrder: The state doesn't know the event, or the site wasn't asked; the attempt is unchanged.
    """
    targets = TABLE[round_.state].get(type(event))
    if targets is None:
        raise OutOfOrder("CFD-R01", f"an attempt of a round that is {round_.state} can't take {type(event).__name__}")
    after, actions = _apply(round_, event)
    if after.state not in targets:
        raise OutOfOrder("CFD-G01", f"{type(event).__name__} led an attempt from {round_.state} to {after.state}")
    return after, actions


def _apply(round_: Round, event: RoundEvent) -> tuple[Round, tuple[RoundStep, ...]]:
    match event:
        case Asked():
            asked = replace(round_, state=RoundState.TRAINING)
            return asked, (SendRequests(RoundState.TRAINING, asked.standing(Standing.ASKED)),)
        case Answered(site):
            return _heard(round_, site, Standing.ANSWERED, "")
        case FoundBad(site, reason):
            return _heard(round_, site, Standing.BAD, reason)
        case SiteLost(site):
            return _link(round_, site, Standing.ASKED, Standing.LOST), ()
        case SiteBack(site):
            return _link(round_, site, Standing.LOST, Standing.ASKED), ()
        case DeadlinePassed():
            return (round_, ()) if round_.closed else _close(round_)
        case PhaseDone():
            return _next_phase(round_)
        case Released():
            return _release(round_)
        case Abandon(reason):
            return replace(round_, state=RoundState.ABANDONED, reason=reason, closed=True), (GiveUp(reason),)


def _known(round_: Round, site: SiteId) -> Standing:
    standing = round_.sites.get(site)
    if standing is None:
        raise OutOfOrder("CFD-R02", f"site {site} wasn't asked in round {round_.number} attempt {round_.attempt}")
    return standing


def _heard(round_: Round, site: SiteId, standing: Standing, reason: str) -> tuple[Round, tuple[RoundStep, ...]]:
    if round_.closed or _known(round_, site) in (Standing.ANSWERED, Standing.BAD):
        return round_, ()
    reasons = {**round_.reasons, site: reason} if standing is Standing.BAD else round_.reasons
    sites = MappingProxyType({**round_.sites, site: standing})
    round_ = replace(round_, sites=sites, reasons=MappingProxyType(dict(reasons)))
    waiting = round_.standing(Standing.ASKED, Standing.LOST)
    possible = len(waiting) + len(round_.standing(Standing.ANSWERED))
    return _close(round_) if not waiting or possible < round_.needed_count else (round_, ())


def _link(round_: Round, site: SiteId, before: Standing, after: Standing) -> Round:
    if round_.closed or _known(round_, site) is not before:
        return round_
    return replace(round_, sites=MappingProxyType({**round_.sites, site: after}))


def _close(round_: Round) -> tuple[Round, tuple[RoundStep, ...]]:
    survivors = round_.standing(Standing.ANSWERED)
    late = {site: round_.reasons[site] for site in round_.standing(Standing.BAD)}
    late |= {site: f"{_doing(round_.state)}, no answer" for site in round_.standing(Standing.ASKED)}
    late |= {site: f"{_doing(round_.state)}, lost" for site in round_.standing(Standing.LOST)}
    everyone_late = MappingProxyType({**round_.late, **late})
    named: tuple[RoundStep, ...] = (NameLate(MappingProxyType(late)),) if late else ()
    if len(survivors) < round_.needed_count:
        reason = f"{len(survivors)} of {round_.needed_count} sites answered"
        if late:
            reason += "; " + ", ".join(f"{site} ({why})" for site, why in sorted(late.items()))
        ended = replace(round_, state=RoundState.ABANDONED, closed=True, late=everyone_late, reason=reason)
        return ended, (*named, GiveUp(reason))
    fixes_sum = round_.state is (RoundState.MASKED if round_.secure else RoundState.TRAINING)
    summed = survivors if fixes_sum else round_.summed
    closed = replace(round_, closed=True, survivors=survivors, summed=summed, late=everyone_late)
    plain_or_last = not round_.secure or round_.state is RoundState.REVEALED
    act: RoundStep = Aggregate(summed) if plain_or_last else FinishPhase(round_.state, survivors)
    return closed, (*named, act)


def _next_phase(round_: Round) -> tuple[Round, tuple[RoundStep, ...]]:
    if not round_.closed or not round_.secure:
        raise OutOfOrder("CFD-R01", f"the phase of a round that is {round_.state} isn't closed, or is its last")
    state = _NEXT[round_.state]
    sites = MappingProxyType(dict.fromkeys(round_.survivors, Standing.ASKED))
    after = replace(round_, state=state, sites=sites, closed=False)
    return after, (SendRequests(state, round_.survivors),)


def _release(round_: Round) -> tuple[Round, tuple[RoundStep, ...]]:
    if not round_.closed or (round_.secure and round_.state is not RoundState.REVEALED):
        raise OutOfOrder("CFD-R01", f"a round that is {round_.state} has no result to release yet")
    return replace(round_, state=RoundState.RELEASED), ()


def _doing(state: RoundState) -> str:
    return {
        RoundState.TRAINING: "training",
        RoundState.KEYED: "making keys",
        RoundState.MASKED: "masking",
        RoundState.CONSENTED: "consenting",
        RoundState.REVEALED: "revealing",
    }[state]
