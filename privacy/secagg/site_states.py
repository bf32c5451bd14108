"""What a site is told, what it does, and where it stands in one sum.

Events and outputs are values. States hold secrets: a step consumes the state it was given, and moves its secrets on or
wipes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from privacy.secagg.envelope import Opened, Registry, Signed
from privacy.secagg.graph import Ring
from privacy.secagg.journal import History, Record
from privacy.secagg.lineage import Lineage
from privacy.secagg.masking import MaskJob
from privacy.secagg.messages import Advert, SumPlan
from privacy.secagg.plan_checks import Floors
from privacy.secagg.quantize import Clamped, Vector
from privacy.secagg.secret import Secret
from privacy.secagg.sums import SumFigures

# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalJob:
    """What the site itself knows of the job and its state.

    Attributes:
        job_digest: Of the job that its people approved.
        model_digest: Of the bytes that it trained from, or evaluates.
        lineage: The model that it may train from.
        budget_covers: Whether the ledger can pay for the sum.
        tensor_starts: Where each tensor begins in the vector.
    """

    job_digest: str
    model_digest: str
    lineage: Lineage
    budget_covers: bool = True
    tensor_starts: Sequence[int] = (0,)


@dataclass(frozen=True, slots=True)
class SumOffered:
    """A plan arrived, after the local training.

    Attributes:
        plan: The signed plan.
        registry: The registry as this site has verified it.
        history: The site's journal.
        local: What it knows itself.
        update: Its flat update; the site keeps it unchanged until the upload is acknowledged.
        floors: Its own floors.
        proofs: What came with the plan about earlier sums.
        overridden: Whether its operator released a spent update by hand.
    """

    plan: Signed
    registry: Registry
    history: History
    local: LocalJob
    update: Vector = field(repr=False)
    floors: Floors = field(default_factory=Floors)
    proofs: tuple[Signed, ...] = ()
    overridden: bool = False

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return what came over the network."""
        return (self.plan.pack(),)


@dataclass(frozen=True, slots=True)
class AdvertsShown:
    """All adverts, as the coordinator relays them."""

    adverts: tuple[Signed, ...]

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return what came over the network."""
        return tuple(message.pack() for message in self.adverts)


@dataclass(frozen=True, slots=True)
class SharesShown:
    """All `shares`, the boxes for this site, and the ledger's charge (durable already), if one is due."""

    shares: tuple[Signed, ...]
    boxes: tuple[bytes, ...]
    lease: str | None = None

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return what came over the network."""
        return (*(message.pack() for message in self.shares), *self.boxes)


@dataclass(frozen=True, slots=True)
class UploadAcknowledged:
    """The coordinator has the whole vector, for good."""


@dataclass(frozen=True, slots=True)
class MaskedShown:
    """All `masked`: who is in the sum."""

    masked: tuple[Signed, ...]

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return what came over the network."""
        return tuple(message.pack() for message in self.masked)


@dataclass(frozen=True, slots=True)
class CertificateShown:
    """The consents of others."""

    survivors: tuple[Signed, ...]

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return what came over the network."""
        return tuple(message.pack() for message in self.survivors)


@dataclass(frozen=True, slots=True)
class ResultShown:
    """The coordinator's result, what the fetched sum is, and the digest of the model that this site made of it."""

    result: Signed
    figures: SumFigures
    derived_digest: bytes | None

    @property
    def received(self) -> tuple[bytes, ...]:
        """Return what came over the network."""
        return (self.result.pack(),)


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """Time passed."""


Received = SumOffered | AdvertsShown | SharesShown | MaskedShown | CertificateShown | ResultShown
Event = Received | UploadAcknowledged | ClockTicked

# --- outputs: each is done only after all before it -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable (fsync) before anything that follows."""

    record: Record


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to the coordinator; boxes go with the `shares` that commit to them."""

    message: Signed
    boxes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Upload:
    """Upload the vector, then send the job's `masked` message."""

    job: "SignedMaskJob"


@dataclass(frozen=True, slots=True)
class SumClosed:
    """The sum is over for this site.

    Attributes:
        code: Why it was aborted, or None.
        lineage: What it may train from now.
        message: The text for the site's own people.
    """

    code: str | None
    lineage: Lineage | None = None
    message: str = ""


Output = Persist | Send | Upload | SumClosed


class SignedMaskJob:
    """The masked vector, and the message that is signed once all of it was made."""

    def __init__(self, job: MaskJob, finish: Callable[[bytes], Signed]) -> None:
        self.job = job
        self._finish = finish
        self._message: Signed | None = None

    def __repr__(self) -> str:
        return f"SignedMaskJob({self.job!r})"

    @property
    def message(self) -> Signed | None:
        """Return the signed `masked`, once every chunk was made; always the same."""
        if self._message is None and not self.job.payload.missing:
            self._message = self._finish(self.job.payload.digest())
        return self._message


# --- states ---------------------------------------------------------------------------------------------------

Answers = dict[bytes, tuple[Output, ...]]


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for the whole sum once its plan was accepted.

    Attributes:
        plan: The plan.
        plan_digest: pd.
        registry: The registry of its epoch.
        lineage: What the site may train from so far.
        answers: What was sent for each event, so that a repeat gets the same bytes.
    """

    plan: SumPlan
    plan_digest: bytes
    registry: Registry
    lineage: Lineage
    answers: Answers = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Idle:
    """No sum yet."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """The site's keys are out."""

    terms: Terms
    since_ms: int
    advert: Signed
    box_key: Secret
    mask_seed: Secret
    self_seed: Secret
    update: Vector = field(repr=False)
    clamped: Clamped


@dataclass(frozen=True, slots=True)
class Shared:
    """Its two secrets are dealt out."""

    terms: Terms
    since_ms: int
    adverts: Mapping[str, Opened[Advert]]
    roster: bytes
    ring: Ring
    shares: Signed
    box_key: Secret
    mask_seed: Secret
    self_seed: Secret
    update: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Masked:
    """Its vector is going out, or is out.

    Attributes:
        view: V.
        ring: The neighbourhoods.
        members: U2, sorted.
        held: By dealer: both shares with their salts.
        upload: The vector and its signed message.
    """

    terms: Terms
    since_ms: int
    view: bytes
    ring: Ring
    members: tuple[str, ...]
    held: Mapping[str, Secret]
    upload: SignedMaskJob


@dataclass(frozen=True, slots=True)
class Consented:
    """It signed who is in the sum."""

    terms: Terms
    since_ms: int
    view: bytes
    members: tuple[str, ...]
    held: Mapping[str, Secret]
    survivors: tuple[str, ...]
    inputs: bytes
    agreed: bytes


@dataclass(frozen=True, slots=True)
class Revealed:
    """Its shares of the others are out; nothing secret is left."""

    terms: Terms
    since_ms: int
    view: bytes
    survivors: tuple[str, ...]
    agreed: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """Closed or aborted, for good."""

    code: str | None
    answers: Answers = field(default_factory=dict, repr=False)


Open = Advertised | Shared | Masked | Consented | Revealed
State = Idle | Open | Ended

PHASES: Final[tuple[type[Open], ...]] = (Advertised, Shared, Masked, Consented, Revealed)
"""In order: the index of each is that of its deadline in the plan."""


def phase_name(state: "State") -> str:
    """Return how a state is called in messages."""
    return type(state).__name__.lower()


def wipe(state: State) -> None:
    """Forget every secret of a state."""
    match state:
        case Advertised() | Shared():
            for secret in (state.box_key, state.mask_seed, state.self_seed):
                secret.wipe()
        case Masked():
            state.upload.job.wipe()
            wipe_all(state.held)
        case Consented():
            wipe_all(state.held)
        case _:
            pass


def wipe_all(held: Mapping[str, Secret]) -> None:
    """Forget all shares that are held for others."""
    for secret in held.values():
        secret.wipe()
