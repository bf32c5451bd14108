"""Steps of jobs from many threads: each is recorded before it is made, and as it is made."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator import job_machine
from coordinator.conductor import Conductor
from coordinator.configuration import Jobs
from coordinator.job_machine import JobState
from coordinator.migrations import bring_up
from coordinator.records import NewJob
from coordinator.site_machine import SiteEvent
from coordinator.store import Store
from coordinator.views import shown_time
from federation.edge.clock import SystemClock
from federation.edge.database import open_engine, sqlite_url
from federation.edge.logs import open_log
from federation.errors import OutOfOrder
from federation.messages import Body, JobAction, JobControl, JobId, Offer, SiteId
from tests.support.clocks import MovableClock

SITES = tuple(SiteId(f"site-{number}") for number in range(8))


class Noted:
    """A recorder and a link that keep what they are told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.sent: list[tuple[str, Body]] = []
        self.here = set(SITES)

    def job_moved(self, record: Any, action: str, actor: Any, code: str | None) -> None:
        self.told.append((f"job.{action}", code))

    def job_offered(self, record: Any, site: SiteId) -> None:
        self.told.append(("job.offered", site))

    def send(self, site: str, body: Body) -> str:
        self.sent.append((site, body))
        return "m"

    def connected(self, site: str) -> bool:
        return site in self.here


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def store(tmp_path: Path, clock: MovableClock) -> Iterator[Store]:
    engine = open_engine(sqlite_url(tmp_path / "test.db"))
    bring_up(engine)
    yield Store(engine, clock)
    engine.dispose()


@pytest.fixture
def conductor(store: Store, noted: Noted) -> Conductor:
    return Conductor(
        store=store,
        recorder=noted,  # type: ignore[arg-type]
        link=noted,
        new_message_id=lambda: "m",
        settings=Jobs(),
        clock=SystemClock(),
        log=open_log(level="error"),
        forget=lambda job: None,
    )


def submitted(store: Store, number: int = 1, *, priority: int = 50, sites: tuple[SiteId, ...] = SITES) -> JobId:
    record, _ = store.jobs.create(
        NewJob(
            id=JobId(f"heart-{number:06x}"),
            name="heart",
            plan=b"{}",
            plan_digest="0" * 64,
            contract=b"{}",
            submitter="alice",
            signature=b"",
            vouched=False,
            priority=priority,
            invited=sites,
            quorum=min(4, len(sites)),
            rounds=1,
            attempts=1,
        )
    )
    return record.id


def test_answers_from_all_sites_at_once_start_the_job_once_and_record_it(
    conductor: Conductor, store: Store, noted: Noted
) -> None:
    job = submitted(store)
    conductor.pump()
    threads = [threading.Thread(target=conductor.answered, args=(job, site, SiteEvent.ACCEPT, ())) for site in SITES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.jobs.get(job).job.state is JobState.RUNNING
    assert [name for name, _ in noted.told].count("job.started") == 1


def test_an_offer_is_recorded_before_it_is_sent(conductor: Conductor, store: Store, noted: Noted) -> None:
    submitted(store)
    conductor.pump()
    assert [site for name, site in noted.told if name == "job.offered"] == list(SITES)
    assert [site for site, body in noted.sent if isinstance(body, Offer)] == list(SITES)


def test_a_step_that_is_out_of_order_is_not_recorded(conductor: Conductor, store: Store, noted: Noted) -> None:
    job = submitted(store)
    with pytest.raises(OutOfOrder):
        conductor.step(job, job_machine.PauseAsked())
    assert noted.told == []


def test_a_site_that_was_away_hears_of_the_end_when_it_says_hello(
    conductor: Conductor, store: Store, noted: Noted
) -> None:
    job = submitted(store)
    conductor.pump()
    noted.here.discard(SITES[0])
    conductor.step(job, job_machine.CancelAsked("alice asked"))
    told = {site for site, body in noted.sent if isinstance(body, JobControl)}
    assert told == set(SITES[1:])
    conductor.greet(SITES[0], [])
    last = noted.sent[-1][1]
    assert isinstance(last, JobControl)
    assert (last.job, last.action) == (job, JobAction.CANCEL)
    count = len(noted.sent)
    conductor.greet(SITES[0], [])
    assert len(noted.sent) == count  # once is enough
    conductor.greet(SITES[0], [job, "unknown-0a1b2c"])
    assert len(noted.sent) == count + 1  # unless the site still works on it


def test_an_offer_that_a_site_has_not_answered_comes_again_with_its_hello(
    conductor: Conductor, store: Store, noted: Noted
) -> None:
    job = submitted(store)
    conductor.pump()
    conductor.answered(job, SITES[1], SiteEvent.PARK, ())
    conductor.answered(job, SITES[2], SiteEvent.ACCEPT, ())
    noted.sent.clear()
    for site in SITES[:3]:
        conductor.greet(site, [])
    assert [site for site, body in noted.sent if isinstance(body, Offer)] == [SITES[0], SITES[1]]


def test_refusals_free_the_places_for_the_next_job(conductor: Conductor, store: Store, noted: Noted) -> None:
    first, second = submitted(store), submitted(store, 2)
    conductor.pump()
    assert store.jobs.get(second).job.state is JobState.QUEUED
    for site in SITES[:5]:
        conductor.answered(first, site, SiteEvent.REFUSE, ("CFD-S01: no",))
    assert store.jobs.get(first).job.state is JobState.FAILED
    assert ("job.failed", "CFD-J06") in noted.told
    assert store.jobs.get(second).job.state is JobState.OFFERED


def accept(conductor: Conductor, job: JobId, *sites: SiteId) -> None:
    for site in sites:
        conductor.answered(job, site, SiteEvent.ACCEPT, ())


def test_a_job_that_waits_for_a_site_that_never_comes_holds_up_nobody_when_its_grace_is_over(
    conductor: Conductor, store: Store, clock: MovableClock
) -> None:
    stuck, later = submitted(store), submitted(store, 2, sites=SITES[:2])
    conductor.pump()
    accept(conductor, stuck, *SITES[:3])
    assert store.jobs.get(later).job.state is JobState.QUEUED
    assert conductor.why(later) == f"place 1 of 1: no free place at {SITES[0]} ({stuck}), {SITES[1]} ({stuck})"
    clock.forward(31)
    conductor.pump()
    accept(conductor, later, *SITES[:2])
    assert store.jobs.get(later).job.state is JobState.RUNNING
    assert store.jobs.get(stuck).job.state is JobState.OFFERED


def test_a_job_whose_quorum_comes_late_waits_for_its_places_and_then_goes_by_priority_and_age(
    conductor: Conductor, store: Store, clock: MovableClock
) -> None:
    stuck = submitted(store)
    conductor.pump()
    accept(conductor, stuck, *SITES[:3])
    clock.forward(31)
    working, younger, urgent = (
        submitted(store, number, sites=SITES[:1], priority=priority) for number, priority in ((2, 50), (3, 50), (4, 90))
    )
    conductor.pump()
    assert store.jobs.get(urgent).job.state is JobState.OFFERED
    accept(conductor, urgent, SITES[0])
    accept(conductor, stuck, SITES[3])
    assert store.jobs.get(stuck).job.state is JobState.OFFERED
    assert conductor.why(stuck) == f"place 1 of 3: no free place at {SITES[0]} ({urgent})"
    conductor.step(urgent, job_machine.CancelAsked("enough"))
    assert store.jobs.get(stuck).job.state is JobState.RUNNING
    assert [store.jobs.get(job).job.state for job in (working, younger)] == [JobState.QUEUED] * 2


def test_the_time_of_an_offer_frees_its_places_and_then_ends_it(
    conductor: Conductor, store: Store, clock: MovableClock
) -> None:
    stuck, later = submitted(store), submitted(store, 2)
    conductor.pump()
    assert 29 < conductor._due() <= 30
    clock.forward(31)
    assert 28 < conductor._due() <= 30  # that of the offer which follows
    assert store.jobs.get(later).job.state is JobState.OFFERED
    clock.forward(604_800)
    conductor._due()
    assert store.jobs.get(stuck).job.state is JobState.FAILED


def test_a_waiting_job_says_which_sites_are_missing_and_since_when(conductor: Conductor, store: Store) -> None:
    job = submitted(store, sites=SITES[:4])
    conductor.pump()
    for site in SITES[1:3]:
        store.presence.save(site, connected=True)
    store.presence.save(SITES[1], connected=False)
    conductor.answered(job, SITES[3], SiteEvent.PARK, ())
    said = conductor.why(job)
    away, record = store.presence.all()[SITES[1]].since_us, store.jobs.get(job)
    assert said.split("; ") == [
        "waiting for sites: 0 of 4 (missing: site-0, site-1, site-2, site-3)",
        "site-0 never connected",
        f"site-1 is away since {shown_time(away)}",
        f"site-2 hasn't answered the offer of {shown_time(record.offered_us)}",
        f"site-3 waits for its operator's approval since {shown_time(record.job.sites[SITES[3]].since_us)}",
    ]
