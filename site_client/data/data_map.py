"""The map: how one site's files differ from the federation's data contract; the site's own document, never sent.

A map declares the format of the files (delimiter, encoding, decimal mark, marks for a missing value), and for each
contract column where its value comes from: another name, other codes, another unit with the factor written out, a date
format, or a constant. Nothing is guessed from the data: what isn't declared has a strict default, which is a UTF-8 CSV
file with commas, decimal points, the contract's own column names, and the empty cell alone for a missing value.
"""

import itertools
import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from federation import canonical
from federation.contract import (
    CategoryColumn,
    ColumnName,
    ContractName,
    DataContract,
    DateColumn,
    IntegerColumn,
    NumberColumn,
    Real,
    Strict,
    Text,
)
from federation.edge.documents import nearest
from federation.errors import InvalidInput

SourceName = Annotated[str, Field(min_length=1, max_length=256)]
Cell = Annotated[str, Field(max_length=256)]
Encoding = Literal["utf-8", "utf-16", "cp1252", "iso-8859-1", "iso-8859-15"]
DATE_DIRECTIVES: Final = ("%Y", "%m", "%d", "%-m", "%-d", "%H", "%M", "%S", "%z", "%%")


class CsvFormat(Strict):
    """How the text files are written.

    `missing` lists the marks for a missing value beside the empty cell. `columns` names the columns of a file without a
    header line. `trim` strips blanks around each cell before anything else. `decimal` is a point unless declared;
    declaring it also says that a point is no thousands mark.
    """

    kind: Literal["csv"] = "csv"
    encoding: Encoding = "utf-8"
    delimiter: Literal[",", ";", "\t", "|", ":"] = ","
    quote: Literal['"', "'"] = '"'
    decimal: Literal[".", ","] | None = None
    thousands: Literal[".", ",", "'", "’", " ", "\u00a0", "\u202f"] | None = None
    missing: Annotated[tuple[Cell, ...], Field(max_length=64)] = ()
    columns: Annotated[tuple[SourceName, ...], Field(min_length=1, max_length=16_384)] | None = None
    trim: bool = False

    @property
    def decimal_mark(self) -> str:
        """Return the decimal mark in force."""
        return self.decimal or "."

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.thousands == self.decimal_mark:
            raise ValueError("thousands mark and decimal mark are the same")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ValueError("a column name is listed twice")
        return self


class ParquetFormat(Strict):
    """Parquet files; names and types are in the file. `missing` lists marks in columns of text."""

    kind: Literal["parquet"]
    missing: Annotated[tuple[Cell, ...], Field(max_length=64)] = ()


class JsonLinesFormat(Strict):
    """JSON lines; names and types are in the file, one object a line. `missing` lists marks in values of text."""

    kind: Literal["jsonl"]
    missing: Annotated[tuple[Cell, ...], Field(max_length=64)] = ()


Format = CsvFormat | ParquetFormat | JsonLinesFormat


class UnitConversion(Strict):
    """``contract value = source value × factor + offset``, both written out; `to` is the contract's unit."""

    source: Text = Field(alias="from")
    to: Text
    factor: Annotated[Real, Field(gt=0)]
    offset: Real = 0.0


class ColumnMap(Strict):
    """Where one contract column's value comes from.

    The order of work: trim, missing marks (these and the format's), recode, parse, unit. With `recode`, a value that
    isn't listed is unknown. `constant` is the value of every row, for what a site has by its nature.
    """

    source: SourceName | None = None
    constant: Cell | None = None
    missing: Annotated[tuple[Cell, ...], Field(max_length=64)] = ()
    recode: Annotated[dict[Cell, Cell], Field(max_length=4096)] = Field(default={})
    unit: UnitConversion | None = None
    date_format: Annotated[str, Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        others = (self.source, self.unit, self.date_format)
        if self.constant is not None and (self.recode or self.missing or any(item is not None for item in others)):
            raise ValueError("a constant has no source, missing marks, codes, unit or date format")
        if self.date_format is not None:
            date_pattern(self.date_format)
        return self


class SplitMap(Strict):
    """The file's own column that says which rows are for training, and its codes."""

    column: SourceName | None = None
    train: Annotated[tuple[Cell, ...], Field(min_length=1, max_length=64)] = ("train",)
    held_out: Annotated[tuple[Cell, ...], Field(min_length=1, max_length=64)] = ("held-out",)

    @model_validator(mode="after")
    def _codes_differ(self) -> Self:
        if set(self.train) & set(self.held_out):
            raise ValueError("a code stands for both training and held-out rows")
        return self


class DataMap(Strict):
    """The document ``kind: DataMap``."""

    api_version: Literal["confide/v1"] = Field(alias="apiVersion")
    kind: Literal["DataMap"]
    contract: ContractName
    format: Annotated[Format, Field(discriminator="kind")] = CsvFormat()
    columns: dict[ColumnName, ColumnMap] = Field(default={})
    split: SplitMap = SplitMap()

    def of(self, name: str) -> ColumnMap:
        """Return what the map says on the contract column `name`, its default where it says nothing."""
        return self.columns.get(name, ColumnMap())

    def source(self, name: str) -> str | None:
        """Return the file's column behind the contract column `name`; None where the value is a constant."""
        entry = self.of(name)
        return None if entry.constant is not None else entry.source or name


def plain_map(contract: DataContract, *, parquet: bool = False) -> DataMap:
    """Return the map of a site whose files are as the contract says."""
    return DataMap(
        apiVersion="confide/v1",
        kind="DataMap",
        contract=contract.name,
        format=ParquetFormat(kind="parquet") if parquet else CsvFormat(),
    )


def check_fits(data_map: DataMap, contract: DataContract) -> None:
    """Refuse a map that was written for another contract or maps what the contract doesn't have.

    Raises:
        InvalidInput: With the column, and what to write instead.
    """
    if data_map.contract != contract.name:
        raise InvalidInput("CFD-D03", f"the map is for {data_map.contract}, the contract is {contract.name}")
    names = [column.name for column in contract.columns]
    for name, entry in data_map.columns.items():
        if name not in names:
            guess = nearest(name, names)
            hint = f"did you mean `{guess}`?" if guess else f"columns of the contract: {', '.join(names)}"
            raise InvalidInput("CFD-D03", f"the map has a column {name}, the contract hasn't", hint=hint)
        _check_entry(name, entry, contract)
    sources = [source for name in names if (source := data_map.source(name)) is not None]
    repeated = sorted({source for source in sources if sources.count(source) > 1})
    if repeated:
        raise InvalidInput("CFD-D03", f"two contract columns come from the file's column {repeated[0]}")


def _check_entry(name: str, entry: ColumnMap, contract: DataContract) -> None:
    column = contract.column(name)
    if entry.unit is not None:
        if not isinstance(column, NumberColumn | IntegerColumn):
            raise InvalidInput("CFD-D03", f"column {name} is of type {column.type}, which has no unit")
        if entry.unit.to != column.unit:
            raise InvalidInput(
                "CFD-D03", f"column {name}: the map converts to {entry.unit.to!r}, the contract says {column.unit!r}"
            )
    if entry.date_format is not None and not isinstance(column, DateColumn):
        raise InvalidInput("CFD-D03", f"column {name} is of type {column.type}, which has no date format")
    if isinstance(column, CategoryColumn):
        known = {column.comparable(level) for level in column.levels}
        for value in entry.recode.values():
            if column.comparable(value) not in known and column.other is None:
                guess = nearest(value, column.levels)
                raise InvalidInput(
                    "CFD-D03",
                    f"column {name}: the map recodes to {value!r}, which is no category of the contract",
                    hint=f"did you mean {guess!r}?" if guess else f"categories: {', '.join(column.levels)}",
                )


def meaning_digest(data_map: DataMap) -> str:
    """Return a digest of what the map does to values: not of how the file separates, quotes or encodes them.

    So the same rows written with another delimiter, line end or encoding are the same version of a data set.
    """
    columns = {
        name: entry.model_dump(mode="json", by_alias=True)
        for name, entry in sorted(data_map.columns.items())
        if entry != ColumnMap()
    }
    return canonical.digest(canonical.encode(_hexed({"contract": data_map.contract, "columns": columns})))


def _hexed(value: object) -> object:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: _hexed(item) for key, item in value.items()}
    return [_hexed(item) for item in value] if isinstance(value, list | tuple) else value


def date_pattern(date_format: str) -> re.Pattern[str]:
    """Return the pattern of dates written as `date_format`: exact digits, no names of months, no guessing.

    ``%m`` and ``%d`` are two digits; ``%-m`` and ``%-d`` are one or two. A time of day and an offset (``%z``) may
    follow and are checked, then left out: the day is the day that is written.

    Raises:
        ValueError: An unknown directive, a part missing or twice, or a variable width beside another number.
    """
    widths = {
        "%Y": r"(?P<year>[0-9]{4})",
        "%m": r"(?P<month>[0-9]{2})",
        "%d": r"(?P<day>[0-9]{2})",
        "%-m": r"(?P<month>[0-9]{1,2})",
        "%-d": r"(?P<day>[0-9]{1,2})",
        "%H": r"(?P<hour>[01][0-9]|2[0-3])",
        "%M": r"(?P<minute>[0-5][0-9])",
        "%S": r"(?P<second>[0-5][0-9])",
        "%z": r"(?P<offset>Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])",
        "%%": "%",
    }
    parts = re.findall(r"%-?.|[^%]+|%$", date_format)
    unknown = [part for part in parts if part.startswith("%") and part not in widths]
    if unknown:
        raise ValueError(f"date format: {unknown[0]} isn't known; known are {' '.join(DATE_DIRECTIVES)}")
    for part, following in itertools.pairwise(parts):
        if part in ("%-m", "%-d") and (following[0] == "%" or following[0].isdigit()):
            raise ValueError(f"date format: {part} must be followed by a separator")
    directives = [part.replace("-", "") for part in parts if part.startswith("%") and part != "%%"]
    if len(set(directives)) != len(directives) or not {"%Y", "%m", "%d"} <= set(directives):
        raise ValueError("date format: year (%Y), month (%m) and day (%d) must each occur once")
    return re.compile("".join(widths.get(part, re.escape(part)) for part in parts) + r"\Z")
