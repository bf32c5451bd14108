"""What the coordinator writes into its audit log, one method for each act.

An entry that permits or makes known something is durable when the method returns, before the act; the others are
queued and durable by the round's end, when `round_ends` signs a checkpoint. Ids are made from what the entry is about,
so that an act which a restart repeats is recorded once.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from audit import events, frame, merkle
from audit.canonical import Event
from audit.errors import AuditError
from audit.log import AuditLog
from audit.receipts import receipts_root
from coordinator.records import AttemptRecord, JobRecord, NewJob, ReleaseRecord
from federation.audit_parts import hash_text as hash_of
from federation.audit_parts import purpose_of
from federation.messages import Phase, PhaseReply, SiteId
from federation.plan_fields import Plan

SERVICE: Final = events.Actor(kind="service", id="coordinator")


@dataclass(frozen=True, slots=True)
class SumAt:
    """A secure sum: the attempt that it belongs to, and its own id."""

    job: str
    round: int
    attempt: int
    sum_id: str


class Recorder(Protocol):
    """What a job at work records; `AuditRecorder` is the one that writes."""

    def round_opened(self, record: JobRecord, attempt: int, model: str, invited_count: int) -> None:
        """A round begins from the model of that digest."""
        ...

    def site_back(self, job: str, number: int, attempt: int, site: SiteId) -> None:
        """A site that was late or lost is asked again."""
        ...

    def update_received(
        self, reply: PhaseReply, site: SiteId, code: str | None, peer: events.Peer | None = None
    ) -> None:
        """A site's update was let in, or refused under `code`; `peer` is the site's own entry, where it was proved."""
        ...

    def site_missed(self, attempt: AttemptRecord, site: SiteId, phase: str, *, code: str, lost: bool) -> None:
        """A phase closed without a site."""
        ...

    def released(
        self, release: ReleaseRecord, previous: str, plan: Plan, receipts: Mapping[SiteId, bytes] | None = None
    ) -> None:
        """A round's model is about to be made known; `receipts` are the leaf hashes of its survivors' receipts."""
        ...

    def roster_fixed(self, at: SumAt, roster: str, *, members_count: int, threshold: int) -> None:
        """The members of a secure sum are about to be told of each other."""
        ...

    def sum_phase(
        self,
        at: SumAt,
        phase: str,
        *,
        members_count: int | None = None,
        fixed: str | None = None,
        code: str | None = None,
        cause: str | None = None,
    ) -> None:
        """A phase of a secure sum ended and fixed this digest; under `code` the sum ended without a result."""
        ...

    def sum_released(self, at: SumAt, sum_digest: str, *, receipts: Mapping[SiteId, bytes]) -> None:
        """A secure sum was unmasked and is about to be made known; `receipts` are those of its survivors."""
        ...

    def abandoned(self, attempt: AttemptRecord, code: str) -> None:
        """A round ended without a result."""
        ...

    def evaluated(self, job: str, number: int, attempt: int, document: bytes, names: list[str]) -> None:
        """A round's metrics are about to be made known."""
        ...

    def round_ends(self) -> None:
        """Everything queued is durable and under a signed checkpoint."""
        ...


def event_id(action: str, *about: object) -> str:
    """Return the id of the one entry of `action` about these things."""
    text = "\n".join(["confide-coordinator-event/v1", action, *(str(part) for part in about)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class AuditRecorder:
    """Writes a coordinator's acts into its audit log."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def person(self, name: str, role: str = "coordinator") -> events.Actor:
        """Return the actor entry of a person, by pseudonym."""
        return events.Actor(kind="person", id=self._log.private.pseudonym(name), role=role)

    # --- jobs -------------------------------------------------------------------------------------------------

    def job_submitted(self, record: NewJob, plan: Plan, actor: events.Actor) -> None:
        """A plan is about to enter the queue; durable on return."""
        self._log.submit(
            events.JobValidated(
                id=event_id("job.validated", record.id),
                decision="allowed",
                actor=actor,
                plan=hash_of(record.plan_digest),
                findings=[],
            )
        )
        self._log.append(
            events.JobSubmitted(
                id=event_id("job.submitted", record.id),
                decision="allowed",
                actor=actor,
                job=record.id,
                plan=hash_of(record.plan_digest),
                purpose=purpose_of(plan.purpose),
                priority=record.priority,
                invited_count=len(plan.sites.invite),
                invited=hash_of(hashlib.sha256("\n".join(plan.sites.invite).encode()).hexdigest()),
            )
        )

    def submission_refused(self, plan_digest: str, code: str, actor: events.Actor) -> None:
        """A signed plan was refused; durable on return."""
        self._log.append(
            events.JobValidated(
                id=self._log.new_id(),
                decision="refused",
                code=code,
                actor=actor,
                plan=hash_of(plan_digest),
                findings=[code],
            )
        )

    def job_offered(self, record: JobRecord, site: SiteId) -> None:
        """The job is about to be offered to a site; durable on return."""
        self._log.append(
            events.JobOffered(
                id=event_id("job.offered", record.id, site),
                decision="allowed",
                actor=SERVICE,
                site=site,
                job=record.id,
                plan=hash_of(record.plan_digest),
            )
        )

    def job_answered(self, record: JobRecord, site: SiteId, body: bytes, code: str | None) -> None:
        """A site accepted a job, or refused it under `code`."""
        kind = events.JobAccepted if code is None else events.JobRefused
        self._log.submit(
            kind(
                id=event_id("job.answered", record.id, site, hashlib.sha256(body).hexdigest()),
                decision="allowed" if code is None else "refused",
                code=code,
                actor=events.Actor(kind="party", id=site, auth="mtls"),
                site=site,
                job=record.id,
                plan=hash_of(record.plan_digest),
            )
        )

    def job_moved(self, record: JobRecord, action: str, actor: events.Actor = SERVICE, code: str | None = None) -> None:
        """The job is about to start, pause, resume, or end; durable on return."""
        kinds: dict[str, type[events.Draft]] = {
            "started": events.JobStarted,
            "paused": events.JobPaused,
            "resumed": events.JobResumed,
            "cancelled": events.JobCancelled,
            "completed": events.JobCompleted,
            "failed": events.JobFailed,
        }
        once = action in ("started", "cancelled", "completed", "failed")
        fields: Event = {
            "id": event_id(f"job.{action}", record.id) if once else self._log.new_id(),
            "decision": "allowed" if code is None else "failed",
            "code": code,
            "actor": actor,
            "job": record.id,
            "plan": hash_of(record.plan_digest),
        }
        self._log.append(kinds[action].model_validate(fields))

    # --- rounds -----------------------------------------------------------------------------------------------

    def round_opened(self, record: JobRecord, attempt: int, model: str, invited_count: int) -> None:
        """A round begins from the model of that digest."""
        self._log.submit(
            events.RoundOpened(
                id=event_id("round.opened", record.id, record.job.round, attempt, model, invited_count),
                decision="allowed",
                actor=SERVICE,
                job=record.id,
                round=record.job.round,
                model=model,
                invited_count=invited_count,
            )
        )

    def site_back(self, job: str, number: int, attempt: int, site: SiteId) -> None:
        """A site that was late or lost is asked again."""
        self._log.submit(
            events.RoundSiteRejoined(
                id=event_id("round.site_rejoined", job, number, attempt, site),
                decision="allowed",
                actor=SERVICE,
                site=site,
                job=job,
                round=number,
                phase="train",
            )
        )

    def update_received(
        self, reply: PhaseReply, site: SiteId, code: str | None, peer: events.Peer | None = None
    ) -> None:
        """A site's update was let in, or refused under `code`; `peer` is the site's own entry, where it was proved."""
        if reply.update is None:
            return
        egress = events.Egress(
            what="masked-update" if reply.phase is Phase.MASK else "update",
            hash=hash_of(reply.update.root),
            bytes=reply.update.size_bytes,
            to="coordinator",
            encrypted=True,
        )
        self._log.submit(
            events.UpdateReceived(
                id=event_id("update.received", reply.job, reply.round, reply.attempt, site, reply.update.root, code),
                decision="allowed" if code is None else "refused",
                code=code,
                actor=events.Actor(kind="party", id=site, auth="mtls"),
                site=site,
                job=reply.job,
                round=reply.round,
                egress=egress,
                peer=peer or peer_of(reply.receipt),
            )
        )

    def site_missed(self, attempt: AttemptRecord, site: SiteId, phase: str, *, code: str, lost: bool) -> None:
        """A phase closed without a site."""
        kind = events.RoundSiteLost if lost else events.RoundSiteLate
        self._log.submit(
            kind(
                id=event_id(
                    "round.site_missed", attempt.job, attempt.round.number, attempt.round.attempt, phase, site, code
                ),
                decision="failed",
                code=code,
                actor=SERVICE,
                site=site,
                job=attempt.job,
                round=attempt.round.number,
                phase=phase,
            )
        )

    def released(
        self, release: ReleaseRecord, previous: str, plan: Plan, receipts: Mapping[SiteId, bytes] | None = None
    ) -> None:
        """A round's model is about to be made known; durable on return."""
        root = (
            None
            if receipts is None
            else frame.hash_text(receipts_root({str(site): receipt for site, receipt in receipts.items()}))
        )
        about = (release.job, release.round, release.attempt)
        self._log.submit(
            events.RoundReleased(
                id=event_id("round.released", *about),
                decision="allowed",
                actor=SERVICE,
                job=release.job,
                round=release.round,
                survivors_count=None if receipts is None else len(receipts),
                receipts_root=root,
            )
        )
        self._log.append(
            events.ModelReleased(
                id=event_id("model.released", *about),
                decision="allowed",
                actor=SERVICE,
                job=release.job,
                round=release.round,
                model=release.model_digest,
                previous=previous,
                sum_digest=release.mean.root,
                strategy=plan.server.strategy,
            )
        )

    # --- secure sums ------------------------------------------------------------------------------------------

    def roster_fixed(self, at: SumAt, roster: str, *, members_count: int, threshold: int) -> None:
        """The members of a secure sum are about to be told of each other; durable on return."""
        self._log.append(
            events.RoundRoster(
                id=event_id("round.roster", at.sum_id),
                decision="allowed",
                actor=SERVICE,
                job=at.job,
                round=at.round,
                sum=at.sum_id,
                roster=roster,
                members_count=members_count,
                threshold=threshold,
            )
        )

    def sum_phase(
        self,
        at: SumAt,
        phase: str,
        *,
        members_count: int | None = None,
        fixed: str | None = None,
        code: str | None = None,
        cause: str | None = None,
    ) -> None:
        """A phase of a secure sum ended and fixed this digest; under `code` the sum ended without a result."""
        fields: Event = {
            "id": event_id("sum.phase", at.sum_id, phase, members_count, code),
            "decision": "allowed" if code is None else "failed",
            "code": code,
            "cause": cause,
            "actor": SERVICE,
            "job": at.job,
            "round": at.round,
            "sum": at.sum_id,
            "phase": phase,
            "members_count": members_count,
            "fixed": fixed,
        }
        self._log.submit(
            events.SumPhase.model_validate({name: value for name, value in fields.items() if value is not None})
        )

    def sum_released(self, at: SumAt, sum_digest: str, *, receipts: Mapping[SiteId, bytes]) -> None:
        """A secure sum was unmasked and is about to be made known; durable on return."""
        self._log.append(
            events.SumReleased(
                id=event_id("sum.released", at.sum_id),
                decision="allowed",
                actor=SERVICE,
                job=at.job,
                round=at.round,
                sum=at.sum_id,
                sum_digest=sum_digest,
                survivors_count=len(receipts),
                receipts_root=frame.hash_text(receipts_root({str(site): leaf for site, leaf in receipts.items()})),
            )
        )

    def abandoned(self, attempt: AttemptRecord, code: str) -> None:
        """A round ended without a result."""
        self._log.submit(
            events.RoundAbandoned(
                id=event_id("round.abandoned", attempt.job, attempt.round.number, attempt.round.attempt, code),
                decision="failed",
                code=code,
                actor=SERVICE,
                job=attempt.job,
                round=attempt.round.number,
            )
        )

    def evaluated(self, job: str, number: int, attempt: int, document: bytes, names: list[str]) -> None:
        """A round's metrics are about to be made known; durable on return."""
        self._log.append(
            events.EvaluationReleased(
                id=event_id("evaluation.released", job, number, attempt, hashlib.sha256(document).hexdigest()),
                decision="allowed",
                actor=SERVICE,
                job=job,
                round=number,
                names=names,
                metrics=hash_of(hashlib.sha256(document).hexdigest()),
            )
        )

    def round_ends(self) -> None:
        """Everything queued is durable and under a signed checkpoint."""
        self._log.checkpoint()


def peer_of(receipt: str) -> events.Peer | None:
    """Return the entry of a site's log that its reply names, or None where it names none that can be read."""
    if not receipt:
        return None
    leaf = bytes.fromhex(receipt)
    try:
        _, signed = frame.read_frame(leaf, origin=None)
        origin = signed.text.split("\n")[0].removeprefix(frame.HEADER)
        return events.Peer(origin=origin, leaf_hash=frame.hash_text(merkle.leaf_hash(leaf)))
    except (AuditError, ValueError):
        return None
