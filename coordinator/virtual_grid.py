"""Flower's simulation grid as the round loop wants it: explicit metadata, a deadline, an outcome for every site.

`VirtualGrid` stands around the engine's own grid, which numbers its nodes at random, leaves out who didn't answer and
waits without an end. A message says which virtual site it is for; an update comes as a file of a folder that the
workers share, and is taken into the coordinator's blobs before the round loop sees the reply, as a delivery would be.
`simulate` runs the very `ServerApp` of production over it. Import this module only after `quieten_flower`.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from coordinator.exchange import Interrupted
from coordinator.flower_server import COORDINATOR_NODE, ERROR_LATE, ERROR_LOST, make_server_app
from coordinator.round_work import RoundWork
from federation import flower
from federation.edge.clock import Clock
from federation.errors import OutOfOrder, PeerMisbehaved, TimedOut
from federation.messages import BlobReference, JobId, PhaseReply, PhaseRequest, SiteId

READY: Final = "query.ready"
POLL_S: Final = 0.1
EXPIRY_S: Final = 60.0
_server: Final[Any] = flower.load_server()


class Depot(Protocol):
    """The folders that the coordinator shares with its virtual sites, in place of the link's transfers."""

    def publish(self, release: BlobReference) -> None:
        """Let every virtual site read a release, its mean, and those before it."""
        ...

    def take_in(self, file: str) -> None:
        """Move an update that a virtual site put down into the coordinator's blobs."""
        ...


class VirtualGrid(_server.Grid):  # type: ignore[misc]
    """Flower's `Grid` for one simulated job.

    Args:
        engine: The engine's grid.
        job: The job.
        depot: Where blobs change hands.
        clock: The time.
        stopped: Once set, whoever waits, now or later, stops waiting.
    """

    def __init__(self, engine: Any, job: JobId, depot: Depot, clock: Clock, stopped: threading.Event) -> None:
        self._engine = engine
        self._job = job
        self._depot = depot
        self._clock = clock
        self._sites: dict[int, SiteId] = {}
        self._asked_count = 0
        self._stopped = stopped

    # --- coming up --------------------------------------------------------------------------------------------

    def wait_for(self, sites: Sequence[SiteId], *, workers: int, up_s: float) -> dict[SiteId, int]:
        """Return a node for each virtual site, once the engine has them and its workers can begin.

        Raises:
            TimedOut: CFD-J11, after `up_s`.
            OutOfOrder: CFD-J12, a worker can't begin.
            Interrupted: The simulation was stopped.
        """
        until_s = self._clock.monotonic_s() + up_s
        while len(nodes := sorted(self._engine.get_node_ids())) < len(sites):
            self._wait(until_s, f"{len(nodes)} of {len(sites)} virtual sites came up")
        numbers = dict(zip(sites, nodes, strict=False))
        self._sites = {number: site for site, number in numbers.items()}
        first = nodes[: min(workers, len(sites))]
        # They outlive the wait: the engine answers an expired message with an error, as it does for a broken worker.
        messages = [self._message(flower.empty_content(), READY, node, "up", up_s + EXPIRY_S) for node in first]
        waiting = set(self._engine.push_messages(messages))
        while waiting:
            for answer in self._engine.pull_messages(waiting):
                waiting.discard(answer.metadata.reply_to_message_id)
                if answer.has_error():
                    raise OutOfOrder("CFD-J12", "a worker of the simulation engine can't begin")
            if waiting:
                self._wait(until_s, "the simulation engine's workers didn't begin")
        return numbers

    def _wait(self, until_s: float, missing: str) -> None:
        if self._clock.monotonic_s() >= until_s:
            raise TimedOut("CFD-J11", f"{missing} in time")
        self._pause()

    def _pause(self) -> None:
        if self._stopped.is_set():
            raise Interrupted
        self._clock.sleep(POLL_S)

    # --- what Flower asks of a grid ---------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        """Refuse: a grid belongs to the job that it was made for."""
        raise OutOfOrder("CFD-G01", "a virtual grid's job never changes")

    @property
    def run(self) -> Any:
        """Return the engine's record of the run."""
        return self._engine.run

    def get_node_ids(self) -> list[int]:
        """Return the nodes that stand for the job's sites."""
        return sorted(self._sites)

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """Return a message with explicit metadata that names its virtual site."""
        request = cast("PhaseRequest", flower.content_to_body(content, kind="phase-request"))
        flower.address(content, self._sites[dst_node_id])
        self._depot.publish(request.release)
        return self._message(content, message_type, dst_node_id, group_id, ttl or float(request.deadline_s))

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Hand messages to the engine, which names them anew, and return the names."""
        return list(self._engine.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """Return the answers that are here."""
        return list(self._engine.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterator[Any]:
        """Push `messages` and yield one message for each: the reply, or an error that says late or lost.

        Raises:
            Interrupted: While waiting.
        """
        asked = list(messages)
        if timeout is None:
            timeout = min((message.metadata.ttl for message in asked), default=0.0)
        until_s = self._clock.monotonic_s() + timeout
        pushed = set(self.push_messages(asked))
        waiting = {message.metadata.message_id: message for message in asked if message.metadata.message_id in pushed}
        yield from (
            self._silence(message, ERROR_LOST) for message in asked if message.metadata.message_id not in pushed
        )
        while waiting:
            for answer in self.pull_messages(waiting):
                message = waiting.pop(answer.metadata.reply_to_message_id, None)
                if message is not None:
                    yield self._outcome(message, answer)
            if not waiting or self._clock.monotonic_s() >= until_s:
                break
            self._pause()
        yield from (self._silence(message, ERROR_LATE) for message in waiting.values())

    # --- inside -----------------------------------------------------------------------------------------------

    def _message(self, content: Any, message_type: str, node: int, group: str, ttl_s: float) -> Any:
        self._asked_count += 1
        return flower.build_message(
            content,
            job=self._job,
            run=self._engine.run.run_id,
            source=COORDINATOR_NODE,
            destination=node,
            message_id=f"{self._job}-{self._asked_count}",
            group=group,
            message_type=message_type,
            created_at_s=self._clock.now().timestamp(),
            ttl_s=ttl_s,
        )

    def _outcome(self, message: Any, answer: Any) -> Any:
        if answer.has_error():
            # The time of the message is over; or the worker died, or the site's app couldn't be run.
            is_over = self._clock.now().timestamp() >= message.metadata.created_at + message.metadata.ttl
            return self._silence(message, ERROR_LATE if is_over else ERROR_LOST)
        file = flower.take_file(answer.content)
        if file:
            self._depot.take_in(file)
        try:
            reply = cast("PhaseReply", flower.content_to_body(answer.content, kind="phase-reply"))
        except PeerMisbehaved:
            return self._silence(message, ERROR_LOST)
        return flower.build_reply(
            message,
            flower.body_to_content(reply),
            message_id=reply.message_id,
            created_at_s=self._clock.now().timestamp(),
        )

    def _silence(self, message: Any, code: int) -> Any:
        reason = "lost" if code == ERROR_LOST else "late"
        return flower.build_silence(message, code=code, reason=reason, created_at_s=self._clock.now().timestamp())


class Course(Protocol):
    """Is told how a simulation goes, in the thread of its `ServerApp`."""

    def up(self) -> None:
        """Every virtual site is there; the rounds begin."""
        ...

    def over(self, problem: BaseException | None) -> None:
        """The rounds are over, or `problem` ended them; nothing of the engine is needed any more."""
        ...


def simulated_app(
    work: RoundWork, depot: Depot, clock: Clock, *, workers: int, up_s: float, course: Course, stop: threading.Event
) -> Any:
    """Return the `ServerApp` that runs a job's own `ServerApp` on a simulation grid.

    Args:
        work: The job at work.
        depot: Where blobs change hands.
        clock: The time.
        workers: How many processes the engine trains in.
        up_s: How long the virtual sites may take to come up.
        course: Is told how it goes.
        stop: Ends it, wherever it is, once set.
    """
    app = _server.ServerApp()
    sites = [SiteId(site) for site in work.plan.sites.invite]

    @app.main()  # type: ignore[untyped-decorator]
    def main(engine: Any, context: Any) -> None:
        grid = VirtualGrid(engine, work.job, depot, clock, stop)
        try:
            nodes = grid.wait_for(sites, workers=workers, up_s=up_s)
            course.up()
            make_server_app(work, nodes)(grid, context)
        except Interrupted:
            return  # whoever stopped it says why
        except BaseException as problem:  # noqa: BLE001 (whatever ends the rounds is told; the engine would print it)
            course.over(problem)
        else:
            course.over(None)

    return app


def simulate(
    work: RoundWork,
    client_app: Any,
    depot: Depot,
    clock: Clock,
    *,
    workers: int,
    up_s: float,
    engine_folder: str,
    course: Course,
) -> None:
    """Run a job on Flower's simulation engine until its rounds are over; `course` is told of the end first.

    Args:
        work: The job at work.
        client_app: From `site_client.flower_client.make_virtual_app`.
        depot: Where blobs change hands.
        clock: The time.
        workers: How many processes train at once, one CPU each.
        up_s: How long the virtual sites may take to come up.
        engine_folder: For the engine's own files; its path is short.
        course: Is told how it goes.

    Raises:
        OutOfOrder: CFD-J12, the engine ended with an error of its own.
    """
    stop = threading.Event()
    app = simulated_app(work, depot, clock, workers=workers, up_s=up_s, course=course, stop=stop)
    try:
        flower.run_virtual_nodes(
            app, client_app, nodes_count=len(work.plan.sites.invite), backend=backend(engine_folder, workers)
        )
    finally:
        stop.set()


def backend(engine_folder: str, workers: int) -> Mapping[str, Any]:
    """Return the engine's configuration: a Ray of our own, no dashboard, loopback, files in `engine_folder`."""
    return {
        "init_args": {
            "address": "local",
            "num_cpus": workers,
            "num_gpus": 0,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": engine_folder,
            "object_store_memory": OBJECT_STORE_BYTES,
            "log_to_driver": False,
            "logging_level": "ERROR",
        },
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }


OBJECT_STORE_BYTES: Final = 128 << 20
"""Ray's shared memory: only small messages go through it, updates go as files."""
