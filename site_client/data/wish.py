"""What an operator asks to be added as a data set, and what of it can't be meant; pure."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

from federation.contract import DataContract
from federation.errors import InvalidInput
from site_client.data.data_map import DataMap
from site_client.data.registry import DataSet, DataVersion, SplitRule


@dataclass(frozen=True, slots=True)
class Wish:
    """What an operator asks to be added.

    Attributes:
        units: The number of units that the operator publishes, or ``dp`` for a noisy count that is charged.
        split: How rows are divided.
        epsilon, delta: The budget of the data set's people; None for a new version, which changes no budget.
    """

    name: str
    path: Path
    contract: DataContract
    data_map: DataMap
    entity: str | None
    units: int | Literal["dp"]
    same_people_as: str | None
    split: SplitRule
    held_out_public: bool
    epsilon: float | None
    delta: float | None


def unchanged(known: DataSet, newest: DataVersion) -> Wish:
    """Return the wish for a version that changes nothing but the rows; the declared number of units stays."""
    return Wish(
        name=known.name,
        path=known.path,
        contract=known.contract,
        data_map=known.data_map,
        entity=known.entity,
        units=newest.units_declared,
        same_people_as=known.same_people_as,
        split=known.split,
        held_out_public=known.held_out_public,
        epsilon=None,
        delta=None,
    )


def check_budget(wish: Wish) -> None:
    """Refuse a budget that promises nothing.

    Raises:
        InvalidInput: It is missing, not finite and positive, or its delta would let whole people out.
    """
    if wish.epsilon is None or wish.delta is None:
        raise InvalidInput("CFD-D25", "a new data set needs --epsilon and --delta, the budget of its people")
    if not (isfinite(wish.epsilon) and wish.epsilon > 0):
        raise InvalidInput("CFD-D25", f"--epsilon {wish.epsilon}: it must be positive and finite")
    if not 0 < wish.delta < 1:
        raise InvalidInput("CFD-D25", f"--delta {wish.delta}: it must lie between 0 and 1")
    if wish.units != "dp" and wish.delta >= 1 / wish.units:
        raise InvalidInput(
            "CFD-D25",
            f"--delta {wish.delta} with {wish.units} units: a mechanism that publishes whole people would satisfy it",
            hint=f"choose a delta well below {1 / wish.units:.2g}",
        )
