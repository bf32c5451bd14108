"""The lineage rule: a site trains only on a model that it derived itself from signed sums.

It bounds what a coordinator can do with a planted model, and leaves signed evidence; it does not show that a published
sum is right (README.md, what is not achieved).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from privacy.secagg import digests
from privacy.secagg.envelope import Opened, Registry, Signed, open_message
from privacy.secagg.errors import SumRefused, proved
from privacy.secagg.messages import COORDINATOR, Advert, Result, SumPlan
from privacy.secagg.secret import same
from privacy.secagg.sums import SumFigures, check_bounds


@dataclass(frozen=True, slots=True)
class Lineage:
    """The one model that this site may train from.

    Attributes:
        model_digest: Its digest, in hex; at first that of the approved job.
    """

    model_digest: str

    def check(self, plan: SumPlan) -> None:
        """Refuse a plan for another model.

        Raises:
            SumRefused: E_LINEAGE.
        """
        if plan.model_digest != self.model_digest:
            raise SumRefused("E_LINEAGE", "the plan's model isn't the one that this site derived", blame=(COORDINATOR,))

    def follow(self, result: Result, derived_digest: bytes | None, *, evidence: bytes) -> "Lineage":
        """Return the lineage after a round's result.

        Args:
            result: A result of purpose train whose signature and sum were checked.
            derived_digest: The digest of the model that this site made of the sum.
            evidence: The signed result.

        Raises:
            SumRefused: E_LINEAGE, the coordinator names another model.
        """
        told = result.new_model_digest
        if told is None or derived_digest is None or not same(bytes.fromhex(told), derived_digest):
            raise proved("E_LINEAGE", "the result's model isn't what the sum gives", COORDINATOR, evidence=evidence)
        return Lineage(told)


def adopt(plan: Signed, adverts: Iterable[Signed], registry: Registry, *, colluding: int) -> Lineage:
    """Return the lineage of a plan under which more sites than may collude have signed adverts: one is honest.

    Raises:
        SumRefused: E_LINEAGE, there are too few; or a message doesn't open.
    """
    opened = open_message(SumPlan, plan, registry)
    digest = digests.plan_digest(plan.body).hex()
    signers = set()
    for message in adverts:
        body = open_message(Advert, message, registry).body
        if body.plan == digest and body.sender in opened.body.invited:
            signers.add(body.sender)
    if len(signers) <= colluding:
        raise SumRefused("E_LINEAGE", f"{len(signers)} sites vouch for the model, {colluding + 1} are needed")
    return Lineage(opened.body.model_digest)


def check_published(plan: SumPlan, result: Result, figures: SumFigures, *, evidence: bytes) -> None:
    """Refuse a published sum whose bytes aren't those signed, or that no honest vectors add up to.

    Raises:
        SumRefused: E_RESULT or E_SUM_RANGE.
    """
    if not same(bytes.fromhex(result.sum_digest), figures.digest):
        raise proved("E_RESULT", "the sum's bytes aren't those that were signed", COORDINATOR, evidence=evidence)
    check_bounds(
        figures,
        survivors=len(result.survivors),
        q_max=plan.q_max,
        sites=len(plan.invited),
        sigma_sq=plan.dp.sigma_sq,
        dim=plan.dim,
        norm_sq_max=plan.dp.norm_sq_max,
    )


def outsider_result(message: Signed, plan: Opened[SumPlan], registry: Registry, figures: SumFigures) -> Opened[Result]:
    """Return a result that a site reads without having taken part: signature, plan, sum and bounds hold.

    Raises:
        SumRefused: E_RESULT, E_SUM_RANGE, or the message doesn't open.
    """
    opened = open_message(Result, message, registry)
    if opened.body.plan != digests.plan_digest(plan.message.body).hex():
        raise SumRefused("E_RESULT", "the result is of another plan", evidence=message.pack())
    check_published(plan.body, opened.body, figures, evidence=message.pack())
    return opened
