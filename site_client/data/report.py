"""What an intake found, for the site's own people: the report, its figures, and the problems with their lines; pure.

Counts, examples and line numbers are about people's data. They are kept in the site's home and shown to its own people;
no other party gets them, and no log does.
"""

import datetime as dt
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from federation.contract import BooleanColumn, CategoryColumn, Column
from federation.edge.documents import printable
from site_client.data.cells import Value

MAX_EXAMPLES: Final = 5
MAX_GROUPS: Final = 200
MAX_GROUPS_SHOWN: Final = 6
_SHOWN_CHARACTERS: Final = 40


@dataclass(slots=True)
class ProblemGroup:
    """All cells or rows with the same fault: how many, and the first few with their place."""

    column: str
    kind: str
    hint: str
    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    def sentence(self) -> str:
        """Return one sentence: what is wrong, how often, where first."""
        where = ", ".join(f"{place} (`{shown}`)" if shown else place for place, shown in self.examples)
        more = "" if self.count <= len(self.examples) else f" and {self.count - len(self.examples)} more"
        subject = f"column {printable(self.column)}: " if self.column else ""
        return f"{subject}{self.kind}: {where}{more}"


class Problems:
    """Collects what breaks the contract, bounded in memory however many cells are wrong."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], ProblemGroup] = {}
        self.count = 0

    def add(self, column: str, kind: str, place: str, *, shown: object = "", hint: str = "") -> None:
        """Add one fault at `place`, such as ``line 12``."""
        self.count += 1
        group = self.groups.get((column, kind))
        if group is None:
            if len(self.groups) >= MAX_GROUPS:
                return
            group = self.groups[column, kind] = ProblemGroup(column, kind, hint)
        group.count += 1
        if len(group.examples) < MAX_EXAMPLES:
            text = printable(shown)
            group.examples.append((place, text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"))

    def message(self) -> str:
        """Return the problems as one line."""
        groups = list(self.groups.values())
        shown = "; ".join(group.sentence() for group in groups[:MAX_GROUPS_SHOWN])
        more = "" if len(groups) <= MAX_GROUPS_SHOWN else f"; and {len(groups) - MAX_GROUPS_SHOWN} kinds more"
        return shown + more

    def hint(self) -> str:
        """Return the first hint that any of them has."""
        return next((group.hint for group in self.groups.values() if group.hint), "")


@dataclass(slots=True)
class Dropped:
    """Rows left out for one reason that the contract allows."""

    reason: str
    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FoldFigures:
    """One side of the split."""

    rows: int = 0
    units: int = 0
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class IntakeReport:
    """What was read and what became of it. `as_json` is what the registry keeps and `--format json` prints."""

    contract: str
    contract_digest: str
    version: str = ""
    rows_read: int = 0
    rows_used: int = 0
    rows_dropped: int = 0
    blank_lines: int = 0
    duplicate_rows: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    ignored_columns: list[str] = field(default_factory=list)
    columns: list[dict[str, Any]] = field(default_factory=list)
    unit: str = "record"
    train: FoldFigures = field(default_factory=FoldFigures)
    held_out: FoldFigures = field(default_factory=FoldFigures)
    rows_per_unit: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)

    def reasons(self) -> str:
        """Return why rows were dropped, as ``missing chol 30, missing fbs 8``."""
        return ", ".join(f"{entry.reason} {entry.count}" for entry in self.dropped)


class ColumnSummary:
    """The figures of one column, in constant memory: enough for a person to see that the right file was read."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.missing_count = 0
        self.count = 0
        self._low: Any = None
        self._high: Any = None
        self._mean = 0.0
        self._squares = 0.0
        self._levels: Counter[str] = Counter()
        self._first: Value = None
        self._constant = True
        self._counts_levels = isinstance(column, CategoryColumn | BooleanColumn)

    def add(self, value: Value, times: int = 1) -> None:
        """Take the value of `times` used rows."""
        if value is None:
            self.missing_count += times
            return
        if self.count == 0:
            self._first = value
        elif value != self._first:
            self._constant = False
        self.count += times
        if self._counts_levels:
            self._levels[str(value)] += times
        elif not isinstance(value, str):
            self._extend(value, times)

    def _extend(self, value: float | dt.date, times: int) -> None:
        if self._low is None or value < self._low:
            self._low = value
        if self._high is None or value > self._high:
            self._high = value
        if not isinstance(value, dt.date):
            # Welford 1962, with weights (West 1979): one pass, no cancellation.
            step = value - self._mean
            self._mean += step * times / self.count
            self._squares += times * step * (value - self._mean)

    @property
    def is_constant(self) -> bool:
        """Return whether two or more rows all have the same value, missing counting as one."""
        return self._constant and self.count + self.missing_count > 1 and 0 in (self.count, self.missing_count)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values; an identifier's values are never among them."""
        figures: dict[str, Any] = {
            "name": self.column.name,
            "type": self.column.type,
            "values": self.count,
            "missing": self.missing_count,
        }
        if self._counts_levels:
            figures["levels"] = dict(sorted(self._levels.items()))
        elif isinstance(self._low, dt.date):
            figures |= {"least": self._low.isoformat(), "greatest": self._high.isoformat()}
        elif self._low is not None:
            deviation = math.sqrt(self._squares / self.count)
            figures |= {"least": self._low, "greatest": self._high, "mean": self._mean, "deviation": deviation}
        return figures
