"""`confide site data`: what a person types, and what a program gets back."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from federation.errors import ConfideError, InvalidInput
from site_client import data_command
from tests.support import data_files as files
from tests.support import site_homes

CONTRACT = """
apiVersion: confide/v1
kind: DataContract
name: blood/v1
columns:
  - {name: patient_id, type: text-id}
  - {name: age, type: integer, range: [0, 120]}
  - {name: sex, type: category, categories: [M, F]}
  - {name: hb_g_dl, type: number}
  - {name: crea_mg_dl, type: number}
  - {name: label, type: integer, range: [0, 1], missing: {rule: drop-row}}
label: {column: label, positive: [1]}
"""


class Desk:
    """A home, a contract and a file, and the command on them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = site_homes.make(folder / "home")
        self.contract = files.write(folder / "contract.yaml", CONTRACT)
        self.path = files.write(folder / "Blüte.csv", files.csv_text(files.blood_rows()))
        self._capsys = capsys

    def __call__(self, *arguments: str) -> int:
        return data_command.main([*arguments, "--home", str(self.home)])

    def add(self, *arguments: str, name: str = "blood", budget: bool = True) -> int:
        spend = ["--epsilon", "2", "--delta", "1e-3"] if budget else []
        return self(
            "add", name, "--path", str(self.path), "--contract", str(self.contract), "--units", "40", *spend, *arguments
        )  # fmt: skip

    def printed(self) -> str:
        return self._capsys.readouterr().out

    def json(self) -> Any:
        return json.loads(self.printed())

    def refused(self, *arguments: str) -> ConfideError:
        with pytest.raises(InvalidInput) as caught:
            self.add(*arguments)
        return caught.value


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_add_list_show_verify_and_retire_speak_json_with_a_schema(desk: Desk) -> None:
    assert desk.add("--format", "json") == 0
    added = desk.json()
    assert added["schema"] == "confide/data-set/v1"
    assert (added["rows_read"], added["rows_used"], added["split"]) == (40, 40, "0.2 by key")
    assert added["train"]["rows"] + added["held_out"]["rows"] == 40
    assert desk("list", "--format", "json") == 0
    listed = desk.json()
    assert listed["schema"] == "confide/data-sets/v1"
    assert [row["name"] for row in listed["rows"]] == ["blood"]
    assert desk("show", "blood", "--format", "json") == 0
    shown = desk.json()
    assert shown["report"]["columns"][1]["name"] == "age"
    assert [version["number"] for version in shown["versions"]] == [1]
    assert desk("verify", "blood", "--format", "json") == 0
    assert desk.json()["files"] == "byte for byte"
    assert desk("retire", "blood", "--yes", "--format", "json") == 0
    assert desk.json()["state"] == "retired"
    assert desk("list", "--format", "jsonl") == 0
    assert desk.printed() == ""


def test_the_table_shows_counts_and_the_path_to_the_sites_own_people(desk: Desk) -> None:
    desk.add()
    desk("show", "blood")
    text = desk.printed()
    assert "Blüte.csv" in text
    assert "column sex" in text
    assert "F=20, M=20" in text
    assert "P00001" not in text


def test_a_new_version_needs_no_budget(desk: Desk) -> None:
    desk.add()
    files.write(desk.path, files.csv_text(files.blood_rows(60)))
    assert desk.add("--format", "json", budget=False) == 0
    assert '"version_number": 2' in desk.printed()


def test_a_warning_goes_to_standard_error(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(desk.path, files.csv_text([[*row[:5], "0"] for row in files.blood_rows()]))
    desk.add()
    assert "warning: the training rows are all of one class" in capsys.readouterr().err


def test_declared_units_far_from_what_was_counted_are_said_to_the_operator(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.add("--units", "400")
    assert "warning: 400 units declared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--units", "0"], "--units 0"),
        (["--units", "many"], "--units many"),
        (["--held-out", "1.5"], "--held-out 1.5"),
        (["--held-out", "nan"], "--held-out nan"),
        (["--delta", "2"], "between 0 and 1"),
        (["--epsilon", "inf"], "positive and finite"),
    ],
)
def test_an_option_out_of_range_is_refused(desk: Desk, arguments: list[str], text: str) -> None:
    error = desk.refused(*arguments)
    assert text in error.message
    assert error.exit_status == 2


@pytest.mark.parametrize("name", ["Heart", "../heart", "heart set", "", "heart\n", "-heart", "x" * 64, "hérz"])
def test_a_name_follows_its_grammar(desk: Desk, name: str) -> None:
    with pytest.raises((InvalidInput, SystemExit)):
        desk.add(name=name)


def test_split_and_held_out_exclude_each_other(desk: Desk) -> None:
    with pytest.raises(InvalidInput, match="not allowed with"):
        desk.add("--split", "fold", "--held-out", "0.2")


def test_the_maps_split_column_is_taken_and_another_one_is_refused(desk: Desk, tmp_path: Path) -> None:
    rows = [[*row, "held-out" if i % 4 == 0 else "train"] for i, row in enumerate(files.blood_rows())]
    files.write(desk.path, files.csv_text(rows, files.BLOOD_HEADER + ",fold"))
    text = "apiVersion: confide/v1\nkind: DataMap\ncontract: blood/v1\nsplit: {column: fold}\n"
    mapping = files.write(tmp_path / "map.yaml", text)
    assert "the map's split column is fold" in desk.refused("--map", str(mapping), "--split", "other").message
    desk.add("--map", str(mapping), "--format", "json")
    added = desk.json()
    assert (added["split"], added["held_out"]["rows"]) == ("fold", 10)


def test_a_map_for_another_contract_is_refused(desk: Desk, tmp_path: Path) -> None:
    text = "apiVersion: confide/v1\nkind: DataMap\ncontract: blood/v2\n"
    mapping = files.write(tmp_path / "map.yaml", text)
    assert desk.refused("--map", str(mapping)).code == "CFD-D03"


def test_retiring_asks_on_a_terminal_and_refuses_where_nobody_can_be_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.add()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(InvalidInput, match="nobody can be asked"):
        desk("retire", "blood")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert desk("retire", "blood") == 1
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert desk("retire", "blood") == 0


def test_a_path_of_bytes_that_are_no_utf_8_works_and_prints_escaped(desk: Desk, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/k\xf6nig\x1b[31m.csv"))
    desk.path = desk.path.rename(odd)
    assert desk.add() == 0
    text = desk.printed()
    assert "k\\xf6nig\\x1b[31m.csv" in text
    assert "\x1b" not in text
    assert desk("verify", "blood") == 0


def test_help_has_an_example_and_an_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert data_command.main(["--help"]) == 0
    assert "Example:" in capsys.readouterr().out
    with pytest.raises(InvalidInput, match="there is no `confide site data ad`"):
        data_command.main(["ad"])


class Ticks:
    """A clock that moves by a second at each look."""

    def __init__(self) -> None:
        self.moment_s = 0.0

    def monotonic_s(self) -> float:
        self.moment_s += 1.0
        return self.moment_s


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    line = data_command.ProgressLine(Ticks())  # type: ignore[arg-type]
    for done in range(1, 31):
        line(done * 1_000_000, 30_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["reading 33 % of 30.0 MB", "reading 66 % of 30.0 MB", "reading 100 % of 30.0 MB"]


def test_the_registry_is_listed_without_torch_pyarrow_or_numpy_arrays_of_rows(desk: Desk) -> None:
    import subprocess
    import sys

    desk.add()
    code = (
        "import sys; from site_client import data_command; "
        f"data_command.main(['list', '--home', {str(desk.home)!r}]); "
        "assert not {'torch', 'pyarrow', 'flwr'} & set(sys.modules), 'a heavy library was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
