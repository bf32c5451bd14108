"""The only way out of a site: the receipt of the entry that says what leaves, and exactly that leaves.

An update is named by the entry's hash and size, so other bytes than those recorded can't be sent. Figures are hashed
again and compared with their entry.
"""

import hashlib
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from audit.receipt import Receipt
from federation import canonical
from federation.errors import OutOfOrder
from federation.messages import BlobReference, EvaluationCounts

NOT_THE_RECORDED: Final = "CFD-R63"


class Carrier(Protocol):
    """The part of the link that takes bytes out."""

    def deliver(self, reference: BlobReference, *, deadline_s: float) -> None:
        """Bring a blob to the coordinator."""
        ...


class Uploads:
    """Brings recorded updates to the coordinator.

    Args:
        link: Carries them.
    """

    def __init__(self, link: Carrier) -> None:
        self._link = link

    def deliver(self, sent: Receipt, *, deadline_s: float) -> None:
        """Bring the update that the `update.sent` entry names to the coordinator.

        Raises:
            EntryRefused: The receipt is of another entry; nothing left.
            ConfideError: It couldn't be delivered.
        """
        egress = sent.permitting("update.sent")["egress"]
        reference = BlobReference(root=egress["hash"].removeprefix("sha256:"), size_bytes=egress["bytes"])
        self._link.deliver(reference, deadline_s=deadline_s)


def figures_of(evaluation: EvaluationCounts) -> bytes:
    """Return the bytes by which an `evaluation.sent` entry names figures."""
    return canonical.encode(evaluation.model_dump(mode="json"))


def figures_that_leave(sent: Receipt, evaluation: EvaluationCounts) -> EvaluationCounts:
    """Return `evaluation`, which is what the `evaluation.sent` entry names.

    Raises:
        EntryRefused: The receipt is of another entry.
        OutOfOrder: The entry names other figures.
    """
    egress = sent.permitting("evaluation.sent")["egress"]
    if egress["hash"] != "sha256:" + hashlib.sha256(figures_of(evaluation)).hexdigest():
        raise OutOfOrder(NOT_THE_RECORDED, "these figures are not the ones that were recorded")
    return evaluation


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a reply says of the work itself: it leaves the site, too, so it is recorded.

    Attributes:
        epsilon: Of the job at this site so far, as `float.hex` gives it; None without a bound.
        steps: Charged steps of the phase.
        duration_s: Whole seconds from the request to the end of the work.
    """

    epsilon: str | None
    steps: int
    duration_s: int

    def names(self) -> list[str]:
        """Return which figures these are."""
        return [name for name, value in asdict(self).items() if value is not None]

    def content(self) -> bytes:
        """Return the bytes by which a `metrics.sent` entry names the figures."""
        return canonical.encode({name: value for name, value in asdict(self).items() if value is not None})


NOTHING_TOLD: Final = Telemetry(epsilon=None, steps=0, duration_s=0)
