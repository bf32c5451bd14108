"""What a site must have on disk before something leaves it (J1 to J5), and what follows from it after a restart.

Secrets are never journalled: a restarted site has lost its open sums, and can only say so. From `VectorSpent` on, the
update counts as *spent*: the sum may be published without the site's further help.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from privacy.secagg.envelope import Signed, sign
from privacy.secagg.errors import SumRefused
from privacy.secagg.keys import Signer
from privacy.secagg.messages import Abort, SumPlan


@dataclass(frozen=True, slots=True)
class SumBegun:
    """J1, durable before the advert leaves."""

    sum_id: str
    job_digest: str
    purpose: str
    round: int
    attempt: int
    plan: str


@dataclass(frozen=True, slots=True)
class VectorSpent:
    """J2, durable before the first masked byte leaves; the charge it names was durable before that.

    Attributes:
        members: U2, the sites of the view.
        consents: q, how many of them can publish the sum.
        colluding: c of its plan.
        lease: The ledger's charge, or None where nothing was charged.
    """

    sum_id: str
    round: int
    purpose: str
    model_digest: str
    view: str
    members: tuple[str, ...]
    consents: int
    colluding: int
    mechanism: str
    lease: str | None


@dataclass(frozen=True, slots=True)
class ConsentGiven:
    """J3, durable before `survivors` leaves."""

    sum_id: str
    view: str
    agreed: str


@dataclass(frozen=True, slots=True)
class SharesRevealed:
    """J4, durable before `reveal` leaves."""

    sum_id: str
    agreed: str


@dataclass(frozen=True, slots=True)
class SumEnded:
    """J5, durable before `abort` leaves, or before the result is acknowledged."""

    sum_id: str
    outcome: str
    code: str | None


Record = SumBegun | VectorSpent | ConsentGiven | SharesRevealed | SumEnded


@dataclass(frozen=True, slots=True)
class History:
    """All that a site journalled, in order."""

    records: tuple[Record, ...] = field(default=())

    @classmethod
    def of(cls, records: Iterable[Record]) -> "History":
        """Return the history of `records`."""
        return cls(tuple(records))

    def of_sum(self, sum_id: str) -> tuple[Record, ...]:
        """Return the records of one sum."""
        return tuple(record for record in self.records if record.sum_id == sum_id)

    def last_attempt(self, job_digest: str, purpose: str) -> tuple[int, int]:
        """Return the highest (round, attempt) of a job and purpose; (−1, −1) if there is none."""
        begun = (record for record in self.records if isinstance(record, SumBegun))
        attempts = [
            (found.round, found.attempt)
            for found in begun
            if (found.job_digest, found.purpose) == (job_digest, purpose)
        ]
        return max(attempts, default=(-1, -1))

    def spent(self, model_digest: str, purpose: str) -> tuple[VectorSpent, ...]:
        """Return the sums that may hold this site's vector for a model and purpose."""
        records = (record for record in self.records if isinstance(record, VectorSpent))
        return tuple(found for found in records if (found.model_digest, found.purpose) == (model_digest, purpose))

    def ended(self, sum_id: str) -> bool:
        """Return whether a sum came to its end."""
        return any(isinstance(record, SumEnded) for record in self.of_sum(sum_id))

    def check_new(self, plan: SumPlan) -> None:
        """Refuse a plan whose sum, or whose round and attempt, this site has seen.

        Raises:
            SumRefused: E_REPLAY.
        """
        if self.of_sum(plan.sum_id):
            raise SumRefused("E_REPLAY", f"sum {plan.sum_id[:16]} was begun before")
        last = self.last_attempt(plan.job_digest, plan.purpose)
        if (plan.round, plan.attempt) <= last:
            raise SumRefused("E_REPLAY", f"round {plan.round} attempt {plan.attempt} comes after {last[0]}, {last[1]}")


_PHASES: Final[dict[type[Record], str]] = {
    SumBegun: "advertised",
    VectorSpent: "masked",
    ConsentGiven: "consented",
    SharesRevealed: "revealed",
}
"""The phase that is known to have begun by each record."""


def abort_from(history: History, sum_id: str, *, site: str, signer: Signer, code: str) -> Signed:
    """Return the signed abort of a sum that a restart lost; it says truly whether the site had consented.

    Raises:
        ValueError: The history doesn't know the sum.
    """
    phase, view, plan = "idle", None, ""
    for record in history.of_sum(sum_id):
        phase = _PHASES.get(type(record), phase)
        plan = record.plan if isinstance(record, SumBegun) else plan
        view = record.view if isinstance(record, VectorSpent) else view
    if not plan:
        raise ValueError("the history doesn't know this sum")
    fields = {
        "sender": site,
        "plan": plan,
        "view": view,
        "phase": phase,
        "consented": phase in ("consented", "revealed"),
        "code": code,
        "blame": (),
        "evidence": None,
    }
    return sign(signer, Abort.model_validate(fields))
