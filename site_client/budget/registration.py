"""What registering a data set asks of the ledger: population, atoms, policy and first version, as commands. Pure."""

from privacy.accounting import commands
from privacy.accounting.releases import newest_version
from privacy.accounting.state import State
from privacy.errors import LedgerMisused


def registration(
    state: State,
    name: str,
    *,
    version: str,
    contract: str,
    unit: str,
    epsilon: float,
    delta: float,
    units_declared: int,
    declared_by: str,
    entity_column: str,
    held_out: bool,
    held_out_public: bool,
    epsilon_per_job: float | None,
    cap_rows: int | None,
    same_people_as: str | None,
) -> list[commands.Command]:
    """Return the commands that add a data set, for all of them to be done or none.

    Raises:
        LedgerMisused: The name is taken, or `same_people_as` is unknown.
    """
    if name in state.versions:
        raise LedgerMisused(f"data set {name} is already in the privacy ledger")
    asked: list[commands.Command] = []
    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    if same_people_as is None:
        population = name
        train, evaluate = (f"{name}/train-1",), (f"{name}/held-out-1",)
        asked.append(commands.AddPopulation(population=population, entity_column=entity_column))
        asked.append(
            commands.AddAtom(atom=train[0], population=population, use="train", rule="keyed hash of the unit's id")
        )
        if held_out and not held_out_public:
            asked.append(
                commands.AddAtom(
                    atom=evaluate[0], population=population, use="evaluate", rule="keyed hash of the unit's id"
                )
            )
    else:
        shared = newest_version(state, same_people_as)
        population, train, evaluate = shared.population, shared.train, shared.evaluate
        if state.populations[population].entity_column != entity_column:
            raise LedgerMisused(f"{name} and {same_people_as} don't share an entity column, so not people either")
    if held_out_public or not held_out:
        evaluate = ()
    asked.append(
        commands.AddPolicy(
            policy=f"{name}-p1",
            population=population,
            unit=unit,
            epsilon=epsilon,
            delta=delta,
            epsilon_per_job=epsilon_per_job,
            cap_rows=cap_rows,
            approved_by=(declared_by,),
        )
    )
    asked.append(
        commands.AddVersion(
            data_set=name,
            version=version,
            contract=contract,
            population=population,
            train=train,
            evaluate=evaluate,
            held_out_public=held_out_public,
            units_declared=units_declared,
            declared_by=declared_by,
        )
    )
    return asked
