"""What coordinator and sites say to each other, as strict types and canonical bytes; pure, no transport.

A message is a *kind*, a *body* and a signature. The body is the canonical JSON of one of the models below; the
signature is Ed25519 by the sender's identity key over `signing_input(kind, body)`, so neither a proxy nor the
coordinator can speak for a site. Bulk bytes (models, means, updates) never ride here: a body names them by
`BlobReference` and the link moves them. Every body names the federation-wide `message_id`; a receiver answers a
repeated id as it did the first time and does nothing twice.

What is not here: the Flower messages of a round. The adapters build those from `PhaseRequest` and `PhaseReply`.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NewType

from pydantic import Field, TypeAdapter, ValidationError

from federation import canonical, witness_messages
from federation.bodies import BlobReference as BlobReference
from federation.bodies import Body as Body
from federation.bodies import Count as Count
from federation.bodies import Digest as Digest
from federation.bodies import HexBytes as HexBytes
from federation.bodies import HexFloat as HexFloat
from federation.bodies import JobName as JobName
from federation.bodies import SiteName as SiteName
from federation.bodies import Token as Token
from federation.witness_messages import Proved, ReceiptPlace

SiteId = NewType("SiteId", str)
JobId = NewType("JobId", str)
PROTOCOL_VERSION: Final = 1
MAX_BODY_BYTES: Final = 2 << 20


class Versions(Body):
    """What a party runs, exchanged in the hello so that a bad pair is refused before any data is read."""

    confide: Token
    protocol: Count
    oldest_protocol: Count


class Reason(Body):
    """Why a party said no: a stable code, the deciding rule, and one sentence without data."""

    code: Token
    rule: Token | None = None
    text: Annotated[str, Field(max_length=500)] = ""


# --- attendance -----------------------------------------------------------------------------------------------


class DatasetNotice(Body):
    """What a site says of a data set that it offers: schema and public figures, never counts measured on data."""

    contract: Token
    contract_digest: Digest
    units_declared: Count
    held_out_public: bool


class Hello(Body):
    """A site opens its attendance. `contracts` are the canonical contract documents behind `datasets`."""

    message_id: Token
    site: SiteName
    versions: Versions
    charter_epoch: Count
    datasets: tuple[DatasetNotice, ...] = Field(default=(), max_length=256)
    contracts: tuple[Annotated[str, Field(max_length=262_144)], ...] = Field(default=(), max_length=64)
    busy_jobs: tuple[JobName, ...] = Field(default=(), max_length=256)


class MemberStatus(StrEnum):
    """What the coordinator holds a site to be."""

    PENDING = "pending"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    REVOKED = "revoked"


class HelloReply(Body):
    """The coordinator's answer. With `upgrade` set, that side must be upgraded and nothing else will be sent."""

    message_id: Token
    versions: Versions
    status: MemberStatus
    upgrade: Literal["site", "coordinator"] | None = None
    notice: Annotated[str, Field(max_length=500)] = ""
    charter_epoch: Count = 0
    heartbeat_s: Count = 10


class CharterNotice(Body):
    """A signed charter epoch, as canonical bytes in hex with the root key's signature."""

    message_id: Token
    epoch: Count
    charter: HexBytes
    signature: HexBytes


# --- jobs -----------------------------------------------------------------------------------------------------


class Offer(Body):
    """A job is offered to a site: the plan's canonical bytes, who signed it, and the contract it was written for."""

    message_id: Token
    job: JobName
    plan: HexBytes
    submitter: Token
    signature: HexBytes
    vouched: bool
    contract: HexBytes


class Decision(StrEnum):
    """A site's answer to an offer."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    PARKED = "parked"


class Answer(Body):
    """A site accepts, refuses with reasons, or parks an offer for a person; only the last answer of a job counts."""

    message_id: Token
    job: JobName
    plan_digest: Digest
    decision: Decision
    reasons: tuple[Reason, ...] = Field(default=(), max_length=32)
    units_declared: Count = 0
    epsilon: HexFloat | None = None
    noise_multiplier: HexFloat | None = None
    sampling_rate: HexFloat | None = None


class PreviewRequest(Body):
    """`job validate` asks a site what it would answer; nothing is reserved, parked or promised.

    `submitter` is who would sign the plan; nobody has, so a site answers as if they had.
    """

    message_id: Token
    plan: HexBytes
    contract: HexBytes
    submitter: Token


class PreviewReply(Body):
    """What the site would answer now. `left_to_run` names checks that only a run can make."""

    message_id: Token
    request_id: Token
    decision: Decision
    reasons: tuple[Reason, ...] = Field(default=(), max_length=32)
    units_declared: Count = 0
    epsilon: HexFloat | None = None
    noise_multiplier: HexFloat | None = None
    steps: Count = 0
    update_bytes: Count = 0
    memory_bytes: Count = 0
    round_s: Count = 0


class JobAction(StrEnum):
    """What the coordinator tells the sites of a job."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    COMPLETE = "complete"
    FAIL = "fail"


class JobControl(Body):
    """A job changes at the coordinator; the site follows at its next step and settles the budget at an end."""

    message_id: Token
    job: JobName
    action: JobAction
    reason: Annotated[str, Field(max_length=500)] = ""


class JobStatus(Body):
    """A site says on its own that a job stopped here (abort, revoked approval, budget)."""

    message_id: Token
    job: JobName
    reason: Reason


# --- rounds ---------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """The phases of a round that a site works in; those of a secure sum lie between the training and the release."""

    TRAIN = "train"
    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    CONSENT = "consent"
    REVEAL = "reveal"
    CONCLUDE = "conclude"
    EVALUATE = "evaluate"


SUM_PHASES: Final = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.CONSENT, Phase.REVEAL, Phase.CONCLUDE)
"""The phases of a secure sum, in order."""


class Release(Body):
    """The coordinator's signed record of one released round, chained by `previous`; sites recompute `model` from it.

    `mean` is the weighted mean of the survivors' updates, or under secure aggregation the words of their sum, of which
    everybody makes the same mean (`federation.secure_sums`); `model` the digest of the model and server state after
    the server step (`federation.tensors.state_digest`), `step` the server step's own number, counted from 1.
    Round −1 is written as `round` 0 with `step` 0: the initial model, whose `mean` is the initial model itself.
    `previous` is the blob that holds the canonical bytes of the release before, so that a site which missed rounds
    can fetch it; its root binds those bytes, so the signature of the newest release covers them all.
    """

    job: JobName
    plan_digest: Digest
    round: Count
    step: Count
    previous: BlobReference | None
    mean: BlobReference
    model: Digest
    survivors: tuple[SiteName, ...] = Field(max_length=4096)
    weights: tuple[Count, ...] = Field(max_length=4096)


class PhaseRequest(Body):
    """A site is asked to work: train on, or score, the model that `release` leads to.

    `release` is the blob of the canonical `Release`, signed with kind "release"; the site fetches it, and follows
    `previous` back to one that it has applied. `key` = job/round/attempt/phase; the same key is the same work.
    `attached` may carry blobs that the site would fetch otherwise, where they are small; each counts only as the blob
    of its own root.

    In the phases of a secure sum `signed` holds what the coordinator relays to the site, as packed messages of
    `privacy.secagg`, and `boxes` the shares that others sealed for it. A request to consent carries in `roster` the
    proof file of the coordinator's entry `round.roster` of that sum.

    A request to train also carries, as proof files of the coordinator's log, the entry that ended the round before
    (`before`; of the job's submission where the round is 0) under a checkpoint that a quorum cosigned, and the entry
    `model.released` behind `release` (`model`). `receipt` is the place of this site's own `update.sent` of the round
    before in the tree that `before` names.
    """

    message_id: Token
    job: JobName
    round: Count
    attempt: Count
    phase: Phase
    deadline_s: Count
    release: BlobReference
    release_signature: HexBytes
    attached: tuple[HexBytes, ...] = Field(default=(), max_length=4)
    before: HexBytes = ""
    model: HexBytes = ""
    receipt: ReceiptPlace | None = None
    signed: tuple[HexBytes, ...] = Field(default=(), max_length=4096)
    boxes: tuple[HexBytes, ...] = Field(default=(), max_length=4096)
    roster: HexBytes = ""


class Outcome(StrEnum):
    """How a phase ended at a site."""

    DONE = "done"
    FAILED = "failed"


class EvaluationCounts(Body):
    """Summable figures of one site's held-out units, exact or with charged noise: never a metric itself.

    `positives[k]`, `negatives[k]` count units with a score in bin k of `bins` equal bins of [0, 1], by true class.
    `loss_sum` is the clamped loss summed over units.
    """

    release: Literal["charged", "public", "exact"]
    bins: Annotated[int, Field(ge=2, le=65_536)]
    positives: tuple[Annotated[int, Field(ge=-(2**40), le=2**40)], ...] = Field(max_length=65_536)
    negatives: tuple[Annotated[int, Field(ge=-(2**40), le=2**40)], ...] = Field(max_length=65_536)
    loss_sum: HexFloat


class PhaseReply(Body):
    """What a site made of a phase. A failed phase carries a code and a reference, never a text from the trainer.

    `receipt` is the leaf of the entry by which the site's log recorded what left; `proved` shows it in the log.
    `signed` and `boxes` are the site's messages of a secure sum; an abort comes with the outcome failed.
    """

    message_id: Token
    job: JobName
    round: Count
    attempt: Count
    phase: Phase
    outcome: Outcome
    reason: Reason | None = None
    reference: Token | None = None
    update: BlobReference | None = None
    weight: Count = 0
    evaluation: EvaluationCounts | None = None
    epsilon: HexFloat | None = None
    steps: Count = 0
    duration_s: Count = 0
    receipt: HexBytes = ""
    proved: Proved | None = None
    signed: tuple[HexBytes, ...] = Field(default=(), max_length=2)
    boxes: tuple[HexBytes, ...] = Field(default=(), max_length=4096)


KINDS: Final[dict[str, type[Body]]] = {
    "hello": Hello,
    "hello-reply": HelloReply,
    "charter": CharterNotice,
    "offer": Offer,
    "answer": Answer,
    "preview-request": PreviewRequest,
    "preview-reply": PreviewReply,
    "job-control": JobControl,
    "job-status": JobStatus,
    "release": Release,
    "phase-request": PhaseRequest,
    "phase-reply": PhaseReply,
    **witness_messages.KINDS,
}
_KIND_OF: Final[dict[type[Body], str]] = {model: kind for kind, model in KINDS.items()}


class MessageRefused(ValueError):
    """The bytes are no message of their kind; nothing of them was used. `reason` holds no value of the message."""


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """A message as it travels: kind, canonical body, Ed25519 signature (64 bytes) of its sender."""

    kind: str
    body: bytes
    signature: bytes


def signing_input(kind: str, body: bytes) -> bytes:
    """Return the bytes that an identity key signs for a message, apart from every other use of that key."""
    return b"confide-message/v1\n" + kind.encode("ascii") + b"\n" + hashlib.sha256(body).digest()


def kind_of(message: Body) -> str:
    """Return the kind under which `message` travels."""
    return _KIND_OF[type(message)]


def encode_body(message: Body) -> bytes:
    """Return the canonical bytes of `message`."""
    return canonical.encode(message.model_dump(mode="json"))


def decode_body(kind: str, body: bytes) -> Body:
    """Return the message in `body`, whose signature the caller has checked.

    Raises:
        MessageRefused: Unknown kind, too large, not canonical, or not of the kind's schema.
    """
    model = KINDS.get(kind)
    if model is None:
        raise MessageRefused(f"unknown kind of message {kind[:40]!r}")
    if len(body) > MAX_BODY_BYTES:
        raise MessageRefused(f"{kind}: {len(body)} bytes, at most {MAX_BODY_BYTES}")
    try:
        canonical.decode(body, limit_bytes=MAX_BODY_BYTES)
        return TypeAdapter(model).validate_json(body)
    except canonical.NotCanonical as problem:
        raise MessageRefused(f"{kind}: {problem}") from None
    except ValidationError as problem:
        raise MessageRefused(f"{kind}: {_fields(problem)}") from None


def _fields(problem: ValidationError) -> str:
    found: list[dict[str, Any]] = [dict(error) for error in problem.errors(include_input=False, include_url=False)]
    return "; ".join(f"{'.'.join(str(part) for part in error['loc'])}: {error['type']}" for error in found[:5])
