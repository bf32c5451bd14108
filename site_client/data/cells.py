"""From a cell to a value of the contract, or a problem that says what is wrong with it; pure.

A value is what the contract's column type says: float, int, bool, category text, day (`datetime.date`), identifier
text, or None where it is missing. Each column is compiled once into a function; nothing is inferred from other cells.
"""

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable
from typing import Any, Final

from federation.contract import (
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    IntegerColumn,
    NumberColumn,
    TextIdColumn,
)
from site_client.data.data_map import ColumnMap, CsvFormat, Format, date_pattern

Value = float | int | bool | str | dt.date | None
Decode = Callable[[Any], Value]
USUAL_MISSING_MARKS: Final = frozenset(
    [
        "?",
        "-",
        "--",
        ".",
        "*",
        "na",
        "n/a",
        "nan",
        "null",
        "none",
        "nil",
        "#n/a",
        "#na",
        "missing",
        "unknown",
        "unbekannt",
        "k.a.",
        "fehlt",
        "inconnu",
        "999",
        "-9",
        "-99",
        "-999",
    ]
)
_LARGEST_INTEGER: Final = 2**53
_THOUSANDS: Final = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+\Z")


class BadCell(Exception):
    """A cell that breaks the contract. `kind` groups problems, `hint` says what to do about all of its kind.

    `outside` is True where the cell is well written and its value is out of range or of no declared category: the
    contract may drop such a row.
    """

    def __init__(self, kind: str, hint: str = "", *, outside: bool = False) -> None:
        super().__init__(kind)
        self.kind = kind
        self.hint = hint
        self.outside = outside


def compile_column(column: Column, entry: ColumnMap, form: Format) -> Decode:
    """Return the function from a cell of the file (text, or a typed value) to the column's value.

    The function raises `BadCell`, and returns None for a missing value.
    """
    parse = _with_unit(_parser(column, entry, form), entry)
    if entry.constant is not None:
        value = _bounded(column, parse)(entry.constant)
        return lambda _cell: value
    marks = frozenset(("", *form.missing, *entry.missing))
    steps = _bounded(column, _with_recode(column, parse, entry))
    trim = isinstance(form, CsvFormat) and form.trim
    typed = not isinstance(form, CsvFormat) and isinstance(column, NumberColumn | IntegerColumn) and not entry.recode

    def decode(cell: Any) -> Value:
        if isinstance(cell, str):
            text = cell.strip() if trim else cell
            if text in marks:
                return None
            if typed:
                raise BadCell("is text where a number is declared", "write the column as a number, or `recode` it")
            return steps(text)
        if cell is None or (isinstance(cell, float) and math.isnan(cell)) or _written(cell) in marks:
            return None
        return steps(cell)

    return decode


def _parser(column: Column, entry: ColumnMap, form: Format) -> Decode:
    if isinstance(column, NumberColumn):
        return _number(form)
    if isinstance(column, IntegerColumn):
        # With a conversion the written number may have a fraction; `_bounded` asks for a whole result.
        return _number(form) if entry.unit is not None else _integer(form)
    if isinstance(column, BooleanColumn):
        return _boolean
    if isinstance(column, CategoryColumn):
        return _category(column)
    if isinstance(column, DateColumn):
        return _date(entry.date_format)
    return _identifier(column)


def _with_recode(column: Column, parse: Decode, entry: ColumnMap) -> Decode:
    if not entry.recode:
        return parse
    codes = entry.recode
    other = column.other if isinstance(column, CategoryColumn) else None

    def recoded(cell: Any) -> Value:
        found = codes.get(cell if isinstance(cell, str) else _written(cell))
        if found is not None:
            return parse(found)
        if other is not None:
            return other
        raise BadCell(
            "is not among the codes of the map", "add the code to `recode` of this column in the map", outside=True
        )

    return recoded


def _with_unit(parse: Decode, entry: ColumnMap) -> Decode:
    if entry.unit is None:
        return parse
    factor, offset = entry.unit.factor, entry.unit.offset
    return lambda cell: float(parse(cell)) * factor + offset  # type: ignore[arg-type] # numbers only (`check_fits`)


# --- one parser for each type ---------------------------------------------------------------------------------


def _number_pattern(form: Format) -> tuple[re.Pattern[str], str, str]:
    mark, thousands = (form.decimal_mark, form.thousands or "") if isinstance(form, CsvFormat) else (".", "")
    whole = r"[0-9]+" if not thousands else rf"(?:[0-9]{{1,3}}(?:{re.escape(thousands)}[0-9]{{3}})+|[0-9]+)"
    fraction = rf"(?:{re.escape(mark)}[0-9]*)?"
    return (
        re.compile(rf"[+-]?(?:{whole}{fraction}|{re.escape(mark)}[0-9]+)(?:[eE][+-]?[0-9]{{1,3}})?\Z"),
        mark,
        thousands,
    )


def _number(form: Format) -> Decode:
    pattern, mark, thousands = _number_pattern(form)

    def parse(cell: Any) -> float:
        if isinstance(cell, str):
            if not pattern.match(cell):
                raise BadCell("is not a number", _number_hint(cell, form))
            text = cell.replace(thousands, "") if thousands else cell
            value = float(text.replace(mark, "."))
        elif isinstance(cell, int | float | decimal.Decimal):
            value = float(cell)
        else:
            raise BadCell("is not a number")
        if not math.isfinite(value):
            raise BadCell("is not a finite number")
        return value + 0.0

    return parse


def _integer(form: Format) -> Decode:
    number = _number(form)
    plain = re.compile(r"[+-]?[0-9]{1,15}\Z")
    points_undeclared = isinstance(form, CsvFormat) and form.decimal is None and form.thousands is None

    def parse(cell: Any) -> int:
        if isinstance(cell, str) and plain.match(cell):
            return int(cell)
        if isinstance(cell, int):  # truth values count as 1 and 0
            return int(cell)
        if points_undeclared and isinstance(cell, str) and looks_like_thousands(cell):
            hint = 'if the point separates thousands, declare `format: {decimal: ",", thousands: "."}` in the map'
            raise BadCell("is not a whole number", hint)
        return _whole(number(cell))

    return parse


def _whole(value: Any) -> int:
    if value != math.floor(value) or abs(value) > _LARGEST_INTEGER:
        raise BadCell("is not a whole number", "declare the column as `number` in the contract, or correct the file")
    return int(value)


def _number_hint(cell: str, form: Format) -> str:
    stripped = cell.strip()
    if stripped != cell and stripped:
        return "blanks around the value: declare `format.trim: true` in the map"
    if stripped.casefold() in USUAL_MISSING_MARKS:
        return f"if this means a missing value, declare `format.missing: [{stripped!r}]` in the map"
    if isinstance(form, CsvFormat):
        if form.decimal_mark == "." and re.fullmatch(r"[+-]?[0-9]+,[0-9]+", cell):
            return 'if the comma is the decimal mark, declare `format.decimal: ","` in the map'
        if form.decimal_mark == "," and re.fullmatch(r"[+-]?[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]+)?", cell):
            return 'if the point separates thousands, declare `format.thousands: "."` in the map'
        if form.decimal_mark == "." and re.fullmatch(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", cell):
            return 'if the comma separates thousands, declare `format.thousands: ","` in the map'
    return "declare missing marks, codes or the decimal mark in the map, or correct the file"


def _boolean(cell: Any) -> bool:
    """Truth values are written true, false (any case), 1 or 0; everything else is for the map's codes."""
    text = cell.casefold() if isinstance(cell, str) else _written(cell)
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise BadCell("is not true, false, 1 or 0", "declare the codes as `recode` of this column in the map")


def _category(column: CategoryColumn) -> Decode:
    known = {column.comparable(level): level for level in column.levels}
    loose = {level.strip().casefold() for level in column.levels}

    def parse(cell: Any) -> str:
        text = cell if isinstance(cell, str) else _written(cell)
        level = known.get(column.comparable(text), column.other)
        if level is None:
            near = text.strip().casefold() in loose
            raise BadCell(
                "is no category of the contract",
                "it differs by blanks or case only: the contract's `whitespace` and `case` decide, or recode it"
                if near
                else "declare it as a missing mark, recode it in the map, or let the contract have an `other`",
                outside=True,
            )
        return level

    return parse


def _written(cell: Any) -> str:
    """Return a typed value of Parquet as a CSV file would hold it: 3.0 and 3 are both ``3``."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float | decimal.Decimal) and math.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return str(cell)


def _date(date_format: str | None) -> Decode:
    pattern = date_pattern(date_format or "%Y-%m-%d")
    shown = date_format or "%Y-%m-%d"

    def parse(cell: Any) -> dt.date:
        if isinstance(cell, dt.datetime):
            return cell.date()
        if isinstance(cell, dt.date):
            return cell
        found = pattern.match(cell) if isinstance(cell, str) else None
        if found is None:
            raise BadCell(f"is not a date written {shown}", "declare the one `date_format` of this column in the map")
        try:
            return dt.date(int(found["year"]), int(found["month"]), int(found["day"]))
        except ValueError:
            raise BadCell(
                "is a day that doesn't exist", "correct the file, or check the order of day and month"
            ) from None

    return parse


def _identifier(column: TextIdColumn) -> Decode:
    longest = column.max_length

    def parse(cell: Any) -> str:
        text = cell if isinstance(cell, str) else _written(cell)
        if len(text) > longest:
            raise BadCell(f"is longer than {longest} characters")
        return text

    return parse


# --- range ----------------------------------------------------------------------------------------------------


def _bounded(column: Column, decode: Decode) -> Decode:
    """Return `decode` with the range of `column` checked behind it, and whole numbers made whole."""
    if isinstance(column, IntegerColumn):
        inner = decode
        decode = lambda cell: _whole(inner(cell))  # noqa: E731
    span: tuple[Any, Any] | None = None
    if isinstance(column, NumberColumn | IntegerColumn):
        span = column.range
    elif isinstance(column, DateColumn) and column.range is not None:
        span = (dt.date.fromisoformat(column.range[0]), dt.date.fromisoformat(column.range[1]))
    if span is None:
        return decode
    low, high = span
    bounded = decode

    def check(cell: Any) -> Value:
        value = bounded(cell)
        if not low <= value <= high:
            raise BadCell(
                f"is outside {low} to {high}", "check the unit, the decimal mark and the missing marks", outside=True
            )
        return value

    return check


def looks_like_thousands(text: str) -> bool:
    """Return whether `text`, a number with a point, could as well be a whole number with thousands marks."""
    return _THOUSANDS.match(text) is not None
