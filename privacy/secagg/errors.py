"""Every refusal of a secure sum: one stable code, who is blamed, how strongly, and what to do.

Strengths: *proved* (signed messages that anyone can check again), *pair* (one of two lies, and it can't be told which),
*none* (silence, or nobody's fault). Messages never hold a secret or a coordinate.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class Strength(StrEnum):
    """How well a blame is founded."""

    NONE = "none"
    PAIR = "pair"
    PROVED = "proved"


CAUSES: Final[dict[str, tuple[str, str]]] = {
    "E_SIZE": ("a message is longer than its kind allows", "its sender must follow the format"),
    "E_KIND": ("a message is of another kind than expected", "its sender must follow the order of messages"),
    "E_NONCANON": ("a message isn't the one canonical spelling of its fields", "its sender must encode it strictly"),
    "E_SIG": ("a signature doesn't fit its sender's key", "check that the registry is current"),
    "E_UNENROLLED": ("a sender isn't an active member", "check that the registry is current"),
    "E_EPOCH": ("the plan was made under another registry", "fetch the registry, then open a new attempt"),
    "E_REPLAY": ("a sum, or a round and attempt, was used before", "open a new attempt with a new sum id"),
    "E_PLAN": ("the plan's values break a constraint", "correct the value that is named"),
    "E_POLICY": ("the plan is below a floor of the site's policy", "raise the plan to the floor"),
    "E_MODEL": ("the plan names a model or job that the site doesn't have", "check which model the site trained from"),
    "E_LINEAGE": ("a model wasn't derived from the signed sums", "keep both statements; ask the coordinator"),
    "E_SPENT": ("the update may be in an earlier sum already", "send the proofs that it can't be published"),
    "E_BUDGET": ("the privacy budget has no charge for this", "ask for less, or for other data"),
    "E_RANGE": ("the site's own update isn't fit to be summed", "check the training; raise clip where it is too small"),
    "E_PLAN_MIX": ("an advert belongs to another plan", "keep the message; ask the coordinator"),
    "E_ROSTER_SPLIT": ("sites were shown different rosters", "keep the messages; ask the coordinator"),
    "E_VIEW_SPLIT": ("sites were shown different views", "keep the messages; ask the coordinator"),
    "E_DUP": ("one sender appears twice", "keep both messages; ask the coordinator"),
    "E_UNINVITED": ("a sender wasn't invited", "ask the coordinator"),
    "E_SELF": ("the site's own advert isn't among those relayed", "ask the coordinator"),
    "E_U2": ("the set of sharing sites is wrong", "ask the coordinator"),
    "E_U3": ("the set of summed sites is wrong", "ask the coordinator"),
    "E_PATH": ("a box isn't one of those that its sender signed", "ask the coordinator"),
    "E_LATE": ("the phase is over", "take part in the next round"),
    "E_KEY": ("a public key is malformed", "its owner must make a new one"),
    "E_DUPKEY": ("a public key appears twice", "one of its owners copied it"),
    "E_COHORT": ("fewer sites than the quorum are left", "open a new attempt"),
    "E_DEGREE": ("a site has too few neighbours left", "open a new attempt"),
    "E_GRAPH": ("the sites left aren't connected well enough", "open a new attempt"),
    "E_CONSENT": ("too few sites signed the same survivors", "open a new attempt"),
    "E_TOO_FEW_SHARES": ("too few shares are left to join a secret", "open a new attempt"),
    "E_DEADLINE": ("the other side took too long", "check the network; a new attempt will follow"),
    "E_BOX": ("a box doesn't open", "one of the two sites is at fault"),
    "E_KEM": ("an encapsulation doesn't open", "one of the two sites is at fault"),
    "E_SHARE_COMMIT": ("a share isn't the one that its dealer committed to", "leave the named site out"),
    "E_SHARE_X": ("a share belongs to no place of the polynomial", "leave the named site out"),
    "E_SHARE_RANGE": ("a share or a joined secret is out of range", "leave the named site out"),
    "E_BAD_DEALER": ("a joined secret isn't the one that its dealer committed to", "leave the named site out"),
    "E_PAYLOAD": ("uploaded bytes aren't those that were signed", "upload again"),
    "E_SUM_RANGE": ("the sum is out of its bounds", "open a new attempt; nothing was published"),
    "E_RESULT": ("a result isn't the one that was agreed", "keep the message; ask the coordinator"),
    "E_PHASE": ("a message came out of order", "nothing changed; send what is expected"),
}
"""For each code: cause and cure. The pages of codes are made from it."""


class SumRefused(Exception):
    """A check of the protocol failed.

    Args:
        code: One of `CAUSES`.
        message: What, which, found against allowed. One line, free of secrets.
        blame: The sites that are named, if any.
        strength: How well that is founded.
        evidence: The bytes of the offending message, if there is one.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        blame: Iterable[str] = (),
        strength: Strength = Strength.NONE,
        evidence: bytes | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}\nhint: {CAUSES[code][1]}")
        self.code: Final = code
        self.message: Final = message
        self.blame: Final = tuple(sorted(set(blame)))
        self.strength: Final = strength
        self.evidence: Final = evidence

    @property
    def hint(self) -> str:
        """Return what to do."""
        return CAUSES[self.code][1]


class OutOfOrder(SumRefused):
    """An event came in a phase that doesn't expect it; the state is unchanged and the sum goes on."""

    def __init__(self, message: str) -> None:
        super().__init__("E_PHASE", message)


def proved(code: str, message: str, *blame: str, evidence: bytes | None = None) -> SumRefused:
    """Return a refusal whose blame anyone can check again."""
    return SumRefused(code, message, blame=blame, strength=Strength.PROVED, evidence=evidence)


def disputed(code: str, message: str, *blame: str, evidence: bytes | None = None) -> SumRefused:
    """Return a refusal that names a pair of which one is at fault."""
    return SumRefused(code, message, blame=blame, strength=Strength.PAIR, evidence=evidence)
