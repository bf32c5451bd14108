"""Data files made to harm: hostile names and cells, bombs and noise end in a refusal that is safe to print."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.errors import InvalidInput
from site_client.data.data_map import plain_map
from site_client.data.registration import SPLIT_KEY
from tests.support import data_files as files

NAMES = [
    b"a\nb.csv",
    b"\x1b]0;owned\x07.csv",
    b"\xff\xfe.csv",
    b"<script>.csv",
    b"=cmd|' C calc'!A0.csv",
    "\u202egnp.csv".encode(),
    b"x" * 250 + b".csv",
    b"-rf.csv",
    b"$(id).csv",
]


@pytest.mark.parametrize("name", NAMES, ids=[repr(name[:12]) for name in NAMES])
def test_a_hostile_file_name_is_read_and_printed_on_one_safe_line(tmp_path: Path, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    rows = files.blood_rows()
    intake = files.read(files.write(path, files.csv_text(rows)), files.blood())
    assert intake.files[0].name.isprintable()
    rows[3][1] = "x"
    message = files.refusal(files.write(path, files.csv_text(rows)), files.blood()).message
    assert message.isprintable()
    assert message.encode("utf-8")
    assert "line 5" in message


CELLS = ["\x1b[2J\x1b[31mred", "\u202e123", "x" * 100_000, "=1+1", "<img src=x>", "\x07", "a\u2028b", "\u0000"]


@pytest.mark.parametrize("cell", CELLS, ids=[repr(cell[:8]) for cell in CELLS])
def test_a_hostile_cell_is_refused_in_a_short_printable_line(tmp_path: Path, cell: str) -> None:
    rows = files.blood_rows()
    rows[3][1] = cell
    message = files.refusal(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood()).message
    assert message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize("header", ["\x1b[31m", "a" * 5000, "\u202e"])
def test_a_hostile_header_is_printable_too(tmp_path: Path, header: str) -> None:
    path = files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows(), f"{header},{header}2,c,d,e,f"))
    error = files.refusal(path, files.blood())
    assert error.message.isprintable()
    assert error.hint.isprintable()
    assert len(error.hint) < 400


def test_a_field_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.write(files.BLOOD_HEADER.encode() + b'\n"')
        for _ in range(64):
            file.write((b"x" * 999 + b"\n") * 1000)
    assert "field larger than field limit" in files.refusal(path, files.blood()).message


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.write(files.BLOOD_HEADER.encode() + b"\n")
        for _ in range(32):
            file.write(b"x" * 1_000_000)
    assert "line 2: longer than 8388608 characters" in files.refusal(path, files.blood()).message


def test_numbers_that_look_harmless_and_are_not_are_refused(tmp_path: Path) -> None:
    odd = ["0x10", "1_000", "١٢", "１２", "1e400", "nan", "inf", "-Infinity", "1 000", "+-1", "1e", ".", "1..2", "½"]
    for text in odd:
        rows = files.blood_rows(3)
        rows[1][3] = text
        message = files.refusal(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood()).message
        assert "hb_g_dl" in message, text


def test_a_link_that_leads_to_itself_is_an_error_and_no_loop(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "a.csv")
    assert files.refusal(tmp_path / "a.csv", files.blood()).code == "CFD-D10"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "again").symlink_to(tmp_path / "folder")
    files.write(tmp_path / "folder" / "b.csv", files.csv_text(files.blood_rows()))
    assert files.read(tmp_path / "folder", files.blood()).report.rows_used == 40


def test_the_key_of_the_division_is_shown_by_nothing(tmp_path: Path) -> None:
    intake = files.read(files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows())), files.blood())
    assert files.KEY.hex() not in repr(intake)
    assert repr(files.KEY) not in repr(intake)
    assert SPLIT_KEY not in repr(intake.report)


@given(st.binary(max_size=600))
@settings(max_examples=200)
def test_any_bytes_after_a_header_are_rows_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.csv"
    files.write(path, files.BLOOD_HEADER.encode() + b"\n" + data)
    try:
        files.read(path, files.blood())
    except InvalidInput as refused:
        assert refused.message.isprintable()  # noqa: PT017 (a refusal is one of two right answers)


@pytest.mark.parametrize("byte", [0x80, 0xC3, 0xFF])
def test_a_parquet_column_whose_name_is_not_text_is_a_damaged_file(tmp_path: Path, byte: int) -> None:
    rule = files.contract([{"name": "age", "type": "integer"}, {"name": "label", "type": "integer"}])
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"age": list(range(50)), "label": [number % 2 for number in range(50)]}), path)
    files.write(path, path.read_bytes().replace(b"age", bytes([byte]) + b"ge"))
    with pytest.raises(InvalidInput) as refused:
        files.read(path, rule, plain_map(rule, parquet=True))
    assert refused.value.code == "CFD-D10"


@given(st.integers(4, 1200), st.integers(0, 255))
@settings(max_examples=100)
def test_any_damage_to_a_parquet_file_is_rows_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.parquet"
    columns = [{"name": "age", "type": "integer"}, {"name": "label", "type": "integer"}]
    rule = files.contract(columns)
    pq.write_table(pa.table({"age": list(range(50)), "label": [i % 2 for i in range(50)]}), path)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = byte
    files.write(path, bytes(data))
    try:
        files.read(path, rule, plain_map(rule, parquet=True))
    except InvalidInput as refused:
        assert refused.message.isprintable()  # noqa: PT017 (a refusal is one of two right answers)
