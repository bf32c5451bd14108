"""The coordinator's side of one sum: a function from a state and an event to a state and outputs.

advertising → sharing → masking → consenting → revealing → unmasking → over. What it keeps to:

- It makes every check that a site would make and refuses a message before relaying it, so that with an honest
  coordinator no site aborts because of another's malformed message. A refusal leaves the state unchanged; the sender
  counts as lost unless it does better before the phase ends.
- A phase's set is recorded before anybody is told of it.
- Who is summed is frozen before any site is asked to consent; what comes later is too late.
- It learns nothing of a single vector: it only ever joins one of a site's two secrets.

The state of a phase is filled in place; a step consumes what it was given. Not here: files, the accumulator's memory,
the link, clocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privacy.secagg import digests
from privacy.secagg.aggregator_states import (
    Acknowledge,
    AddStaged,
    Advertising,
    Arrived,
    Blamed,
    CertificateMade,
    ChunkArrived,
    Collecting,
    Concluded,
    Consenting,
    Discard,
    Event,
    Keep,
    Masking,
    MembersFixed,
    Opening,
    Output,
    Over,
    PlanIssued,
    Record,
    Relay,
    ResultMade,
    Revealing,
    RosterFixed,
    Sharing,
    Spool,
    State,
    SumAbandoned,
    SumRead,
    SurvivorsFrozen,
    Unmask,
    Unmasking,
    UploadCommitted,
)
from privacy.secagg.arrivals import (
    check_boxes_of,
    check_one_advert,
    check_one_consent,
    check_one_masked,
    check_one_share,
    good_shares,
    take_abort,
)
from privacy.secagg.envelope import Opened, Registry, Signed, open_message, parse, sign
from privacy.secagg.errors import CAUSES, OutOfOrder, SumRefused
from privacy.secagg.graph import Ring, ring_over
from privacy.secagg.keys import Signer
from privacy.secagg.messages import Advert, Box, Masked, Result, Reveal, Shares, SumPlan, Survivors
from privacy.secagg.plan_checks import check_plan
from privacy.secagg.site_checks import check_connected, check_quorum
from privacy.secagg.sums import Stage, check_bounds
from privacy.secagg.unmask import View, check_recoverable, recover

Step = tuple[State, tuple[Output, ...]]


@dataclass(frozen=True, slots=True)
class Aggregator:
    """The coordinator's part of the protocol; it keeps nothing between steps.

    Attributes:
        registry: The registry of the plan's epoch.
        signer: The coordinator's signing key.
    """

    registry: Registry
    signer: Signer

    def open(self, plan: SumPlan) -> Step:
        """Return the first state of a sum, and what invites its sites.

        Raises:
            SumRefused: E_EPOCH or E_PLAN, as a site would.
        """
        if plan.registry_epoch != self.registry.epoch:
            raise SumRefused("E_EPOCH", f"registry {plan.registry_epoch}, the coordinator has {self.registry.epoch}")
        check_plan(plan, self.registry)
        message = sign(self.signer, plan)
        opening = Opening(Opened(plan, message), digests.plan_digest(message.body))
        return Advertising(opening), (Keep(PlanIssued(message)), *_relays(plan.invited, (message,)))

    def step(self, state: State, event: Event) -> Step:
        """Return the state after `event` and what to do, in order.

        Raises:
            OutOfOrder: The event isn't expected here; the state is unchanged.
            SumRefused: The message is refused; the state is unchanged.
        """
        if isinstance(state, Over):
            raise OutOfOrder("the sum is over")
        if isinstance(event, SumRead):
            if not isinstance(state, Unmasking):
                raise OutOfOrder("no sum was unmasked yet")
            return self._publish(state, event)
        if isinstance(event, ChunkArrived):
            if not isinstance(state, Masking):
                raise _out_of_phase(state, "masked", "a chunk")
            return _chunk(state, event)
        if isinstance(event, Arrived):
            return self._aborted(state, event.message) if event.message.kind == "abort" else self._arrived(state, event)
        if isinstance(state, Unmasking):
            raise OutOfOrder("the sum is being unmasked")
        return self._ended(state)

    # --- arrivals ---------------------------------------------------------------------------------------------

    def _arrived(self, state: State, event: Arrived) -> Step:
        match state, event.message.kind:
            case Advertising(), "advert":
                return self._advert(state, event.message)
            case Sharing(), "shares":
                return self._shares(state, event)
            case Masking(), "masked":
                return self._masked(state, event.message)
            case Consenting(), "survivors":
                return self._survivors(state, event.message)
            case Revealing(), "reveal":
                return self._reveal(state, event.message)
            case _:
                kind = event.message.kind
                raise _out_of_phase(state, kind, f"a message of kind {kind[:16]!a}")

    def _advert(self, state: Advertising, message: Signed) -> Step:
        advert = open_message(Advert, message, self.registry)
        if check_one_advert(advert, state):
            state.adverts[advert.body.sender] = advert
        return state, ()

    def _shares(self, state: Sharing, event: Arrived) -> Step:
        shares = open_message(Shares, event.message, self.registry)
        if check_one_share(shares, state):
            boxes = check_boxes_of(shares, event.boxes, state.view)
            state.shares[shares.body.sender] = shares
            state.boxes.update(boxes)
        return state, ()

    def _masked(self, state: Masking, message: Signed) -> Step:
        masked = open_message(Masked, message, self.registry)
        sender = masked.body.sender
        if not check_one_masked(masked, state):
            return state, (Acknowledge(sender),)
        stage = state.stages.get(sender)
        plan = state.opening.plan.body
        right = stage is not None and stage.complete and masked.body.words == plan.dim
        if stage is None or not right or stage.payload.digest().hex() != masked.body.payload:
            state.stages.pop(sender, None)
            text = f"the upload of {sender} isn't what it signed"
            return state, (Discard(sender), Blamed(SumRefused("E_PAYLOAD", text, blame=(sender,))))
        state.masked[sender] = masked
        del state.stages[sender]
        return state, (AddStaged(sender, stage), Keep(UploadCommitted(message)), Acknowledge(sender))

    def _survivors(self, state: Consenting, message: Signed) -> Step:
        consent = open_message(Survivors, message, self.registry)
        if check_one_consent(consent, state):
            state.consents[consent.body.sender] = consent
        return state, ()

    def _reveal(self, state: Revealing, message: Signed) -> Step:
        reveal = open_message(Reveal, message, self.registry)
        shares, refusals = good_shares(reveal, state)
        state.reveals.setdefault(reveal.body.sender, reveal)
        for owner, share in shares.items():
            state.revealed.setdefault(owner, {})[reveal.body.sender] = share
        return state, tuple(Blamed(refusal) for refusal in refusals)

    def _aborted(self, state: Collecting | Unmasking, message: Signed) -> Step:
        """Take a site out of the running phase; what is fixed already stays."""
        if isinstance(state, Unmasking):
            raise OutOfOrder("an abort after the reveal changes nothing")
        abort = take_abort(message, state, self.registry)
        sender = abort.body.sender
        outputs: list[Output] = []
        if isinstance(state, Advertising):
            state.adverts.pop(sender, None)
        elif isinstance(state, Sharing):
            state.shares.pop(sender, None)
        elif isinstance(state, Masking) and state.stages.pop(sender, None) is not None:
            outputs.append(Discard(sender))
        text = f"{sender} left with {abort.body.code}"
        code = abort.body.code if abort.body.code in CAUSES else "E_PHASE"
        return state, (*outputs, Blamed(SumRefused(code, text, blame=abort.body.blame, evidence=message.pack())))

    # --- ends of phases ---------------------------------------------------------------------------------------

    def _ended(self, state: Collecting) -> Step:
        try:
            if isinstance(state, Advertising):
                return self._fix_roster(state.opening, state.adverts)
            if isinstance(state, Sharing):
                return self._fix_members(state)
            if isinstance(state, Masking):
                return self._freeze(state)
            if isinstance(state, Consenting):
                return self._certify(state)
            return self._unmask(state)
        except SumRefused as refusal:
            return _abandon(state, refusal)

    def _fix_roster(self, opening: Opening, adverts: dict[str, Opened[Advert]]) -> Step:
        plan = opening.plan.body
        check_quorum(plan, len(adverts))
        fixed = dict(sorted(adverts.items()))
        roster = digests.roster_digest(opening.digest, fixed)
        ring = ring_over(roster, fixed, plan.degree)
        view = View(roster, b"", ring, fixed, {}, plan.share_threshold)
        messages = _messages(fixed.values())
        return Sharing(opening, view), (Keep(RosterFixed(messages)), *_relays(fixed, messages))

    def _fix_members(self, state: Sharing) -> Step:
        plan = state.opening.plan.body
        members = reachable(state.view.ring, state.shares, plan.share_threshold)
        check_quorum(plan, len(members))
        fixed = {site: state.shares[site] for site in sorted(members)}
        old = state.view
        digest = digests.view_digest(old.roster, fixed)
        view = View(old.roster, digest, old.ring, old.adverts, fixed, old.threshold)
        boxes = {pair: box for pair, box in sorted(state.boxes.items()) if pair[0] in fixed and pair[1] in fixed}
        messages = _messages(fixed.values())
        kept = Keep(MembersFixed(messages, tuple(data for _, data in boxes.values())))
        relays = []
        for site in fixed:
            own = tuple(boxes[dealer, site][1] for dealer in view.near(site, fixed))
            relays.append(Relay(site, messages, own))
        return Masking(state.opening, view, boxes), (kept, *relays)

    def _freeze(self, state: Masking) -> Step:
        plan, view = state.opening.plan.body, state.view
        masked = dict(sorted(state.masked.items()))
        check_quorum(plan, len(masked))
        check_connected(view.ring, masked.keys(), plan.colluding)
        check_recoverable(view, masked.keys())
        survivors, inputs = tuple(masked), digests.inputs_digest(masked)
        agreed = digests.consensus_digest(view.digest, inputs, survivors)
        following = Consenting(state.opening, view, state.boxes, masked, survivors, inputs, agreed)
        discards = tuple(Discard(site) for site in sorted(state.stages))
        relays = _relays(survivors, _messages(masked.values()))
        return following, (Keep(SurvivorsFrozen(survivors)), *discards, *relays)

    def _certify(self, state: Consenting) -> Step:
        needed = state.opening.plan.body.consent_threshold(len(state.view.shares))
        if len(state.consents) < needed:
            raise SumRefused("E_CONSENT", f"{len(state.consents)} sites consent, needed are {needed}")
        consents = dict(sorted(state.consents.items()))
        messages = _messages(consents.values())
        following = Revealing(state.opening, state.view, state.boxes, state.survivors, state.agreed, consents)
        return following, (Keep(CertificateMade(messages)), *_relays(consents, messages))

    def _unmask(self, state: Revealing) -> Step:
        job = recover(state.view, state.survivors, state.revealed)
        state.revealed.clear()
        return Unmasking(state.opening, state.view, state.survivors, state.agreed), (Unmask(job),)

    def _publish(self, state: Unmasking, event: SumRead) -> Step:
        plan, figures = state.opening.plan.body, event.figures
        try:
            check_bounds(
                figures,
                survivors=len(state.survivors),
                q_max=plan.q_max,
                sites=len(plan.invited),
                sigma_sq=plan.dp.sigma_sq,
                dim=plan.dim,
                norm_sq_max=plan.dp.norm_sq_max,
            )
        except SumRefused as refusal:
            return _abandon(state, refusal)
        if (event.new_model_digest is None) != (plan.purpose == "evaluate"):
            raise OutOfOrder("a training sum names its new model, an evaluation names none")
        fields = {
            "plan": state.opening.digest.hex(),
            "view": state.view.digest.hex(),
            "consensus": state.agreed.hex(),
            "survivors": state.survivors,
            "sum_digest": figures.digest.hex(),
            "new_model_digest": None if event.new_model_digest is None else event.new_model_digest.hex(),
        }
        message = sign(self.signer, Result.model_validate(fields))
        return Over(message), (Keep(ResultMade(message)), *_relays(plan.invited, (message,)), Concluded(message))

    # --- restart ----------------------------------------------------------------------------------------------

    def resume(self, records: Iterable[Record]) -> Step:
        """Return where a sum stands by its records, and what its running phase relays, to be sent again.

        What a phase had collected without fixing it is gone; sites answer a repeated set with the same bytes. Staged
        uploads start anew; committed ones are added again from their spools (`Stage.read_again`).

        Raises:
            ValueError: The records don't begin with the plan, or are out of order.
        """
        rest = list(records)
        if not rest or not isinstance(rest[0], PlanIssued):
            raise ValueError("the records of a sum begin with its plan")
        plan = open_message(SumPlan, rest[0].plan, self.registry)
        opening = Opening(plan, digests.plan_digest(plan.message.body))
        state: State = Advertising(opening)
        outputs: tuple[Output, ...] = tuple(_relays(plan.body.invited, (plan.message,)))
        for record in rest[1:]:
            state, outputs = self._replay(state, record, outputs)
        return state, tuple(item for item in outputs if not isinstance(item, Keep | Discard))

    def _replay(self, state: State, record: Record, outputs: tuple[Output, ...]) -> Step:
        match state, record:
            case Advertising(), RosterFixed():
                for message in record.adverts:
                    self._advert(state, message)
            case Sharing(), MembersFixed():
                self._replay_shares(state, record)
            case Masking(), UploadCommitted():
                masked = open_message(Masked, record.masked, self.registry)
                state.masked[masked.body.sender] = masked
                return state, outputs
            case Masking(), SurvivorsFrozen():
                if tuple(sorted(state.masked)) != record.survivors:
                    raise ValueError("the records of a sum don't agree on its survivors")
            case Consenting(), CertificateMade():
                for message in record.survivors:
                    self._survivors(state, message)
            case _, SumAbandoned():
                refusal = SumRefused(record.code, "abandoned before a restart")
                return Over(None, refusal), (Concluded(None, refusal),)
            case Revealing(), ResultMade():
                body = state.opening.plan.body
                return Over(record.result), (*_relays(body.invited, (record.result,)), Concluded(record.result))
            case _:
                raise ValueError(f"{type(record).__name__} out of order in the records of a sum")
        return self._ended(state)

    def _replay_shares(self, state: Sharing, record: MembersFixed) -> None:
        for message in record.shares:
            shares = open_message(Shares, message, self.registry)
            state.shares[shares.body.sender] = shares
        for data in record.boxes:
            box = parse(Box, data)
            state.boxes[box.sender, box.to] = box, data


def reachable(ring: Ring, members: Iterable[str], threshold: int) -> set[str]:
    """Return the members of whom each has at least `threshold` neighbours among the others that are kept.

    A site with fewer would abort, and nobody could join its secrets.
    """
    kept = set(members)
    while True:
        lonely = {site for site in kept if len(kept.intersection(ring.neighbours(site))) < threshold}
        if not lonely:
            return kept
        kept -= lonely


def _messages(opened: Iterable[Opened[Any]]) -> tuple[Signed, ...]:
    return tuple(item.message for item in opened)


def _relays(to: Iterable[str], messages: tuple[Signed, ...]) -> tuple[Relay, ...]:
    return tuple(Relay(site, messages) for site in to)


def _chunk(state: Masking, event: ChunkArrived) -> Step:
    if event.sender not in state.view.shares:
        raise SumRefused("E_U2", f"{event.sender} isn't one of those that shared")
    if event.sender in state.masked or event.sender in state.opening.aborts:
        raise SumRefused("E_LATE", f"the upload of {event.sender} is over")
    plan = state.opening.plan.body
    stage = state.stages.get(event.sender) or Stage(plan.dim, plan.word_bits)
    stage.take(event.index, event.data)
    state.stages[event.sender] = stage
    return state, (Spool(event.sender, event.index, event.data),)


def _out_of_phase(state: State, kind: str, what: str) -> SumRefused:
    """Return E_LATE for what belongs to a phase that is over, else E_PHASE."""
    phases: tuple[tuple[type[Collecting], str], ...] = (
        (Advertising, "advert"),
        (Sharing, "shares"),
        (Masking, "masked"),
        (Consenting, "survivors"),
        (Revealing, "reveal"),
    )
    names = [name for _, name in phases]
    now = next((number for number, (phase, _) in enumerate(phases) if isinstance(state, phase)), len(phases))
    if kind in names and names.index(kind) < now:
        return SumRefused("E_LATE", f"{what} after its phase")
    return OutOfOrder(f"{what} while {type(state).__name__.lower()}")


def _abandon(state: State, refusal: SumRefused) -> Step:
    stages = state.stages if isinstance(state, Masking) else ()
    discards = tuple(Discard(site) for site in sorted(stages))
    return Over(None, refusal), (Keep(SumAbandoned(refusal.code)), *discards, Concluded(None, refusal))
