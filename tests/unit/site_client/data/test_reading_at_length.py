"""A long file is read in memory that doesn't grow with its rows, and stops at once at Ctrl-C."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from site_client.data.data_map import plain_map
from site_client.data.definition import Definition, SplitByHash
from site_client.data.intake import find, take_in
from tests.support import data_files as files

MEASURE = """
import resource, sys
from pathlib import Path
from site_client.data.data_map import plain_map
from site_client.data.definition import Definition, SplitByHash
from site_client.data.intake import find, take_in
from tests.support import data_files as files

columns = [
    {"name": "a", "type": "number"},
    {"name": "code", "type": "category", "categories": ["x", "y"]},
    {"name": "label", "type": "integer"},
]
rule = files.contract(columns)
definition = Definition(rule, plain_map(rule), None, SplitByHash(share=0.2, key=b"k" * 32))
intake = take_in(find(Path(sys.argv[1]), definition), definition)
print(intake.report.rows_used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def long_file(path: Path, rows: int) -> Path:
    with path.open("w", encoding="ascii") as file:
        file.write("a,code,label,note\n")
        for i in range(rows):
            file.write(
                f"{i * 7919 % 1000003 / 16},{'xy'[i % 2]},{i % 3 % 2},{'free text that nobody asked for ' * 4}\n"
            )
    return path


def measured(path: Path) -> tuple[int, int]:
    """Return rows read, and the process's largest memory in KiB."""
    code = textwrap.dedent(MEASURE)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True, timeout=850
    )
    rows, memory = done.stdout.split()
    return int(rows), int(memory)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_rows_take_little_more_memory_than_their_numbers(tmp_path: Path) -> None:
    few, base_kib = measured(long_file(tmp_path / "few.csv", 1000))
    many, peak_kib = measured(long_file(tmp_path / "many.csv", 1_000_000))
    assert (few, many) == (1000, 1_000_000)
    assert (tmp_path / "many.csv").stat().st_size > 140_000_000
    # 3 features, label, unit, side and digest are 37 bytes a row; twice that while arrays are compared at the end.
    assert (peak_kib - base_kib) * 1024 < 100 * 1_000_000


def test_an_interrupt_ends_the_reading_at_once(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows(30_000)))
    definition = Definition(files.blood(), plain_map(files.blood()), None, SplitByHash(share=0.2, key=files.KEY))
    told: list[int] = []

    def interrupt(done_bytes: int, total_bytes: int) -> None:
        told.append(done_bytes)
        assert total_bytes == path.stat().st_size
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(find(path, definition), definition, interrupt)
    assert len(told) == 3
    assert told == sorted(told)
