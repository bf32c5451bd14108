"""One phase of a round at this site, from the request to its reply, in the one order that is safe.

    1  follow the releases up to the one that was named         (in the background: it fetches)
    2  a trainer that is ready: libraries, device, engine checked, no data
    3  budget.leased, then data.opened durable; only their receipts give leases and open the data
    4  the trainer reads, asks for leases; each is durable before it is given
    5  data.closed, budget.spent
    6  the update is a durable blob; metrics.sent and update.sent durable; only then, and by the receipt, its first
       byte leaves                                              (in the background)
    7  the reply, stored with its message

An attempt of a round whose update this site holds already, because an earlier attempt released nothing, goes from
1 to the entries of 6: the same noisy update again is no new use of the data.

The loop of the daemon calls the methods one at a time; whatever waits on a disk for long or on the network runs in the
background and comes back as an event. Each way out ends in exactly one reply.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from audit.errors import AuditError
from audit.events import Peer
from audit.receipt import Receipt
from federation.errors import ConfideError
from federation.link.chunks import reference_of
from federation.messages import (
    BlobReference,
    JobId,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    Reason,
    Release,
    decode_body,
    encode_body,
)
from federation.secure_sums import check_in_range
from federation.tensors import check_update
from federation.witness_messages import Proved
from privacy.errors import LedgerUnavailable, PrivacyError
from site_client import lineage
from site_client.budget.leases import RoundLeases
from site_client.jobs import JobFacts, update_file
from site_client.lineage import Followed, LineageRefused
from site_client.open_site import OpenSite
from site_client.phase_trail import PhaseTrail
from site_client.session import Work
from site_client.stored import Applied
from site_client.trainer_messages import (
    Begin,
    DataClosed,
    Done,
    Failed,
    LeaseAsked,
    LeaseDone,
    LeaseGiven,
    LeaseRefused,
    Ready,
    StopWork,
)
from site_client.trainer_process import TrainerProcess
from site_client.uploads import Telemetry, figures_that_leave

KILLED: Final = "CFD-R50"
NO_BUDGET: Final = "CFD-R55"
NOT_FETCHED: Final = "CFD-R82"
NOT_RECORDED: Final = "CFD-R63"
CONTRADICTED: Final = "CFD-A16"


class NotOpened(ConfideError):
    """The round may not open here: what the request shows of the coordinator's log isn't enough.

    Attributes:
        because: The code that the coordinator and the audit log get.
    """

    def __init__(self, because: str) -> None:
        super().__init__("CFD-R91", f"the round doesn't open here ({because})")
        self.because: Final = because


class Standing(StrEnum):
    """How far a phase is."""

    PREPARING = "preparing"
    WORKING = "working"
    SENDING = "sending"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Background:
    """Something that ran in the background for a phase is done; `result` is what it gave, or the error."""

    job: JobId
    work: Work
    step: str
    result: Any = None
    problem: ConfideError | None = None


class Tools(Protocol):
    """What a phase asks of the daemon."""

    def background(self, job: JobId, work: Work, step: str, task: Callable[[], Any]) -> None:
        """Run `task` in a thread; its end comes back as `Background`."""
        ...

    def fetch(self, reference: BlobReference, deadline_s: float) -> Path:
        """Return a blob's file; from any thread."""
        ...

    def deliver(self, sent: Receipt, deadline_s: float) -> None:
        """Bring the update that the entry names to the coordinator; from any thread."""
        ...

    def opening_problem(self, request: PhaseRequest) -> str | None:
        """Return the code for which a round may not open here, None where it may; from any thread."""
        ...

    def contradict(self, request: PhaseRequest) -> None:
        """Record that the coordinator counts an update of this site and doesn't show its receipt."""
        ...

    def model_peer(self, job: str, round_number: int) -> Peer | None:
        """Return the coordinator's entry of a released model, where it was shown."""
        ...

    def prove(self, leaf: bytes, timeout_s: float) -> Proved | None:
        """Return the proof that this site's log holds an entry, None where it can't be made; from any thread."""
        ...

    def new_message_id(self) -> str:
        """Return an id for a message of this site."""
        ...

    def finished(self, run: "PhaseRun", reply: PhaseReply, applied: Applied | None) -> None:
        """Take the phase's one reply."""
        ...

    def new_reference(self, event: str, *, job: str, code: str) -> str:
        """Log an event and return the reference under which it stands there."""
        ...


class PhaseRun:
    """A phase under way."""

    def __init__(
        self, site: OpenSite, facts: JobFacts, work: Work, request: PhaseRequest, trainer: TrainerProcess, tools: Tools
    ) -> None:
        self._site = site
        self.facts: Final = facts
        self.work: Final = work
        self._request = request
        self.trainer: Final = trainer
        self._tools = tools
        self._begun_s = site.clock.monotonic_s()
        self.standing = Standing.PREPARING
        self._ready = False
        self._followed: Followed | None = None
        self._stop_code: str | None = None
        self._receipt: Receipt | None = None
        self._records: int | None = None
        self._leases: RoundLeases | None = None
        self._done: Done | None = None
        self._update: BlobReference | None = None
        self._trail = PhaseTrail(
            site, facts, work, lambda event, code: tools.new_reference(event, job=facts.job, code=code)
        )

    # --- 1 and 2: following, and a trainer that is ready -------------------------------------------------------

    def begin(self, *, trainer_ready: bool) -> None:
        """Begin; the trainer may still be loading its libraries."""
        self._ready = trainer_ready
        applied = self._site.store.applied(self.facts.job)
        self._background("followed", lambda: self._follow(applied))

    def _follow(self, applied: Applied | None) -> Followed:
        """Return where the releases lead, for a round that may open.

        Raises:
            NotOpened: It may not.
            ConfideError: As `lineage.follow`.
        """
        opens = self.work.phase is Phase.TRAIN
        if opens and (code := self._tools.opening_problem(self._request)) is not None:
            raise NotOpened(code)
        followed = lineage.follow(
            self.facts.lineage,
            newest=self._request.release,
            signature=bytes.fromhex(self._request.release_signature),
            round_number=self.work.round,
            applied=applied,
            fetch=self._fetch,
        )
        if opens and self._request.receipt is None and self._counts_this_site():
            self._tools.contradict(self._request)
            raise NotOpened(CONTRADICTED)
        return followed

    def _counts_this_site(self) -> bool:
        """Return whether the newest release counts an update of this site."""
        record = decode_body("release", self._fetch(self._request.release).read_bytes())
        return isinstance(record, Release) and record.step > 0 and self._site.site in record.survivors

    def _fetch(self, reference: BlobReference) -> Path:
        """Return a blob's file: the request carried it, it is here, or it is fetched."""
        for attached in self._request.attached:
            data = bytes.fromhex(attached)
            if not self._site.blobs.has(reference) and reference_of(data) == reference:
                self._site.blobs.put_bytes(data, durable=False)
        return self._tools.fetch(reference, self._left_s())

    def on_background(self, done: Background) -> None:
        """Go on after something in the background."""
        if self.standing is Standing.OVER:
            return
        match done.step:
            case "followed":
                self._on_followed(done)
            case "stored":
                self._on_stored(done)
            case "kept":
                self._on_kept(done)
            case "delivered":
                self._on_delivered(done)

    def _on_followed(self, done: Background) -> None:
        if isinstance(done.problem, NotOpened):
            self._site.records.phase_refused(self.facts.job, self.work.round, code=done.problem.because)
            self._fail(done.problem.because)
            return
        if done.problem is not None:
            self._refuse_release(done.problem)
            return
        self._followed = done.result
        self._trail.followed(done.result, peer_of=self._tools.model_peer)
        lineage.forget_older(self.facts.lineage, done.result.applied)
        made = self._made_before()
        if made is None or self._stop_code is not None:
            self._open_when_ready()
        else:
            self.standing = Standing.SENDING
            self._send(made)

    def _made_before(self) -> BlobReference | None:
        """Return the update that an earlier attempt of this round left here; sending it again costs no privacy.

        It began from the same release: training anew would add noise and a charge, and nothing else.
        """
        if self.work.phase is not Phase.TRAIN or self.work.attempt == 0 or self.facts.plan.secure_aggregation.enabled:
            return None
        made = self._site.store.update_of_round(self.facts.job, self.work.round)
        return made if made is not None and self._site.blobs.has(made) else None

    def _refuse_release(self, problem: ConfideError) -> None:
        if not isinstance(problem, LineageRefused):
            self._fail(NOT_FETCHED if problem.code.startswith("CFD-L") else problem.code)
            return
        self._trail.release_refused(self._request, problem.code)
        self._fail(problem.code)

    def on_ready(self) -> None:
        """Note that the trainer has loaded what it needs."""
        self._ready = True
        if self.standing is Standing.PREPARING:
            self._open_when_ready()

    # --- 3: budget and data -------------------------------------------------------------------------------------

    def _open_when_ready(self) -> None:
        if self._stop_code is not None and self._followed is not None:
            self._fail(self._stop_code)
        elif self._ready and self._followed is not None:
            try:
                self._open(self._followed)
            except LedgerUnavailable:
                self._fail(NOT_RECORDED)
            except PrivacyError:
                self._fail(NO_BUDGET)
            except AuditError:
                self._fail(NOT_RECORDED)

    def _open(self, followed: Followed) -> None:
        steps = self._steps_of_phase if self._is_charged else None
        if steps is not None and self._site.ledger.remaining_steps(self.facts.job, self._trail.use) < steps:
            self._trail.exhausted(NO_BUDGET)
            self._fail(NO_BUDGET)
            return
        self._receipt, self._leases = self._trail.open_data(steps)
        self.standing = Standing.WORKING
        self._output.unlink(missing_ok=True)
        self.trainer.send(
            Begin(
                request=encode_body(self._request).hex(),
                model=str(followed.model),
                output=str(self._output),
                receipt_index=self._receipt.index,
                receipt_leaf=self._receipt.leaf.hex(),
            )
        )

    @property
    def _is_charged(self) -> bool:
        return self.facts.trains_charged if self.work.phase is Phase.TRAIN else self.facts.evaluates_charged

    @property
    def _steps_of_phase(self) -> int:
        return self.facts.plan.training.local_steps if self.work.phase is Phase.TRAIN else 1

    @property
    def _output(self) -> Path:
        return self.facts.lineage.folder / "update.safetensors"

    # --- 4: the trainer works -----------------------------------------------------------------------------------

    def on_line(self, line: Ready | LeaseAsked | LeaseDone | DataClosed | Done | Failed) -> None:
        """Go on after a line of the trainer."""
        match line:
            case Ready():
                self.on_ready()
            case LeaseAsked():
                self._lease(line.steps)
            case LeaseDone():
                self._lease_done(line.steps)
            case DataClosed():
                self._records = line.records
            case Done() if self.standing is Standing.WORKING:
                self._on_done(line)
            case Failed() if self.standing in (Standing.WORKING, Standing.PREPARING):
                self._close_data(abandoned=False, code=self._stop_code or line.code)
                self._fail(self._stop_code or line.code, reference=line.reference)
            case _:
                pass  # a late line of a phase that is over

    def _lease(self, steps: int) -> None:
        if self.standing is not Standing.WORKING or self._leases is None:
            self.trainer.send(LeaseRefused(code=NO_BUDGET))
            return
        given = self._leases.ask(steps)
        if given:
            self.trainer.send(LeaseGiven(steps=given))
            return
        unavailable = isinstance(self._leases.refusal, LedgerUnavailable)
        if not unavailable:
            self._trail.exhausted(NO_BUDGET, self._leases.refusal)
        self.trainer.send(LeaseRefused(code=NOT_RECORDED if unavailable else NO_BUDGET))

    def _lease_done(self, steps: int) -> None:
        if self._leases is None:
            return
        try:
            self._leases.done(steps)
        except LedgerUnavailable:
            return  # a report only: the lease is charged, and is told as lost when the ledger is back
        except PrivacyError:
            self.trainer.kill()

    def on_gone(self, status: int) -> None:
        """Note that the trainer ended: killed, out of memory, or by itself."""
        if self.standing is Standing.OVER or self.standing is Standing.SENDING:
            return
        if self.standing is Standing.PREPARING and self._followed is None:
            self._stop_code = self._stop_code or KILLED
            return
        self._close_data(abandoned=True, code=self._stop_code or KILLED)
        self._fail(self._stop_code or KILLED)

    @property
    def is_stopping(self) -> bool:
        """Return whether the phase was told to end, so that its trainer's end says nothing of the trainer."""
        return self._stop_code is not None

    def stop(self, code: str) -> None:
        """End the phase as failed with `code`: at its next step, or before it begins; what is being sent is sent."""
        if self._stop_code is None:
            self._stop_code = code
        if self.standing is Standing.WORKING:
            self.trainer.send(StopWork())
        elif self.standing is Standing.PREPARING:
            self._open_when_ready()

    def cut(self) -> None:
        """End the phase at once and without a reply: the job is over, or the daemon is."""
        if self.standing is Standing.WORKING:
            self._close_data(abandoned=True)
        self.standing = Standing.OVER

    # --- 5 to 7: what was spent, what leaves, the reply ----------------------------------------------------------

    def _close_data(self, *, abandoned: bool, code: str | None = None) -> None:
        if self._receipt is None:
            return
        opened, self._receipt = self._receipt.index, None
        try:
            self._trail.data_closed(opened, self._leases, records=self._records, abandoned=abandoned, code=code)
        except (AuditError, PrivacyError) as problem:
            self._tools.new_reference("phase.not_recorded", job=self.facts.job, code=problem.code)
            self._stop_code = self._stop_code or NOT_RECORDED

    def _on_done(self, line: Done) -> None:
        self._done = line
        self._close_data(abandoned=False)
        if self._stop_code is not None:
            self._fail(self._stop_code)
        elif self.work.phase is Phase.TRAIN:
            self.standing = Standing.SENDING
            secure = self.facts.plan.secure_aggregation.enabled
            self._background(*(("kept", self._keep_update) if secure else ("stored", self._store_update)))
        else:
            self._send_evaluation(line)

    def _store_update(self) -> BlobReference:
        check_update(self._output, self.facts.lineage.manifest, site=self._site.site)
        return self._site.blobs.adopt_file(self._output)

    def _keep_update(self) -> None:
        """Keep the update here for the secure sum that follows: nobody else ever sees it."""
        check_update(self._output, self.facts.lineage.manifest, site=self._site.site)
        check_in_range(self._output, self.facts.lineage.manifest, self.facts.plan.secure_aggregation.clip)
        for older in self.facts.lineage.folder.glob("update-*.safetensors"):
            older.unlink(missing_ok=True)
        self._output.replace(update_file(self.facts, self.work))

    def _on_kept(self, done: Background) -> None:
        if done.problem is not None:
            self._fail(done.problem.code)
        else:
            self._end(outcome=Outcome.DONE, weight=1)

    def _on_stored(self, done: Background) -> None:
        if done.problem is not None:
            self._fail(done.problem.code)
            return
        self._send(done.result)

    def _send(self, update: BlobReference) -> None:
        self._update = update
        try:
            sent = self._receipt = self._trail.update_leaves(update, self._telemetry())
        except AuditError:
            self._fail(NOT_RECORDED)
            return
        self._background("delivered", lambda: self._deliver(sent))

    def _deliver(self, sent: Receipt) -> Proved | None:
        """Bring the update to the coordinator, and return the proof that the log records it."""
        self._tools.deliver(sent, self._left_s())
        return self._tools.prove(sent.leaf, self._left_s())

    def _on_delivered(self, done: Background) -> None:
        if done.problem is not None:
            self._fail(self._stop_code or NOT_FETCHED)
            return
        declared = self.facts.plan.weights == "declared"
        self._end(
            outcome=Outcome.DONE,
            update=self._update,
            weight=self.facts.terms.units_declared if declared else 1,
            receipt="" if self._receipt is None else self._receipt.leaf.hex(),
            proved=done.result,
        )

    def _send_evaluation(self, line: Done) -> None:
        evaluation, evaluate = line.evaluation, self.facts.plan.evaluate
        if evaluation is None or evaluate is None or evaluation.release != evaluate.release:
            self._fail("CFD-R54")
            return
        try:
            sent = self._trail.figures_leave(evaluation, self._telemetry())
            leaves = figures_that_leave(sent, evaluation)
        except AuditError:
            self._fail(NOT_RECORDED)
            return
        self._end(outcome=Outcome.DONE, evaluation=leaves, receipt=sent.leaf.hex())

    def _fail(self, code: str, *, reference: str | None = None) -> None:
        if self.standing is Standing.OVER:
            return
        named = reference or self._tools.new_reference("phase.failed", job=self.facts.job, code=code)
        self._end(outcome=Outcome.FAILED, reason=Reason(code=code), reference=named)

    def _telemetry(self) -> Telemetry:
        steps = 0
        if self.work.phase is Phase.TRAIN:
            steps = self._leases.leased if self._leases is not None else (self._done.steps if self._done else 0)
        duration_s = int(self._site.clock.monotonic_s() - self._begun_s)
        return Telemetry(epsilon=self._epsilon(), steps=steps, duration_s=duration_s)

    def _end(self, **fields: Any) -> None:
        self.standing = Standing.OVER
        told = self._trail.telemetry(self._telemetry)
        reply = PhaseReply(
            message_id=self._tools.new_message_id(),
            job=self.facts.job,
            round=self.work.round,
            attempt=self.work.attempt,
            phase=self.work.phase,
            epsilon=told.epsilon,
            steps=told.steps,
            duration_s=told.duration_s,
            **fields,
        )
        self._tools.finished(self, reply, None if self._followed is None else self._followed.applied)

    def _epsilon(self) -> str | None:
        if not self.facts.trains_charged:
            return None
        try:
            return self._site.ledger.job(self.facts.job).epsilon_so_far.hex()
        except PrivacyError:
            return None

    # --- inside -------------------------------------------------------------------------------------------------

    def _left_s(self) -> float:
        passed = self._site.clock.monotonic_s() - self._begun_s
        return max(1.0, float(self._request.deadline_s) - passed)

    def _background(self, step: str, task: Callable[[], Any]) -> None:
        self._tools.background(self.facts.job, self.work, step, task)
