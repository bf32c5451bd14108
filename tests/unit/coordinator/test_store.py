"""The store on SQLite and on PostgreSQL: one transaction a step, answers once, a lost connection, migrations."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, event, text

from coordinator import job_machine, membership_tables, round_machine, tables
from coordinator.job_machine import JobState
from coordinator.migrations import HEAD, bring_up
from coordinator.records import NewJob, ReplyRecord
from coordinator.round_machine import RoundState
from coordinator.site_machine import SiteEvent, SiteState
from coordinator.store import Store
from federation.edge.clock import SystemClock
from federation.edge.database import open_engine, read
from federation.errors import ConfigurationWrong, InvalidInput, OutOfOrder, PeerMisbehaved
from federation.messages import JobId, Phase, SiteId
from tests.conftest import DATABASES

pytestmark = [pytest.mark.enable_socket, pytest.mark.timeout(120)]
A, B = SiteId("a"), SiteId("b")
# SQLite's commit is a call in this process: there is no connection to lose.
over_a_network = pytest.mark.parametrize(
    "database_url", [name for name in DATABASES if name != "sqlite"], indirect=True
)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = open_engine(database_url)
    bring_up(made)
    yield made
    made.dispose()


@pytest.fixture
def store(engine: Engine) -> Store:
    return Store(engine, SystemClock())


def new(number: int = 1, *, key: str | None = None, plan: bytes = b"{}") -> NewJob:
    return NewJob(
        id=JobId(f"heart-{number:06x}"),
        name="heart",
        plan=plan,
        plan_digest="0" * 63 + str(len(plan)),
        contract=b"{}",
        submitter="alice",
        signature=b"s",
        vouched=False,
        priority=50,
        invited=(A, B),
        quorum=1,
        rounds=2,
        attempts=2,
        idempotency_key=key,
    )


def running(store: Store) -> JobId:
    record, _ = store.jobs.create(new())
    store.jobs.step(record.id, job_machine.Admitted())
    for site in (A, B):
        store.jobs.step(record.id, job_machine.SiteAnswered(site, SiteEvent.ACCEPT))
    store.jobs.step(record.id, job_machine.Begun())
    return record.id


def open_round(store: Store, job: JobId) -> None:
    asked, _ = round_machine.step(round_machine.opened(0, 0, quorum=1, cohort=(A, B)), round_machine.Asked())
    store.rounds.open(job, asked, deadline_us=1)


def reply(job: JobId, site: SiteId = A, **changes: Any) -> ReplyRecord:
    values: dict[str, Any] = {"round": 0, "attempt": 0, "phase": Phase.TRAIN, "body": b"{}", "fingerprint": "f" * 64}
    return ReplyRecord(job=job, site=site, signature=b"s", received_us=1, **(values | changes))


# --- migrations -----------------------------------------------------------------------------------------------


def test_the_migrations_make_exactly_the_tables_of_the_program(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        differences = compare_metadata(context, [tables.metadata, membership_tables.metadata])
    assert differences == []


def test_bringing_a_database_up_again_changes_nothing(engine: Engine) -> None:
    bring_up(engine)
    with read(engine) as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == HEAD


def test_a_database_of_a_newer_program_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationWrong, match="shape 9999"):
        bring_up(engine)


# --- jobs -----------------------------------------------------------------------------------------------------


def test_a_step_that_is_out_of_order_writes_nothing(store: Store) -> None:
    record, _ = store.jobs.create(new())
    with pytest.raises(OutOfOrder):
        store.jobs.step(record.id, job_machine.PauseAsked(), [("job.paused", {})])
    assert store.jobs.get(record.id).job.state is JobState.QUEUED
    assert [found.name for found in store.jobs.events(record.id)] == ["job.submitted"]


def test_what_a_step_returns_is_what_is_stored(store: Store) -> None:
    record, _ = store.jobs.create(new())
    for step in (
        job_machine.Admitted(),
        job_machine.SiteAnswered(A, SiteEvent.REFUSE, ("CFD-S01: no",), now_us=5),
        job_machine.SiteAnswered(B, SiteEvent.ACCEPT),
        job_machine.Begun(),
        job_machine.PauseAsked(),
        job_machine.ResumeAsked(),
        job_machine.CancelAsked("alice asked"),
    ):
        moved, _ = store.jobs.step(record.id, step)
        assert store.jobs.get(record.id) == moved
    assert moved.job.sites[A].reasons == ("CFD-S01: no",)
    assert moved.ended_us is not None


def test_jobs_are_paged_from_the_newest_on(store: Store) -> None:
    for number in range(5):
        store.jobs.create(new(number))
    first = store.jobs.page(limit=2)
    second = store.jobs.page(before=first[-1].number, limit=2)
    assert [found.number for found in first + second] == [5, 4, 3, 2]
    assert store.jobs.page([JobState.RUNNING]) == []
    assert store.jobs.counts() == {"queued": 5}


def test_one_key_makes_one_job_also_when_two_ask_at_once(store: Store) -> None:
    found: list[tuple[str, bool]] = []

    def submit(number: int) -> None:
        record, is_new = store.jobs.create(new(number, key="k"))
        found.append((record.id, is_new))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job for job, _ in found}) == 1
    assert [is_new for _, is_new in found].count(True) == 1
    with pytest.raises(InvalidInput, match="another plan"):
        store.jobs.create(new(9, key="k", plan=b"{ }"))


def test_many_writers_at_once_lose_nothing(store: Store) -> None:
    job = running(store)
    open_round(store, job)
    problems: list[BaseException] = []

    def write(site: SiteId) -> None:
        try:
            store.rounds.save_reply(reply(job, site), update_root=f"root-{site}", upload_bytes=5)
            for _ in range(5):
                store.presence.save(site, connected=True)
                store.jobs.save_answer(job, site, b"{}", b"s")
        except BaseException as problem:  # noqa: BLE001 (whatever it is, the test fails with it)
            problems.append(problem)

    threads = [threading.Thread(target=write, args=(site,)) for site in (A, B)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(store.rounds.replies(job, 0, 0, Phase.TRAIN)) == 2
    attempt = store.rounds.get(job, 0, 0)
    assert attempt is not None
    assert attempt.upload_bytes == 10


def test_sites_that_were_not_told_of_an_end_are_known(store: Store) -> None:
    job = running(store)
    store.jobs.step(job, job_machine.CancelAsked("alice asked"))
    assert [record.id for record, _ in store.jobs.untold(A)] == [job]
    store.jobs.told(job, A, "cancelled")
    assert store.jobs.untold(A) == []
    assert not store.jobs.everybody_told(job)
    store.jobs.told(job, B, "cancelled")
    assert store.jobs.everybody_told(job)


# --- rounds ---------------------------------------------------------------------------------------------------


def test_an_answer_is_kept_once_and_other_bytes_are_refused(store: Store) -> None:
    job = running(store)
    open_round(store, job)
    assert store.rounds.save_reply(reply(job), upload_bytes=7)
    assert not store.rounds.save_reply(reply(job), upload_bytes=7)
    with pytest.raises(PeerMisbehaved, match="twice, differently"):
        store.rounds.save_reply(reply(job, fingerprint="e" * 64))
    attempt = store.rounds.get(job, 0, 0)
    assert attempt is not None
    assert attempt.upload_bytes == 7


@pytest.mark.parametrize(
    "changes",
    [{"round": 1}, {"attempt": 1}, {"site": SiteId("stranger")}, {"job": JobId("other-0a1b2c")}],
    ids=["another round", "another attempt", "another site", "another job"],
)
def test_an_answer_of_a_site_that_was_not_asked_is_refused(store: Store, changes: dict[str, Any]) -> None:
    job = running(store)
    open_round(store, job)
    values = {"job": job, **changes}
    with pytest.raises(PeerMisbehaved, match="wasn't asked"):
        store.rounds.save_reply(reply(values.pop("job"), values.pop("site", A), **values))


def test_an_answer_after_the_phase_closed_is_late(store: Store) -> None:
    job = running(store)
    open_round(store, job)
    attempt = store.rounds.get(job, 0, 0)
    assert attempt is not None
    closed, _ = round_machine.step(attempt.round, round_machine.DeadlinePassed())
    store.rounds.save(job, closed)
    with pytest.raises(PeerMisbehaved) as refused:
        store.rounds.save_reply(reply(job))
    assert refused.value.code == "CFD-R07"


def test_a_score_that_nobody_asked_for_is_late(store: Store) -> None:
    job = running(store)
    open_round(store, job)
    with pytest.raises(PeerMisbehaved) as refused:
        store.rounds.save_reply(reply(job, phase=Phase.EVALUATE))
    assert refused.value.code == "CFD-R07"


def test_an_attempt_that_ended_is_never_written_again(store: Store) -> None:
    job = running(store)
    open_round(store, job)
    attempt = store.rounds.get(job, 0, 0)
    assert attempt is not None
    ended, _ = round_machine.step(attempt.round, round_machine.Abandon("alice asked"))
    saved = store.rounds.save(job, ended)
    assert saved == store.rounds.get(job, 0, 0)
    with pytest.raises(OutOfOrder):
        store.rounds.save(job, ended)


def test_closing_a_round_leaves_each_site_as_the_attempt_left_it(store: Store) -> None:
    job = running(store)
    open_round(store, job)
    attempt = store.rounds.get(job, 0, 0)
    assert attempt is not None
    found, _ = round_machine.step(attempt.round, round_machine.SiteLost(B))
    found, _ = round_machine.step(found, round_machine.DeadlinePassed())
    store.rounds.save(job, found)
    record, _ = store.rounds.close(job, job_machine.RoundAbandoned(0, 0, found.reason))
    assert (record.job.sites[A].state, record.job.sites[B].state) == (SiteState.LATE, SiteState.LOST)
    assert record.job.sites[B].reasons == ("training, lost",)
    assert record.job.attempt == 1
    assert store.jobs.get(job) == record


def test_a_paused_job_opens_no_round(store: Store) -> None:
    job = running(store)
    store.jobs.step(job, job_machine.PauseAsked())
    with pytest.raises(OutOfOrder):
        open_round(store, job)
    assert store.rounds.all(job) == []


# --- the database goes away -----------------------------------------------------------------------------------


@over_a_network
def test_a_commit_whose_answer_was_lost_is_not_made_twice(engine: Engine, store: Store) -> None:
    """The connection breaks right after the database has committed, and nobody knows that it has."""
    job = running(store)
    broken = []

    def after_commit(connection: Connection) -> None:
        if not broken and not connection.get_execution_options().get("confide_read_only", False):
            broken.append(True)
            connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
            with engine.connect() as other:
                own = connection.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": own})

    event.listen(engine, "commit", after_commit)
    store.jobs.step(job, job_machine.PauseAsked(), [("paused.once", {})])
    event.remove(engine, "commit", after_commit)
    assert broken
    assert store.jobs.get(job).job.state is JobState.PAUSED
    assert [found.name for found in store.jobs.events(job)].count("paused.once") == 1


@over_a_network
def test_connections_that_the_database_cut_are_replaced(engine: Engine, store: Store) -> None:
    job = running(store)
    with engine.connect() as connection:
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))  # noqa: S608
    store.jobs.step(job, job_machine.PauseAsked())
    assert store.jobs.get(job).job.state is JobState.PAUSED


def test_presence_keeps_since_when_a_link_stands(store: Store, tmp_path: Path) -> None:
    store.presence.save_hello(A, b"{}")
    store.presence.save(A, connected=True)
    first = store.presence.all()[A]
    store.presence.save(A, connected=True)
    again = store.presence.all()[A]
    assert (again.since_us, again.hello) == (first.since_us, b"{}")
    assert again.seen_us >= first.seen_us
    store.presence.everyone_is_lost()
    assert not store.presence.all()[A].connected


def test_attempts_are_listed_with_their_state(store: Store) -> None:
    job = running(store)
    open_round(store, job)
    assert [found.round.state for found in store.rounds.all(job)] == [RoundState.TRAINING]
    assert store.rounds.counts() == {"training": 1}
