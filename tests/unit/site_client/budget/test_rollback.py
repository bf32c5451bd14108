"""A restored or forked ledger is found against what the audit log has seen of it; and the three ways out."""

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from audit import edge, epochs
from audit.errors import AuditError
from audit.events import Actor
from audit.settings import LogSettings
from federation.edge.homes import SiteHome
from federation.errors import InvalidInput
from privacy.accounting.events import PoissonGaussian
from privacy.errors import (
    AtomExhausted,
    BudgetRefused,
    LedgerBehind,
    LedgerForked,
    LedgerMisused,
    PrivacyError,
    SecondPersonNeeded,
)
from site_client import approvals_command, budget_command
from site_client.budget.recovery import KnownJob, charge_rounds, replay
from site_client.budget.witnessed import recorded_in
from site_client.configuration import CoordinatorAddress, SiteConfiguration
from site_client.doctor import Doctor, Finding
from tests.support.audit_logs import HandClock
from tests.support.budget_site import BudgetSite

Become = Callable[[str], None]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Act as another account from now on."""

    def to(account: str) -> None:
        monkeypatch.setattr(edge, "account", lambda: account)

    to("alice")
    return to


@pytest.fixture
def site(tmp_path: Path) -> Iterator[BudgetSite]:
    made = BudgetSite(tmp_path / "mercy")
    yield made
    made.stop()
    made.jobs.close()


def yesterday(site: BudgetSite) -> None:
    """Play a round, back the ledger up, play two more, and restore the backup."""
    site.accept("j1-000001")
    site.round("j1-000001", 0)
    site.back_up("yesterday.db")
    site.round("j1-000001", 1)
    site.round("j1-000001", 1, steps=1, use="evaluate")
    site.round("j1-000001", 2)
    site.restore("yesterday.db")


def blocked(site: BudgetSite, kind: type[PrivacyError]) -> None:
    for act in (
        lambda: site.accept("j9-000009"),
        lambda: site.store.lease("j1-000001", 3, 1),
        lambda: site.store.charge("c1", "heart", PoissonGaussian(sampling_rate=0.1, noise_multiplier=9.0), purpose="x"),
        lambda: site.store.add_dataset_version("heart", version="v9", units_declared=9, declared_by="alice"),
    ):
        with pytest.raises(kind):
            act()


def recover(site: BudgetSite, become: Become, captured: Captured, *words: str) -> str:
    """Ask as one person, confirm as another, and return what the second was told."""
    home = str(site.home)
    site.log.close()
    captured.readouterr()
    become("alice")
    assert budget_command.main(["recover", *words, "--reason", "backup of Monday", "--home", home]) == 0
    request = captured.readouterr().out.split()[1]
    become("bob")
    assert approvals_command.main(["approve", request, "--home", home]) == 0
    told = captured.readouterr().out
    site.store.close()
    site.start()
    return told


# --- finding it -------------------------------------------------------------------------------------------------


def test_a_ledger_that_agrees_with_its_log_admits(site: BudgetSite) -> None:
    assert recorded_in(site.home).head is None
    site.accept("j1-000001")
    site.round("j1-000001", 0)
    site.stop()
    site.start()
    assert site.problem is None
    assert recorded_in(site.home).head == site.store.head() or recorded_in(site.home).head is not None
    site.round("j1-000001", 1)


def test_yesterdays_ledger_under_todays_log_blocks_every_job(site: BudgetSite) -> None:
    yesterday(site)
    assert isinstance(site.problem, LedgerBehind)
    assert site.problem.cause == "DP_LEDGER_BEHIND"
    blocked(site, LedgerBehind)


def test_a_ledger_that_went_on_from_the_backup_is_a_fork(site: BudgetSite) -> None:
    site.accept("j1-000001")
    site.back_up("yesterday.db")
    site.round("j1-000001", 0, steps=2)
    log = shutil.copytree(site.home / "audit", site.home.parent / "audit-kept")
    site.restore("yesterday.db")
    site.store.hold_to(lambda: recorded_in(Path("/nowhere")))  # a second copy of this site, which saw no such log
    for _ in range(4):
        site.store.used(site.store.lease("j1-000001", 0, 2))
    site.stop()
    assert log.exists()
    site.start()
    assert isinstance(site.problem, LedgerForked)
    blocked(site, LedgerForked)


def test_a_ledger_that_was_deleted_is_behind(site: BudgetSite) -> None:
    site.accept("j1-000001")
    site.stop()
    for path in site.home.glob("ledger.db*"):
        path.unlink()
    site.start()
    assert isinstance(site.problem, LedgerBehind)


def test_a_clock_set_back_changes_nothing(tmp_path: Path) -> None:
    clock = HandClock()
    site = BudgetSite(tmp_path / "mercy", clock=clock)
    site.accept("j1-000001")
    site.round("j1-000001", 0)
    before = site.charged()
    site.stop()
    clock.wall -= timedelta(days=400)
    site.start()
    assert site.problem is None
    site.round("j1-000001", 1)
    assert all(now > then for now, then in zip(site.charged(), before, strict=True))
    site.stop()


def test_a_restored_machine_whose_log_lost_entries_too_is_blocked_until_it_is_recovered(
    site: BudgetSite, become: Become, capsys: Captured
) -> None:
    site.accept("j1-000001")
    site.stop()
    image = site.home.parent / "image"
    shutil.copytree(site.home, image)
    site.start()
    site.round("j1-000001", 0)
    site.stop()
    signed = next((site.home / "audit").glob("**/checkpoint")).read_bytes()
    shutil.rmtree(site.home)
    shutil.copytree(image, site.home)
    # What its witnesses hold of the log is larger than this image: the site keeps their checkpoint when it freezes.
    next((site.home / "audit").glob("**/checkpoint")).write_bytes(signed)
    with pytest.raises(AuditError):
        site.start()
    epochs.begin_next(
        site.home / "audit",
        reason="image of Monday",
        commit=lambda _: "c1:" + "A" * 43,
        actor=Actor(kind="service", id="daemon"),
        clock=site.clock,
        settings=LogSettings(),
    )
    site.start()
    assert isinstance(site.problem, LedgerBehind)
    blocked(site, LedgerBehind)
    recover(site, become, capsys, "--means", "charged", "--rounds", "j1-000001=2")
    assert site.problem is None


def looked_at(site: BudgetSite) -> Finding:
    settings = SiteConfiguration(site="mercy", coordinator=CoordinatorAddress(address="coordinator.example.org:9443"))
    doctor = Doctor(SiteHome(site.home), settings, clock=site.clock, variables={})
    return dict(doctor.looks())["privacy ledger"]()


def test_the_doctor_names_a_rolled_back_ledger_and_the_way_out(site: BudgetSite) -> None:
    site.accept("j1-000001")
    assert not looked_at(site).is_problem
    yesterday_again(site)
    found = looked_at(site)
    assert found.code == LedgerBehind.code
    assert "confide site budget recover" in found.how_to_fix


def yesterday_again(site: BudgetSite) -> None:
    site.back_up("yesterday.db")
    site.round("j1-000001", 0)
    site.restore("yesterday.db")


# --- the three ways out -----------------------------------------------------------------------------------------


def test_what_the_log_recorded_is_charged_again(site: BudgetSite, become: Become, capsys: Captured) -> None:
    yesterday(site)
    before = site.charged()
    told = recover(site, become, capsys, "--means", "replayed")
    assert "9 steps charged in 3 entries" in told
    assert site.problem is None
    assert all(now > then for now, then in zip(site.charged(), before, strict=True))
    single = {one.charge: one.count for one in site.store.state.single}
    assert sorted(single.values()) == [1, 4, 4]
    (event,) = site.recorded("budget.recovered")
    assert (event["means"], len(event["approval"]["by"])) == ("replayed", 2)
    assert site.touched == 12
    site.accept("j2-000002")  # and new jobs are admitted again
    with pytest.raises(PrivacyError):
        site.store.lease("j1-000001", 3, 1)  # what ran then gets nothing more


def test_a_round_that_was_never_finished_counts_as_all_that_it_might_have_taken(
    site: BudgetSite, become: Become, capsys: Captured
) -> None:
    site.accept("j1-000001")
    site.back_up("yesterday.db")
    site.round("j1-000001", 0, finish=False)
    site.round("j1-000001", 1)
    site.restore("yesterday.db")
    assert "8 steps charged in 2 entries" in recover(site, become, capsys, "--means", "replayed")


def test_rounds_that_the_coordinators_log_names_are_charged(site: BudgetSite, become: Become, capsys: Captured) -> None:
    yesterday(site)
    told = recover(site, become, capsys, "--means", "charged", "--rounds", "j1-000001=2")
    assert "10 steps charged in 2 entries" in told  # two rounds of four steps, each with an evaluation
    assert site.problem is None


def test_retired_data_serve_nothing_more(site: BudgetSite, become: Become, capsys: Captured) -> None:
    yesterday(site)
    assert "2 parts retired" in recover(site, become, capsys, "--means", "retired")
    assert site.problem is None
    with pytest.raises(AtomExhausted):
        site.accept("j2-000002")


def test_a_recovery_that_was_rolled_back_itself_is_found(site: BudgetSite, become: Become, capsys: Captured) -> None:
    yesterday(site)
    recover(site, become, capsys, "--means", "replayed")
    site.restore("yesterday.db")
    assert isinstance(site.problem, LedgerBehind | LedgerForked)


def test_a_ledger_that_agrees_needs_no_recovery(site: BudgetSite, become: Become) -> None:
    become("alice")
    with pytest.raises(LedgerMisused, match="agrees"):
        budget_command.main(["recover", "--means", "retired", "--reason", "x", "--home", str(site.home)])


# --- two people -------------------------------------------------------------------------------------------------


def asked(site: BudgetSite, captured: Captured, *words: str) -> str:
    captured.readouterr()
    assert budget_command.main([*words, "--home", str(site.home)]) == 0
    return captured.readouterr().out.split()[1]


def test_who_asks_for_more_budget_cannot_confirm_it(site: BudgetSite, become: Become, capsys: Captured) -> None:
    request = asked(site, capsys, "raise", "heart", "--epsilon", "30")
    with pytest.raises(SecondPersonNeeded):
        approvals_command.main(["approve", request, "--home", str(site.home)])
    assert approvals_command.main(["list", "--home", str(site.home)]) == 0
    assert "budget raise data-set heart epsilon 30" in capsys.readouterr().out
    become("bob")
    site.log.close()
    assert approvals_command.main(["approve", request, "--home", str(site.home)]) == 0
    assert "policy heart-p2 replaces heart-p1: epsilon 30" in capsys.readouterr().out
    (event,) = site.recorded("budget.policy_changed")
    assert event["replaces"] == "heart-p1"
    assert len(set(event["approval"]["by"])) == 2
    with pytest.raises(LedgerMisused, match="no request"):
        approvals_command.main(["approve", request, "--home", str(site.home)])


def test_a_raised_budget_is_spent_from_where_it_stood(site: BudgetSite, become: Become, capsys: Captured) -> None:
    site.accept("j1-000001")
    site.round("j1-000001", 0)
    spent = site.store.show("heart").policies[0].epsilon_spent
    request = asked(site, capsys, "raise", "heart", "--epsilon", "30", "--foreign-delta", "1e-6")
    become("bob")
    site.log.close()
    approvals_command.main(["approve", request, "--home", str(site.home)])
    after = site.store.show("heart").policies[0]
    assert (after.policy, after.epsilon) == ("heart-p2", 30.0)
    assert after.epsilon_spent == pytest.approx(spent, rel=0.01)
    assert after.epsilon_spent >= spent


def test_a_release_made_elsewhere_is_counted_and_recorded(site: BudgetSite, become: Become, capsys: Captured) -> None:
    words = ("foreign", "heart", "--epsilon", "0.5", "--delta", "0", "--what", "a table of last year")
    request = asked(site, capsys, *words)
    become("bob")
    site.log.close()
    assert approvals_command.main(["approve", request, "--home", str(site.home)]) == 0
    (event,) = site.recorded("budget.charged")
    assert event["kind"] == "foreign"
    assert site.store.show("heart").foreign[0].what == "a table of last year"


def test_a_release_that_the_promise_cannot_hold_waits_for_a_raised_one(
    site: BudgetSite, become: Become, capsys: Captured
) -> None:
    words = ("foreign", "heart", "--epsilon", "25", "--delta", "0", "--what", "all rows, with little noise")
    request = asked(site, capsys, *words)
    become("bob")
    with pytest.raises(BudgetRefused, match="doesn't hold"):
        approvals_command.main(["approve", request, "--home", str(site.home)])


def test_a_request_can_be_denied(site: BudgetSite, become: Become, capsys: Captured) -> None:
    request = asked(site, capsys, "raise", "heart", "--epsilon", "30")
    assert approvals_command.main(["deny", request, "--home", str(site.home)]) == 0
    assert site.store.show("heart").policies[0].policy == "heart-p1"


def test_a_home_with_one_person_acts_alone_and_says_so(site: BudgetSite, become: Become, capsys: Captured) -> None:
    (site.home / "site.yaml").write_text("site: mercy\naudit: {two_people: false}\n", encoding="utf-8")
    site.log.close()
    assert budget_command.main(["raise", "heart", "--epsilon", "30", "--home", str(site.home)]) == 0
    shown = capsys.readouterr()
    assert "policy heart-p2" in shown.out
    assert "one person alone" in shown.err


@pytest.mark.parametrize("wrong", [("--epsilon", "much"), ("--epsilon", "30", "--delta", "small")])
def test_a_number_that_is_none_is_refused(site: BudgetSite, become: Become, wrong: tuple[str, ...]) -> None:
    with pytest.raises(LedgerMisused, match="must be a number"):
        budget_command.main(["raise", "heart", *wrong, "--home", str(site.home)])


def test_a_decision_about_a_job_still_needs_its_reason(site: BudgetSite) -> None:
    with pytest.raises(InvalidInput, match="reason"):
        approvals_command.main(["approve", "5c1f09a2b7d3", "--home", str(site.home)])


# --- the replay alone -------------------------------------------------------------------------------------------

EVENT = PoissonGaussian(sampling_rate=0.1, noise_multiplier=2.0)


def known(name: str) -> KnownJob:
    if name == "unknown":
        raise LedgerMisused("no such job")
    return KnownJob("heart", None if name == "plain" else EVENT, None, 4)


def logged(action: str, index: int, *, seq: int | None = None, **fields: Any) -> dict[str, Any]:
    budget = {"budget": {"steps": 4, "head": {"seq": seq, "hash": "sha256:"}}} if seq is not None else {}
    return {"action": action, "index": index, **budget, **fields}


def played(*events: dict[str, Any]) -> list[int]:
    found = replay(events, holds=lambda event: event["budget"]["head"]["seq"] < 10, job=known)
    return [one.steps for one in found.missed]


def test_a_round_that_the_ledger_holds_is_not_charged_again() -> None:
    held = [
        logged("budget.leased", 1, seq=3, job="j1", round=0),
        logged("budget.spent", 3, seq=5, job="j1", round=0),
    ]
    assert played(*held) == []
    assert played(*held, logged("budget.leased", 4, seq=12, job="j1", round=1)) == [4]


def test_a_crash_long_before_the_backup_is_not_charged_again() -> None:
    crashed = logged("budget.leased", 1, seq=3, job="j1", round=0)
    again = logged("budget.leased", 2, seq=6, job="j1", round=0)
    ended = logged("budget.spent", 3, seq=8, job="j1", round=0)
    assert played(crashed, again, ended, logged("budget.leased", 4, seq=12, job="j1", round=1)) == [4]


def test_a_backup_from_the_middle_of_a_round_counts_the_round_whole() -> None:
    assert played(
        logged("budget.leased", 1, seq=9, job="j1", round=0),
        logged("budget.spent", 3, seq=14, job="j1", round=0),
    ) == [4]


@pytest.mark.parametrize("action", ["budget.policy_changed", "data.registered", "budget.charged"])
def test_what_the_log_does_not_describe_is_not_replayed(action: str) -> None:
    event = logged(action, 7, seq=12, kind="single", dataset={"id": "heart"})
    with pytest.raises(LedgerMisused, match="entry 7 of the audit log"):
        played(event)


def test_a_use_without_a_bound_is_marked_again() -> None:
    event = logged("budget.charged", 7, seq=12, kind="unbounded", dataset={"id": "heart"})
    found = replay([event], holds=lambda _: False, job=known)
    assert [mark.data_set for mark in found.unbounded] == ["heart", "heart"]


def test_a_job_without_noise_cannot_be_charged() -> None:
    with pytest.raises(LedgerMisused, match="no noise"):
        played(logged("budget.leased", 4, seq=12, job="plain", round=1))
    with pytest.raises(LedgerMisused, match="no noise"):
        charge_rounds({"plain": 2}, request="r-1", job=known)
    with pytest.raises(LedgerMisused, match="no such job"):
        charge_rounds({"unknown": 2}, request="r-1", job=known)
    assert charge_rounds({"j1": 0}, request="r-1", job=known) == []
