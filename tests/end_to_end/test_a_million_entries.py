"""A log of a million entries: read by pages and as a whole, verified in flat memory, written all the while."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from audit.edge import SystemClock
from audit.events import Actor, Dataset, DataVerified
from audit.log import AuditLog
from tests.support.long_log import DATASETS, write_long_log

ENTRIES = 1_000_000
MEMORY_BYTES = 300 * 1024 * 1024
COMMAND = "import sys; from audit.command import main; sys.exit(main(sys.argv[1:]))"

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(4 * 3600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write_long_log(home, ENTRIES)
    return home


def audit(home: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "CONFIDE_HOME": str(home)},
    )


def memory_bytes(pid: int) -> int:
    """What a process and those that it started have in memory, shared pages in shares."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return total
    return total + sum(memory_bytes(int(child)) for child in children)


def watched(command: "subprocess.Popen[bytes]") -> tuple[list[bytes], int]:
    """The first and the last line that a command prints, their number, and its peak memory."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], memory_bytes(command.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    first: list[bytes] = []
    last, count = b"", 0
    with command:
        assert command.stdout is not None
        assert command.stderr is not None
        for line in command.stdout:
            first = first or [line]
            last, count = line, count + 1
        said = command.stderr.read()
    ended.set()
    watcher.join()
    assert b"locked" not in said
    assert command.returncode == 0, said
    return [*first, last, str(count).encode()], peak[0]


@contextmanager
def writers(log: AuditLog, count: int) -> Iterator[list[float]]:
    """Append with `count` threads meanwhile, and gather how long each entry took."""
    took: list[float] = []
    failed: list[Exception] = []
    ended = threading.Event()
    dataset = Dataset(id=DATASETS[0], version="sha256:" + "a" * 64)
    actor = Actor(kind="service", id="daemon")

    def write() -> None:
        while not ended.wait(0.01):
            began = time.perf_counter()
            try:
                log.append(DataVerified(id=log.new_id(), decision="allowed", actor=actor, dataset=dataset))
            except Exception as error:  # noqa: BLE001 (what a writer met is what the test is about)
                failed.append(error)
                return
            took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=write) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_pages_come_from_any_place(home: Path) -> None:
    for after in (0, ENTRIES // 2, ENTRIES - 102):
        lines, peak = watched(audit(home, "query", "--limit", "100", "--after", str(after), "--format", "jsonl"))
        assert [json.loads(line)["index"] for line in lines[:2]] == [after + 1, after + 100]
        assert peak < MEMORY_BYTES


def test_a_filter_finds_its_rows_and_no_others(home: Path) -> None:
    filters = ("--dataset", DATASETS[3], "--since", "2024-03-01", "--until", "2024-04-01", "--format", "jsonl")
    lines, peak = watched(audit(home, "query", *filters))
    for line in lines[:2]:
        event = json.loads(line)["event"]
        assert event["dataset"]["id"] == DATASETS[3]
        assert json.loads(line)["time"].startswith("2024-03")
    assert 500 < int(lines[-1]) < 5000
    assert peak < MEMORY_BYTES


def test_verifying_takes_little_memory(home: Path) -> None:
    lines, peak = watched(audit(home, "verify", "--complete", "--format", "jsonl"))
    found = json.loads(lines[0])
    assert (found["verdict"], found["flaws"]) == ("verified", [])
    assert found["log"]["size"] >= ENTRIES
    assert peak < MEMORY_BYTES


def test_a_reader_of_everything_hinders_no_writer(home: Path) -> None:
    with AuditLog.open(home / "audit", clock=SystemClock(), serve_socket=True) as log:
        with writers(log, 4) as alone:
            time.sleep(20)
        with writers(log, 4) as beside:
            lines, peak = watched(audit(home, "query", "--format", "jsonl"))
    assert int(lines[-1]) >= ENTRIES
    assert peak < MEMORY_BYTES
    assert len(beside) > 100
    # The reader takes a core and its share of the disk, and no lock: nobody waits until it ends.
    assert statistics.median(beside) < 5 * statistics.median(alone) + 0.02
    assert max(itertools.chain(alone, beside)) < 10
