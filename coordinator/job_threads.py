"""A thread for each job at work: it runs the round loop, and is the only one that steps the job's rounds.

A thread ends when the job ends, pauses, or the service stops; whatever happened is on disk, so a new thread goes on
there. A fault of the coordinator's own (database, disk, log) stops the rounds at once and they are tried again after
a while; after the last try the job fails and says so.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy.exc import DBAPIError

from audit.errors import AuditError
from coordinator.exchange import Interrupted
from coordinator.round_work import RoundWork
from federation.edge.database import is_disk_full
from federation.edge.logs import Log
from federation.errors import ConfideError, OutOfOrder
from federation.messages import JobId, PhaseReply, SiteId

RETRY_DELAYS_S: Final = (2.0, 10.0, 60.0, 300.0)
"""How long a job waits before its rounds are tried again after a fault of the coordinator's own."""
DISK_LOOK_S: Final = 10.0
"""How often a job whose disk is full looks whether there is space again."""


class Grid(Protocol):
    """The part of `flower_server.LinkGrid` that the service uses."""

    def deliver(self, site: SiteId, reply: PhaseReply) -> bool:
        """Take in a site's reply, which is on disk."""
        ...

    def refuse(self, message_id: str, code: str) -> bool:
        """Note that a site finally refused a request."""
        ...

    def waits_for(self, site: SiteId) -> bool:
        """Return whether a site's update is still awaited."""
        ...

    def interrupt(self) -> None:
        """Make whoever waits stop waiting."""
        ...


@dataclass(slots=True)
class _Running:
    thread: threading.Thread
    grid: Grid
    again: bool = False


class JobThreads:
    """The jobs at work in this process.

    Args:
        prepare: Returns a job's work, a grid, and what runs the one on the other until the job stops.
        has_ended: Returns whether a job has come to an end in the store.
        on_broken: Told the last fault of a job that can't go on.
        on_stopped: Told when a job's thread is over.
        log: The process's log.
    """

    def __init__(
        self,
        *,
        prepare: Callable[[JobId], tuple[RoundWork, Any, Callable[[], None]]],
        has_ended: Callable[[JobId], bool],
        on_broken: Callable[[JobId, str], None],
        on_stopped: Callable[[JobId], None],
        log: Log,
    ) -> None:
        self._prepare = prepare
        self._has_ended = has_ended
        self._on_broken = on_broken
        self._on_stopped = on_stopped
        self._log = log
        self._lock = threading.Lock()
        self._running: dict[JobId, _Running] = {}
        self._stopping = threading.Event()

    def start(self, job: JobId) -> None:
        """Run a job's rounds in a thread of their own; one that is just ending runs once more."""
        with self._lock:
            if self._stopping.is_set():
                return
            known = self._running.get(job)
            if known is not None:
                known.again = True
                return
            thread = threading.Thread(target=self._run, args=(job,), name=f"job-{job}", daemon=True)
            self._running[job] = _Running(thread, _Nothing())
            thread.start()

    def deliver(self, job: JobId, site: SiteId, reply: PhaseReply) -> bool:
        """Hand a stored reply to the job's thread; return whether it waits for it."""
        with self._lock:
            known = self._running.get(job)
        return known is not None and known.grid.deliver(site, reply)

    def refuse(self, message_id: str, code: str) -> bool:
        """Tell the job that sent a request that its site finally refused it; return whether there is one."""
        with self._lock:
            grids = [known.grid for known in self._running.values()]
        return any(grid.refuse(message_id, code) for grid in grids)

    def waiting_for(self, site: SiteId) -> list[JobId]:
        """Return the jobs that wait for an update of a site now."""
        with self._lock:
            running = list(self._running.items())
        return [job for job, known in running if known.grid.waits_for(site)]

    def interrupt(self, job: JobId) -> None:
        """Make a job's thread stop waiting for sites."""
        with self._lock:
            known = self._running.get(job)
        if known is not None:
            known.grid.interrupt()

    def jobs(self) -> list[JobId]:
        """Return the jobs that have a thread."""
        with self._lock:
            return sorted(self._running)

    def stop(self, *, timeout_s: float) -> list[JobId]:
        """Stop every job at its next safe point; return those that are still at work after `timeout_s`."""
        self._stopping.set()
        with self._lock:
            running = dict(self._running)
        for known in running.values():
            known.grid.interrupt()
        for known in running.values():
            known.thread.join(timeout_s)
        return [job for job, known in sorted(running.items()) if known.thread.is_alive()]

    # --- in the thread ----------------------------------------------------------------------------------------

    def _run(self, job: JobId) -> None:
        try:
            while True:
                self._run_with_retries(job)
                with self._lock:
                    known = self._running[job]
                    if not known.again or self._stopping.is_set():
                        del self._running[job]
                        break
                    known.again = False
        finally:
            with self._lock:
                self._running.pop(job, None)
        if not self._stopping.is_set():
            self._on_stopped(job)

    def _run_with_retries(self, job: JobId) -> None:
        delays = iter(RETRY_DELAYS_S)
        while True:
            try:
                self._run_once(job)
            except (DBAPIError, AuditError, OSError) as problem:
                full = is_disk_full(problem)
                code = "CFD-G08" if full else "CFD-J07"
                reference = self._log.internal("job.interrupted", problem, job=job, code=code)
                # A full disk ends no job: its rounds go on, from what is on disk, when there is space again.
                delay_s = DISK_LOOK_S if full else next(delays, None)
                if delay_s is None:
                    self._break(job, reference)
                elif not self._stopping.wait(delay_s):
                    continue
            except ConfideError as problem:
                self._log.error("job.broken", job=job, code=problem.code)
                self._break(job, "", problem)
            except Exception as problem:  # noqa: BLE001 (a fault of ours ends this job, and no other)
                self._break(job, self._log.internal("job.broken", problem, job=job, code="CFD-J07"))
            return

    def _run_once(self, job: JobId) -> None:
        work, grid, run = self._prepare(job)
        with self._lock:
            self._running[job].grid = grid
        if self._stopping.is_set() or self._has_ended(job):
            grid.interrupt()
        try:
            run()
        except Interrupted:
            work.wind_up()
        except OutOfOrder:
            # The job was ended by somebody else between two steps; anything else is a fault.
            if not self._has_ended(job):
                raise
            work.wind_up()

    def _break(self, job: JobId, reference: str, problem: ConfideError | None = None) -> None:
        if problem is not None:
            reason = f"{problem.code}: {problem.message}"
        else:
            reason = f"CFD-J07: the coordinator met an error of its own, reference {reference}"
        try:
            self._on_broken(job, reason)
        except (ConfideError, AuditError, DBAPIError, OSError) as second:
            self._log.internal("job.not_ended", second, job=job, code="CFD-J07")


class _Nothing:
    """Stands for a grid until there is one."""

    def deliver(self, site: SiteId, reply: PhaseReply) -> bool:
        """Return that nobody waits."""
        return False

    def refuse(self, message_id: str, code: str) -> bool:
        """Return that nobody waits."""
        return False

    def waits_for(self, site: SiteId) -> bool:
        """Return that nobody waits."""
        return False

    def interrupt(self) -> None:
        """Do nothing: `_run_once` looks whether the service stops once it has its grid."""
