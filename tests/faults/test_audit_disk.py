"""What a disk does to the log: it fills up, it fails, it keeps half of what was written when the power goes."""

import hashlib
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from audit.errors import AppendFailed, AuditError, LogBehind, LogDamaged
from audit.log import AuditLog
from audit.reading import find_log, read_rows
from tests.support import sqlite_faults
from tests.support.audit_logs import (
    create,
    draft,
    events_in,
    files_of,
    kill,
    killed_home,
    leaves_of,
    log_file,
    reopen,
    verified,
)


def connection_of(log: AuditLog) -> sqlite3.Connection:
    connection: sqlite3.Connection = log._committer._store._driver
    return connection


def write_ahead(home: Path) -> Path:
    return log_file(home).with_name("log.db-wal")


# --- what a power cut leaves --------------------------------------------------------------------------------------


def test_what_an_unclean_end_left_is_set_aside_and_recorded(tmp_path: Path) -> None:
    home = killed_home(tmp_path)
    left = write_ahead(home).read_bytes()
    reopen(home).close()
    booted = [event for event in events_in(home / "audit") if event["action"] == "log.booted"][-1]
    assert booted["unclean"] is True
    assert booted["set_aside"] == {"hash": "sha256:" + hashlib.sha256(left).hexdigest(), "bytes": len(left)}
    assert (home / "audit" / "1" / "aside" / "1.wal").read_bytes() == left
    assert verified(home, complete=True).flaws == []


def test_only_three_are_kept_aside(tmp_path: Path) -> None:
    home = killed_home(tmp_path)
    for _ in range(5):
        log = reopen(home)
        log.append(draft())
        kill(log, home)
    reopen(home).close()
    kept = sorted(path.name for path in (home / "audit" / "1" / "aside").iterdir())
    assert kept == ["4.wal", "5.wal", "6.wal"]


def test_a_clean_end_is_not_called_unclean_because_a_reader_was_there(tmp_path: Path) -> None:
    create(tmp_path).close()
    reader = sqlite3.connect(log_file(tmp_path))
    reader.execute("SELECT count(*) FROM entry").fetchone()
    with reopen(tmp_path) as log:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchone()  # its moment keeps pages in the write-ahead log
        log.append(draft())
    assert write_ahead(tmp_path).stat().st_size > 0
    reopen(tmp_path).close()
    reader.close()
    booted = [event for event in events_in(tmp_path / "audit") if event["action"] == "log.booted"]
    assert [event.get("unclean") for event in booted] == [None, None, None]
    assert not (tmp_path / "audit" / "1" / "aside").exists()


def torn(data: bytes) -> list[tuple[str, bytes]]:
    """What may be left of a write-ahead log: cut, with garbage or zeros behind it, with bits flipped."""
    size = len(data)
    cuts = [(f"cut at {at}", data[:at]) for at in range(0, size, max(1, size // 40))]
    flips = []
    for at in range(7, size, max(1, size // 60)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        flips.append((f"bit flipped at {at}", bytes(flipped)))
    tails = [
        ("garbage behind", data + os.urandom(3000)),
        ("zeros behind", data + bytes(8192)),
        ("its own beginning behind", data + data[:5000]),
        *((f"zeros from {at}", data[:at] + bytes(size - at)) for at in range(0, size, max(1, size // 12))),
    ]
    return [*cuts, *flips, *tails]


def test_a_torn_wal_opens_as_a_prefix(tmp_path: Path) -> None:
    home = killed_home(tmp_path / "home", entries=9)
    whole = leaves_of(home)
    cases = torn(write_ahead(home).read_bytes())
    assert len(cases) >= 110
    opened = 0
    for what, data in cases:
        again = tmp_path / "again"
        shutil.copytree(home, again)
        write_ahead(again).write_bytes(data)
        before = files_of(again)
        try:
            reopen(again).close()
        except (LogDamaged, LogBehind, AuditError):
            assert files_of(again) == before, what
        else:
            opened += 1
            kept = leaves_of(again)
            length = next(at for at, leaf in enumerate([*kept, b""]) if at >= len(whole) or leaf != whole[at])
            assert kept[:length] == whole[:length], what
            assert events_in(again / "audit")[length]["action"] == "log.booted", what
            assert verified(again).flaws == [], what
        shutil.rmtree(again)
    assert opened > 10


def test_a_wal_that_lost_what_a_checkpoint_covers_does_not_start(tmp_path: Path) -> None:
    home = killed_home(tmp_path)
    log = reopen(home)
    for _ in range(3):
        log.append(draft())
    log.checkpoint()
    kill(log, home)
    left = write_ahead(home).read_bytes()
    write_ahead(home).write_bytes(left[: len(left) // 2])
    before = files_of(home)
    with pytest.raises(LogBehind, match="truncated"):
        reopen(home)
    assert files_of(home) == before


# --- a full disk --------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_act_and_heals(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        kept = draft()
        with sqlite_faults.writing(connection_of(log), lambda _offset: sqlite_faults.FULL):
            for _ in range(3):
                with pytest.raises(AppendFailed, match="full"):
                    log.append(kept)
            assert log.broken == ""
        receipt = log.append(kept)
        assert (receipt.index, receipt.event["seq"]) == (2, 2)
    assert verified(tmp_path, complete=True).flaws == []


def test_a_disk_that_fills_up_in_the_middle_of_a_batch_leaves_none_of_it(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        writes = itertools.count()
        with sqlite_faults.writing(connection_of(log), lambda _: None if next(writes) < 3 else sqlite_faults.FULL):
            futures = [log.submit(draft()) for _ in range(20)]
            failed = [future for future in futures if isinstance(future.exception(), AppendFailed)]
        assert len(failed) >= 19
        log.append(draft())
        assert log.size == len(leaves_of(tmp_path)) == 2 + 20 - len(failed) + 1
    assert verified(tmp_path, complete=True).flaws == []


SMALL_DISK = """
import os, sys
from pathlib import Path
from audit.edge import SystemClock
from audit.errors import AppendFailed
from audit.events import Actor, DataRetired, Dataset
from audit.log import AuditLog

home = Path(sys.argv[1])
actor = Actor(kind="service", id="daemon")
dataset = Dataset(id="heart", version="sha256:" + "a" * 64)
log = AuditLog.create(home / "audit", origin_federation="heart.example.org", party="cleveland", clock=SystemClock())
ballast = home / "ballast"
with ballast.open("wb") as file:
    file.write(bytes(1 << 20))
done = 0
while True:
    try:
        log.append(DataRetired(id=log.new_id(), decision="allowed", actor=actor, dataset=dataset))
        done += 1
    except AppendFailed:
        break
kept = DataRetired(id=log.new_id(), decision="allowed", actor=actor, dataset=dataset)
for _ in range(2):
    try:
        log.append(kept)
    except AppendFailed:
        continue
    sys.exit("an append on a full disk was acknowledged")
print("full after", done, "broken" if log.broken else "whole")
ballast.unlink()
receipt = log.append(kept)
assert receipt.index == done + 2, receipt.index
log.close()
from audit.command import main
sys.exit(main(["verify", str(home), "--complete"]))
"""


def on_a_small_disk(home: Path) -> list[str]:
    """Return the words that run a command with a file system of 4 MiB at `home`, which it alone sees."""
    own = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    mount = f'mount -t tmpfs -o size=4m none "{home}" && exec "$@"'
    return ["unshare", "--mount", *own, "sh", "-c", mount, "sh"]


@pytest.mark.process
def test_a_small_disk_fills_up_and_the_log_goes_on_after_room_was_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [*on_a_small_disk(home), sys.executable, "-c", SMALL_DISK, str(home)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "XDG_CONFIG_HOME": str(tmp_path)},
        timeout=240,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "full after" in done.stdout
    assert "whole" in done.stdout
    assert done.stdout.splitlines()[-1] == "verified"


# --- a disk that fails --------------------------------------------------------------------------------------------


def test_a_failed_fsync_is_never_retried(tmp_path: Path) -> None:
    log = create(tmp_path)
    syncs = itertools.count(1)
    seen = 0
    with sqlite_faults.syncing(connection_of(log), lambda: next(syncs) and sqlite_faults.SYNC_FAILED):
        with pytest.raises(AppendFailed) as kept:
            log.append(draft())
        seen = next(syncs)
        for _ in range(3):
            with pytest.raises(AppendFailed):
                log.append(draft())
        assert next(syncs) == seen + 1  # nobody asked the disk again
    assert "disk failed" in log.broken
    with pytest.raises(AppendFailed):
        log.append(draft())
    with pytest.raises(AppendFailed):
        log.close()
    with reopen(tmp_path) as again:  # the home was let go of, and what is on the disk is judged anew
        assert again.size >= 3
    assert "disk failed" in kept.value.message
    assert verified(tmp_path).flaws == []


def test_who_runs_the_log_is_told_once_that_its_disk_failed(tmp_path: Path) -> None:
    create(tmp_path).close()
    told: list[str] = []
    log = reopen(tmp_path, on_broken=told.append)
    with sqlite_faults.syncing(connection_of(log), lambda: sqlite_faults.SYNC_FAILED):
        for _ in range(2):
            with pytest.raises(AppendFailed):
                log.append(draft())
    with pytest.raises(AppendFailed):
        log.close()
    assert told == [log.broken]


def test_a_failed_sync_of_the_file_itself_ends_the_process_too(tmp_path: Path) -> None:
    log = create(tmp_path)
    store = log._committer._store
    kept = log.append(draft())
    with sqlite_faults.syncing(connection_of(log), lambda: sqlite_faults.SYNC_FAILED, own_file=True):
        with pytest.raises(AppendFailed):
            store.move_pages(at_once=True)
        with pytest.raises(AppendFailed):
            log.append(draft())
    assert log.broken
    kill_files = tmp_path / "audit"
    shutil.copytree(kill_files, tmp_path / "copy" / "audit")
    with pytest.raises(AppendFailed):
        log.close()
    rows = list(read_rows(find_log(tmp_path / "copy")))
    assert rows[-1].leaf == kept.leaf


def test_an_error_of_the_disk_while_writing_ends_the_process(tmp_path: Path) -> None:
    log = create(tmp_path)
    with sqlite_faults.writing(connection_of(log), lambda _: sqlite3.SQLITE_IOERR), pytest.raises(AppendFailed):
        log.append(draft())
    assert log.broken
    with pytest.raises(AppendFailed):
        log.close()
