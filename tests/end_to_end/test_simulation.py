"""`confide job simulate` on the real engine: Flower's simulation on Ray, in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time  # real processes take real time
from pathlib import Path

import pytest

from coordinator import simulation_command, simulation_process
from coordinator.simulation_process import SimulationProcess, processes_of
from federation import flower
from federation import plan as plans
from federation.errors import ConfideError
from tests.support.plans import REMOVE, document
from tests.support.simulated import Simulated
from tests.support.virtual_engine import a_small_contract

pytestmark = [pytest.mark.process, pytest.mark.enable_socket, pytest.mark.timeout(500)]

RECORDER = """\
import os, socket
_sink = os.environ.get("LOOKUPS_FILE")
def _write(text):
    with open(_sink, "a") as sink:
        sink.write(f"{os.getpid()} {text}\\n")
def _recording(name):
    original = getattr(socket, name)
    def call(*arguments, **more):
        _write(f"{name} {arguments[0] if arguments else more.get('host')}")
        return original(*arguments, **more)
    setattr(socket, name, call)
if _sink:
    _write("began")
    for _name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        _recording(_name)
"""
PLAIN = {
    "privacy": {"unit": "record", "mechanism": "none"},
    "evaluate": REMOVE,
    "training": {"local_steps": 3, "batch": 8, "optimizer": {"name": "sgd", "lr": 0.5}, "seed": 7},
    "model": {"kind": "mlp", "hidden": [4], "activation": "tanh"},
    "rounds": 2,
}
NOISY = {
    "privacy": {"unit": "record", "mechanism": "local-dp-sgd", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0},
    "training": {"local_steps": 2, "batch": 8, "optimizer": {"name": "sgd", "lr": 0.5}, "seed": 7},
    "model": {"kind": "logistic"},
    "evaluate": {"every": 1, "metrics": ["loss", "accuracy", "auc"], "release": "charged", "epsilon": 1.0},
    "rounds": 2,
}


def a_folder(folder, changes):
    folder.mkdir()
    (folder / "job.yaml").write_text(json.dumps(document(**changes)))
    (folder / "contract.yaml").write_text(a_small_contract().model_dump_json(by_alias=True))
    return folder / "job.yaml"


def listening(process):
    """Return the local addresses that a process's own network listens on, in hex, without ports; none in ours."""
    network = os.readlink(f"/proc/{process}/ns/net")
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    ]
    if os.readlink("/proc/self/ns/net") in (network, os.readlink(f"/proc/{process}/ns/net")):
        return set()
    return {fields[1].partition(":")[0] for fields in lines if fields[3] == "0A"}


class Watched(SimulationProcess):
    """A simulation whose processes and listening sockets are looked at while it runs."""

    seen: "list[Watched]"

    def __init__(self, order, **more):
        super().__init__(order, **more)
        self.ids, self.names, self.listeners, self.over = set(), set(), set(), threading.Event()
        self.order = order
        self.seen.append(self)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self):
        while not self.over.wait(0.3):
            for process in self.processes():
                self.ids.add(process)
                try:
                    self.names.add(Path(f"/proc/{process}/comm").read_text().strip())
                    self.listeners |= listening(process)
                except OSError:
                    continue  # it has just ended

    def end(self, *, patience_s):
        super().end(patience_s=patience_s)
        self.over.set()
        self._watcher.join()


class Run:
    """One simulation, and everything that was seen of it."""

    def __init__(self, folder, changes, *arguments):
        self.out, self.lookups_file = folder / "out", folder / "lookups"
        plan = a_folder(folder / "in", changes)
        recorder = folder / "recorder"
        recorder.mkdir()
        (recorder / "sitecustomize.py").write_text(RECORDER)
        built = simulation_process.environment

        def recorded(variables, **more):
            found = built(variables, **more)
            path = os.pathsep.join([str(recorder), found["PYTHONPATH"]])
            return {**found, "PYTHONPATH": path, "LOOKUPS_FILE": str(self.lookups_file)}

        printed = folder / "printed"
        with pytest.MonkeyPatch.context() as patch, printed.open("w") as sink:
            watched = type("WatchedHere", (Watched,), {"seen": []})
            patch.setattr(simulation_process, "environment", recorded)
            patch.setattr(simulation_command, "SimulationProcess", watched)
            patch.setattr(sys, "stdout", sink)
            begun = time.monotonic()
            self.status = simulation_command.main(
                [str(plan), "--out", str(self.out), "--format", "json", "--up-s", "300", *arguments]
            )
            self.seconds = time.monotonic() - begun
        self.printed = json.loads(printed.read_text())
        (self.process,) = watched.seen
        self.lookups = [line.split() for line in self.lookups_file.read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("plain"), PLAIN, "--units", "40")


def test_the_real_engine_ends_with_the_bits_of_the_same_apps_in_one_process(plain, tmp_path, monkeypatch):
    assert (plain.status, plain.printed["state"], plain.printed["rounds_released"]) == (0, "completed", 2)
    for name, value in flower.quiet_variables(tmp_path).items():
        monkeypatch.setenv(name, value)  # so that the environment of the test process is restored
    plan = plans.from_document(document(**PLAIN))
    in_process = Simulated(tmp_path / "run", plan, a_small_contract(), order={"units": 40})
    assert plain.printed["model"] == in_process.result.model


def test_what_stays_is_the_model_the_figures_and_a_log_that_verifies(plain):
    names = {path.name for path in plain.out.iterdir()}
    assert names == {"model.safetensors", "simulation.json", "simulation.log", "audit", "trust"}
    assert json.loads((plain.out / "simulation.json").read_bytes())["model"] == plain.printed["model"]
    verified = subprocess.run(
        [sys.executable, "-m", "confide_cli", "audit", "verify", str(plain.out)], capture_output=True, text=True
    )
    assert (verified.returncode, "verified" in verified.stdout) == (0, True)


def test_the_engine_and_its_processes_look_up_no_name_but_this_machines(plain):
    began = {process for process, what, *_ in plain.lookups if what == "began"}
    assert len(began) >= 3, "the recorder ran in the simulation, in Ray's own processes and in its workers"
    own = {"localhost", "None", "", os.uname().nodename}
    asked = {name for _, what, *names in plain.lookups if what != "began" for name in names}
    assert {name for name in asked if not _is_number(name)} <= own


def _is_number(name):
    return name.replace(".", "").isdigit() or ":" in name


def test_the_recorder_would_have_seen_a_look_up(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    code = "import socket\ntry:\n    socket.getaddrinfo('telemetry.invalid', 443)\nexcept OSError:\n    pass"
    environment = {"PYTHONPATH": str(tmp_path), "LOOKUPS_FILE": str(tmp_path / "lookups")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert "getaddrinfo telemetry.invalid" in (tmp_path / "lookups").read_text()


def test_no_process_and_no_folder_of_the_engine_is_left(plain):
    assert len(plain.process.ids) >= 5
    assert "raylet" in plain.process.names
    assert plain.process.processes() == []
    assert not any(Path(f"/proc/{process}").exists() and _is_running(process) for process in plain.process.ids)
    assert not Path(plain.process.order.engine_folder).exists()
    assert not Path(plain.process.order.folder).exists()


def _is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def test_where_the_kernel_gives_a_network_nothing_listens_but_on_loopback(plain):
    possible = subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True).returncode == 0
    log = (plain.out / "simulation.log").read_text()
    assert "Traceback" not in log
    if possible:
        # 127.0.0.1, and the same as IPv6 writes it; /proc/net/tcp has each 32-bit word in the machine's own order.
        assert plain.process.listeners
        assert plain.process.listeners <= {"0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000"}


def test_sites_that_do_not_come_up_in_time_end_the_simulation_and_all_of_its_processes(tmp_path):
    with pytest.raises(ConfideError) as found:
        Run(tmp_path, PLAIN, "--units", "40", "--up-s", "0.5")
    assert (found.value.code, found.value.exit_status) == ("CFD-J11", 5)


@pytest.mark.slow
def test_a_simulation_dies_with_the_command_that_started_it(tmp_path):
    plan = a_folder(tmp_path / "in", NOISY)
    command = [sys.executable, "-m", "confide_cli", "job", "simulate", str(plan), "--rounds", "500"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    for line in process.stderr:
        if line.startswith("up after"):
            break
    (child,) = (int(found) for found in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    before = processes_of(child, "none")
    assert len(before) >= 5
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    until = time.monotonic() + 60
    while (left := processes_of(child, "none")) and time.monotonic() < until:
        time.sleep(0.5)
    assert left == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_hundred_virtual_sites_train_under_noise_and_spend_what_was_planned(tmp_path):
    run = Run(tmp_path, NOISY, "--sites", "100", "--units", "40", "--up-s", "600")
    assert (run.status, run.printed["state"], run.printed["sites"], run.printed["quorum"]) == (0, "completed", 100, 75)
    assert run.printed["rounds_released"] == 2
    assert 0 < run.printed["epsilon"] <= 8.0
    assert set(run.printed["metrics"]) == {"loss", "accuracy", "auc"}
    assert run.process.processes() == []
