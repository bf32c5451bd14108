"""What registering a data set asks of the ledger: population, atoms, policy and first version, as commands. Pure."""

from dataclasses import dataclass

from privacy.accounting import commands
from privacy.accounting.releases import newest_version
from privacy.accounting.state import State
from privacy.errors import LedgerMisused


@dataclass(frozen=True, slots=True)
class NewDataSet:
    """A data set as the ledger is told of it.

    Attributes:
        version: Its content, ``sha256:`` and 64 hex digits.
        epsilon, delta: The promise to its people; with `same_people_as` a further one beside the one that exists.
        units_declared: A public number.
        same_people_as: A data set on the same people: both share population and atoms, and so spend one budget.
    """

    name: str
    version: str
    contract: str
    unit: str
    epsilon: float
    delta: float
    units_declared: int
    declared_by: str
    entity_column: str = ""
    held_out: bool = True
    held_out_public: bool = False
    epsilon_per_job: float | None = None
    cap_rows: int | None = None
    same_people_as: str | None = None


def registration(state: State, new: NewDataSet) -> list[commands.Command]:
    """Return the commands that add a data set, for all of them to be done or none.

    Raises:
        LedgerMisused: The name is taken, or `same_people_as` is unknown.
    """
    if new.name in state.versions:
        raise LedgerMisused(f"data set {new.name} is already in the privacy ledger")
    asked: list[commands.Command] = []
    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    if new.same_people_as is None:
        population = new.name
        train, evaluate = (f"{new.name}/train-1",), (f"{new.name}/held-out-1",)
        asked.append(commands.AddPopulation(population=population, entity_column=new.entity_column))
        asked.append(
            commands.AddAtom(atom=train[0], population=population, use="train", rule="keyed hash of the unit's id")
        )
        if new.held_out and not new.held_out_public:
            asked.append(
                commands.AddAtom(
                    atom=evaluate[0], population=population, use="evaluate", rule="keyed hash of the unit's id"
                )
            )
    else:
        shared = newest_version(state, new.same_people_as)
        population, train, evaluate = shared.population, shared.train, shared.evaluate
        if state.populations[population].entity_column != new.entity_column:
            raise LedgerMisused(
                f"{new.name} and {new.same_people_as} don't share an entity column, so not people either"
            )
    if new.held_out_public or not new.held_out:
        evaluate = ()
    asked.append(
        commands.AddPolicy(
            policy=f"{new.name}-p1",
            population=population,
            unit=new.unit,
            epsilon=new.epsilon,
            delta=new.delta,
            epsilon_per_job=new.epsilon_per_job,
            cap_rows=new.cap_rows,
            approved_by=(new.declared_by,),
        )
    )
    asked.append(
        commands.AddVersion(
            data_set=new.name,
            version=new.version,
            contract=new.contract,
            population=population,
            train=train,
            evaluate=evaluate,
            held_out_public=new.held_out_public,
            units_declared=new.units_declared,
            declared_by=new.declared_by,
        )
    )
    return asked
