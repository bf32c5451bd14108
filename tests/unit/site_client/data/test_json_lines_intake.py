"""JSON lines under the contract: the same rows encode as from a CSV file, and a crooked line has its number."""

import json
from pathlib import Path
from typing import Any

import pytest

from federation.errors import InvalidInput
from site_client.data import json_lines_reader
from site_client.data.data_map import DataMap
from site_client.data.intake import Intake
from tests.support import data_files as files

HEADER = files.BLOOD_HEADER.split(",")


def objects(rows: list[list[str]]) -> list[dict[str, Any]]:
    """Return `rows` with numbers as numbers."""
    named = [dict(zip(HEADER, row, strict=True)) for row in rows]
    for one in named:
        one |= {key: json.loads(one[key]) for key in ("age", "hb_g_dl", "crea_mg_dl", "label")}
    return named


def text_of(found: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in found)


def mapping(**fields: Any) -> DataMap:
    return files.data_map(files.blood(), format={"kind": "jsonl"}, **fields)


def read(path: Path) -> Intake:
    return files.read(path, files.blood(), mapping(), entity="patient_id")


def refusal(path: Path) -> InvalidInput:
    return files.refusal(path, files.blood(), mapping())


def test_the_same_rows_encode_as_they_do_from_a_csv_file(tmp_path: Path) -> None:
    rows = files.blood_rows()
    lines = read(files.write(tmp_path / "a.jsonl", "\ufeff" + text_of(objects(rows))))
    table = files.read(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood(), entity="patient_id")
    assert lines.report.rows_used == len(rows)
    assert (lines.prepared.features == table.prepared.features).all()
    assert (lines.prepared.labels == table.prepared.labels).all()


def test_the_order_of_names_other_names_and_empty_lines_change_no_version(tmp_path: Path) -> None:
    found = objects(files.blood_rows())
    turned = [{"note": ["x"], **dict(reversed(one.items()))} for one in found]
    plain = read(files.write(tmp_path / "a.jsonl", text_of(found)))
    other = read(files.write(tmp_path / "b.ndjson", text_of(turned).replace("\n", "\r\n\n")))
    assert other.version == plain.version
    assert other.report.ignored_columns == ["note"]


def test_a_name_left_out_and_null_are_missing_values(tmp_path: Path) -> None:
    found = objects(files.blood_rows())
    del found[3]["label"]
    found[4]["label"] = None
    intake = read(files.write(tmp_path / "a.jsonl", text_of(found)))
    assert [(one.reason, one.count, one.examples) for one in intake.report.dropped] == [
        ("missing label", 2, ["line 4", "line 5"])
    ]


CROOKED = {
    "a list instead of a number": ('{"patient_id": "P1", "age": [3]}', "age is a list or an object", "CFD-D13"),
    "a name twice": ('{"age": 3, "age": 4}', "a name stands twice", "CFD-D13"),
    "no number": ('{"age": NaN}', "NaN is no number", "CFD-D13"),
    "an array": ("[1, 2]", "a value that is no object", "CFD-D13"),
    "cut short": ('{"age": 3', "no JSON object", "CFD-D13"),
    "thousands of brackets": ('{"a": ' + "[" * 100_000, "no JSON object", "CFD-D13"),
    "a number of thousands of digits": ('{"age": ' + "9" * 10_000 + "}", "no JSON object", "CFD-D13"),
}


@pytest.mark.parametrize("name", sorted(CROOKED))
def test_a_crooked_line_is_named(tmp_path: Path, name: str) -> None:
    line, message, code = CROOKED[name]
    start = text_of(objects(files.blood_rows(2)))
    error = refusal(files.write(tmp_path / "a.jsonl", f"{start}{line}\n"))
    assert (message in error.message, "line 3" in error.message, error.code) == (True, True, code)


def test_a_bad_byte_and_a_line_without_end_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(files.write(tmp_path / "a.jsonl", b'{"age": 3}\n{"age": "\xe4"}\n'))
    assert ("line 2: byte 0xe4 is not utf-8" in error.message, error.code) == (True, "CFD-D12")
    monkeypatch.setattr(json_lines_reader, "MAX_LINE_BYTES", 100)
    error = refusal(files.write(tmp_path / "b.jsonl", b'{"age": "' + b"x" * 200 + b'"}\n'))
    assert "line 1: longer than 100 bytes" in error.message


def test_text_where_a_number_is_declared_is_refused_with_its_line(tmp_path: Path) -> None:
    found = objects(files.blood_rows())
    found[1]["age"] = "21"
    error = refusal(files.write(tmp_path / "a.jsonl", text_of(found)))
    assert "text where a number is declared" in error.message
    assert "line 2" in error.message


def test_a_column_that_no_line_has_is_missing(tmp_path: Path) -> None:
    found = [{**one, "Age": one["age"]} for one in objects(files.blood_rows())]
    for one in found:
        del one["age"]
    error = refusal(files.write(tmp_path / "a.jsonl", text_of(found)))
    assert "the column age is missing" in error.message
    assert "Age" in error.hint


def test_an_empty_file_and_one_of_empty_lines_have_no_rows(tmp_path: Path) -> None:
    assert "0 bytes" in refusal(files.write(tmp_path / "a.jsonl", "")).message
    assert "no object" in refusal(files.write(tmp_path / "b.jsonl", "\n\n")).message
