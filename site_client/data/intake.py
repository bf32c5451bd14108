"""One pass over a data set: each row is decoded under the contract, counted, hashed and encoded, or refused by line.

The pass holds the encoded numbers, eight bytes a row to find duplicates, and one entry for each entity; never the rows.
It goes on to the end after a fault, so that a person gets all kinds of faults at once, and then refuses: nothing is
registered, cached or changed. A row is left out only where the contract says so, and then counted with its reason.
"""

import array
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from federation.contract import Column, NumberColumn, digest, width
from federation.edge.documents import printable
from federation.errors import InvalidInput
from site_client.data.cells import BadCell, compile_column
from site_client.data.column_intake import ColumnIntake, KnownCell, ThousandsWatch
from site_client.data.csv_reader import open_csv
from site_client.data.data_map import CsvFormat, JsonLinesFormat, check_fits, meaning_digest
from site_client.data.definition import Definition, SplitByColumn, SplitByHash
from site_client.data.encode import RowEncoder, label_text
from site_client.data.json_lines_reader import open_json_lines
from site_client.data.parquet_reader import open_parquet
from site_client.data.report import (
    MAX_EXAMPLES,
    ColumnSummary,
    Dropped,
    IntakeReport,
    Problems,
)
from site_client.data.source import Part, Progress, RawFile, Table, find_parts
from site_client.data.version import VersionHash, is_held_out, row_place

FEW_ROWS: Final = 20
OPTED_OUT: Final = "opted out"
_NO_UNIT: Final = -1


@dataclass(frozen=True, slots=True)
class Prepared:
    """The encoded rows: features float32 (rows, width), labels and units int64 (rows), held_out bool (rows).

    Rows with the same number in `units` are one unit's; the numbers run from 0 in order of first appearance.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Intake:
    """A data set that was read without fault."""

    version: str
    report: IntakeReport
    files: tuple[RawFile, ...]
    prepared: Prepared


def take_in(path_parts: list[Part], definition: Definition, progress: Progress | None = None) -> Intake:
    """Read all of `path_parts` under `definition` and return what was found.

    Raises:
        InvalidInput: A file can't be read, or rows break the contract; nothing is kept of it.
    """
    check_fits(definition.data_map, definition.contract)
    reading = _Reading(definition)
    files: list[RawFile] = []
    total = sum(part.size_bytes for part in path_parts)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total)

    for part in path_parts:
        try:
            with _open(part, definition, reading.needed, on_bytes) as table:
                reading.take(table, several=len(path_parts) > 1)
        except InvalidInput as fault:
            # The file can't be read further; what was found up to here is as true as it was.
            raise reading.with_problems(fault) from None
        reading.report.blank_lines += table.blank_lines
        if table.raw is not None:
            files.append(table.raw)
    return reading.finish(files)


def find(path: Any, definition: Definition) -> list[Part]:
    """Return the parts of the data set at `path` that the map's format asks for; see `source.find_parts`."""
    return find_parts(path, definition.data_map.format.kind)


def _open(part: Part, definition: Definition, needed: list[str], on_bytes: Any) -> AbstractContextManager[Table]:
    form = definition.data_map.format
    if isinstance(form, CsvFormat):
        return open_csv(part, form, needed, on_bytes)
    if isinstance(form, JsonLinesFormat):
        return open_json_lines(part, needed, on_bytes)
    return open_parquet(part, needed, on_bytes)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that the contract accepts: its cells, the hash of their values, whose it is, and its side of the split."""

    cells: list[KnownCell]
    identity: bytes
    entity: str | None
    held_out: bool


class _Reading:
    """The state of one pass."""

    def __init__(self, definition: Definition) -> None:
        contract, data_map = definition.contract, definition.data_map
        form = data_map.format
        watches = isinstance(form, CsvFormat) and form.decimal is None and form.thousands is None
        self.definition = definition
        self.encoder = RowEncoder(contract)
        self.plans = [
            ColumnIntake(
                position,
                column,
                data_map.source(column.name),
                compile_column(column, data_map.of(column.name), form),
                self.encoder,
                ColumnSummary(column),
                ThousandsWatch() if watches and isinstance(column, NumberColumn) else None,
            )
            for position, column in enumerate(contract.columns)
        ]
        names = [column.name for column in contract.columns]
        self.entity_at = names.index(definition.entity) if definition.entity in names else None
        self.needed = [plan.source for plan in self.plans if plan.source is not None]
        for extra in (definition.entity if self.entity_at is None else None, self._split_column()):
            if extra is not None and extra not in self.needed:
                self.needed.append(extra)
        self.label_position = names.index(contract.label.column)
        self.version = VersionHash(
            contract_digest=digest(contract), map_digest=meaning_digest(data_map), split=definition.split_name()
        )
        self.report = IntakeReport(contract.name, digest(contract))
        self.report.unit = "record" if definition.entity is None else "entity"
        self.problems = Problems()
        self.dropped: dict[str, Dropped] = {}
        self.features = array.array("f")
        self.labels = array.array("q")
        self.units = array.array("q")
        self.held_out = array.array("b")
        self.digests = array.array("Q")
        self.places = array.array("Q")
        self.entities: dict[str, int] = {}
        self.entity_side = array.array("b")
        self.label_names: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def _split_column(self) -> str | None:
        return self.definition.split.column if isinstance(self.definition.split, SplitByColumn) else None

    def take(self, table: Table, *, several: bool) -> None:
        """Take all rows of one part."""
        places = {name: index for index, name in enumerate(table.columns)}
        indices = [None if plan.source is None else places[plan.source] for plan in self.plans]
        owner = self.definition.entity if self.entity_at is None else None
        entity_index = None if owner is None else places[owner]
        column = self._split_column()
        split_index = None if column is None else places[column]
        wide = len(table.columns)
        used = set(self.needed)
        for name in table.columns:
            if name not in used and printable(name) not in self.report.ignored_columns:
                self.report.ignored_columns.append(printable(name))
        prefix = f"{table.part.name} {table.line_word} " if several else f"{table.line_word} "
        for line, row in table.rows:
            self.report.rows_read += 1
            place = f"{prefix}{line}"
            if len(row) != wide and not table.typed:
                self.problems.add(
                    "", f"rows that don't have {wide} values as the header", place, shown=f"{len(row)} values"
                )
                continue
            cells = self._decode(row, indices, place)
            if cells is None:
                continue
            entity = self._entity(cells, None if entity_index is None else row[entity_index], place)
            if entity is not None and self._opted_out(entity):
                self._drop(OPTED_OUT, place)
                continue
            identity = hashlib.sha256(b"".join([known.bytes for known in cells])).digest()
            held_out = self._side(identity, entity, None if split_index is None else row[split_index], place)
            if held_out is not None and (entity is not None or self.definition.entity is None):
                self._use(_Row(cells, identity, entity, held_out), place)

    def _decode(self, row: list[Any], indices: list[int | None], place: str) -> list[KnownCell] | None:
        """Return the row's values, or None where it is dropped or faulty; every cell is looked at."""
        cells: list[KnownCell] = []
        usable = True
        reason = ""
        for plan, index in zip(self.plans, indices, strict=True):
            cell = None if index is None else row[index]
            column = plan.column
            try:
                known = plan.look(cell)
            except BadCell as bad:
                if bad.outside and column.outside == "drop-row":
                    reason = reason or f"{column.name} outside"
                else:
                    self.problems.add(column.name, bad.kind, place, shown=cell, hint=bad.hint)
                    usable = False
                continue
            cells.append(known)
            if known.value is not None:
                continue
            if column.missing.rule == "drop-row":
                reason = reason or f"missing {column.name}"
            elif column.missing.rule == "refuse":
                self.problems.add(
                    column.name, "has no value", place, hint="the contract's `missing` rule of this column is `refuse`"
                )
                usable = False
        if reason and usable:
            self._drop(reason, place)
        return cells if usable and not reason else None

    def _drop(self, reason: str, place: str) -> None:
        entry = self.dropped.setdefault(reason, Dropped(reason))
        entry.count += 1
        self.report.rows_dropped += 1
        if len(entry.examples) < MAX_EXAMPLES:
            entry.examples.append(place)

    def _entity(self, cells: list[KnownCell], cell: Any, place: str) -> str | None:
        if self.definition.entity is None:
            return None
        found = cell if self.entity_at is None else cells[self.entity_at].value
        text = "" if found is None else str(found)
        if self.entity_at is None and isinstance(self.definition.data_map.format, CsvFormat):
            form = self.definition.data_map.format
            text = text.strip() if form.trim else text
            text = "" if text in form.missing else text
        if not text:
            hint = "every row needs to say whose it is; correct the file, or register it without --entity"
            self.problems.add(self.definition.entity, "has no entity", place, hint=hint)
            return None
        return text

    def _opted_out(self, entity: str) -> bool:
        opted = self.definition.opt_outs
        return opted is not None and opted.covers(entity)

    def _side(self, identity: bytes, entity: str | None, cell: Any, place: str) -> bool | None:
        """Return whether the row is held out, or None where nobody can tell."""
        split = self.definition.split
        if isinstance(split, SplitByHash):
            unit = identity if entity is None else entity.encode("utf-8")
            return is_held_out(split.key, unit, split.share)
        codes = self.definition.data_map.split
        text = "" if cell is None else str(cell)
        if text in codes.train or text in codes.held_out:
            return text in codes.held_out
        hint = f"codes: {', '.join((*codes.train, *codes.held_out))}; the map's `split` declares others"
        self.problems.add(split.column, "is no code of the split", place, shown=text, hint=hint)
        return None

    def _use(self, row: _Row, place: str) -> None:
        label_value = row.cells[self.label_position].value
        label = self.encoder.label(label_value)
        if label is None:
            column = self.definition.contract.label.column
            self.problems.add(column, "is no class of the label", place, shown=label_text(label_value))
            return
        unit = len(self.labels) if row.entity is None else self._unit(row.entity, row.held_out, place)
        if unit == _NO_UNIT:
            return
        self.version.add(row.identity, entity=row.entity, held_out=row.held_out)
        self.digests.append(int.from_bytes(row.identity[:8], "big"))
        if row.entity is not None and self.definition.order_key is not None:
            self.places.append(row_place(self.definition.order_key, row.identity))
        for plan, known in zip(self.plans, row.cells, strict=True):
            self.features.extend(known.features)
            plan.use(known)
        self.labels.append(label)
        self.units.append(unit)
        self.held_out.append(row.held_out)
        self.label_names[row.held_out][label_text(label_value)] += 1
        self.report.rows_used += 1

    def _unit(self, entity: str, held_out: bool, place: str) -> int:
        number = self.entities.setdefault(entity, len(self.entities))
        if number == len(self.entity_side):
            self.entity_side.append(held_out)
        elif self.entity_side[number] != held_out:
            hint = "all rows of one entity belong to one side; correct the split column, or use --held-out"
            self.problems.add(str(self.definition.entity), "is in training and held-out rows both", place, hint=hint)
            return _NO_UNIT
        return number

    # --- after the last row ---------------------------------------------------------------------------------

    def finish(self, files: list[RawFile]) -> Intake:
        """Return the intake, or refuse the data set with everything that was found."""
        self._refuse_ambiguous_points()
        if self.problems.count:
            raise self._refusal(files)
        report = self.report
        report.dropped = sorted(self.dropped.values(), key=lambda entry: -entry.count)
        if report.rows_used == 0:
            raise InvalidInput("CFD-D15", self._unusable())
        self._check_row_rules()
        prepared = self._prepared()
        self._fill_report(prepared, files)
        return Intake(self.version.hexdigest(), report, tuple(files), prepared)

    def _refuse_ambiguous_points(self) -> None:
        for plan in self.plans:
            if plan.watch is not None and plan.watch.is_ambiguous:
                self.problems.add(
                    plan.column.name,
                    "has values where the point may be a decimal or a thousands mark",
                    "such as",
                    shown=plan.watch.example,
                    hint='declare `format.decimal: "."`, or `decimal: ","` with `thousands: "."`, in the map',
                )

    def with_problems(self, fault: InvalidInput) -> InvalidInput:
        """Return `fault`, with the problems found before it."""
        if not self.problems.count:
            return fault
        return InvalidInput(fault.code, f"{fault.message}; before it {self.problems.message()}", hint=fault.hint)

    def _refusal(self, files: list[RawFile]) -> InvalidInput:
        ragged = all(not group.column for group in self.problems.groups.values())
        split = {"is in training and held-out rows both", "is no code of the split", "has no entity"}
        divided = all(group.kind in split for group in self.problems.groups.values())
        code = "CFD-D13" if ragged else "CFD-D16" if divided else "CFD-D14"
        one_file = f"{files[0].name}: " if len(files) == 1 else ""
        return InvalidInput(code, one_file + self.problems.message(), hint=self.problems.hint())

    def _unusable(self) -> str:
        report = self.report
        if report.rows_read == 0:
            return "no usable rows (0 read): the file has a header and no rows"
        return f"no usable rows ({report.rows_read} read, {report.rows_dropped} dropped: {report.reasons()})"

    def _check_row_rules(self) -> None:
        report, rules = self.report, self.definition.contract.rows
        wished = self.dropped[OPTED_OUT].count if OPTED_OUT in self.dropped else 0  # no fault of the rows
        if report.rows_dropped - wished > rules.most_dropped_share * (report.rows_read - wished):
            raise InvalidInput(
                "CFD-D14",
                f"{report.rows_dropped} of {report.rows_read} rows would be dropped ({report.reasons()}), the contract "
                f"allows a share of {rules.most_dropped_share}",
            )
        numbers = np.frombuffer(self.digests, dtype=np.uint64)
        report.duplicate_rows = len(numbers) - len(np.unique(numbers))
        if report.duplicate_rows and rules.duplicates == "refuse":
            raise InvalidInput(
                "CFD-D14", f"{report.duplicate_rows} rows repeat another row, which the contract doesn't allow"
            )

    def _prepared(self) -> Prepared:
        rows = self.report.rows_used
        features = np.frombuffer(self.features, dtype=np.float32).reshape(rows, width(self.definition.contract))
        if not np.isfinite(features).all():
            raise InvalidInput(
                "CFD-D14",
                "a feature is too large for a 32-bit number",
                hint="the contract's column needs a range or a clamp",
            )
        labels, units = np.frombuffer(self.labels, dtype=np.int64), np.frombuffer(self.units, dtype=np.int64)
        held_out = np.frombuffer(self.held_out, dtype=np.int8).astype(np.bool_)
        if self.places:
            order = np.argsort(np.frombuffer(self.places, dtype=np.uint64), kind="stable")
            return Prepared(features[order], labels[order], units[order], held_out[order])
        return Prepared(features, labels, units, held_out)

    def _fill_report(self, prepared: Prepared, files: list[RawFile]) -> None:
        report = self.report
        report.version = self.version.hexdigest()
        report.columns = [plan.figures() for plan in self.plans]
        report.files = [asdict(file) for file in files]
        for held_out, figures in ((False, report.train), (True, report.held_out)):
            chosen = prepared.held_out == held_out
            figures.rows = int(chosen.sum())
            figures.units = len(np.unique(prepared.units[chosen]))
            figures.labels = dict(sorted(self.label_names[held_out].items()))
        if self.definition.entity is not None:
            counts = np.bincount(prepared.units)
            report.rows_per_unit = dict(_histogram(counts))
        report.warnings = list(self._warnings(prepared))

    def _warnings(self, prepared: Prepared) -> Iterator[str]:
        report = self.report
        train, held_out = report.train, report.held_out
        if train.rows == 0:
            raise InvalidInput("CFD-D16", "no row is for training", hint="see --split and --held-out")
        if len(np.unique(prepared.labels[~prepared.held_out])) == 1:
            yield "the training rows are all of one class"
        if held_out.rows == 0:
            yield "no row is held out: metrics of this site will be not available"
        if train.units < FEW_ROWS:
            yield f"only {train.units} units to train on"
        for plan in self.plans:
            if plan.summary.is_constant and plan.source is not None and self._is_feature(plan.column):
                yield f"column {plan.column.name} has the same value in every row"
        if report.duplicate_rows:
            yield f"{report.duplicate_rows} rows repeat another row"
        if report.rows_dropped > report.rows_read / 2:
            yield f"{report.rows_dropped} of {report.rows_read} rows were dropped ({report.reasons()})"
        if isinstance(self.definition.split, SplitByColumn) and _share_both_sides(self.digests, self.held_out):
            yield "some rows are equal to a row on the other side of the split"

    def _is_feature(self, column: Column) -> bool:
        return column.encoding != "none" and column.name != self.definition.contract.label.column


def _share_both_sides(digests: "array.array[int]", sides: "array.array[int]") -> bool:
    numbers, held_out = np.frombuffer(digests, dtype=np.uint64), np.frombuffer(sides, dtype=np.bool_)
    return bool(len(np.intersect1d(numbers[held_out], numbers[~held_out])))


def _histogram(counts: npt.NDArray[np.int64]) -> Iterator[tuple[str, int]]:
    """Return how many units have 1, 2, 3–4, 5–8 … rows."""
    low, high = 1, 1
    while low <= counts.max():
        found = int(((counts >= low) & (counts <= high)).sum())
        if found:
            yield (str(low) if low == high else f"{low}-{high}"), found
        low, high = high + 1, high * 2
