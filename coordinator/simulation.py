"""What a simulation is made of, as plain values: the plan for virtual sites, the order to its process, its lines. Pure.

A simulation runs a job's plan with as many virtual sites as one likes. The plan is the person's own but for the sites:
with the number that it invites they keep their names; with another number they are called ``site-1`` and so on, and
the quorum keeps its share, rounded up. Fewer or more rounds are another plan too: epsilon is then spent over those.

A virtual site gets the plan's deadline for its own training. Only so many train at once as there are workers, so a
phase stays open for the deadline times the number of turns; the round machine closes it as it closes any other.

The simulation is a process of its own (`simulation_process`), told by one order and heard by lines, each strict JSON.
"""

import math
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coordinator.views import EventView
from federation.contract import DataContract, digest
from federation.errors import InvalidInput, OutOfOrder
from federation.messages import HexBytes, JobName, Token
from federation.plan import Plan, resolve

MAX_SITES: Final = 4096
MAX_LINE_BYTES: Final = 8 << 20
BATCHES_A_SITE: Final = 4
SYNTHETIC: Final = "synthetic rows, drawn from the contract's public ranges; their metrics say nothing of real data"
DIVIDED: Final = "the rows of the given data, divided among the virtual sites"


class Line(BaseModel):
    """One line between a simulation and whoever started it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GivenData(Line):
    """Data to be divided among the virtual sites: the file or folder, its map, and which rows are held out."""

    path: str
    data_map: str | None
    split: str | None
    held_out: float


class Order(Line):
    """The only line to a simulation: everything that it needs.

    Attributes:
        job: The simulated job's id.
        plan: Canonical bytes of the plan, from `simulated_plan`.
        contract: Canonical bytes of the data contract.
        data: The data to divide; None makes rows up.
        units: Units that each site trains on where rows are made up.
        folder: An empty folder of this simulation, removed after it.
        engine_folder: Another one with a short path, for the engine's sockets.
        out: The folder for what stays: model, figures and log; None keeps nothing.
        workers: How many processes train at once.
        up_s: How long the virtual sites may take to come up.
    """

    job: JobName
    plan: HexBytes
    contract: HexBytes
    data: GivenData | None
    units: Annotated[int, Field(ge=1)]
    folder: str
    engine_folder: str
    out: str | None
    workers: Annotated[int, Field(ge=1, le=1024)]
    up_s: Annotated[float, Field(gt=0)]


class Up(Line):
    """The virtual sites are there; `alone` says whether the processes have a network of their own."""

    say: Literal["up"] = "up"
    sites: int
    workers: int
    alone: bool
    seconds: float


class Happened(Line):
    """Something happened in the job, as `job watch` tells it."""

    say: Literal["happened"] = "happened"
    event: EventView


class Result(Line):
    """The simulation is over.

    Attributes:
        state: How the job ended: completed or failed.
        reason: Why it failed.
        metrics: Of the newest evaluated model; None where undefined or nothing was evaluated.
        epsilon: Largest of the sites', rounded up; None without noise.
        model: Digest of the last released model and server state; empty where none was released.
    """

    say: Literal["result"] = "result"
    job: str
    state: str
    reason: str
    sites: int
    refused: int
    quorum: int
    rounds: int
    rounds_released: int
    metrics: dict[str, float | None] | None
    epsilon: float | None
    epsilon_allowed: float | None
    model: str
    data: str
    seconds: float


class Broken(Line):
    """The simulation can't go on: an error as every command prints it."""

    say: Literal["broken"] = "broken"
    code: Token
    message: str
    hint: str


FromSimulation = Annotated[Up | Happened | Result | Broken, Field(discriminator="say")]
_FROM: Final[TypeAdapter[Up | Happened | Result | Broken]] = TypeAdapter(FromSimulation)


def encode(line: Line) -> bytes:
    """Return `line` as bytes with its line feed."""
    return line.model_dump_json().encode() + b"\n"


def decode_order(data: bytes) -> Order:
    """Return the order in `data`.

    Raises:
        OutOfOrder: It is none.
    """
    try:
        return Order.model_validate_json(data)
    except ValidationError:
        raise OutOfOrder("CFD-G01", "a simulation was started without an order") from None


def decode(data: bytes) -> Up | Happened | Result | Broken:
    """Return what a simulation said.

    Raises:
        OutOfOrder: It is none of its lines.
    """
    try:
        return _FROM.validate_json(data)
    except ValidationError:
        raise OutOfOrder("CFD-J12", "the simulation said something that isn't understood") from None


# --- the plan -------------------------------------------------------------------------------------------------


def simulated_plan(plan: Plan, contract: DataContract, *, sites: int | None = None, rounds: int | None = None) -> Plan:
    """Return the resolved plan for a number of virtual sites and rounds; by default the plan's own.

    Raises:
        InvalidInput: The contract is another one, or something that a simulation has not.
        PlanRefused: The plan doesn't hold with so many sites or rounds.
    """
    if contract.name != plan.data.contract or contract.label.column != plan.data.label:
        found = f"{contract.name} with label {contract.label.column}"
        raise InvalidInput("CFD-J04", f"the plan needs {plan.data.contract} with label {plan.data.label}, not {found}")
    if plan.start is not None:
        raise InvalidInput("CFD-J15", "start: a simulation begins with fresh values", hint="take `start` out")
    # All virtual sites are in one process: masks would hide nothing there, and the mean is the same without them.
    changes: dict[str, Any] = {
        "secure_aggregation": plan.secure_aggregation.model_copy(update={"enabled": False, "dropouts": None})
    }
    invited = len(plan.sites.invite)
    if sites is not None and sites != invited:
        changes["sites"] = plan.sites.model_copy(
            update={"invite": virtual_names(sites), "quorum": scaled_quorum(plan.sites.quorum, invited, sites)}
        )
    if rounds is not None:
        changes["rounds"] = rounds
        if plan.evaluate is not None and plan.evaluate.every > rounds:
            changes["evaluate"] = plan.evaluate.model_copy(update={"every": rounds})
    return resolve(
        plan.model_copy(update=changes), contract_digest=digest(contract), has_entities=contract.entity is not None
    )


def virtual_names(count: int) -> tuple[str, ...]:
    """Return the ids of `count` virtual sites, padded so that their order is that of their numbers.

    Raises:
        InvalidInput: Not 1 to 4096.
    """
    if not 1 <= count <= MAX_SITES:
        raise InvalidInput("CFD-G02", f"--sites {count}, 1 to {MAX_SITES} are possible")
    digits = len(str(count))
    return tuple(f"site-{number:0{digits}d}" for number in range(1, count + 1))


def scaled_quorum(quorum: int | None, invited: int, sites: int) -> int | None:
    """Return the quorum among `sites` that has the same share as `quorum` among `invited`, rounded up."""
    return None if quorum is None else min(sites, -(-quorum * sites // invited))


def units_of_a_site(plan: Plan) -> int:
    """Return how many made-up units a site trains on: four batches, or as many as the plan's delta allows.

    A guarantee needs δ < 1/units; two digits are kept, as a declared size has.
    """
    wanted = BATCHES_A_SITE * plan.training.batch
    if plan.privacy.mechanism != "none" and plan.privacy.delta is not None:
        wanted = min(wanted, math.ceil(1 / plan.privacy.delta) - 1)
    unit: int = 10 ** max(len(str(wanted)) - 2, 0)
    return max(wanted // unit * unit, 1)


def turns(sites: int, workers: int) -> int:
    """Return how many times the workers must take a site each until all have had their turn."""
    return -(-sites // workers)


def summary(result: Result) -> dict[str, Any]:
    """Return the result as it is printed and kept."""
    shown = result.model_dump(mode="json", exclude={"say"})
    return {key: value for key, value in shown.items() if key != "reason" or value}
