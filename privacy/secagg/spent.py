"""The spent rule: when an update that may already be in a sum can be sent again.

Two sums that differ by one site's vector show that vector. So a second one needs noise that pays for both, or proof
that the first can never be published with it. Both proofs are our own derivations:

- *void*: so many members of the view swore off before consenting that the consents needed can no longer exist, even if
  every colluding one of them lied;
- *exclusion*: the consents needed exist, for a set without this site, and no second set can get them.
"""

from collections.abc import Iterable, Sequence

from privacy.secagg.envelope import Opened, Registry, Signed, open_message
from privacy.secagg.errors import SumRefused
from privacy.secagg.journal import History, VectorSpent
from privacy.secagg.messages import Abort, SumPlan, Survivors

NOISY = ("local-dp-sgd", "distributed")


def check_spendable(
    plan: SumPlan, site: str, history: History, proofs: Iterable[Signed], registry: Registry, *, overridden: bool
) -> None:
    """Refuse a plan on a spent update, unless noise pays for both or the earlier sum is proved unpublishable.

    Args:
        plan: The new plan.
        site: This site.
        history: What it journalled.
        proofs: Signed aborts and survivors that came with the plan; those that don't hold are refused.
        registry: Whose signatures count.
        overridden: Whether the site's operator allowed it by hand; the caller records that.

    Raises:
        SumRefused: E_SPENT; or a proof doesn't open.
    """
    earlier = history.spent(plan.model_digest, plan.purpose)
    if not earlier or overridden:
        return
    aborts, consents = _open_proofs(proofs, registry)
    for vector in earlier:
        paid = plan.dp.mechanism in NOISY and vector.mechanism in NOISY
        if not paid and not is_void(vector, aborts) and not is_excluded(vector, site, consents):
            raise SumRefused("E_SPENT", f"the update may be published in sum {vector.sum_id[:16]}")


def _open_proofs(proofs: Iterable[Signed], registry: Registry) -> tuple[list[Opened[Abort]], list[Opened[Survivors]]]:
    aborts, consents = [], []
    for message in proofs:
        if message.kind == "abort":
            aborts.append(open_message(Abort, message, registry))
        else:
            consents.append(open_message(Survivors, message, registry))
    return aborts, consents


def is_void(vector: VectorSpent, aborts: Sequence[Opened[Abort]]) -> bool:
    """Return whether too few members are left that could still consent."""
    sworn_off = {found.body.sender for found in aborts if found.body.view == vector.view and not found.body.consented}
    needed = len(vector.members) - vector.consents + vector.colluding + 1
    return len(sworn_off & set(vector.members)) >= needed


def is_excluded(vector: VectorSpent, site: str, consents: Sequence[Opened[Survivors]]) -> bool:
    """Return whether enough members consented to one set of survivors without `site`."""
    senders: dict[tuple[tuple[str, ...], str], set[str]] = {}
    for found in consents:
        body = found.body
        if body.view == vector.view and body.sender in vector.members and body.sender in body.survivors:
            senders.setdefault((tuple(sorted(body.survivors)), body.inputs), set()).add(body.sender)
    return any(len(who) >= vector.consents and site not in set_ for (set_, _), who in senders.items())
