"""SIGKILL around a lease: what was touched is never more than what was charged, on any database.

A forked child does what a daemon and its trainers do and kills itself at a named place, ten times a place. Beside the
ledger a file counts the steps that were touched; the parent opens the ledger again, which checks the chain and that
totals are the fold of the entries.
"""

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from privacy.accounting.filter import admits
from privacy.accounting.schedule import Schedule, schedule_for
from privacy.errors import LeaseRefused, LedgerUnavailable
from site_client.budget import store as store_module
from site_client.budget.leases import RoundLeases
from site_client.budget.registration import NewDataSet
from site_client.budget.store import BudgetStore
from tests.support.receipts import leased

KILLS = 10
JOBS = ("j1", "j2")


class Noon:
    """A clock that stands still."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, 12, 0, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


def schedule() -> Schedule:
    return schedule_for(epsilon=1.0, delta=1e-3, batch=50, rounds=60, local_steps=4, clip=1.0, units_declared=200)


def open_store(url: str) -> BudgetStore:
    return BudgetStore.open(url, clock=Noon())


def killed_child(work: Callable[[], None]) -> None:
    """Run `work` in a child that must end by SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def touch(counter: Path, job: str) -> None:
    """Count one step on disk before it would touch data."""
    with counter.open("a") as file:
        file.write(f"{job}\n")
        file.flush()
        os.fsync(file.fileno())


def touched(counter: Path, job: str) -> int:
    return counter.read_text().split().count(job) if counter.exists() else 0


def two_rounds(store: BudgetStore, counter: Path, place: str, number: int) -> None:
    """Let two trainers take turns and die at `place`, after a few steps that depend on the kill's `number`."""
    calls = 0
    real_append, real_transact = store_module.append, store_module.transact

    def append(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        real_append(*arguments)
        if place == "before the commit" and calls == 1 + number % 3:
            die()

    def transact(*arguments: Any) -> Any:
        result = real_transact(*arguments)
        if place == "between commit and hand-over" and calls == 1 + number % 3:
            die()
        return result

    store_module.append, store_module.transact = append, transact  # type: ignore[assignment]
    rounds = {job: RoundLeases(store, leased(job, number, steps=4)) for job in JOBS}
    steps = 0
    for _ in range(2):
        for job, leases in rounds.items():
            given = leases.ask(2)
            for _ in range(given):
                touch(counter, job)
                steps += 1
                if place == "while training" and steps == 1 + number % 7:
                    die()
            leases.done(given)
    if place == "after training":
        die()


PLACES = ("before the commit", "between commit and hand-over", "while training", "after training")


@pytest.fixture
def ledger_url(database_url: str) -> str:
    store = open_store(database_url)
    store.register_data_set(
        NewDataSet(
            "heart",
            version="v1",
            contract="c",
            unit="record",
            epsilon=4.0,
            delta=1e-3,
            units_declared=200,
            declared_by="alice",
        )
    )
    for job in JOBS:
        store.reserve(job, "d", "heart", schedule())
    store.close()
    return database_url


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_around_a_lease_never_leaves_less_charged_than_touched(
    ledger_url: str, tmp_path: Path, place: str
) -> None:
    counter = tmp_path / "touched"
    for number in range(KILLS):
        before = {job: open_and_count(ledger_url, job) for job in JOBS}
        killed_child(lambda kill=number: two_rounds(open_store(ledger_url), counter, place, kill))  # type: ignore[misc]
        store = open_store(ledger_url)
        store.lose_open_leases()
        for job in JOBS:
            figures = store.job(job)
            assert touched(counter, job) <= figures.steps_charged <= before[job] + 4
            assert figures.steps_charged == figures.steps_used + figures.steps_lost
        held = [total.held for total in store.state.totals.values()]
        assert all(part >= 0 for row in held for part in row)
        store.close()
    store = open_store(ledger_url)
    for job in JOBS:
        store.settle(job)
        assert touched(counter, job) <= store.job(job).steps_charged
    assert all(not any(total.held) for total in store.state.totals.values())
    store.close()


def open_and_count(url: str, job: str) -> int:
    store = open_store(url)
    charged = store.job(job).steps_charged
    store.close()
    return charged


def test_a_kill_before_the_commit_charges_nothing(ledger_url: str, tmp_path: Path) -> None:
    counter = tmp_path / "touched"
    for _ in range(KILLS):
        killed_child(lambda: two_rounds(open_store(ledger_url), counter, "before the commit", 0))
        assert open_and_count(ledger_url, "j1") == 0
        assert touched(counter, "j1") == 0


def test_a_kill_between_commit_and_hand_over_loses_exactly_that_lease(ledger_url: str, tmp_path: Path) -> None:
    counter = tmp_path / "touched"
    for number in range(KILLS):
        killed_child(lambda: two_rounds(open_store(ledger_url), counter, "between commit and hand-over", 0))
        assert open_and_count(ledger_url, "j1") == 2 * (number + 1)
    assert touched(counter, "j1") == 0


def test_a_kill_during_admission_holds_all_atoms_or_none(ledger_url: str) -> None:
    def reserve_and_die(job: str, *, after: bool) -> None:
        real = store_module.append

        def append(*arguments: Any) -> None:
            real(*arguments)
            if not after:
                die()

        store_module.append = append
        open_store(ledger_url).reserve(job, "d", "heart", schedule())
        die()

    for number in range(KILLS):
        job = f"k{number}"
        killed_child(lambda name=job, late=number % 2 == 1: reserve_and_die(name, after=late))  # type: ignore[misc]
        store = open_store(ledger_url)
        assert (f"{job}/train" in store.state.reservations) == (number % 2 == 1)
        if number % 2 == 1:
            store.settle(job)
        store.close()


def trains_until_killed(url: str, counter: Path, job: str) -> None:
    """Be a process of its own that leases, touches and reports without end."""
    store = open_store(url)
    for number in range(1_000_000):
        with RoundLeases(store, leased(job, number, steps=4)) as leases:
            for _ in range(2):
                given = leases.ask(2)
                for _ in range(given):
                    touch(counter, job)
                if given:
                    leases.done(given)


def test_two_processes_killed_at_any_moment_never_touch_more_than_was_charged_nor_pass_the_cap(
    ledger_url: str, tmp_path: Path
) -> None:
    counter = tmp_path / "touched"
    for number in range(KILLS):
        before = len(counter.read_text().split()) if counter.exists() else 0
        children = {}
        for job in JOBS:
            child = os.fork()
            if child == 0:
                try:
                    trains_until_killed(ledger_url, counter, job)
                finally:
                    os._exit(1)
            children[job] = child
        wait_for(lambda wanted=before + 1 + 3 * number: len(counter.read_text().split()) >= wanted, counter)  # type: ignore[misc]
        for child in children.values():
            os.kill(child, signal.SIGKILL)
        for child in children.values():
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        store = open_store(ledger_url)
        store.lose_open_leases()
        policy = store.state.active_policies("heart")[0]
        assert admits(store.state.total("heart/train-1", policy).committed, policy.limits)
        for job in JOBS:
            assert touched(counter, job) <= store.job(job).steps_charged <= schedule().steps
        store.close()


def wait_for(condition: Callable[[], bool], counter: Path) -> None:
    """Wait until the children touched enough, or have nothing left that they could touch."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if counter.exists() and condition():
            return
        time.sleep(0.002)
    raise AssertionError("the children touched nothing more")


def test_a_full_disk_gives_no_lease_and_the_ledger_goes_on_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = open_store(f"sqlite:///{path}")
    store.register_data_set(
        NewDataSet(
            "heart",
            version="v1",
            contract="c",
            unit="record",
            epsilon=4.0,
            delta=1e-3,
            units_declared=200,
            declared_by="alice",
        )
    )
    store.reserve("j1", "d", "heart", schedule())
    assert make_url(f"sqlite:///{path}").database == str(path)
    with store._engine.begin() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        assert isinstance(pages, int)
    real = store_module.append

    def append_to_a_full_disk(connection: Any, *arguments: Any) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        connection.exec_driver_sql("CREATE TABLE filler (text)")
        connection.exec_driver_sql("INSERT INTO filler VALUES (zeroblob(200000))")
        real(connection, *arguments)

    store_module.append = append_to_a_full_disk
    try:
        with pytest.raises(LedgerUnavailable, match="full"):
            store.lease("j1", 0, 4)
    finally:
        store_module.append = real
    with store._engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    assert store.job("j1").steps_charged == 0
    assert store.lease("j1", 0, 4).number == 0
    store.settle("j1")
    with pytest.raises(LeaseRefused):
        store.lease("j1", 0, 4)
    store.close()
