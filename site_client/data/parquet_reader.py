"""Parquet, each file read on its own under the contract, so that a folder's meaning doesn't depend on file order.

Columns are taken by name; a missing one is an error that names the file, never a column of nulls. Integers, floats,
decimals, truth values, all-null columns and dictionaries of them are values; text where a number is declared is refused
with file, column and row. Time stamps become the day as written, in their own zone.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from federation.edge.documents import printable
from federation.errors import InvalidInput
from site_client.data.csv_reader import missing_column
from site_client.data.source import Part, Table, cannot_read, hash_file

BATCH_ROWS: Final = 4096


@contextmanager
def open_parquet(part: Part, needed: Iterable[str], on_bytes: Callable[[int], None]) -> Iterator[Table]:
    """Give the table of one Parquet file with the columns `needed` alone; `columns` lists all that it has.

    Raises:
        InvalidInput: Not readable, cut short, or a column is missing or of a kind that has no values for a contract.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    raw = hash_file(part)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(pq.ParquetFile(part.path, page_checksum_verification=True))
            names = list(file.schema_arrow.names)
        except OSError as problem:
            raise _io_fault(part, problem) from None
        except (pa.ArrowException, UnicodeDecodeError):
            raise _broken(part) from None
        wanted = list(needed)
        for name in wanted:
            if name not in names:
                raise missing_column(part, name, names)
            if names.count(name) > 1:
                raise InvalidInput("CFD-D13", f"{part.name}: the column {printable(name)} occurs twice")
        table = Table(
            part, [*wanted, *(name for name in names if name not in wanted)], iter(()), line_word="row", typed=True
        )
        table.rows = _rows(file, wanted, part, on_bytes)
        yield table
        table.raw = raw


def _io_fault(part: Part, problem: OSError) -> InvalidInput:
    # Arrow raises OSError without an error number for pages that it can't unpack.
    return _broken(part) if problem.errno is None else cannot_read(part.path, problem)


def _broken(part: Part) -> InvalidInput:
    return InvalidInput(
        "CFD-D10", f"{part.name}: the Parquet file is cut short or damaged", hint="copy or export the file again"
    )


def _rows(file: Any, wanted: list[str], part: Part, on_bytes: Callable[[int], None]) -> Iterator[tuple[int, list[Any]]]:
    import pyarrow as pa

    total = max(file.metadata.num_rows, 1)
    number = told = 0
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False):
            columns = [_values(batch.column(name), name, part) for name in wanted]
            for values in zip(*columns, strict=True):
                number += 1
                yield number, list(values)
            done = part.size_bytes * number // total
            on_bytes(done - told)
            told = done
    except OSError as problem:
        raise _io_fault(part, problem) from None
    except (pa.ArrowException, UnicodeDecodeError):
        raise _broken(part) from None
    on_bytes(part.size_bytes - told)


def _values(array: Any, name: str, part: Part) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_timestamp(kind):
        local = pc.local_timestamp(array) if kind.tz else array
        array = pc.cast(local, pa.date32(), safe=False)
    elif not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
        or pa.types.is_date(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    ):
        raise InvalidInput(
            "CFD-D13", f"{part.name}: the column {printable(name)} is of type {printable(kind)}, which has no values"
        )
    values: list[Any] = array.to_pylist()
    return values
