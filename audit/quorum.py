"""Have enough others seen this checkpoint? By a trust policy, over operators and never over the owner; pure.

m operators other than the log's own witness it, q of them are a quorum. Two conflicting quorums share at least 2q − m
witnesses, so fewer liars than that can't give two histories of one log a quorum each.
"""

from dataclasses import dataclass

from audit.checkpoint import OpenedCheckpoint
from audit.cosignature import Cosignature, cosignatures_of
from audit.errors import NoteRefused
from audit.trust import TrustPolicy


def default_quorum(operators: int) -> int:
    """Return how many of these operators (those of the other active parties) must cosign: more than half, 0 of none."""
    return operators // 2 + 1 if operators else 0


@dataclass(frozen=True, slots=True)
class Quorum:
    """What the cosignatures of a checkpoint amount to.

    Attributes:
        cosignatures: Those by witnesses of the policy, one for each key.
        heard: The voices that they give: witnesses, or operators where one runs several.
        missing: The voices that aren't there.
        needed: How many voices the policy asks for; 0 where it asks for none.
    """

    cosignatures: tuple[Cosignature, ...]
    heard: tuple[str, ...]
    missing: tuple[str, ...]
    needed: int

    @property
    def met(self) -> bool:
        """Return whether the policy is satisfied."""
        return len(self.heard) >= self.needed

    @property
    def witnessed(self) -> bool:
        """Return whether a quorum of others saw the checkpoint; a policy without quorum says nothing about that."""
        return self.needed > 0 and self.met

    @property
    def time_s(self) -> int | None:
        """Return the lower median of the cosignatures' times, which one lying clock can't move far."""
        times = sorted(one.time_s for one in self.cosignatures)
        return times[(len(times) - 1) // 2] if times else None


def judge(checkpoint: OpenedCheckpoint, policy: TrustPolicy) -> Quorum:
    """Return what the cosignatures of `checkpoint` amount to under `policy`.

    Raises:
        NoteRefused: A cosignature of a witness of the policy is wrong.
    """
    found = cosignatures_of(checkpoint, policy.witnesses.values())
    heard = policy.heard(one.key for one in found)
    missing = tuple(name for name in policy.voices() if name not in heard)
    return Quorum(found, heard, missing, policy.needed())


def require(checkpoint: OpenedCheckpoint, policy: TrustPolicy) -> Quorum:
    """Return what the cosignatures of `checkpoint` amount to, where that is enough.

    Raises:
        NoteRefused: They are too few (CFD-A06), or one of them is wrong.
    """
    found = judge(checkpoint, policy)
    if not found.met:
        have = f"{len(found.heard)} of {found.needed} cosignatures, missing {', '.join(found.missing)}"
        raise NoteRefused(f"the checkpoint of {checkpoint.size} entries has {have}", code="CFD-A06")
    return found
