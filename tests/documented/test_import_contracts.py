import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import confide_cli

ROOT = Path(confide_cli.__file__).parent
PACKAGES = ("audit", "privacy", "federation", "site_client", "coordinator")


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


PLANTED = {
    "roles above the federation, the federation above privacy and audit": ("privacy/errors.py", "import audit"),
    "layers of audit": ("audit/errors.py", "import audit.log"),
    "layers of federation": ("federation/utils.py", ""),
    "what decides does no I/O": ("federation/charter.py", "import threading"),
    "what trains imports torch, and nothing else does": ("federation/tensors.py", "import torch"),
    "the coordinator imports neither torch nor what trains, at any remove": (
        "coordinator/queue.py",
        "def f():\n    import privacy.dpsgd.step",
    ),
    "flwr is imported by its three adapters only": ("coordinator/conductor.py", "from flwr.server import Grid"),
    "gRPC stays in the link": ("coordinator/service.py", "import grpc"),
}


def test_the_project_keeps_its_import_contracts(copied: Path) -> None:
    done = lint_imports(copied)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_import_contract_refuses_what_it_is_for(copied: Path) -> None:
    for file, text in PLANTED.values():
        with (copied / file).open("a", encoding="utf-8") as sink:
            sink.write(f"\n{text}\n")
    done = lint_imports(copied)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = {line.split(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line}
    assert set(PLANTED) <= broken
