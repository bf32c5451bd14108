"""What several stores do inside one transaction: load, save and tell. Every function takes the open connection."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update

from coordinator import job_machine, round_machine, rows, tables
from coordinator.job_machine import Job, JobState
from coordinator.records import AttemptRecord, Fact, JobRecord
from coordinator.round_machine import Round
from coordinator.site_machine import SiteInJob, SiteState
from federation.errors import InvalidInput, OutOfOrder
from federation.messages import JobId, SiteId


def job(connection: Connection, job_id: JobId) -> JobRecord:
    """Return a job with its sites, or raise `InvalidInput`."""
    row = connection.execute(select(tables.job).where(tables.job.c.id == job_id)).first()
    if row is None:
        raise InvalidInput("CFD-J02", f"no job {job_id}")
    return rows.job_record(row, sites(connection, [job_id]).get(job_id, {}))


def sites(connection: Connection, jobs: Sequence[str]) -> dict[str, dict[SiteId, SiteInJob]]:
    """Return the sites of jobs and how they stand."""
    columns = tables.job_site.c
    query = select(columns.job, columns.site, columns.state, columns.reasons, columns.since_us)
    found: dict[str, dict[SiteId, SiteInJob]] = {}
    for row in connection.execute(query.where(columns.job.in_(jobs)).order_by(columns.site)):
        standing = SiteInJob(SiteState(row.state), tuple(json.loads(row.reasons)), row.since_us)
        found.setdefault(row.job, {})[SiteId(row.site)] = standing
    return found


def save_job(connection: Connection, before: JobRecord, after: Job, facts: Sequence[Fact], now_us: int) -> None:
    """Write what a job has become, with the events of the change."""
    values = rows.job_values(after)
    if after.state is not before.job.state:
        if after.state is JobState.OFFERED:
            values["offered_us"] = now_us
        if after.state is JobState.RUNNING and before.started_us is None:
            values["started_us"] = now_us
        if after.state in job_machine.ENDS:
            values["ended_us"] = now_us
        facts = [*facts, (f"job.{after.state}", {"reason": after.reason} if after.reason else {})]
    connection.execute(update(tables.job).where(tables.job.c.id == before.id).values(values))
    for site, standing in after.sites.items():
        if standing != before.job.sites[site]:
            columns = tables.job_site.c
            connection.execute(
                update(tables.job_site)
                .where(columns.job == before.id, columns.site == site)
                .values(rows.site_values(standing))
            )
    tell(connection, before.id, facts, now_us)


def attempt(connection: Connection, job_id: JobId, number: int, attempt: int) -> AttemptRecord | None:
    """Return one attempt of a round, or None."""
    row = connection.execute(of(select(tables.attempt), job_id, number, attempt)).first()
    return None if row is None else rows.attempt_record(row)


def save_round(connection: Connection, job_id: JobId, before: AttemptRecord, after: Round, now_us: int) -> None:
    """Write what an attempt of a round has become."""
    values = rows.round_values(after)
    if after.state in round_machine.ENDS:
        values["ended_us"] = now_us
    statement = of(update(tables.attempt), job_id, before.round.number, before.round.attempt)
    connection.execute(statement.values(values))


def tell(connection: Connection, job_id: JobId, facts: Sequence[Fact], now_us: int) -> None:
    """Write events of a job."""
    lines = [
        {"job": job_id, "at_us": now_us, "name": name, "fields": rows.as_text(dict(fields))} for name, fields in facts
    ]
    if lines:
        connection.execute(insert(tables.event), lines)


def there(record: AttemptRecord | None) -> AttemptRecord:
    """Return `record`, which must be there."""
    if record is None:
        raise OutOfOrder("CFD-R01", "the attempt of the round isn't stored")
    return record


def of(statement: Any, job_id: JobId, number: int, attempt: int, *, table: Any = tables.attempt) -> Any:
    """Return `statement` for one attempt of a round."""
    return statement.where(table.c.job == job_id, table.c.round == number, table.c.attempt == attempt)
