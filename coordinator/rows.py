"""Between the rows of the database and the records of the program: one pair of functions a table. No queries."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row

from coordinator.job_machine import Job, JobState
from coordinator.records import AttemptRecord, JobRecord, ReleaseRecord, ReplyRecord
from coordinator.round_machine import Round, RoundState, Standing
from coordinator.site_machine import SiteInJob
from federation.messages import BlobReference, JobId, Phase, SiteId


def as_text(value: Any) -> str:
    """Return `value` as JSON text, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def job_values(job: Job) -> dict[str, Any]:
    """Return the columns that a job's machine owns."""
    return {
        "state": job.state.value,
        "quorum": job.quorum,
        "rounds": job.rounds,
        "attempts": job.attempts,
        "round": job.round,
        "attempt": job.attempt,
        "reason": job.reason,
    }


def job_record(row: Row[Any], sites: Mapping[SiteId, SiteInJob]) -> JobRecord:
    """Return a stored job; `sites` are its rows of `job_site`."""
    machine = Job(
        quorum=row.quorum,
        rounds=row.rounds,
        attempts=row.attempts,
        sites=MappingProxyType(dict(sites)),
        state=JobState(row.state),
        round=row.round,
        attempt=row.attempt,
        reason=row.reason,
    )
    return JobRecord(
        id=JobId(row.id),
        number=row.number,
        name=row.name,
        plan=row.plan,
        plan_digest=row.plan_digest,
        contract=row.contract,
        submitter=row.submitter,
        signature=row.signature,
        vouched=row.vouched,
        priority=row.priority,
        idempotency_key=row.idempotency_key,
        parent=None if row.parent is None else JobId(row.parent),
        parent_round=row.parent_round,
        submitted_us=row.submitted_us,
        offered_us=row.offered_us,
        started_us=row.started_us,
        ended_us=row.ended_us,
        job=machine,
    )


def site_values(standing: SiteInJob) -> dict[str, Any]:
    """Return the columns of a site's standing."""
    return {"state": standing.state.value, "reasons": as_text(list(standing.reasons)), "since_us": standing.since_us}


def round_values(round_: Round) -> dict[str, Any]:
    """Return the columns that an attempt's machine owns."""
    return {
        "state": round_.state.value,
        "closed": round_.closed,
        "sites": as_text({site: standing.value for site, standing in round_.sites.items()}),
        "reasons": as_text(dict(round_.reasons)),
        "late": as_text(dict(round_.late)),
        "survivors": as_text(list(round_.survivors)),
        "summed": as_text(list(round_.summed)),
        "reason": round_.reason,
    }


def attempt_record(row: Row[Any]) -> AttemptRecord:
    """Return a stored attempt of a round."""
    machine = Round(
        number=row.round,
        attempt=row.attempt,
        quorum=row.quorum,
        secure=row.secure,
        sites=MappingProxyType({SiteId(site): Standing(how) for site, how in json.loads(row.sites).items()}),
        reasons=MappingProxyType({SiteId(site): why for site, why in json.loads(row.reasons).items()}),
        late=MappingProxyType({SiteId(site): why for site, why in json.loads(row.late).items()}),
        survivors=tuple(SiteId(site) for site in json.loads(row.survivors)),
        summed=tuple(SiteId(site) for site in json.loads(row.summed)),
        closed=row.closed,
        state=RoundState(row.state),
        reason=row.reason,
    )
    return AttemptRecord(
        JobId(row.job), machine, row.opened_us, row.deadline_us, row.evaluate_by_us, row.ended_us, row.upload_bytes
    )


def reply_record(row: Row[Any]) -> ReplyRecord:
    """Return a stored answer."""
    return ReplyRecord(
        JobId(row.job),
        row.round,
        row.attempt,
        Phase(row.phase),
        SiteId(row.site),
        row.body,
        row.signature,
        row.body_digest,
        row.received_us,
        row.peer,
    )


def release_values(release: ReleaseRecord) -> dict[str, Any]:
    """Return the columns of a release."""
    return {
        "job": release.job,
        "step": release.step,
        "round": release.round,
        "attempt": release.attempt,
        "digest": release.digest,
        "record": release.record,
        "signature": release.signature,
        "record_root": release.record_blob.root,
        "record_bytes": release.record_blob.size_bytes,
        "mean_root": release.mean.root,
        "mean_bytes": release.mean.size_bytes,
        "model_digest": release.model_digest,
        "model_root": release.model.root,
        "model_bytes": release.model.size_bytes,
        "state_root": None if release.state is None else release.state.root,
        "state_bytes": None if release.state is None else release.state.size_bytes,
        "metrics": None if release.metrics is None else as_text(dict(release.metrics)),
        "released_us": release.released_us,
    }


def release_record(row: Row[Any]) -> ReleaseRecord:
    """Return a stored release."""
    state = None if row.state_root is None else BlobReference(root=row.state_root, size_bytes=row.state_bytes)
    return ReleaseRecord(
        job=JobId(row.job),
        step=row.step,
        round=row.round,
        attempt=row.attempt,
        digest=row.digest,
        record=row.record,
        signature=row.signature,
        record_blob=BlobReference(root=row.record_root, size_bytes=row.record_bytes),
        mean=BlobReference(root=row.mean_root, size_bytes=row.mean_bytes),
        model_digest=row.model_digest,
        model=BlobReference(root=row.model_root, size_bytes=row.model_bytes),
        state=state,
        metrics=None if row.metrics is None else json.loads(row.metrics),
        released_us=row.released_us,
    )
