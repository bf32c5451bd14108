"""What people and programs see of entries: one encoder per output, so that no text from outside does more than show.

Terminal: characters that control, hide or reorder appear as ``\\u{202e}``. CSV: RFC 4180 with every cell quoted, and
one leading apostrophe before whatever a spreadsheet would take for a formula. JSON: ASCII only, so that one entry
stays one line however a reader splits lines. Pure, but for rich's layout of a table.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from audit.checked import Row
from audit.columns import COLUMNS, NUMBERS, column, epsilon_text, format_time
from audit.visible import visible

_FORMULA: Final = frozenset("=+-@|%\uff1d\uff0b\uff0d\uff20")
_QUOTED: Final = frozenset("'\t\r\n")


def csv_cell(text: str) -> str:
    """Return what goes between the quotes: neutral in a spreadsheet; dropping one leading ``'`` gives the text back."""
    if text and text[0] in _QUOTED:
        return "'" + text
    for character in text:
        if character.isspace() or unicodedata.category(character) in ("Cc", "Cf"):
            continue
        return "'" + text if character in _FORMULA else text
    return text


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def csv_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield RFC 4180 records with their CRLF, the header first."""
    names = ("index", "time", "leaf_hash", *COLUMNS)
    yield ",".join(map(_quoted, names)) + "\r\n"
    for row in rows:
        cells: list[str] = [row.name, format_time(row.event["t_us"]), csv_cell(row.leaf_hash)]
        for name in COLUMNS:
            value = column(row.event, name)
            text = "" if value is None else str(value)
            cells.append(text if name in NUMBERS and isinstance(value, int) else csv_cell(text))
        yield ",".join(map(_quoted, cells)) + "\r\n"


def row_value(row: Row) -> dict[str, Any]:
    """Return a row of `confide/audit-entries/v1`."""
    value: dict[str, Any] = {
        "index": row.index,
        "time": format_time(row.event["t_us"]),
        "leaf_hash": row.leaf_hash,
        "event": row.event,
    }
    if not row.interpreted:
        value["interpreted"] = False
    if row.name != str(row.index):
        value["entry"] = row.name
    return value


def _shown(row: Row, name: str) -> str:
    value = column(row.event, name)
    if value is None:
        return ""
    text = str(value)
    if name == "version":
        return text[:15]
    return text[:12] + "…" if name == "actor" and text.startswith("p1:") else text


def table_of(rows: Iterable[Row]) -> Table:
    """Return the rows as a table: what a person scans, with the first 8 bytes of each leaf hash."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = {
        "index": "right",
        "time": "left",
        "leaf": "left",
        "action": "left",
        "decision": "left",
        "actor": "left",
        "job": "left",
        "round": "right",
        "dataset": "left",
        "purpose": "left",
        "under": "left",
        "code": "left",
        "epsilon": "right",
        "bytes out": "right",
    }
    for name, justify in columns.items():
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        eps_nano = column(row.event, "eps_nano")
        cells = [
            row.name,
            format_time(row.event["t_us"]),
            row.leaf_hash.removeprefix("sha256:")[:16],
            _shown(row, "action"),
            _shown(row, "decision") if row.interpreted else "not interpreted",
            _shown(row, "actor"),
            _shown(row, "job"),
            _shown(row, "round"),
            _shown(row, "dataset"),
            _shown(row, "purpose"),
            _shown(row, "approval") or _shown(row, "rule"),
            _shown(row, "code"),
            epsilon_text(eps_nano) if isinstance(eps_nano, int) else "",
            _shown(row, "egress_bytes"),
        ]
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table
