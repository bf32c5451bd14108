"""What people see of jobs and sites, put together from the store: lists, one job in full, the sites, the figures.

Only reading: nothing here changes a job. How a record becomes a view is `showing`'s; what a queued job waits for is
asked of whoever decides that.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coordinator import job_machine, showing
from coordinator.job_machine import JobState
from coordinator.records import JobRecord
from coordinator.store import Store
from coordinator.views import JobView, RoundView, SiteInJobView, SiteView
from federation.errors import InvalidInput
from federation.messages import JobId, Phase, PhaseReply, SiteId, decode_body


class Overview:
    """The jobs and sites of one store.

    Args:
        store: Is read only.
        why: Gives in one sentence what a job waits for.
    """

    def __init__(self, store: Store, *, why: Callable[[JobId], str]) -> None:
        self._store = store
        self._why = why

    def jobs(
        self, states: Iterable[str] | None = None, *, before: int | None = None, limit: int = 100
    ) -> tuple[JobView, ...]:
        """Return jobs, the newest first; `before` is the `number` of the last one of the page before."""
        try:
            wanted = None if states is None else [JobState(state) for state in states]
        except ValueError:
            known = ", ".join(state.value for state in JobState)
            raise InvalidInput("CFD-J02", f"no such state of a job; there are: {known}") from None
        records = self._store.jobs.page(wanted, before=before, limit=limit)
        return tuple(
            showing.job_view(
                record,
                waiting=job_machine.waiting_for(record.job),
                newest=self._store.releases.newest_evaluated(record.id),
            )
            for record in records
        )

    def show(self, job: JobId) -> JobView:
        """Return a job with its sites and rounds."""
        record = self._store.jobs.get(job)
        presence = self._store.presence.all()
        sites = [self._site_in_job(record, site, presence) for site in sorted(record.job.sites)]
        rounds = self._rounds(record)
        current = rounds[-1] if rounds else None
        if record.job.state in (JobState.QUEUED, JobState.OFFERED):
            waiting = self._why(record.id)
        else:
            waiting = showing.waiting_sentence(record, current, presence)
        newest = self._store.releases.newest_evaluated(record.id)
        return showing.job_view(record, waiting=waiting, newest=newest, sites=sites, rounds=rounds)

    def _site_in_job(self, record: JobRecord, site: SiteId, presence: Any) -> SiteInJobView:
        kept = self._store.jobs.answer(record.id, site)
        return showing.site_in_job_view(record, site, None if kept is None else kept[0], presence)

    def _rounds(self, record: JobRecord) -> list[RoundView]:
        releases = {release.step - 1: release for release in self._store.releases.all(record.id)}
        views = []
        for attempt in self._store.rounds.all(record.id):
            at = (attempt.round.number, attempt.round.attempt)
            replies = self._store.rounds.replies(record.id, *at, Phase.TRAIN)
            bodies = [decode_body("phase-reply", reply.body) for reply in replies if reply.body is not None]
            spent = [showing.rounded_up(body.epsilon) for body in bodies if isinstance(body, PhaseReply)]
            known = [epsilon for epsilon in spent if epsilon is not None]
            views.append(
                showing.round_view(
                    attempt,
                    releases.get(attempt.round.number),
                    answered=frozenset(reply.site for reply in replies),
                    epsilon=max(known, default=None),
                )
            )
        return views

    def sites(self) -> tuple[SiteView, ...]:
        """Return every site that ever said hello, and what it works on."""
        live = (JobState.OFFERED, JobState.RUNNING, JobState.PAUSED)
        return tuple(
            showing.site_view(presence, self._store.jobs.of_site(site, live))
            for site, presence in sorted(self._store.presence.all().items())
        )

    def metrics(self) -> Mapping[str, Any]:
        """Return figures for monitoring: jobs by state, rounds by outcome, sites up, bytes, free places."""
        presence = self._store.presence.all()
        return {
            "jobs": self._store.jobs.counts(),
            "rounds": self._store.rounds.counts(),
            "upload_bytes": self._store.rounds.upload_bytes(),
            "round_seconds": self._store.rounds.seconds(),
            "updates": self._store.rounds.reply_counts(),
            "sites": {site: found.connected for site, found in presence.items()},
            "site_seen_us": {site: found.seen_us for site, found in presence.items()},
        }
