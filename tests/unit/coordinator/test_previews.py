"""Whom a preview waits for, and for how long: with a clock that the test moves, and a link that notes what it gets."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from coordinator.previews import Previews
from coordinator.records import PresenceRecord
from federation.errors import OutOfOrder
from federation.messages import Body, Decision, PreviewReply, PreviewRequest, SiteId

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Grid:
    """The time, who is there, and the line to them."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.sites: dict[SiteId, PresenceRecord] = {}
        self.sent: dict[str, Body] = {}
        self.withdrawn: list[str] = []
        self.asked_s: list[float] = []
        self.step_s = 0.0
        self.full = False
        self.previews = Previews(self.presence, self, grace_s=10)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")

    def put(self, site: str, *, connected: bool, since_s: float) -> None:
        since_us = int((START + timedelta(seconds=since_s)).timestamp() * 1_000_000)
        self.sites[SiteId(site)] = PresenceRecord(SiteId(site), connected, since_us, since_us, None)

    def presence(self) -> dict[SiteId, PresenceRecord]:
        """Every look at who is there takes `step_s`."""
        self.passed_s += self.step_s
        return self.sites

    def send(self, site: str, body: Body) -> str:
        if self.full:
            raise OutOfOrder("CFD-L12", "too many messages wait")
        self.sent[site] = body
        return body.message_id  # type: ignore[union-attr]

    def withdraw(self, site: str, message_id: str) -> bool:
        self.withdrawn.append(site)
        return True

    def answer(self, site: str) -> None:
        request = self.sent[site]
        assert isinstance(request, PreviewRequest)
        self.previews.take(
            PreviewReply(message_id=f"{site}-1", request_id=request.message_id, decision=Decision.ACCEPTED)
        )

    def ask(self, *sites: str, timeout_s: float = 30) -> list[str]:
        numbers = iter(range(100))

        def request() -> PreviewRequest:
            return PreviewRequest(message_id=f"m-{next(numbers)}", plan="00", contract="00", submitter="alice")

        return sorted(self.previews.ask(self, sites, request, timeout_s=timeout_s))


def test_a_site_that_never_attended_or_is_long_away_is_not_asked() -> None:
    grid = Grid()
    grid.put("north", connected=False, since_s=-11)
    assert grid.ask("mercy", "north") == []
    assert (grid.sent, grid.passed_s) == ({}, 0)


def test_a_site_lost_a_moment_ago_is_asked_and_its_answer_counts() -> None:
    grid = Grid()
    grid.put("mercy", connected=False, since_s=-9)
    back = threading.Timer(0.05, lambda: grid.answer("mercy"))
    back.start()
    assert grid.ask("mercy") == ["mercy"]
    back.join()
    assert grid.withdrawn == []


def test_a_lost_site_is_given_up_when_its_grace_is_over_and_its_request_is_withdrawn() -> None:
    grid = Grid()
    grid.put("mercy", connected=False, since_s=-9)
    grid.step_s = 0.6
    assert grid.ask("mercy") == []
    assert grid.withdrawn == ["mercy"]
    assert grid.passed_s == pytest.approx(1.2)


def test_a_connected_site_that_keeps_silent_has_the_whole_time_of_a_preview() -> None:
    grid = Grid()
    grid.put("mercy", connected=True, since_s=-100)
    grid.step_s = 10
    assert grid.ask("mercy", timeout_s=30) == []
    assert grid.passed_s == 40
    assert grid.withdrawn == ["mercy"]


def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    grid = Grid()
    grid.put("mercy", connected=True, since_s=-100)
    grid.step_s = 10
    grid.ask("mercy", timeout_s=5)
    grid.answer("mercy")
    assert grid.previews._answers == {}


def test_a_link_that_takes_no_more_leaves_nothing_behind() -> None:
    grid = Grid()
    grid.put("mercy", connected=True, since_s=-100)
    grid.full = True
    with pytest.raises(OutOfOrder):
        grid.ask("mercy")
    assert grid.previews._answers == {}
