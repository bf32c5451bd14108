"""The coordinator as a process: ready, stopped by a signal, refused where a port or a home is in use."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import free_port
from tests.support.processes import ROOT, environment

pytestmark = [pytest.mark.process, pytest.mark.enable_socket, pytest.mark.timeout(180)]
CONFIDE = [sys.executable, "-m", "confide_cli", "coordinator"]


def confide(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*CONFIDE, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=60
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder, link = tmp_path / "coordinator", free_port()
    done = confide("init", "--home", str(folder), "--name", "heart.example.org", "--address", f"127.0.0.1:{link}")
    assert done.returncode == 0, done.stderr
    configuration = folder / "coordinator.yaml"
    lines = [line for line in configuration.read_text().splitlines() if not line.startswith("api_listen:")]
    configuration.write_text("\n".join([*lines, f"api_listen: 127.0.0.1:{free_port()}", ""]))
    return folder


class Served:
    """A coordinator that is being served."""

    def __init__(self, home: Path) -> None:
        self.ready_file = home.parent / "ready.json"
        self.ready_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [*CONFIDE, "serve", "--home", str(home), "--ready-file", str(self.ready_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )

    def wait_until_ready(self) -> dict[str, int]:
        ends = time.monotonic() + 60
        while not self.ready_file.exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < ends
            time.sleep(0.05)
        ready: dict[str, int] = json.loads(self.ready_file.read_text())
        return ready

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, talk = self.process.communicate(timeout=60)
        return self.process.returncode, talk


@pytest.fixture
def served(home: Path) -> Iterator[Served]:
    made = Served(home)
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_stops_at_a_safe_point_and_lets_go_of_everything(served: Served, home: Path, number: int) -> None:
    ready = served.wait_until_ready()
    with socket.create_connection(("127.0.0.1", ready["link"]), timeout=5):
        pass
    assert ready["pid"] == served.process.pid
    status, talk = served.end(number)
    assert status == 0, talk
    lines = [json.loads(line) for line in talk.splitlines()]
    said = [line for line in lines if line["event"].startswith("service.")]
    assert [line["event"] for line in said] == ["service.ready", "service.stopping", "service.stopped"]
    assert said[0]["address"] == f"0.0.0.0:{ready['link']}"
    assert said[0]["api"] == f"127.0.0.1:{ready['api']}"
    assert {"ts", "level"} <= set(said[0])
    assert not served.ready_file.exists()
    again = Served(home)
    again.wait_until_ready()
    assert again.end(signal.SIGTERM)[0] == 0


def test_a_second_process_on_the_home_is_refused_and_named(served: Served, home: Path) -> None:
    served.wait_until_ready()
    refused = confide("serve", "--home", str(home))
    assert refused.returncode == 78
    assert f"process {served.process.pid} already uses {home}" in refused.stderr
    checked = confide("check", "--home", str(home), "--format", "json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["problems"] == []


def test_a_port_in_use_ends_the_start_at_once_and_says_by_whom(home: Path) -> None:
    configuration = (home / "coordinator.yaml").read_text()
    port = int(next(line for line in configuration.splitlines() if line.startswith("address:")).rpartition(":")[2])
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen(1)
        refused = confide("serve", "--home", str(home))
        checked = confide("check", "--home", str(home))
    assert refused.returncode == checked.returncode == 78
    assert f"port {port} is in use by process {os.getpid()}" in refused.stderr
    assert "error CFD-J13" in refused.stderr
    assert f"port {port} is in use" in checked.stdout


def test_a_killed_coordinator_keeps_neither_lock_nor_port(served: Served, home: Path) -> None:
    served.wait_until_ready()
    served.process.kill()
    served.process.communicate()
    again = Served(home)
    again.wait_until_ready()
    assert again.end(signal.SIGTERM)[0] == 0


def test_ready_and_stopping_are_told_to_systemd(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(60)
        process = subprocess.Popen(
            [*CONFIDE, "serve", "--home", str(home)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(NOTIFY_SOCKET=str(path)),
        )
        assert listener.recv(100) == b"READY=1"
        process.terminate()
        assert listener.recv(100) == b"STOPPING=1"
        _, talk = process.communicate(timeout=60)
    assert process.returncode == 0, talk


def test_a_verb_that_does_not_exist_is_usage_and_help_needs_no_home() -> None:
    assert confide("dance").returncode == 2
    shown = confide("--help")
    assert shown.returncode == 0
    for verb in ("init", "serve", "check", "invite", "sites", "user", "charter", "certificate"):
        assert f"  {verb} " in shown.stdout
        assert "Example" in confide(verb, "--help").stdout
