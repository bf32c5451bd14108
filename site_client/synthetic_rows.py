"""Rows that nobody has: drawn from a data contract's public ranges and categories, for simulations. Pure.

They show whether a plan runs, how long it takes and what it charges; their metrics say nothing about real data. No row
comes from a person, and nothing here looks at any data. The same contract, seed and site give the same rows always:

- a number or date is uniform in the column's range, and within two scales of its centre where the contract scales it;
- a truth value or category is uniform over its levels; nothing is missing; identifiers count upwards;
- the label depends on the features, so that there is something to learn: with x the encoded features, standardised by
  a reference sample of the same kind, each class has a score w·x with fixed weights w, plus noise, and the highest
  score wins (two classes: the odds of the positive one are e^(w·x)).

The uniform numbers are SHAKE-256 of ("confide-synthetic/v1", contract digest, seed, site, column), 53 bits each. They
are no secrets, and no privacy noise is ever made of them.
"""

import datetime as dt
import hashlib
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from federation.contract import (
    BooleanColumn,
    CategoryColumn,
    DataContract,
    DateColumn,
    FeatureColumn,
    IntegerColumn,
    digest,
    feature_columns,
    width,
)
from site_client.data.encode import RowEncoder
from site_client.virtual_rows import Rows

Floats = npt.NDArray[np.float64]

REFERENCE_ROWS: Final = 256
STRENGTH: Final = 4.0
"""Standard deviation of w·x: how much more the features say than the noise."""
DEFAULT_DAYS: Final = 3650
"""Length of the period of a date column that has no range, from its origin."""
MOST_ROWS_OF_UNIT: Final = 3
_REFERENCE: Final = "reference sample"


class SyntheticRows:
    """The rows of all virtual sites of one simulation.

    Args:
        contract: What a row means.
        seed: The plan's.
        entities: Whether a unit is an entity with one to three rows, instead of one row.
    """

    def __init__(self, contract: DataContract, *, seed: int, entities: bool) -> None:
        self._contract = contract
        self._digest = digest(contract)
        self._seed = seed
        self._entities = entities
        reference = self._features(_REFERENCE, REFERENCE_ROWS)
        deviation = reference.std(axis=0)
        self._centre = reference.mean(axis=0)
        self._scale = np.where(deviation > 0, deviation, 1.0)
        self._weights = self._drawn_weights()

    def of(self, site: str, *, train: int, held_out: int) -> Rows:
        """Return the rows of one site.

        Args:
            site: Its id.
            train: Number of units to train on.
            held_out: Number of held-out units.
        """
        units_count = train + held_out
        rows_each = np.ones(units_count, dtype=np.int64)
        if self._entities:
            rows_each += (self._uniform(site, "rows of a unit", units_count) * MOST_ROWS_OF_UNIT).astype(np.int64)
        units = np.repeat(np.arange(units_count, dtype=np.int64), rows_each)
        features = self._features(site, len(units))
        return Rows(features.astype(np.float32), self._labels(site, features), units, units >= train)

    # --- features ---------------------------------------------------------------------------------------------

    def _features(self, site: str, count: int) -> Floats:
        encoder = RowEncoder(self._contract)
        positions = {column.name: position for position, column in enumerate(self._contract.columns)}
        parts = []
        for column in feature_columns(self._contract):
            draw = _drawn(column)
            position = positions[column.name]
            uniform = self._uniform(site, f"column {column.name}", count)
            parts.append(np.array([encoder.cell_features(position, draw(u)) for u in uniform.tolist()]))
        return np.concatenate([part.reshape(count, -1) for part in parts], axis=1)

    # --- labels -----------------------------------------------------------------------------------------------

    def _labels(self, site: str, features: Floats) -> npt.NDArray[np.int64]:
        classes = self._contract.label.classes_count
        scores = (features - self._centre) / self._scale @ self._weights.T
        labels: npt.NDArray[np.bool_ | np.int64]
        if classes == 2:
            odds = self._open_uniform(site, "label", len(features))
            labels = scores[:, 0] + np.log(odds / (1 - odds)) > 0
        else:
            noise = self._open_uniform(site, "label", len(features) * classes).reshape(-1, classes)
            labels = np.argmax(scores - np.log(-np.log(noise)), axis=1)
        return labels.astype(np.int64)

    def _drawn_weights(self) -> Floats:
        classes = self._contract.label.classes_count
        shape = (1 if classes == 2 else classes, width(self._contract))
        weights = 2 * self._uniform(_REFERENCE, "weights", shape[0] * shape[1]).reshape(shape) - 1
        length: Floats = np.sqrt((weights**2).sum(axis=1, keepdims=True))
        return STRENGTH * weights / length

    # --- uniform numbers --------------------------------------------------------------------------------------

    def _uniform(self, site: str, what: str, count: int) -> Floats:
        about = ["confide-synthetic/v1", self._digest, str(self._seed), site, what]
        stream = hashlib.shake_256("\n".join(about).encode("utf-8")).digest(8 * count)
        words = np.frombuffer(stream, dtype=">u8") >> np.uint64(11)
        return words.astype(np.float64) / float(2**53)

    def _open_uniform(self, site: str, what: str, count: int) -> Floats:
        """Return uniform numbers of which none is 0, so that their logarithms are finite."""
        return np.maximum(self._uniform(site, what, count), 2.0**-53)


def _drawn(column: FeatureColumn) -> Callable[[float], Any]:
    """Return the function that makes a uniform number in [0, 1) a value of the column."""
    if isinstance(column, CategoryColumn):
        levels = column.levels
        return lambda u: levels[int(u * len(levels))]
    if isinstance(column, BooleanColumn):
        return lambda u: u < 0.5
    if isinstance(column, DateColumn):
        first, last = _days(column)
        return lambda u: dt.date.fromordinal(first + int(u * (last - first + 1)))
    scaling = column.scaling
    low, high = scaling.centre - 2 * scaling.scale, scaling.centre + 2 * scaling.scale
    if column.range is not None:
        span = (float(column.range[0]), float(column.range[1]))
        is_scaled = (scaling.centre, scaling.scale) != (0.0, 1.0)
        narrowed = (max(low, span[0]), min(high, span[1]))
        low, high = narrowed if is_scaled and narrowed[0] <= narrowed[1] else span
    if isinstance(column, IntegerColumn):
        least, most = math.ceil(low), math.floor(high)
        most = max(least, most)
        return lambda u: least + int(u * (most - least + 1))
    return lambda u: low + u * (high - low)


def _days(column: DateColumn) -> tuple[int, int]:
    if column.range is not None:
        return dt.date.fromisoformat(column.range[0]).toordinal(), dt.date.fromisoformat(column.range[1]).toordinal()
    first = dt.date.fromisoformat(str(column.origin)).toordinal()
    return first, first + DEFAULT_DAYS
