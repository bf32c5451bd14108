"""What one phase writes into the site's log, and what it may do by the receipts that it gets back.

The order is the one of `phases`; nothing is decided here. What permits an act is waited for, the rest is queued before
it, so one wait covers both.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from audit.errors import AuditError
from audit.events import Peer
from audit.receipt import Receipt
from federation.messages import BlobReference, EvaluationCounts, Phase, PhaseRequest
from privacy.accounting.convert import nano
from privacy.accounting.entries import Use
from privacy.errors import PrivacyError
from site_client.budget.leases import RoundLeases
from site_client.jobs import JobFacts, budget_part
from site_client.lineage import Followed
from site_client.open_site import OpenSite
from site_client.session import Work
from site_client.uploads import NOTHING_TOLD, Telemetry, figures_of

Reference = Callable[[str, str], object]
"""Logs an event with a code, for what the audit log couldn't take."""


class PhaseTrail:
    """The entries of one phase.

    Args:
        site: The opened home.
        facts: The job.
        work: Which phase.
        unrecorded: Called with an event and a code where an entry couldn't be written and nothing waits for it.
    """

    def __init__(self, site: OpenSite, facts: JobFacts, work: Work, unrecorded: Reference) -> None:
        self._site = site
        self._facts = facts
        self._work = work
        self._unrecorded = unrecorded
        self._told: Telemetry | None = None
        self.use: Final[Use] = "train" if work.phase is Phase.TRAIN else "evaluate"

    # --- before the work --------------------------------------------------------------------------------------

    def followed(self, found: Followed, *, peer_of: Callable[[str, int], Peer | None]) -> None:
        """The site reached the model that the phase begins from; an attempt before this one is in no result.

        Args:
            found: The releases that were followed.
            peer_of: Returns the coordinator's entry of a job's model of a round, where it was shown.
        """
        records, plan = self._site.records, self._facts.plan
        if self._work.phase is Phase.TRAIN and self._work.attempt > 0:
            records.attempt_abandoned(self._facts.job, self._work.round, self._work.attempt - 1)
        for step in found.steps:
            if step.release.step > 0:
                records.round_released(step.release)
                peer = peer_of(self._facts.job, step.release.round)
                strategy = plan.server.strategy
                records.model_accepted(step.release, previous=step.previous, strategy=strategy, peer=peer)
        if self._work.phase is Phase.TRAIN:
            count = len(plan.sites.invite)
            records.round_opened(self._facts.job, self._work.round, found.applied.digest, invited_count=count)

    def release_refused(self, request: PhaseRequest, code: str) -> None:
        """The release that was named doesn't follow from what this site holds."""
        applied = self._site.store.applied(self._facts.job)
        self._site.records.model_refused(
            self._facts.job,
            self._work.round,
            offered=request.release.root,
            previous="0" * 64 if applied is None else applied.digest,
            strategy=self._facts.plan.server.strategy,
            code=code,
        )

    def open_data(self, steps: int | None) -> tuple[Receipt, RoundLeases | None]:
        """Record what may be taken and read; return the receipt that opens the data, and the leases of the round.

        Args:
            steps: The most charged steps that the phase may take; None where it isn't charged.

        Raises:
            AuditError: It couldn't be recorded; nothing may be read.
        """
        facts, site = self._facts, self._site
        budget: dict[str, object] | None = None
        leased: Future[Receipt] | None = None
        if steps is not None:
            most = nano(site.ledger.epsilon_with(facts.job, steps, self.use))
            budget = {**budget_part(site, facts, self.use), "steps": steps, "eps_nano": most}
            leased = site.records.leased(facts.job, self._work.round, facts.dataset, budget)
        receipt = site.records.opened(
            facts.job,
            facts.plan,
            facts.plan_digest,
            round_number=self._work.round,
            mode=self.use,
            dataset=facts.dataset,
            policy=facts.terms.policy,
            rule=facts.terms.rule,
            approval=facts.approval,
            budget=budget,
        )
        if leased is None:
            return receipt, None
        return receipt, RoundLeases(site.ledger, leased.result(), attempt=self._work.attempt, use=self.use)

    def exhausted(self, code: str, refusal: PrivacyError | None = None) -> None:
        """The budget gives no step more."""
        facts, cause = self._facts, None if refusal is None else refusal.cause
        part = budget_part(self._site, facts, self.use)
        try:
            self._site.records.exhausted(facts.job, facts.dataset, part, code=code, cause=cause)
        except AuditError as problem:
            self._unrecorded("phase.not_recorded", problem.code)

    # --- after it ---------------------------------------------------------------------------------------------

    def data_closed(
        self, opened: int, leases: RoundLeases | None, *, records: int | None, abandoned: bool, code: str | None
    ) -> None:
        """The reading is over, and what it took is spent.

        Raises:
            AuditError, PrivacyError: Not all of it could be recorded.
        """
        facts, number, entries = self._facts, self._work.round, self._site.records
        if leases is not None:
            leases.close()
        if abandoned:
            entries.abandoned(facts.job, number, facts.dataset, opened=opened, code=code)
        else:
            entries.closed(facts.job, number, facts.dataset, opened=opened, records=records, code=code)
        if leases is not None:
            part = budget_part(self._site, facts, self.use)
            part |= {"steps": leases.leased, "lost_steps": leases.lost}
            entries.spent(facts.job, number, facts.dataset, part)

    def update_leaves(self, update: BlobReference, told: Telemetry) -> Receipt:
        """Record that the update, and what the reply tells, are about to leave.

        Raises:
            AuditError: It couldn't be recorded; no byte may leave.
        """
        self._tell(told)
        return self._site.records.update_sent(self._facts.job, self._work.round, update)

    def figures_leave(self, evaluation: EvaluationCounts, told: Telemetry) -> Receipt:
        """Record that figures of an evaluation, and what the reply tells, are about to leave.

        Raises:
            AuditError: It couldn't be recorded; nothing may leave.
        """
        self._tell(told)
        return self._site.records.evaluation_sent(self._facts.job, self._work.round, figures_of(evaluation))

    def telemetry(self, told: Callable[[], Telemetry]) -> Telemetry:
        """Return what the reply tells of the work: what was recorded, or `told` now; nothing where that fails."""
        if self._told is None:
            try:
                self._tell(told()).result()
            except AuditError as problem:
                self._unrecorded("phase.not_recorded", problem.code)
                self._told = NOTHING_TOLD
        return self._told or NOTHING_TOLD

    def _tell(self, told: Telemetry) -> Future[Receipt]:
        recorded = self._site.records.metrics_sent(self._facts.job, self._work.round, told.names(), told.content())
        self._told = told
        return recorded
