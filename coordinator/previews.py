"""What sites would answer to a plan: asked of those whose link stands or was lost a moment ago, kept in memory only.

A link that broke a moment ago is being built up again, so its site is waited for; a site that never attended, or is
away for longer than the grace, is answered for at once. Nothing is promised by an answer, and none is stored.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from coordinator.records import PresenceRecord
from coordinator.transactions import microseconds
from federation.edge.clock import Clock
from federation.messages import Body, PreviewReply, PreviewRequest, SiteId

_LOOK_S: Final = 0.2
"""How often it is looked whether a site that is waited for is still away."""


class Line(Protocol):
    """What previews need of the link."""

    def send(self, site: str, body: Body) -> str:
        """Send `body` to `site` until acknowledged, now or when it attends; return the message id."""
        ...

    def withdraw(self, site: str, message_id: str) -> bool:
        """Stop sending a message."""
        ...


class Previews:
    """Sites' answers to previews that somebody waits for.

    Args:
        presence: Returns of every known site whether its link stands, and since when.
        clock: The time.
        grace_s: For how long a site whose link is lost is still expected back.
    """

    def __init__(
        self, presence: Callable[[], Mapping[SiteId, PresenceRecord]], clock: Clock, *, grace_s: float
    ) -> None:
        self._presence = presence
        self._clock = clock
        self._grace_s = grace_s
        self._changed = threading.Condition()
        self._answers: dict[str, PreviewReply | None] = {}

    def take(self, reply: PreviewReply) -> None:
        """Take an answer in; one that nobody waits for is dropped."""
        with self._changed:
            if reply.request_id in self._answers:
                self._answers[reply.request_id] = reply
                self._changed.notify_all()

    def ask(
        self, line: Line, sites: Sequence[str], request: Callable[[], PreviewRequest], *, timeout_s: float
    ) -> Mapping[str, PreviewReply]:
        """Return the answers, by site, of those that answered within `timeout_s` and weren't away for too long.

        Args:
            line: Carries the requests.
            sites: Whom to ask.
            request: Makes a request with an id of its own.
            timeout_s: How long a site that is there may take.
        """
        asked: dict[str, str] = {}
        try:
            for site in self._expected(sites):
                body = request()
                asked[site] = body.message_id
                with self._changed:
                    self._answers[body.message_id] = None
                line.send(site, body)
            self._wait(asked, self._clock.monotonic_s() + timeout_s)
        finally:
            with self._changed:
                answers = {site: self._answers.pop(asked[site]) for site in asked}
            for site, answer in answers.items():
                if answer is None:
                    line.withdraw(site, asked[site])
        return {site: answer for site, answer in answers.items() if answer is not None}

    def _expected(self, sites: Sequence[str]) -> list[str]:
        presence = self._presence()
        earliest_us = microseconds(self._clock) - round(self._grace_s * 1e6)
        known = ((site, presence.get(SiteId(site))) for site in sites)
        return [site for site, found in known if found and (found.connected or found.since_us > earliest_us)]

    def _wait(self, asked: Mapping[str, str], until_s: float) -> None:
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            with self._changed:
                missing = [site for site, request_id in asked.items() if self._answers[request_id] is None]
            if not self._expected(missing):
                return
            with self._changed:
                if sum(self._answers[request_id] is None for request_id in asked.values()) == len(missing):
                    self._changed.wait(min(left_s, _LOOK_S))
