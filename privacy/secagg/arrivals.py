"""What the coordinator checks of a single message before it keeps it.

Each check returns True for a new message and False for a byte-identical repeat, or raises; nothing is changed here.
"""

from collections.abc import Mapping, Sequence

from privacy.secagg import digests
from privacy.secagg.aggregator_states import Advertising, Collecting, Consenting, Masking, Revealing, Sharing
from privacy.secagg.envelope import Body, Opened, Registry, Signed, open_message, parse
from privacy.secagg.errors import SumRefused, proved
from privacy.secagg.messages import Abort, Advert, Box, Masked, Reveal, Shares, Survivors
from privacy.secagg.secret import same
from privacy.secagg.site_checks import check_keys, check_path
from privacy.secagg.unmask import View


def is_repeat(new: Opened[Body], known: Mapping[str, Opened[Body]], sender: str) -> bool:
    """Return whether this very body was taken before.

    Raises:
        SumRefused: E_DUP, proved: the sender signed two different bodies of one kind in one sum.
    """
    first = known.get(sender)
    if first is None:
        return False
    if first.message.body != new.message.body:
        text = f"{sender} signed two different messages of kind {new.message.kind}"
        raise proved("E_DUP", text, sender, evidence=new.message.pack())
    return True


def check_present(sender: str, state: Collecting) -> None:
    """Refuse a site that has left the sum.

    Raises:
        SumRefused: E_LATE.
    """
    if sender in state.opening.aborts:
        raise SumRefused("E_LATE", f"{sender} aborted before")


def check_one_advert(advert: Opened[Advert], state: Advertising) -> bool:
    """Check an advert; a key that was seen before is refused from the later sender."""
    body, evidence = advert.body, advert.message.pack()
    check_present(body.sender, state)
    if body.plan != state.opening.digest.hex():
        raise SumRefused("E_PLAN_MIX", f"the advert of {body.sender} is of another plan", evidence=evidence)
    if body.sender not in state.opening.plan.body.invited:
        raise SumRefused("E_UNINVITED", f"{body.sender} wasn't invited", evidence=evidence)
    if is_repeat(advert, state.adverts, body.sender):
        return False
    check_keys({**state.adverts, body.sender: advert})
    return True


def check_one_share(shares: Opened[Shares], state: Sharing) -> bool:
    """Check a `shares` without its boxes."""
    body, evidence = shares.body, shares.message.pack()
    check_present(body.sender, state)
    if body.roster != state.view.roster.hex():
        raise SumRefused("E_ROSTER_SPLIT", f"the `shares` of {body.sender} are of another roster", evidence=evidence)
    if body.sender not in state.view.adverts:
        raise SumRefused("E_U2", f"{body.sender} didn't advertise", evidence=evidence)
    return not is_repeat(shares, state.shares, body.sender)


def check_boxes_of(
    shares: Opened[Shares], received: Sequence[bytes], view: View
) -> dict[tuple[str, str], tuple[Box, bytes]]:
    """Return a dealer's boxes: exactly one for each neighbour, each in the tree that it signed.

    Raises:
        SumRefused: E_PATH, or a box isn't well formed.
    """
    dealer, found = shares.body.sender, {}
    for data in received:
        box = parse(Box, data)
        if box.sender != dealer or (dealer, box.to) in found:
            raise SumRefused("E_PATH", f"a box from {box.sender} to {box.to} came with those of {dealer}")
        check_path(box, bytes.fromhex(shares.body.deal_root), view.roster, view.ring)
        found[dealer, box.to] = box, data
    if len(found) != len(view.ring.neighbours(dealer)):
        raise SumRefused("E_PATH", f"{len(found)} boxes of {dealer}, one for each neighbour is needed")
    return found


def check_one_masked(masked: Opened[Masked], state: Masking) -> bool:
    """Check a `masked` without its upload."""
    body, evidence = masked.body, masked.message.pack()
    check_present(body.sender, state)
    if body.view != state.view.digest.hex():
        raise SumRefused("E_VIEW_SPLIT", f"the `masked` of {body.sender} is of another view", evidence=evidence)
    if body.sender not in state.view.shares:
        raise SumRefused("E_U3", f"{body.sender} isn't one of those that shared", evidence=evidence)
    return not is_repeat(masked, state.masked, body.sender)


def check_one_consent(consent: Opened[Survivors], state: Consenting) -> bool:
    """Check that a site consents to what was frozen."""
    body, evidence = consent.body, consent.message.pack()
    check_present(body.sender, state)
    if body.view != state.view.digest.hex():
        raise SumRefused("E_VIEW_SPLIT", f"the consent of {body.sender} is of another view", evidence=evidence)
    said = body.survivors, body.inputs
    if body.sender not in state.survivors or said != (state.survivors, state.inputs.hex()):
        raise SumRefused("E_U3", f"{body.sender} consents to other survivors", evidence=evidence)
    return not is_repeat(consent, state.consents, body.sender)


def good_shares(reveal: Opened[Reveal], state: Revealing) -> tuple[dict[str, bytes], list[SumRefused]]:
    """Return the shares that fit what their dealers committed to, by owner, and a refusal for each that doesn't.

    Raises:
        SumRefused: The whole message is out of place.
    """
    body, evidence = reveal.body, reveal.message.pack()
    holder = body.sender
    if body.consensus != state.agreed.hex():
        raise SumRefused("E_VIEW_SPLIT", f"the shares of {holder} are for another sum", evidence=evidence)
    if holder not in state.consents:
        raise SumRefused("E_U3", f"{holder} didn't consent", evidence=evidence)
    if is_repeat(reveal, state.reveals, holder):
        return {}, []
    good: dict[str, bytes] = {}
    refusals: list[SumRefused] = []
    for kind, given in (("b", body.b), ("m", body.m)):
        for owner, (share, salt) in given.items():
            refusal = _share_refusal(kind, owner, (bytes.fromhex(share), bytes.fromhex(salt)), holder, state)
            if refusal is None:
                good[owner] = bytes.fromhex(share)
            else:
                refusals.append(proved(*refusal, holder, evidence=evidence))
    return good, refusals


def _share_refusal(
    kind: str, owner: str, given: tuple[bytes, bytes], holder: str, state: Revealing
) -> tuple[str, str] | None:
    due = "b" if owner in state.survivors else "m"
    found = state.boxes.get((owner, holder))
    if found is None or kind != due:
        return "E_SHARE_X", f"{holder} reveals a {kind}-share of {owner}, which isn't its to reveal"
    committed = found[0].c_b if kind == "b" else found[0].c_m
    computed = digests.share_commitment(kind, state.view.roster, owner, holder, *given)
    if not same(computed, bytes.fromhex(committed)):
        return "E_SHARE_COMMIT", f"{holder} reveals a share of {owner} that {owner} didn't deal"
    return None


def take_abort(message: Signed, state: Collecting, registry: Registry) -> Opened[Abort]:
    """Return a site's abort, kept as the first of its sender.

    Raises:
        SumRefused: E_PLAN_MIX, it is of another sum; E_UNINVITED; or it doesn't open.
    """
    abort = open_message(Abort, message, registry)
    if abort.body.plan != state.opening.digest.hex():
        raise SumRefused("E_PLAN_MIX", f"the abort of {abort.body.sender} is of another plan")
    if abort.body.sender not in state.opening.plan.body.invited:
        raise SumRefused("E_UNINVITED", f"{abort.body.sender} wasn't invited")
    return state.opening.aborts.setdefault(abort.body.sender, abort)
