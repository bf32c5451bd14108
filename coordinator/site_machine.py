"""How one site stands in one job: a pure table, and the only writer of `SiteInJob.state`.

A site is invited once. Its last answer decides whether it takes part; a site that was late or lost takes part again
at the next round, because nothing it did is held against it. A site that refused, or said on its own that the job
stopped there, is out until it gives another answer.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from federation.errors import OutOfOrder


class SiteState(StrEnum):
    """How a site stands in a job."""

    INVITED = "invited"
    PARKED = "parked"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    TRAINING = "training"
    LATE = "late"
    LOST = "lost"


class SiteEvent(StrEnum):
    """What changes how a site stands in a job."""

    PARK = "park"
    ACCEPT = "accept"
    REFUSE = "refuse"
    ASK = "ask"
    ANSWER = "answer"
    MISS = "miss"
    LOSE = "lose"


@dataclass(frozen=True, slots=True)
class SiteInJob:
    """A site's standing in a job.

    Attributes:
        state: Where the site stands.
        reasons: Why it refused or is late, as `code: sentence` lines without data.
        since_us: When it came to this state, microseconds UTC.
    """

    state: SiteState = SiteState.INVITED
    reasons: tuple[str, ...] = ()
    since_us: int = 0

    @property
    def takes_part(self) -> bool:
        """Return whether the next round asks this site."""
        return self.state in TAKES_PART


TAKES_PART: Final = frozenset({SiteState.ACCEPTED, SiteState.TRAINING, SiteState.LATE, SiteState.LOST})
"""The states of sites that the next round asks."""
UNDECIDED: Final = frozenset({SiteState.INVITED, SiteState.PARKED})
"""The states of sites that haven't given their last answer."""

TABLE: Final[dict[SiteState, dict[SiteEvent, SiteState]]] = {
    SiteState.INVITED: {
        SiteEvent.PARK: SiteState.PARKED,
        SiteEvent.ACCEPT: SiteState.ACCEPTED,
        SiteEvent.REFUSE: SiteState.REFUSED,
    },
    SiteState.PARKED: {
        SiteEvent.PARK: SiteState.PARKED,
        SiteEvent.ACCEPT: SiteState.ACCEPTED,
        SiteEvent.REFUSE: SiteState.REFUSED,
    },
    SiteState.ACCEPTED: {
        SiteEvent.ACCEPT: SiteState.ACCEPTED,
        SiteEvent.REFUSE: SiteState.REFUSED,
        SiteEvent.ASK: SiteState.TRAINING,
        SiteEvent.LOSE: SiteState.LOST,
        SiteEvent.MISS: SiteState.LATE,
    },
    SiteState.TRAINING: {
        SiteEvent.ACCEPT: SiteState.TRAINING,
        SiteEvent.REFUSE: SiteState.REFUSED,
        SiteEvent.ASK: SiteState.TRAINING,
        SiteEvent.ANSWER: SiteState.ACCEPTED,
        SiteEvent.MISS: SiteState.LATE,
        SiteEvent.LOSE: SiteState.LOST,
    },
    SiteState.LATE: {
        SiteEvent.ACCEPT: SiteState.LATE,
        SiteEvent.REFUSE: SiteState.REFUSED,
        SiteEvent.ASK: SiteState.TRAINING,
        SiteEvent.MISS: SiteState.LATE,
        SiteEvent.LOSE: SiteState.LOST,
    },
    SiteState.LOST: {
        SiteEvent.ACCEPT: SiteState.ACCEPTED,
        SiteEvent.REFUSE: SiteState.REFUSED,
        SiteEvent.ASK: SiteState.TRAINING,
        SiteEvent.LOSE: SiteState.LOST,
        SiteEvent.MISS: SiteState.LOST,
    },
    SiteState.REFUSED: {
        SiteEvent.PARK: SiteState.PARKED,
        SiteEvent.ACCEPT: SiteState.ACCEPTED,
        SiteEvent.REFUSE: SiteState.REFUSED,
    },
}


def step(site: SiteInJob, event: SiteEvent, *, now_us: int, reasons: tuple[str, ...] = ()) -> SiteInJob:
    """Return how the site stands after `event`; `since_us` moves only when the state does.

    Raises:
        OutOfOrder: This state doesn't know the event; nothing changed.
    """
    target = TABLE[site.state].get(event)
    if target is None:
        raise OutOfOrder("CFD-J01", f"a site that is {site.state} in a job can't be asked to {event}")
    since_us = site.since_us if target is site.state else now_us
    return replace(
        site, state=target, reasons=reasons or (site.reasons if target is site.state else ()), since_us=since_us
    )
