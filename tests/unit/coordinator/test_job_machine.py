"""Every event in every state of a job; what a job does at quorum, at deadlines, at its attempts' end."""

import itertools
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import job_machine as m
from coordinator.job_machine import Job, JobState, step
from coordinator.site_machine import TABLE as SITE_TABLE
from coordinator.site_machine import SiteEvent, SiteInJob, SiteState
from coordinator.site_machine import step as site_step
from federation.errors import OutOfOrder
from federation.messages import SiteId

A, B, C = SiteId("st-anna"), SiteId("mercy"), SiteId("north")

EVENTS: list[m.JobEvent] = [
    m.Submitted(),
    m.Admitted(),
    m.SiteAnswered(A, SiteEvent.ACCEPT),
    m.SiteMoved(A, SiteEvent.ASK),
    m.Begun(),
    m.OfferDeadline(),
    m.PauseAsked(),
    m.ResumeAsked(),
    m.CancelAsked("alice asked"),
    m.RoundReleased(0),
    m.RoundAbandoned(0, 0, "1 of 2 sites answered"),
    m.Broke("the disk is full"),
]


def job(state: JobState = JobState.DRAFT, *, quorum: int = 2, sites: dict[SiteId, SiteState] | None = None) -> Job:
    standing = sites or dict.fromkeys((A, B, C), SiteState.INVITED)
    return Job(
        quorum=quorum,
        rounds=2,
        attempts=3,
        sites=MappingProxyType({site: SiteInJob(found) for site, found in standing.items()}),
        state=state,
    )


def running(**sites: SiteState) -> Job:
    return job(JobState.RUNNING, sites=dict.fromkeys((A, B, C), SiteState.ACCEPTED) | sites)  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, EVENTS)))
def test_every_event_in_every_state_leads_where_the_table_says_or_is_refused(
    state: JobState, event: m.JobEvent
) -> None:
    accepted = SiteState.INVITED if state in (JobState.DRAFT, JobState.QUEUED, JobState.OFFERED) else SiteState.ACCEPTED
    before = job(state, sites=dict.fromkeys((A, B, C), accepted))
    targets = m.TABLE[state].get(type(event))
    if targets is None:
        with pytest.raises(OutOfOrder):
            step(before, event)
        return
    after, _ = step(before, event)
    assert after.state in targets


@pytest.mark.parametrize("state", JobState)
def test_cancelling_works_in_every_state_that_is_no_end_and_is_final(state: JobState) -> None:
    if state in m.ENDS:
        with pytest.raises(OutOfOrder):
            step(job(state), m.CancelAsked())
        return
    after, _ = step(job(state), m.CancelAsked("alice asked"))
    assert (after.state, after.reason) == (JobState.CANCELLED, "alice asked")
    for event in EVENTS:
        with pytest.raises(OutOfOrder):
            step(after, event)


def test_a_job_is_ready_once_every_site_answered_and_a_quorum_accepted() -> None:
    offered, actions = step(job(JobState.QUEUED), m.Admitted())
    assert actions == (m.SendOffers((B, C, A)),)
    one, _ = step(offered, m.SiteAnswered(A, SiteEvent.ACCEPT))
    two, _ = step(one, m.SiteAnswered(B, SiteEvent.ACCEPT))
    assert two.state is JobState.OFFERED
    assert m.waiting_for(two) == "waiting for sites: 2 of 2 (missing: north)"
    assert not m.is_ready(two, grace_over=False)
    three, actions = step(two, m.SiteAnswered(C, SiteEvent.REFUSE, ("CFD-S01: not at night",)))
    assert (three.state, actions) == (JobState.OFFERED, ())
    assert m.is_ready(three, grace_over=False)
    begun, actions = step(three, m.Begun())
    assert begun.state is JobState.RUNNING
    assert actions == (m.StartRounds(),)
    assert begun.cohort() == (B, A)


def test_after_the_grace_time_a_quorum_starts_and_a_later_site_joins() -> None:
    offered = job(JobState.OFFERED, sites={A: SiteState.ACCEPTED, B: SiteState.ACCEPTED, C: SiteState.PARKED})
    assert m.is_ready(offered, grace_over=True)
    started, actions = step(offered, m.Begun())
    assert (started.state, actions) == (JobState.RUNNING, (m.StartRounds(),))
    joined, actions = step(started, m.SiteAnswered(C, SiteEvent.ACCEPT))
    assert (joined.cohort(), actions) == ((B, C, A), ())


def test_after_the_grace_time_a_job_below_quorum_goes_on_waiting() -> None:
    offered = job(JobState.OFFERED, sites={A: SiteState.ACCEPTED, B: SiteState.INVITED, C: SiteState.INVITED})
    assert not m.is_ready(offered, grace_over=True)
    assert step(offered, m.Begun()) == (offered, ())


def test_a_job_takes_places_where_it_works_and_where_it_was_just_offered() -> None:
    offered = job(JobState.OFFERED, sites={A: SiteState.ACCEPTED, B: SiteState.INVITED, C: SiteState.REFUSED})
    assert m.takes_places_at(offered, grace_over=False) == {A, B}
    assert m.takes_places_at(offered, grace_over=True) == set()
    begun = running(**{A: SiteState.LATE, B: SiteState.INVITED, C: SiteState.REFUSED})
    assert m.takes_places_at(begun, grace_over=True) == {A}
    paused, _ = step(begun, m.PauseAsked())
    assert m.takes_places_at(paused, grace_over=True) == {A}
    assert m.takes_places_at(job(JobState.QUEUED), grace_over=False) == set()


def test_at_the_offer_deadline_a_job_with_a_quorum_goes_on_waiting_for_its_places() -> None:
    offered = job(JobState.OFFERED, sites={A: SiteState.ACCEPTED, B: SiteState.ACCEPTED, C: SiteState.INVITED})
    assert step(offered, m.OfferDeadline()) == (offered, ())


def test_at_the_offer_deadline_a_job_below_quorum_ends_and_names_who_is_missing() -> None:
    offered = job(JobState.OFFERED, sites={A: SiteState.ACCEPTED, B: SiteState.REFUSED, C: SiteState.INVITED})
    after, actions = step(offered, m.OfferDeadline())
    assert after.state is JobState.FAILED
    assert after.reason == "CFD-J06: 1 of 2 sites accepted; refused: mercy; no answer: north"
    assert actions == (m.TellSites(m.Telling.FAIL, (B, C, A), after.reason),)


def test_a_job_ends_at_once_when_refusals_make_a_quorum_impossible() -> None:
    offered = job(JobState.OFFERED, sites={A: SiteState.REFUSED, B: SiteState.INVITED, C: SiteState.INVITED})
    after, _ = step(offered, m.SiteAnswered(B, SiteEvent.REFUSE))
    assert after.state is JobState.FAILED
    assert "refused: mercy, st-anna" in after.reason


def test_a_running_job_ends_when_too_many_sites_stop_it() -> None:
    one, _ = step(running(), m.SiteAnswered(A, SiteEvent.REFUSE))
    assert one.state is JobState.RUNNING
    two, actions = step(one, m.SiteAnswered(B, SiteEvent.REFUSE))
    assert two.state is JobState.FAILED
    assert m.StopRounds() in actions


def test_a_round_is_tried_again_and_the_job_fails_after_the_last_attempt() -> None:
    found = running()
    for attempt in range(2):
        found, actions = step(found, m.RoundAbandoned(0, attempt, "1 of 2 sites answered"))
        assert (found.state, found.round, found.attempt, actions) == (JobState.RUNNING, 0, attempt + 1, ())
    found, _ = step(found, m.RoundAbandoned(0, 2, "1 of 2 sites answered"))
    assert found.state is JobState.FAILED
    assert found.reason == "round 0 was tried 3 times: 1 of 2 sites answered"


def test_the_last_released_round_completes_the_job_and_frees_its_sites() -> None:
    one, actions = step(running(), m.RoundReleased(0))
    assert (one.state, one.round, actions) == (JobState.RUNNING, 1, ())
    two, actions = step(one, m.RoundReleased(1))
    assert two.state is JobState.COMPLETED
    assert actions == (m.TellSites(m.Telling.COMPLETE, (B, C, A)),)


def test_a_result_of_another_round_is_out_of_order() -> None:
    with pytest.raises(OutOfOrder, match="round 1"):
        step(running(), m.RoundReleased(1))
    with pytest.raises(OutOfOrder, match="attempt 1"):
        step(running(), m.RoundAbandoned(0, 1, "late"))


def test_a_pause_lets_the_open_round_end_and_resuming_starts_the_next() -> None:
    paused, actions = step(running(), m.PauseAsked())
    assert actions == (m.TellSites(m.Telling.PAUSE, (B, C, A)),)
    moved, _ = step(paused, m.RoundReleased(0))
    assert (moved.state, moved.round) == (JobState.PAUSED, 1)
    resumed, actions = step(moved, m.ResumeAsked())
    assert actions == (m.TellSites(m.Telling.RESUME, (B, C, A)), m.StartRounds())
    assert resumed.state is JobState.RUNNING


def test_a_site_that_was_never_invited_is_no_part_of_a_job() -> None:
    with pytest.raises(OutOfOrder, match="isn't invited"):
        step(job(JobState.OFFERED), m.SiteAnswered(SiteId("stranger"), SiteEvent.ACCEPT))


@pytest.mark.parametrize(("state", "event"), list(itertools.product(SiteState, SiteEvent)))
def test_every_event_of_a_site_leads_where_its_table_says_or_is_refused(state: SiteState, event: SiteEvent) -> None:
    before = SiteInJob(state, ("CFD-S01: no",), since_us=1)
    target = SITE_TABLE[state].get(event)
    if target is None:
        with pytest.raises(OutOfOrder):
            site_step(before, event, now_us=2)
        return
    after = site_step(before, event, now_us=2)
    assert after.state is target
    assert after.since_us == (1 if target is state else 2)
    assert bool(after.reasons) == (target is state)


def test_only_the_last_answer_of_a_site_counts() -> None:
    refused, _ = step(job(JobState.OFFERED, quorum=1), m.SiteAnswered(A, SiteEvent.REFUSE, ("CFD-S01: not at night",)))
    assert refused.cohort() == ()
    accepted, _ = step(refused, m.SiteAnswered(A, SiteEvent.ACCEPT))
    assert accepted.cohort() == (A,)
    assert accepted.sites[A].reasons == ()


def test_a_round_never_asks_a_site_that_refused() -> None:
    with pytest.raises(OutOfOrder, match="refused"):
        step(running(**{A: SiteState.REFUSED}), m.SiteMoved(A, SiteEvent.ASK))


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_no_order_of_events_breaks_a_job(events: list[m.JobEvent]) -> None:
    found = job()
    for event in events:
        try:
            after, actions = step(found, event)
        except OutOfOrder:
            continue
        assert after.state in m.TABLE[found.state][type(event)]
        if after.state in m.ENDS and found.state in m.AT_WORK:
            assert any(isinstance(action, m.TellSites) for action in actions)
        found = after
    assert found.round <= found.rounds
    assert found.attempt < found.attempts


@pytest.mark.parametrize(
    ("event", "words"),
    [(m.PauseAsked(), "be paused"), (m.ResumeAsked(), "be resumed"), (m.CancelAsked(), "be cancelled")],
)
def test_what_a_person_may_not_ask_of_a_job_is_said_in_the_person_s_words(event: m.JobEvent, words: str) -> None:
    with pytest.raises(OutOfOrder, match=f"a job that is completed can't {words}"):
        step(job(JobState.COMPLETED), event)
