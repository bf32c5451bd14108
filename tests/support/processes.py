"""A whole federation in real processes, through the commands that people use: for end-to-end tests and benchmarks.

Every daemon runs in its own process group and is ended by its process id. Sites may dial the coordinator through a
relay of the test's own.
"""

import contextlib
import json
import os
import random  # test data only: nothing here protects anybody
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.api_client import Federation as ApiClient
from federation.errors import Unreachable
from tests.support.postgres import free_port

ROOT = Path(__file__).resolve().parent.parent.parent

CONTRACT = """\
apiVersion: confide/v1
kind: DataContract
name: heart/v1
columns:
  - {name: age, type: number, range: [0, 120], scaling: {centre: 55, scale: 10, clamp: 4}}
  - {name: pressure, type: number, range: [0, 300], scaling: {centre: 130, scale: 20, clamp: 4}}
  - {name: ill, type: integer, range: [0, 1]}
label: {column: ill, positive: [1]}
"""

POLICY = """\
apiVersion: confide/v1
kind: SitePolicy
default: refuse
members: accept
rules:
  - allow: {purpose: ["DUO:0000007"], dataset: heart, mechanism: [local-dp-sgd, none]}
floors: {quorum: 1, secure_aggregation: optional}
metrics_may_leave: [loss, accuracy, auc]
"""

PLAN: dict[str, Any] = {
    "apiVersion": "confide/v1",
    "kind": "TrainingJob",
    "name": "heart-risk",
    "purpose": {"code": "DUO:0000007", "text": "risk of heart disease"},
    "data": {"contract": "heart/v1", "label": "ill"},
    "model": {"kind": "logistic"},
    "training": {"local_steps": 2, "batch": 64, "optimizer": {"name": "sgd", "lr": 0.5}, "seed": 7},
    "privacy": {"unit": "record", "mechanism": "local-dp-sgd", "epsilon": 4.0, "delta": 1e-3, "clip": 1.0},
    "secure_aggregation": {"enabled": False},
    "rounds": 3,
    "deadlines": {"training_s": 120, "phase_s": 120},
    "weights": "uniform",
    "evaluate": {"every": 1, "metrics": ["loss", "accuracy", "auc"], "release": "public"},
}


class CommandFailed(AssertionError):
    """A command ended with another status than the test expects."""

    def __init__(self, arguments: tuple[str, ...], done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"confide {' '.join(arguments)}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        self.done = done


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of every process that a test starts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONFIDE")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **changes}


def run_confide(
    *arguments: str, timeout_s: float = 90, stdin: str | None = None, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run one command and return what came of it, whatever its status."""
    return subprocess.run(
        [sys.executable, "-m", "confide_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(**changes),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
    )


def confide(*arguments: str, status: int = 0, timeout_s: float = 90, **changes: str) -> str:
    """Run one command, expect `status`, and return its standard output."""
    done = run_confide(*arguments, timeout_s=timeout_s, **changes)
    if done.returncode != status:
        raise CommandFailed(arguments, done)
    return done.stdout


def wait_until(condition: Callable[[], Any], *, timeout_s: float = 120, what: str = "condition") -> Any:
    """Return the first truthy value of `condition`, or fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.1)


def write_patients(path: Path, *, count: int = 60, seed: int = 1) -> None:
    """Write `count` made-up patients whose risk grows with age and pressure; a third is held out."""
    source = random.Random(seed)
    lines = ["age,pressure,ill,fold"]
    for number in range(count):
        age, pressure = source.gauss(55, 10), source.gauss(130, 20)
        ill = int(source.random() < (0.8 if (age - 55) / 10 + (pressure - 130) / 20 > 0 else 0.2))
        fold = "held-out" if number % 3 == 2 else "train"
        lines.append(f"{min(max(age, 1), 119):.1f},{min(max(pressure, 60), 250):.1f},{ill},{fold}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass
class Daemon:
    """One running daemon and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End it as a power cut would: no goodbye, no children left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def text(self) -> str:
        """Return its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclass
class Federation:
    """A coordinator and sites under `folder`."""

    folder: Path
    link_port: int = field(default_factory=free_port)
    api_port: int = field(default_factory=free_port)
    daemons: dict[str, Daemon] = field(default_factory=dict)
    address_of: dict[str, int] = field(default_factory=dict)
    logs: Path | None = None

    def home(self, party: str) -> Path:
        """Return a party's home."""
        return self.folder / party

    def init(self) -> None:
        """Make the coordinator and its person alice."""
        home = str(self.home("coordinator"))
        confide(
            *("coordinator", "init", "--home", home, "--name", "test.example.org"),
            *("--address", f"127.0.0.1:{self.link_port}", "--api-listen", f"127.0.0.1:{self.api_port}"),
        )
        confide("coordinator", "user", "add", "alice", "--role", "coordinator", "--home", home)

    def serve(self, **changes: str) -> None:
        """Start the coordinator."""
        self.start("coordinator", "coordinator", "serve", ready="service.ready", **changes)

    def run_site(self, site: str, **changes: str) -> None:
        """Start a site."""
        self.start(site, "site", "run", ready="service.ready", **changes)

    def start(self, party: str, *arguments: str, ready: str, **changes: str) -> None:
        """Start a daemon and wait for its ready line."""
        log = (self.logs or self.home(party)) / f"test-{party}-{time.monotonic_ns()}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "confide_cli", *arguments, "--home", str(self.home(party))],
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                env=environment(**changes),
            )
        daemon = self.daemons[party] = Daemon(process, log)

        def is_ready() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"{party} ended with {process.returncode}:\n{daemon.text()[-4000:]}")
            return ready in daemon.text()

        wait_until(is_ready, timeout_s=120, what=f"{party} ready")

    def enrol(self, site: str, *, port: int | None = None) -> None:
        """Invite, enrol and confirm a site; `port` is a relay's, where the site dials one."""
        coordinator, home = str(self.home("coordinator")), str(self.home(site))
        token = self.folder / f"{site}.token"
        confide("coordinator", "invite", site, "--operator", f"Org {site}", "--out", str(token), "--home", coordinator)
        address = f"https://127.0.0.1:{port or self.link_port}"
        enrolled = json.loads(
            confide("site", "enrol", address, "--token-file", str(token), "--home", home, "--format", "json")
        )
        confide("coordinator", "sites", "confirm", site, "--words", enrolled["words"], "--home", coordinator)

    def add_data(
        self, site: str, *, count: int = 60, seed: int = 1, epsilon: float = 50.0, policy: str = POLICY
    ) -> None:
        """Give a site made-up patients and a policy."""
        (self.home(site) / "policy.yaml").write_text(policy, encoding="utf-8")
        data, contract = self.folder / f"{site}.csv", self.folder / "contract.yaml"
        contract.write_text(CONTRACT, encoding="utf-8")
        data_map = self.folder / "map.yaml"
        data_map.write_text(MAP, encoding="utf-8")
        write_patients(data, count=count, seed=seed)
        confide(
            *("site", "data", "add", "heart", "--home", str(self.home(site)), "--path", str(data)),
            *("--contract", str(contract), "--map", str(data_map), "--units", str(count * 2 // 3)),
            *("--split", "fold", "--held-out-public", "--epsilon", str(epsilon), "--delta", "1e-3"),
        )

    def plan(self, sites: list[str], *, quorum: int | None = None, **changes: Any) -> Path:
        """Write a plan for `sites` and return its file."""
        document = {**PLAN, "sites": {"invite": sites, "quorum": quorum or len(sites)}, **changes}
        path = self.folder / f"job-{time.monotonic_ns()}.yaml"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def job(self, *arguments: str, status: int = 0, timeout_s: float = 90) -> str:
        """Run `confide job …` as alice."""
        return confide("job", *arguments, "--home", str(self.home("coordinator")), status=status, timeout_s=timeout_s)

    def submit(self, plan: Path, *arguments: str) -> str:
        """Submit a plan and return the job's id."""
        job: str = json.loads(self.job("submit", str(plan), "--format", "json", *arguments))["job"]
        return job

    def show(self, job: str) -> dict[str, Any]:
        """Return the job as the API shows it."""
        with self.api() as api:
            return api.job(job).model_dump(mode="json")

    def api(self) -> ApiClient:
        """Return the API as alice sees it; a test that polls starts no process for it."""
        token = (self.home("coordinator") / "tokens" / "alice.token").read_text().strip()
        return ApiClient(f"http://127.0.0.1:{self.api_port}", token)

    def wait_for(self, job: str, *states: str, timeout_s: float = 120) -> dict[str, Any]:
        """Return the job once it is in one of `states`."""

        def found() -> dict[str, Any] | None:
            try:
                shown = self.show(job)
            except Unreachable:
                return None  # a coordinator that the test has just killed
            return shown if shown["state"] in states else None

        result: dict[str, Any] = wait_until(found, timeout_s=timeout_s, what=f"{job} {'|'.join(states)}")
        return result

    def trainer_pids(self, site: str) -> list[int]:
        """Return the process ids of a site's running trainers."""
        daemon = self.daemons[site].process.pid
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (entry / "cmdline").read_bytes()
                if parent == daemon and b"trainer" in command:
                    found.append(int(entry.name))
        return found

    def stop(self) -> None:
        """End every daemon."""
        for daemon in self.daemons.values():
            if daemon.process.poll() is None:
                daemon.process.terminate()
        deadline = time.monotonic() + 15
        for daemon in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            daemon.kill()


MAP = """\
apiVersion: confide/v1
kind: DataMap
contract: heart/v1
split: {column: fold, train: [train], held_out: [held-out]}
"""


@contextlib.contextmanager
def federation(folder: Path, sites: list[str]) -> Iterator[Federation]:
    """Yield a running coordinator with `sites` enrolled, given data, and running."""
    made = Federation(folder)
    made.init()
    try:
        made.serve()
        for number, site in enumerate(sites):
            made.enrol(site)
            made.add_data(site, seed=number + 1)
        for site in sites:
            made.run_site(site)
        yield made
    finally:
        made.stop()
