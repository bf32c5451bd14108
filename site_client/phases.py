"""One phase of a round at this site, from the request to its reply, in the one order that is safe.

    1  follow the releases up to the one that was named         (in the background: it fetches)
    2  a trainer that is ready: libraries, device, engine checked, no data
    3  budget.leased, then data.opened durable; only its receipt opens the data
    4  the trainer reads, asks for leases; each is durable before it is given
    5  data.closed, budget.spent
    6  the update is a durable blob; update.sent durable; then its first byte leaves     (in the background)
    7  the reply, stored with its message

The loop of the daemon calls the methods one at a time; whatever waits on a disk for long or on the network runs in the
background and comes back as an event. Each way out ends in exactly one reply.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from audit.errors import AuditError
from audit.receipt import Receipt
from federation import canonical
from federation.errors import ConfideError
from federation.link.chunks import reference_of
from federation.messages import BlobReference, JobId, Outcome, Phase, PhaseReply, PhaseRequest, Reason, encode_body
from federation.tensors import check_update
from privacy.accounting.entries import Use
from privacy.errors import LedgerUnavailable, PrivacyError
from site_client import lineage
from site_client.budget.leases import RoundLeases
from site_client.jobs import JobFacts, budget_part
from site_client.lineage import Followed, LineageRefused
from site_client.open_site import OpenSite
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

KILLED: Final = "CFD-R50"
NO_BUDGET: Final = "CFD-R55"
NOT_FETCHED: Final = "CFD-R82"
NOT_RECORDED: Final = "CFD-R63"


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

    def deliver(self, reference: BlobReference, deadline_s: float) -> None:
        """Bring a blob to the coordinator; from any thread."""
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

    # --- 1 and 2: following, and a trainer that is ready -------------------------------------------------------

    def begin(self, *, trainer_ready: bool) -> None:
        """Begin; the trainer may still be loading its libraries."""
        self._ready = trainer_ready
        applied = self._site.store.applied(self.facts.job)
        self._background("followed", lambda: self._follow(applied))

    def _follow(self, applied: Applied | None) -> Followed:
        return lineage.follow(
            self.facts.lineage,
            newest=self._request.release,
            signature=bytes.fromhex(self._request.release_signature),
            round_number=self.work.round,
            applied=applied,
            fetch=self._fetch,
        )

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
            case "delivered":
                self._on_delivered(done)

    def _on_followed(self, done: Background) -> None:
        if done.problem is not None:
            self._refuse_release(done.problem)
            return
        self._followed = done.result
        strategy = self.facts.plan.server.strategy
        for step in done.result.steps:
            if step.release.step > 0:
                self._site.records.model_accepted(step.release, previous=step.previous, strategy=strategy)
        lineage.forget_older(self.facts.lineage, done.result.applied)
        self._open_when_ready()

    def _refuse_release(self, problem: ConfideError) -> None:
        if not isinstance(problem, LineageRefused):
            self._fail(NOT_FETCHED if problem.code.startswith("CFD-L") else problem.code)
            return
        applied = self._site.store.applied(self.facts.job)
        self._site.records.model_refused(
            self.facts.job,
            self.work.round,
            offered=self._request.release.root,
            previous="0" * 64 if applied is None else applied.digest,
            strategy=self.facts.plan.server.strategy,
            code=problem.code,
        )
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
        facts, job, number = self.facts, self.facts.job, self.work.round
        budget: dict[str, object] | None = None
        if self._is_charged:
            steps = self._steps_of_phase
            if self._site.ledger.remaining_steps(job, self._use) < steps:
                self._fail(NO_BUDGET)
                return
            self._leases = RoundLeases(
                self._site.ledger, job, number, steps=steps, attempt=self.work.attempt, use=self._use
            )
            budget = {**budget_part(self._site, facts, self._use), "steps": steps}
            self._site.records.leased(job, number, facts.dataset, budget)
        self._receipt = self._site.records.opened(
            job,
            facts.plan,
            facts.plan_digest,
            round_number=number,
            mode="train" if self.work.phase is Phase.TRAIN else "evaluate",
            dataset=facts.dataset,
            policy=facts.terms.policy,
            rule=facts.terms.rule,
            approval=facts.approval,
            budget=budget,
        )
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
    def _use(self) -> Use:
        return "train" if self.work.phase is Phase.TRAIN else "evaluate"

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
                self._close_data(abandoned=False)
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
        self._close_data(abandoned=True)
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

    def _close_data(self, *, abandoned: bool) -> None:
        if self._receipt is None:
            return
        facts, opened = self.facts, self._receipt.index
        self._receipt = None
        try:
            if self._leases is not None:
                self._leases.close()
            if abandoned:
                self._site.records.abandoned(facts.job, self.work.round, facts.dataset, opened=opened)
            else:
                self._site.records.closed(
                    facts.job, self.work.round, facts.dataset, opened=opened, records=self._records
                )
            if self._leases is not None:
                part = budget_part(self._site, facts, self._use)
                part |= {"steps": self._leases.leased, "lost_steps": self._leases.lost}
                self._site.records.spent(facts.job, self.work.round, facts.dataset, part)
        except (AuditError, PrivacyError) as problem:
            self._tools.new_reference("phase.not_recorded", job=facts.job, code=problem.code)
            self._stop_code = self._stop_code or NOT_RECORDED

    def _on_done(self, line: Done) -> None:
        self._done = line
        self._close_data(abandoned=False)
        if self._stop_code is not None:
            self._fail(self._stop_code)
        elif self.work.phase is Phase.TRAIN:
            self.standing = Standing.SENDING
            self._background("stored", self._store_update)
        else:
            self._send_evaluation(line)

    def _store_update(self) -> BlobReference:
        check_update(self._output, self.facts.lineage.manifest, site=self._site.site)
        return self._site.blobs.adopt_file(self._output)

    def _on_stored(self, done: Background) -> None:
        if done.problem is not None:
            self._fail(done.problem.code)
            return
        update: BlobReference = done.result
        self._update = update
        try:
            self._receipt = self._site.records.update_sent(self.facts.job, self.work.round, update)
        except AuditError:
            self._fail(NOT_RECORDED)
            return
        self._background("delivered", lambda: self._tools.deliver(update, self._left_s()))

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
        )

    def _send_evaluation(self, line: Done) -> None:
        evaluation, evaluate = line.evaluation, self.facts.plan.evaluate
        if evaluation is None or evaluate is None or evaluation.release != evaluate.release:
            self._fail("CFD-R54")
            return
        content = canonical.encode(evaluation.model_dump(mode="json"))
        digest = hashlib.sha256(content).hexdigest()
        try:
            receipt = self._site.records.evaluation_sent(
                self.facts.job, self.work.round, digest=digest, size_bytes=len(content)
            )
        except AuditError:
            self._fail(NOT_RECORDED)
            return
        self._end(outcome=Outcome.DONE, evaluation=evaluation, receipt=receipt.leaf.hex())

    def _fail(self, code: str, *, reference: str | None = None) -> None:
        if self.standing is Standing.OVER:
            return
        named = reference or self._tools.new_reference("phase.failed", job=self.facts.job, code=code)
        self._end(outcome=Outcome.FAILED, reason=Reason(code=code), reference=named)

    def _end(self, **fields: Any) -> None:
        self.standing = Standing.OVER
        steps = 0
        if self.work.phase is Phase.TRAIN:
            steps = self._leases.leased if self._leases is not None else (self._done.steps if self._done else 0)
        reply = PhaseReply(
            message_id=self._tools.new_message_id(),
            job=self.facts.job,
            round=self.work.round,
            attempt=self.work.attempt,
            phase=self.work.phase,
            epsilon=self._epsilon(),
            steps=steps,
            duration_s=int(self._site.clock.monotonic_s() - self._begun_s),
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
