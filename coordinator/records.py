"""What the store hands out: frozen records of jobs, attempts of rounds, answers, releases and events. No behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.job_machine import Job
from coordinator.round_machine import Round
from federation.messages import BlobReference, JobId, Phase, SiteId

Fact = tuple[str, Mapping[str, Any]]
"""The name and the fields of an event that is stored with a change."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A submitted plan, checked by whoever hands it in.

    Attributes:
        id: From `new_job_id`.
        plan: Canonical bytes of the resolved plan; `plan_digest` is their SHA-256.
        contract: Canonical bytes of the data contract.
        signature: The submitter's Ed25519 signature of the plan, or the service's where `vouched`.
        parent: The job whose release this one starts from, with `parent_round`, or None.
    """

    id: JobId
    name: str
    plan: bytes
    plan_digest: str
    contract: bytes
    submitter: str
    signature: bytes
    vouched: bool
    priority: int
    invited: tuple[SiteId, ...]
    quorum: int
    rounds: int
    attempts: int
    idempotency_key: str | None = None
    parent: JobId | None = None
    parent_round: int | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A stored job: what was submitted, when it came to where it is, and its machine's state."""

    id: JobId
    number: int
    name: str
    plan: bytes
    plan_digest: str
    contract: bytes
    submitter: str
    signature: bytes
    vouched: bool
    priority: int
    idempotency_key: str | None
    parent: JobId | None
    parent_round: int | None
    submitted_us: int
    offered_us: int | None
    started_us: int | None
    ended_us: int | None
    job: Job


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A stored attempt of a round with its times, microseconds UTC."""

    job: JobId
    round: Round
    opened_us: int
    deadline_us: int
    evaluate_by_us: int | None
    ended_us: int | None
    upload_bytes: int


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """A site's stored answer to one phase.

    Attributes:
        body: The signed body as it came; None once its figures are in a sum.
        fingerprint: SHA-256 of the body without its message id and proof, by which an answer that comes again is known.
        peer: The site's log entry that its proof showed, as JSON; None where there was no proof that holds.
    """

    job: JobId
    round: int
    attempt: int
    phase: Phase
    site: SiteId
    body: bytes | None
    signature: bytes | None
    fingerprint: str
    received_us: int
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """A stored release: the signed record, and the blobs of the mean, the model and the server's state.

    Attributes:
        digest: SHA-256 of `record`; the next release names it as `previous`.
        record_blob: `record` itself as a blob, for sites to fetch.
        metrics: Metrics of the evaluation of this model by name; None where undefined, absent where not asked.
    """

    job: JobId
    step: int
    round: int
    attempt: int
    digest: str
    record: bytes
    signature: bytes
    record_blob: BlobReference
    mean: BlobReference
    model_digest: str
    model: BlobReference
    state: BlobReference | None
    metrics: Mapping[str, float | None] | None
    released_us: int


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened in a job, for whoever watches it."""

    number: int
    job: JobId
    at_us: int
    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PresenceRecord:
    """Whether a site's link stands, since when, and its last signed hello."""

    site: SiteId
    connected: bool
    since_us: int
    seen_us: int
    hello: bytes | None
