"""The journal of this site's secure sums (J1 to J5), in `site.db`; on disk when `keep` returns.

What is in it decides after a restart what may be sent again. Records are only added.
"""

import json
from dataclasses import asdict
from typing import Final

from sqlalchemy import Connection, Engine, insert, select

from federation.edge.database import read, transact
from federation.errors import ConfigurationWrong
from federation.messages import JobId
from privacy.secagg.journal import ConsentGiven, History, Record, SharesRevealed, SumBegun, SumEnded, VectorSpent
from site_client.tables import SUM_RECORD

_KINDS: Final[dict[str, type[Record]]] = {
    kind.__name__: kind for kind in (SumBegun, VectorSpent, ConsentGiven, SharesRevealed, SumEnded)
}


class SumJournal:
    """The table of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def keep(self, job: JobId, record: Record) -> None:
        """Add a record; it is durable when this returns."""
        values = {"job": job, "kind": type(record).__name__, "record": json.dumps(asdict(record), sort_keys=True)}

        def write(connection: Connection) -> None:
            connection.execute(insert(SUM_RECORD).values(**values))

        transact(self._engine, write)

    def history(self, job: JobId) -> History:
        """Return what bears on a sum of a job: all of the job's records and each vector of any job, in order.

        Raises:
            ConfigurationWrong: A record can't be read.
        """
        query = select(SUM_RECORD).where((SUM_RECORD.c.job == job) | (SUM_RECORD.c.kind == VectorSpent.__name__))
        query = query.order_by(SUM_RECORD.c.number)
        with read(self._engine) as connection:
            return History.of(_record(row.kind, row.record) for row in connection.execute(query).all())


def _record(kind: str, text: str) -> Record:
    try:
        fields = json.loads(text)
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return _KINDS[kind](**fields)
    except (KeyError, TypeError, ValueError):
        raise ConfigurationWrong(
            "CFD-G04", f"the journal of secure sums has a record of kind {kind} that can't be read"
        ) from None
