import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import confide_cli

ROOT = Path(confide_cli.__file__).parent
FLOORS: dict[str, float] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["confide"][
    "coverage"
]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_coverage", ROOT / "deploy" / "check_coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(**changed: Any) -> dict[str, Any]:
    summary = {"num_statements": 8, "covered_lines": 8, "num_branches": 2, "covered_branches": 2, **changed}
    return {"files": {"audit/merkle.py": {"summary": summary, "missing_lines": [], "missing_branches": []}}}


def test_a_module_whose_lines_and_branches_all_ran_holds(check: ModuleType) -> None:
    found = check.figure("audit/merkle.py", 100.0, report())
    assert (found.percent, found.holds) == (100.0, True)


def test_one_branch_that_never_ran_is_seen(check: ModuleType) -> None:
    found = check.figure("audit/merkle.py", 100.0, report(covered_branches=1))
    assert (found.percent, found.holds) == (90.0, False)
    assert check.line(found).startswith("FAIL  90.0 % of 100.0 %")


def test_a_figure_is_rounded_down(check: ModuleType) -> None:
    found = check.figure("audit/merkle.py", 100.0, report(num_statements=9998, covered_lines=9997))
    assert (found.percent, found.holds) == (99.9, False)


def test_a_module_that_no_test_imported_has_nothing_covered(check: ModuleType) -> None:
    found = check.figure("audit/note.py", 50.0, report())
    assert (found.percent, found.holds) == (0.0, False)


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_a_floor_is_for_a_module_that_exists(name: str) -> None:
    assert (ROOT / name).is_file()
    assert 0 < FLOORS[name] <= 100
