"""The process that writes the log is killed at any moment: what was acknowledged is there, and the log goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from audit.reading import find_log, read_rows
from tests.support.audit_logs import create, draft, log_settings, reopen, verified

# One interpreter that has everything imported forks a writer for each round, so that a round is short.
KILLER = """
import os, signal, sys, threading, time
from pathlib import Path
from audit.edge import SystemClock
from audit.events import Actor, DataRetired, Dataset
from audit.log import AuditLog
from audit.settings import LogSettings

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
actor = Actor(kind="service", id="daemon")
dataset = Dataset(id="heart", version="sha256:" + "a" * 64)

def write(log, pipe):
    while True:
        receipt = log.append(DataRetired(id=log.new_id(), decision="allowed", actor=actor, dataset=dataset))
        os.write(pipe, f"{receipt.index} {receipt.leaf_hash.hex()}\\n".encode())

def child(pipe):
    log = AuditLog.open(folder, clock=SystemClock(), settings=LogSettings(checkpoint_every_entries=16))
    os.write(pipe, b"opened\\n")
    for _ in range(6):
        threading.Thread(target=write, args=(log, pipe)).start()
    signal.pause()

for number in range(rounds):
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        child(writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        first = pipe.readline()
        time.sleep(0.003 * (number % 20))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        lines = pipe.read().split(b"\\n")[:-1]  # the kill may cut the last line of the pipe
    assert first == b"opened\\n", first
    print(*(line.decode() for line in lines), sep="\\n")
"""


def killed_often(folder: Path, rounds: int) -> dict[int, str]:
    """Return what was acknowledged, by index, over `rounds` killed processes."""
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(folder), str(rounds)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        index, _, digest = line.partition(" ")
        if len(digest) == 64:
            found[int(index)] = "sha256:" + digest
    return found


@pytest.mark.process
@pytest.mark.parametrize("rounds", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_nine_loses_no_acknowledged_entry(tmp_path: Path, database_url: str, rounds: int) -> None:
    create(tmp_path, settings=log_settings(database_url)).close()
    acknowledged = killed_often(tmp_path / "audit", rounds)
    rows = {row.index: row for row in read_rows(find_log(tmp_path))}
    assert len(acknowledged) > rounds // 2  # how many there are in so short a time is the machine's affair
    assert {index for index, digest in acknowledged.items() if rows[index].leaf_hash != digest} == set()
    with reopen(tmp_path) as log:
        log.append(draft())
    result = verified(tmp_path, complete=True)
    assert result.flaws == []
    booted = [row.event for row in read_rows(find_log(tmp_path)) if row.event["action"] == "log.booted"]
    assert [event.get("unclean", False) for event in booted] == [False, False, *([True] * rounds)]
    kept = sorted((tmp_path / "audit" / "1" / "aside").glob("*.wal")) if "sqlite" in database_url else []
    assert len(kept) <= 3
