"""One moment of a stored log, read from its database in memory independent of its size.

What comes back is as the database has it, and only its form is made sure of: bytes are bytes and numbers are numbers.
A damaged page of the file costs the entries on it and no others.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Select, func, literal_column, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement, ColumnElement

from audit import statements, tables, tiles
from audit.database import cause, is_malformed
from audit.errors import LogDamaged, LogUnreadable, ProofRefused
from audit.filters import Filters
from audit.projection import Row
from audit.statements import PAGE
from audit.stored import Head, StoredEntry, WriterRow

# The column that finds the fewest rows first; the others are compared row by row.
_FINDING: Final = ("job", "dataset", "actor", "site")
_COMPARED: Final = ("job", "dataset", "actor", "site", "version", "purpose", "decision", "action")


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else b""


def _number(value: Any) -> int:
    return value if type(value) is int else -1


class Snapshot:
    """The log as the transaction of `connection` sees it; a `StoredLog`, and a `TileReader` that isn't trusted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _fetch(self, statement: ClauseElement, *values: Any) -> Sequence[Sequence[Any]]:
        try:
            return statements.fetch(self._connection, statement, *values)
        except DBAPIError as problem:
            raise self._damaged(problem) from None

    def _damaged(self, problem: DBAPIError) -> Exception:
        # A file whose tables are gone is as damaged as one whose pages are.
        if is_malformed(problem) or self._connection.dialect.name == statements.SQLITE:
            return LogDamaged(f"the log's database can't be read: {cause(problem)}", code="CFD-A02")
        return LogUnreadable(f"the log's database can't be read: {cause(problem)}", hint="see whether it runs")

    def head(self) -> Head | None:
        """Return the head, None where there is none that can be read."""
        for size, root, t_us, running in self._fetch(statements.HEAD):
            if type(size) is int and size >= 0 and type(t_us) is int:
                return Head(size, _bytes(root), t_us, bool(running))
        return None

    # --- entries ----------------------------------------------------------------------------------------------

    def entry(self, index: int) -> StoredEntry | None:
        """Return the row of one entry, None where there is none."""
        return next(self.entries(index, index + 1), None)

    def entries(self, first: int, end: int) -> Iterator[StoredEntry]:
        """Yield the rows from `first` up to `end` in order; a missing row is left out, a damaged one says so."""
        while first < end:
            try:
                rows = statements.fetch(self._connection, statements.ENTRIES, first, end)
            except DBAPIError as problem:
                if not is_malformed(problem):
                    raise self._damaged(problem) from None
                stop = min(first + PAGE, end)
                yield from self._one_by_one(first, stop)
                first = stop
                continue
            for row in rows:
                yield StoredEntry(_number(row[0]), _bytes(row[1]), _bytes(row[2]), _bytes(row[3]))
            if len(rows) < PAGE:
                return
            first = _number(rows[-1][0]) + 1

    def _one_by_one(self, first: int, end: int) -> Iterator[StoredEntry]:
        for index in range(first, end):
            try:
                rows = statements.fetch(self._connection, statements.ENTRY, index)
            except DBAPIError as problem:
                yield StoredEntry(index, b"", b"", b"", damage=cause(problem))
                continue
            for row in rows:
                yield StoredEntry(index, _bytes(row[1]), _bytes(row[2]), _bytes(row[3]))

    def entries_at(self, indices: list[int]) -> dict[int, StoredEntry]:
        """Return the rows at up to `PAGE` places, by index; a missing row is left out, a damaged one says so."""
        asked = statements.filled_up(indices)
        try:
            rows = statements.fetch(self._connection, statements.entries_at(len(asked)), *asked)
        except DBAPIError as problem:
            if not is_malformed(problem):
                raise self._damaged(problem) from None
            return {row.index: row for index in indices for row in self._one_by_one(index, index + 1)}
        found = (StoredEntry(_number(row[0]), _bytes(row[1]), _bytes(row[2]), _bytes(row[3])) for row in rows)
        return {row.index: row for row in found}

    def last_index(self) -> int:
        """Return the index of the last row, -1 where there is none."""
        return _number(self._fetch(statements.LAST_INDEX)[0][0])

    def find_id(self, event_id: bytes) -> tuple[int, bytes] | None:
        """Return index and leaf of the entry under an event's id."""
        for index, leaf in self._fetch(statements.ENTRY_OF_ID, event_id):
            return _number(index), _bytes(leaf)
        return None

    def find_ids(self, event_ids: list[bytes]) -> dict[bytes, tuple[int, bytes]]:
        """Return index and leaf of the entries under some of `event_ids`, of which there are any, by id."""
        asked = statements.filled_up(event_ids)
        rows = self._fetch(statements.entries_of_ids(len(asked)), *asked)
        return {_bytes(event_id): (_number(index), _bytes(leaf)) for index, leaf, event_id in rows}

    def repeated_ids(self) -> list[tuple[int, int]]:
        """Return an entry and the first before it under the same id, for each that has one."""
        # Not by the unique index, which somebody with the file could have removed or bent.
        blind = " NOT INDEXED" if self._connection.dialect.name == statements.SQLITE else ""
        text = (
            f"SELECT max(idx), min(idx) FROM entry{blind} GROUP BY event_id HAVING count(*) > 1"  # noqa: S608
            " ORDER BY 1 LIMIT 1000"
        )
        try:
            rows = self._connection.exec_driver_sql(text).fetchall()
        except DBAPIError as problem:
            raise self._damaged(problem) from None
        return [(_number(later), _number(earlier)) for later, earlier in rows]

    # --- tree, writers, trail ---------------------------------------------------------------------------------

    def tile(self, level: int, n: int, width: int) -> bytes:
        """Return the first `width` hashes of a tile.

        Raises:
            ProofRefused: There is no such tile, or it has fewer hashes.
        """
        hashes = b"".join(_bytes(row[0]) for row in self._fetch(statements.TILE, level, n))
        if not hashes and level == 0 and width < tiles.HASHES_PER_TILE:  # the right edge is the last rows of entries
            first = n * tiles.HASHES_PER_TILE
            hashes = b"".join(_bytes(row[0]) for row in self._fetch(statements.LEAF_HASHES, first, first + width))
        wanted = tiles.HASH_BYTES * width
        if len(hashes) < wanted:
            where = tiles.tile_path(level, n, width)
            raise ProofRefused(f"{where} is missing or shorter than it was", code="CFD-A03")
        return hashes[:wanted]

    def writers(self) -> list[WriterRow]:
        """Return the writers by name."""
        return [
            WriterRow(str(name), _bytes(key_id), _number(next_seq), _bytes(last_hash), _number(last_index))
            for name, key_id, next_seq, last_hash, last_index in self._fetch(statements.WRITERS)
        ]

    def trail(self) -> list[tuple[int, bytes]]:
        """Return index and leaf of entry 0 and of all that change keys, in order."""
        return [(_number(index), _bytes(leaf)) for index, leaf in self._fetch(statements.TRAIL)]

    def trail_paths(self) -> dict[int, bytes]:
        """Return, by index, the hashes inside of the tile of each leaf of the trail whose tile was pruned."""
        return {_number(index): _bytes(path) for index, path in self._fetch(statements.TRAIL_PATHS)}

    def first_index(self) -> int:
        """Return the index of the first row, -1 where there is none."""
        return _number(self._fetch(statements.FIRST_INDEX)[0][0])

    def newest_quorum(self) -> bytes:
        """Return the newest checkpoint that reached its quorum, empty where there is none."""
        return b"".join(_bytes(row[0]) for row in self._fetch(statements.NEWEST_QUORUM))

    def quorums(self) -> dict[int, bytes]:
        """Return every kept checkpoint that reached its quorum, by size."""
        return {_number(size): _bytes(note) for size, note in self._fetch(statements.QUORUMS)}

    def witnessed(self) -> list[tuple[str, int, bytes, bytes]]:
        """Return origin, size, root and note of what this party last cosigned of each other log."""
        return [
            (str(origin), _number(size), _bytes(root), _bytes(note))
            for origin, size, root, note in self._fetch(statements.WITNESSED)
        ]

    def evidence(self) -> list[tuple[str, str, bytes]]:
        """Return origin, kind and notes of what was kept against other logs, the oldest first."""
        return [(str(origin), str(kind), _bytes(notes)) for origin, kind, notes in self._fetch(statements.EVIDENCE)]

    def checkpoints(self) -> list[tuple[int, bytes, bool]]:
        """Return size, note and whether it reached a quorum of each checkpoint kept with cosignatures, by size."""
        return [(_number(size), _bytes(note), bool(met)) for size, note, met in self._fetch(statements.CHECKPOINTS)]

    # --- projections ------------------------------------------------------------------------------------------

    def next_projected(self) -> int:
        """Return the index from which on entries have no row in the projection yet."""
        return max(0, _number(self._fetch(statements.NEXT_PROJECTED)[0][0]))

    def projected(self, first: int, end: int) -> dict[int, Row]:
        """Return the rows of the projection from `first` up to `end`, by index."""
        return {_number(row[0]): tuple(row) for row in self._fetch(statements.PROJECTED, first, end)}

    def left_open(self) -> list[int]:
        """Return the openings of data that have no end."""
        return [_number(row[0]) for row in self._fetch(statements.LEFT_OPEN)]

    def is_committed(self, value: str) -> bool:
        """Return whether an entry names this commitment."""
        return bool(self._fetch(statements.IS_COMMITTED, value))

    def matching(self, filters: Filters, first: int, end: int) -> Iterator[list[Row]]:
        """Yield the rows from `first` up to `end` that `filters` ask for, in order, a page of them at a time."""
        first = max(first, 0 if filters.since_us is None else self._first_at(filters.since_us, end))
        end = end if filters.until_us is None else self._first_at(filters.until_us, end)
        actions = self._actions(filters.action)
        while first < end:
            pages = [self._page(filters, action, first, end) for action in actions]
            page = sorted((row for rows in pages for row in rows), key=lambda row: _number(row[0]))[:PAGE]
            if page:
                yield page
            if len(page) < PAGE:
                return
            first = _number(page[-1][0]) + 1

    def count_matching(self, filters: Filters, first: int, end: int) -> int:
        """Return how many rows `matching` would yield."""
        first = max(first, 0 if filters.since_us is None else self._first_at(filters.since_us, end))
        end = end if filters.until_us is None else self._first_at(filters.until_us, end)
        wanted = (
            select(func.count()).where(*_conditions(filters, action, first, end))
            for action in self._actions(filters.action)
        )
        return sum(_number(self._built(statement)[0][0]) for statement in wanted)

    def _page(self, filters: Filters, action: str | None, first: int, end: int) -> list[Row]:
        statement = select(tables.event).where(*_conditions(filters, action, first, end))
        return [tuple(row) for row in self._built(statement.order_by(tables.event.c.idx).limit(PAGE))]

    def _built(self, statement: Select[Any]) -> Sequence[Sequence[Any]]:
        try:
            return statements.fetch_built(self._connection, statement)
        except DBAPIError as problem:
            raise self._damaged(problem) from None

    def _first_at(self, t_us: int, end: int) -> int:
        """Return the first index at or after a time: times never decrease within a log."""
        low, high = 0, end
        while low < high:
            middle = (low + high) // 2
            rows = self._fetch(statements.TIME_AT, middle)
            if rows and _number(rows[0][1]) < t_us:
                low = _number(rows[0][0]) + 1
            else:
                high = middle
        return low

    def _actions(self, wanted: str | None) -> list[str | None]:
        """Return the actions to look for one by one: those of a family, as far as the log has them; None for all."""
        if wanted is None or "." in wanted:
            return [wanted]
        found: list[str | None] = []
        action = f"{wanted}."
        while True:
            action = self._fetch(statements.NEXT_ACTION, action)[0][0]
            if not isinstance(action, str) or not action.startswith(f"{wanted}."):
                return found
            found.append(action)


def _conditions(filters: Filters, action: str | None, first: int, end: int) -> list[ColumnElement[bool]]:
    """Return what holds for the rows asked for, so written that the database finds them by one index and in order."""
    column = tables.event.c
    values = {name: getattr(filters, name) for name in _COMPARED} | {"action": action}
    given = {name: value for name, value in values.items() if value is not None}
    finding: str | None = next((name for name in _FINDING if name in given), None)
    if given.get("decision") in ("refused", "failed") and finding not in ("job", "dataset"):
        finding = "decision"
    elif finding in (None, "actor", "site") and action is not None:
        finding = "action"
    conditions = [column.idx >= first, column.idx < end]
    for name, value in given.items():
        # A column inside an expression isn't looked for in its own index, which may find nearly every row.
        conditions.append((column[name] if name == finding else column[name].concat("")) == value)
    if finding == "decision":
        conditions.append(column.decision != literal_column("'allowed'"))  # so that the partial index is one
    return conditions


def first_leaf(snapshot: Snapshot) -> bytes:
    """Return the leaf of the log's first entry, from the trail where that went to an archive; empty if it is lost."""
    stored = snapshot.entry(0)
    return dict(snapshot.trail()).get(0, b"") if stored is None else stored.leaf
