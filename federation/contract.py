"""The data contract: what every site's rows mean, agreed once for the federation; pure, no input or output.

A contract lists the columns with type, unit, range and categories, says what happens to a missing value and to a row,
and fixes how a row becomes numbers: which features, in which order, scaled by which **public** constants. Nothing in it
is measured on data, so that the encoding itself costs no privacy and is the same at every site: `width` and
`feature_names` are functions of the contract alone. How one site's file differs from the contract (names, codes, marks)
is that site's own map and no business of the federation.

Its canonical bytes (`canonical_bytes`) are what parties exchange and sign; `digest` names it.
"""

import datetime as dt
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from federation import canonical

API_VERSION: Final = "confide/v1"
MAX_CANONICAL_BYTES: Final = 262_144
MAX_FEATURES: Final = 65_536
_CANONICAL: Final = {"form": "canonical"}
_HEX_FLOAT: Final = re.compile(r"-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}")


def _real(value: Any, info: ValidationInfo) -> Any:
    """Read a real number written as `float.hex` does, in canonical bytes only; add zero so that −0 is 0."""
    if info.context == _CANONICAL and isinstance(value, str) and _HEX_FLOAT.fullmatch(value):
        return float.fromhex(value) + 0.0
    return value + 0.0 if isinstance(value, float) else value


def _code(value: Any) -> Any:
    """Read a category's code: text, or a whole number or truth value written without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else value


Real = Annotated[float, BeforeValidator(_real), Field(allow_inf_nan=False)]
Positive = Annotated[float, BeforeValidator(_real), Field(gt=0, allow_inf_nan=False)]
# One line of visible text: control characters and line breaks would forge lines of reports.
# The escapes are read by Python, so that the pattern is one for every reader of the JSON Schema.
_HIDDEN: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff"
_VISIBLE: Final = f"^[^{_HIDDEN}]*$"
Text = Annotated[str, Field(max_length=200, pattern=_VISIBLE)]
Level = Annotated[str, BeforeValidator(_code), Field(min_length=1, max_length=100, pattern=_VISIBLE)]
ColumnName = Annotated[str, Field(pattern=f"^[^ ,;=\"'`{_HIDDEN}]{{1,64}}$")]
ContractName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}/v[1-9][0-9]{0,5}$")]
Day = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class Strict(BaseModel):
    """Frozen, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Scaling(Strict):
    """Public constants: a feature is ``(value − centre) / scale``, held within ±`clamp` where that is set."""

    centre: Real = 0.0
    scale: Positive = 1.0
    clamp: Positive | None = None


class Missing(Strict):
    """What happens where a column has no value.

    ``refuse``: the data set isn't registered. ``drop-row``: the row is left out and counted. ``impute``: `value`, a
    public constant, takes its place. ``indicator``: as impute, and one more feature says that it was missing.
    """

    rule: Literal["refuse", "drop-row", "impute", "indicator"] = "refuse"
    value: Annotated[Real | bool | str | None, Field(union_mode="left_to_right")] = None

    @model_validator(mode="after")
    def _value_fits_rule(self) -> Self:
        if (self.rule in ("impute", "indicator")) != (self.value is not None):
            raise ValueError("`value` is the constant of `impute` and `indicator`, and belongs to them alone")
        return self


class _Column(Strict):
    name: ColumnName
    title: Text = ""
    missing: Missing = Missing()
    outside: Annotated[
        Literal["refuse", "drop-row"],
        Field(description="what happens to a value out of range or of no declared category"),
    ] = "refuse"


class NumberColumn(_Column):
    """A real number in `unit`, within `range` (both ends included)."""

    type: Literal["number"]
    unit: Text = ""
    range: tuple[Real, Real] | None = None
    encoding: Literal["standardised", "none"] = "standardised"
    scaling: Scaling = Scaling()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_range(self.range)
        return _check_constant(self, isinstance(self.missing.value, float | None))


class IntegerColumn(_Column):
    """A whole number in `unit`, within `range` (both ends included)."""

    type: Literal["integer"]
    unit: Text = ""
    range: tuple[Annotated[int, Field(ge=-(2**53), le=2**53)], Annotated[int, Field(ge=-(2**53), le=2**53)]] | None = (
        None
    )
    encoding: Literal["standardised", "none"] = "standardised"
    scaling: Scaling = Scaling()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_range(self.range)
        value = self.missing.value
        return _check_constant(self, value is None or (isinstance(value, float) and value.is_integer()))


class BooleanColumn(_Column):
    """True or false; a feature 1 or 0 before scaling."""

    type: Literal["boolean"]
    encoding: Literal["standardised", "none"] = "standardised"
    scaling: Scaling = Scaling()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return _check_constant(self, isinstance(self.missing.value, bool | None))


class CategoryColumn(_Column):
    """One of `categories`, in this order. `other` names the category that takes every value that isn't listed.

    `whitespace` and `case` say how a value is compared with the categories: ``exact``, or blanks at both ends
    stripped (``strip``), or letters compared without case (``ignore``).
    """

    type: Literal["category"]
    categories: Annotated[tuple[Level, ...], Field(min_length=1, max_length=4096)]
    other: Level | None = None
    whitespace: Literal["exact", "strip"] = "exact"
    case: Literal["exact", "ignore"] = "exact"
    encoding: Literal["one-hot", "none"] = "one-hot"
    first_level: Literal["kept", "dropped"] = "kept"
    scaling: Scaling = Scaling()

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the categories in order, `other` last."""
        return self.categories if self.other is None else (*self.categories, self.other)

    def comparable(self, text: str) -> str:
        """Return `text` as it is compared with the categories."""
        text = text.strip() if self.whitespace == "strip" else text
        return text.casefold() if self.case == "ignore" else text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len({self.comparable(level) for level in self.levels}) != len(self.levels):
            raise ValueError("two categories are the same under the rules for blanks and case")
        if self.encoding == "one-hot" and self.first_level == "dropped" and len(self.levels) < 2:
            raise ValueError("one category alone can't be encoded without the first")
        return _check_constant(self, self.missing.value is None or self.missing.value in self.levels)


class DateColumn(_Column):
    """A calendar day. ``days`` encodes it as days since `origin`, then scales. Times of day and zones are no part."""

    type: Literal["date"]
    range: tuple[Day, Day] | None = None
    origin: Day | None = None
    encoding: Literal["days", "none"] = "none"
    scaling: Scaling = Scaling()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for day in (*(self.range or ()), *(() if self.origin is None else (self.origin,))):
            dt.date.fromisoformat(day)
        _check_range(self.range)
        if (self.encoding == "days") != (self.origin is not None):
            raise ValueError("`origin` belongs to the encoding `days`, and is needed there")
        value = self.missing.value
        if isinstance(value, str):
            dt.date.fromisoformat(value)
        return _check_constant(self, isinstance(value, str | None))


class TextIdColumn(_Column):
    """An identifier: never a feature, never shown, kept only to tell units apart."""

    type: Literal["text-id"]
    encoding: Literal["none"] = "none"
    max_length: Annotated[int, Field(ge=1, le=1024)] = 128

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.missing.rule in ("impute", "indicator"):
            raise ValueError("an identifier can't be imputed")
        return self


Column = Annotated[
    NumberColumn | IntegerColumn | BooleanColumn | CategoryColumn | DateColumn | TextIdColumn,
    Field(discriminator="type"),
]
FeatureColumn = NumberColumn | IntegerColumn | BooleanColumn | CategoryColumn | DateColumn


class Label(Strict):
    """What is predicted: a column, and either the values that count as `positive` or the `classes` in order."""

    column: ColumnName
    positive: Annotated[tuple[Level, ...], Field(min_length=1, max_length=4096)] | None = None
    classes: Annotated[tuple[Level, ...], Field(min_length=2, max_length=4096)] | None = None

    @property
    def classes_count(self) -> int:
        """Return the number of classes; 2 for a label with `positive`."""
        return 2 if self.classes is None else len(self.classes)

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.positive is None) == (self.classes is None):
            raise ValueError("a label has either `positive`, the values that count as yes, or `classes`, all of them")
        values = self.positive or self.classes or ()
        if len(set(values)) != len(values):
            raise ValueError("a value is listed twice")
        return self


class RowRule(Strict):
    """Which rows a data set may lose or repeat before it is refused.

    `most_dropped_share`: registration is refused where a larger share of the rows is dropped. `duplicates`: whether
    rows equal in every column are only reported, or refuse the data set.
    """

    most_dropped_share: Annotated[Real, Field(ge=0, le=1)] = 1.0
    duplicates: Literal["report", "refuse"] = "report"


class DataContract(Strict):
    """The document ``kind: DataContract``. The order of `columns` is the order of the features."""

    api_version: Literal["confide/v1"] = Field(alias="apiVersion")
    kind: Literal["DataContract"]
    name: ContractName
    title: Text = ""
    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=4096)]
    label: Label
    entity: Annotated[ColumnName | None, Field(description="column whose equal values are one person")] = None
    rows: RowRule = RowRule()

    def column(self, name: str) -> Column:
        """Return the column called `name`."""
        return next(column for column in self.columns if column.name == name)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"column {repeated[0]} is declared twice")
        for role, name in (("label", self.label.column), ("entity", self.entity)):
            if name is not None and name not in names:
                raise ValueError(f"the {role} column {name} isn't among the columns")
        _check_label(self)
        if self.entity is not None:
            column = self.column(self.entity)
            if column.encoding != "none" or column.missing.rule in ("impute", "indicator"):
                raise ValueError(f"the entity column {self.entity} needs `encoding: none` and can't be imputed")
        width_found = sum(len(_names(column)) for column in _feature_columns(self))
        if not 1 <= width_found <= MAX_FEATURES:
            raise ValueError(f"the columns encode to {width_found} features, allowed are 1 to {MAX_FEATURES}")
        return self


def width(contract: DataContract) -> int:
    """Return the number of features of one encoded row."""
    return len(feature_names(contract))


def feature_names(contract: DataContract) -> tuple[str, ...]:
    """Return the features' names in order: ``age``, ``cp=2`` for a category, ``chol missing`` for an indicator."""
    return tuple(name for column in _feature_columns(contract) for name in _names(column))


def feature_columns(contract: DataContract) -> tuple[FeatureColumn, ...]:
    """Return the columns that become features, in order; the label and the entity never do."""
    return tuple(_feature_columns(contract))


def canonical_bytes(contract: DataContract) -> bytes:
    """Return the one byte string that stands for `contract`, defaults written out."""
    return canonical.encode(_hexed(contract.model_dump(mode="json", by_alias=True)))


def from_canonical(data: bytes) -> DataContract:
    """Return the contract of canonical bytes that came from another party.

    Raises:
        canonical.NotCanonical: The bytes are not the canonical form of a contract.
        pydantic.ValidationError: They are canonical, and no contract.
    """
    canonical.decode(data, limit_bytes=MAX_CANONICAL_BYTES)
    contract = DataContract.model_validate_json(data, context=_CANONICAL)
    if canonical_bytes(contract) != data:
        raise canonical.NotCanonical("not the canonical form of its contract")
    return contract


def digest(contract: DataContract) -> str:
    """Return the SHA-256 of the canonical bytes as 64 hex digits: the contract's identity, whatever its name."""
    return canonical.digest(canonical_bytes(contract))


def _hexed(value: Any) -> Any:
    if isinstance(value, float):
        return (value + 0.0).hex()
    if isinstance(value, dict):
        return {key: _hexed(item) for key, item in value.items()}
    return [_hexed(item) for item in value] if isinstance(value, list | tuple) else value


def _feature_columns(contract: DataContract) -> Iterator[FeatureColumn]:
    for column in contract.columns:
        if isinstance(column, TextIdColumn) or column.encoding == "none" or column.name == contract.label.column:
            continue
        yield column


def _names(column: FeatureColumn) -> list[str]:
    names = [column.name]
    if isinstance(column, CategoryColumn):
        names = [f"{column.name}={level}" for level in column.levels[column.first_level == "dropped" :]]
    return [*names, f"{column.name} missing"] if column.missing.rule == "indicator" else names


C = TypeVar("C", bound=_Column)


def _check_range(span: tuple[Any, Any] | None) -> None:
    if span is not None and span[0] > span[1]:
        raise ValueError("the range ends before it begins")


def _check_constant(column: C, fits: bool) -> C:
    if not fits:
        raise ValueError("the constant for a missing value doesn't fit the column's type or categories")
    return column


def _check_label(contract: DataContract) -> None:
    column = contract.column(contract.label.column)
    values = contract.label.positive or contract.label.classes or ()
    if column.missing.rule in ("impute", "indicator"):
        raise ValueError("a missing label can't be imputed; use `drop-row` or `refuse`")
    if isinstance(column, CategoryColumn):
        possible = ", ".join(column.levels)
        unknown = [value for value in values if value not in column.levels]
    elif isinstance(column, BooleanColumn):
        possible = "true, false"
        unknown = [value for value in values if value not in ("true", "false")]
    elif isinstance(column, IntegerColumn):
        possible = "whole numbers"
        unknown = [value for value in values if not re.fullmatch(r"0|-?[1-9][0-9]{0,15}", value)]
    else:
        raise ValueError("the label column must be a category, an integer or a boolean")
    if unknown:
        raise ValueError(f"the label value {unknown[0]!r} is not a value of column {column.name} ({possible})")
    if contract.label.column == contract.entity:
        raise ValueError("the label column can't be the entity column")
