"""The log in its database, the same on SQLite and PostgreSQL: what is found, what follows, what a copy leaves alone."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from audit import database, statements, tables
from audit.columns import COLUMNS
from audit.command import main
from audit.errors import SettingsUnsafe
from audit.events import DataClosed
from audit.filters import Filters
from audit.migrations import upgrade
from audit.places import Places
from audit.projection import NAMES
from audit.reading import find_log, read_rows
from audit.snapshot import Snapshot
from tests.support.audit_logs import (
    DAEMON,
    HASH,
    HEART,
    HandClock,
    budget,
    create,
    draft,
    event_id,
    leaves_of,
    log_file,
    log_settings,
    opening,
    reopen,
    rewrite,
    sql,
    verified,
)


def test_the_columns_of_a_row_are_those_of_the_table() -> None:
    assert tuple(column.name for column in tables.event.c) == NAMES == ("idx", "t_us", *COLUMNS)


def test_a_migrated_database_is_the_one_that_is_made_new(tmp_path: Path, database_url: str) -> None:
    create(tmp_path / "new", settings=log_settings(database_url)).close()
    places = Places(tmp_path / "new" / "audit")
    connection = database.open_to_write(places)
    try:
        connection.exec_driver_sql("DROP TABLE alembic_version")
        for table in reversed(tables.metadata.sorted_tables):
            connection.exec_driver_sql(f'DROP TABLE "{table.name}"')
        upgrade(connection)
        found = compare_metadata(MigrationContext.configure(connection), tables.metadata)
        assert [one for one in found if "alembic_version" not in str(one)] == []
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        assert version == database.SCHEMA
    finally:
        database.close(connection)


# --- what a query finds -------------------------------------------------------------------------------------------


def filled(home: Path, settings: Any, rounds: int = 130) -> Path:
    """A log of over five hundred entries by two jobs on three data sets, a minute between its rounds."""
    clock = HandClock()
    with create(home, clock, settings=settings) as log:
        for number in range(rounds):
            clock.pass_s(60)
            job = f"job-{number % 2}"
            name = HEART.model_copy(update={"id": ("heart", "lungs", "eyes")[number % 3]})
            opened = log.submit(opening(round=number, job=job, dataset=name, budget=budget(1000 + number)))
            log.submit(draft(dataset_id=f"d{number % 7}", decision="refused", code="CFD-S01"))
            log.submit(
                DataClosed(
                    id=event_id(),
                    decision="allowed",
                    actor=DAEMON,
                    opened=opened.result().index,
                    dataset=name,
                    job=job,
                    round=number,
                )
            )
            log.append(draft(dataset_id="heart"))
    return home


@pytest.fixture(scope="module")
def filled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("filled"), log_settings("sqlite://"))


@pytest.fixture(scope="module")
def filled_on_a_server(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Path:
    import psycopg
    from sqlalchemy import make_url

    url = make_url(postgres_server)
    with psycopg.connect(url.set(drivername="postgresql").render_as_string(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE filled")
    settings = log_settings(url.set(database="filled").render_as_string())
    return filled(tmp_path_factory.mktemp("served"), settings)


MINUTE_US = 60_000_000
START_US = 1_767_225_600_000_000
QUESTIONS = [
    Filters(),
    Filters(dataset="heart"),
    Filters(dataset="heart", action="data.opened"),
    Filters(dataset="heart", since_us=START_US + 20 * MINUTE_US, until_us=START_US + 40 * MINUTE_US),
    Filters(job="job-1"),
    Filters(job="job-1", dataset="lungs", decision="allowed"),
    Filters(action="data"),
    Filters(action="log"),
    Filters(action="budget"),
    Filters(action="data.closed", after=100),
    Filters(decision="refused"),
    Filters(decision="refused", dataset="d3"),
    Filters(decision="refused", action="data"),
    Filters(decision="failed"),
    Filters(actor="daemon"),
    Filters(site="cleveland", action="log.booted"),
    Filters(site="hungary"),
    Filters(version=HASH, purpose="DUO:0000007"),
    Filters(since_us=START_US + 125 * MINUTE_US),
    Filters(until_us=START_US + 2 * MINUTE_US),
    Filters(since_us=START_US + 300 * MINUTE_US),
    Filters(dataset="heart' OR 1=1 --"),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
@pytest.mark.parametrize("where", ["filled_home", "filled_on_a_server"])
def test_a_query_finds_what_reading_everything_finds(
    request: pytest.FixtureRequest, where: str, question: Filters
) -> None:
    log = find_log(request.getfixturevalue(where))
    wanted = [row.index for row in read_rows(log) if question.match(row.index, row.event)]
    with log.checked() as checked:
        assert [row.index for row in checked.matching(question)] == wanted
        assert checked.count(question) == len(wanted)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_rows_that_the_projection_has_not_reached_are_found_too(
    tmp_path: Path, filled_home: Path, question: Filters
) -> None:
    home = tmp_path / "home"
    shutil.copytree(filled_home, home)
    sql(home, "UPDATE cursor SET next_idx = 400")
    sql(home, "DELETE FROM event WHERE idx >= 400")
    log = find_log(home)
    wanted = [row.index for row in read_rows(log) if question.match(row.index, row.event)]
    with log.checked() as checked:
        assert [row.index for row in checked.matching(question)] == wanted
        assert checked.count(question) == len(wanted)


def test_the_projections_follow_by_themselves(tmp_path: Path, database_url: str) -> None:
    with create(tmp_path, settings=log_settings(database_url)) as log:
        for _ in range(600):
            log.submit(draft())
        log.append(draft())
        log.checkpoint()
        with find_log(tmp_path).moment() as (snapshot, _):
            assert snapshot.next_projected() > 0  # it is over five hundred behind, and follows though drafts come
    with find_log(tmp_path).moment() as (snapshot, _):
        head = snapshot.head()
        assert head is not None
        assert snapshot.next_projected() == head.size
    assert verified(tmp_path, complete=True).flaws == []


def test_rebuild_makes_anew_what_queries_search(
    tmp_path: Path, filled_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    shutil.copytree(filled_home, home)
    before = sql(home, "SELECT * FROM event ORDER BY idx"), sql(home, "SELECT * FROM budget_last ORDER BY dataset")
    sql(home, "UPDATE event SET job = 'another'")
    sql(home, "DELETE FROM budget_last")
    assert main(["rebuild", str(home), "--format", "json"]) == 0
    assert '"entries"' in capsys.readouterr().out
    assert before == (
        sql(home, "SELECT * FROM event ORDER BY idx"),
        sql(home, "SELECT * FROM budget_last ORDER BY dataset"),
    )
    assert [row[0] for row in before[1]] == ["eyes", "heart", "lungs"]
    assert [flaw for flaw in verified(home, complete=True).flaws if flaw.code == "CFD-A14"] == []


def test_what_was_left_open_is_known_without_reading_everything(tmp_path: Path, database_url: str) -> None:
    log = create(tmp_path, settings=log_settings(database_url))
    indices = [log.append(opening(round=number)).index for number in range(3)]
    log.append(
        DataClosed(
            id=event_id(), decision="allowed", actor=DAEMON, opened=indices[1], dataset=HEART,
            job="heart-risk-7f3a91", round=1,
        )
    )  # fmt: skip
    assert sorted(log._committer.left_open()) == [indices[0], indices[2]]
    log.close()
    reopen(tmp_path).close()
    with reopen(tmp_path) as again:
        assert again._committer.left_open() == {}
    abandoned = [
        row.event["opened"] for row in read_rows(find_log(tmp_path)) if row.event["action"] == "data.abandoned"
    ]
    assert abandoned == [indices[0], indices[2]]


def test_a_private_value_that_an_entry_names_stays_and_another_is_swept(tmp_path: Path, database_url: str) -> None:
    from audit.events import DataRegistered

    clock = HandClock()
    with create(tmp_path, clock, settings=log_settings(database_url)) as log:
        named, left = log.private.commit("records", "303"), log.private.commit("records", "nobody named it")
        log.append(
            DataRegistered(
                id=event_id(), decision="allowed", actor=DAEMON, dataset=HEART, contract="heart/v1",
                budget=budget(8), private={"records": named},
            )
        )  # fmt: skip
    for _ in range(2):  # the second time it is known, and not asked for again
        clock.pass_s(7200)
        with reopen(tmp_path, clock) as log:
            assert log.private.value_of(named) == b"303"
            assert log.private.value_of(left) is None


def test_a_checkpoint_with_a_quorum_lets_the_smaller_ones_go_and_binds_the_log(
    tmp_path: Path, database_url: str
) -> None:
    with create(tmp_path, settings=log_settings(database_url)) as log:
        notes = []
        for _ in range(3):
            log.append(draft())
            notes.append((log.size, log.checkpoint()))
        log.keep_cosigned(*notes[0], quorum=False)
        log.keep_cosigned(*notes[1], quorum=True)
        log.keep_cosigned(*notes[2], quorum=False)
    with find_log(tmp_path).moment() as (snapshot, _):
        assert snapshot.newest_quorum() == notes[1][1]
        kept = statements.fetch(snapshot._connection, tables.checkpoint.select().order_by(tables.checkpoint.c.size))
        assert [row[0] for row in kept] == [notes[1][0], notes[2][0]]
    reopen(tmp_path).close()


# --- a copy is left alone -----------------------------------------------------------------------------------------


def closed(home: Path) -> None:
    """As a daemon leaves it that ended in order."""


def without_index(home: Path) -> None:
    log_file(home).with_name("log.db-shm").unlink()


def read_only(home: Path) -> None:
    for path in sorted((home / "audit").rglob("*"), reverse=True):
        path.chmod(0o500 if path.is_dir() else 0o400)


def contents(home: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", [closed, without_index, read_only])
def test_a_copy_of_a_log_in_use_is_read_whole_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None]
) -> None:
    home, copied = tmp_path / "home", tmp_path / "copy"
    with create(home) as log:
        for number in range(5):
            log.append(draft(dataset_id=f"d{number}"))
        log.checkpoint()
        shutil.copytree(home, copied)
        assert log_file(copied).with_name("log.db-wal").stat().st_size > 0
        log.append(draft())
    change(copied)
    before = contents(copied)
    assert main(["query", str(copied), "--action", "data", "--format", "jsonl"]) == 0
    assert capsys.readouterr().out.count("data.retired") == 5
    assert main(["verify", str(copied), "--complete", "--trust", str(home)]) == 0
    assert "proved      7 entries" in capsys.readouterr().out
    assert main(["show", str(copied), "6"]) == 0
    assert contents(copied) == before
    for path in [copied / "audit", *(copied / "audit").rglob("*")]:
        path.chmod(0o700)


def test_a_live_log_is_read_beside_its_writer_and_a_reader_holds_nobody_up(tmp_path: Path) -> None:
    with create(tmp_path) as log, find_log(tmp_path).moment() as (snapshot, _):
        head = snapshot.head()
        assert head is not None
        for _ in range(30):
            log.append(draft())
        assert snapshot.head() == head
        assert [row.index for row in snapshot.entries(0, 100)] == [0, 1]
        with find_log(tmp_path).moment() as (later, _):
            found = later.head()
            assert found is not None
            assert found.size == head.size + 30


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    create(tmp_path).close()
    for live in (True, False):
        with database.open_to_read(Places(tmp_path / "audit"), live=live) as connection:
            assert Snapshot(connection).head() is not None
            with pytest.raises(Exception, match="readonly"):
                connection.exec_driver_sql("DELETE FROM entry")


def test_a_driver_that_would_commit_by_itself_does_not(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        driver = log._committer._store._driver
        assert isinstance(driver, sqlite3.Connection)
        assert driver.isolation_level is None
        found = {name: driver.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
        assert found == {"journal_mode": "wal", "synchronous": 2}


def test_a_log_that_was_cut_while_it_was_made_is_made_anew(tmp_path: Path) -> None:
    create(tmp_path).close()
    rewrite(tmp_path, leaves_of(tmp_path)[:1])
    (tmp_path / "audit" / "1" / "checkpoint").unlink()
    assert not Places(tmp_path / "audit").is_begun
    with create(tmp_path) as log:
        log.append(draft())
    assert verified(tmp_path).flaws == []


def test_a_log_that_was_made_is_never_made_over(tmp_path: Path, database_url: str) -> None:
    create(tmp_path, settings=log_settings(database_url)).close()
    with pytest.raises(SettingsUnsafe):
        create(tmp_path, settings=log_settings(database_url))
    shutil.rmtree(tmp_path / "audit")
    if not database_url.startswith("sqlite"):  # the home is gone, the server still has the log
        with pytest.raises(SettingsUnsafe):
            create(tmp_path, settings=log_settings(database_url))
