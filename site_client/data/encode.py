"""From a row of decoded values to numbers, by the contract alone; pure.

Every site gets the same features in the same order whatever its file's columns, because only the contract decides and
its constants are public. A missing value that the contract imputes becomes its constant here, and not earlier: the
version of a data set tells a missing value from one that equals the constant.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

from federation.contract import (
    BooleanColumn,
    CategoryColumn,
    DataContract,
    DateColumn,
    FeatureColumn,
    IntegerColumn,
    Scaling,
    feature_columns,
)
from site_client.data.cells import Value

Encode = Callable[[Value], tuple[float, ...]]


class RowEncoder:
    """Encodes rows of one contract: values in the order of the contract's columns."""

    def __init__(self, contract: DataContract) -> None:
        by_name = {column.name: _column(column) for column in feature_columns(contract)}
        self._encoders = [by_name.get(column.name) for column in contract.columns]
        self._positive = frozenset(contract.label.positive or ())
        self._classes = {value: index for index, value in enumerate(contract.label.classes or ())}

    def features(self, values: Sequence[Value]) -> list[float]:
        """Return the features of one row, `width(contract)` numbers, before rounding to float32."""
        return [number for position, value in enumerate(values) for number in self.cell_features(position, value)]

    def cell_features(self, position: int, value: Value) -> tuple[float, ...]:
        """Return what the value of the contract's column at `position` adds to a row's features, perhaps nothing."""
        encode = self._encoders[position]
        return () if encode is None else encode(value)

    def label(self, value: Value) -> int | None:
        """Return the class of a row by the value of its label column, or None where that is no declared class."""
        text = label_text(value)
        if self._positive:
            return int(text in self._positive)
        return self._classes.get(text)


def label_text(value: Value) -> str:
    """Return a label's value as the contract writes it: ``true``, ``3``, ``malignant``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _column(column: FeatureColumn) -> Encode:
    encode = _category(column) if isinstance(column, CategoryColumn) else _single(column)
    if column.missing.rule not in ("impute", "indicator"):
        return encode
    constant = encode(_constant(column))
    if column.missing.rule == "impute":
        return lambda value: constant if value is None else encode(value)
    return lambda value: (*constant, 1.0) if value is None else (*encode(value), 0.0)


def _constant(column: FeatureColumn) -> Value:
    value = column.missing.value
    if isinstance(column, DateColumn):
        return dt.date.fromisoformat(str(value))
    return int(value) if isinstance(column, IntegerColumn) and isinstance(value, float) else value


def _scaled(scaling: Scaling) -> Callable[[float], float]:
    centre, scale, clamp = scaling.centre, scaling.scale, scaling.clamp
    if clamp is None:
        return lambda number: (number - centre) / scale
    low, high = -clamp, clamp
    return lambda number: min(max((number - centre) / scale, low), high)


def _single(column: FeatureColumn) -> Encode:
    scaled = _scaled(column.scaling)
    if isinstance(column, DateColumn):
        origin = dt.date.fromisoformat(str(column.origin)).toordinal()

        def day(value: Any) -> tuple[float, ...]:
            return (scaled(float(value.toordinal() - origin)),)

        return day
    if isinstance(column, BooleanColumn):
        no, yes = (scaled(0.0),), (scaled(1.0),)
        return lambda value: yes if value else no

    def number(value: Any) -> tuple[float, ...]:
        return (scaled(float(value)),)

    return number


def _category(column: CategoryColumn) -> Encode:
    off, on = _scaled(column.scaling)(0.0), _scaled(column.scaling)(1.0)
    levels = column.levels[column.first_level == "dropped" :]
    rows = {level: tuple(on if level == other else off for other in levels) for level in column.levels}

    def one_hot(value: Any) -> tuple[float, ...]:
        return rows[value]

    return one_hot
