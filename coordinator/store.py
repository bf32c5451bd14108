"""The coordinator's durable state: one database, seen as jobs, rounds, releases and presence.

The database is the only truth: a step of a machine reads the state, decides and writes in one transaction, and callers
act on what it returned only afterwards. Nothing is cached between transactions.
"""

from typing import Final

from sqlalchemy import Engine

from coordinator.job_store import JobStore
from coordinator.presence_store import PresenceStore
from coordinator.release_store import ReleaseStore
from coordinator.round_store import RoundStore
from coordinator.sum_store import SumStore
from coordinator.transactions import Transactions
from federation.edge.clock import Clock


class Store:
    """Everything behind one engine whose tables `migrations.bring_up` has made."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.database: Final = Transactions(engine, clock)
        self.jobs: Final = JobStore(self.database)
        self.rounds: Final = RoundStore(self.database)
        self.releases: Final = ReleaseStore(self.database)
        self.sums: Final = SumStore(self.database)
        self.presence: Final = PresenceStore(self.database)
