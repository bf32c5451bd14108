"""What may be asked of the ledger: one frozen value per command; `privacy.accounting.ledger.step` answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from privacy.accounting.entries import GENESIS, Use
from privacy.accounting.events import LOCAL, Event
from privacy.accounting.renyi import DEFAULT_ORDERS


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPopulation:
    """Introduce people, or rows, that data sets are about."""

    population: str
    entity_column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAtom:
    """Open an atom of a population, for training or for held-out units."""

    atom: str
    population: str
    use: Use
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPolicy:
    """Promise (ε, δ) for a population; totals of its atoms carry over."""

    policy: str
    population: str
    unit: str
    epsilon: float
    delta: float
    trust: str = LOCAL
    foreign_delta: float = 0.0
    orders: tuple[int, ...] = DEFAULT_ORDERS
    epsilon_per_job: float | None = None
    cap_rows: int | None = None
    approved_by: tuple[str, ...] = ()
    replaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVersion:
    """Register one content of a data set."""

    data_set: str
    version: str
    contract: str
    population: str
    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    held_out_public: bool
    units_declared: int
    declared_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Hold a job's whole schedule. `events` names the event by trust; `local` is what holds against everyone."""

    job: str
    digest: str
    use: Use
    data_set: str
    unit: str
    epsilon: float
    delta: float
    events: Mapping[str, Event]
    steps: int
    atoms: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLease:
    """Charge `steps` steps. `number` and `holder` make a repeat, after a commit with unknown outcome, a look-up."""

    reservation: str
    number: int
    steps: int
    round: int
    attempt: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLease:
    """Say what became of a lease."""

    reservation: str
    number: int
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleJob:
    """End a reservation; open leases are lost, what was never leased goes back."""

    reservation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeOnce:
    """Charge `count` single releases of one event at once."""

    charge: str
    data_set: str
    use: Use
    purpose: str
    events: Mapping[str, Event]
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkUnbounded:
    """Record that no bound holds any more."""

    data_set: str
    use: Use
    reason: str
    job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddForeign:
    """Count a release that was made outside of this ledger, such as a table published last year (R10)."""

    foreign: str
    data_set: str
    use: Use
    epsilon: float
    delta: float
    what: str
    approved_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Steps that were taken and that the ledger doesn't hold any more."""

    charge: str
    data_set: str
    use: Use
    purpose: str
    events: Mapping[str, Event]
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """Make good what a restored backup lost (8.7): charge `missed`, and retire `atoms`.

    What happened is charged whatever the budget says, so that in doubt more is charged, never less. Every reservation
    that is still open ends: what it had leased since is among `missed`.
    """

    means: Literal["replayed", "charged", "retired"]
    reason: str
    approved_by: tuple[str, ...]
    witnessed_seq: int = -1
    witnessed_hash: str = GENESIS
    missed: tuple[Missed, ...] = ()
    atoms: tuple[str, ...] = ()


Command = (
    AddPopulation
    | AddAtom
    | AddPolicy
    | AddVersion
    | Reserve
    | TakeLease
    | EndLease
    | SettleJob
    | ChargeOnce
    | MarkUnbounded
    | AddForeign
    | Recover
)
