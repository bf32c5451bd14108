import threading
from pathlib import Path

import pytest

from audit.errors import AuditError, SecondWriter
from audit.log import AuditLog
from federation.edge import audit_trail
from federation.edge.clock import SystemClock
from federation.membership_events import invited
from tests.support.membership import FEDERATION, NOON, decided

CLOCK = SystemClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "audit"
    audit_trail.begin_log(made, federation=FEDERATION, party="coordinator", clock=CLOCK)
    return made


def record(folder: Path, site: str = "st-anna") -> None:
    actor = audit_trail.person(folder, CLOCK)
    entry = invited(lambda: f"{abs(hash(site)):032x}"[:32], actor, site=site, token_digest="0" * 64, expires=NOON)
    audit_trail.record(folder, CLOCK, entry)


def test_the_public_keys_are_those_that_were_made(folder: Path) -> None:
    keys = audit_trail.audit_keys(folder, federation=FEDERATION, party="coordinator")
    assert keys.log.startswith("heart.example.org/coordinator/audit/1+")
    assert keys.witness.startswith("heart.example.org/coordinator/witness+")
    assert len(keys.writers) == 2


def test_the_same_account_has_the_same_pseudonym_and_no_name_in_the_log(folder: Path) -> None:
    first, second = (audit_trail.person(folder, CLOCK, login="alice") for _ in range(2))
    assert first == second
    assert first.id.startswith("p1:")
    assert audit_trail.person(folder, CLOCK, login="bob").id != first.id


def test_a_command_writes_its_entry_itself_where_no_daemon_runs(folder: Path) -> None:
    record(folder)
    assert decided(folder) == [("member.invited", "allowed")]


@pytest.mark.enable_socket
def test_a_command_hands_its_entry_to_the_daemon_where_one_runs(folder: Path) -> None:
    with AuditLog.open(folder, clock=CLOCK, serve_socket=True):
        record(folder)
    assert decided(folder) == [("member.invited", "allowed")]


def test_commands_at_once_wait_for_each_other(folder: Path) -> None:
    failures: list[AuditError] = []

    def work(site: str) -> None:
        try:
            record(folder, site)
        except AuditError as problem:
            failures.append(problem)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("bern", "chur", "davos")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert decided(folder) == [("member.invited", "allowed")] * 3


class Hurried(SystemClock):
    """A clock on which waiting takes no time."""

    def sleep(self, seconds: float) -> None:
        """Wait for nothing."""


def test_a_process_that_holds_the_log_and_takes_nothing_is_named_in_the_end(folder: Path) -> None:
    actor = audit_trail.person(folder, CLOCK)
    entry = invited(lambda: "0" * 32, actor, site="bern", token_digest="0" * 64, expires=NOON)
    with AuditLog.open(folder, clock=CLOCK), pytest.raises(SecondWriter, match="takes no entries"):
        audit_trail.record(folder, Hurried(), entry)
