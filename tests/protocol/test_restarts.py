"""The coordinator is killed wherever it writes, and goes on: same model, nobody asked twice, nothing counted twice."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import job_machine
from coordinator.exchange import Interrupted
from coordinator.job_machine import JobState
from coordinator.round_machine import RoundState
from federation.errors import OutOfOrder
from federation.messages import Phase
from tests.support.rounds import Act, Bench, Killed, Script, dies, fails, interrupted, is_late, is_lost, scores, trains

EVALUATE = "evaluate: {every: 1, release: public}\nserver: {strategy: FedAdam, eta: 0.1}\n"


def good_script() -> Script:
    return Script(
        {
            (Phase.TRAIN, None, None, "a"): trains(lambda number: 1.0 + number),
            (Phase.TRAIN, None, None, "b"): trains(lambda number: 2.0 - number),
            (Phase.EVALUATE, None, None, None): scores({15: 2, 3: 1}, {0: 3}),
        }
    )


def bench(folder: Path, script: Script, **more: object) -> Bench:
    folder.mkdir()
    return Bench(folder, script, sites=("a", "b"), rounds=2, more=EVALUATE, **more)  # type: ignore[arg-type]


def outcome(found: Bench) -> dict[str, object]:
    """Return everything about a finished job that a restart may not change."""
    return {
        "state": found.record().job.state,
        "digests": [release.model_digest for release in found.releases()],
        "metrics": [release.metrics for release in found.releases()],
        "attempts": [(attempt.round.number, attempt.round.attempt) for attempt in found.attempts()],
        "survivors": [attempt.round.summed for attempt in found.attempts()],
        "bytes": [attempt.upload_bytes for attempt in found.attempts()],
        "rounds done": found.events().count("round.done"),
        "ends": found.events().count("job.completed"),
    }


def test_a_coordinator_killed_at_any_write_ends_with_the_same_models(tmp_path: Path) -> None:
    whole = bench(tmp_path / "whole", good_script())
    whole.run()
    expected = outcome(whole)
    number = 0
    while True:
        number += 1
        found = bench(tmp_path / str(number), good_script())
        if not found.run_killed_at_write(number):
            break
        found.run()
        assert outcome(found) == expected, f"killed at write {number}"
    assert number > 12  # it was really killed at each of the writes of two rounds


def test_an_answer_that_was_stored_is_not_asked_for_again(tmp_path: Path) -> None:
    script = Script({(Phase.TRAIN, None, None, "a"): trains(1.0), (Phase.TRAIN, None, None, "b"): dies})
    found = bench(tmp_path / "one", script)
    with pytest.raises(Killed):
        found.run()
    found.open()
    script.acts = good_script().acts
    script.asked.clear()
    found.run()
    first = [site for phase, number, attempt, site in script.asked if (phase, number, attempt) == ("train", 0, 0)]
    assert first == ["b"]


def test_a_stop_of_the_service_leaves_the_round_open_for_the_next_start(tmp_path: Path) -> None:
    script = Script({(Phase.TRAIN, None, None, "a"): trains(1.0), (Phase.TRAIN, None, None, "b"): interrupted})
    found = bench(tmp_path / "one", script)
    with pytest.raises(Interrupted):
        found.run()
    assert found.attempts()[0].round.state is RoundState.TRAINING
    script.acts = good_script().acts
    assert found.run().job.state is JobState.COMPLETED


def test_an_attempt_whose_deadline_passed_while_the_coordinator_was_away_stays_open_for_a_phase(tmp_path: Path) -> None:
    script = Script({(Phase.TRAIN, None, None, None): interrupted})
    found = bench(tmp_path / "one", script)
    with pytest.raises(Interrupted):
        found.run()
    found.clock.pass_time(3600)
    found.open()
    work = found.work()
    attempt = work.open_round()
    assert attempt is not None
    assert work.left_s(attempt) == 60


def test_a_cancelled_job_abandons_its_round_and_releases_nothing_more(tmp_path: Path) -> None:
    def cancels(found: Bench, request: object, site: object) -> object:
        found.store.jobs.step(found.job, job_machine.CancelAsked("alice asked"))
        raise Interrupted

    script = Script({(Phase.TRAIN, None, None, None): cancels})  # type: ignore[dict-item]
    found = bench(tmp_path / "one", script)
    work = found.work()
    with pytest.raises(Interrupted):
        found.run()
    work.wind_up()
    assert found.record().job.state is JobState.CANCELLED
    assert found.attempts()[0].round.reason == "the job was cancelled"
    assert [release.step for release in found.releases()] == [0]


def test_a_job_cancelled_while_the_mean_is_taken_releases_nothing(tmp_path: Path) -> None:
    found = bench(tmp_path / "one", good_script())
    work = found.work()
    work.prepare_first_model()
    attempt = work.open_round()
    assert attempt is not None
    attempt = work.collect(attempt, found.ask(work.training_requests(attempt), timeout_s=1))
    found.store.jobs.step(found.job, job_machine.CancelAsked("alice asked"))
    with work.workplace() as folder:
        stepped = work.server_step(work.mean(attempt, folder), folder)
    with pytest.raises(OutOfOrder):
        work.release(attempt, stepped)
    assert [release.step for release in found.releases()] == [0]


def test_a_paused_job_finishes_its_round_and_begins_no_other(tmp_path: Path) -> None:
    def pauses(found: Bench, request: object, site: object) -> object:
        found.store.jobs.step(found.job, job_machine.PauseAsked())
        return trains(1.0)(found, request, site)  # type: ignore[arg-type]

    script = good_script()
    script.acts = {(Phase.TRAIN, 0, None, "a"): pauses, **script.acts}  # type: ignore[dict-item]
    found = bench(tmp_path / "one", script)
    assert found.run().job.state is JobState.PAUSED
    assert found.record().job.round == 1
    found.store.jobs.step(found.job, job_machine.ResumeAsked())
    assert found.run().job.state is JobState.COMPLETED


ACTS: list[Act] = [trains(1.0), trains(-2.0), fails(), is_late, is_lost, dies, interrupted]


@settings(max_examples=12)
@given(data=st.data())
def test_whatever_sites_and_restarts_do_a_job_ends_and_its_chain_holds(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Sites drop out, fail, come late; the coordinator dies or is stopped between answers; then all goes well."""
    script = Script()
    found = Bench(tmp_path_factory.mktemp("any"), script, sites=("a", "b", "c"), quorum=2, rounds=2, attempts=2)
    for _ in range(data.draw(st.integers(0, 4))):
        script.acts = {(Phase.TRAIN, None, None, site): data.draw(st.sampled_from(ACTS)) for site in ("a", "b", "c")}
        try:
            found.run()
        except (Killed, Interrupted):
            found.engine.dispose()
            found.open()
    script.acts = {(Phase.TRAIN, None, None, None): trains(1.0)}
    record = found.run()
    assert record.job.state in (JobState.COMPLETED, JobState.FAILED)
    released = [attempt for attempt in found.attempts() if attempt.round.state is RoundState.RELEASED]
    assert [release.step for release in found.releases()] == list(range(len(released) + 1))
    for attempt in released:
        assert len(attempt.round.summed) >= 2
        assert not set(attempt.round.summed) & set(attempt.round.late)
    assert max(Counter((a.round.number, a.round.attempt) for a in found.attempts()).values()) == 1
    assert record.job.state is JobState.FAILED or len(released) == 2
