import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import confide_cli

ROOT = Path(confide_cli.__file__).parent


@pytest.fixture(scope="module")
def layout() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layout", ROOT / "deploy" / "check_layout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "shared_code/rounds.py",
        "confide_extra.py",
        "federation/utils.py",
        "coordinator/round_helpers.py",
        "site_client/misc/rounds.py",
        "audit/manager.py",
        "tests/integration/test_rounds.py",
        "tests/unit/__init__.py",
    ],
)
def test_a_file_without_a_place_fails_the_lint(layout: ModuleType, name: str) -> None:
    assert layout.problems([name, "audit/log.py"]) == [f"{name}: {layout.problem(name)}"]


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "audit/log.py",
        "site_client/service_manager.py",
        "tests/unit/federation/test_plan.py",
        "tests/README.md",
        "deploy/demo/job.yaml",
    ],
)
def test_a_file_in_its_place_passes(layout: ModuleType, name: str) -> None:
    assert layout.problems([name]) == []


def test_a_folder_that_the_import_contracts_cannot_see_fails_the_lint(layout: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "federation" / "rooms").mkdir(parents=True)
    names = ["federation/rooms/room.py"]
    assert len(layout.folders_without_init(tmp_path, names)) == 1
    (tmp_path / "federation" / "rooms" / "__init__.py").touch()
    assert layout.folders_without_init(tmp_path, names) == []


def test_the_project_itself_passes(layout: ModuleType) -> None:
    names = layout.tracked()
    assert "confide_cli.py" in names
    assert layout.problems(names) + layout.folders_without_init(ROOT, names) == []
