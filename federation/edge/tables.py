"""Print what a command lists or shows: as a table for people, as JSON or JSON lines for programs.

Rules: the same rows in every format; JSON names its `schema`; nothing that came from outside can move the cursor,
colour the terminal, forge a line or turn the reading direction, since control and direction characters are shown as
escapes. No colour is used, so there is nothing for `NO_COLOR` to switch off.
"""

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TextIO, get_args

Format = Literal["table", "json", "jsonl"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)

# Cc: controls (C0, DEL, C1); Cf: formats (direction marks, zero width, byte-order mark); Zl, Zp: line ends that some
# programs honour; Cs: lone surrogates, which can't be written.
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})


def visible(text: str) -> str:
    """Return `text` on one line, with every character that a terminal could obey shown as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if unicodedata.category(char) in _HIDDEN_CATEGORIES else char for char in text)


def _escape(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(char) in ("W", "F") for char in text)
    marks = sum(unicodedata.combining(char) != 0 for char in text)
    return len(text) + wide - marks


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple, frozenset, set)):
        return ", ".join(_cell(item) for item in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{visible(str(key))}={_cell(item)}" for key, item in value.items()) or "-"
    return visible(str(value))


def _json(value: object) -> str:
    # ASCII only: JSON's own escapes make every hidden character visible; DEL is the one that they leave.
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def print_rows(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    schema: str,
    form: Format = "table",
    to: TextIO | None = None,
) -> None:
    """Print `rows`.

    Args:
        rows: One mapping a row. JSON carries all of its keys, a table the `columns`.
        columns: Keys in the order of the table; their headings are the keys with blanks for underscores.
        schema: Such as ``confide/sites/v1``.
        form: ``table``, ``json`` (one document) or ``jsonl`` (one document a row, streamed).
        to: Where to; standard output by default.
    """
    out = to or sys.stdout
    if form == "jsonl":
        for row in rows:
            out.write(_json({"schema": schema, **row}) + "\n")
    elif form == "json":
        out.write(_json({"schema": schema, "rows": [dict(row) for row in rows]}) + "\n")
    else:
        heading = [column.replace("_", " ") for column in columns]
        cells = [[_cell(row.get(column)) for column in columns] for row in rows]
        widths = [max(_width(line[place]) for line in [heading, *cells]) for place in range(len(columns))]
        for line in [heading, *cells]:
            out.write(_line(line, widths) + "\n")


def print_record(record: Mapping[str, Any], *, schema: str, form: Format = "table", to: TextIO | None = None) -> None:
    """Print one thing: a line for each of its keys, or one JSON document."""
    out = to or sys.stdout
    if form == "table":
        width = max((len(key) for key in record), default=0)
        for key, value in record.items():
            out.write(f"{key.replace('_', ' '):<{width}}  {_cell(value)}".rstrip() + "\n")
    else:
        out.write(_json({"schema": schema, **record}) + "\n")
