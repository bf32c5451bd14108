"""A full disk, as SQLite and the kernel say it: named with its place, and no end of a job."""

import errno
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from audit.errors import AppendFailed
from coordinator import job_threads, serve_command
from coordinator.job_threads import JobThreads
from coordinator.migrations import bring_up
from federation.edge.database import is_disk_full, open_engine, sqlite_url, transact
from federation.edge.files import cannot_write
from federation.edge.homes import CoordinatorHome
from federation.edge.logs import open_log
from federation.errors import ConfigurationWrong
from federation.messages import JobId

JOB = JobId("heart-0a1b2c")


def full_engine(path: Path) -> Engine:
    """Return a database whose disk has room for a few pages."""
    engine = open_engine(sqlite_url(path))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("PRAGMA max_page_count=3"))
    return engine


def full(path: Path) -> DBAPIError:
    engine = full_engine(path)
    with pytest.raises(DBAPIError) as refused:
        transact(engine, lambda connection: connection.execute(text("CREATE TABLE filler AS SELECT zeroblob(200000)")))
    return refused.value


def test_a_full_disk_is_known_in_whatever_it_comes_wrapped(tmp_path: Path) -> None:
    log = AppendFailed("storing failed")
    log.__cause__ = OSError(errno.EDQUOT, "quota")
    for problem in (full(tmp_path / "a.db"), OSError(errno.ENOSPC, "full"), log):
        assert is_disk_full(problem)
    for other in (OSError(errno.EIO, "broken"), AppendFailed("closed"), sqlite3.OperationalError("locked")):
        assert not is_disk_full(other)


def test_a_database_that_finds_no_room_for_its_tables_says_that_the_disk_is_full_and_where(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with pytest.raises(ConfigurationWrong) as refused:
        bring_up(full_engine(path))
    assert refused.value.code == "CFD-G08"
    assert refused.value.message.startswith(f"cannot write {path}: the disk of /")
    assert refused.value.hint.startswith("free some space")
    missing = cannot_write(tmp_path / "no" / "folder" / "x", OSError(errno.ENOSPC, "full"))
    assert missing.code == "CFD-G08"


def test_a_job_whose_disk_is_full_waits_for_space_and_goes_on_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_threads, "DISK_LOOK_S", 0.001)
    problem, tries, broken, done = full(tmp_path / "a.db"), [0], [], threading.Event()

    def prepare(job: JobId) -> Any:
        tries[0] += 1
        if tries[0] <= 3 * len(job_threads.RETRY_DELAYS_S):
            raise problem
        return None, job_threads._Nothing(), done.set

    threads = JobThreads(
        prepare=prepare,
        has_ended=lambda job: False,
        on_broken=lambda job, reason: broken.append(reason),
        on_stopped=lambda job: None,
        log=open_log(level="error"),
    )
    threads.start(JOB)
    assert done.wait(60)
    threads.stop(timeout_s=60)
    assert broken == []


@pytest.mark.parametrize(("free_mib", "told"), [(255, True), (256, False)])
def test_check_says_that_next_to_no_space_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, told: bool
) -> None:
    usage = SimpleNamespace(total=1 << 40, used=0, free=(free_mib << 20) + 1)
    monkeypatch.setattr(serve_command.shutil, "disk_usage", lambda _path: usage)
    problems = serve_command.find_problems(CoordinatorHome(tmp_path))
    assert (f"{free_mib} MiB are free for {tmp_path}, needed are 256" in problems) is told
