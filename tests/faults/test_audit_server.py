"""A log that PostgreSQL keeps: a server that is lost in a COMMIT, ends connections, or keeps less than it promises."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from audit.command import main
from audit.database import Server
from audit.errors import AppendFailed, LogUnreadable, SecondWriter, SettingsUnsafe
from audit.log import AuditLog
from audit.reading import find_log, read_rows
from audit.settings import LogSettings
from tests.support import postgres
from tests.support.audit_logs import HandClock, create, draft, events_in, log_settings, reopen, verified

SOCKET = ".s.PGSQL.5432"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database on the session's server."""
    base = make_url(request.getfixturevalue("postgres_server"))
    name = f"log{time.monotonic_ns()}"
    with psycopg.connect(base.set(drivername="postgresql").render_as_string(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return base.set(database=name).render_as_string()


def sql(url: str, text: str) -> list[tuple[object, ...]]:
    plain = make_url(url).set(drivername="postgresql").render_as_string()
    with psycopg.connect(plain, autocommit=True) as connection:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


class Relay:
    """Stands between a log and its server, and cuts the connection at a COMMIT when a test says so.

    Attributes:
        cut: ``before`` the server hears of the COMMIT, ``after`` it, or nothing.
        cuts: How many connections were cut.
    """

    def __init__(self, folder: Path, server: str) -> None:
        self.cut = ""
        self.cuts = 0
        self.refuse = False
        self._server = server
        self._ends: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._ends += [client, server]
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                if b"COMMIT" in data and self.cut:
                    cut, self.cut = self.cut, ""
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)
                    if cut == "after":
                        server.sendall(data)  # the server hears and does it; its answer goes nowhere
                    return  # and its end stays open, as it does when a cable is pulled
                server.sendall(data)
        except OSError:
            pass
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                client.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def relayed(url: str, folder: Path) -> Iterator[tuple[str, Relay]]:
    """Give the URL of the same database through a relay."""
    folder.mkdir()
    address = make_url(url)
    relay = Relay(folder, f"{address.query['host']}/{SOCKET}")
    try:
        yield address.set(query={"host": str(folder)}).render_as_string(), relay
    finally:
        relay.close()


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose name is short enough for a socket's address."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="relay-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("batch", [1, 5])
def test_an_unknown_commit_appends_once(tmp_path: Path, url: str, short: Path, cut: str, batch: int) -> None:
    with relayed(url, short / "r") as (through, relay):
        log = create(tmp_path, settings=log_settings(through))
        relay.cut = cut
        drafts = [draft() for _ in range(batch)]
        futures = [log.submit(one) for one in drafts]
        indices = [future.result(timeout=60).index for future in futures]
        assert indices == list(range(2, 2 + batch))
        assert relay.cuts == 1
        assert [log.append(one).index for one in drafts] == indices
        assert log.append(draft()).index == 2 + batch
        log.close()
    assert len(events_in_server(url)) == 2 + batch + 2
    assert verified_at(tmp_path, url) == []


def events_in_server(url: str) -> list[tuple[object, ...]]:
    return sql(url, "SELECT idx FROM audit_1.entry ORDER BY idx")


def verified_at(home: Path, url: str) -> list[object]:
    """Verify without the relay, which is gone."""
    (home / "audit" / "1" / "database").write_bytes(bytes(Server(url)))
    return list(verified(home, complete=True).flaws)


def test_a_batch_whose_callers_gave_up_is_in_the_log_once_or_not(tmp_path: Path, url: str, short: Path) -> None:
    with relayed(url, short / "r") as (through, relay):
        settings = LogSettings(
            checkpoint_every_entries=10_000, checkpoint_every_s=3600, append_timeout_s=0.5, database=through
        )
        log = create(tmp_path, settings=settings)
        relay.cut, relay.refuse = "after", True
        kept = draft()
        with pytest.raises(AppendFailed, match="can't be reached"):
            log.append(kept)
        with pytest.raises(AppendFailed):
            log.append(draft())
        relay.refuse = False
        after = log.append(draft())
        again = log.append(kept)
        assert {after.index, again.index} == {2, 3}
        log.close()
    assert verified_at(tmp_path, url) == []


def test_a_server_that_ends_connections_is_dialled_again(tmp_path: Path, url: str) -> None:
    with create(tmp_path, settings=log_settings(url)) as log:
        first = draft()
        log.append(first)
        for _ in range(3):
            sql(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                     " AND datname = current_database()")  # fmt: skip
            log.append(draft())
        assert log.append(first).index == 2
    assert verified(tmp_path, complete=True).flaws == []


def test_a_second_writer_is_refused_from_another_home(tmp_path: Path, url: str) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    with create(home, settings=log_settings(url)) as log:
        shutil.copytree(home, copy)  # its own lock file, the same database
        with pytest.raises(SecondWriter):
            reopen(copy)
        log.append(draft())
    reopen(copy).close()


BLOCKED_WRITER = """
import sys
from pathlib import Path
from audit.edge import SystemClock
from audit.events import Actor, DataRetired, Dataset
from audit.log import AuditLog

log = AuditLog.open(Path(sys.argv[1]), clock=SystemClock())
print("opened", flush=True)
sys.stdin.readline()
actor, dataset = Actor(kind="service", id="daemon"), Dataset(id="heart", version="sha256:" + "a" * 64)
log.append(DataRetired(id=log.new_id(), decision="allowed", actor=actor, dataset=dataset))
"""


def test_a_killed_writer_whose_server_process_is_busy_keeps_nobody_out(tmp_path: Path, url: str) -> None:
    """The server still works for the dead: its process is ended, and the log opens at once, whole."""
    create(tmp_path, settings=log_settings(url)).close()
    plain = make_url(url).set(drivername="postgresql").render_as_string()
    writer = subprocess.Popen(
        [sys.executable, "-c", BLOCKED_WRITER, str(tmp_path / "audit")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    with writer, psycopg.connect(plain) as blocking:
        assert writer.stdout.readline() == b"opened\n"
        blocking.execute("LOCK TABLE audit_1.entry IN SHARE MODE")  # readers go on, the writer's INSERT waits
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'audit_1.entry'::regclass"
        for _ in range(1200):
            if sql(url, waiting) == [(1,)]:
                break
            time.sleep(0.05)
        writer.kill()
        writer.wait()
        freed = threading.Timer(1.0, blocking.rollback)  # until then the dead one's server process waits
        freed.start()
        with reopen(tmp_path, settings=log_settings(url)) as log:
            log.append(draft())
        freed.join()
    assert verified(tmp_path).flaws == []


def test_a_writer_that_does_not_ask_for_the_lock_is_noticed_before_anything_is_written(
    tmp_path: Path, database_url: str
) -> None:
    with create(tmp_path, settings=log_settings(database_url)) as log:
        committer = log._committer
        log.append(draft())
        edge = committer._edge
        committer.history = type(committer.history)(  # as if another process had appended meanwhile
            committer.history.origin, 2, committer.history.keyring, committer.history.writers, committer.history.t_us
        )
        with pytest.raises(SecondWriter):
            log.append(draft())
        assert log.broken
        committer._edge = edge
        with pytest.raises(AppendFailed):
            log.append(draft())
        assert len(list(events_in(tmp_path / "audit"))) == 3
        with pytest.raises(AppendFailed):
            log.close()


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_does_not_keep_what_it_acknowledged_is_refused(tmp_path: Path, url: str, setting: str) -> None:
    create(tmp_path, settings=log_settings(url)).close()
    try:
        sql(url, f"ALTER SYSTEM SET {setting} = off")
        sql(url, "SELECT pg_reload_conf()")
        for _ in range(100):
            if sql(url, f"SHOW {setting}") == [("off",)]:
                break
            time.sleep(0.05)
        with pytest.raises(SettingsUnsafe, match=setting) as refused:
            reopen(tmp_path)
        assert (refused.value.code, refused.value.exit_status) == ("CFD-A25", 78)
    finally:
        sql(url, f"ALTER SYSTEM RESET {setting}")
        sql(url, "SELECT pg_reload_conf()")
    for _ in range(100):
        if sql(url, f"SHOW {setting}") == [("on",)]:
            break
        time.sleep(0.05)
    reopen(tmp_path).close()


def test_the_account_of_the_log_can_neither_change_nor_remove_an_entry(tmp_path: Path, url: str) -> None:
    address = make_url(url)
    role = f"writer{time.monotonic_ns()}"
    sql(url, f"CREATE ROLE {role} LOGIN")
    sql(url, f'GRANT CREATE ON DATABASE "{address.database}" TO {role}')
    own = address.set(username=role).render_as_string()
    create(tmp_path, settings=log_settings(own)).close()
    for text in ("UPDATE audit_1.entry SET leaf = ''", "DELETE FROM audit_1.entry", "TRUNCATE audit_1.entry"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql(own, text)
    with reopen(tmp_path) as log:
        log.append(draft())
    assert len(list(read_rows(find_log(tmp_path)))) == 6


def test_a_second_role_keeps_the_entries_and_lends_its_right_to_a_redaction_alone(tmp_path: Path, url: str) -> None:
    """The statements of the README, by an administrator; the log's account can't even give itself the right."""
    address, number = make_url(url), time.monotonic_ns()
    account, keeper = f"log{number}", f"keeper{number}"
    sql(url, f"CREATE ROLE {account} LOGIN")
    sql(url, f'GRANT CREATE ON DATABASE "{address.database}" TO {account}')
    own = address.set(username=account).render_as_string()
    create(tmp_path, settings=log_settings(own)).close()
    text = (Path(__file__).parents[2] / "audit" / "README.md").read_text(encoding="utf-8")
    block = text.partition("    CREATE ROLE confide_keeper")[2].partition("\n\n")[0]
    for line in f"    CREATE ROLE confide_keeper{block}".split("\n"):
        sql(url, line.partition("--")[0].replace("confide_keeper", keeper).replace("confide_log", account))
    sql(own, f"GRANT UPDATE ON audit_1.entry TO {account}")  # a warning: it has nothing to give
    for statement in (
        "UPDATE audit_1.entry SET leaf = ''",
        "DELETE FROM audit_1.entry",
        "DROP SCHEMA audit_1 CASCADE",
        f"SET ROLE {keeper}",
        "DROP TABLE audit_1.entry",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql(own, statement)
    with reopen(tmp_path) as log:
        log.append(draft())
        before = log.size
    (tmp_path / "site.yaml").write_text("audit: {two_people: false}\n")
    with pytest.raises(AppendFailed, match=f"belongs to role {keeper}") as refused:
        main(["redact", str(tmp_path), "4", "--basis", "gdpr-17"])
    assert f"GRANT {keeper} TO {account}" in refused.value.hint
    sql(url, f"GRANT {keeper} TO {account}")
    reopen(tmp_path).close()
    result = verified(tmp_path)
    assert (result.flaws, [note.where for note in result.notes if note.code == "CFD-A41"]) == ([], ["entry 4"])
    assert result.size > before
    sql(url, f"REVOKE {keeper} FROM {account}")
    with reopen(tmp_path) as log:
        log.append(draft())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sql(own, "DELETE FROM audit_1.entry")


@pytest.mark.parametrize(
    "url",
    ["sqlite:////tmp/log.db", "postgresql+psycopg://alice:secret@db/log", "mysql://db/log", "nonsense", ""],
    ids=["another kind", "a password in it", "no PostgreSQL", "no address", "nothing"],
)
def test_an_address_that_is_none_or_holds_a_password_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsUnsafe) as refused:
        create(tmp_path, settings=LogSettings(database=url))
    assert "secret" not in refused.value.message
    assert refused.value.code == "CFD-A25"


def test_a_password_comes_from_its_file_and_from_no_other_place(tmp_path: Path, url: str) -> None:
    secret = tmp_path / "password"
    secret.write_text("never needed here\n", encoding="utf-8")
    secret.chmod(0o644)
    with pytest.raises(SettingsUnsafe):
        create(tmp_path, settings=LogSettings(database=url, password_file=secret))
    secret.chmod(0o600)
    create(tmp_path / "second", settings=LogSettings(database=url, password_file=secret)).close()
    assert b"never needed" not in (tmp_path / "second" / "audit" / "1" / "database").read_bytes()


def test_without_the_driver_the_reader_is_told_what_to_install(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, settings=log_settings(url)).close()
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LogUnreadable, match="psycopg") as refused:
        list(read_rows(find_log(tmp_path)))
    assert "pip install" in refused.value.hint


def test_a_log_of_a_newer_program_is_not_opened(tmp_path: Path, url: str) -> None:
    create(tmp_path, settings=log_settings(url)).close()
    sql(url, "UPDATE audit_1.alembic_version SET version_num = '9999'")
    with pytest.raises(SettingsUnsafe) as refused:
        reopen(tmp_path)
    assert (refused.value.code, refused.value.exit_status) == ("CFD-A29", 78)


SAME = """
import sys
from pathlib import Path
from tests.support.audit_logs import HandClock, create, draft, log_settings
import itertools
numbers = itertools.count(1)
log = create(
    Path(sys.argv[1]), HandClock(), settings=log_settings(sys.argv[2]),
    random_bytes=lambda count: next(numbers).to_bytes(count, "big"),
)
for number in range(20):
    log.append(draft(dataset_id=f"d{number}"))
log.close()
"""


@pytest.mark.process
def test_a_leaf_is_the_same_everywhere(tmp_path: Path, url: str) -> None:
    found = []
    for number, (database, zone) in enumerate(
        (("sqlite:///", "UTC"), (url, "America/St_Johns"), ("sqlite:///", "Asia/Tokyo"))
    ):
        home = tmp_path / str(number)
        subprocess.run(
            [sys.executable, "-c", SAME, str(home), database],
            check=True,
            env={**os.environ, "PYTHONPATH": os.getcwd(), "TZ": zone, "PYTHONHASHSEED": str(number)},
            timeout=120,
        )
        found.append([(row.leaf_hash, row.leaf) for row in read_rows(find_log(home))])
    assert len(found[0]) == 23
    assert found[0] == found[1] == found[2]


def test_a_server_may_stop_and_start_between_two_appends(tmp_path: Path) -> None:
    with postgres.cluster() as own, create(tmp_path, settings=log_settings(own)) as log:
        log.append(draft())
        sql(own, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                 " AND pid <> pg_backend_pid()")  # fmt: skip
        log.append(draft())
        assert verified(tmp_path).flaws == []


def test_an_open_log_is_read_while_it_grows(tmp_path: Path, url: str) -> None:
    clock = HandClock()
    with create(tmp_path, clock, settings=log_settings(url)) as log, find_log(tmp_path).moment() as (snapshot, _):
        head = snapshot.head()
        assert head is not None
        for _ in range(5):
            log.append(draft())
        assert snapshot.head() == head
        assert isinstance(log, AuditLog)
