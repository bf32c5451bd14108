"""A ledger that the first version wrote opens under this one, entry for entry, and goes on."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from federation.edge import migrations as edge_migrations
from privacy.accounting.schedule import schedule_for
from privacy.errors import BudgetRefused
from site_client.budget import migrations
from site_client.budget.database import open_ledger, transact
from site_client.budget.store import BudgetStore

WRITTEN = Path(__file__).parents[3] / "vectors" / "ledger_first_version.json"


class Noon:
    """A clock that stands still."""

    def now(self) -> datetime:
        return datetime(2026, 1, 2, 12, 0, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


def write_first_version(url: str) -> dict[str, Any]:
    """Make the database as the first version left it, with its own schema."""
    kept: dict[str, Any] = json.loads(WRITTEN.read_text(encoding="utf-8"))
    engine = open_ledger(url)

    def work(connection: sa.Connection) -> None:
        edge_migrations.run(connection, Path(migrations.__file__).parent, "0001")
        for seq, hashed, kind, text in kept["entries"]:
            connection.execute(
                sa.text("INSERT INTO ledger_entries VALUES (:a, :b, :c, :d)"),
                {"a": seq, "b": hashed, "c": kind, "d": text},
            )
        for atom, policy, charged, held in kept["totals"]:
            connection.execute(
                sa.text("INSERT INTO ledger_totals VALUES (:a, :b, :c, :d)"),
                {"a": atom, "b": policy, "c": charged, "d": held},
            )

    transact(engine, work)
    engine.dispose()
    return kept


def test_the_first_versions_tables_migrate_and_every_total_is_what_it_was(database_url: str) -> None:
    kept = write_first_version(database_url)
    store = BudgetStore.open(database_url, clock=Noon())
    assert store.head().hash == kept["entries"][-1][1]
    folded = {
        (atom, policy): (" ".join(map(str, total.charged)), " ".join(map(str, total.held)))
        for (atom, policy), total in store.state.totals.items()
    }
    assert folded == {(atom, policy): (charged, held) for atom, policy, charged, held in kept["totals"]}
    store.close()


def test_what_the_first_version_reserved_goes_on_and_what_it_spent_stays_spent(database_url: str) -> None:
    write_first_version(database_url)
    store = BudgetStore.open(database_url, clock=Noon())
    assert store.lose_open_leases() == 1
    assert store.lease("j3", 1, 5).number == 1
    asks = schedule_for(epsilon=2.9, delta=1e-3, batch=50, rounds=4, local_steps=5, clip=1.0, units_declared=200)
    with pytest.raises(BudgetRefused):
        store.reserve("j4", "d" * 64, "heart", asks)
    assert store.show("heart").unbounded_since
    store.close()
