"""One site in one sum: a function from a state and an event to a state and outputs, without network, clock or log.

idle → advertised → shared → masked → consented → revealed → closed, and aborted from any. What it keeps to:

- Everything is checked before anything changes. A failed check ends the sum for this site, for good: it journals that,
  signs an abort, and wipes its secrets. Only an event out of order, and a plan that isn't the coordinator's, leave all
  as it was.
- It signs at most one vector and one consent in a sum, and a repeated event gets the same bytes.
- Of each neighbour it reveals one of the two shares that it holds, never both.
- Passing its own deadline ends the sum.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from privacy.secagg import digests, journal, messages
from privacy.secagg.deal_tree import deal_leaf, tree_paths
from privacy.secagg.envelope import Opened, Signed, encode, open_message, sign
from privacy.secagg.errors import OutOfOrder, SumRefused
from privacy.secagg.graph import Ring, ring_over
from privacy.secagg.keys import SALT_BYTES, BoxKey, MaskSeed, Signer, public_key, seal_box, self_key
from privacy.secagg.masking import Mask, MaskJob, Noise, pair_mask
from privacy.secagg.messages import COORDINATOR, Abort, Advert, Box, Reveal, Shares, SumPlan, Survivors
from privacy.secagg.plan_checks import grid_of
from privacy.secagg.quantize import SHRINK_STEP, Grid, Points, Vector, shrink_to
from privacy.secagg.secret import RandomSource, Secret
from privacy.secagg.shamir import split
from privacy.secagg.site_checks import (
    B_SALT,
    B_SHARE,
    M_SALT,
    M_SHARE,
    Recipient,
    check_adverts,
    check_boxes,
    check_certificate,
    check_masked,
    check_offer,
    check_result,
    check_shares,
)
from privacy.secagg.site_states import (
    PHASES,
    Advertised,
    AdvertsShown,
    CertificateShown,
    ClockTicked,
    Consented,
    Ended,
    Event,
    Idle,
    Masked,
    MaskedShown,
    Open,
    Output,
    Persist,
    Received,
    ResultShown,
    Revealed,
    Send,
    Shared,
    SharesShown,
    SignedMaskJob,
    State,
    SumClosed,
    SumOffered,
    Terms,
    Upload,
    UploadAcknowledged,
    phase_name,
    wipe,
    wipe_all,
)

Step = tuple[State, tuple[Output, ...]]
MOST_SHRINKS: Final = 64


@dataclass(frozen=True, slots=True)
class Site:
    """A site's part of the protocol; it keeps nothing between steps.

    Attributes:
        name: The site's id.
        signer: Its signing key; not the one of its TLS certificate.
        random: The operating system's generator.
        noise: Gives the sampler of shared noise of a variance, where the site takes part in such sums.
    """

    name: str
    signer: Signer
    random: RandomSource
    noise: Callable[[int], Noise] | None = None

    def step(self, state: State, event: Event, *, now_ms: int) -> Step:
        """Return the state after `event` and what to do, in order. The old state is used up.

        Args:
            state: Where this sum stands; `Idle()` at first.
            event: What happened.
            now_ms: The site's own clock, which never goes back.

        Raises:
            OutOfOrder: The event isn't expected here; the state is unchanged.
            SumRefused: A plan that isn't signed by the coordinator; the state is unchanged.
        """
        known = None if isinstance(event, ClockTicked | UploadAcknowledged) else fingerprint(event)
        if isinstance(state, Open) and now_ms - state.since_ms > self._patience_ms(state):
            return self._abort(state, SumRefused("E_DEADLINE", f"nothing came while {phase_name(state)}"), known)
        answers = {} if isinstance(state, Idle) else state.answers if isinstance(state, Ended) else state.terms.answers
        if known is not None and known in answers:
            return state, answers[known]
        if isinstance(event, ClockTicked):
            return state, ()
        if isinstance(state, Idle) and isinstance(event, SumOffered):
            return self._offered(event, now_ms)
        handler = self._handlers().get((type(state), type(event)))
        if handler is None or not isinstance(state, Open):
            raise OutOfOrder(f"{type(event).__name__} while {phase_name(state)}")
        try:
            following, outputs = handler(state, event, now_ms)
        except OutOfOrder:
            raise
        except SumRefused as refusal:
            return self._abort(state, refusal, known)
        if known is not None:
            answers[known] = tuple(item for item in outputs if not isinstance(item, Persist))
        return following, outputs

    @staticmethod
    def _patience_ms(state: Open) -> int:
        return state.terms.plan.deadlines_s[PHASES.index(type(state))] * 1000

    def _handlers(self) -> dict[tuple[type[State], type[Event]], Callable[[Any, Any, int], Step]]:
        return {
            (Advertised, AdvertsShown): self._share,
            (Shared, SharesShown): self._mask,
            (Masked, UploadAcknowledged): self._acknowledged,
            (Masked, MaskedShown): self._consent,
            (Consented, CertificateShown): self._reveal,
            (Revealed, ResultShown): self._close,
        }

    # --- 0: advertise -----------------------------------------------------------------------------------------

    def _offered(self, event: SumOffered, now_ms: int) -> Step:
        plan = open_message(SumPlan, event.plan, event.registry)
        pd = digests.plan_digest(plan.message.body)
        terms = Terms(plan.body, pd, event.registry, event.local.lineage)
        try:
            clamped = check_offer(plan, event, self.name, adds_noise=self.noise is not None)
        except SumRefused as refusal:
            return self._decline(plan, event, refusal)
        box_key, mask_seed, self_seed = (Secret.draw(self.random) for _ in range(3))
        fields = {
            "sender": self.name,
            "plan": pd.hex(),
            "enc_pk": public_key(box_key).hex(),
            "mask_pk": public_key(mask_seed).hex(),
            "nonce": self.random.take(32).hex(),
        }
        advert = sign(self.signer, Advert.model_validate(fields))
        body = plan.body
        begun = journal.SumBegun(body.sum_id, body.job_digest, body.purpose, body.round, body.attempt, pd.hex())
        terms.answers[fingerprint(event)] = (Send(advert),)
        state = Advertised(terms, now_ms, advert, box_key, mask_seed, self_seed, event.update, clamped)
        return state, (Persist(begun), Send(advert))

    def _decline(self, plan: Opened[SumPlan], event: SumOffered, refusal: SumRefused) -> Step:
        """Refuse a plan; of a sum that a restart lost, say truly whether this site had consented."""
        sum_id, history = plan.body.sum_id, event.history
        if refusal.code == "E_REPLAY" and history.of_sum(sum_id):
            ended = Persist(journal.SumEnded(sum_id, "aborted", "E_REPLAY"))
            if any(isinstance(record, journal.SumBegun) for record in history.of_sum(sum_id)):
                message = journal.abort_from(history, sum_id, site=self.name, signer=self.signer, code="E_REPLAY")
            else:
                message = self._signed_abort(Idle(), digests.plan_digest(plan.message.body), refusal)
            before: tuple[Output, ...] = () if history.ended(sum_id) else (ended,)
            outputs: tuple[Output, ...] = (*before, Send(message), SumClosed("E_REPLAY", message=str(refusal)))
            return Ended("E_REPLAY", {fingerprint(event): outputs[len(before) :]}), outputs
        message = self._signed_abort(Idle(), digests.plan_digest(plan.message.body), refusal)
        outputs = (
            Persist(journal.SumEnded(sum_id, "aborted", refusal.code)),
            Send(message),
            SumClosed(refusal.code, message=str(refusal)),
        )
        return Ended(refusal.code, {fingerprint(event): outputs[1:]}), outputs

    # --- 1: share ---------------------------------------------------------------------------------------------

    def _share(self, state: Advertised, event: AdvertsShown, now_ms: int) -> Step:
        terms = state.terms
        adverts = check_adverts(terms, event.adverts, state.advert)
        roster = digests.roster_digest(terms.plan_digest, adverts)
        ring = ring_over(roster, adverts, terms.plan.degree)
        boxes, root = self._deal(state, adverts, roster, ring)
        fields = {
            "sender": self.name,
            "roster": roster.hex(),
            "commit_b": digests.self_seed_commitment(roster, self.name, state.self_seed.reveal()).hex(),
            "deal_root": root.hex(),
        }
        shares = sign(self.signer, Shares.model_validate(fields))
        following = Shared(
            terms, now_ms, adverts, roster, ring, shares, state.box_key, state.mask_seed, state.self_seed, state.update
        )
        return following, (Send(shares, boxes),)

    def _deal(
        self, state: Advertised, adverts: dict[str, Opened[Advert]], roster: bytes, ring: Ring
    ) -> tuple[tuple[bytes, ...], bytes]:
        """Return the boxes for all neighbours, and the root of their tree."""
        places = {site: rank for rank, site in enumerate(sorted(adverts), 1)}
        neighbours = sorted(ring.neighbours(self.name))
        threshold = state.terms.plan.share_threshold
        own_places = [places[site] for site in neighbours]
        b_shares = split(state.self_seed.reveal(), own_places, threshold, self.random)
        m_shares = split(state.mask_seed.reveal(), own_places, threshold, self.random)
        boxes = []
        for site in neighbours:
            b_share, m_share = b_shares[places[site]], m_shares[places[site]]
            b_salt, m_salt = self.random.take(SALT_BYTES), self.random.take(SALT_BYTES)
            plain = Secret(b_share + b_salt + m_share + m_salt)
            fields = {
                "sender": self.name,
                "to": site,
                "box": seal_box(plain, bytes.fromhex(adverts[site].body.enc_pk), roster, self.name, site).hex(),
                "c_b": digests.share_commitment("b", roster, self.name, site, b_share, b_salt).hex(),
                "c_m": digests.share_commitment("m", roster, self.name, site, m_share, m_salt).hex(),
                "path": (),
            }
            plain.wipe()
            boxes.append(Box.model_validate(fields))
        root, paths = tree_paths([deal_leaf(roster, box) for box in boxes])
        placed = [
            box.model_copy(update={"path": tuple(node.hex() for node in path)})
            for box, path in zip(boxes, paths, strict=True)
        ]
        return tuple(encode(box) for box in placed), root

    # --- 2: mask ----------------------------------------------------------------------------------------------

    def _mask(self, state: Shared, event: SharesShown, now_ms: int) -> Step:
        terms, plan, ring = state.terms, state.terms.plan, state.ring
        shares = check_shares(terms, event.shares, state.shares, roster=state.roster, ring=ring, site=self.name)
        if plan.dp.mechanism == "distributed" and event.lease is None:
            raise SumRefused("E_BUDGET", "no charge was made for this sum")
        held = check_boxes(event.boxes, shares, Recipient(self.name, BoxKey(state.box_key), state.roster, ring))
        view = digests.view_digest(state.roster, shares)
        masks = [Mask(self_key(state.self_seed, view, self.name), added=True)]
        agreement = MaskSeed(state.mask_seed)
        for peer in sorted(held):
            peer_key = bytes.fromhex(state.adverts[peer].body.mask_pk)
            masks.append(pair_mask(agreement.pair_key(peer_key, view, self.name, peer), self.name, peer))
        for secret in (state.box_key, state.mask_seed, state.self_seed):
            secret.wipe()
        try:
            upload = self._upload(terms, state.update, masks, view)
        except SumRefused:
            wipe_all(held)
            wipe_all({str(number): mask.key for number, mask in enumerate(masks)})
            raise
        members = tuple(sorted(shares))
        spent = journal.VectorSpent(
            plan.sum_id, plan.round, plan.purpose, plan.model_digest, view.hex(), members,
            plan.consent_threshold(len(members)), plan.colluding, plan.dp.mechanism, event.lease,
        )  # fmt: skip
        following = Masked(terms, now_ms, view, ring, members, held, upload)
        return following, (Persist(spent), Upload(upload))

    def _upload(self, terms: Terms, update: Vector, masks: Sequence[Mask], view: bytes) -> SignedMaskJob:
        plan, distributed = terms.plan, terms.plan.dp.mechanism == "distributed"
        dither_key, noise_key = Secret.draw(self.random), Secret.draw(self.random)
        points = Points(update, grid_of(plan, self.name), dither_key)
        if distributed and plan.dp.norm_sq_max:
            points = within_norm(update, grid_of(plan, self.name), dither_key, plan.dp.norm_sq_max)
        job = MaskJob(
            points,
            masks,
            dim=plan.dim,
            word_bits=plan.word_bits,
            noise=self.noise(plan.dp.sigma_sq) if distributed and self.noise is not None else None,
            noise_key=noise_key,
        )

        def finish(payload: bytes) -> Signed:
            fields = {"sender": self.name, "view": view.hex(), "payload": payload.hex(), "words": plan.dim}
            return sign(self.signer, messages.Masked.model_validate(fields))

        return SignedMaskJob(job, finish)

    def _acknowledged(self, state: Masked, _: UploadAcknowledged, __: int) -> Step:
        """Forget masks, rounding and noise: the coordinator has the bytes, and they are never made again."""
        message = state.upload.message
        if message is None:
            raise OutOfOrder("an upload is acknowledged that isn't finished")
        state.upload.job.wipe()
        for known, outputs in state.terms.answers.items():
            if any(isinstance(item, Upload) for item in outputs):
                state.terms.answers[known] = (Send(message),)
        return state, ()

    # --- 3 to 5: consent, reveal, close -----------------------------------------------------------------------

    def _consent(self, state: Masked, event: MaskedShown, now_ms: int) -> Step:
        terms, plan = state.terms, state.terms.plan
        masked = check_masked(
            terms, event.masked, state.upload.message, view=state.view, members=state.members, ring=state.ring
        )
        self._acknowledged(state, UploadAcknowledged(), now_ms)
        survivors, inputs = tuple(masked), digests.inputs_digest(masked)
        agreed = digests.consensus_digest(state.view, inputs, survivors)
        fields = {"sender": self.name, "view": state.view.hex(), "survivors": survivors, "inputs": inputs.hex()}
        message = sign(self.signer, Survivors.model_validate(fields))
        following = Consented(terms, now_ms, state.view, state.members, state.held, survivors, inputs, agreed)
        return following, (Persist(journal.ConsentGiven(plan.sum_id, state.view.hex(), agreed.hex())), Send(message))

    def _reveal(self, state: Consented, event: CertificateShown, now_ms: int) -> Step:
        check_certificate(state, event)
        b_shares, m_shares = {}, {}
        for dealer, deal in state.held.items():  # each dealer's share goes into exactly one of the two
            if dealer in state.survivors:
                b_shares[dealer] = (deal.part(*B_SHARE).hex(), deal.part(*B_SALT).hex())
            else:
                m_shares[dealer] = (deal.part(*M_SHARE).hex(), deal.part(*M_SALT).hex())
        wipe_all(state.held)
        fields = {"sender": self.name, "consensus": state.agreed.hex(), "b": b_shares, "m": m_shares}
        message = sign(self.signer, Reveal.model_validate(fields))
        record = journal.SharesRevealed(state.terms.plan.sum_id, state.agreed.hex())
        following = Revealed(state.terms, now_ms, state.view, state.survivors, state.agreed)
        return following, (Persist(record), Send(message))

    def _close(self, state: Revealed, event: ResultShown, _: int) -> Step:
        lineage = check_result(state, event)
        outputs: tuple[Output, ...] = (
            Persist(journal.SumEnded(state.terms.plan.sum_id, "published", None)),
            SumClosed(None, lineage),
        )
        return Ended(None, {fingerprint(event): outputs[1:]}), outputs

    # --- aborting ---------------------------------------------------------------------------------------------

    def _abort(self, state: Open, refusal: SumRefused, known: bytes | None) -> Step:
        terms = state.terms
        wipe(state)
        message = self._signed_abort(state, terms.plan_digest, refusal)
        outputs: tuple[Output, ...] = (
            Persist(journal.SumEnded(terms.plan.sum_id, "aborted", refusal.code)),
            Send(message),
            SumClosed(refusal.code, message=str(refusal)),
        )
        return Ended(refusal.code, {} if known is None else {known: outputs[1:]}), outputs

    def _signed_abort(self, state: Idle | Open, plan_digest: bytes, refusal: SumRefused) -> Signed:
        view = getattr(state, "view", None)
        blame = tuple(name for name in refusal.blame if name != COORDINATOR)
        evidence = None if refusal.evidence is None else hashlib.sha256(refusal.evidence).hexdigest()
        fields = {
            "sender": self.name,
            "plan": plan_digest.hex(),
            "view": None if view is None else view.hex(),
            "phase": phase_name(state),
            "consented": isinstance(state, Consented | Revealed),
            "code": refusal.code,
            "blame": blame,
            "evidence": evidence,
        }
        return sign(self.signer, Abort.model_validate(fields))


def within_norm(update: Vector, grid: Grid, dither_key: Secret, norm_sq_max: int) -> Points:
    """Return points whose exact squared norm is at most `norm_sq_max`, shrinking the update as far as that takes.

    Raises:
        SumRefused: E_RANGE, it can't be reached.
    """
    shrink = shrink_to(update, grid)
    for _ in range(MOST_SHRINKS):
        points = Points(update, replace(grid, shrink=shrink), dither_key)
        if points.norm_sq() <= norm_sq_max:
            return points
        shrink *= SHRINK_STEP
    raise SumRefused("E_RANGE", "the update can't be brought within its norm")


def fingerprint(event: Received) -> bytes:
    """Return a digest of what came over the network with an event."""
    hashed = hashlib.sha256(type(event).__name__.encode("ascii"))
    for part in event.received:
        hashed.update(hashlib.sha256(part).digest())
    return hashed.digest()
