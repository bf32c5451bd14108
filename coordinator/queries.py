"""What several stores do inside one transaction: load, save and tell. Every function takes the open connection."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update

from coordinator import job_machine, round_machine, rows, tables
from coordinator.job_machine import Job, JobState
from coordinator.records import AttemptRecord, Fact, JobRecord
from coordinator.round_machine import Round
from coordinator.site_machine import SiteInJob, SiteState
from federation.errors import InvalidInput, OutOfOrder
from federation.messages import JobId, SiteId

# Built once: what runs several times in every round shouldn't be built anew each time.
_JOB: Final = select(tables.job).where(tables.job.c.id == bindparam("job_id"))
_SITES: Final = (
    select(tables.job_site.c.site, tables.job_site.c.state, tables.job_site.c.reasons, tables.job_site.c.since_us)
    .where(tables.job_site.c.job == bindparam("job_id"))
    .order_by(tables.job_site.c.site)
)
_ATTEMPT: Final = select(tables.attempt).where(
    tables.attempt.c.job == bindparam("job_id"),
    tables.attempt.c.round == bindparam("number"),
    tables.attempt.c.attempt == bindparam("attempt_number"),
)
_SAVE_JOB: Final = update(tables.job).where(tables.job.c.id == bindparam("job_id"))
_SAVE_SITE: Final = update(tables.job_site).where(
    tables.job_site.c.job == bindparam("job_id"), tables.job_site.c.site == bindparam("site_id")
)
_TELL: Final = insert(tables.event)


def job(connection: Connection, job_id: JobId) -> JobRecord:
    """Return a job with its sites, or raise `InvalidInput`."""
    row = connection.execute(_JOB, {"job_id": job_id}).first()
    if row is None:
        raise InvalidInput("CFD-J02", f"no job {job_id}")
    found = {
        SiteId(one.site): SiteInJob(SiteState(one.state), tuple(json.loads(one.reasons)), one.since_us)
        for one in connection.execute(_SITES, {"job_id": job_id})
    }
    return rows.job_record(row, found)


def sites(connection: Connection, jobs: Sequence[str]) -> dict[str, dict[SiteId, SiteInJob]]:
    """Return the sites of jobs and how they stand."""
    columns = tables.job_site.c
    query = select(columns.job, columns.site, columns.state, columns.reasons, columns.since_us)
    found: dict[str, dict[SiteId, SiteInJob]] = {}
    for row in connection.execute(query.where(columns.job.in_(jobs)).order_by(columns.site)):
        standing = SiteInJob(SiteState(row.state), tuple(json.loads(row.reasons)), row.since_us)
        found.setdefault(row.job, {})[SiteId(row.site)] = standing
    return found


def save_job(connection: Connection, before: JobRecord, after: Job, facts: Sequence[Fact], now_us: int) -> JobRecord:
    """Write what a job has become, with the events of the change, and return it."""
    is_new_state = after.state is not before.job.state
    offered_us, started_us, ended_us = before.offered_us, before.started_us, before.ended_us
    if is_new_state and after.state is JobState.OFFERED:
        offered_us = now_us
    if is_new_state and after.state is JobState.RUNNING and started_us is None:
        started_us = now_us
    if is_new_state and after.state in job_machine.ENDS:
        ended_us = now_us
    if is_new_state:
        facts = [*facts, (f"job.{after.state}", {"reason": after.reason} if after.reason else {})]
    times = {"offered_us": offered_us, "started_us": started_us, "ended_us": ended_us}
    connection.execute(_SAVE_JOB, {"job_id": before.id, **rows.job_values(after), **times})
    moved = [
        {"job_id": before.id, "site_id": site, **rows.site_values(standing)}
        for site, standing in after.sites.items()
        if standing != before.job.sites[site]
    ]
    if moved:
        connection.execute(_SAVE_SITE, moved)
    tell(connection, before.id, facts, now_us)
    return replace(before, job=after, offered_us=offered_us, started_us=started_us, ended_us=ended_us)


def attempt(connection: Connection, job_id: JobId, number: int, attempt: int) -> AttemptRecord | None:
    """Return one attempt of a round, or None."""
    row = connection.execute(_ATTEMPT, {"job_id": job_id, "number": number, "attempt_number": attempt}).first()
    return None if row is None else rows.attempt_record(row)


def save_round(
    connection: Connection, job_id: JobId, before: AttemptRecord, after: Round, now_us: int
) -> AttemptRecord:
    """Write what an attempt of a round has become, and return it."""
    ended_us = now_us if after.state in round_machine.ENDS else None
    statement = of(update(tables.attempt), job_id, before.round.number, before.round.attempt)
    connection.execute(statement.values(**rows.round_values(after), ended_us=ended_us))
    return replace(before, round=after, ended_us=ended_us)


def tell(connection: Connection, job_id: JobId, facts: Sequence[Fact], now_us: int) -> None:
    """Write events of a job."""
    lines = [
        {"job": job_id, "at_us": now_us, "name": name, "fields": rows.as_text(dict(fields))} for name, fields in facts
    ]
    if lines:
        connection.execute(_TELL, lines)


def there(record: AttemptRecord | None) -> AttemptRecord:
    """Return `record`, which must be there."""
    if record is None:
        raise OutOfOrder("CFD-R01", "the attempt of the round isn't stored")
    return record


def of(statement: Any, job_id: JobId, number: int, attempt: int, *, table: Any = tables.attempt) -> Any:
    """Return `statement` for one attempt of a round."""
    return statement.where(table.c.job == job_id, table.c.round == number, table.c.attempt == attempt)
