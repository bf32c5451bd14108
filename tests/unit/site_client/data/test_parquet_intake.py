"""Parquet whose parts drift: each is read under the contract, whatever the types and order of the others."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from federation.contract import DataContract
from site_client.data.data_map import plain_map
from site_client.data.intake import Intake
from tests.support import data_files as files

WARDS = files.contract(
    [
        {"name": "patient_id", "type": "text-id"},
        {"name": "ward", "type": "integer", "missing": {"rule": "impute", "value": 0}},
        {"name": "crea", "type": "number"},
        {"name": "label", "type": "integer"},
    ]
)


def part(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def whole(path: Path, ward: Any, label: Any = (0, 1), crea: Any = (0.9, 1.1)) -> Path:
    return part(path, patient_id=[f"{path.stem}{i}" for i in range(2)], ward=ward, crea=list(crea), label=label)


def read(path: Path, rule: DataContract = WARDS) -> Intake:
    return files.read(path, rule, plain_map(rule, parquet=True))


def refusal(path: Path, rule: DataContract = WARDS) -> str:
    return files.refusal(path, rule, plain_map(rule, parquet=True)).message


def test_integers_floats_nulls_dictionaries_and_truth_values_are_the_same_values(tmp_path: Path) -> None:
    whole(tmp_path / "a.parquet", [3, 4], [0, 1])
    whole(tmp_path / "b.parquet", pa.array([3.0, None]), [0, 1])
    whole(tmp_path / "c.parquet", pa.nulls(2), [0, 1])
    whole(tmp_path / "d.parquet", pa.array([3, 4], pa.int8()).dictionary_encode(), pa.array([False, True]))
    whole(tmp_path / "e.parquet", pa.array(["3.00", "4.00"]).cast(pa.decimal128(5, 2)), [0, 1])
    features = read(tmp_path).prepared.features[:, 0].tolist()
    assert features == [3, 4, 3, 0, 0, 0, 3, 4, 3, 4]


@pytest.mark.parametrize("swapped", [False, True])
def test_the_types_of_one_part_do_not_depend_on_which_part_comes_first(tmp_path: Path, swapped: bool) -> None:
    names = ["b", "a"] if swapped else ["a", "b"]
    whole(tmp_path / f"{names[0]}.parquet", [3, 4])
    whole(tmp_path / f"{names[1]}.parquet", pa.array([5.0, None]))
    wards = read(tmp_path).prepared.features[:, 0].tolist()
    assert sorted(wards) == [0, 3, 4, 5]


def test_text_where_a_number_is_declared_names_file_column_and_row(tmp_path: Path) -> None:
    whole(tmp_path / "a.parquet", [3, 4])
    whole(tmp_path / "b.parquet", ["3A", "4"])
    assert "column ward: is text where a number is declared: b.parquet row 1 (`3A`)" in refusal(tmp_path)


def test_a_renamed_label_is_refused_with_the_file_and_never_filled_with_nothing(tmp_path: Path) -> None:
    whole(tmp_path / "a.parquet", [3, 4])
    part(tmp_path / "b.parquet", patient_id=["x"], ward=[1], crea=[1.3], Label=[1], note=["x"])
    error = files.refusal(tmp_path, WARDS, plain_map(WARDS, parquet=True))
    assert "b.parquet: the column label is missing" in error.message
    assert "`Label`" in error.hint


def test_what_was_found_before_an_unreadable_part_is_told_with_it(tmp_path: Path) -> None:
    whole(tmp_path / "a.parquet", ["3A", "4"])
    part(tmp_path / "b.parquet", patient_id=["x"], crea=[1.3], label=[1])
    message = refusal(tmp_path)
    assert "b.parquet: the column ward is missing" in message
    assert "a.parquet row 1 (`3A`)" in message


def test_a_part_without_rows_is_harmless(tmp_path: Path) -> None:
    whole(tmp_path / "a.parquet", [3, 4])
    version = read(tmp_path).version
    empty = pa.table({"patient_id": ["x"], "ward": [1], "crea": [1.0], "label": [1]}).slice(0, 0)
    pq.write_table(empty, tmp_path / "b.parquet")
    assert read(tmp_path).version == version


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = whole(tmp_path / "a.parquet", [3, 4])
    files.write(path, path.read_bytes()[:-20])
    assert "a.parquet: the Parquet file is cut short or damaged" in refusal(path)


def test_damage_in_the_middle_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    count = 20_000
    columns = {
        "patient_id": [f"p{i * 7919}" for i in range(count)],
        "ward": list(range(count)),
        "crea": [i / 7 for i in range(count)],
        "label": [i % 2 for i in range(count)],
    }
    pq.write_table(pa.table(columns), path, compression="zstd")
    data = bytearray(path.read_bytes())
    for place in range(2000, len(data) // 2, 3):
        data[place] ^= 0xFF
    files.write(path, bytes(data))
    assert "a.parquet: the Parquet file is cut short or damaged" in refusal(path)


def test_csv_and_parquet_of_the_same_rows_are_one_version(tmp_path: Path) -> None:
    rows = files.blood_rows()
    names = files.BLOOD_HEADER.split(",")
    typed = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    columns = {
        "patient_id": typed["patient_id"],
        "age": [int(text) for text in typed["age"]],
        "sex": pa.array(typed["sex"]).dictionary_encode(),
        "hb_g_dl": [float(text) for text in typed["hb_g_dl"]],
        "crea_mg_dl": [float(text) for text in typed["crea_mg_dl"]],
        "label": pa.array([int(text) for text in typed["label"]], pa.int8()),
    }
    text = files.write(tmp_path / "a.csv", files.csv_text(rows))
    binary = part(tmp_path / "a.parquet", **columns)
    assert read(binary, files.blood()).version == files.read(text, files.blood()).version


def test_not_a_number_is_missing_and_infinity_is_refused(tmp_path: Path) -> None:
    path = whole(tmp_path / "a.parquet", [3, 4], crea=(float("nan"), 1.0))
    assert "column crea: has no value: row 1" in refusal(path)
    whole(path, [3, 4], crea=(float("inf"), 1.0))
    assert "column crea: is not a finite number: row 1" in refusal(path)


def test_a_declared_mark_is_missing_in_a_typed_column_too(tmp_path: Path) -> None:
    path = whole(tmp_path / "a.parquet", [999, 4])
    declared = files.data_map(WARDS, format={"kind": "parquet"}, columns={"ward": {"missing": ["999"]}})
    assert files.read(path, WARDS, declared).report.columns[1]["missing"] == 1


def test_a_fraction_in_a_column_of_whole_numbers_is_refused(tmp_path: Path) -> None:
    assert "ward: is not a whole number: row 2 (`4.5`)" in refusal(whole(tmp_path / "a.parquet", [3.0, 4.5]))


STAYS = files.contract(
    [
        {"name": "admitted", "type": "date", "encoding": "days", "origin": "2021-01-01"},
        {"name": "label", "type": "integer"},
    ]
)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_stamp_is_the_day_in_its_own_zone(tmp_path: Path, unit: str) -> None:
    moments = pa.array([dt.datetime(2021, 1, 2, 3, 30), dt.datetime(2021, 1, 3, 23, 59, 59)]).cast(pa.timestamp(unit))
    utc = pa.array([dt.datetime(2021, 1, 3, 3, 30), dt.datetime(2021, 1, 4, 4, 0)]).cast(pa.timestamp(unit, tz="UTC"))
    path = part(tmp_path / "a.parquet", admitted=moments, label=[0, 1])
    assert read(path, STAYS).prepared.features[:, 0].tolist() == [1, 2]
    part(path, admitted=utc.cast(pa.timestamp(unit, tz="America/New_York")), label=[0, 1])
    assert read(path, STAYS).prepared.features[:, 0].tolist() == [1, 2]


def test_a_nested_column_is_refused_by_its_type(tmp_path: Path) -> None:
    assert "is of type list" in refusal(whole(tmp_path / "a.parquet", [[1], [2]]))


def test_parquet_without_a_map_that_says_so_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    error = files.refusal(whole(tmp_path / "a.parquet", [3, 4]), WARDS)
    assert "is a Parquet file" in error.message
    assert "format: {kind: parquet}" in error.hint
