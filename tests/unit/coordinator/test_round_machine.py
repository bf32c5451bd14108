"""Every event in every state of a round, quorum and deadline, and who is named."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import round_machine as m
from coordinator.round_machine import Round, RoundState, Standing, step
from federation.errors import OutOfOrder
from federation.messages import SiteId

A, B, C = SiteId("st-anna"), SiteId("mercy"), SiteId("north")
EVENTS: list[m.RoundEvent] = [
    m.Asked(),
    m.Answered(A),
    m.FoundBad(B, "tensor 3.weight is (3, 8), expected (2, 8)"),
    m.SiteLost(C),
    m.SiteBack(C),
    m.DeadlinePassed(),
    m.PhaseDone(),
    m.Released(),
    m.Abandon("the job was cancelled"),
]


def training(*, quorum: int = 2, secure: bool = False) -> Round:
    found, actions = step(m.opened(3, 0, quorum=quorum, cohort=(A, B, C), secure=secure), m.Asked())
    assert actions == (m.SendRequests(RoundState.TRAINING, (B, C, A)),)
    return found


def after(round_: Round, *events: m.RoundEvent) -> tuple[Round, tuple[m.RoundStep, ...]]:
    actions: tuple[m.RoundStep, ...] = ()
    for event in events:
        round_, actions = step(round_, event)
    return round_, actions


@pytest.mark.parametrize(
    ("state", "event", "closed"), list(itertools.product(RoundState, EVENTS, (False, True))), ids=str
)
def test_every_event_in_every_state_leads_where_the_table_says_or_is_refused(
    state: RoundState, event: m.RoundEvent, closed: bool
) -> None:
    before = replace(m.opened(0, 0, quorum=2, cohort=(A, B, C), secure=True), state=state, closed=closed)
    targets = m.TABLE[state].get(type(event))
    unfinished = isinstance(event, (m.PhaseDone, m.Released)) and (not closed or isinstance(event, m.Released))
    if targets is None or (unfinished and not (closed and state is RoundState.REVEALED)):
        with pytest.raises(OutOfOrder):
            step(before, event)
        return
    found, _ = step(before, event)
    assert found.state in targets


def test_a_phase_closes_as_soon_as_every_invited_site_answered() -> None:
    found, actions = after(training(), m.Answered(A), m.Answered(B), m.Answered(C))
    assert found.survivors == found.summed == (B, C, A)
    assert actions == (m.Aggregate((B, C, A)),)
    released, actions = step(found, m.Released())
    assert (released.state, actions) == (RoundState.RELEASED, ())


def test_at_the_deadline_a_round_at_quorum_goes_on_and_names_the_late_and_the_lost() -> None:
    found, actions = after(training(quorum=1), m.Answered(A), m.SiteLost(C), m.DeadlinePassed())
    assert actions == (m.NameLate({B: "training, no answer", C: "training, lost"}), m.Aggregate((A,)))
    assert found.late == {B: "training, no answer", C: "training, lost"}


def test_at_the_deadline_a_round_below_quorum_releases_nothing() -> None:
    found, actions = after(training(), m.Answered(A), m.DeadlinePassed())
    assert found.state is RoundState.ABANDONED
    assert found.reason == "1 of 2 sites answered; mercy (training, no answer), north (training, no answer)"
    assert isinstance(actions[-1], m.GiveUp)
    assert found.survivors == ()


def test_a_bad_update_is_out_of_the_mean_and_the_round_goes_on_without_that_site() -> None:
    bad = m.FoundBad(B, "tensor 3.weight is (3, 8), expected (2, 8)")
    found, actions = after(training(), m.Answered(A), bad, m.Answered(C))
    assert actions[-1] == m.Aggregate((C, A))
    assert found.late == {B: "tensor 3.weight is (3, 8), expected (2, 8)"}


def test_a_round_that_can_no_longer_reach_its_quorum_ends_before_the_deadline() -> None:
    found, actions = after(training(), m.FoundBad(A, "out of memory"), m.FoundBad(B, "out of memory"))
    assert found.state is RoundState.ABANDONED
    assert isinstance(actions[-1], m.GiveUp)


def test_answers_after_the_phase_closed_change_nothing() -> None:
    closed, _ = after(training(quorum=1), m.Answered(A), m.DeadlinePassed())
    for late in (m.Answered(B), m.FoundBad(C, "too late"), m.SiteLost(C), m.SiteBack(C), m.DeadlinePassed()):
        assert step(closed, late) == (closed, ())


def test_a_second_answer_of_a_site_changes_nothing() -> None:
    once, _ = after(training(), m.Answered(A))
    assert step(once, m.Answered(A)) == (once, ())
    assert step(once, m.FoundBad(A, "other bytes")) == (once, ())


def test_a_lost_site_that_comes_back_in_time_is_counted() -> None:
    found, actions = after(training(quorum=3), m.Answered(A), m.Answered(B), m.SiteLost(C), m.SiteBack(C))
    assert actions == ()
    _, actions = step(found, m.Answered(C))
    assert actions == (m.Aggregate((B, C, A)),)


def test_a_site_that_was_not_asked_is_out_of_order() -> None:
    with pytest.raises(OutOfOrder, match="wasn't asked"):
        step(training(), m.Answered(SiteId("stranger")))


def test_an_open_phase_has_no_result_to_release() -> None:
    with pytest.raises(OutOfOrder, match="no result"):
        step(training(), m.Released())


def test_under_secure_aggregation_each_phase_asks_the_survivors_of_the_one_before() -> None:
    found, actions = after(training(secure=True), m.Answered(A), m.Answered(B), m.Answered(C))
    assert actions == (m.FinishPhase(RoundState.TRAINING, (B, C, A)),)
    found, actions = step(found, m.PhaseDone())
    assert actions == (m.SendRequests(RoundState.KEYED, (B, C, A)),)
    found, actions = after(found, m.Answered(A), m.Answered(B), m.Answered(C), m.PhaseDone())
    assert actions == (m.SendRequests(RoundState.MASKED, (B, C, A)),)
    found, actions = after(found, m.Answered(A), m.Answered(B), m.DeadlinePassed(), m.PhaseDone())
    assert actions == (m.SendRequests(RoundState.CONSENTED, (B, A)),)
    found, _ = after(found, m.Answered(A), m.Answered(B), m.PhaseDone())
    found, actions = after(found, m.Answered(A), m.Answered(B))
    assert actions == (m.Aggregate((B, A)),)
    assert found.state is RoundState.REVEALED
    assert found.late == {C: "masking, no answer"}


@given(st.lists(st.sampled_from(EVENTS), max_size=40), st.booleans(), st.integers(1, 3))
def test_no_order_of_events_releases_below_quorum(events: list[m.RoundEvent], secure: bool, quorum: int) -> None:
    found = m.opened(0, 0, quorum=quorum, cohort=(A, B, C), secure=secure)
    for event in events:
        try:
            moved, _ = step(found, event)
        except OutOfOrder:
            continue
        assert moved.state in m.TABLE[found.state][type(event)]
        if found.survivors and moved.state is found.state:
            assert moved.survivors == found.survivors
        found = moved
    if found.state is RoundState.RELEASED:
        assert len(found.summed) >= quorum
        assert all(found.sites[site] is Standing.ANSWERED for site in found.survivors)
