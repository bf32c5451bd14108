"""Four sites and a coordinator in real processes; something is killed, cut or restarted; the job goes on."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Federation, federation, wait_until

pytestmark = [pytest.mark.process, pytest.mark.enable_socket, pytest.mark.timeout(400)]

SITES = ["bern", "mercy", "oslo", "st-anna"]
# Rounds long enough to be interrupted: full-batch steps without noise, so that an uninterrupted run has the same bits.
SLOW: dict[str, Any] = {
    "training": {"local_steps": 150, "batch": 64, "optimizer": {"name": "sgd", "lr": 0.01}, "seed": 7},
    "privacy": {"unit": "record", "mechanism": "none", "clip": 1.0},
    "rounds": 3,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("federation"), SITES) as made:
        yield made


def final_model(shown: dict[str, Any]) -> str:
    model: str = shown["rounds_done"][-1]["model"]
    return model


def wait_for_round(running: Federation, job: str, number: int) -> None:
    """Return once round `number` (from 0) is under way; fail where the job got past it unseen."""

    def is_open() -> bool:
        shown = running.show(job)
        assert shown["state"] not in ("completed", "failed", "cancelled"), shown
        rounds = [item for item in shown["rounds_done"] if item["round"] == number]
        return bool(rounds)

    wait_until(is_open, timeout_s=90, what=f"round {number} of {job}")


def trainer_at_work(running: Federation, site: str) -> int:
    found: list[int] = wait_until(lambda: running.trainer_pids(site), timeout_s=30, what=f"a trainer at {site}")
    return found[0]


@pytest.fixture(scope="module")
def undisturbed(running: Federation) -> dict[str, Any]:
    """A job that nothing happened to; the others of its plan must end with its bits."""
    return running.wait_for(running.submit(running.plan(SITES, quorum=4, **SLOW)), "completed", "failed")


def test_an_undisturbed_job_completes_with_everybody_in_every_round(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["state"] == "completed", undisturbed
    assert [item["survivors"] for item in undisturbed["rounds_done"]] == [SITES] * 3
    assert set(undisturbed["metrics"]) == {"loss", "accuracy", "auc"}


def test_a_killed_trainer_makes_its_site_late_with_the_reason_and_it_rejoins_at_the_next_round(
    running: Federation,
) -> None:
    job = running.submit(running.plan(SITES, quorum=3, **SLOW))
    wait_for_round(running, job, 0)
    os.kill(trainer_at_work(running, "mercy"), signal.SIGKILL)
    shown = running.wait_for(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    first, *others = shown["rounds_done"]
    assert first["survivors"] == ["bern", "oslo", "st-anna"]
    assert "trainer" in first["late"]["mercy"]
    assert all(item["survivors"] == SITES for item in others)


def test_a_killed_daemon_is_late_and_rejoins_the_same_job_when_it_is_started_again(running: Federation) -> None:
    job = running.submit(running.plan(SITES, quorum=3, **{**SLOW, "rounds": 4}))
    wait_for_round(running, job, 0)
    running.daemons["oslo"].kill()
    running.run_site("oslo")
    shown = running.wait_for(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    assert shown["rounds_done"][-1]["survivors"] == SITES


def test_a_killed_coordinator_goes_on_with_the_same_job_at_the_same_round_to_the_same_model(
    running: Federation, undisturbed: dict[str, Any]
) -> None:
    job = running.submit(running.plan(SITES, quorum=4, **SLOW))
    wait_for_round(running, job, 1)
    running.daemons["coordinator"].kill()
    running.serve()
    shown = running.wait_for(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    assert [item["round"] for item in shown["rounds_done"] if item["state"] == "released"] == [0, 1, 2]
    assert final_model(shown) == final_model(undisturbed)


def test_a_site_that_was_away_for_whole_rounds_follows_the_releases_it_missed(running: Federation) -> None:
    job = running.submit(running.plan(SITES, quorum=3, deadlines={"training_s": 15, "phase_s": 10}, **SLOW))
    wait_for_round(running, job, 0)
    running.daemons["bern"].kill()
    wait_for_round(running, job, 1)
    running.run_site("bern")
    shown = running.wait_for(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    assert "bern" in shown["rounds_done"][0]["late"]
    assert shown["rounds_done"][-1]["survivors"] == SITES


def test_pause_holds_the_job_and_resume_goes_on_and_cancel_is_final(running: Federation) -> None:
    job = running.submit(running.plan(SITES, quorum=3, **{**SLOW, "rounds": 30}))
    wait_for_round(running, job, 0)
    running.job("pause", job)
    running.wait_for(job, "paused")
    done = len(running.show(job)["rounds_done"])
    time.sleep(2)
    assert len(running.show(job)["rounds_done"]) == done
    running.job("resume", job)
    wait_for_round(running, job, done)
    running.job("cancel", job, "--reason", "enough")
    assert running.show(job)["state"] == "cancelled"
    running.job("resume", job, status=1)


def test_the_same_idempotency_key_gives_the_same_job(running: Federation) -> None:
    plan = running.plan(SITES, quorum=3)
    first = running.submit(plan, "--idempotency-key", "once")
    assert running.submit(plan, "--idempotency-key", "once") == first
    other = running.plan(SITES, quorum=3, rounds=5)
    running.job("submit", str(other), "--idempotency-key", "once", status=2)
    running.wait_for(first, "completed")


def test_no_log_of_any_daemon_holds_a_trace_or_a_value_of_the_data(running: Federation, tmp_path: Path) -> None:
    for party in ("coordinator", *SITES):
        for log in running.home(party).glob("test-*.log"):
            text = log.read_text(encoding="utf-8", errors="replace")
            assert "Traceback" not in text, text[-3000:]
