"""What the coordinator's side of a sum is told, what it does, what it records, and where it stands."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from privacy.secagg.envelope import Opened, Signed
from privacy.secagg.errors import SumRefused
from privacy.secagg.messages import Abort, Advert, Box, Masked, Reveal, Shares, SumPlan, Survivors
from privacy.secagg.sums import Stage, SumFigures
from privacy.secagg.unmask import UnmaskJob, View

# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A site's signed message; with `shares` come its boxes."""

    message: Signed
    boxes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    """A chunk of a masked vector, from a site whom the link has authenticated."""

    sender: str
    index: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PhaseEnded:
    """Everyone answered, or the phase's time is over."""


@dataclass(frozen=True, slots=True)
class SumRead:
    """The masks are off, the sum was inspected, and the server step made a model of it (none for an evaluation)."""

    figures: SumFigures
    new_model_digest: bytes | None = None


Event = Arrived | ChunkArrived | PhaseEnded | SumRead

# --- records: durable before what follows them ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanIssued:
    """A1."""

    plan: Signed


@dataclass(frozen=True, slots=True)
class RosterFixed:
    """A2."""

    adverts: tuple[Signed, ...]


@dataclass(frozen=True, slots=True)
class MembersFixed:
    """A3."""

    shares: tuple[Signed, ...]
    boxes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class UploadCommitted:
    """A4."""

    masked: Signed


@dataclass(frozen=True, slots=True)
class SurvivorsFrozen:
    """A5."""

    survivors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificateMade:
    """A6."""

    survivors: tuple[Signed, ...]


@dataclass(frozen=True, slots=True)
class ResultMade:
    """A7."""

    result: Signed


@dataclass(frozen=True, slots=True)
class SumAbandoned:
    """Nothing is published, and this sum is never continued."""

    code: str


Record = (
    PlanIssued
    | RosterFixed
    | MembersFixed
    | UploadCommitted
    | SurvivorsFrozen
    | CertificateMade
    | ResultMade
    | SumAbandoned
)

# --- outputs: each is done only after all before it -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Make this durable before anything that follows."""

    record: Record


@dataclass(frozen=True, slots=True)
class Relay:
    """Send a set of messages to one site."""

    to: str
    messages: tuple[Signed, ...]
    boxes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Spool:
    """Put a chunk beside those before it, apart from the sum."""

    sender: str
    index: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete what is staged of a site."""

    sender: str


@dataclass(frozen=True, slots=True)
class AddStaged:
    """Add a staged vector to the accumulator."""

    sender: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell a site that its vector is in the sum for good."""

    to: str


@dataclass(frozen=True, slots=True)
class Blamed:
    """A site did something that is refused; the sum may go on without it."""

    refusal: SumRefused


@dataclass(frozen=True, slots=True)
class Unmask:
    """Run this over the accumulator, wipe it, inspect the sum."""

    job: UnmaskJob


@dataclass(frozen=True, slots=True)
class Concluded:
    """The sum is over: with a result, or abandoned."""

    result: Signed | None
    refusal: SumRefused | None = None


Output = Keep | Relay | Spool | Discard | AddStaged | Acknowledge | Blamed | Unmask | Concluded

# --- states ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opening:
    """What holds for the whole sum.

    Attributes:
        plan: The plan as it was sent.
        digest: pd.
        aborts: By sender, the first abort of each.
    """

    plan: Opened[SumPlan]
    digest: bytes
    aborts: dict[str, Opened[Abort]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advertising:
    """Collects adverts (U1)."""

    opening: Opening
    adverts: dict[str, Opened[Advert]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Collects `shares` and boxes (U2)."""

    opening: Opening
    view: View
    shares: dict[str, Opened[Shares]] = field(default_factory=dict)
    boxes: dict[tuple[str, str], tuple[Box, bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Masking:
    """Stages and commits vectors (U3)."""

    opening: Opening
    view: View
    boxes: Mapping[tuple[str, str], tuple[Box, bytes]]
    stages: dict[str, Stage] = field(default_factory=dict)
    masked: dict[str, Opened[Masked]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Consenting:
    """Collects consents to the frozen survivors (U4)."""

    opening: Opening
    view: View
    boxes: Mapping[tuple[str, str], tuple[Box, bytes]]
    masked: Mapping[str, Opened[Masked]]
    survivors: tuple[str, ...]
    inputs: bytes
    agreed: bytes
    consents: dict[str, Opened[Survivors]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Revealing:
    """Collects shares (U5)."""

    opening: Opening
    view: View
    boxes: Mapping[tuple[str, str], tuple[Box, bytes]]
    survivors: tuple[str, ...]
    agreed: bytes
    consents: Mapping[str, Opened[Survivors]]
    reveals: dict[str, Opened[Reveal]] = field(default_factory=dict)
    revealed: dict[str, dict[str, bytes]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Unmasking:
    """Waits for the sum."""

    opening: Opening
    view: View
    survivors: tuple[str, ...]
    agreed: bytes


@dataclass(frozen=True, slots=True)
class Over:
    """Published or abandoned."""

    result: Signed | None
    refusal: SumRefused | None = None


Collecting = Advertising | Sharing | Masking | Consenting | Revealing
State = Collecting | Unmasking | Over


def is_complete(state: Collecting) -> bool:
    """Return whether nobody is left who could still answer in this phase."""
    expected, have = _phase_sets(state)
    return set(expected) <= {*have, *state.opening.aborts}


def spare_count(state: Collecting, lost: Collection[str]) -> int:
    """Return how many more sites may be missing in this phase, of the dropouts that the plan bears in all.

    Args:
        state: The running phase.
        lost: Sites that are given up in it already.
    """
    plan = state.opening.plan.body
    expected, _ = _phase_sets(state)
    left = set(expected).difference(lost, state.opening.aborts)
    return plan.dropouts - (len(plan.invited) - len(left))


def _phase_sets(state: Collecting) -> tuple[Collection[str], Collection[str]]:
    """Return who is expected to answer in this phase, and who has."""
    match state:
        case Advertising():
            return state.opening.plan.body.invited, state.adverts
        case Sharing():
            return state.view.adverts, state.shares
        case Masking():
            return state.view.shares, state.masked
        case Consenting():
            return state.survivors, state.consents
        case _:
            return state.consents, state.reveals
