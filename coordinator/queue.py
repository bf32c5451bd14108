"""Which waiting job may start, and why another one may not; pure.

The order is priority, the highest first, then age. A job starts when each of its sites has a free place: all invited
ones for a job that is to be offered, those that accepted for one that was offered and is ready. A site has
`jobs_per_site` places, one unless configured; which of them a job takes is said by `job_machine.takes_places_at`. A job
that must wait for a site doesn't hold that site's free places for itself, so a smaller job may pass it; it is passed
only by jobs that share no full site with it. A site whose answer comes when its job is already running joins it even
where its places are taken: it was told that it may.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from federation.messages import JobId, SiteId


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that is queued, or offered and ready. `number` grows with the time of submission."""

    id: JobId
    priority: int
    number: int
    sites: frozenset[SiteId]


@dataclass(frozen=True, slots=True)
class AtWork:
    """A job that takes a place at each of `sites`."""

    id: JobId
    sites: frozenset[SiteId]


def in_order(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return the queue, first the job that is to start first."""
    return sorted(waiting, key=lambda job: (-job.priority, job.number))


def startable(
    waiting: Iterable[Waiting], at_work: Iterable[AtWork], places: Mapping[SiteId, int], *, default_places: int
) -> list[JobId]:
    """Return the jobs that start now, in order.

    Args:
        waiting: The queue.
        at_work: The jobs that take places.
        places: Places of sites that have another number than `default_places`.
        default_places: Places of every other site, at least 1.
    """
    taken = Counter(site for job in at_work for site in job.sites)
    kept: set[SiteId] = set()
    start: list[JobId] = []
    for job in in_order(waiting):
        full = {site for site in job.sites if taken[site] >= places.get(site, default_places)}
        if full:
            kept |= full
        elif not job.sites & kept:
            taken.update(job.sites)
            start.append(job.id)
    return start


def why(
    job: JobId,
    waiting: Iterable[Waiting],
    at_work: Iterable[AtWork],
    places: Mapping[SiteId, int],
    *,
    default_places: int,
) -> str:
    """Return in one sentence why a waiting job hasn't started, naming sites and the jobs that are there."""
    queue = in_order(waiting)
    busy = list(at_work)
    place = next((number for number, queued in enumerate(queue, 1) if queued.id == job), None)
    if place is None:
        return "the job isn't queued"
    if job in startable(queue, busy, places, default_places=default_places):
        return "the job starts now"
    wanted = queue[place - 1]
    taken = Counter(site for working in busy for site in working.sites)
    full = sorted(site for site in wanted.sites if taken[site] >= places.get(site, default_places))
    if not full:
        return f"place {place} of {len(queue)}: a job before it waits for the same sites"
    by = [f"{site} ({', '.join(sorted(working.id for working in busy if site in working.sites))})" for site in full]
    return f"place {place} of {len(queue)}: no free place at {', '.join(by)}"
