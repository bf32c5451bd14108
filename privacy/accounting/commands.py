"""What may be asked of the ledger: one frozen value per command; `privacy.accounting.ledger.step` answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from privacy.accounting.entries import Use
from privacy.accounting.events import Event
from privacy.accounting.renyi import DEFAULT_ORDERS

LOCAL: Final = "local"
"""The trust model of bounds that hold against everyone."""


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
)
