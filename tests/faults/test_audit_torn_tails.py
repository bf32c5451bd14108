"""A process or a machine stops in the middle of an append: what was acknowledged is there, the rest is set aside."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from audit.errors import LogBehind, LogDamaged
from audit.reading import find_log, read_rows
from tests.support.audit_logs import (
    closed_home,
    create,
    draft,
    entries_file,
    killed_home,
    lines_of,
    reopen,
)


def booted_after(home: Path) -> dict[str, object]:
    return [row.event for row in read_rows(find_log(home)) if row.event["action"] == "log.booted"][-1]


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"{", id="one byte"),
        pytest.param(b'{"chain":"sha256:0000', id="a piece of a line"),
        pytest.param(b"\x00" * 4096, id="zeros"),
        pytest.param(b'{"chain":"sha2' + b"\x00" * 4096, id="a piece, then zeros"),
        pytest.param(b"\x00" * (1 << 20), id="more zeros than any line"),
    ],
)
def test_a_torn_tail_is_set_aside_and_recorded(tmp_path: Path, tail: bytes) -> None:
    home = killed_home(tmp_path)
    whole = entries_file(home).read_bytes()
    entries_file(home).write_bytes(whole + tail)
    reopen(home).close()
    assert entries_file(home).read_bytes().startswith(whole)
    booted = booted_after(home)
    assert booted["set_aside"] == {"hash": "sha256:" + hashlib.sha256(tail).hexdigest(), "bytes": len(tail)}
    assert booted["unclean"] is True
    assert (home / "audit" / "1" / "aside" / "1.tail").read_bytes() == tail


def test_a_log_cut_at_any_byte_opens_as_a_prefix(tmp_path: Path) -> None:
    home = killed_home(tmp_path / "home", entries=3)
    lines = lines_of(home)
    whole = b"".join(lines)
    start = len(b"".join(lines[:-2]))
    for cut in range(start, len(whole), 37):
        entries_file(home).write_bytes(whole[:cut])
        reopen(home).close()
        kept = entries_file(home).read_bytes()
        assert kept.startswith(whole[: whole.rfind(b"\n", 0, cut) + 1])
        (home / "audit" / "1" / "checkpoint").write_bytes(_first_checkpoint(tmp_path, home))


def _first_checkpoint(folder: Path, home: Path) -> bytes:
    """The checkpoint over entry 0 alone, as the killed process had left it."""
    from audit import checkpoint, merkle
    from audit.key_files import read_key
    from audit.storage import parse_line

    origin = "heart.example.org/cleveland/audit/1"
    leaf = parse_line(lines_of(home)[0].removesuffix(b"\n")).leaf
    signer = read_key(home / "audit" / "keys" / "log-1.key", origin)
    return checkpoint.sign(origin, 1, merkle.root_of([leaf]), signer)


def test_a_cut_below_the_checkpoint_is_no_torn_tail(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    whole = entries_file(home).read_bytes()
    entries_file(home).write_bytes(whole[:-1])
    with pytest.raises(LogBehind):
        reopen(home)
    assert entries_file(home).read_bytes() == whole[:-1]
    assert not (home / "audit" / "1" / "aside").exists()


@pytest.mark.parametrize("place", ["middle", "end"])
def test_zeros_inside_the_file_are_no_torn_tail(tmp_path: Path, place: str) -> None:
    home = killed_home(tmp_path)
    lines = lines_of(home)
    at = len(lines) // 2 if place == "middle" else len(lines) - 1
    lines[at] = lines[at][:40] + b"\x00" * 40 + lines[at][80:]
    entries_file(home).write_bytes(b"".join(lines))
    with pytest.raises(LogDamaged):
        reopen(home)


def test_only_three_torn_tails_are_kept(tmp_path: Path) -> None:
    home = killed_home(tmp_path)
    for number in range(5):
        with entries_file(home).open("ab") as file:
            file.write(b"x" * (number + 1))
        reopen(home).close()
    kept = sorted((home / "audit" / "1" / "aside").iterdir())
    assert [path.name for path in kept] == ["3.tail", "4.tail", "5.tail"]


def test_a_private_value_without_an_entry_is_swept(tmp_path: Path) -> None:
    from tests.support.audit_logs import HandClock

    clock = HandClock()
    with create(tmp_path, clock) as log:
        left = log.private.commit("reason", "nobody named it")
    clock.pass_s(7200)
    with reopen(tmp_path, clock) as log:
        assert log.private.value_of(left) is None


WRITER = """
import os, sys, threading
from pathlib import Path
from audit.edge import SystemClock
from audit.events import Actor, DataRetired, Dataset
from audit.log import AuditLog
from audit.settings import LogSettings

log = AuditLog.open(Path(sys.argv[1]), clock=SystemClock(), settings=LogSettings(checkpoint_every_entries=16))
actor = Actor(kind="service", id="daemon")
dataset = Dataset(id="heart", version="sha256:" + "a" * 64)

def write():
    while True:
        receipt = log.append(DataRetired(id=log.new_id(), decision="allowed", actor=actor, dataset=dataset))
        os.write(1, f"{receipt.index} {receipt.leaf_hash.hex()}\\n".encode())

for _ in range(6):
    threading.Thread(target=write).start()
"""


@pytest.mark.process
def test_kill_nine_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    create(tmp_path).close()
    acknowledged: dict[int, str] = {}
    for attempt in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "audit")],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(0.02 * (attempt + 1))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
        process.stdout.close()
        for line in (first + rest).decode().splitlines():
            index, _, digest = line.partition(" ")
            if len(digest) == 64:  # the kill may cut the last line of the pipe
                acknowledged[int(index)] = digest
    rows = {row.index: row.leaf_hash for row in read_rows(find_log(tmp_path))}
    assert len(acknowledged) > 100
    missing = {index for index, digest in acknowledged.items() if rows.get(index) != "sha256:" + digest}
    assert missing == set()
    with reopen(tmp_path) as log:
        log.append(draft())
