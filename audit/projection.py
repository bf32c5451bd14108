"""What lists show of an entry, as columns that a database can search; pure.

A projection finds entries and proves nothing: whoever shows a row compares it with the leaf that it was made from.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from audit.canonical import Event
from audit.columns import COLUMNS, NUMBERS, PARTS

NAMES: Final = ("idx", "t_us", *COLUMNS)
_LONGEST: Final = {"action": 64, "decision": 8, "version": 71, "code": 16}
_LIMIT: Final = 128
_COMMITMENT: Final = 46

Row = tuple[str | int | None, ...]


_PLACES: Final = tuple((name, *PARTS.get(name, (name, None)), _LONGEST.get(name, _LIMIT)) for name in COLUMNS)
"""Of each column: its name, the field and the part of the field that it shows, and how long it may be."""


def row_of(index: int, event: Event) -> Row:
    """Return the row of the entry at `index`, its values in the order of `NAMES`.

    What an entry of a newer version has in another form is left out.
    """
    row: list[str | int | None] = [index, event["t_us"]]
    for name, first, part, longest in _PLACES:
        value: Any = event.get(first)
        if part is not None:
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            fits = type(value) is int if name in NUMBERS else isinstance(value, str) and len(value) <= longest
            value = value if fits else None
        row.append(value)
    row[2] = row[2] or "unknown"
    return tuple(row)


@dataclass(slots=True)
class Projected:
    """What a run of entries adds to the projections.

    Attributes:
        rows: Of `event`.
        budgets: Of `budget_last`; the later entry of a key comes last.
        opened: Openings of data.
        ended: Openings that have an end.
        commitments: Values of the side store that an entry names.
    """

    rows: list[Row] = field(default_factory=list)
    budgets: list[tuple[Any, ...]] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    commitments: list[str] = field(default_factory=list)

    def take(self, index: int, event: Event) -> None:
        """Add the entry at `index`; of an entry whose parts have another form only the row."""
        self.rows.append(row_of(index, event))
        for part in (self._take_reading, self._take_budget, self._take_commitments):
            _leniently(part, index, event)

    def _take_reading(self, index: int, event: Event) -> None:
        match event["action"]:
            case "data.opened" if event["decision"] == "allowed":
                self.opened.append(index)
            case "data.closed" | "data.abandoned":
                self.ended.append(int(event["opened"]))

    def _take_budget(self, index: int, event: Event) -> None:
        if "budget" not in event or "dataset" not in event or event["decision"] != "allowed":
            return
        budget = event["budget"]
        key = (event["dataset"]["id"], budget["policy"], budget["unit"])
        figures = (budget["eps_nano"], budget["delta_e15"])
        more = (budget.get("total_eps_nano"), budget.get("left_eps_nano"))
        if all(type(one) is str for one in key) and all(type(one) is int for one in figures):
            self.budgets.append((*key, index, *figures, *more))

    def _take_commitments(self, _index: int, event: Event) -> None:
        values = event.get("private", {}).values()
        self.commitments.extend(value for value in values if isinstance(value, str) and len(value) <= _COMMITMENT)


def _leniently(take: Callable[[int, Event], None], index: int, event: Event) -> None:
    try:
        take(index, event)
    except (KeyError, TypeError, ValueError, AttributeError):
        return  # an entry of a newer version: its leaf is read, its row shows the common fields
