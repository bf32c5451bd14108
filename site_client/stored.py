"""What the site's store hands out and takes: frozen records of jobs, terms, releases, messages, approvals, policies.

Bytes are kept as they arrived, times are microseconds UTC, and numbers that a decision rests on are exact text
(`float.hex`). No behaviour.
"""

from dataclasses import dataclass

from federation.messages import Answer, JobId
from site_client.session import Session


@dataclass(frozen=True, slots=True)
class Terms:
    """What the site agreed to, fixed when it accepted and used for every round of the job.

    Attributes:
        dataset: Name of the data set.
        version: Content hash of its version, 64 hex digits.
        policy: SHA-256 of the policy file that decided, 64 hex digits.
        rule: Path of the deciding rule in the policy file; None where a person decided.
        approval: Id of the approval; None where a rule decided.
        reservation: The ledger's reservation; None where nothing is charged.
        epsilon: The job's epsilon at this site as `float.hex`; None for an unbounded job.
        noise_multiplier: Noise as `float.hex`, relative to the clip.
        sampling_rate: Poisson rate as `float.hex`.
        units_declared: The data set's public size.
        held_out_public: Whether its held-out units were declared public.
    """

    dataset: str
    version: str
    policy: str
    rule: str | None
    approval: str | None
    reservation: str | None
    epsilon: str | None
    noise_multiplier: str | None
    sampling_rate: str | None
    units_declared: int
    held_out_public: bool


@dataclass(frozen=True, slots=True)
class StoredJob:
    """One job as the store holds it; bytes are as they arrived."""

    job: JobId
    plan: bytes
    plan_digest: str
    contract: bytes
    submitter: str
    signature: bytes
    vouched: bool
    session: Session
    answer: Answer | None
    terms: Terms | None
    received_us: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The newest release that the site followed: where its own copy of the model stands."""

    release: str
    round: int
    step: int
    digest: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that the coordinator hasn't acknowledged yet."""

    number: int
    message_id: str
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Approval:
    """A parked job that waits for a person, or what the person said."""

    approval: str
    job: JobId
    plan_digest: str
    rule: str
    reasons: tuple[str, ...]
    state: str
    filed_us: int
    expires_us: int
    decided_by: str | None = None
    decided_us: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A content of the policy file, and since when it was in force."""

    number: int
    digest: str
    content: bytes
    taken_us: int
