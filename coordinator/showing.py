"""From stored records to what people see. No decisions, no writes."""

import math
from collections.abc import Mapping, Sequence

from coordinator import job_machine
from coordinator.records import AttemptRecord, EventRecord, JobRecord, PresenceRecord, ReleaseRecord
from coordinator.result_documents import what_the_coordinator_sees
from coordinator.round_machine import RoundState, Standing
from coordinator.site_machine import SiteState
from coordinator.views import (
    EventView,
    JobView,
    PreviewView,
    ReasonView,
    RoundView,
    SiteInJobView,
    SiteView,
    shown_time,
)
from federation import plan
from federation.messages import Answer, Hello, PreviewReply, SiteId, decode_body

_NANO = 10**9


def rounded_up(epsilon: str | None) -> float | None:
    """Return an epsilon that travelled as `float.hex`, rounded up to nine decimals; None for none or infinity."""
    value = None if epsilon is None else float.fromhex(epsilon)
    return None if value is None or not math.isfinite(value) else math.ceil(value * _NANO) / _NANO


def job_view(
    record: JobRecord,
    *,
    waiting: str,
    newest: ReleaseRecord | None = None,
    sites: Sequence[SiteInJobView] = (),
    rounds: Sequence[RoundView] = (),
) -> JobView:
    """Return a job as it is listed or shown."""
    wanted = plan.decode(record.plan)
    return JobView(
        job=record.id,
        number=record.number,
        name=record.name,
        state=record.job.state.value,
        reason=record.job.reason,
        waiting=waiting,
        plan_digest=record.plan_digest,
        purpose=wanted.purpose.code,
        submitter=record.submitter,
        vouched=record.vouched,
        priority=record.priority,
        quorum=record.job.quorum,
        invited=len(record.job.sites),
        round=record.job.round,
        rounds=record.job.rounds,
        attempt=record.job.attempt,
        secure_aggregation=wanted.secure_aggregation.enabled,
        the_coordinator_sees=what_the_coordinator_sees(wanted) if sites else "",
        epsilon=wanted.privacy.epsilon,
        submitted=shown_time(record.submitted_us),
        offered=shown_time(record.offered_us),
        started=shown_time(record.started_us),
        ended=shown_time(record.ended_us),
        parent=record.parent,
        parent_round=record.parent_round,
        metrics=None if newest is None or newest.metrics is None else dict(newest.metrics),
        sites=tuple(sites),
        rounds_done=tuple(rounds),
    )


def site_in_job_view(
    record: JobRecord, site: SiteId, answer: bytes | None, presence: Mapping[SiteId, PresenceRecord]
) -> SiteInJobView:
    """Return how a site stands in a job."""
    standing = record.job.sites[site]
    body = None if answer is None else decode_body("answer", answer)
    known = presence.get(site)
    return SiteInJobView(
        site=site,
        state=standing.state.value,
        reasons=standing.reasons,
        since=shown_time(standing.since_us),
        connected=known is not None and known.connected,
        epsilon=rounded_up(body.epsilon) if isinstance(body, Answer) else None,
    )


def round_view(
    attempt: AttemptRecord,
    release: ReleaseRecord | None,
    *,
    answered: frozenset[str] = frozenset(),
    epsilon: float | None,
) -> RoundView:
    """Return one attempt of a round; `answered` are the sites whose answer is here."""
    found = attempt.round
    collecting = found.state is RoundState.TRAINING and not found.closed
    silent = [site for site in found.standing(Standing.ASKED, Standing.LOST) if site not in answered]
    is_its_own = release is not None and release.attempt == found.attempt and found.state is RoundState.RELEASED
    ended_us = attempt.ended_us
    return RoundView(
        round=found.number,
        attempt=found.attempt,
        state=found.state.value,
        quorum=found.quorum,
        cohort=tuple(sorted(found.sites)),
        survivors=found.summed,
        late={str(site): why for site, why in found.late.items()},
        waiting_for=tuple(silent) if collecting else (),
        reason=found.reason,
        opened=shown_time(attempt.opened_us),
        deadline=shown_time(attempt.deadline_us),
        ended=shown_time(ended_us),
        seconds=None if ended_us is None else round((ended_us - attempt.opened_us) / 1e6, 3),
        upload_bytes=attempt.upload_bytes,
        model=release.model_digest if release is not None and is_its_own else None,
        metrics=dict(release.metrics) if release is not None and is_its_own and release.metrics is not None else None,
        epsilon=epsilon,
    )


def event_view(event: EventRecord) -> EventView:
    """Return a stored event."""
    return EventView(
        number=event.number, job=event.job, at=shown_time(event.at_us) or "", name=event.name, fields=dict(event.fields)
    )


def site_view(presence: PresenceRecord, jobs: Sequence[JobRecord]) -> SiteView:
    """Return a member site's link and what it announced."""
    body = None if presence.hello is None else decode_body("hello", presence.hello)
    hello = body if isinstance(body, Hello) else None
    return SiteView(
        site=presence.site,
        connected=presence.connected,
        since=shown_time(presence.since_us),
        seen=shown_time(presence.seen_us),
        version=None if hello is None else hello.versions.confide,
        contracts=() if hello is None else tuple(sorted({notice.contract for notice in hello.datasets})),
        jobs=tuple(record.id for record in jobs),
    )


def preview_view(site: str, reply: PreviewReply | None) -> PreviewView:
    """Return what a site would answer to a plan, or that it didn't say."""
    if reply is None:
        return PreviewView(site=site, decision="no answer")
    return PreviewView(
        site=site,
        decision=reply.decision.value,
        reasons=tuple(ReasonView(code=why.code, rule=why.rule, text=why.text) for why in reply.reasons),
        epsilon=rounded_up(reply.epsilon),
        noise_multiplier=None if reply.noise_multiplier is None else float.fromhex(reply.noise_multiplier),
        steps=reply.steps,
        update_bytes=reply.update_bytes,
        memory_bytes=reply.memory_bytes,
        round_s=reply.round_s,
    )


def waiting_sentence(record: JobRecord, current: RoundView | None, presence: Mapping[SiteId, PresenceRecord]) -> str:
    """Return what an offered or running job waits for, or nothing."""
    if record.job.state is job_machine.JobState.RUNNING and current is not None and current.waiting_for:
        here = len(current.cohort) - len(current.waiting_for)
        missing = f"waiting for sites: {here} of {current.quorum} (missing: {', '.join(current.waiting_for)})"
        away = [_away(SiteId(site), presence) for site in current.waiting_for]
        return "; ".join([missing, *filter(None, away)])
    return offer_sentence(record, presence)


def offer_sentence(record: JobRecord, presence: Mapping[SiteId, PresenceRecord]) -> str:
    """Return which sites an offered job waits for and since when, or nothing."""
    missing = job_machine.waiting_for(record.job)
    if not missing:
        return ""
    offered = shown_time(record.offered_us)
    whys = []
    for site in record.job.undecided():
        standing = record.job.sites[site]
        if standing.state is SiteState.PARKED:
            whys.append(f"{site} waits for its operator's approval since {shown_time(standing.since_us)}")
        else:
            whys.append(_away(site, presence) or f"{site} hasn't answered the offer of {offered}")
    return "; ".join([missing, *whys])


def _away(site: SiteId, presence: Mapping[SiteId, PresenceRecord]) -> str:
    known = presence.get(site)
    if known is None:
        return f"{site} never connected"
    return "" if known.connected else f"{site} is away since {shown_time(known.since_us)}"
