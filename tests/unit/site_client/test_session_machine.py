"""The machine of one job at a site: every reachable state against every event, and the rules by name."""

from pathlib import Path

import pytest

from federation.messages import Decision, JobId, Phase
from site_client import session_machine as machine
from site_client.session import ENDED, WORKING, Ending, Holder, Session, Stage, Work
from site_client.session_machine import (
    AnswerAbandoned,
    Close,
    DeadlinePassed,
    Decide,
    Decided,
    Ended,
    Event,
    Freed,
    Held,
    Offered,
    Record,
    RefuseOffer,
    RefuseWork,
    RepeatAnswer,
    RepeatReply,
    Restarted,
    Start,
    Stop,
    TellAborted,
    WorkAsked,
    WorkDone,
    step,
)

JOB = JobId("heart-risk-0a1b2c")
PLAN, OTHER = "a" * 64, "b" * 64


def train(round_number: int, attempt: int = 0) -> Work:
    return Work(round_number, attempt, Phase.TRAIN)


def evaluate(round_number: int, attempt: int = 0) -> Work:
    return Work(round_number, attempt, Phase.EVALUATE)


def session_after(*events: Event, rounds: int = 3) -> Session:
    session, _ = machine.first_offer(JOB, plan_digest=PLAN, rounds=rounds)
    for event in events:
        session, _ = step(session, event)
    return session


def accepted(*events: Event, rounds: int = 3) -> Session:
    return session_after(Decided(Decision.ACCEPTED), *events, rounds=rounds)


WORKS = [train(0), train(0, 1), train(1), evaluate(0), evaluate(1)]
ALPHABET: list[Event] = [
    Offered(PLAN),
    Offered(OTHER),
    *(Decided(decision) for decision in Decision),
    *(WorkAsked(work) for work in WORKS),
    *(WorkDone(work) for work in WORKS),
    *(DeadlinePassed(work) for work in WORKS),
    *(Held(holder) for holder in Holder),
    *(Freed(holder) for holder in Holder),
    *(Ended(how) for how in Ending),
    Restarted(),
]


def reachable() -> dict[Session, list[tuple[Event, Session, machine.Actions]]]:
    start, _ = machine.first_offer(JOB, plan_digest=PLAN, rounds=2)
    found: dict[Session, list[tuple[Event, Session, machine.Actions]]] = {}
    left = [start]
    while left:
        session = left.pop()
        if session in found:
            continue
        found[session] = []
        for event in ALPHABET:
            try:
                after, actions = step(session, event)
            except machine.Impossible:
                assert isinstance(event, Decided | WorkDone), (session, event)
                continue
            found[session].append((event, after, actions))
            left.append(after)
    return found


REACHABLE = reachable()


def test_every_stage_is_reachable_and_every_change_of_stage_is_in_the_table() -> None:
    assert {session.stage for session in REACHABLE} == set(Stage)
    seen: set[tuple[Stage, Stage]] = set()
    for session, paths in REACHABLE.items():
        seen |= {(session.stage, after.stage) for _, after, _ in paths if after.stage is not session.stage}
    table = {
        (stage, target)
        for stage, events in machine.TRANSITIONS.items()
        for targets in events.values()
        for target in targets
        if target is not stage
    }
    assert seen == table


def test_work_is_under_way_exactly_while_training_or_evaluating() -> None:
    for session in REACHABLE:
        assert (session.work is not None) == (session.stage in WORKING)
        if session.work is not None:
            wanted = Stage.TRAINING if session.work.phase is Phase.TRAIN else Stage.EVALUATING
            assert session.stage is wanted
        if session.waiting is not None:
            assert session.work is not None
        if session.stage is Stage.PAUSED:
            assert session.held_by


def test_no_path_begins_the_same_phase_twice() -> None:
    for session, paths in REACHABLE.items():
        for _, after, actions in paths:
            for action in actions:
                if isinstance(action, Start):
                    last = session.last(action.work.phase)
                    key = (action.work.round, action.work.attempt)
                    assert last is None or key > last or session.waiting == action.work
                    assert after.work == action.work


def test_an_ended_job_never_moves_again_and_never_begins_work() -> None:
    for session, paths in REACHABLE.items():
        if session.stage in ENDED or session.stage is Stage.REFUSED:
            for _, after, actions in paths:
                assert after.stage is session.stage
                assert not any(isinstance(action, Start | Stop | Close | Record) for action in actions)


def test_a_held_job_begins_nothing() -> None:
    for session, paths in REACHABLE.items():
        if session.held_by:
            for event, _, actions in paths:
                assert not any(isinstance(action, Start) for action in actions), event


def test_every_end_closes_once_and_stops_what_is_under_way_first() -> None:
    for session, paths in REACHABLE.items():
        for event, after, actions in paths:
            closes = [action for action in actions if isinstance(action, Close)]
            ends_now = after.stage in ENDED and session.stage not in ENDED
            assert len(closes) == int(ends_now), (session, event)
            if ends_now and session.work is not None:
                assert isinstance(actions[0], Stop)
                assert actions[0].work == session.work


def test_a_first_offer_is_decided() -> None:
    session, actions = machine.first_offer(JOB, plan_digest=PLAN, rounds=3)
    assert session.stage is Stage.OFFERED
    assert actions == (Decide(),)


@pytest.mark.parametrize(
    ("decision", "stage"),
    [(Decision.ACCEPTED, Stage.ACCEPTED), (Decision.REFUSED, Stage.REFUSED), (Decision.PARKED, Stage.PARKED)],
)
def test_a_decision_is_told(decision: Decision, stage: Stage) -> None:
    session, actions = step(session_after(), Decided(decision))
    assert session.stage is stage
    assert actions == (RepeatAnswer(),)


def test_the_same_offer_gets_the_same_answer_and_another_plan_is_refused() -> None:
    session = accepted(WorkAsked(train(0)))
    assert step(session, Offered(PLAN)) == (session, (RepeatAnswer(),))
    assert step(session, Offered(OTHER)) == (session, (RefuseOffer(machine.OTHER_PLAN),))


def test_a_parked_job_is_accepted_by_a_person() -> None:
    session = session_after(Decided(Decision.PARKED), Decided(Decision.ACCEPTED))
    assert session.stage is Stage.ACCEPTED
    assert step(session, WorkAsked(train(0)))[1] == (Record("started"), Start(train(0)))


def test_a_parked_job_is_not_worked_on() -> None:
    session = session_after(Decided(Decision.PARKED))
    assert step(session, WorkAsked(train(0))) == (session, (RefuseWork(train(0), machine.NOT_ACCEPTED),))


def test_a_phase_asked_again_while_under_way_changes_nothing() -> None:
    session = accepted(WorkAsked(train(0)))
    assert step(session, WorkAsked(train(0))) == (session, ())


def test_a_phase_asked_again_after_its_end_gets_the_same_reply() -> None:
    session = accepted(WorkAsked(train(0)), WorkDone(train(0)))
    assert session.stage is Stage.IDLE
    assert step(session, WorkAsked(train(0))) == (session, (RepeatReply(train(0)),))


def test_an_older_round_or_attempt_is_refused() -> None:
    session = accepted(WorkAsked(train(1, 1)), WorkDone(train(1, 1)))
    for old in (train(0), train(1, 0)):
        assert step(session, WorkAsked(old)) == (session, (RefuseWork(old, machine.OLD_WORK),))


def test_a_newer_round_replaces_the_one_under_way() -> None:
    session = accepted(WorkAsked(train(0)))
    session, actions = step(session, WorkAsked(train(1)))
    assert actions == (Stop(train(0), machine.REPLACED),)
    assert session.work == train(0)
    session, actions = step(session, WorkDone(train(0)))
    assert actions == (RepeatReply(train(0)), Start(train(1)))
    assert session.work == train(1)


def test_of_two_waiting_rounds_the_newest_wins_and_the_other_is_answered() -> None:
    session = accepted(WorkAsked(train(0)), WorkAsked(train(1)))
    session, actions = step(session, WorkAsked(train(2)))
    assert actions == (RefuseWork(train(1), machine.REPLACED, kept=True), Stop(train(0), machine.REPLACED))
    assert session.waiting == train(2)


def test_a_round_beyond_the_plan_is_refused() -> None:
    session = accepted(rounds=3)
    assert step(session, WorkAsked(train(3)))[1] == (RefuseWork(train(3), machine.OUTSIDE_PLAN),)


def test_evaluation_and_training_keep_their_own_order() -> None:
    session = accepted(WorkAsked(train(0)), WorkDone(train(0)), WorkAsked(evaluate(0)), WorkDone(evaluate(0)))
    assert step(session, WorkAsked(train(1)))[1] == (Start(train(1)),)


def test_a_pause_lets_the_phase_end_and_begins_no_other() -> None:
    session = accepted(WorkAsked(train(0)), Held(Holder.OPERATOR))
    assert session.stage is Stage.TRAINING
    session, _ = step(session, WorkDone(train(0)))
    assert session.stage is Stage.PAUSED
    assert step(session, WorkAsked(train(1))) == (session, (RefuseWork(train(1), machine.JOB_HELD),))
    session, actions = step(session, Freed(Holder.OPERATOR))
    assert (session.stage, actions) == (Stage.IDLE, (Record("resumed"),))


def test_two_holders_must_both_let_go() -> None:
    session = accepted(Held(Holder.OPERATOR), Held(Holder.COORDINATOR), Freed(Holder.COORDINATOR))
    assert session.stage is Stage.PAUSED
    assert step(session, Freed(Holder.OPERATOR))[0].stage is Stage.ACCEPTED


def test_a_hold_before_the_decision_stays_in_force() -> None:
    assert session_after(Held(Holder.OPERATOR), Decided(Decision.ACCEPTED)).stage is Stage.PAUSED


def test_a_passed_deadline_stops_only_the_phase_that_it_belongs_to() -> None:
    session = accepted(WorkAsked(train(1)))
    assert step(session, DeadlinePassed(train(1)))[1] == (Stop(train(1), machine.DEADLINE),)
    assert step(session, DeadlinePassed(train(0)))[1] == ()


def test_an_operators_abort_tells_the_coordinator_and_settles() -> None:
    session, actions = step(accepted(WorkAsked(train(0))), Ended(Ending.ABORTED))
    assert session.stage is Stage.ABORTED
    assert actions == (
        Stop(train(0), machine.OPERATOR_ABORTED),
        Record("cancelled"),
        TellAborted(machine.OPERATOR_ABORTED),
        Close(),
    )
    assert step(session, WorkDone(train(0))) == (session, ())


def test_what_a_crash_cut_off_is_answered_and_not_begun_again() -> None:
    session = accepted(WorkAsked(train(0)), WorkAsked(train(1)))
    session, actions = step(session, Restarted())
    assert session.stage is Stage.IDLE
    assert actions == (AnswerAbandoned(train(0)), RefuseWork(train(1), machine.REPLACED, kept=True))
    assert step(session, WorkAsked(train(0)))[1] == (RefuseWork(train(0), machine.OLD_WORK),)


def test_an_undecided_offer_is_decided_after_a_restart() -> None:
    assert step(session_after(), Restarted())[1] == (Decide(),)


def test_work_on_an_unknown_job_is_refused() -> None:
    assert machine.unknown_work(train(0)) == RefuseWork(train(0), machine.UNKNOWN_JOB)


@pytest.mark.parametrize("event", [WorkDone(train(0)), Decided(Decision.ACCEPTED)])
def test_an_end_of_what_never_began_is_our_own_fault(event: Event) -> None:
    with pytest.raises(machine.Impossible):
        step(accepted(), event)


def test_the_diagram_in_the_readme_is_drawn_from_the_table() -> None:
    readme = Path(machine.__file__).with_name("README.md").read_text("utf-8")
    assert machine.diagram() in readme
