"""Who may call the API, and what the log holds of those who came and of those who were turned away."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit.errors import AppendFailed
from audit.log import AuditLog
from coordinator.access import Access, Caller, Role
from coordinator.access_recording import AccessRecorder
from coordinator.views import ResultFile
from federation.errors import ConfideError, InvalidInput
from tests.support import audit_logs
from tests.support.clocks import MovableClock

ALICE = Caller(name="alice@example.org", roles=frozenset({Role.COORDINATOR}))
BOB = Caller(name="bob@example.org", roles=frozenset({Role.VIEWER}))
PEOPLE = {"a": ALICE, "b": BOB}


class Desk:
    """An API's door over a real log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = MovableClock()
        self.log = AuditLog.create(folder, origin_federation="heart.example.org", party="coordinator", clock=self.clock)
        self.recorder = AccessRecorder(self.log, self._job)
        self.access = Access(PEOPLE.get, self.recorder, self.clock)

    @staticmethod
    def _job(job: str) -> Any:
        if job != "heart-1":
            raise InvalidInput("CFD-J02", f"there is no job {job}")
        return SimpleNamespace(id=job, plan_digest="cd" * 32)

    def asks(self, act: str, token: str, job: str | None = None) -> str:
        """Return how a request ends: the caller's name, or a code."""
        try:
            return self.access.admit(act, f"Bearer {token}", address="192.0.2.7", job=job).name
        except ConfideError as problem:
            return problem.code

    def written(self) -> list[dict[str, Any]]:
        """Return what was recorded after the log's own beginning."""
        self.log.checkpoint()
        return [event for event in audit_logs.events_in(self.folder) if not event["action"].startswith("log.")]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "audit")
    yield made
    made.log.close()


def test_a_person_is_recorded_once_an_hour_by_pseudonym_and_a_sealed_address(desk: Desk) -> None:
    assert [desk.asks("list", "a") for _ in range(3)] == ["alice@example.org"] * 3
    desk.clock.forward(3601)
    desk.asks("list", "a")
    first, second = desk.written()
    assert (first["action"], first["decision"], first["actor"]["role"]) == ("user.login", "allowed", "coordinator")
    assert first["actor"]["id"] == second["actor"]["id"]
    assert first["actor"]["id"].startswith("p1:")
    assert list(first["private"]) == ["address"]
    assert "alice" not in str(first)
    assert "192.0" not in str(first)


def test_unknown_tokens_cannot_fill_the_log(desk: Desk) -> None:
    assert {desk.asks("list", f"guess-{number}") for number in range(50)} == {"CFD-J21"}
    desk.clock.forward(11)
    desk.asks("list", "guess")
    written = desk.written()
    assert [(event["decision"], event["code"], event["actor"]["id"]) for event in written] == [
        ("refused", "CFD-J21", "unknown")
    ] * 2


@pytest.mark.parametrize(
    ("act", "job", "action", "cause"),
    [
        ("cancel", "heart-1", "job.cancelled", None),
        ("pause", "heart-1", "job.paused", None),
        ("resume", "heart-1", "job.resumed", None),
        ("cancel", "unknown-1", "user.login", "cancel"),
        ("submit", None, "user.login", "submit"),
        ("file", "heart-1", "user.login", "file"),
    ],
)
def test_an_act_that_takes_another_role_is_refused_on_the_record(
    desk: Desk, act: str, job: str | None, action: str, cause: str | None
) -> None:
    assert desk.asks(act, "b", job) == "CFD-J22"
    refused = desk.written()[-1]
    assert (refused["action"], refused["decision"], refused["code"]) == (action, "refused", "CFD-J22")
    assert refused.get("cause") == cause
    assert refused["actor"]["role"] == "viewer"


def test_a_file_is_on_the_record_before_it_is_handed_out(desk: Desk) -> None:
    file = ResultFile(name="model.safetensors", path="/nowhere", size_bytes=17, sha256="ab" * 32)
    desk.recorder.exported("alice@example.org", "coordinator", "heart-1", file)
    (exported,) = desk.written()
    assert exported["action"] == "artifact.exported"
    assert exported["egress"] == {
        "what": "artifact", "hash": "sha256:" + "ab" * 32, "bytes": 17, "to": "api", "encrypted": False
    }  # fmt: skip


def test_who_cannot_be_recorded_is_not_admitted(desk: Desk) -> None:
    desk.log.close()
    with pytest.raises(AppendFailed):
        desk.access.admit("list", "Bearer a", address="")
