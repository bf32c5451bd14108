"""What the coordinator's log and each site's hold of one job, entry for entry, in real processes.

A coordinator and two sites do a job to its end, are refused one, lose a trainer, wait for a site in vain, and are told
to stop. At each party the recorded sequence is compared with the expected one. What two parties do side by side has no
order in the coordinator's log, so there the entries about each site are compared by themselves.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit_logs import events_in
from tests.support.processes import Federation, confide, federation, wait_until

pytestmark = [pytest.mark.process, pytest.mark.enable_socket, pytest.mark.timeout(400)]

SITES = ["mercy", "oslo"]
LONG: dict[str, Any] = {
    "training": {"local_steps": 100_000, "batch": 64, "optimizer": {"name": "sgd", "lr": 0.01}, "seed": 7},
    "privacy": {"unit": "record", "mechanism": "none", "clip": 1.0},
    "rounds": 1,
}
SLOW = {**LONG, "training": {**LONG["training"], "local_steps": 250}}
TRAINED = ["budget.leased", "data.opened", "data.closed", "budget.spent", "metrics.sent", "update.sent"]
EVALUATED = ["round.released", "model.accepted", "data.opened", "data.closed", "metrics.sent", "evaluation.sent"]
RELEASED = ["round.opened", "round.released", "model.released", "evaluation.released"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("federation"), SITES) as made:
        yield made


@pytest.fixture(scope="module")
def released(running: Federation) -> Federation:
    """The federation once it has released a model, whichever test comes first."""
    job = running.submit(running.plan(SITES, rounds=1))
    assert running.wait_for(job, "completed", "failed")["state"] == "completed"
    settled(running, job, action="job.completed")
    return running


def entries(running: Federation, party: str, job: str) -> list[dict[str, Any]]:
    """Return what a party's log holds of a job: entries that name it, and its plan's checks."""
    found = events_in(running.home(party) / "audit")
    plans = {event["plan"] for event in found if event.get("job") == job and "plan" in event}
    return [
        event
        for event in found
        if event.get("job") == job or (event["action"] == "job.validated" and event["plan"] in plans)
    ]


def said(event: dict[str, Any]) -> str:
    """Return an entry as its action, with what was decided unless it was allowed."""
    return event["action"] if event["decision"] == "allowed" else f"{event['action']} {event['decision']}"


def at_site(running: Federation, site: str, job: str) -> list[str]:
    """Return a site's sequence; when a trainer has loaded its libraries is nobody's order, so that is counted apart."""
    found = [said(event) for event in entries(running, site, job)]
    return [one for one in found if one != "job.preflight"]


def at_coordinator(running: Federation, job: str) -> dict[str | None, list[str]]:
    """Return the coordinator's sequences: about each site, and under None about none."""
    found: dict[str | None, list[str]] = {}
    for event in entries(running, "coordinator", job):
        found.setdefault(event.get("site"), []).append(said(event))
    return found


def settled(running: Federation, job: str, *, action: str = "budget.released") -> None:
    """Return once both sites have recorded the end of a job."""
    for site in SITES:
        what = f"{action} of {job} at {site}"
        wait_until(lambda site=site: action in at_site(running, site, job), timeout_s=60, what=what)


def trainer_of(running: Federation, site: str, job: str) -> int:
    """Return the process that reads the site's data for a job."""
    wait_until(lambda: "data.opened" in at_site(running, site, job), timeout_s=90, what=f"{site} trains")
    (found,) = running.trainer_pids(site)[-1:]
    return found


def test_a_job_that_completes_is_told_alike_by_all_three(running: Federation, tmp_path: Path) -> None:
    job = running.submit(running.plan(SITES, rounds=2))
    assert running.wait_for(job, "completed", "failed")["state"] == "completed"
    settled(running, job)
    taken = ["job.offered", "job.validated", "budget.reserved", "job.accepted", "job.started"]
    rounds = 2 * ["round.opened", *TRAINED, *EVALUATED]
    for site in SITES:
        assert at_site(running, site, job) == [*taken, *rounds, "job.completed", "budget.released"]
    running.job("result", job, "--out", str(tmp_path / "result"))
    told = at_coordinator(running, job)
    exported = told[None].count("artifact.exported")
    assert exported >= 1
    assert told == {
        None: [
            *("job.validated", "job.submitted", "job.started", *RELEASED, *RELEASED, "job.completed"),
            *["artifact.exported"] * exported,
        ],
        **{site: ["job.offered", "job.accepted", "update.received", "update.received"] for site in SITES},
    }


def test_a_job_that_no_rule_allows_is_refused_at_each_site_under_the_same_code(running: Federation) -> None:
    job = running.submit(running.plan(SITES, purpose={"code": "DUO:0000042", "text": "anything at all"}))
    assert running.wait_for(job, "failed", "completed")["state"] == "failed"
    settled(running, job, action="job.refused refused")
    for site in SITES:
        assert at_site(running, site, job) == ["job.offered", "job.validated refused", "job.refused refused"]
    # The second answer may come when the first has ended the job: it is recorded all the same.
    wait_until(
        lambda: all(len(at_coordinator(running, job)[site]) == 2 for site in SITES), timeout_s=30, what="both answers"
    )
    assert at_coordinator(running, job) == {
        None: ["job.validated", "job.submitted", "job.failed failed"],
        **{site: ["job.offered", "job.refused refused"] for site in SITES},
    }
    codes = {
        event["code"]
        for party in (*SITES, "coordinator")
        for event in entries(running, party, job)
        if event["action"] == "job.refused"
    }
    assert len(codes) == 1


def test_a_killed_trainer_leaves_an_abandoned_reading_and_a_late_site(running: Federation) -> None:
    job = running.submit(running.plan(SITES, quorum=1, **SLOW))
    os.kill(trainer_of(running, "oslo", job), signal.SIGKILL)
    assert running.wait_for(job, "completed", "failed")["state"] == "completed"
    settled(running, job, action="job.completed")
    taken = ["job.offered", "job.validated", "budget.charged", "job.accepted", "job.started", "round.opened"]
    taken.remove("budget.charged")  # of the data set, not of the job
    assert at_site(running, "oslo", job) == [
        *(*taken, "data.opened", "data.abandoned failed", "metrics.sent"),
        *(*EVALUATED, "job.completed"),
    ]
    told = at_coordinator(running, job)
    assert told["oslo"] == ["job.offered", "job.accepted", "round.site_late failed"]
    assert told["mercy"] == ["job.offered", "job.accepted", "update.received"]
    (late,) = [event for event in entries(running, "coordinator", job) if event["action"] == "round.site_late"]
    (cut,) = [event for event in entries(running, "oslo", job) if event["action"] == "data.abandoned"]
    assert (late["code"], cut["code"]) == ("CFD-R50", "CFD-R50")


def test_a_site_that_stands_still_is_late_in_the_coordinators_log(running: Federation) -> None:
    plan = running.plan(SITES, quorum=1, evaluate=None, deadlines={"training_s": 20, "phase_s": 20}, **SLOW)
    job = running.submit(plan)
    trainer_of(running, "oslo", job)
    group = running.daemons["oslo"].process.pid
    os.killpg(group, signal.SIGSTOP)
    try:
        assert running.wait_for(job, "completed", "failed")["state"] == "completed"
        told = at_coordinator(running, job)
    finally:
        os.killpg(group, signal.SIGCONT)
    assert told["oslo"] == ["job.offered", "job.accepted", "round.site_late failed"]
    assert told["mercy"] == ["job.offered", "job.accepted", "update.received"]
    settled(running, job, action="job.completed")
    seen = at_site(running, "oslo", job)
    assert seen[:6] == ["job.offered", "job.validated", "job.accepted", "job.started", "round.opened", "data.opened"]
    (end,) = [one for one in seen if one.startswith(("data.closed", "data.abandoned"))]
    assert seen.index(end) == 6
    # It may say that it sends what it had, since nobody told it yet that the round is over; nobody takes it.
    assert "update.received" not in at_coordinator(running, job)["oslo"]


def test_a_cancelled_job_ends_its_readings_at_once_and_releases_nothing(running: Federation) -> None:
    job = running.submit(running.plan(SITES, **LONG))
    for site in SITES:
        trainer_of(running, site, job)
    running.job("cancel", job, "--reason", "nobody wants it")
    settled(running, job, action="job.cancelled")
    taken = ["job.offered", "job.validated", "job.accepted", "job.started", "round.opened", "data.opened"]
    for site in SITES:
        assert sorted(at_site(running, site, job)[6:]) == ["data.abandoned", "job.cancelled"]
        assert at_site(running, site, job)[:6] == taken
    wait_until(
        lambda: "round.abandoned failed" in at_coordinator(running, job)[None], timeout_s=30, what="the round's end"
    )
    assert at_coordinator(running, job) == {
        None: [
            *("job.validated", "job.submitted", "job.started", "round.opened", "job.cancelled"),
            "round.abandoned failed",
        ],
        **{site: ["job.offered", "job.accepted"] for site in SITES},
    }
    (cancelled,) = [event for event in entries(running, "coordinator", job) if event["action"] == "job.cancelled"]
    assert cancelled["actor"]["kind"] == "person"
    running.job("cancel", job, status=1)
    assert said(entries(running, "coordinator", job)[-1]) == "job.cancelled refused"


def test_nothing_personal_and_no_count_stands_in_any_leaf_and_all_logs_verify(released: Federation) -> None:
    running = released
    for party in ("coordinator", *SITES):
        leaves = str(events_in(running.home(party) / "audit"))
        for hidden in ("alice", "nobody wants it", "anything at all", "127.0.0.1", str(running.folder), ".csv"):
            assert hidden not in leaves, (party, hidden)
        confide("audit", "verify", str(running.home(party)), "--complete")


@pytest.mark.parametrize("party", ["coordinator", "mercy"])
def test_a_real_log_is_flawless_as_a_home_a_copy_a_bundle_and_with_nothing_but_cryptography(
    released: Federation, tmp_path: Path, party: str
) -> None:
    home, policy = released.home(party), str(released.home(party) / "trust" / f"{party}.policy")
    index = [event["action"] for event in events_in(home / "audit")].index("round.released")
    copy, bundle, proof = tmp_path / "copy", tmp_path / "all", tmp_path / "released.tlog-proof"
    confide("audit", "export", str(home), "--complete", "--out", str(bundle))
    confide("audit", "prove", str(home), str(index), "--out", str(proof))
    shutil.copytree(home / "audit", copy, ignore=shutil.ignore_patterns("*.sock"))
    for log in (home, copy, bundle):
        shown = confide("audit", "verify", str(log), "--complete", "--trust", policy, "--format", "json")
        found = json.loads(shown)
        assert (found["verdict"], found["flaws"]) == ("verified", []), log
    # Another party's keys are enough for a proof, and others have seen it.
    others = released.home("mercy" if party == "coordinator" else "coordinator") / "trust" / f"{party}.policy"
    checked = json.loads(confide("audit", "check", str(proof), "--trust", str(others), "--format", "json"))
    assert (checked["index"], len(checked["witnesses"])) == (index, 2)
    python = bare_python(tmp_path / "bare")
    command = [python, str(bundle / "verify.py"), "--trust", policy, "--complete"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env={})
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["verified"]), done.stdout + done.stderr
    assert subprocess.run([python, "-c", "import pydantic"], capture_output=True, timeout=60).returncode == 1


def bare_python(folder: Path) -> Path:
    """Return the interpreter of a new environment that has `cryptography`, what that needs, and nothing else."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in ("cryptography", "cffi", "_cffi_backend", "pycparser"):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            origin = Path(found.origin)
            source = origin.parent if found.submodule_search_locations else origin
            (site / source.name).symlink_to(source)
    return folder / "bin" / "python"
