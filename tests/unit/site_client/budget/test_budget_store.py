"""The ledger on disk, on every database that this machine has."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from audit.errors import AuditError, EntryRefused
from federation.edge.audit_trail import begin_log
from federation.edge.clock import Clock, SystemClock
from federation.errors import InvalidInput
from privacy.accounting import commands
from privacy.accounting.entries import Head
from privacy.accounting.events import Gaussian
from privacy.accounting.schedule import Schedule, evaluation_schedule, schedule_for
from privacy.errors import (
    BudgetRefused,
    LeaseRefused,
    LedgerBehind,
    LedgerBroken,
    LedgerForked,
    LedgerMisused,
    LedgerUnavailable,
)
from site_client import budget_command
from site_client.budget import store as store_module
from site_client.budget.leases import RoundLeases
from site_client.budget.plain_words import Exact, statement
from site_client.budget.registration import NewDataSet
from site_client.budget.report import table
from site_client.budget.store import BudgetStore
from tests.support import audit_logs
from tests.support.receipts import leased, sent


class Noon:
    """A clock that stands still."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, 12, 0, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


CLOCK: Clock = Noon()


def schedule(epsilon: float = 2.0, *, rounds: int = 4, local_steps: int = 5) -> Schedule:
    return schedule_for(
        epsilon=epsilon, delta=1e-3, batch=50, rounds=rounds, local_steps=local_steps, clip=1.0, units_declared=200
    )


def register(store: BudgetStore, name: str = "heart", **fields: Any) -> None:
    plain: dict[str, Any] = {
        "version": "sha256:" + "ab" * 32,
        "contract": "heart/v1",
        "unit": "record",
        "epsilon": 4.0,
        "delta": 1e-3,
        "units_declared": 200,
        "declared_by": "alice",
    }
    store.register_data_set(NewDataSet(name, **{**plain, **fields}))


@pytest.fixture
def store(database_url: str) -> Iterator[BudgetStore]:
    opened = BudgetStore.open(database_url, clock=CLOCK)
    register(opened)
    yield opened
    opened.close()


def reopened(store: BudgetStore) -> BudgetStore:
    store.close()
    return BudgetStore.open(store._engine.url.render_as_string(hide_password=False), clock=CLOCK)


def test_a_lease_is_on_disk_before_it_is_handed_out(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    lease = store.lease("j1", 0, 5)
    assert (lease.id, lease.head.seq) == ("j1/train/0", store.head().seq)
    again = reopened(store)
    assert again.state.reservations["j1/train"].leased == 5
    assert again.head() == lease.head
    assert again.state == store.state
    again.close()


def test_a_job_and_its_evaluations_are_reserved_together_or_not_at_all(store: BudgetStore) -> None:
    evaluations = evaluation_schedule(epsilon=4.0, delta=1e-3, evaluations=4)
    store.reserve_evaluations("j0", "d", "heart", evaluations)
    with pytest.raises(BudgetRefused):
        store.reserve_job("j1", "d", "heart", schedule(), evaluations)
    assert "j1/train" not in store.state.reservations
    again = reopened(store)
    assert [body.kind for body in _bodies(again)][-1] == "refuse"
    again.reserve_job("j2", "d", "heart", schedule(), None)
    again.close()


def test_reserving_the_same_plan_again_changes_nothing(store: BudgetStore) -> None:
    store.reserve_job("j1", "d", "heart", schedule(), None)
    head = store.head()
    store.reserve_job("j1", "d", "heart", schedule(), None)
    assert store.head() == head


def test_at_the_start_open_leases_are_lost_and_stay_spent(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    store.lease("j1", 0, 5)
    again = reopened(store)
    assert again.lose_open_leases() == 1
    assert again.lose_open_leases() == 0
    figures = again.job("j1")
    assert (figures.steps_charged, figures.steps_lost) == (5, 5)
    again.close()


def test_a_round_gets_its_steps_and_no_more(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    with RoundLeases(store, leased("j1", 0, steps=5)) as leases:
        assert leases.ask(3) == 3
        leases.done(3)
        assert leases.ask(3) == 2
        leases.done(2)
        assert leases.ask(1) == 0
    assert isinstance(leases.refusal, LeaseRefused)
    assert (leases.leased, leases.lost, store.remaining_steps("j1")) == (5, 0, 15)


def test_a_round_that_is_left_loses_what_is_open(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())

    def trainer_that_dies() -> None:
        with RoundLeases(store, leased("j1", 0, steps=5)) as leases:
            leases.ask(5)
            raise RuntimeError("the trainer died")

    with pytest.raises(RuntimeError, match="the trainer died"):
        trainer_that_dies()
    assert store.job("j1").steps_lost == 5


def test_a_round_that_no_longer_fits_is_told_so(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule(rounds=1))
    store.lost(store.lease("j1", 0, 3))
    assert store.remaining_steps("j1") == 2
    with RoundLeases(store, leased("j1", 0, steps=5), attempt=1) as leases:
        assert leases.ask(5) == 0
    assert isinstance(leases.refusal, LeaseRefused)


def test_a_report_of_a_lease_that_is_not_open_is_refused(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    with RoundLeases(store, leased("j1", 0, steps=5)) as leases:
        with pytest.raises(LeaseRefused):
            leases.done(5)
        leases.ask(5)
        with pytest.raises(LeaseRefused):
            leases.done(4)


def test_settling_gives_back_what_was_never_leased_for_both_uses(store: BudgetStore) -> None:
    store.reserve_job("j1", "d", "heart", schedule(), evaluation_schedule(epsilon=1.0, delta=1e-3, evaluations=4))
    store.used(store.lease("j1", 0, 5))
    store.used(store.lease("j1", 0, 1, use="evaluate"))
    store.settle("j1")
    store.settle("j1")
    assert all(not any(total.held) for total in store.state.totals.values())
    with pytest.raises(LedgerMisused):
        store.settle("j9")
    with pytest.raises(LedgerMisused):
        store.job("j9")


def test_a_lost_answer_is_looked_up_and_not_repeated(store: BudgetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.reserve("j1", "d", "heart", schedule())
    real = store_module.transact

    def commits_then_breaks(engine: Any, work: Any) -> Any:
        real(engine, work)
        raise LedgerUnavailable("the connection was lost at commit")

    monkeypatch.setattr(store_module, "transact", commits_then_breaks)
    with pytest.raises(LedgerUnavailable):
        store.lease("j1", 0, 5)
    monkeypatch.setattr(store_module, "transact", real)
    lease = store.lease("j1", 0, 5)
    assert lease.number == 0
    assert (lease.head, lease.entry) == (store.head(), store.head().hash[:32])
    assert store.job("j1").steps_charged == 5
    assert store.lease("j1", 0, 5).number == 1


def test_a_lease_that_was_lost_before_its_commit_keeps_its_number(
    store: BudgetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.reserve("j1", "d", "heart", schedule())
    real = store_module.transact

    def breaks(engine: Any, work: Any) -> Any:
        raise LedgerUnavailable("no connection")

    monkeypatch.setattr(store_module, "transact", breaks)
    with pytest.raises(LedgerUnavailable):
        store.lease("j1", 0, 5)
    monkeypatch.setattr(store_module, "transact", real)
    assert store.lease("j1", 0, 4).number == 0
    assert store.job("j1").steps_charged == 4


def test_two_processes_never_get_the_same_lease(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    url = store._engine.url.render_as_string(hide_password=False)
    other = BudgetStore.open(url, clock=CLOCK)
    leases = [side.lease("j1", 0, 2) for side in (store, other, store, other)]
    assert [lease.number for lease in leases] == [0, 1, 2, 3]
    assert store.job("j1").steps_charged == 8
    other.close()


def test_what_another_process_settled_is_seen(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    other = BudgetStore.open(store._engine.url.render_as_string(hide_password=False), clock=CLOCK, actor="operator")
    other.settle("j1", "the hospital asked")
    other.close()
    with pytest.raises(LeaseRefused):
        store.lease("j1", 0, 1)


def test_data_sets_about_the_same_people_spend_one_budget(store: BudgetStore) -> None:
    register(store, "lungs", same_people_as="heart", epsilon=6.0)
    store.reserve("j1", "d", "heart", schedule(3.0))
    with pytest.raises(BudgetRefused):
        store.reserve("j2", "d", "lungs", schedule(3.0))
    with pytest.raises(LedgerMisused):
        register(store, "other", same_people_as="heart", entity_column="patient")


def test_a_name_is_registered_once_and_a_new_version_keeps_the_budget(store: BudgetStore) -> None:
    with pytest.raises(LedgerMisused):
        register(store)
    store.reserve("j1", "d", "heart", schedule(3.5))
    store.add_dataset_version("heart", version="sha256:cd", units_declared=260, declared_by="bob")
    assert store.show("heart").units_declared == 260
    with pytest.raises(BudgetRefused):
        store.reserve("j2", "d", "heart", schedule(3.5))


def test_held_out_units_that_are_public_have_no_atom(store: BudgetStore) -> None:
    register(store, "open", held_out_public=True)
    figures = store.show("open")
    assert [policy.use for policy in figures.policies] == ["train"]
    with pytest.raises(LedgerMisused):
        store.reserve_evaluations("j1", "d", "open", evaluation_schedule(epsilon=1.0, delta=1e-3, evaluations=1))


def test_a_single_charge_is_made_once(store: BudgetStore) -> None:
    event = Gaussian(noise_multiplier=30.0)
    assert store.charge("units-1", "heart", event, purpose="count of units") is not None
    assert store.charge("units-1", "heart", event, purpose="count of units") is None


def test_a_use_without_noise_is_printed_in_the_statement(store: BudgetStore) -> None:
    store.mark_unbounded("heart", reason="mechanism none", job="j1")
    lines = "\n".join(statement(store.show("heart")))
    assert "NO BOUND HOLDS for heart/train-1 since 2026-01-01T12:00:00Z" in lines
    assert "NO BOUND HOLDS" in "\n".join(table(store.show("heart")))


def test_a_further_policy_can_be_created(store: BudgetStore) -> None:
    store.create_policy(
        commands.AddPolicy(
            policy="heart-p2",
            population="heart",
            unit="record",
            epsilon=5.0,
            delta=1e-3,
            replaces="heart-p1",
            approved_by=("alice", "bob"),
        )
    )
    assert [policy.policy for policy in store.show("heart").policies] == ["heart-p2", "heart-p2"]


def test_the_audit_part_names_the_head_and_the_epsilon_of_the_job(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    lease = store.lease("j1", 0, 5)
    part = store.audit_part("j1")
    assert part["head"] == {"seq": lease.head.seq, "hash": f"sha256:{lease.head.hash}"}
    assert (part["steps"], part["unit"], part["trust"], part["delta_e15"]) == (5, "record", "local", 10**12)
    assert isinstance(part["eps_nano"], int)
    assert isinstance(part["total_eps_nano"], int)
    assert 0 < part["eps_nano"] == part["total_eps_nano"] < 2 * 10**9


def test_what_was_spent_is_below_what_a_round_may_take_and_that_below_what_is_reserved(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    reserved = store.audit_part("j1", whole=True)
    may_take = store.epsilon_with("j1", 5)
    store.used(store.lease("j1", 0, 3))
    spent = store.audit_part("j1")["eps_nano"]
    assert isinstance(reserved["eps_nano"], int)
    assert isinstance(spent, int)
    assert 0 < spent < may_take * 1e9 < reserved["eps_nano"] <= 2 * 10**9
    assert reserved["steps"] == 20
    assert store.audit_part("j1", whole=True)["eps_nano"] == reserved["eps_nano"]


def test_a_ledger_older_than_its_witnessed_head_is_refused(store: BudgetStore) -> None:
    head = store.head()
    store.check_witnessed(head)
    store.check_witnessed(Head())
    with pytest.raises(LedgerBehind):
        store.check_witnessed(Head(head.seq + 1, "a" * 64))
    with pytest.raises(LedgerForked):
        store.check_witnessed(Head(head.seq, "a" * 64))


def test_entries_can_neither_be_changed_nor_removed_through_sql(store: BudgetStore) -> None:
    for statement_text in ("UPDATE ledger_entries SET text = 'x'", "DELETE FROM ledger_entries"):
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), store._engine.begin() as connection:
            connection.exec_driver_sql(statement_text)


def test_a_ledger_changed_under_a_running_daemon_is_broken(store: BudgetStore) -> None:
    object.__setattr__(store._state, "head", Head(store.head().seq, "a" * 64))
    with pytest.raises(LedgerBroken, match="changed while it was in use"):
        store.head()


def _bodies(store: BudgetStore) -> list[Any]:
    with store._engine.begin() as connection:
        texts = connection.exec_driver_sql("SELECT text FROM ledger_entries ORDER BY seq").scalars().all()
    from types import SimpleNamespace

    return [SimpleNamespace(**json.loads(text)["body"]) for text in texts]


# -- faults of the file itself ------------------------------------------------------------------------------------


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    opened = BudgetStore.open(path, clock=CLOCK)
    register(opened)
    opened.reserve("j1", "d", "heart", schedule())
    opened.used(opened.lease("j1", 0, 5))
    opened.close()
    return path


def alter(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement_text in statements:
        connection.execute(statement_text)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE ledger_totals SET charged = held",),
        ("DELETE FROM ledger_totals",),
        ("INSERT INTO ledger_totals VALUES ('x', 'y', '0', '0')",),
        (
            "DROP TRIGGER ledger_entries_no_UPDATE",
            "UPDATE ledger_entries SET text = replace(text, 'alice', 'mallory') WHERE seq = 4",
        ),
        ("DROP TRIGGER ledger_entries_no_DELETE", "DELETE FROM ledger_entries WHERE seq = 3"),
        ("DROP TRIGGER ledger_entries_no_DELETE", "DELETE FROM ledger_entries WHERE kind = 'lease-end'"),
    ],
)
def test_an_altered_file_is_found_at_opening(ledger_file: Path, statements: tuple[str, ...]) -> None:
    alter(ledger_file, *statements)
    if "lease-end" in statements[-1]:
        # A truncated end is a valid older ledger: only a witness can tell.
        opened = BudgetStore.open(ledger_file, clock=CLOCK)
        with pytest.raises(LedgerBehind):
            opened.check_witnessed(Head(7, "a" * 64))
        opened.close()
        return
    with pytest.raises(LedgerBroken):
        BudgetStore.open(ledger_file, clock=CLOCK)


def test_the_file_is_private_and_every_commit_is_synced(ledger_file: Path) -> None:
    assert ledger_file.stat().st_mode & 0o077 == 0
    opened = BudgetStore.open(ledger_file, clock=CLOCK)
    with opened._engine.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    opened.close()


def test_without_a_writable_ledger_there_is_no_lease(ledger_file: Path) -> None:
    opened = BudgetStore.open(ledger_file, clock=CLOCK)
    alter(ledger_file, "ALTER TABLE ledger_totals RENAME TO gone")
    with RoundLeases(opened, leased("j1", 1, steps=5)) as leases:
        assert leases.ask(5) == 0
    assert isinstance(leases.refusal, LedgerUnavailable)
    opened.close()


# -- the command --------------------------------------------------------------------------------------------------


def test_show_prints_the_arithmetic_and_json_has_a_schema(
    ledger_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(ledger_file.parent)]
    assert budget_command.main(["show", "heart", *home]) == 0
    shown = capsys.readouterr().out
    assert "heart-p1" in shown
    assert "j1" in shown
    assert budget_command.main(["show", "heart", "--statement", *home]) == 0
    said = capsys.readouterr().out
    titles = [line[3:] for line in said.splitlines() if line[:1] in "123456" and line[1:2] == "."]
    assert titles == [
        "Who is protected",
        "Against whom",
        "How much",
        "What it rests on",
        "What isn't covered",
        "How to check it",
    ]
    assert all(len(line) <= 116 for line in said.splitlines())
    said = " ".join(said.split())
    assert "One row of the data set" in said
    assert "never their sum" in said
    assert "74 % at epsilon 1," in said
    assert "for 2 rows" in said
    for word in ("anonymous", "no risk"):
        assert word not in said
    assert budget_command.main(["show", "heart", "--format", "json", "--statement", *home]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "confide/budget/v1"
    assert document["policies"][0]["spent"]
    assert document["statement"]


def test_settle_by_hand_gives_back_and_says_how_much(ledger_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(ledger_file.parent)]
    begin_log(ledger_file.parent / "audit", federation="heart.example.org", party="mercy", clock=SystemClock())
    assert budget_command.main(["settle", "j1", "--reason", "the job is gone", *home]) == 0
    assert "15 steps given back" in capsys.readouterr().out
    assert budget_command.main(["settle", "j1", "--reason", "again", "--format", "json", *home]) == 0
    assert json.loads(capsys.readouterr().out)["returned_steps"] == 0
    written = [event for event in audit_logs.events_in(ledger_file.parent / "audit") if event.get("job") == "j1"]
    assert [event["action"] for event in written] == ["rule.overridden", "budget.released"] * 2
    assert written[0]["rule"] == "budget/settlement"
    assert list(written[0]["private"]) == ["reason"]
    assert written[1]["budget"]["steps"] == 5


def test_what_cannot_be_recorded_is_not_settled(ledger_file: Path) -> None:
    audit = ledger_file.parent / "audit"
    begin_log(audit, federation="heart.example.org", party="mercy", clock=SystemClock())
    (audit / "1" / "frozen").touch()
    with pytest.raises(AuditError):
        budget_command.main(["settle", "j1", "--reason", "the job is gone", "--home", str(ledger_file.parent)])
    opened = BudgetStore.open(ledger_file, clock=CLOCK)
    assert opened.remaining_steps("j1") == 15
    opened.close()


def test_leases_take_the_receipt_of_their_own_entry_and_of_no_other(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule())
    with pytest.raises(EntryRefused, match=r"where budget\.leased is needed"):
        RoundLeases(store, sent("update.sent", digest="a" * 64, size_bytes=1))
    assert store.job("j1").steps_charged == 0


def test_only_verbs_that_exist_are_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_command.main([]) == 0
    helped = capsys.readouterr().out
    assert all(f"budget {verb} " in helped for verb in budget_command.VERBS)
    with pytest.raises(InvalidInput, match="there is no `confide site budget refill`"):
        budget_command.main(["refill"])
    with pytest.raises(LedgerMisused):
        budget_command.main(["show", "heart", "--home", str(tmp_path)])


def test_the_statement_has_the_exact_figures_of_a_jobs_schedule_where_they_are_known(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule(2.0))
    figures = store.show("heart")
    for exact, end in ((Exact(1.2), "epsilon 1.20"), (Exact(1.2, 2.5), "epsilon 1.20, and 2.50 for one replaced by")):
        (line,) = [line for line in statement(figures, exact={"j1": exact}) if " j1 " in line]
        assert f"; exact for this job alone, taken to its end: {end}" in line
    assert "exact for this" not in "\n".join(statement(figures))


def test_an_exact_figure_that_comes_in_time_is_below_the_ledgers_bound(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule(2.0, rounds=1, local_steps=1))
    # On a machine without time to spare there is none; then the statement leaves it out.
    for exact in budget_command.exact_of(store.show("heart"), SystemClock()).values():
        assert 0 < exact.alone <= 2.0
        assert exact.replaced is None or exact.replaced > exact.alone


def test_the_arithmetic_of_the_statement_gives_the_figure_that_it_explains(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule(2.0))
    store.used(store.lease("j1", 0, 5))
    shown = store.show("heart").policies[0]
    assert shown.arithmetic is not None
    assert shown.arithmetic.charged + shown.arithmetic.conversion == pytest.approx(shown.epsilon_spent)
    assert any(f"add up to {shown.arithmetic.charged:.4f}" in line for line in statement(store.show("heart")))


def test_somebody_with_several_rows_is_told_more_than_a_multiple(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule(1.0))
    store.used(store.lease("j1", 0, 20 - 1))
    one = store.show("heart").policies[0].epsilon_spent
    found = store.epsilon_for_rows("heart", (1, 2, 4))
    assert found[1] == pytest.approx(one, rel=1e-4)
    assert found[2] > 2 * one
    assert found[4] > 2 * found[2]
    assert "somebody with several rows has less" in "\n".join(statement(store.show("heart"), for_rows=found)).lower()


def test_a_promise_about_people_needs_no_figure_for_rows(database_url: str) -> None:
    opened = BudgetStore.open(database_url, clock=CLOCK)
    register(opened, unit="entity", entity_column="patient")
    assert opened.epsilon_for_rows("heart", (2,)) == {}
    assert "One person with all their rows at this site" in "\n".join(statement(opened.show("heart")))
    opened.close()


def test_the_statement_says_who_was_promised_what_and_who_changed_it(store: BudgetStore) -> None:
    store.reserve("j1", "d", "heart", schedule(1.0))
    store.create_policy(
        commands.AddPolicy(
            policy="heart-p2",
            population="heart",
            unit="record",
            epsilon=6.0,
            delta=1e-3,
            trust="secagg-2",
            approved_by=("alice", "bob"),
            replaces="heart-p1",
        )
    )
    with pytest.raises(BudgetRefused):
        store.reserve("j2", "d", "heart", schedule(6.0))
    store.recover(
        commands.Recover(means="retired", reason="backup", approved_by=("alice", "bob"), atoms=("heart/train-1",))
    )
    figures = store.show("heart")
    said = "\n".join(statement(figures, one_person=True, exact={"j1": Exact(0.5)}))
    for sentence in (
        "The coordinator and up to 2 sites acting together",
        "Policy heart-p1 (epsilon 4, delta 0.001) was replaced",
        "approved by alice, bob; what had been spent stayed spent",
        "An epsilon above 5 is a weak promise",
        "the ledger was recovered after a restored backup (retired)",
        "one person alone may change a promise",
        "epsilon 0.50",
        "Nothing was released from them yet",
    ):
        assert sentence in said
    for word in ("anonym", "no risk", "harmless"):
        assert word not in said.lower()
    shown = "\n".join(table(figures))
    assert "refused j2 (DP_BUDGET): asked epsilon 6.00; could have had" in shown
    assert "recovered 2026-01-01T12:00:00Z (retired)" in shown
