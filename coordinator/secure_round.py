"""The secure sum of an attempt at the coordinator: the protocol's machine over an `Exchange`, with its disk around it.

    advertise → share → mask → consent → reveal → (server step) → conclude

Each phase asks the sites that the machine names and waits for all of them or for the phase's time. What the machine
wants on disk is there before the messages that follow from it leave. Everything may be done again: records, answers
and uploaded vectors are on disk until the round is over, so a restarted coordinator goes on in the phase it was in,
asks nobody again who has answered, and adds every vector up once more.

The coordinator never has a site's update: uploads are masked, they lie as blobs until they are added, and what is
unmasked is the sum of the survivors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coordinator import round_machine
from coordinator.exchange import Exchange, Silence
from coordinator.recording import Recorder, SumAt
from coordinator.records import AttemptRecord, Fact
from coordinator.replies import keep_reply, reply_of
from coordinator.round_machine import Round, RoundState, Standing
from coordinator.store import Store
from federation.charter import Charter
from federation.errors import OutOfOrder
from federation.link.blobs import BlobStore
from federation.messages import (
    BlobReference,
    JobId,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    SiteId,
    encode_body,
)
from federation.plan_fields import Plan
from federation.secure_sums import (
    WORD_BITS,
    DigestSigner,
    SumFailed,
    SumPlace,
    read_chunk,
    registry_of,
    sum_job_digest,
    sum_plan,
    words_of,
)
from federation.tensors import Manifest
from privacy.secagg import aggregator_states as at
from privacy.secagg.aggregator import Aggregator
from privacy.secagg.envelope import Signed, unpack
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import chunk_count
from privacy.secagg.messages import Masked, SumPlan
from privacy.secagg.sums import Accumulator, Stage, SumFigures, SumInspection

_PHASE_OF: Final[Mapping[type[at.State], Phase]] = {
    at.Advertising: Phase.ADVERTISE,
    at.Sharing: Phase.SHARE,
    at.Masking: Phase.MASK,
    at.Consenting: Phase.CONSENT,
    at.Revealing: Phase.REVEAL,
}
_ROUND_STATES: Final = (
    RoundState.TRAINING,
    RoundState.KEYED,
    RoundState.MASKED,
    RoundState.CONSENTED,
    RoundState.REVEALED,
)
_ROUND_STATE_OF: Final[Mapping[type[at.State], RoundState]] = {
    at.Advertising: RoundState.KEYED,
    at.Sharing: RoundState.KEYED,
    at.Masking: RoundState.MASKED,
    at.Consenting: RoundState.CONSENTED,
    at.Revealing: RoundState.REVEALED,
}


@dataclass(frozen=True, slots=True)
class SumSetting:
    """What a job's sums are made under.

    Attributes:
        charter: Returns the newest epoch.
        signer: The coordinator's identity key as the protocol uses it.
        new_id: Draws 32 random bytes.
    """

    charter: Callable[[], Charter]
    signer: DigestSigner
    new_id: Callable[[], bytes]


@dataclass(slots=True)
class Summed:
    """A sum that is unmasked and not yet published."""

    words: Path
    figures: SumFigures
    survivors: tuple[SiteId, ...]
    uploads: Mapping[SiteId, PhaseReply]
    attempt: AttemptRecord


MakeRequest = Callable[[Phase, float, str], PhaseRequest]
"""Makes a phase's request, which waits so long, in the sum of that id."""
NewMessageId = Callable[[], str]
CheckUpload = Callable[[SiteId, PhaseReply], str | None]
"""Records an upload and returns the code for which it doesn't count, None where it does."""
Missed = Callable[[SiteId, Phase, str, bool], None]
"""Records that a site is missing in a phase: site, phase, code, whether its link broke."""


@dataclass(slots=True)
class SecureRound:
    """One sum at work; used by its job's thread alone."""

    job: JobId
    plan: Plan
    plan_digest: str
    manifest: Manifest
    store: Store
    blobs: BlobStore
    setting: SumSetting
    phase_s: float
    new_message_id: NewMessageId
    make_request: MakeRequest
    check_upload: CheckUpload
    missed: Missed
    recorder: Recorder
    _sum_at: SumAt = field(init=False)
    _aggregator: Aggregator = field(init=False)
    _state: at.State = field(init=False)
    _accumulator: Accumulator = field(init=False)
    _uploads: dict[SiteId, PhaseReply] = field(default_factory=dict)
    _attempt: AttemptRecord = field(init=False)
    _unmask: at.Unmask | None = None
    _figures: SumFigures | None = None
    _last: tuple[at.Output, ...] = ()

    def sum(self, attempt: AttemptRecord, exchange: Exchange, *, model_digest: str, folder: Path) -> Summed:
        """Return the sum of the survivors' vectors, unmasked, in a file in `folder`.

        Args:
            attempt: Its training is closed, or a restart found it within the sum.
            exchange: Carries the phases.
            model_digest: Of the model that the sites trained from.
            folder: An empty folder.

        Raises:
            SumFailed: Nothing is published of this attempt.
            Interrupted: The job ended or the service stops.
        """
        self._attempt = attempt
        charter = self.setting.charter()
        self._aggregator = Aggregator(registry_of(charter), self.setting.signer)
        self._accumulator = Accumulator(words_of(self.manifest), WORD_BITS)
        try:
            self._begin(charter, model_digest)
            while type(self._state) in _PHASE_OF:
                self._walk_round(_ROUND_STATE_OF[type(self._state)])
                self._collect(exchange)
                self._take(at.PhaseEnded())
                self._record_phase()
            if isinstance(self._state, at.Over):
                raise SumFailed(self._state.refusal or SumRefused("E_RESULT", "the sum is over already"))
            return self._read(folder)
        except SumRefused as refusal:
            raise SumFailed(refusal) from None

    def publish(self, model_digest: str, receipts: Mapping[SiteId, bytes]) -> Mapping[SiteId, Signed]:
        """Return the signed result for each site that revealed, after it is recorded.

        Args:
            model_digest: Of the model that the sum leads to.
            receipts: The leaf hashes of the survivors' receipts.

        Raises:
            SumFailed: The sum is out of its bounds; nothing is published.
        """
        if self._figures is None:
            raise OutOfOrder("CFD-G01", "no sum was unmasked")
        revealed = set(self._attempt.round.standing(Standing.ANSWERED))
        self._take(at.SumRead(self._figures, bytes.fromhex(model_digest)))
        if isinstance(self._state, at.Over) and self._state.refusal is not None:
            self._record_phase()
            raise SumFailed(self._state.refusal)
        self.recorder.sum_released(self._sum_at, self._figures.digest.hex(), receipts=receipts)
        self.recorder.sum_phase(self._sum_at, "closed")
        relays = (item for item in self._last if isinstance(item, at.Relay))
        return {SiteId(item.to): item.messages[0] for item in relays if item.to in revealed}

    # --- begin, or go on after a restart ----------------------------------------------------------------------

    def _begin(self, charter: Charter, model_digest: str) -> None:
        at_ = self._at
        records = self.store.sums.records(*at_)
        if not records:
            invited = tuple(str(site) for site in self._attempt.round.survivors)
            place = SumPlace(
                at_[1], at_[2], self.setting.new_id().hex(), model_digest, invited, charter.epoch, charter.federation
            )
            digest = sum_job_digest(self.job, self.plan_digest)
            self._sum_at = SumAt(*at_, place.sum_id)
            self._state, outputs = self._aggregator.open(sum_plan(self.plan, digest, self.manifest, place))
            self._perform(outputs)
            return
        self._sum_at = SumAt(*at_, _sum_id(records))
        # A result that was made is made again, the same to the bit: its words were in memory.
        kept = [record for record in records if not isinstance(record, at.ResultMade)]
        self._state, self._last = self._aggregator.resume(kept)
        for record in kept:
            if isinstance(record, at.UploadCommitted):
                self._add_again(record)
        self._record_phase()  # where the process ended between the record and this entry

    def _add_again(self, record: at.UploadCommitted) -> None:
        body = Masked.model_validate_json(record.masked.body)
        site, dim = SiteId(body.sender), words_of(self.manifest)
        replies = {reply.site: reply_of(reply) for reply in self.store.rounds.replies(*self._at, Phase.MASK)}
        update = replies[site].update if site in replies else None
        if update is None or not self.blobs.has(update):
            raise SumRefused("E_PAYLOAD", f"the stored upload of {site} is gone")
        path = self.blobs.path(update)
        stage = Stage.read_again(
            dim, WORD_BITS, bytes.fromhex(body.payload), lambda index: read_chunk(path, index, dim)
        )
        self._accumulator.add(site, stage, lambda index: read_chunk(path, index, dim))
        self._uploads[site] = replies[site]

    @property
    def _at(self) -> tuple[JobId, int, int]:
        return self.job, self._attempt.round.number, self._attempt.round.attempt

    # --- one phase --------------------------------------------------------------------------------------------

    def _collect(self, exchange: Exchange) -> None:
        phase = _PHASE_OF[type(self._state)]
        relays = {SiteId(item.to): item for item in self._last if isinstance(item, at.Relay)}
        known = {kept.site: reply_of(kept) for kept in self.store.rounds.replies(*self._at, phase)}
        for site, reply in known.items():
            self._hear(site, phase, reply)
        request = self.make_request(phase, self.phase_s, self._sum_at.sum_id)
        requests = {
            site: request.model_copy(
                update={
                    "message_id": self.new_message_id(),
                    "signed": tuple(message.pack().hex() for message in relay.messages),
                    "boxes": tuple(box.hex() for box in relay.boxes),
                }
            )
            for site, relay in relays.items()
            if site not in known
        }
        lost: set[str] = set()

        def may_lose() -> int:
            return at.spare_count(self._state, lost) if isinstance(self._state, at.Collecting) else 0

        for heard in exchange.ask(requests, timeout_s=self.phase_s, may_lose=may_lose):
            if heard.reply is not None:
                if not heard.is_stored:
                    keep_reply(self.store, heard.site, heard.reply, body=encode_body(heard.reply), signature=b"")
                self._hear(heard.site, phase, heard.reply)
            elif heard.refused is not None:
                self.missed(heard.site, phase, heard.refused, False)
            else:
                lost.add(heard.site)
                away = heard.silence is Silence.LOST
                self.missed(heard.site, phase, "CFD-R09" if away else "CFD-R08", away)
            if isinstance(self._state, at.Collecting) and at.is_complete(self._state):
                break

    def _hear(self, site: SiteId, phase: Phase, reply: PhaseReply) -> None:
        """Take a site's answer to a phase; what is refused of it counts as silence."""
        if reply.outcome is Outcome.FAILED:
            self.missed(site, phase, "CFD-R54" if reply.reason is None else reply.reason.code, False)
        try:
            messages = tuple(unpack(bytes.fromhex(packed)) for packed in reply.signed)
            for message in messages:
                if message.kind == "masked" and not self._stage(site, reply):
                    return
                self._take(at.Arrived(message, tuple(bytes.fromhex(box) for box in reply.boxes)))
        except SumRefused as refusal:
            self.missed(site, phase, SumFailed(refusal).code, False)

    def _stage(self, site: SiteId, reply: PhaseReply) -> bool:
        """Show the machine an upload chunk by chunk; return whether it may count."""
        update, dim = reply.update, words_of(self.manifest)
        if site in self._uploads:
            return True
        code = self.check_upload(site, reply)
        if code is not None or update is None or update.size_bytes != dim * WORD_BITS // 8:
            self.missed(site, Phase.MASK, code or SumFailed(SumRefused("E_PAYLOAD", "")).code, False)
            return False
        path = self._path(update)
        for index in range(chunk_count(dim)):
            self._take(at.ChunkArrived(site, index, read_chunk(path, index, dim)))
        self._uploads[site] = reply
        return True

    def _path(self, update: BlobReference) -> Path:
        if not self.blobs.has(update):
            raise SumRefused("E_PAYLOAD", "the upload was announced and not delivered")
        return self.blobs.path(update)

    # --- the machine ------------------------------------------------------------------------------------------

    def _take(self, event: at.Event) -> None:
        self._state, outputs = self._aggregator.step(self._state, event)
        if isinstance(event, at.PhaseEnded | at.SumRead):
            self._last = ()
        self._perform(outputs)

    def _perform(self, outputs: Iterable[at.Output]) -> None:
        relays: list[at.Output] = []
        for item in outputs:
            match item:
                case at.Keep():
                    self.store.sums.keep(*self._at, item.record)
                case at.Relay():
                    relays.append(item)
                case at.AddStaged():
                    self._add(SiteId(item.sender), item.stage)
                case at.Unmask():
                    self._unmask = item
                case at.Blamed():
                    for site in item.refusal.blame:
                        self.missed(SiteId(site), self._phase(), SumFailed(item.refusal).code, False)
                case _:
                    pass  # staged chunks lie in the upload's blob until the round is over
        if relays:
            self._last = tuple(relays)

    def _phase(self) -> Phase:
        return _PHASE_OF.get(type(self._state), Phase.REVEAL)

    def _add(self, site: SiteId, stage: Stage) -> None:
        update = self._uploads[site].update
        if update is None:
            raise OutOfOrder("CFD-G01", "an upload without a blob")
        path, dim = self.blobs.path(update), words_of(self.manifest)
        self._accumulator.add(site, stage, lambda index: read_chunk(path, index, dim))

    def _record_phase(self) -> None:
        """Write into the audit log what the phase that just ended fixed, before anybody is told of it."""
        state, say = self._state, self.recorder.sum_phase
        match state:
            case at.Sharing():
                roster, count = state.view.roster.hex(), len(state.view.adverts)
                threshold = state.view.threshold
                self.recorder.roster_fixed(self._sum_at, roster, members_count=count, threshold=threshold)
                say(self._sum_at, "advertised", members_count=count, fixed=roster)
            case at.Masking():
                say(self._sum_at, "shared", members_count=len(state.view.shares), fixed=state.view.digest.hex())
            case at.Consenting():
                say(self._sum_at, "masked", members_count=len(state.survivors), fixed=state.agreed.hex())
            case at.Revealing():
                say(self._sum_at, "consented", members_count=len(state.consents), fixed=state.agreed.hex())
            case at.Unmasking():
                say(self._sum_at, "revealed", fixed=state.agreed.hex())
            case at.Over() if state.refusal is not None:
                code = SumFailed(state.refusal).code
                say(self._sum_at, "aborted", code=code, cause=state.refusal.code)
            case _:
                pass

    # --- the sum ----------------------------------------------------------------------------------------------

    def _read(self, folder: Path) -> Summed:
        """Take the masks off, and write the words to a file."""
        if self._unmask is None or not isinstance(self._state, at.Unmasking):
            raise OutOfOrder("CFD-G01", "a sum ended without being unmasked")
        self._unmask.job.run(self._accumulator)
        self._unmask.job.wipe()
        dim, path = words_of(self.manifest), folder / "sum.words"
        inspection = SumInspection(dim, WORD_BITS)
        with path.open("wb") as sink:
            for index in range(chunk_count(dim)):
                words = self._accumulator.words(index)
                inspection.read(words)
                sink.write(words.tobytes())
        self._figures = inspection.figures()
        survivors = tuple(SiteId(site) for site in self._state.survivors)
        revealed = {SiteId(reply.site) for reply in self.store.rounds.replies(*self._at, Phase.REVEAL)}
        self._save(_closed(self._attempt.round, revealed))
        return Summed(path, self._figures, survivors, dict(self._uploads), self._attempt)

    # --- the round's own state --------------------------------------------------------------------------------

    def _walk_round(self, target: RoundState) -> None:
        """Take the round to the state of the running phase: who answered the one before is asked."""
        round_ = self._attempt.round
        while _ROUND_STATES.index(round_.state) < _ROUND_STATES.index(target):
            if not round_.closed:
                round_ = _closed(round_, self._asked_now())
            round_, _ = round_machine.step(round_, round_machine.PhaseDone())
        if round_ != self._attempt.round:
            asked = len(round_.standing(Standing.ASKED, Standing.LOST))
            self._save(round_, [("sum.phase", {"round": round_.number, "phase": target.value, "asked": asked})])

    def _asked_now(self) -> set[SiteId]:
        return {SiteId(item.to) for item in self._last if isinstance(item, at.Relay)}

    def _save(self, round_: Round, facts: Sequence[Fact] = ()) -> None:
        self._attempt = self.store.rounds.save(self.job, round_, facts)


def _sum_id(records: Sequence[at.Record]) -> str:
    first = records[0]
    if not isinstance(first, at.PlanIssued):
        raise OutOfOrder("CFD-G01", "the records of a sum begin with its plan")
    return SumPlan.model_validate_json(first.plan.body).sum_id


def _closed(round_: Round, answered: set[SiteId]) -> Round:
    """Return the round with its running phase closed: these sites answered."""
    for site in round_.standing(Standing.ASKED, Standing.LOST):
        if site in answered and not round_.closed:
            round_, _ = round_machine.step(round_, round_machine.Answered(site))
    if not round_.closed:
        round_, _ = round_machine.step(round_, round_machine.DeadlinePassed())
    return round_
