"""JSON lines: one object a line, in constant memory; a name that a line leaves out has no value there.

Nothing is repaired: a name twice in one object, a number that isn't finite, a nested value where a column is needed, a
line that isn't an object or isn't UTF-8 refuses the file with its line.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from federation.edge.documents import printable
from federation.errors import InvalidInput
from site_client.data.csv_reader import missing_column
from site_client.data.source import HashedFile, Part, Table

MAX_LINE_BYTES: Final = 1 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_HINT: Final = 'write one flat object a line, such as {"age": 63, "sex": "F"}'


class _NotRead(ValueError):
    """What is wrong with a line, in words."""


@contextmanager
def open_json_lines(part: Part, needed: Iterable[str], on_bytes: Callable[[int], None]) -> Iterator[Table]:
    """Give the table of one file with the columns `needed`; names of the first object that nobody needs come after.

    Raises:
        InvalidInput: Not readable; also while rows are read, for a line that is no flat object, and after the last
            row for a column that no line has.
    """
    wanted = list(needed)
    with HashedFile(part, on_bytes) as stream:
        lines = _objects(io.BufferedReader(stream, 1 << 16), part)
        first = next(lines, None)
        if first is None:
            raise InvalidInput("CFD-D15", f"{part.name}: no usable rows (0 read): the file has no object")
        others = [name for name in first[1] if name not in wanted]
        table = Table(part, [*wanted, *others], iter(()), line_word="line", typed=True)
        table.rows = _rows(first, lines, wanted, part)
        yield table
        table.raw = stream.facts(part.name)


def _rows(
    first: tuple[int, dict[str, Any]], rest: Iterator[tuple[int, dict[str, Any]]], wanted: list[str], part: Part
) -> Iterator[tuple[int, list[Any]]]:
    absent = set(wanted)
    names = dict.fromkeys(first[1])
    row: tuple[int, dict[str, Any]] | None = first
    while row is not None:
        number, found = row
        absent -= found.keys()
        values = [found.get(name) for name in wanted]
        for name, value in zip(wanted, values, strict=True):
            if isinstance(value, dict | list):
                raise InvalidInput(
                    "CFD-D13", f"{part.name}, line {number}: {printable(name)} is a list or an object", hint=_HINT
                )
        yield number, values
        row = next(rest, None)
    if absent:
        raise missing_column(part, min(absent), list(names))


def _objects(stream: io.BufferedReader, part: Part) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise InvalidInput("CFD-D13", f"{part.name}, line {number}: longer than {MAX_LINE_BYTES} bytes")
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line.strip():
            continue
        try:
            yield number, _object(line)
        except UnicodeDecodeError as problem:
            byte = problem.object[problem.start]
            raise InvalidInput(
                "CFD-D12", f"{part.name}, line {number}: byte 0x{byte:02x} is not utf-8", hint="save the file as UTF-8"
            ) from None
        except _NotRead as problem:
            raise InvalidInput("CFD-D13", f"{part.name}, line {number}: {problem}", hint=_HINT) from None
        except (ValueError, RecursionError):
            raise InvalidInput("CFD-D13", f"{part.name}, line {number}: no JSON object", hint=_HINT) from None


def _object(line: bytes) -> dict[str, Any]:
    found = json.loads(line.decode("utf-8"), object_pairs_hook=_once, parse_constant=_not_finite)
    if not isinstance(found, dict):
        raise _NotRead("a value that is no object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NotRead("a name stands twice in one object")
    return found


def _not_finite(word: str) -> Any:
    raise _NotRead(f"{word} is no number of JSON")
