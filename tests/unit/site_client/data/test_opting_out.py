"""People who opt out: their rows are in no version from then on, and the versions that had them open no more."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from federation.edge.clock import SystemClock
from federation.errors import CheckFailed, InvalidInput
from site_client import data_command
from site_client.data import opt_out
from site_client.data.prepared import load_rows
from site_client.data.registration import DataOffice
from site_client.data.wish import Wish
from tests.support import data_files as files
from tests.support import site_homes
from tests.support.audit_logs import bytes_of


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return site_homes.make(tmp_path / "home")


@pytest.fixture
def office(home: Path) -> Iterator[DataOffice]:
    with DataOffice(home, clock=SystemClock(), account="alice") as opened:
        yield opened


@pytest.fixture
def blood(tmp_path: Path) -> Path:
    return files.write(tmp_path / "blood.csv", files.csv_text(files.blood_rows()))


def wish(path: Path, entity: str | None = "patient_id") -> Wish:
    return files.blood_wish(path, entity=entity)


def test_a_version_without_their_rows_takes_the_place_of_the_one_that_had_them(
    home: Path, office: DataOffice, blood: Path
) -> None:
    first = office.add(wish(blood))
    second = office.opt_out("blood", ["P00003", "P00004"])
    assert (second.number, second.report["rows_used"]) == (2, 38)
    assert second.report["dropped"] == [
        {"reason": "opted out", "count": 2, "examples": second.report["dropped"][0]["examples"]}
    ]
    assert second.units_declared == first.units_declared
    assert len(load_rows(home, "blood", second.version).prepared.labels) == 38
    with pytest.raises(CheckFailed) as refused:
        load_rows(home, "blood", first.version)
    assert refused.value.code == "CFD-D28"
    assert not (home / "data" / "blood" / f"{first.version}.safetensors").exists()
    versioned = site_homes.events(home)[-1]
    assert (versioned["action"], versioned["basis"]) == ("data.versioned", "opted-out")
    assert versioned["previous"] == f"sha256:{first.version}"


def test_later_readings_and_verification_leave_them_out_too(home: Path, office: DataOffice, blood: Path) -> None:
    office.add(wish(blood))
    second = office.opt_out("blood", ["P00003"])
    assert office.verify("blood").version.version == second.version
    files.write(blood, files.csv_text(files.blood_rows(44)))
    third = office.add(replace(wish(blood), epsilon=None, delta=None))
    assert third.report["rows_used"] == 43
    assert office.opt_out("blood", ["P00003"]).version == third.version


def test_nobody_is_named_in_the_list_or_in_the_log(home: Path, office: DataOffice, blood: Path) -> None:
    office.add(wish(blood))
    office.opt_out("blood", ["P00003"])
    kept = home / "data" / "blood" / "opted-out.json"
    assert b"P00003" not in kept.read_bytes()
    assert b"P00003" not in bytes_of(home / "audit")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_somebody_without_rows_changes_no_version_and_is_remembered(
    home: Path, office: DataOffice, blood: Path
) -> None:
    first = office.add(wish(blood))
    assert office.opt_out("blood", ["P00050"]).version == first.version
    assert len(load_rows(home, "blood", first.version).prepared.labels) == 40
    files.write(blood, files.csv_text(files.blood_rows(50)))
    assert office.add(replace(wish(blood), epsilon=None, delta=None)).report["rows_used"] == 49


def test_a_file_that_cant_be_read_now_keeps_the_wish_and_the_next_call_finishes_it(
    home: Path, office: DataOffice, blood: Path
) -> None:
    first = office.add(wish(blood))
    content = blood.read_bytes()
    blood.unlink()
    with pytest.raises(InvalidInput):
        office.opt_out("blood", ["P00003"])
    assert office.registry.newest("blood").version == first.version
    blood.write_bytes(content)
    assert office.opt_out("blood", ["P00003"]).report["rows_used"] == 39


def test_a_call_cut_off_before_the_old_rows_went_is_finished_by_the_next(
    home: Path, office: DataOffice, blood: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = office.add(wish(blood))
    with monkeypatch.context() as patched:
        patched.setattr("site_client.data.registration.replace_rows", _killed)
        with pytest.raises(KeyboardInterrupt):
            office.opt_out("blood", ["P00003"])
    office.opt_out("blood", ["P00003"])
    with pytest.raises(CheckFailed):
        load_rows(home, "blood", first.version)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_rows_that_dont_say_whose_they_are_are_refused(office: DataOffice, blood: Path) -> None:
    office.add(wish(blood, entity=None))
    with pytest.raises(InvalidInput) as refused:
        office.opt_out("blood", ["P00003"])
    assert refused.value.code == "CFD-D26"


def test_a_damaged_list_lets_nothing_be_read(home: Path, office: DataOffice, blood: Path) -> None:
    office.add(wish(blood))
    office.opt_out("blood", ["P00003"])
    for content in (b"", b"{}", b'{"marks": ["00"]}', b'{"marks": [1]}', b'{"marks": ["zz"]}'):
        (home / "data" / "blood" / "opted-out.json").write_bytes(content)
        with pytest.raises(CheckFailed) as refused:
            office.add(replace(wish(blood), epsilon=None, delta=None))
        assert refused.value.code == "CFD-D27"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n \n", b"\xff\xfe", b"P1\nP\x002\n", b"x" * 2000],
    ids=["empty", "blank", "bytes", "nul", "long"],
)
def test_a_list_that_names_nobody_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        opt_out.people_in(files.write(tmp_path / "out.txt", content))
    assert refused.value.code == "CFD-D26"
    assert "P1" not in refused.value.message


def test_a_list_that_isnt_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="can't be read"):
        opt_out.people_in(tmp_path / "none.txt")


def test_the_command_says_how_many_rows_are_left_out_and_which_data_sets_have_the_same_people(
    home: Path, office: DataOffice, blood: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    office.add(wish(blood))
    office.add(replace(wish(blood), name="blood-2", same_people_as="blood"))
    people = files.write(blood.with_name("out.txt"), "\ufeffP00003\r\nP00007\r\n\r\n")
    arguments = ["opt-out", "blood", "--entities", str(people), "--home", str(home), "--format", "json"]
    assert data_command.main(arguments) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["dropped"] == {"opted out": 2}
    assert "blood-2" in printed.err
