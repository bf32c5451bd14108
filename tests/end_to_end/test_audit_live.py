"""A daemon writes while an officer reads: real processes, one home."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.audit_logs import create

DAEMON = """
import sys, threading
from pathlib import Path
from audit.edge import SystemClock
from audit.events import Actor, DataRetired, Dataset
from audit.log import AuditLog
from audit.settings import LogSettings

log = AuditLog.open(
    Path(sys.argv[1]), clock=SystemClock(), serve_socket=True, settings=LogSettings(checkpoint_every_entries=16)
)
actor = Actor(kind="service", id="daemon")
dataset = Dataset(id="heart", version="sha256:" + "a" * 64)
ended = threading.Event()

def write():
    while not ended.wait(0.02):
        log.append(DataRetired(id=log.new_id(), decision="allowed", actor=actor, dataset=dataset))

threads = [threading.Thread(target=write) for _ in range(3)]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.read()
ended.set()
for thread in threads:
    thread.join()
log.close()
"""
COMMAND = "import sys; from audit.command import main; sys.exit(main(sys.argv[1:]))"


def python(program: str, *arguments: str, home: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "CONFIDE_HOME": str(home)},
    )


@pytest.mark.process
def test_an_officer_reads_and_verifies_while_the_daemon_writes(tmp_path: Path) -> None:
    create(tmp_path).close()
    daemon = python(DAEMON, str(tmp_path / "audit"), home=tmp_path)
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == "ready\n"
    sizes = []
    for _ in range(2):
        verify = python(COMMAND, "verify", "--format", "json", home=tmp_path)
        out, err = verify.communicate(timeout=120)
        assert verify.returncode == 0, out + err
        sizes.append(json.loads(out)["log"]["size"])
        query = python(COMMAND, "query", "--action", "audit", "--format", "jsonl", home=tmp_path)
        out, err = query.communicate(timeout=120)
        assert query.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["event"]["action"] == "audit.verified"
    assert sizes == sorted(set(sizes))
    _, err = daemon.communicate("", timeout=120)
    assert (daemon.returncode, err) == (0, "")
    verify = python(COMMAND, "verify", "--complete", "--format", "json", home=tmp_path)
    out, _ = verify.communicate(timeout=120)
    assert verify.returncode == 0
    assert json.loads(out)["notes"] == []
