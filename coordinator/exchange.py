"""How the requests of a phase reach the sites and what comes back, as the rounds see it.

The link, the simulation and the tests each carry a phase in their own way; to the rounds they are one `Exchange`. Its
rule: one `Heard` for every site that was asked, never later than the time given, and a reason where a reply is missing.
No I/O here, and no judgement of what was heard.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from federation.messages import PhaseReply, PhaseRequest, SiteId


class Silence(StrEnum):
    """Why there is no answer of a site when a phase closes."""

    LATE = "late"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Heard:
    """The outcome of a phase at one site.

    Attributes:
        site: The site.
        reply: Its reply, if there is one.
        silence: Why there is none.
        is_stored: Whether the reply is on disk already.
        refused: The code with which the site finally refused the request itself.
    """

    site: SiteId
    reply: PhaseReply | None
    silence: Silence | None = None
    is_stored: bool = False
    refused: str | None = None


class Interrupted(Exception):
    """The exchange was told to stop waiting: the job ended, or the service stops. Nothing was decided."""


MayLose = Callable[[], int]
"""How many of those who are waited for may be given up now, if their link has been away for a while."""


class Exchange(Protocol):
    """Carries the requests of a phase to sites and yields what comes back."""

    def ask(
        self, requests: Mapping[SiteId, PhaseRequest], *, timeout_s: float, may_lose: MayLose | None = None
    ) -> Iterator[Heard]:
        """Send the requests and yield one `Heard` for every site, in the order in which they come in.

        Never waits longer than `timeout_s`; whoever hasn't answered by then is yielded with the reason. An engine that
        sees links may yield a site whose link stays away as lost before that, as long as `may_lose` lets it.

        Raises:
            Interrupted: The job ended or the service stops.
        """
        ...
