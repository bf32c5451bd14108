"""One contract column during an intake: its cells decoded, encoded, counted, and watched for doubtful points.

Codes and rounded measurements repeat, so a text that was seen before is looked up and not decoded again; what is kept
for that is bounded. Which rows are used, and what a fault leads to, is `intake`'s.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from federation.contract import Column
from site_client.data.cells import Decode, Value, looks_like_thousands
from site_client.data.encode import RowEncoder
from site_client.data.report import ColumnSummary
from site_client.data.version import value_bytes

MAX_KNOWN_CELLS: Final = 8192


class ThousandsWatch:
    """Notices a column whose points might be thousands marks, where the map doesn't declare the decimal mark."""

    def __init__(self) -> None:
        self.example: str | None = None
        self._plain = False
        self._decided = False

    def see(self, cell: Any) -> None:
        """Look at one cell."""
        if self._decided or not isinstance(cell, str):
            return
        if "." in cell:
            if looks_like_thousands(cell):
                self.example = self.example or cell
            else:
                self._decided = True
                self.example = None
        elif len(cell.lstrip("+-")) >= 3:
            self._plain = True

    @property
    def is_ambiguous(self) -> bool:
        """Return whether ``1.250`` stands beside ``980``: then nobody can tell what the point means."""
        return self.example is not None and self._plain and not self._decided


@dataclass(slots=True)
class KnownCell:
    """A cell's value with all that a row needs of it; equal texts of a column share one, and are counted in it."""

    value: Value
    bytes: bytes
    features: tuple[float, ...]
    kept: bool
    count: int = 0


@dataclass(slots=True)
class ColumnIntake:
    """One contract column, compiled. Codes and rounded measurements repeat, so texts seen before are looked up."""

    position: int
    column: Column
    source: str | None
    decode: Decode
    encoder: RowEncoder
    summary: ColumnSummary
    watch: ThousandsWatch | None
    known: dict[str, KnownCell] = field(default_factory=dict)

    def look(self, cell: Any) -> KnownCell:
        """Return what `cell` means; raises `BadCell`."""
        if isinstance(cell, str):
            found = self.known.get(cell)
            if found is not None:
                return found
        value = self.decode(cell)
        if self.watch is not None and value is not None:
            self.watch.see(cell)
        encodes = value is not None or self.column.missing.rule in ("impute", "indicator")
        features = self.encoder.cell_features(self.position, value) if encodes else ()
        kept = isinstance(cell, str) and len(self.known) < MAX_KNOWN_CELLS
        known = KnownCell(value, value_bytes(value), features, kept)
        if kept:
            self.known[cell] = known
        return known

    def use(self, known: KnownCell) -> None:
        """Count a used row's cell."""
        if known.kept:
            known.count += 1
        else:
            self.summary.add(known.value)

    def figures(self) -> dict[str, Any]:
        """Return the column's summary over all used rows; asked once, after the last."""
        for known in self.known.values():
            if known.count:
                self.summary.add(known.value, known.count)
        return self.summary.as_json()
