"""Flower's grid over the link: explicit metadata, an outcome for every site, never beyond the deadline."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.exchange import Heard, Interrupted, Silence
from federation import flower
from federation.edge.clock import SystemClock
from federation.errors import OutOfOrder
from federation.messages import BlobReference, Body, JobId, Outcome, Phase, PhaseReply, PhaseRequest, SiteId

A, B = SiteId("a"), SiteId("b")
JOB = JobId("heart-0a1b2c")


class FakePost:
    """A link whose sites are connected or not, and that keeps what it is given."""

    def __init__(self, *connected: str, full: bool = False) -> None:
        self.here = set(connected)
        self.full = full
        self.sent: list[tuple[str, Body]] = []
        self.withdrawn: list[tuple[str, str]] = []

    def send(self, site: str, body: Body) -> str:
        if self.full:
            raise OutOfOrder("CFD-L18", "too much waits")
        self.sent.append((site, body))
        return str(getattr(body, "message_id", ""))

    def withdraw(self, site: str, message_id: str) -> bool:
        self.withdrawn.append((site, message_id))
        return True

    def connected(self, site: str) -> bool:
        return site in self.here


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory: pytest.TempPathFactory) -> None:
    flower.quieten_flower(tmp_path_factory.mktemp("flower"))


def request(site: str, *, job: JobId = JOB, number: int = 0, phase: Phase = Phase.TRAIN) -> PhaseRequest:
    return PhaseRequest(
        message_id=f"{job}-{number}-{phase}-{site}",
        job=job,
        round=number,
        attempt=0,
        phase=phase,
        deadline_s=5,
        release=BlobReference(root="0" * 64, size_bytes=1),
        release_signature="",
    )


def reply(asked: PhaseRequest) -> PhaseReply:
    return PhaseReply(
        message_id="r", job=asked.job, round=asked.round, attempt=0, phase=asked.phase, outcome=Outcome.DONE
    )


def make(post: FakePost, *sites: SiteId, job: JobId = JOB, lost_after_s: float = 10) -> tuple[Any, Any]:
    from coordinator.flower_server import GridExchange, LinkGrid

    grid = LinkGrid(job, sites, post, SystemClock(), lost_after_s=lost_after_s)
    return grid, GridExchange(grid, {site: flower.number_of(site) for site in sites})


def drain(heard: Iterator[Heard]) -> dict[SiteId, Heard]:
    return {found.site: found for found in heard}


def test_requests_go_out_at_once_and_each_site_has_an_outcome(tmp_path: Path) -> None:
    post = FakePost("a")
    grid, exchange = make(post, A, B)
    heard = exchange.ask({A: request("a"), B: request("b")}, timeout_s=0.3)
    assert [site for site, _ in post.sent] == ["a", "b"]
    assert grid.deliver(A, reply(request("a")))
    found = drain(heard)
    assert found[A].reply is not None
    assert found[A].is_stored
    assert found[B].silence is Silence.LOST
    assert post.withdrawn == [("b", request("b").message_id)]


def test_a_silent_site_whose_link_stands_is_late(tmp_path: Path) -> None:
    _, exchange = make(FakePost("a"), A)
    assert drain(exchange.ask({A: request("a")}, timeout_s=0.05))[A].silence is Silence.LATE


def test_a_reply_to_another_round_or_phase_or_of_a_stranger_is_not_taken(tmp_path: Path) -> None:
    grid, exchange = make(FakePost("a"), A)
    heard = exchange.ask({A: request("a", number=3)}, timeout_s=0.1)
    assert not grid.deliver(A, reply(request("a", number=2)))
    assert not grid.deliver(A, reply(request("a", number=3, phase=Phase.EVALUATE)))
    assert not grid.deliver(B, reply(request("a", number=3)))
    assert drain(heard)[A].reply is None


def test_a_second_reply_of_a_site_is_not_taken(tmp_path: Path) -> None:
    grid, exchange = make(FakePost("a"), A)
    heard = exchange.ask({A: request("a")}, timeout_s=1)
    assert grid.deliver(A, reply(request("a")))
    assert not grid.deliver(A, reply(request("a")))
    assert len(list(heard)) == 1


def test_a_request_that_a_site_finally_refuses_is_not_waited_for(tmp_path: Path) -> None:
    grid, exchange = make(FakePost("a"), A)
    heard = exchange.ask({A: request("a")}, timeout_s=100)
    assert grid.refuse(request("a").message_id, "CFD-R58")
    assert not grid.refuse("another", "CFD-R58")
    assert drain(heard)[A].refused == "CFD-R58"


def test_nothing_is_waited_for_where_nobody_is_asked(tmp_path: Path) -> None:
    _, exchange = make(FakePost(), A)
    assert list(exchange.ask({}, timeout_s=100)) == []


def test_a_site_for_which_too_much_waits_counts_as_lost(tmp_path: Path) -> None:
    _, exchange = make(FakePost(full=True), A)
    assert drain(exchange.ask({A: request("a")}, timeout_s=0.05))[A].silence is Silence.LOST


def test_a_phase_that_nobody_looked_at_is_forgotten_with_the_next_one(tmp_path: Path) -> None:
    post = FakePost("a")
    grid, exchange = make(post, A)
    exchange.ask({A: request("a")}, timeout_s=100)
    exchange.ask({A: request("a", number=1)}, timeout_s=100)
    assert post.withdrawn == [("a", request("a").message_id)]
    assert not grid.deliver(A, reply(request("a")))


def test_an_interrupted_grid_stops_waiting_now_and_later(tmp_path: Path) -> None:
    grid, exchange = make(FakePost("a"), A)
    heard = exchange.ask({A: request("a")}, timeout_s=100)
    timer = threading.Timer(0.1, grid.interrupt)
    timer.start()
    with pytest.raises(Interrupted):
        next(heard)
    timer.join()
    with pytest.raises(Interrupted):
        next(exchange.ask({A: request("a", number=1)}, timeout_s=100))


def test_two_jobs_at_once_in_one_process_have_their_own_metadata(tmp_path: Path) -> None:
    other = JobId("heart-ffffff")
    grids = {JOB: make(FakePost("a"), A), other: make(FakePost("a"), A, job=other)}
    runs = set()
    for job, (grid, _) in grids.items():
        content = flower.body_to_content(request("a", job=job))
        message = grid.create_message(content, "train", flower.number_of(A), "0/0")
        runs.add(message.metadata.run_id)
        assert message.metadata.message_id == request("a", job=job).message_id
        assert message.metadata.ttl == 5.0
    assert len(runs) == 2


def test_node_ids_are_stable_and_fit_into_63_bits(tmp_path: Path) -> None:
    first, _ = make(FakePost(), A, B)
    again, _ = make(FakePost(), B, A)
    assert first.get_node_ids() == again.get_node_ids()
    assert all(0 < number < 2**63 for number in first.get_node_ids())


def test_flowers_own_calls_work_on_the_grid(tmp_path: Path) -> None:
    grid, _ = make(FakePost("a"), A)
    message = grid.create_message(flower.body_to_content(request("a")), "train", flower.number_of(A), "0/0")
    ids = grid.push_messages([message])
    assert grid.pull_messages(ids) == []
    grid.deliver(A, reply(request("a")))
    assert [found.metadata.reply_to_message_id for found in grid.pull_messages(ids)] == ids
    assert grid.pull_messages(ids) == []
    for ask in (lambda: grid.set_run(None), lambda: grid.run):
        with pytest.raises(OutOfOrder):
            ask()


def test_a_site_that_stays_away_is_given_up_where_the_phase_can_do_without_it(tmp_path: Path) -> None:
    post = FakePost("a")
    grid, exchange = make(post, A, B, lost_after_s=0.1)
    asked = iter(exchange.ask({A: request("a"), B: request("b")}, timeout_s=100_000, may_lose=lambda: 1))
    found = next(asked)  # the test ends: nobody waits until the deadline
    assert (found.site, found.silence) == (B, Silence.LOST)
    assert post.withdrawn == [("b", request("b").message_id)]
    assert grid.deliver(A, reply(request("a")))
    assert next(asked).reply is not None


def test_a_site_that_stays_away_is_waited_for_where_the_phase_cannot_do_without_it(tmp_path: Path) -> None:
    grid, exchange = make(FakePost(), A, lost_after_s=0.001)
    looks: list[int] = []

    def may_lose() -> int:
        looks.append(0)
        if len(looks) == 2:
            grid.deliver(A, reply(request("a")))  # it came back
        return 0

    assert next(exchange.ask({A: request("a")}, timeout_s=100_000, may_lose=may_lose)).reply is not None


def test_a_site_that_comes_back_in_time_is_not_given_up(tmp_path: Path) -> None:
    post = FakePost()
    grid, exchange = make(post, A, lost_after_s=100_000)
    heard = exchange.ask({A: request("a")}, timeout_s=100_000, may_lose=lambda: 1)
    timer = threading.Timer(1.5, lambda: (post.here.add("a"), grid.deliver(A, reply(request("a")))))
    timer.start()
    assert next(heard).reply is not None
    timer.join()
