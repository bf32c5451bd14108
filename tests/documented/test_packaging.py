import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import confide_cli

ROOT = Path(confide_cli.__file__).parent
PACKAGES = ("audit", "privacy", "federation", "site_client", "coordinator")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = {
    requirement.name: requirement
    for text in [
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    ]
    if (requirement := Requirement(text)).name != "confide"
}
CONSTRAINTS = (ROOT / "deploy" / "constraints.txt").read_text(encoding="utf-8").splitlines()
TESTED = {
    canonicalize_name(name): version for name, _, version in (line.partition("==") for line in CONSTRAINTS) if version
}
DECISIONS = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "deploy" / "DECISIONS").glob("*.md")).lower()


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_the_version_that_the_tests_ran_with_is_in_the_declared_range(name: str) -> None:
    assert DECLARED[name].specifier.contains(TESTED[canonicalize_name(name)])


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_every_dependency_has_a_decision(name: str) -> None:
    assert f"`{name.lower()}`" in DECISIONS


def test_torch_stands_first_so_that_it_is_installed_first_and_alone() -> None:
    assert next(line for line in CONSTRAINTS if not line.startswith("#")).startswith("torch==")


def test_every_decision_is_in_the_table_of_decisions() -> None:
    table = (ROOT / "deploy" / "DECISIONS" / "README.md").read_text(encoding="utf-8")
    pages = sorted(page.name for page in (ROOT / "deploy" / "DECISIONS").glob("0*.md"))
    assert [page for page in pages if f"]({page})" not in table] == []
    assert len({page[:4] for page in pages}) == len(pages)


def expected_files() -> set[str]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.decode().split("\0")
    kept = set()
    for name in listed:
        if not (ROOT / name).is_file() or name.endswith("README.md") or name == "federation/link/generate.py":
            continue
        if name.startswith(tuple(f"{package}/" for package in PACKAGES)):
            kept.add(name)
        elif name.startswith("deploy/demo/"):
            kept.add(name.replace("deploy/demo/", "confide_demo_files/"))
        elif name.startswith("confide_") and name.endswith(".py"):
            kept.add(name)
    return kept


def test_the_wheel_holds_the_product_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        assert found == expected_files()
        assert len(licences) == 1
    needed = {
        "audit/events/v1.json",
        "coordinator/migrations/env.py",
        "coordinator/migrations/versions/v0001.py",
        "site_client/migrations/env.py",
        "site_client/migrations/versions/v0001.py",
        "site_client/budget/migrations/versions/r0001_entries_and_totals.py",
        "federation/link/link_pb2.py",
        "federation/link/link.proto",
        "federation/words.py",
        "confide_demo.py",
        "confide_demo_files/job.yaml",
        "confide_demo_files/split.json",
    }
    assert needed <= found
