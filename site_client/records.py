"""What the daemon writes to the audit log of its site, as one method for each kind of entry.

`append` waits until the entry is on disk; entries that permit an act are written so, before the act. The others are
submitted and are durable by the round's end, in the order of the calls. Nothing here decides anything, and nothing
that a person typed, or that was counted on data, goes into an entry in the clear.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from audit import events
from audit.canonical import sha256
from audit.log import AuditLog
from audit.receipt import Receipt
from federation.audit_parts import hash_text, purpose_of
from federation.messages import BlobReference, JobId, Release
from federation.plan import Plan
from site_client.entry_parts import budget_of, egress_of, field_name, id_of, plain_token

_MOVED: Final[Mapping[str, type[events.Draft]]] = {
    "started": events.JobStarted,
    "paused": events.JobPaused,
    "resumed": events.JobResumed,
    "cancelled": events.JobCancelled,
    "completed": events.JobCompleted,
    "failed": events.JobFailed,
}
DAEMON: Final = events.Actor(kind="service", id="daemon")
COORDINATOR: Final = events.Actor(kind="party", id="coordinator", auth="mtls")


class Records:
    """The site's entries about jobs, data, budget and what left."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    @property
    def log(self) -> AuditLog:
        """Return the log itself."""
        return self._log

    def person(self, account: str, *, role: str | None = None) -> events.Actor:
        """Return the person behind an account of this machine, by pseudonym."""
        return events.Actor(kind="person", id=self._log.private.pseudonym(account), role=role, auth="local")

    # --- jobs -------------------------------------------------------------------------------------------------

    def offered(self, job: JobId, plan_digest: str) -> None:
        """An offer arrived."""
        self._submit(events.JobOffered, COORDINATOR, job=job, plan=hash_text(plan_digest))

    def validated(self, actor: events.Actor, plan_digest: str, *, refused: bool, findings: list[str]) -> None:
        """A plan was judged by signature, contract, policy and budget; these codes are what was found."""
        self._submit(
            events.JobValidated,
            actor,
            decision="refused" if refused else "allowed",
            code=findings[0] if refused and findings else None,
            plan=hash_text(plan_digest),
            findings=findings,
        )

    def preflight(self, job: JobId, plan_digest: str, *, engine: str, versions: Mapping[str, str]) -> None:
        """The trainer has its libraries, device and engine."""
        clean = {field_name(name): plain_token(value) for name, value in versions.items()}
        self._submit(
            events.JobPreflight,
            DAEMON,
            job=job,
            plan=hash_text(plan_digest),
            engine=plain_token(engine),
            versions=clean,
        )

    def parked(self, job: JobId, plan_digest: str, *, rule: str, code: str, approval: str, expires_us: int) -> None:
        """The policy leaves the answer to a person."""
        self._append(
            events.JobParked,
            DAEMON,
            decision="refused",
            code=code,
            rule=rule or None,
            job=job,
            plan=hash_text(plan_digest),
            approval=events.Approval(id=approval, by=[], expires_us=expires_us),
        )

    def decided(
        self, actor: events.Actor, job: JobId, plan_digest: str, *, policy: str, approval: str, reason: str, yes: bool
    ) -> events.Approval:
        """A person said yes or no; return the approval as later entries name it."""
        given = events.Approval(id=approval, by=[actor.id], meaning="approve" if yes else "review")
        private = {"reason": self._log.private.commit("reason", reason, subject=actor.id)}
        self._append(
            events.JobApproved if yes else events.JobDenied,
            actor,
            decision="allowed" if yes else "refused",
            code=None if yes else "CFD-R69",
            job=job,
            plan=hash_text(plan_digest),
            policy=hash_text(policy),
            approval=given,
            private=private,
        )
        return given

    def accepted(
        self,
        job: JobId,
        plan: Plan,
        plan_digest: str,
        *,
        dataset: events.Dataset,
        policy: str,
        rule: str | None,
        approval: events.Approval | None,
    ) -> None:
        """The site takes the job."""
        self._append(
            events.JobAccepted,
            DAEMON,
            rule=rule,
            job=job,
            plan=hash_text(plan_digest),
            purpose=purpose_of(plan.purpose),
            dataset=dataset,
            policy=hash_text(policy),
            approval=approval,
        )

    def refused(
        self, job: JobId, plan_digest: str, *, code: str, rule: str | None, plan: Plan | None, cause: str | None = None
    ) -> None:
        """The site doesn't take the job."""
        self._append(
            events.JobRefused,
            DAEMON,
            decision="refused",
            code=code,
            cause=cause,
            rule=rule or None,
            job=job,
            plan=hash_text(plan_digest),
            purpose=None if plan is None else purpose_of(plan.purpose),
        )

    def moved(self, change: str, actor: events.Actor, job: JobId, plan_digest: str, *, code: str | None = None) -> None:
        """The job started, was paused or resumed, or ended."""
        failed = change == "failed"
        self._append(
            _MOVED[change],
            actor,
            decision="failed" if failed else "allowed",
            code=(code or "CFD-R54") if failed else None,
            job=job,
            plan=hash_text(plan_digest),
        )

    def phase_refused(self, job: JobId, round_number: int, *, code: str) -> None:
        """A phase was asked for that this site doesn't do."""
        self._submit(events.RoundAbandoned, COORDINATOR, decision="refused", code=code, job=job, round=round_number)

    # --- budget and data --------------------------------------------------------------------------------------

    def reserved(self, job: JobId, dataset: events.Dataset, budget: Mapping[str, object]) -> None:
        """The whole job's budget is set aside, durably, in the ledger."""
        self._append(events.BudgetReserved, DAEMON, job=job, dataset=dataset, budget=budget_of(budget))

    def exhausted(
        self, job: JobId, dataset: events.Dataset, budget: Mapping[str, object], *, code: str, cause: str | None
    ) -> None:
        """The budget can't cover the job."""
        self._append(
            events.BudgetExhausted,
            DAEMON,
            decision="refused",
            code=code,
            cause=cause,
            job=job,
            dataset=dataset,
            budget=budget_of(budget),
        )

    def leased(
        self, job: JobId, round_number: int, dataset: events.Dataset, budget: Mapping[str, object]
    ) -> Future[Receipt]:
        """The most that the round may take; `opened`, which comes next, waits for this entry too."""
        return self._submit(
            events.BudgetLeased,
            DAEMON,
            job=job,
            round=round_number,
            dataset=dataset,
            budget=budget_of(budget),
        )

    def opened(
        self,
        job: JobId,
        plan: Plan,
        plan_digest: str,
        *,
        round_number: int,
        mode: str,
        dataset: events.Dataset,
        policy: str,
        rule: str | None,
        approval: events.Approval | None,
        budget: Mapping[str, object] | None,
    ) -> Receipt:
        """The data set is about to be read; only the receipt of this entry opens it."""
        return self._append(
            events.DataOpened,
            DAEMON,
            rule=rule,
            dataset=dataset,
            mode=mode,
            job=job,
            plan=hash_text(plan_digest),
            round=round_number,
            purpose=purpose_of(plan.purpose),
            policy=hash_text(policy),
            approval=approval,
            budget=None if budget is None else budget_of(budget),
        )

    def closed(
        self,
        job: JobId,
        round_number: int,
        dataset: events.Dataset,
        *,
        opened: int,
        records: int | None,
        code: str | None = None,
    ) -> None:
        """The reading is over, or broke under `code`; how many records were read is a commitment."""
        private = None if records is None else {"records": self._log.private.commit("records", str(records))}
        self._submit(
            events.DataClosed,
            DAEMON,
            decision="allowed" if code is None else "failed",
            code=code,
            opened=opened,
            dataset=dataset,
            job=job,
            round=round_number,
            private=private,
        )

    def abandoned(
        self, job: JobId, round_number: int, dataset: events.Dataset, *, opened: int, code: str | None
    ) -> None:
        """The trainer that had opened the data set ended without closing it."""
        self._submit(
            events.DataAbandoned,
            DAEMON,
            decision="allowed" if code is None else "failed",
            code=code,
            opened=opened,
            dataset=dataset,
            job=job,
            round=round_number,
        )

    def spent(self, job: JobId, round_number: int, dataset: events.Dataset, budget: Mapping[str, object]) -> None:
        """What the round took, lost steps included."""
        self._append(events.BudgetSpent, DAEMON, job=job, round=round_number, dataset=dataset, budget=budget_of(budget))

    def released(self, job: JobId, dataset: events.Dataset, budget: Mapping[str, object]) -> None:
        """At settlement: what was reserved and never leased went back."""
        self._append(events.BudgetReleased, DAEMON, job=job, dataset=dataset, budget=budget_of(budget))

    def unbounded(self, dataset: events.Dataset, budget: Mapping[str, object]) -> None:
        """From here on no bound holds for the units of the data set."""
        self._append(events.BudgetCharged, DAEMON, dataset=dataset, budget=budget_of(budget), kind="unbounded")

    # --- rounds, models and what leaves -------------------------------------------------------------------------------

    def round_opened(self, job: JobId, round_number: int, model: str, *, invited_count: int) -> None:
        """A round begins here from the model of that digest; the plan invited so many sites."""
        self._submit(
            events.RoundOpened, COORDINATOR, job=job, round=round_number, model=model, invited_count=invited_count
        )

    def attempt_abandoned(self, job: JobId, round_number: int, attempt: int) -> None:
        """The coordinator asks for a round again: what this site did in the attempt before is in no result."""
        self._submit(
            events.RoundAbandoned,
            COORDINATOR,
            id=id_of("round.abandoned", job, round_number, attempt),
            decision="failed",
            code="CFD-R05",
            job=job,
            round=round_number,
        )

    def round_released(self, release: Release) -> None:
        """A round's result is known here."""
        self._submit(
            events.RoundReleased,
            COORDINATOR,
            id=id_of("round.released", release.job, release.round),
            job=release.job,
            round=release.round,
        )

    def model_accepted(
        self, release: Release, *, previous: str, strategy: str, peer: events.Peer | None = None
    ) -> None:
        """The site reached the released model itself; `peer` is the coordinator's entry of it, where that was shown."""
        self._model(release, previous=previous, strategy=strategy, code=None, peer=peer)

    def model_refused(
        self, job: JobId, round_number: int, *, offered: str, previous: str, strategy: str, code: str
    ) -> None:
        """A release doesn't follow; `offered` names the record that was shown."""
        self._append(
            events.ModelAccepted,
            DAEMON,
            decision="refused",
            code=code,
            job=job,
            round=round_number,
            model=offered,
            previous=previous,
            sum_digest=offered,
            strategy=strategy,
        )

    def _model(
        self, release: Release, *, previous: str, strategy: str, code: str | None, peer: events.Peer | None
    ) -> None:
        self._submit(
            events.ModelAccepted,
            DAEMON,
            decision="allowed" if code is None else "refused",
            code=code,
            job=release.job,
            round=release.round,
            model=release.model,
            previous=previous,
            sum_digest=release.mean.root,
            strategy=strategy,
            peer=peer,
        )

    def update_sent(
        self, job: JobId, round_number: int, update: BlobReference, *, sum_id: str | None = None
    ) -> Receipt:
        """An update is about to leave, under masks where it goes into a sum; its first byte waits for this entry."""
        return self._append(
            events.UpdateSent,
            DAEMON,
            job=job,
            round=round_number,
            sum=sum_id,
            egress=egress_of("update" if sum_id is None else "masked-update", update.root, update.size_bytes),
        )

    def evaluation_sent(self, job: JobId, round_number: int, content: bytes) -> Receipt:
        """Figures of an evaluation, these bytes, are about to leave."""
        egress = egress_of("evaluation", sha256(content), len(content))
        return self._append(events.EvaluationSent, DAEMON, job=job, round=round_number, egress=egress)

    def metrics_sent(self, job: JobId, round_number: int, names: list[str], content: bytes) -> Future[Receipt]:
        """Figures of the work itself are about to leave: these names, and values of these bytes."""
        egress = egress_of("telemetry", sha256(content), len(content))
        return self._submit(events.MetricsSent, DAEMON, job=job, round=round_number, names=names, egress=egress)

    def policy_changed(self, actor: events.Actor, *, before: str, after: str, code: str | None = None) -> None:
        """The policy file's content changed, or, under `code`, is none that can be in force."""
        self._append(
            events.PolicyChanged,
            actor,
            decision="allowed" if code is None else "refused",
            code=code,
            before=hash_text(before),
            after=hash_text(after),
        )

    # --- inside -----------------------------------------------------------------------------------------------

    def _draft(self, kind: type[events.Draft], actor: events.Actor, /, **fields: Any) -> events.Draft:
        fields.setdefault("id", self._log.new_id())
        fields.setdefault("decision", "allowed")
        given = {name: value for name, value in fields.items() if value is not None}
        return kind(actor=actor, **given)

    def _append(self, kind: type[events.Draft], actor: events.Actor, /, **fields: Any) -> Receipt:
        return self._log.append(self._draft(kind, actor, **fields))

    def _submit(self, kind: type[events.Draft], actor: events.Actor, /, **fields: Any) -> Future[Receipt]:
        return self._log.submit(self._draft(kind, actor, **fields))
