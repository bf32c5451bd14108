"""The coordinator's end of Flower's programming model: a `Grid` over our link, and the round loop as a `ServerApp`.

`LinkGrid` gives every message explicit metadata and yields an outcome for every site that was asked: its reply, or an
error message that says late or lost. It never waits beyond the deadline that it is given, and it does nothing on its
own: what a site is asked and what becomes of an answer is the rounds'. The same `ServerApp` runs on Flower's
simulation grid. Import this module only after `federation.flower.quieten_flower`.

`federation.link` already sends again after a reconnect, under the same message id; there is nothing of that here.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from coordinator.exchange import Heard, Interrupted, MayLose, Silence
from coordinator.round_loop import run_job
from coordinator.round_work import RoundWork
from federation import flower
from federation.edge.clock import Clock
from federation.errors import OutOfOrder, PeerMisbehaved
from federation.messages import Body, JobId, Phase, PhaseReply, PhaseRequest, SiteId

_server: Final[Any] = flower.load_server()
import flwr.app as _app  # noqa: E402 (only after `load_server` has checked that Flower is quiet)

COORDINATOR_NODE: Final = 1
LOOK_S: Final = 1.0
"""How often whoever waits for answers looks at the clock, which may be set or may have stood still in between."""
LOST_AFTER_S: Final = 10.0
ERROR_LATE: Final = 1001
ERROR_LOST: Final = 1002
ERROR_REFUSED: Final = 1003
"""Codes of the error messages that stand for a missing answer."""


class Post(Protocol):
    """What the grid needs of the link; `federation.link.server.LinkServer` has it."""

    def send(self, site: str, body: Body) -> str:
        """Sign `body` and send it until it is acknowledged; return its message id."""
        ...

    def withdraw(self, site: str, message_id: str) -> bool:
        """Stop sending a message."""
        ...

    def connected(self, site: str) -> bool:
        """Return whether work can reach `site` now."""
        ...


@dataclass(slots=True)
class _Asked:
    site: SiteId
    message: Any
    key: tuple[int, int, str]
    reply: Any = None


class LinkGrid(_server.Grid):  # type: ignore[misc]
    """Flower's `Grid` for one job, over the link. Replies come in from the link's threads by `deliver`.

    Args:
        job: The job, which is Flower's run.
        sites: The job's invited sites.
        post: The link.
        clock: The time.
        lost_after_s: How long a link is away before its site is given up, where the phase can do without it.
    """

    replies_are_stored: Final = True
    """The service stores a reply before it acknowledges it and hands it in here."""
    sees_links: Final = True
    """`send_and_receive` takes `may_lose`."""

    def __init__(
        self, job: JobId, sites: Iterable[SiteId], post: Post, clock: Clock, *, lost_after_s: float = LOST_AFTER_S
    ) -> None:
        self._lost_after_s = lost_after_s
        self._job = job
        self._sites = flower.numbers_of(sites)
        self._post = post
        self._clock = clock
        self._changed = threading.Condition()
        self._asked: dict[str, _Asked] = {}
        self._interrupted = False

    # --- what Flower asks of a grid ---------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        """Refuse: a grid belongs to the job that it was made for."""
        raise OutOfOrder("CFD-G01", "a link grid's job never changes")

    @property
    def run(self) -> Any:
        """Refuse: Flower's record of a run isn't kept; the job is in the store."""
        raise OutOfOrder("CFD-G01", "a link grid keeps no Flower run")

    def get_node_ids(self) -> list[int]:
        """Return the stable numbers of the job's invited sites, whether they are connected or not."""
        return sorted(self._sites)

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """Return a message with explicit metadata; its id is that of the request which it carries."""
        request = cast("PhaseRequest", flower.content_to_body(content, kind="phase-request"))
        return flower.build_message(
            content,
            job=self._job,
            source=COORDINATOR_NODE,
            destination=dst_node_id,
            message_id=request.message_id,
            group=group_id,
            message_type=message_type,
            created_at_s=self._clock.now().timestamp(),
            ttl_s=float(request.deadline_s) if ttl is None else ttl,
        )

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Hand messages to the link and return their ids; a site that isn't there gets its when it comes."""
        pushed = []
        for message in messages:
            request = cast("PhaseRequest", flower.content_to_body(message.content, kind="phase-request"))
            site = SiteId(self._sites[message.metadata.dst_node_id])
            key = (request.round, request.attempt, request.phase.value)
            self._drop_others(key)
            with self._changed:
                self._asked[request.message_id] = _Asked(site, message, key)
            # Too much may wait for this site already; then it counts as lost at the deadline.
            with contextlib.suppress(OutOfOrder):
                self._post.send(site, request)
            pushed.append(request.message_id)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """Return the replies that are here, each once."""
        with self._changed:
            return [reply for message_id in message_ids if (reply := self._take(message_id)) is not None]

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None, may_lose: MayLose | None = None
    ) -> Iterator[Any]:
        """Push `messages` at once and yield one message for each: the reply, or at the deadline late or lost.

        Args:
            messages: From `create_message`.
            timeout: Seconds; without one, the shortest time to live of the messages.
            may_lose: How many of those who are waited for may be yielded as lost before that.

        Raises:
            Interrupted: While waiting.
        """
        asked = list(messages)
        if timeout is None:
            timeout = min((message.metadata.ttl for message in asked), default=0.0)
        until_s = self._clock.monotonic_s() + timeout
        return self._outcomes(self.push_messages(asked), until_s, may_lose)

    # --- what the service does with it ------------------------------------------------------------------------

    def deliver(self, site: SiteId, reply: PhaseReply) -> bool:
        """Take in a site's reply, which is on disk; return whether this grid waits for it."""
        key = (reply.round, reply.attempt, reply.phase.value)
        with self._changed:
            for asked in self._asked.values():
                if asked.site == site and asked.key == key and asked.reply is None:
                    asked.reply = flower.build_reply(
                        asked.message,
                        flower.body_to_content(reply),
                        message_id=reply.message_id,
                        created_at_s=self._clock.now().timestamp(),
                    )
                    self._changed.notify_all()
                    return True
        return False

    def refuse(self, message_id: str, code: str) -> bool:
        """Note that a site finally refused a request; return whether it was one of this grid's."""
        with self._changed:
            asked = self._asked.get(message_id)
            if asked is None or asked.reply is not None:
                return False
            asked.reply = self._error(asked, message_id, ERROR_REFUSED, code)
            self._changed.notify_all()
            return True

    def waits_for(self, site: SiteId) -> bool:
        """Return whether this site was asked for what it uploads and hasn't answered."""
        with self._changed:
            return any(
                asked.site == site and asked.reply is None and asked.key[2] in (Phase.TRAIN.value, Phase.MASK.value)
                for asked in self._asked.values()
            )

    def interrupt(self) -> None:
        """Make whoever waits, now or later, stop waiting."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    # --- inside -----------------------------------------------------------------------------------------------

    def _take(self, message_id: str) -> Any:
        asked = self._asked.get(message_id)
        if asked is None or asked.reply is None:
            return None
        del self._asked[message_id]
        return asked.reply

    def _outcomes(self, message_ids: list[str], until_s: float, may_lose: MayLose | None) -> Iterator[Any]:
        waiting = list(message_ids)
        away_s: dict[str, float] = {}
        try:
            while waiting:
                for reply in self._wait(waiting, until_s, patient=may_lose is None):
                    waiting.remove(reply.metadata.reply_to_message_id)
                    yield reply
                if self._clock.monotonic_s() >= until_s:
                    break
                for message_id in self._away_for_long(waiting, away_s) if may_lose is not None else ():
                    if may_lose is not None and may_lose() > 0:
                        waiting.remove(message_id)
                        missing = self._missing(message_id)
                        self._forget(message_id)
                        yield missing
            for message_id in waiting:
                yield self._missing(message_id)
        finally:
            for message_id in waiting:
                self._forget(message_id)

    def _away_for_long(self, waiting: list[str], away_s: dict[str, float]) -> list[str]:
        """Return the requests whose site's link has been away all the time for long enough.

        Args:
            waiting: Requests without an answer.
            away_s: Since when the site of each is away; kept from look to look.
        """
        now_s = self._clock.monotonic_s()
        with self._changed:
            sites = {message_id: self._asked[message_id].site for message_id in waiting}
        for message_id, site in sites.items():
            if self._post.connected(site):
                away_s.pop(message_id, None)
            else:
                away_s.setdefault(message_id, now_s)
        return [found for found in sites if now_s - away_s.get(found, now_s) >= self._lost_after_s]

    def _wait(self, waiting: list[str], until_s: float, *, patient: bool = True) -> list[Any]:
        """Return what is here, at the latest at the end of time; who isn't patient gets nothing after one look."""
        with self._changed:
            while True:
                if self._interrupted:
                    raise Interrupted
                found = [reply for message_id in waiting if (reply := self._take(message_id)) is not None]
                left_s = until_s - self._clock.monotonic_s()
                if found or left_s <= 0:
                    return found
                if not self._changed.wait(min(left_s, LOOK_S)) and not patient:
                    return []

    def _missing(self, message_id: str) -> Any:
        with self._changed:
            asked = self._asked[message_id]
        lost = not self._post.connected(asked.site)
        return self._error(asked, message_id, ERROR_LOST if lost else ERROR_LATE, "lost" if lost else "late")

    def _error(self, asked: _Asked, message_id: str, code: int, reason: str) -> Any:
        """Return the message that stands for a site's missing answer."""
        metadata = asked.message.metadata
        answer = _app.Metadata(
            run_id=metadata.run_id,
            message_id=f"{message_id}/none",
            src_node_id=metadata.dst_node_id,
            dst_node_id=metadata.src_node_id,
            reply_to_message_id=message_id,
            group_id=metadata.group_id,
            created_at=self._clock.now().timestamp(),
            ttl=0.0,
            message_type=metadata.message_type,
        )
        return _app.Message(error=_app.Error(code=code, reason=reason), metadata=answer)

    def _drop_others(self, key: tuple[int, int, str]) -> None:
        """Forget requests of another phase: it ended before anybody looked at what came back."""
        with self._changed:
            others = [message_id for message_id, asked in self._asked.items() if asked.key != key]
        for message_id in others:
            self._forget(message_id)

    def _forget(self, message_id: str) -> None:
        with self._changed:
            asked = self._asked.pop(message_id, None)
        if asked is not None:
            self._post.withdraw(asked.site, message_id)


class GridExchange:
    """What the round loop asks of an engine, over any Flower grid.

    Args:
        grid: The engine's grid.
        nodes: Which node stands for which site.
    """

    def __init__(self, grid: Any, nodes: Mapping[SiteId, int]) -> None:
        self._grid = grid
        self._nodes = nodes
        self._is_stored = bool(getattr(grid, "replies_are_stored", False))
        self._sees_links = bool(getattr(grid, "sees_links", False))
        self._names = {number: site for site, number in nodes.items()}

    def ask(
        self, requests: Mapping[SiteId, PhaseRequest], *, timeout_s: float, may_lose: MayLose | None = None
    ) -> Iterator[Heard]:
        """Send the requests and yield one `Heard` for every site, in the order in which they come in.

        Raises:
            Interrupted: The job ended or the service stops.
        """
        messages = [
            self._grid.create_message(
                flower.body_to_content(request),
                flower.message_type_of(request.phase),
                self._nodes[site],
                f"{request.round}/{request.attempt}",
                float(request.deadline_s),
            )
            for site, request in requests.items()
        ]
        more = {"may_lose": may_lose} if self._sees_links else {}
        answers = self._grid.send_and_receive(messages, timeout=timeout_s, **more) if messages else ()
        return self._heard(answers, set(requests))

    def _heard(self, answers: Iterable[Any], missing: set[SiteId]) -> Iterator[Heard]:
        for answer in answers:
            site = self._names[answer.metadata.src_node_id]
            missing.discard(site)
            yield _heard(site, answer, is_stored=self._is_stored)
        for site in sorted(missing):
            yield Heard(site, None, Silence.LATE)  # a grid that leaves out who didn't answer


def _heard(site: SiteId, answer: Any, *, is_stored: bool) -> Heard:
    if answer.has_error() and answer.error.code == ERROR_REFUSED:
        return Heard(site, None, refused=answer.error.reason)
    if answer.has_error():
        return Heard(site, None, Silence.LOST if answer.error.code == ERROR_LOST else Silence.LATE)
    try:
        reply = cast("PhaseReply", flower.content_to_body(answer.content, kind="phase-reply"))
        return Heard(site, reply, is_stored=is_stored)
    except PeerMisbehaved:
        return Heard(site, None, Silence.LATE)


def make_server_app(work: RoundWork, nodes: Mapping[SiteId, int] | None = None) -> Any:
    """Return the `ServerApp` whose main is the round loop of one job.

    Args:
        work: The job at work.
        nodes: Which node stands for which site; by default the numbers that `LinkGrid` gives them.
    """
    app = _server.ServerApp()
    known = nodes or {SiteId(site): flower.number_of(site) for site in work.plan.sites.invite}

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        run_job(work, GridExchange(grid, known))

    return app
