"""What a site checks of each set that it is shown, in the order of the format (README.md), before its state changes.

Every function either returns what was established or raises the first refusal; none changes anything.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from privacy.secagg import digests
from privacy.secagg.deal_tree import deal_leaf, root_from
from privacy.secagg.envelope import Opened, Signed, check_signature, encode, open_message, open_set, parse
from privacy.secagg.errors import SumRefused, disputed, proved
from privacy.secagg.field import SHARE_BYTES
from privacy.secagg.graph import Ring
from privacy.secagg.keys import SALT_BYTES, BoxKey, check_public_key
from privacy.secagg.lineage import Lineage, check_published
from privacy.secagg.messages import COORDINATOR, Advert, Box, Masked, Result, Shares, SumPlan, Survivors
from privacy.secagg.plan_checks import check_floors, check_plan, grid_of
from privacy.secagg.quantize import Clamped, inspect
from privacy.secagg.secret import Secret, same
from privacy.secagg.site_states import CertificateShown, Consented, ResultShown, Revealed, SumOffered, Terms
from privacy.secagg.spent import check_spendable

B_SHARE = (0, SHARE_BYTES)
B_SALT = (SHARE_BYTES, SHARE_BYTES + SALT_BYTES)
M_SHARE = (SHARE_BYTES + SALT_BYTES, 2 * SHARE_BYTES + SALT_BYTES)
M_SALT = (2 * SHARE_BYTES + SALT_BYTES, 2 * (SHARE_BYTES + SALT_BYTES))


def check_offer(plan: Opened[SumPlan], offered: SumOffered, site: str, *, adds_noise: bool) -> Clamped:
    """Check 0.2 to 0.8: a plan whose envelope holds, against all that this site knows itself."""
    body, local = plan.body, offered.local
    if body.registry_epoch != offered.registry.epoch:
        raise SumRefused("E_EPOCH", f"registry {body.registry_epoch}, this site has {offered.registry.epoch}")
    offered.history.check_new(body)
    if site not in body.invited:
        raise SumRefused("E_PLAN", f"{site} isn't invited", blame=(COORDINATOR,))
    try:
        check_plan(body, offered.registry)
    except SumRefused as refusal:
        raise proved("E_PLAN", refusal.message, COORDINATOR, evidence=plan.message.pack()) from None
    check_floors(body, offered.floors)
    distributed = body.dp.mechanism == "distributed"
    if distributed and not adds_noise:
        raise SumRefused("E_POLICY", "this site has no source of shared noise")
    if (body.model_digest, body.job_digest) != (local.model_digest, local.job_digest):
        raise SumRefused("E_MODEL", "the plan's model or job isn't the one that this site trained")
    local.lineage.check(body)
    check_spendable(body, site, offered.history, offered.proofs, offered.registry, overridden=offered.overridden)
    if not local.budget_covers:
        raise SumRefused("E_BUDGET", "the ledger can't pay for this sum")
    limit = None if distributed else body.clamp_ppm_max
    grid = grid_of(body, site)
    return inspect(offered.update, grid, body.dim, clamp_ppm_max=limit, tensor_starts=local.tensor_starts)


def check_keys(adverts: Mapping[str, Opened[Advert]]) -> None:
    """Refuse malformed keys, and any two that are equal.

    Raises:
        SumRefused: E_KEY, proved against its owner; E_DUPKEY, a pair.
    """
    owners: dict[str, str] = {}
    for site, advert in adverts.items():
        for key in (advert.body.enc_pk, advert.body.mask_pk):
            try:
                check_public_key(bytes.fromhex(key))
            except SumRefused as refusal:
                raise proved("E_KEY", refusal.message, site, evidence=advert.message.pack()) from None
            if key in owners:
                text = f"{site} and {owners[key]} have one key"
                raise disputed("E_DUPKEY", text, site, owners[key], evidence=advert.message.pack())
            owners[key] = site


def check_adverts(terms: Terms, received: Sequence[Signed], own: Signed) -> dict[str, Opened[Advert]]:
    """Check 1.1 to 1.5: return U1."""
    adverts = open_set(Advert, received, terms.registry, lambda body: body.sender)
    plan = terms.plan_digest.hex()
    others = [site for site, found in adverts.items() if found.body.plan != plan]
    if others:
        evidence = adverts[others[0]].message.pack()
        raise SumRefused("E_PLAN_MIX", "adverts of another plan", blame=others, evidence=evidence)
    strangers = sorted(adverts.keys() - set(terms.plan.invited))
    if strangers:
        raise SumRefused("E_UNINVITED", f"{strangers[0]} wasn't invited", blame=(COORDINATOR,))
    check_keys(adverts)
    if own not in received:
        raise SumRefused("E_SELF", "this site's own advert is missing", blame=(COORDINATOR,))
    check_quorum(terms.plan, len(adverts))
    return adverts


def check_quorum(plan: SumPlan, count: int) -> None:
    """Refuse a set below the quorum.

    Raises:
        SumRefused: E_COHORT.
    """
    if count < plan.quorum:
        raise SumRefused("E_COHORT", f"{count} sites, the quorum is {plan.quorum}")


def check_shares(
    terms: Terms, received: Sequence[Signed], own: Signed, *, roster: bytes, ring: Ring, site: str
) -> dict[str, Opened[Shares]]:
    """Check 2.1 to 2.3: return U2."""
    shares = open_set(Shares, received, terms.registry, lambda body: body.sender)
    others = [sender for sender, found in shares.items() if found.body.roster != roster.hex()]
    if others:
        evidence = shares[others[0]].message.pack()
        raise SumRefused("E_ROSTER_SPLIT", "`shares` of another roster", blame=others, evidence=evidence)
    if not shares.keys() <= ring.positions.keys() or own not in received:
        raise SumRefused("E_U2", "a stranger shares, or this site's own `shares` are missing", blame=(COORDINATOR,))
    check_quorum(terms.plan, len(shares))
    near = shares.keys() & set(ring.neighbours(site))
    if len(near) < terms.plan.share_threshold:
        raise SumRefused("E_DEGREE", f"{len(near)} neighbours share, needed are {terms.plan.share_threshold}")
    return shares


def check_path(box: Box, root: bytes, roster: bytes, ring: Ring) -> None:
    """Refuse a box that isn't the leaf for its recipient in its dealer's tree.

    Raises:
        SumRefused: E_PATH.
    """
    recipients = sorted(ring.neighbours(box.sender))
    if box.to not in recipients:
        raise SumRefused("E_PATH", f"{box.to} is no neighbour of {box.sender}")
    path = [bytes.fromhex(node) for node in box.path]
    found = root_from(deal_leaf(roster, box), recipients.index(box.to), len(recipients), path)
    if found is None or not same(found, root):
        raise SumRefused("E_PATH", f"the box from {box.sender} to {box.to} isn't in the tree that {box.sender} signed")


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who opens boxes, with what."""

    site: str
    box_key: BoxKey
    roster: bytes
    ring: Ring


def check_boxes(
    received: Sequence[bytes], shares: Mapping[str, Opened[Shares]], recipient: Recipient
) -> dict[str, Secret]:
    """Check 2.4 and 2.5: return what each neighbour dealt to this site."""
    near = shares.keys() & set(recipient.ring.neighbours(recipient.site))
    boxes: dict[str, tuple[Box, bytes]] = {}
    for data in received:
        box = parse(Box, data)
        if box.to != recipient.site or box.sender not in near or box.sender in boxes:
            raise SumRefused("E_PATH", f"a box from {box.sender} to {box.to} doesn't belong here")
        check_path(box, bytes.fromhex(shares[box.sender].body.deal_root), recipient.roster, recipient.ring)
        boxes[box.sender] = box, data
    if boxes.keys() != near:
        raise SumRefused("E_PATH", f"the box from {min(near - boxes.keys())} is missing")
    held: dict[str, Secret] = {}
    try:
        for dealer in sorted(boxes):
            held[dealer] = _open(*boxes[dealer], recipient)
    except SumRefused:
        for secret in held.values():
            secret.wipe()
        raise
    return held


def _open(box: Box, evidence: bytes, recipient: Recipient) -> Secret:
    pair = box.sender, box.to
    try:
        deal = recipient.box_key.open(bytes.fromhex(box.box), recipient.roster, box.sender, box.to)
    except SumRefused as refusal:
        raise disputed("E_BOX", refusal.message, *pair, evidence=evidence) from None
    for kind, commitment, share, salt in (("b", box.c_b, B_SHARE, B_SALT), ("m", box.c_m, M_SHARE, M_SALT)):
        found = digests.share_commitment(kind, recipient.roster, *pair, deal.part(*share), deal.part(*salt))
        if not same(found, bytes.fromhex(commitment)):
            deal.wipe()
            text = f"a share from {box.sender} to {box.to} isn't the one committed to"
            raise disputed("E_SHARE_COMMIT", text, *pair, evidence=evidence)
    return deal


def check_masked(
    terms: Terms,
    received: Sequence[Signed],
    own: Signed | None,
    *,
    view: bytes,
    members: Sequence[str],
    ring: Ring,
) -> dict[str, Opened[Masked]]:
    """Check 3.1 to 3.4: return U3."""
    masked = open_set(Masked, received, terms.registry, lambda body: body.sender)
    others = [sender for sender, found in masked.items() if found.body.view != view.hex()]
    if others:
        evidence = masked[others[0]].message.pack()
        raise SumRefused("E_VIEW_SPLIT", "`masked` of another view", blame=others, evidence=evidence)
    if not masked.keys() <= set(members) or own not in received:
        raise SumRefused("E_U3", "a stranger is summed, or this site's own `masked` is missing", blame=(COORDINATOR,))
    check_quorum(terms.plan, len(masked))
    check_connected(ring, masked.keys(), terms.plan.colluding)
    return masked


def check_connected(ring: Ring, survivors: Collection[str], colluding: int) -> None:
    """Refuse survivors whom as many sites as may collude could part.

    Raises:
        SumRefused: E_GRAPH.
    """
    bound = ring.connectivity_bound(survivors)
    if bound < colluding + 1:
        raise SumRefused("E_GRAPH", f"connectivity at least {bound}, needed is {colluding + 1}")


def check_certificate(state: Consented, event: CertificateShown) -> None:
    """Check 4.1: enough sites in the sum signed what this site signed."""
    own = Survivors(sender="-", view=state.view.hex(), survivors=state.survivors, inputs=state.inputs.hex())
    before, after = encode(own).split(b'"-"', 1)
    wanted = {before + f'"{site}"'.encode("ascii") + after: site for site in state.survivors}
    agreeing = set()
    for message in event.survivors:  # long and all alike: what is spelt as expected needs no parsing
        site = wanted.get(message.body) if message.kind == "survivors" else None
        if site is None:
            open_message(Survivors, message, state.terms.registry)
        else:
            check_signature(message, site, state.terms.registry)
            agreeing.add(site)
    needed = state.terms.plan.consent_threshold(len(state.members))
    if len(agreeing) < needed:
        raise SumRefused("E_CONSENT", f"{len(agreeing)} sites consent to these survivors, needed are {needed}")


def check_result(state: Revealed, event: ResultShown) -> Lineage:
    """Check 5.1 and the lineage rule: return what the site may train from now."""
    terms, evidence = state.terms, event.result.pack()
    result = open_message(Result, event.result, terms.registry).body
    said = (result.plan, result.view, result.consensus, result.survivors)
    own = (terms.plan_digest.hex(), state.view.hex(), state.agreed.hex(), state.survivors)
    if said != own:
        raise proved("E_RESULT", "the result isn't of the sum that was agreed", COORDINATOR, evidence=evidence)
    check_published(terms.plan, result, event.figures, evidence=evidence)
    if terms.plan.purpose == "train":
        return terms.lineage.follow(result, event.derived_digest, evidence=evidence)
    if result.new_model_digest is not None:
        raise proved("E_RESULT", "an evaluation names a new model", COORDINATOR, evidence=evidence)
    return terms.lineage
