"""How the coordinator's stores write: whole transactions, each with a name, on disk when the call returns.

A call that raises has no effect, also when the connection was lost at COMMIT and nobody can know: a change of a job
leaves its name in the job's row, other writes find out by their own keys, and then it is tried again, with an end. No
transaction stays open while anything waits or computes. Any number of threads may share one `Transactions`.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, bindparam, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from coordinator import tables
from federation.edge.clock import Clock
from federation.edge.database import read, transact
from federation.errors import InvalidInput, OutOfOrder
from federation.messages import JobId

T = TypeVar("T")

RECONNECT_DELAYS_S: Final = (0.2, 1.0, 3.0, 8.0, 15.0)
"""How long a write waits before it is tried again after the database's connection was lost."""

_LOCK: Final = select(tables.job.c.change).where(tables.job.c.id == bindparam("job_id")).with_for_update()
_NAME: Final = update(tables.job).where(tables.job.c.id == bindparam("job_id")).values(change=bindparam("change_name"))


def microseconds(clock: Clock) -> int:
    """Return the wall time as microseconds UTC."""
    now = clock.now()
    return int(now.timestamp()) * 1_000_000 + now.microsecond


class Transactions:
    """Reads and writes of one database, and the news that something was written."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._news = threading.Condition()
        self._news_count = 0

    def now_us(self) -> int:
        """Return the wall time as microseconds UTC."""
        return microseconds(self._clock)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that sees one moment of the database."""
        with read(self._engine) as connection:
            yield connection

    def change(self, job_id: JobId, work: Callable[[Connection], T]) -> T:
        """Run `work` on the locked row of a job, exactly once, whatever happens to the connection.

        Raises:
            InvalidInput: There is no such job.
        """
        name = secrets.token_hex(8)
        kept: list[T] = []

        def named(connection: Connection) -> T:
            found = connection.execute(_LOCK, {"job_id": job_id}).first()
            if found is None:
                raise InvalidInput("CFD-J02", f"no job {job_id}")
            if kept and found.change == name:
                return kept[0]
            result = work(connection)
            connection.execute(_NAME, {"job_id": job_id, "change_name": name})
            kept[:] = [result]
            return result

        return self.once(named)

    def once(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which itself finds out whether it is done already, until the database took it, with an end."""
        for delay_s in (*RECONNECT_DELAYS_S, None):
            try:
                result = transact(self._engine, work)
            except IntegrityError:
                if delay_s is None:
                    raise
                # Two writers at once on one key: the second run finds what the first one stored.
            except DBAPIError as problem:
                if delay_s is None or not problem.connection_invalidated:
                    raise
                self._clock.sleep(delay_s)
            else:
                self._tell()
                return result
        raise OutOfOrder("CFD-G01", "a change of the database was neither made nor refused")

    def _tell(self) -> None:
        with self._news:
            self._news_count += 1
            self._news.notify_all()

    def wait_for_news(self, seen: int, *, timeout_s: float) -> int:
        """Wait until something was written after the count `seen`, at most `timeout_s`; return the count now."""
        with self._news:
            self._news.wait_for(lambda: self._news_count != seen, timeout=timeout_s)
            return self._news_count
