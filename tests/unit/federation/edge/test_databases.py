import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from federation.edge.database import (
    file_system_of,
    open_engine,
    read,
    refuse_network_file_system,
    sqlite_url,
    transact,
)
from federation.errors import ConfigurationWrong


def make_counter(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE counter (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)"))
    connection.execute(text("INSERT INTO counter VALUES (1, 0)"))


def add_one(connection: Connection) -> None:
    # Read, then write: two transactions that both read first would lose one of the two.
    value = connection.execute(text("SELECT value FROM counter")).scalar_one()
    connection.execute(text("UPDATE counter SET value = :value"), {"value": value + 1})


@pytest.mark.parametrize("damage", [b"this is no database at all, and longer than a header" * 40, None])
def test_a_damaged_database_is_named_as_such(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "site.db"
    engine = open_engine(sqlite_url(path))
    transact(engine, make_counter)
    engine.dispose()
    whole = path.read_bytes()
    path.write_bytes(damage or whole[:100] + b"\xff" * (len(whole) - 100))
    with pytest.raises(ConfigurationWrong) as refused:
        transact(open_engine(sqlite_url(path)), add_one)
    assert (refused.value.code, refused.value.exit_status) == ("CFD-G09", 78)
    assert str(path) in refused.value.message


def test_two_writers_that_read_first_lose_nothing(database_url: str) -> None:
    engine = open_engine(database_url)
    transact(engine, make_counter)
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(20):
                transact(engine, add_one)
        except Exception as problem:  # noqa: BLE001 (shown by the assertion below)
            failures.append(problem)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with read(engine) as connection:
        assert (failures, connection.execute(text("SELECT value FROM counter")).scalar_one()) == ([], 40)
    engine.dispose()


def test_an_error_in_a_transaction_leaves_nothing(database_url: str) -> None:
    engine = open_engine(database_url)
    transact(engine, make_counter)

    def fail(connection: Connection) -> None:
        add_one(connection)
        raise KeyError("stop")

    with pytest.raises(KeyError):
        transact(engine, fail)
    with read(engine) as connection:
        assert connection.execute(text("SELECT value FROM counter")).scalar_one() == 0
    engine.dispose()


def test_a_reader_sees_one_moment_while_a_writer_goes_on(tmp_path: Path) -> None:
    engine = open_engine(sqlite_url(tmp_path / "a.db"))
    transact(engine, make_counter)
    with read(engine) as connection:
        before = connection.execute(text("SELECT value FROM counter")).scalar_one()
        transact(engine, add_one)
        assert connection.execute(text("SELECT value FROM counter")).scalar_one() == before
    engine.dispose()


def test_sqlite_runs_with_full_durability_and_private_files(tmp_path: Path) -> None:
    engine = open_engine(sqlite_url(tmp_path / "home" / "a.db"))
    transact(engine, make_counter)
    with read(engine) as connection:
        settings = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "home").iterdir()}
    engine.dispose()
    assert settings == ["wal", 2]
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://host/name", "not supported"),
        ("nonsense", "can't be read"),
        ("postgresql+psycopg://user:secret@host/name", "holds a password"),
    ],
)
def test_an_address_that_would_lose_or_tell_something_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationWrong, match=message) as refused:
        open_engine(url)
    assert "secret" not in refused.value.message


def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"not a database, but long enough to look like a header of one" * 20)
    with pytest.raises(ConfigurationWrong, match="file is not a database"):
        open_engine(sqlite_url(tmp_path / "a.db"))


def test_a_database_that_another_process_holds_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    engine = open_engine(sqlite_url(tmp_path / "a.db"), busy_timeout_s=1)
    transact(engine, make_counter)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Exception, match="locked"):
        transact(engine, add_one)
    other.execute("ROLLBACK")
    other.close()
    transact(engine, add_one)
    engine.dispose()


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:40 / {root}/share rw,relatime shared:1 - nfs4 server:/x rw
24 22 0:41 / {root}/with\\040blank rw - fuse.sshfs x rw
25 22 0:42 / {root}/share/local rw - xfs /dev/sdb rw
26 22 0:43 / {root}/overlay rw - fuse.fuse-overlayfs x rw
"""


@pytest.mark.parametrize(
    ("place", "kind", "refused"),
    [
        ("a.db", "ext4", False),
        ("share/deep/a.db", "nfs4", True),
        ("share/local/a.db", "xfs", False),
        ("with blank/a.db", "fuse.sshfs", True),
        ("overlay/a.db", "fuse.fuse-overlayfs", False),
        ("sharer/a.db", "ext4", False),
    ],
)
def test_a_network_file_system_is_refused_by_name(tmp_path: Path, place: str, kind: str, refused: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(root=tmp_path), encoding="utf-8")
    assert file_system_of(tmp_path / place, mounts=mounts) == kind
    if refused:
        with pytest.raises(ConfigurationWrong, match=kind):
            refuse_network_file_system(tmp_path / place, mounts=mounts)
    else:
        refuse_network_file_system(tmp_path / place, mounts=mounts)


def test_a_system_that_does_not_tell_its_mounts_counts_as_local(tmp_path: Path) -> None:
    assert file_system_of(tmp_path, mounts=tmp_path / "none") == ""
