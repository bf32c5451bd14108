"""What the rounds of a job ask of witnessing: to be seen when a round ends, and to be let go on before the next; pure.

A simulation has no witnesses and gives its rounds none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from audit.merkle import leaf_hash
from federation.messages import JobId, PhaseReply, SiteId
from federation.witness_messages import ReceiptPlace


@dataclass(frozen=True, slots=True)
class Ended:
    """How a round ended: the attempt that was released, and the leaf hashes of its survivors' receipts by site."""

    job: JobId
    round: int
    attempt: int
    receipts: Mapping[SiteId, bytes]


@dataclass(frozen=True, slots=True)
class Opening:
    """What the messages that open a round carry: proof files, and each site's place among the receipts."""

    before: bytes
    model: bytes
    places: Mapping[SiteId, ReceiptPlace]


class RoundWitness(Protocol):
    """Witnessing as the rounds of a job see it."""

    def announce(self, about: str, ended: Ended | None = None) -> object:
        """Sign a checkpoint and ask every site that is there to cosign it."""
        ...

    def opening(
        self, job: JobId, ended: Ended | None, *, timeout_s: float, goes_on: Callable[[], bool]
    ) -> Opening | None:
        """Return what opens the job's next round once a quorum has seen how the one before ended; None if it hasn't.

        Raises:
            Interrupted: The service stops.
        """
        ...

    def show_roster(self, sum_id: str, *, timeout_s: float) -> bytes:
        """Return the proof that this log holds the roster of a sum; nothing where there is none in time."""
        ...

    def lacking(self) -> str:
        """Return in words what a round that doesn't open waits for."""
        ...


def about_of(job: str, ended: Ended | None) -> str:
    """Return the name under which cosignatures at the end of a round are recorded, at the sites as here."""
    return f"{job}/submitted" if ended is None else f"{job}/{ended.round}"


def receipts_of(replies: Mapping[SiteId, PhaseReply], survivors: Iterable[SiteId]) -> dict[SiteId, bytes]:
    """Return the leaf hashes of the survivors' receipts, by site."""
    receipts = {site: replies[site].receipt for site in survivors if site in replies}
    return {site: leaf_hash(bytes.fromhex(receipt)) for site, receipt in receipts.items() if receipt}
