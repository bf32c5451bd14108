"""The demo's four hospitals: each writes the same patients in its own way, and its map brings them back."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import confide_demo_hospitals as demo
from federation.contract import DataContract
from federation.edge.documents import read_document
from site_client.data.data_map import DataMap, check_fits
from site_client.data.definition import Definition, SplitByColumn
from site_client.data.intake import Intake, find, take_in

FILES = Path("deploy/demo")
CONTRACT = read_document(FILES / "contract.yaml", DataContract)
PAIN = ["typical angina", "atypical angina", "non-anginal", "asymptomatic"]
RESTING = ["normal", "st-t abnormality", "lv hypertrophy"]
COLUMNS = [
    "id", "age", "sex", "dataset", "cp", "trestbps", "chol", "fbs", "restecg", "thalch", "exang", "oldpeak", "slope",
    "ca", "thal", "num",
]  # fmt: skip


def patient(number: int, hospital: str) -> dict[str, str]:
    """Return a made-up patient whose values depend on the number alone."""
    values = [
        str(number), str(30 + number % 40), ["Male", "Female"][number % 2], hospital, PAIN[number % 4],
        str(110 + number % 50), str(number % 3 * 120), ["TRUE", "FALSE"][number % 5 > 0], RESTING[number % 3],
        str(100 + number % 90), ["TRUE", "FALSE"][number % 3 > 0], f"{number % 4}.{number % 10}", "flat", "0", "normal",
        str(number % 5),
    ]  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def read(tmp_path: Path, site: str, rows: list[demo.Row]) -> Intake:
    habit = demo.HABITS[site]
    path = tmp_path / site / habit.file
    path.parent.mkdir()
    path.write_bytes(demo.table(rows, habit))
    definition = Definition(CONTRACT, read_document(FILES / f"{site}.map.yaml", DataMap), None, SplitByColumn("fold"))
    return take_in(find(path, definition), definition)


def test_the_four_ways_of_writing_hold_the_same_rows(tmp_path: Path) -> None:
    folds = {str(number): ["train", "held-out"][number % 3 == 0] for number in range(1, 41)}
    rows = demo.by_hospital([patient(number, "Cleveland") for number in range(1, 41)], folds)["cleveland"]
    found = {site: read(tmp_path, site, rows) for site in demo.HABITS}
    first = found["cleveland"].prepared
    for site, intake in found.items():
        assert np.array_equal(intake.prepared.features, first.features), site
        assert np.array_equal(intake.prepared.labels, first.labels), site
        assert np.array_equal(intake.prepared.held_out, first.held_out), site
    texts = {site: (tmp_path / site / habit.file).read_bytes() for site, habit in demo.HABITS.items()}
    assert texts["switzerland"].startswith(b"\xef\xbb\xbfid;Alter;")
    assert b"\r\n" in texts["long-beach"]
    assert "nem anginás".encode() in texts["hungary"]


def test_a_row_with_a_missing_value_is_written_and_dropped_by_the_contract(tmp_path: Path) -> None:
    patients = [patient(number, "VA Long Beach") for number in range(1, 31)]
    patients[4]["fbs"] = ""
    patients[7]["trestbps"] = ""
    folds = {str(number): "train" for number in range(1, 31) if number not in (5, 8)}
    rows = demo.by_hospital(patients, folds)["long-beach"]
    assert b",?," in demo.table(rows, demo.HABITS["long-beach"])
    report = read(tmp_path, "long-beach", rows).report
    assert (report.rows_read, report.rows_used) == (30, 28)
    assert report.reasons() in ("missing trestbps 1, missing fbs 1", "missing fbs 1, missing trestbps 1")


def test_the_misfiled_patient_goes_back_to_hungary() -> None:
    hospitals = demo.by_hospital([patient(303, "Cleveland"), patient(304, "Cleveland")], {})
    assert [row["id"] for row in hospitals["cleveland"]] == ["303"]
    assert [row["id"] for row in hospitals["hungary"]] == ["304"]


def test_the_division_has_the_published_sizes_and_no_patient_twice() -> None:
    sites = json.loads((FILES / "split.json").read_bytes())
    sizes = {site: (len(folds["train"]), len(folds["held-out"])) for site, folds in sites.items()}
    assert sizes == {
        "cleveland": (199, 104), "hungary": (172, 89), "switzerland": (30, 16), "long-beach": (85, 45),
    }  # fmt: skip
    numbers = [number for folds in sites.values() for fold in folds.values() for number in fold]
    assert len(set(numbers)) == len(numbers) == 740
    assert 304 in sites["hungary"]["train"] + sites["hungary"]["held-out"]


def test_another_table_than_the_known_one_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerow(patient(1, "Cleveland"))
    source = tmp_path / "heart_disease_uci.csv"
    source.write_text(text.getvalue())
    with pytest.raises(demo.SourceUnknown, match=demo.SOURCE_SHA256):
        demo.write_hospitals(source, tmp_path / "hospitals")
    assert not (tmp_path / "hospitals").exists()


@pytest.mark.parametrize("site", sorted(demo.HABITS))
def test_each_hospitals_map_fits_the_contract(site: str) -> None:
    check_fits(read_document(FILES / f"{site}.map.yaml", DataMap), CONTRACT)
