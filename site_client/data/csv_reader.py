"""CSV, read strictly and in constant memory, with the number of the line that a person sees in an editor.

The csv module of the standard library does the parsing in its strict mode; around it stand the encoding (declared,
checked byte by byte, an offending byte shown in hex with its line), the byte-order mark, the header, and the hints for
a wrong delimiter. Nothing is replaced, padded, skipped or guessed; empty lines are passed over and counted.
"""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from federation.edge.documents import nearest, printable
from federation.errors import InvalidInput
from site_client.data.data_map import CsvFormat
from site_client.data.source import HashedFile, Part, Table

MAX_LINE_CHARACTERS: Final = 8 << 20
_NUL: Final = "\x00"
_C1: Final = re.compile("[\x80-\x9f]")
_DELIMITERS: Final = (";", ",", "\t", "|")
_SHOWN: Final = {"\t": "\\t"}


@contextmanager
def open_csv(part: Part, form: CsvFormat, needed: Iterable[str], on_bytes: Callable[[int], None]) -> Iterator[Table]:
    """Give the table of one CSV file, its header checked for the columns `needed`.

    Raises:
        InvalidInput: Not readable, not in the declared encoding, no header, or columns missing; also while rows are
            read, for a bad byte or a quote that doesn't close.
    """
    with HashedFile(part, on_bytes) as stream:
        encoding = _encoding(part, form)
        text = io.TextIOWrapper(io.BufferedReader(stream, 1 << 16), encoding=encoding, errors="strict", newline="")
        lines = _lines(text, part, form.encoding, encoding)
        # A field may be as long as the limit of the csv module, which is one for the whole process and left as it is.
        reader = csv.reader(lines, delimiter=form.delimiter, quotechar=form.quote, strict=True)
        if form.columns is not None:
            columns = list(form.columns)
        else:
            columns = _header(reader, part, form)
        _check_columns(columns, list(needed), part, form)
        table = Table(part, columns, iter(()))
        table.rows = _rows(reader, table, part)
        yield table
        table.raw = stream.facts(part.name)


def _encoding(part: Part, form: CsvFormat) -> str:
    with part.path.open("rb") as file:
        start = file.read(4)
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise InvalidInput("CFD-D12", f"{part.name} is UTF-32, which is not read", hint="save it as UTF-8")
    utf16 = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if utf16 and form.encoding != "utf-16":
        raise InvalidInput(
            "CFD-D12",
            f"{part.name} is UTF-16, declared is {form.encoding}",
            hint="declare `format.encoding: utf-16` in the map, or save the file as UTF-8",
        )
    if form.encoding == "utf-16":
        if not utf16:
            raise InvalidInput("CFD-D12", f"{part.name} is declared as UTF-16 and has no byte-order mark")
        return "utf-16"
    if start.startswith(codecs.BOM_UTF8) and form.encoding != "utf-8":
        raise InvalidInput("CFD-D12", f"{part.name} begins with the mark of UTF-8, declared is {form.encoding}")
    return "utf-8-sig" if form.encoding == "utf-8" else form.encoding


def _lines(text: io.TextIOWrapper, part: Part, declared: str, encoding: str) -> Iterator[str]:
    number = 0
    single_byte = declared.startswith("iso-8859")
    while True:
        try:
            line = text.readline(MAX_LINE_CHARACTERS)
        except UnicodeDecodeError as problem:
            raise _bad_byte(problem, part, declared, encoding, number) from None
        except OSError as problem:
            raise InvalidInput("CFD-D10", f"{part.name}: {problem.strerror or 'read error'} at line {number}") from None
        if not line:
            return
        number += 1
        if len(line) == MAX_LINE_CHARACTERS:
            raise InvalidInput(
                "CFD-D13", f"{part.name}, line {number}: longer than {MAX_LINE_CHARACTERS} characters; this is no table"
            )
        if _NUL in line:
            raise InvalidInput(
                "CFD-D12",
                f"{part.name}, line {number}: a byte 0x00; this is no {declared} text",
                hint="check the export",
            )
        if single_byte and (found := _C1.search(line)):
            raise InvalidInput(
                "CFD-D12",
                f"{part.name}, line {number}: byte 0x{ord(found[0]):02x} is a control character in {declared}",
                hint="the file is probably Windows-1252: declare `format.encoding: cp1252` in the map",
            )
        yield line


def _bad_byte(problem: UnicodeDecodeError, part: Part, declared: str, encoding: str, lines_read: int) -> InvalidInput:
    # `object` begins where the last complete piece ended, so the lines before it have all been handed out.
    before = problem.object[: problem.start]
    newlines = len(re.findall(rb"\r\n|\r|\n", before if encoding != "utf-16" else before.replace(b"\x00", b"")))
    byte = problem.object[problem.start]
    hint = "save the file as UTF-8, or declare its encoding, such as `format: {encoding: cp1252}`, in the map"
    return InvalidInput(
        "CFD-D12", f"{part.name}, line {lines_read + newlines + 1}: byte 0x{byte:02x} is not {declared}", hint=hint
    )


def _header(reader: Any, part: Part, form: CsvFormat) -> list[str]:
    for row in _guarded(reader, part):
        if row:
            names = [name.strip() for name in row] if form.trim else row
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise InvalidInput("CFD-D13", f"{part.name}: the header has {printable(repeated[0])!r} twice")
            return names
    raise InvalidInput("CFD-D13", f"{part.name}: there is no header line", hint="check the export")


def _check_columns(columns: list[str], needed: list[str], part: Part, form: CsvFormat) -> None:
    missing = [name for name in needed if name not in columns]
    if not missing:
        return
    if len(columns) == 1 and len(needed) > 1:
        counts = {mark: columns[0].count(mark) for mark in _DELIMITERS if mark != form.delimiter}
        mark, count = max(counts.items(), key=lambda item: item[1])
        hint = f'delimiter: "{_SHOWN.get(mark, mark)}" (declare it under `format` in the map)' if count else ""
        raise InvalidInput(
            "CFD-D13",
            f"{part.name}: 1 column found with the delimiter {_SHOWN.get(form.delimiter, form.delimiter)!r}, "
            f"{len(needed)} expected",
            hint=hint,
        )
    raise missing_column(part, missing[0], columns)


def missing_column(part: Part, name: str, columns: list[str]) -> InvalidInput:
    """Return the error for a column that a file lacks, with the column that was probably meant."""
    guess = nearest(name, columns)
    hint = (
        f"the file has `{printable(guess)}`: declare `columns: {{…: {{source: {printable(guess)}}}}}` in the map"
        if guess
        else f"the file has: {printable(', '.join(columns))}"
    )
    return InvalidInput("CFD-D13", f"{part.name}: the column {printable(name)} is missing", hint=hint)


def _rows(reader: Any, table: Table, part: Part) -> Iterator[tuple[int, list[Any]]]:
    begins = reader.line_num + 1
    for row in _guarded(reader, part):
        if row:
            yield begins, row
        else:
            table.blank_lines += 1
        begins = reader.line_num + 1


def _guarded(reader: Any, part: Part) -> Iterator[list[str]]:
    while True:
        begins = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            at = reader.line_num
            span = f"lines {begins} to {at}" if at > begins else f"line {begins}"
            raise InvalidInput(
                "CFD-D13",
                f"{part.name}, {span}: {problem}",
                hint="a quote opens here and is not closed or not doubled; check `format.quote` and the export",
            ) from None
        yield row
