"""CSV as institutions write it: what is read as meant, and what is refused with line, column and the way out."""

from pathlib import Path

import numpy as np
import pytest

from site_client.data.definition import SplitByColumn, SplitByHash
from site_client.data.intake import Intake
from tests.support import data_files as files


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return files.write(tmp_path / "blood.csv", files.csv_text(files.blood_rows()))


def with_semicolons() -> str:
    rows = [[cell.replace(".", ",") for cell in row] for row in files.blood_rows()]
    return "\n".join([files.BLOOD_HEADER.replace(",", ";"), *(";".join(row) for row in rows)]) + "\n"


# --- encodings and line ends ----------------------------------------------------------------------------------


def test_a_byte_order_mark_changes_neither_rows_nor_version(tmp_path: Path, plain: Path) -> None:
    marked = files.write(tmp_path / "marked.csv", b"\xef\xbb\xbf" + plain.read_bytes())
    assert files.read(marked, files.blood()).version == files.read(plain, files.blood()).version


def test_a_byte_order_mark_before_a_quoted_header_is_no_part_of_the_first_name(tmp_path: Path, plain: Path) -> None:
    quoted = plain.read_text("utf-8").replace("patient_id", '"patient_id"', 1)
    marked = files.write(tmp_path / "marked.csv", "\ufeff" + quoted)
    assert files.read(marked, files.blood()).version == files.read(plain, files.blood()).version


def test_utf_16_is_refused_by_name_and_read_where_it_is_declared(tmp_path: Path, plain: Path) -> None:
    wide = files.write(tmp_path / "wide.csv", plain.read_text("utf-8").encode("utf-16"))
    error = files.refusal(wide, files.blood())
    assert "UTF-16" in error.message
    assert "encoding: utf-16" in error.hint
    declared = files.data_map(files.blood(), form={"encoding": "utf-16"})
    assert files.read(wide, files.blood(), declared).version == files.read(plain, files.blood()).version


def test_windows_line_ends_without_a_last_one_lose_no_row(tmp_path: Path, plain: Path) -> None:
    crlf = files.write(tmp_path / "crlf.csv", plain.read_bytes().replace(b"\n", b"\r\n").rstrip(b"\r\n"))
    intake = files.read(crlf, files.blood())
    assert intake.report.rows_used == 40
    assert intake.version == files.read(plain, files.blood()).version


DIAGNOSES = [
    {"name": "Größe_cm", "type": "integer"},
    {"name": "Diagnose", "type": "text-id"},
    {"name": "label", "type": "integer"},
]
WORDS = ["Müdigkeit", "Ödem \u2013 leicht", "Übelkeit", "Café-au-lait"]


def diagnoses() -> str:
    rows = [f"{150 + i},{WORDS[i % 4]},{i % 2}" for i in range(24)]
    return "Größe_cm,Diagnose,label\n" + "\n".join(rows) + "\n"


def test_a_byte_outside_the_encoding_is_shown_in_hex_with_its_line(tmp_path: Path) -> None:
    path = files.write(tmp_path / "late.csv", diagnoses().encode() + "199,M\u00fcde,1\n".encode("cp1252"))
    error = files.refusal(path, files.contract(DIAGNOSES))
    assert error.code == "CFD-D12"
    assert "line 26: byte 0xfc is not utf-8" in error.message
    assert "cp1252" in error.hint


def test_a_bad_byte_far_into_a_large_file_has_its_true_line(tmp_path: Path) -> None:
    lines = [f"{150 + i % 50},x{'y' * (i % 97)},{i % 2}\r\n" for i in range(20_000)]
    body = "".join(lines).encode()
    path = files.write(tmp_path / "large.csv", "Größe_cm,Diagnose,label\r\n".encode() + body + b"151,\xff,1\r\n")
    assert "line 20002: byte 0xff" in files.refusal(path, files.contract(DIAGNOSES)).message


def test_the_same_text_in_another_declared_encoding_is_the_same_version(tmp_path: Path) -> None:
    rule = files.contract(DIAGNOSES)
    modern = files.write(tmp_path / "a.csv", diagnoses())
    old = files.write(tmp_path / "b.csv", diagnoses().encode("cp1252"))
    declared = files.data_map(rule, form={"encoding": "cp1252"})
    assert files.read(old, rule, declared).version == files.read(modern, rule).version


def test_latin_1_declared_for_windows_text_is_noticed_at_the_dash(tmp_path: Path) -> None:
    rule = files.contract(DIAGNOSES)
    path = files.write(tmp_path / "b.csv", diagnoses().encode("cp1252"))
    error = files.refusal(path, rule, files.data_map(rule, form={"encoding": "iso-8859-1"}))
    assert "line 3: byte 0x96" in error.message
    assert "cp1252" in error.hint


# --- separators, decimal marks, missing marks -----------------------------------------------------------------


def test_a_wrong_separator_is_noticed_and_the_right_one_suggested(tmp_path: Path) -> None:
    error = files.refusal(files.write(tmp_path / "de.csv", with_semicolons()), files.blood())
    assert error.code == "CFD-D13"
    assert "1 column found" in error.message
    assert "6 expected" in error.message
    assert 'delimiter: ";"' in error.hint


def test_semicolons_and_decimal_commas_give_the_same_version_once_declared(tmp_path: Path, plain: Path) -> None:
    path = files.write(tmp_path / "de.csv", with_semicolons())
    declared = files.data_map(files.blood(), form={"delimiter": ";", "decimal": ","})
    assert files.read(path, files.blood(), declared).version == files.read(plain, files.blood()).version


def test_quoted_decimal_commas_are_named_with_the_true_line_and_read_once_declared(tmp_path: Path, plain: Path) -> None:
    rows = [[f'"{cell.replace(".", ",")}"' if "." in cell else cell for cell in row] for row in files.blood_rows()]
    path = files.write(tmp_path / "quoted.csv", files.csv_text(rows))
    error = files.refusal(path, files.blood())
    assert "column hb_g_dl: is not a number: line 2" in error.message
    assert 'format.decimal: ","' in error.hint
    declared = files.data_map(files.blood(), form={"decimal": ","})
    assert files.read(path, files.blood(), declared).version == files.read(plain, files.blood()).version


def test_a_late_thousands_mark_blames_its_own_line(tmp_path: Path) -> None:
    path = files.write(tmp_path / "de.csv", with_semicolons() + "P99999;80;M;12,3;1.234,56;0\n")
    form = {"delimiter": ";", "decimal": ","}
    error = files.refusal(path, files.blood(), files.data_map(files.blood(), form=form))
    assert "line 42 (`1.234,56`)" in error.message
    assert 'format.thousands: "."' in error.hint
    intake = files.read(path, files.blood(), files.data_map(files.blood(), form={**form, "thousands": "."}))
    assert intake.report.columns[4]["greatest"] == 1234.56


PLATELETS = [{"name": "platelets", "type": "number"}, {"name": "label", "type": "integer"}]


def test_a_point_that_may_separate_thousands_is_never_guessed(tmp_path: Path) -> None:
    rule = files.contract(PLATELETS)
    path = files.write(tmp_path / "p.csv", "platelets;label\n" + "1.250;0\n980;1\n1.040;0\n310;1\n" * 6)
    assert (
        "may be a decimal or a thousands mark"
        in files.refusal(path, rule, files.data_map(rule, form={"delimiter": ";"})).message
    )
    point = files.read(path, rule, files.data_map(rule, form={"delimiter": ";", "decimal": "."}))
    comma = files.read(path, rule, files.data_map(rule, form={"delimiter": ";", "decimal": ",", "thousands": "."}))
    assert point.report.columns[0]["least"] == 1.04
    assert comma.report.columns[0]["least"] == 310


def test_measurements_with_three_decimals_beside_others_are_plain_numbers(tmp_path: Path) -> None:
    rule = files.contract(PLATELETS)
    path = files.write(tmp_path / "p.csv", "platelets,label\n" + "1.250,0\n980,1\n1.04,0\n" * 8)
    assert files.read(path, rule).report.columns[0]["least"] == 1.04


MARKS = ["?", "-", "n.a.", "k.A.", "NULL", "#N/A", "unbekannt", "<0.5"]


def test_marks_for_a_missing_value_are_refused_until_declared(tmp_path: Path) -> None:
    columns = [
        {"name": "crea", "type": "number", "missing": {"rule": "impute", "value": 1}},
        {"name": "label", "type": "integer"},
    ]
    rule = files.contract(columns)
    rows = [f"{mark},{i % 2}" for i, mark in enumerate([*MARKS, "999", "", *["0.7"] * 20])]
    path = files.write(tmp_path / "odd.csv", "crea,label\n" + "\n".join(rows) + "\n")
    error = files.refusal(path, rule)
    assert "line 2 (`?`), line 3 (`-`)" in error.message
    assert "and 3 more" in error.message
    declared = files.data_map(rule, form={"missing": MARKS}, columns={"crea": {"missing": ["999"]}})
    intake = files.read(path, rule, declared)
    assert intake.report.columns[0]["missing"] == 10
    assert intake.report.columns[0]["greatest"] == 0.7


# --- dates ----------------------------------------------------------------------------------------------------

ADMITTED = [
    {"name": "admitted", "type": "date", "encoding": "days", "origin": "2021-01-01"},
    {"name": "label", "type": "integer"},
]


def dates(tmp_path: Path, *texts: str) -> Path:
    rows = [f"{text},{i % 2}" for i, text in enumerate(texts)]
    return files.write(tmp_path / "dates.csv", "admitted,label\n" + "\n".join(rows) + "\n")


def test_days_before_the_thirteenth_are_read_by_the_declared_format_like_all_others(tmp_path: Path) -> None:
    rule = files.contract(ADMITTED)
    path = dates(tmp_path, "01/04/2021", "06/11/2021", "13/06/2021", "12/06/2021")
    declared = files.data_map(rule, columns={"admitted": {"date_format": "%d/%m/%Y"}})
    features = files.read(path, rule, declared).prepared.features
    assert features[:, 0].tolist() == [90, 309, 163, 162]
    assert "is not a date written %Y-%m-%d: line 2" in files.refusal(path, rule).message


def test_every_other_way_to_write_a_date_is_listed_by_line(tmp_path: Path) -> None:
    rule = files.contract(ADMITTED)
    path = dates(
        tmp_path, "04/03/2021", "2021-03-04", "04.03.2021", "20210304", "44259", "4 Mar 2021",
        "2021-03-04T23:30:00-05:00", "31/02/2021",
    )  # fmt: skip
    declared = files.data_map(rule, columns={"admitted": {"date_format": "%d/%m/%Y"}})
    message = files.refusal(path, rule, declared).message
    assert "line 3 (`2021-03-04`), line 4 (`04.03.2021`), line 5 (`20210304`), line 6 (`44259`)" in message
    assert "is a day that doesn't exist: line 9 (`31/02/2021`)" in message


def test_a_time_and_an_offset_leave_the_day_as_it_is_written(tmp_path: Path) -> None:
    rule = files.contract(ADMITTED)
    path = dates(tmp_path, "2021-01-02T23:30:00-05:00", "2021-01-03T00:10:00Z")
    declared = files.data_map(rule, columns={"admitted": {"date_format": "%Y-%m-%dT%H:%M:%S%z"}})
    assert files.read(path, rule, declared).prepared.features[:, 0].tolist() == [1, 2]


# --- codes ----------------------------------------------------------------------------------------------------


def test_codes_stay_text_in_300_000_rows_and_keep_their_zeros(tmp_path: Path) -> None:
    numbers = [f"{651 + i:06d}" for i in range(5)]
    letters = [f"X{i}" for i in range(7)]
    lines = [f"{numbers[i % 5]},1,{i % 2}" for i in range(299_000)]
    lines += [f"{letters[i % 7]},1,{i % 2}" for i in range(1000)]
    path = files.write(tmp_path / "codes.csv", "code,a,label\n" + "\n".join(lines) + "\n")
    columns = [
        {"name": "code", "type": "category", "categories": [*numbers, *letters]},
        {"name": "a", "type": "number"},
        {"name": "label", "type": "integer"},
    ]
    intake = files.read(path, files.contract(columns))
    assert intake.report.rows_used == 300_000
    assert len(intake.report.columns[0]["levels"]) == 12
    assert intake.report.columns[0]["levels"]["000651"] == 59_800


SMOKING = [
    {"name": "age", "type": "integer"},
    {"name": "smoking", "type": "category", "categories": ["never", "former", "current"]},
    {"name": "stage", "type": "category", "categories": ["I", "II", "III"]},
    {"name": "label", "type": "integer"},
]


def stages(*extra: str) -> str:
    rows = [f"{30 + i},{['never', 'former', 'current'][i % 3]},{['I', 'II', 'III'][i % 3]},{i % 2}" for i in range(60)]
    return "age,smoking,stage,label\n" + "\n".join([*rows, *extra]) + "\n"


def test_an_unknown_category_is_refused_with_lines_and_count(tmp_path: Path) -> None:
    path = files.write(tmp_path / "b.csv", stages("70,Former ,II,1", "71,unknown,IV,0"))
    error = files.refusal(path, files.contract(SMOKING))
    assert "column smoking: is no category of the contract: line 62 (`Former `), line 63 (`unknown`)" in error.message
    assert "column stage: is no category of the contract: line 63 (`IV`)" in error.message
    assert "blanks or case" in error.hint


def test_blanks_case_and_other_follow_the_contract_and_keep_the_width(tmp_path: Path) -> None:
    loose = [
        SMOKING[0],
        {**SMOKING[1], "whitespace": "strip", "case": "ignore", "other": "other"},
        {**SMOKING[2], "other": "later"},
        SMOKING[3],
    ]
    rule = files.contract(loose)
    one = files.read(files.write(tmp_path / "a.csv", stages()), rule)
    two = files.read(files.write(tmp_path / "b.csv", stages("70,Former ,II,1", "71,unknown,IV,0")), rule)
    assert one.prepared.features.shape[1] == two.prepared.features.shape[1] == 9
    assert two.prepared.features[60].tolist() == [70, 0, 1, 0, 0, 0, 1, 0, 0]
    assert two.prepared.features[61].tolist() == [71, 0, 0, 0, 1, 0, 0, 0, 1]


def test_the_order_of_columns_in_the_file_changes_nothing(tmp_path: Path) -> None:
    lines = [line.split(",") for line in stages().splitlines()]
    turned = "\n".join(",".join(cell for cell in reversed(line)) for line in lines) + "\n"
    rule = files.contract(SMOKING)
    straight = files.read(files.write(tmp_path / "a.csv", stages()), rule)
    other = files.read(files.write(tmp_path / "c.csv", turned), rule)
    assert straight.version == other.version
    assert np.array_equal(straight.prepared.features, other.prepared.features)


# --- empty, short and ragged files ----------------------------------------------------------------------------


def test_a_file_of_no_bytes_says_so(tmp_path: Path) -> None:
    assert "0 bytes" in files.refusal(files.write(tmp_path / "a.csv", b""), files.blood()).message


def test_a_header_alone_has_no_usable_rows(tmp_path: Path) -> None:
    error = files.refusal(files.write(tmp_path / "a.csv", files.csv_text([])), files.blood())
    assert error.code == "CFD-D15"
    assert "0 read" in error.message


def test_labels_all_missing_says_how_many_rows_were_read_and_why_they_were_dropped(tmp_path: Path) -> None:
    rows = [[*row[:5], ""] for row in files.blood_rows()]
    error = files.refusal(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood())
    assert error.code == "CFD-D15"
    assert "40 read, 40 dropped: missing label 40" in error.message


def test_ragged_rows_are_listed_by_line_and_never_padded(tmp_path: Path) -> None:
    lines = files.csv_text(files.blood_rows()).splitlines()
    lines.insert(6, "P77777,41,M,12.1,0.9")
    lines.insert(9, "P77778,41,M,12.1,0.9,1,extra")
    error = files.refusal(files.write(tmp_path / "a.csv", "\n".join(lines) + "\n"), files.blood())
    assert error.code == "CFD-D13"
    assert "line 7 (`5 values`), line 10 (`7 values`)" in error.message


def test_one_class_alone_is_a_warning_before_anything_trains(tmp_path: Path) -> None:
    rows = [[*row[:5], "0"] for row in files.blood_rows()]
    report = files.read(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood()).report
    assert "the training rows are all of one class" in report.warnings


@pytest.mark.parametrize("count", [1, 3])
def test_very_few_rows_are_read_and_said_to_be_few(tmp_path: Path, count: int) -> None:
    path = files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows(count)))
    report = files.read(path, files.blood(), split=SplitByHash(share=0.0, key=files.KEY)).report
    assert f"only {count} units to train on" in report.warnings
    assert "no row is held out: metrics of this site will be not available" in report.warnings


def test_empty_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows()) + "\n\n\r\n")
    report = files.read(path, files.blood()).report
    assert (report.rows_read, report.blank_lines) == (40, 3)


def test_line_numbers_are_those_of_an_editor_after_a_field_with_line_breaks(tmp_path: Path) -> None:
    rows = files.blood_rows(4)
    rows[1][0] = '"P\n\n2"'
    rows[3][1] = "old"
    path = files.write(tmp_path / "a.csv", files.csv_text(rows))
    assert "column age: is not a number: line 7 (`old`)" in files.refusal(path, files.blood()).message


def test_a_quote_that_never_closes_names_the_line_where_it_opens(tmp_path: Path) -> None:
    rows = files.blood_rows(4)
    rows[1][0] = '"P2'
    error = files.refusal(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood())
    assert "lines 3 to 5" in error.message
    assert "quote" in error.hint


def test_a_column_that_is_missing_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows()).replace("label", "Label", 1))
    error = files.refusal(path, files.blood())
    assert "the column label is missing" in error.message
    assert "`Label`" in error.hint


def test_a_name_twice_in_the_header_is_refused(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows()).replace("hb_g_dl", "age", 1))
    assert "'age' twice" in files.refusal(path, files.blood()).message


def test_a_file_without_header_is_read_by_the_declared_names(tmp_path: Path, plain: Path) -> None:
    body = plain.read_text("utf-8").split("\n", 1)[1]
    declared = files.data_map(files.blood(), form={"columns": files.BLOOD_HEADER.split(",")})
    bare = files.read(files.write(tmp_path / "bare.csv", body), files.blood(), declared)
    assert bare.version == files.read(plain, files.blood()).version


def test_faults_of_all_kinds_are_collected_in_one_pass(tmp_path: Path) -> None:
    rows = files.blood_rows()
    rows[2][1], rows[5][3], rows[9][2], rows[11][1] = "x", "?", "D", "200"
    message = files.refusal(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood()).message
    for part in ("age: is not a number: line 4", "hb_g_dl", "sex: is no category", "age: is outside 0 to 120: line 13"):
        assert part in message


def test_a_million_faulty_cells_make_a_short_message(tmp_path: Path) -> None:
    rows = [["P", "x" * 1000, "M", "1", "1", "1"] for _ in range(20_000)]
    message = files.refusal(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.blood()).message
    assert len(message) < 1000
    assert "and 19995 more" in message


# --- units, constants, folders --------------------------------------------------------------------------------


def test_a_unit_is_converted_by_the_factor_that_is_written_out(tmp_path: Path) -> None:
    columns = [{"name": "chol", "type": "number", "unit": "mg/dl"}, {"name": "label", "type": "integer"}]
    rule = files.contract(columns)
    path = files.write(tmp_path / "a.csv", "chol,label\n" + "5,1\n6,0\n" * 12)
    unit = {"from": "mmol/l", "to": "mg/dl", "factor": 38.67}
    converted = files.read(path, rule, files.data_map(rule, columns={"chol": {"unit": unit}}))
    assert converted.report.columns[0]["greatest"] == pytest.approx(232.02)


def test_a_constant_stands_in_for_a_column_that_a_site_lacks(tmp_path: Path) -> None:
    rows = [",".join([row[0], row[1], *row[3:]]) for row in files.blood_rows()]
    path = files.write(tmp_path / "a.csv", "patient_id,age,hb_g_dl,crea_mg_dl,label\n" + "\n".join(rows) + "\n")
    report = files.read(path, files.blood(), files.data_map(files.blood(), columns={"sex": {"constant": "F"}})).report
    assert report.columns[2]["levels"] == {"F": 40}
    assert not any("sex" in warning for warning in report.warnings)


def test_a_folder_is_read_in_the_order_of_names_and_system_files_are_left_out(tmp_path: Path, plain: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = files.blood_rows()
    files.write(folder / "b.csv", files.csv_text(rows[20:]))
    files.write(folder / "a.csv", files.csv_text(rows[:20]))
    files.write(folder / ".DS_Store", b"\x00\x01")
    files.write(folder / "Thumbs.db", b"\x00")
    intake = files.read(folder, files.blood())
    assert [file.name for file in intake.files] == ["a.csv", "b.csv"]
    assert intake.version == files.read(plain, files.blood()).version


def test_a_fault_in_a_folder_names_its_file(tmp_path: Path) -> None:
    rows = files.blood_rows()
    rows[25][1] = "x"
    files.write(tmp_path / "a.csv", files.csv_text(rows[:20]))
    files.write(tmp_path / "b.csv", files.csv_text(rows[20:]))
    assert "b.csv line 7 (`x`)" in files.refusal(tmp_path, files.blood()).message


# --- whose rows, and which side -------------------------------------------------------------------------------

VISITS = [{"name": "age", "type": "integer"}, {"name": "label", "type": "integer"}]


def visits(tmp_path: Path, rows: list[tuple[str, str, int]]) -> Path:
    lines = [f"{person},{fold},{50 + i},{label}" for i, (person, fold, label) in enumerate(rows)]
    return files.write(tmp_path / "visits.csv", "who,fold,age,label\n" + "\n".join(lines) + "\n")


def test_rows_of_one_person_share_a_unit_and_a_side(tmp_path: Path) -> None:
    path = visits(tmp_path, [(f"p{i % 30}", "-", i % 2) for i in range(120)])
    intake = files.read(path, files.contract(VISITS), entity="who", split=SplitByHash(share=0.5, key=files.KEY))
    rows = intake.prepared
    assert intake.report.train.units + intake.report.held_out.units == 30
    assert not set(rows.units[rows.held_out]) & set(rows.units[~rows.held_out])
    assert intake.report.rows_per_unit == {"3-4": 30}


def test_a_person_on_both_sides_of_a_split_column_is_refused(tmp_path: Path) -> None:
    path = visits(tmp_path, [("ann", "train", 1), ("bo", "train", 0), ("ann", "held-out", 1)])
    error = files.refusal(path, files.contract(VISITS), entity="who", split=SplitByColumn("fold"))
    assert error.code == "CFD-D16"
    assert "training and held-out rows both: line 4" in error.message


def test_a_row_that_is_nobodys_is_refused(tmp_path: Path) -> None:
    path = visits(tmp_path, [("ann", "train", 1), ("", "train", 0)])
    error = files.refusal(path, files.contract(VISITS), entity="who", split=SplitByColumn("fold"))
    assert "column who: has no entity: line 3" in error.message


def test_a_code_that_the_split_does_not_know_is_refused(tmp_path: Path) -> None:
    path = visits(tmp_path, [("ann", "train", 1), ("bo", "valid", 0)])
    assert (
        "is no code of the split: line 3 (`valid`)"
        in files.refusal(path, files.contract(VISITS), split=SplitByColumn("fold")).message
    )


def test_equal_rows_never_stand_on_both_sides_of_a_keyed_split(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.csv", "age,label\n" + "".join(f"{20 + i % 40},{i % 2}\n" for i in range(400)))
    rows = files.read(path, files.contract(VISITS), split=SplitByHash(share=0.5, key=files.KEY)).prepared
    train = {tuple(row) for row in rows.features[~rows.held_out].tolist()}
    held_out = {tuple(row) for row in rows.features[rows.held_out].tolist()}
    assert train
    assert held_out
    assert not train & held_out


def test_another_key_holds_out_other_units_and_is_another_version(tmp_path: Path, plain: Path) -> None:
    one = files.read(plain, files.blood(), split=SplitByHash(share=0.5, key=b"a" * 32))
    two = files.read(plain, files.blood(), split=SplitByHash(share=0.5, key=b"b" * 32))
    assert not np.array_equal(one.prepared.held_out, two.prepared.held_out)
    assert one.version != two.version


def test_all_units_held_out_leaves_nothing_to_train_on(tmp_path: Path) -> None:
    path = visits(tmp_path, [("ann", "held-out", 1), ("bo", "held-out", 0)])
    assert "no row is for training" in files.refusal(path, files.contract(VISITS), split=SplitByColumn("fold")).message


# --- rules of the contract on rows ----------------------------------------------------------------------------


def test_too_large_a_share_of_dropped_rows_is_refused_with_the_reasons(tmp_path: Path) -> None:
    rows = files.blood_rows()
    for row in rows[:10]:
        row[5] = ""
    path = files.write(tmp_path / "a.csv", files.csv_text(rows))
    error = files.refusal(path, files.blood(rows={"most_dropped_share": 0.2}))
    assert "10 of 40 rows would be dropped (missing label 10)" in error.message
    assert files.read(path, files.blood(rows={"most_dropped_share": 0.25})).report.rows_used == 30


def test_repeated_rows_are_reported_or_refused_as_the_contract_says(tmp_path: Path) -> None:
    rows = files.blood_rows()
    path = files.write(tmp_path / "a.csv", files.csv_text([*rows, rows[3], rows[3]]))
    assert files.read(path, files.blood()).report.duplicate_rows == 2
    assert "2 rows repeat" in files.refusal(path, files.blood(rows={"duplicates": "refuse"})).message


def test_a_row_outside_a_range_is_dropped_where_the_contract_says_so(tmp_path: Path) -> None:
    columns = [
        {**column, "outside": "drop-row"} if column["name"] == "age" else column for column in files.BLOOD_COLUMNS
    ]
    rows = files.blood_rows()
    rows[0][1] = "130"
    report = files.read(files.write(tmp_path / "a.csv", files.csv_text(rows)), files.contract(columns)).report
    assert report.rows_used == 39
    assert report.reasons() == "age outside 1"
    assert report.dropped[0].examples == ["line 2"]


def test_an_indicator_says_that_a_value_was_missing(tmp_path: Path) -> None:
    columns = [
        {"name": "crea", "type": "number", "missing": {"rule": "indicator", "value": 1}, "scaling": {"centre": 1}},
        {"name": "label", "type": "integer"},
    ]
    path = files.write(tmp_path / "a.csv", "crea,label\n" + "3,1\n,0\n" * 10)
    assert files.read(path, files.contract(columns)).prepared.features[:2].tolist() == [[2, 0], [0, 1]]


def test_a_missing_value_and_its_imputed_constant_are_two_versions(tmp_path: Path) -> None:
    columns = [
        {"name": "crea", "type": "number", "missing": {"rule": "impute", "value": 1}},
        {"name": "label", "type": "integer"},
    ]
    rule = files.contract(columns)
    hole = files.read(files.write(tmp_path / "a.csv", "crea,label\n" + "3,1\n,0\n" * 10), rule)
    whole = files.read(files.write(tmp_path / "b.csv", "crea,label\n" + "3,1\n1,0\n" * 10), rule)
    assert np.array_equal(hole.prepared.features, whole.prepared.features)
    assert hole.version != whole.version


def test_a_feature_too_large_for_its_type_is_refused(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.csv", "platelets,label\n" + "1e300,1\n2,0\n" * 10)
    assert "too large for a 32-bit number" in files.refusal(path, files.contract(PLATELETS)).message


def test_classes_number_the_labels_and_an_undeclared_one_is_refused(tmp_path: Path) -> None:
    columns = [
        {"name": "age", "type": "integer"},
        {"name": "kind", "type": "category", "categories": ["a", "b", "c", "d"], "encoding": "none"},
    ]
    rule = files.contract(columns, label={"column": "kind", "classes": ["c", "a", "b"]})
    path = files.write(tmp_path / "a.csv", "age,kind\n" + "30,a\n31,b\n32,c\n" * 8)
    assert files.read(path, rule).prepared.labels[:3].tolist() == [1, 2, 0]
    files.write(path, "age,kind\n30,d\n")
    assert "is no class of the label: line 2 (`d`)" in files.refusal(path, rule).message


def test_which_rows_of_a_person_come_first_is_the_sites_secret_and_not_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [f"p{number % 3},{20 + number},{number % 2}" for number in range(60)]
    split = SplitByHash(share=0.0, key=files.KEY)

    def taken(rows: list[str], key: bytes | None) -> Intake:
        path = files.write(tmp_path / "visits.csv", "\n".join(["who,age,label", *rows]) + "\n")
        return files.read(path, files.contract(VISITS), entity="who", split=split, order_key=key)

    def first(intake: Intake) -> list[list[float]]:
        rows = intake.prepared
        return sorted(sorted(rows.features[rows.units == unit][:5].ravel().tolist()) for unit in range(3))

    one, other = b"k" * 32, b"l" * 32
    assert first(taken(lines, one)) == first(taken(lines[::-1], one))
    assert first(taken(lines, one)) != first(taken(lines, other))
    assert first(taken(lines, None)) != first(taken(lines[::-1], None))
    assert taken(lines, one).version == taken(lines, other).version == taken(lines, None).version
    whole = taken(lines, one).prepared
    assert sorted(whole.features.ravel().tolist()) == sorted(taken(lines, None).prepared.features.ravel().tolist())
