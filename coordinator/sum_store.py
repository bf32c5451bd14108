"""The records of secure sums (A1 to A7), on disk before the messages that follow from them leave.

From them a restarted coordinator goes on with a sum where it was (`privacy.secagg.aggregator.Aggregator.resume`).
"""

import json
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select

from coordinator import tables
from coordinator.transactions import Transactions
from federation.errors import OutOfOrder
from federation.messages import JobId
from privacy.secagg.aggregator_states import (
    CertificateMade,
    MembersFixed,
    PlanIssued,
    Record,
    ResultMade,
    RosterFixed,
    SumAbandoned,
    SurvivorsFrozen,
    UploadCommitted,
)
from privacy.secagg.envelope import Signed, unpack


class SumStore:
    """The records of one database."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def keep(self, job_id: JobId, number: int, attempt: int, record: Record) -> None:
        """Add a record to the sum of an attempt; it is durable when this returns."""
        kind, fields = type(record).__name__, json.dumps(_fields(record))

        def work(connection: Connection) -> None:
            connection.execute(
                insert(tables.sum_record).values(
                    job=job_id, round=number, attempt=attempt, kind=kind, record=fields, at_us=self._database.now_us()
                )
            )

        self._database.change(job_id, work)

    def records(self, job_id: JobId, number: int, attempt: int) -> list[Record]:
        """Return the records of the sum of an attempt, in order."""
        columns = tables.sum_record.c
        query = (
            select(tables.sum_record)
            .where(columns.job == job_id, columns.round == number, columns.attempt == attempt)
            .order_by(columns.number)
        )
        with self._database.read() as connection:
            return [_record(row.kind, json.loads(row.record)) for row in connection.execute(query)]

    def forget(self, job_id: JobId, number: int) -> None:
        """Remove the records of a round that is over, but for its plan and its result."""
        columns = tables.sum_record.c
        kept = (PlanIssued.__name__, ResultMade.__name__, SumAbandoned.__name__, CertificateMade.__name__)
        statement = delete(tables.sum_record).where(
            columns.job == job_id, columns.round == number, columns.kind.not_in(kept)
        )

        def work(connection: Connection) -> None:
            connection.execute(statement)

        self._database.change(job_id, work)


def _packed(messages: tuple[Signed, ...]) -> list[str]:
    return [message.pack().hex() for message in messages]


def _unpacked(messages: list[str]) -> tuple[Signed, ...]:
    return tuple(unpack(bytes.fromhex(message)) for message in messages)


def _fields(record: Record) -> Any:
    match record:
        case PlanIssued():
            return _packed((record.plan,))
        case RosterFixed():
            return _packed(record.adverts)
        case MembersFixed():
            return [_packed(record.shares), [box.hex() for box in record.boxes]]
        case UploadCommitted():
            return _packed((record.masked,))
        case SurvivorsFrozen():
            return list(record.survivors)
        case CertificateMade():
            return _packed(record.survivors)
        case ResultMade():
            return _packed((record.result,))
        case SumAbandoned():
            return record.code


_UNKNOWN: Final = "a stored record of a secure sum is of no known kind"


def _record(kind: str, fields: Any) -> Record:
    match kind:
        case "PlanIssued":
            return PlanIssued(*_unpacked(fields))
        case "RosterFixed":
            return RosterFixed(_unpacked(fields))
        case "MembersFixed":
            return MembersFixed(_unpacked(fields[0]), tuple(bytes.fromhex(box) for box in fields[1]))
        case "UploadCommitted":
            return UploadCommitted(*_unpacked(fields))
        case "SurvivorsFrozen":
            return SurvivorsFrozen(tuple(fields))
        case "CertificateMade":
            return CertificateMade(_unpacked(fields))
        case "ResultMade":
            return ResultMade(*_unpacked(fields))
        case "SumAbandoned":
            return SumAbandoned(fields)
        case _:
            raise OutOfOrder("CFD-G01", _UNKNOWN)
