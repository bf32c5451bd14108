"""A lease of the privacy ledger beside the one thing that it can't do without: a synchronous commit of the database.

Both write to the same disk in turn, the same number of times; what is shown is the ratio of the medians. The ledger has
a hundred jobs in its past, as a data set that is used has.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from benchmarks.row import Row, at_most, shown
from federation.edge.clock import SystemClock
from federation.edge.database import open_engine, sqlite_url, transact
from privacy.accounting.events import Gaussian
from privacy.accounting.schedule import schedule_for
from site_client.budget.registration import NewDataSet
from site_client.budget.store import BudgetStore

LEASES: Final = 200
PAST: Final = 100


def rows() -> list[Row]:
    """Return what was measured."""
    with tempfile.TemporaryDirectory(prefix="confide-bench-") as folder:
        lease_s, commit_s = _measured(Path(folder))
    return [
        at_most(
            "dp/lease-vs-sqlite-commit",
            lease_s / commit_s,
            "times",
            target=3.0,
            against="one insert with a synchronous commit of SQLite, on the same disk",
        ),
        shown("dp/lease-ms", lease_s * 1000, "ms", against="the same, in milliseconds"),
    ]


def _measured(folder: Path) -> tuple[float, float]:
    store = BudgetStore.open(folder / "ledger.db", clock=SystemClock())
    store.register_data_set(
        NewDataSet(
            "heart",
            version="v1",
            contract="heart/v1",
            unit="record",
            epsilon=50.0,
            delta=1e-5,
            units_declared=10_000,
            declared_by="alice",
        )
    )
    for number in range(PAST):
        event = Gaussian(noise_multiplier=500.0)
        store.charge(f"past-{number}", "heart", event, purpose="a count")
    schedule = schedule_for(
        epsilon=4.0, delta=1e-5, batch=256, rounds=LEASES, local_steps=1, clip=1.0, units_declared=10_000
    )
    store.reserve("bench", "0" * 64, "heart", schedule)
    plain = open_engine(sqlite_url(folder / "plain.db"))
    transact(plain, lambda link: link.execute(sa.text("CREATE TABLE row (number INTEGER PRIMARY KEY, text TEXT)")))
    leases, commits = [], []
    for number in range(LEASES):
        began = time.perf_counter()
        store.lease("bench", number, 1)
        leases.append(time.perf_counter() - began)
        began = time.perf_counter()
        _insert(plain, number)
        commits.append(time.perf_counter() - began)
    store.close()
    plain.dispose()
    return statistics.median(leases), statistics.median(commits)


def _insert(engine: sa.Engine, number: int) -> None:
    values = {"number": number, "text": "x" * 500}
    transact(engine, lambda link: link.execute(sa.text("INSERT INTO row VALUES (:number, :text)"), values))
