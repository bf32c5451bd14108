"""A log of any length: rounds of jobs on twenty data sets over three years.

The entries go through the real committer, signed one by one, in the batches that it makes of what waits; only the
models that check a caller's draft are left out, since every draft here is a copy of one that they checked. Time passes
between the batches, not inside.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from audit import events
from audit.canonical import Event
from audit.log import AuditLog
from audit.receipt import Receipt
from audit.settings import LogSettings

FEDERATION: Final = "heart.example.org"
PARTY: Final = "cleveland"
DATASETS: Final = tuple(f"heart-{number:02}" for number in range(20))
BEGAN: Final = datetime(2023, 1, 1, tzinfo=UTC)
LASTS: Final = timedelta(days=3 * 365)
ROUNDS_PER_JOB: Final = 50
_SETTINGS: Final = LogSettings(checkpoint_every_entries=1 << 40, checkpoint_every_s=1e9)
_HASH: Final = "sha256:" + "a" * 64
_DAEMON: Final = events.Actor(kind="service", id="daemon")


class StepClock:
    """A clock that moves when nothing is being written."""

    def __init__(self) -> None:
        self._passed = timedelta()

    def now(self) -> datetime:
        return BEGAN + self._passed

    def monotonic_s(self) -> float:
        return self._passed.total_seconds()

    def move(self, step: timedelta) -> None:
        self._passed += step


def _dataset(name: str) -> events.Dataset:
    return events.Dataset(id=name, version=_HASH)


def _budget(eps_nano: int) -> events.Budget:
    return events.Budget(
        population="heart-records",
        policy="p1",
        trust="local",
        unit="record",
        eps_nano=eps_nano,
        delta_e15=10_000_000_000,
        steps=20,
        total_eps_nano=3_000_000_000,
        left_eps_nano=1_690_000_000,
        head=events.LedgerHead(seq=31, hash=_HASH),
    )


def round_drafts(dataset: str, *, job: str, number: int, opened: int, new_id: Callable[[], str]) -> list[events.Draft]:
    """What a site writes about one round, in order; `opened` is the index that the second of them will have."""
    data, spent = _dataset(dataset), _budget(20_000_000 * (number + 1))
    common: dict[str, Any] = {"decision": "allowed", "actor": _DAEMON, "job": job, "round": number}
    purpose = events.Purpose(code="DUO:0000007")
    approval = events.Approval(id="a-12", by=["p1:" + "A" * 43])
    egress = events.Egress(what="update", hash=_HASH, bytes=1_048_576, to="coordinator", encrypted=True)
    return [
        events.BudgetLeased(id=new_id(), dataset=data, budget=spent, **common),
        events.DataOpened(
            id=new_id(),
            rule="rules/1",
            dataset=data,
            mode="train",
            plan=_HASH,
            purpose=purpose,
            policy=_HASH,
            approval=approval,
            budget=spent,
            **common,
        ),
        events.DataClosed(id=new_id(), opened=opened, dataset=data, **common),
        events.BudgetSpent(id=new_id(), dataset=data, budget=spent, **common),
        events.UpdateSent(id=new_id(), egress=egress, **common),
    ]


def job_drafts(dataset: str, *, job: str, new_id: Callable[[], str]) -> list[events.Draft]:
    """What a site writes before the first round of a job."""
    common: dict[str, Any] = {"decision": "allowed", "actor": _DAEMON, "job": job, "dataset": _dataset(dataset)}
    purpose = events.Purpose(code="DUO:0000007")
    return [
        events.JobAccepted(id=new_id(), plan=_HASH, purpose=purpose, policy=_HASH, rule="rules/1", **common),
        events.BudgetReserved(id=new_id(), budget=_budget(20_000_000 * ROUNDS_PER_JOB), **common),
    ]


def _bodies(first: int) -> Iterator[list[Event]]:
    """Yield the drafts of jobs and rounds without end, the first of which will have the index `first`."""
    index = first
    number = 0

    def new_id() -> str:
        nonlocal number
        number += 1
        return f"{number:032x}"

    rounds = {
        (name, at): [draft.body() for draft in round_drafts(name, job="heart-risk", number=at, opened=0, new_id=new_id)]
        for name in DATASETS
        for at in range(ROUNDS_PER_JOB)
    }
    for count in range(1 << 40):
        name = DATASETS[count % len(DATASETS)]
        job = f"heart-risk-{count:06}"
        begins = [draft.body() for draft in job_drafts(name, job=job, new_id=new_id)]
        yield begins
        index += len(begins)
        for at in range(ROUNDS_PER_JOB):
            bodies = [{**body, "id": new_id(), "job": job} for body in rounds[name, at]]
            bodies[2]["opened"] = index + 1
            yield bodies
            index += len(bodies)


def write_long_log(home: Path, entries: int, *, progress: Callable[[int], None] = lambda _entries: None) -> None:
    """Make a home whose log has `entries` or a few more, closed in order."""
    clock = StepClock()
    log = AuditLog.create(home / "audit", origin_federation=FEDERATION, party=PARTY, clock=clock, settings=_SETTINGS)
    bodies = _bodies(log.size)
    step = max(64, min(2048, entries // 100))
    with log:
        while log.size < entries - 1:
            waiting: list[Future[Receipt]] = []
            while len(waiting) < min(step, entries - 1 - log.size):
                waiting += map(log._submit, next(bodies))
            for done in waiting:
                done.result()
            clock.move(LASTS * len(waiting) / entries)
            progress(log.size)
