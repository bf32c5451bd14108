"""The site's daemon as a process, with a coordinator played by the test: offers, rounds, ends, stops, restarts."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.edge.clock import SystemClock
from federation.messages import (
    Answer,
    Decision,
    JobAction,
    JobStatus,
    Outcome,
    Phase,
    PhaseReply,
    PreviewReply,
    PreviewRequest,
)
from federation.plan import canonical_bytes
from site_client.budget.store import BudgetStore
from tests.support import audit_logs, site_data
from tests.support.site_rig import PlayedJob, SiteRig, until

pytestmark = pytest.mark.process


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SiteRig]:
    made = SiteRig(tmp_path)
    yield made
    made.close()


def charged_steps(rig: SiteRig, job: str) -> int:
    store = BudgetStore.open(rig.home.ledger, clock=SystemClock())
    try:
        return store.job(job).steps_charged
    finally:
        store.close()


def trained_steps(rig: SiteRig) -> int:
    path = rig.home.path / "trained.txt"
    return sum(int(line.split()[2]) for line in path.read_text().splitlines()) if path.exists() else 0


def test_a_job_from_offer_to_end(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    answer = job.accepted()
    assert answer.units_declared == 64
    assert answer.epsilon is not None
    assert 0 < float.fromhex(answer.epsilon) <= 4.0
    for number in range(3):
        job.ask(number)
        reply = job.reply()
        assert reply.outcome is Outcome.DONE, reply
        assert reply.update is not None
        assert reply.update in rig.coordinator.delivered
        assert reply.steps == 4
        job.release(number, reply.update)
        job.ask(number, phase=Phase.EVALUATE)
        evaluated = job.reply()
        assert evaluated.evaluation is not None
    rig.coordinator.control(job.job, JobAction.COMPLETE)
    until(lambda: ("job.completed", "allowed") in rig.actions("job.completed"), what="the end is recorded")
    until(lambda: ("budget.released", "allowed") in rig.actions("budget.released"), what="the rest goes back")
    assert charged_steps(rig, job.job) == 12
    until(lambda: not (rig.home.jobs / job.job).exists(), what="the job's folder is gone")
    assert rig.stop() == 0
    order = [action for action, _ in rig.actions() if action not in ("model.accepted", "job.preflight")]
    first = order.index("budget.leased")
    assert order[first : first + 6] == [
        *("budget.leased", "data.opened", "data.closed", "budget.spent", "metrics.sent", "update.sent"),
    ]
    assert ("model.accepted", "allowed") in rig.actions("model.accepted")
    assert "verified" in rig.confide("audit", "verify", str(rig.home.path)).replace("--home", "")


def test_small_blobs_come_with_the_request_and_foreign_bytes_beside_them_are_nothing(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    reference, _ = job.releases[-1]
    record = rig.coordinator.blobs.path(reference).read_bytes()
    rig.coordinator.withheld.add(reference.root)
    job.ask(0, attached=("00" * len(record), record.hex()))
    assert job.reply().outcome is Outcome.DONE


def test_the_same_request_gets_the_same_reply_and_nothing_is_trained_twice(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    job.ask(0)
    first = job.reply()
    job.ask(0)
    again = job.reply()
    assert again.model_copy(update={"message_id": first.message_id}) == first
    assert trained_steps(rig) == 4


def test_a_round_tried_again_gets_the_update_that_was_made_for_it_and_nothing_is_read_or_charged(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    job.ask(0)
    first = job.reply()
    job.ask(0, 1)
    again = job.reply()
    assert (again.outcome, again.update, again.steps) == (Outcome.DONE, first.update, 0)
    assert again.receipt != first.receipt  # each leaving has its own entry
    assert (trained_steps(rig), charged_steps(rig, job.job)) == (4, 4)
    assert len(rig.actions("update.sent")) == 2
    assert len(rig.actions("data.opened")) == 2  # at registration, and in the first attempt
    assert again.update is not None
    job.release(0, again.update)
    for number in (1, 2):  # what was reserved still covers every round
        job.ask(number)
        reply = job.reply()
        assert (reply.outcome, reply.steps) == (Outcome.DONE, 4)
        assert reply.update is not None
        job.release(number, reply.update)


def test_the_same_offer_gets_the_same_answer_and_another_plan_is_refused(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    first = job.accepted()
    rig.coordinator.offer(job.plan, job.job)
    assert rig.coordinator.next(Answer).decision is first.decision
    rig.coordinator.offer(site_data.plan(**{"lr: 0.5": "lr: 0.25"}), job.job)
    other = rig.coordinator.next(Answer)
    assert (other.decision, other.reasons[0].code) == (Decision.REFUSED, "CFD-R40")


def test_a_preview_promises_nothing(rig: SiteRig) -> None:
    rig.start()
    plan = site_data.plan()
    rig.coordinator.send(
        PreviewRequest(
            message_id=rig.coordinator.server.message_ids.next(),
            plan=canonical_bytes(plan).hex(),
            contract=site_data.contract_bytes().hex(),
            submitter="alice",
        )
    )
    reply = rig.coordinator.next(PreviewReply)
    assert reply.decision is Decision.ACCEPTED
    assert reply.steps == 12
    assert reply.update_bytes == 12
    assert not rig.actions("job.offered", "budget.reserved", "job.accepted")


def test_a_plan_is_held_against_what_the_machine_has(rig: SiteRig) -> None:
    rig.configure(accelerators=0)
    rig.start()

    def asked(resources: str) -> tuple[Decision, list[tuple[str, str]]]:
        plan = site_data.plan(**{"deadlines:": f"resources: {resources}\ndeadlines:"})
        ids = rig.coordinator.server.message_ids
        documents = {"plan": canonical_bytes(plan).hex(), "contract": site_data.contract_bytes().hex()}
        rig.coordinator.send(PreviewRequest(message_id=ids.next(), submitter="alice", **documents))
        reply = rig.coordinator.next(PreviewReply)
        return reply.decision, [(reason.code, reason.text) for reason in reply.reasons]

    no_accelerator = ("CFD-S12", "no accelerator here, it trains on the CPU")
    assert asked("{accelerators: 0}") == (Decision.ACCEPTED, [])
    assert asked("{accelerators: 1}") == (Decision.ACCEPTED, [no_accelerator])
    decision, reasons = asked("{accelerators: 2, memory_gib: 16384}")
    assert decision is Decision.REFUSED
    assert reasons[0] == ("CFD-S06", "accelerators 2, this site has 0")
    assert reasons[1][0] == "CFD-S06"
    assert reasons[1][1].startswith("memory 16384 GiB, this site has ")
    rig.coordinator.offer(site_data.plan(**{"deadlines:": "resources: {accelerators: 2}\ndeadlines:"}))
    answer = rig.coordinator.next(Answer)
    assert (answer.decision, answer.reasons[0].code) == (Decision.REFUSED, "CFD-S06")


def test_a_job_beyond_the_budget_is_refused_with_code_and_reference_only(rig: SiteRig) -> None:
    rig.start()
    first = PlayedJob(rig.coordinator, site_data.plan(**{"epsilon: 4.0": "epsilon: 7.0"}))
    first.accepted()
    rig.coordinator.offer(site_data.plan(**{"epsilon: 4.0": "epsilon: 7.5"}), "heart-risk-222222")
    answer = rig.coordinator.next(Answer)
    assert answer.decision is Decision.REFUSED
    assert answer.reasons[0].code.startswith("CFD-B")
    assert not any(letter.isdigit() for letter in answer.reasons[0].text), answer.reasons[0].text
    assert ("budget.exhausted", "refused") in rig.actions("budget.exhausted")
    assert ("job.refused", "refused") in rig.actions("job.refused")


def test_a_parked_job_is_approved_by_a_person_and_then_runs(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan(**{"DUO:0000007": "DUO:0000042"}))
    rig.coordinator.offer(job.plan, job.job)
    assert rig.coordinator.next(Answer).decision is Decision.PARKED
    waiting = json.loads(rig.confide("site", "approvals", "list", "--format", "json"))["rows"]
    assert [item["job"] for item in waiting] == [job.job]
    shown = rig.confide("site", "approvals", "show", waiting[0]["id"])
    assert "DUO:0000042" in shown
    rig.confide("site", "approvals", "approve", waiting[0]["id"], "--reason", "ethics board said yes")
    assert rig.coordinator.next(Answer).decision is Decision.ACCEPTED
    assert rig.actions("job.approved", "job.accepted") == [("job.approved", "allowed"), ("job.accepted", "allowed")]
    job.ask(0)
    assert job.reply().outcome is Outcome.DONE
    opened = [entry for entry in rig.entries() if entry["action"] == "data.opened" and "job" in entry]
    assert opened[-1]["approval"]["id"] == waiting[0]["id"]
    rig.confide("site", "approvals", "approve", waiting[0]["id"], "--reason", "again", status=2)


def test_a_denied_job_is_refused_and_the_reason_stays_here(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan(**{"DUO:0000007": "DUO:0000042"}))
    rig.coordinator.offer(job.plan, job.job)
    rig.coordinator.next(Answer)
    (waiting,) = json.loads(rig.confide("site", "approvals", "list", "--format", "json"))["rows"]
    rig.confide("site", "approvals", "deny", waiting["id"], "--reason", "Professor Miller objects")
    answer = rig.coordinator.next(Answer)
    assert (answer.decision, answer.reasons[0].code) == (Decision.REFUSED, "CFD-R69")
    assert b"Miller" not in audit_logs.bytes_of(rig.home.audit)


def test_an_operators_pause_holds_over_a_restart(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    assert "yes" in rig.confide("site", "pause")
    job.ask(0)
    assert (refused := job.reply()).reason is not None
    assert refused.reason.code == "CFD-R45"
    assert rig.stop() == 0
    rig.start()
    job.ask(0, 1)
    assert (refused := job.reply()).reason is not None
    assert refused.reason.code == "CFD-R45"
    rig.confide("site", "resume")
    job.ask(0, 2)
    assert job.reply().outcome is Outcome.DONE
    assert rig.actions("job.paused", "job.resumed") == [("job.paused", "allowed"), ("job.resumed", "allowed")]


def test_an_abort_ends_the_job_here_and_tells_the_coordinator(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    job.ask(0)
    job.reply()
    rig.confide("site", "abort", job.job)
    status = rig.coordinator.next(JobStatus)
    assert status.reason.code == "CFD-R49"
    job.release(0)
    job.ask(1)
    refused = job.reply()
    assert refused.reason is not None
    assert refused.reason.code == "CFD-R44"
    assert ("budget.released", "allowed") in rig.actions("budget.released")
    rig.confide("site", "abort", job.job, status=1)


def test_sigterm_lets_the_phase_end_and_exits_with_0(tmp_path: Path) -> None:
    rig = SiteRig(tmp_path, grace_s=30)
    try:
        rig.start()
        job = PlayedJob(rig.coordinator, site_data.plan())
        job.accepted()
        job.ask(0)
        assert rig.stop() == 0
        assert "service.stopped" in rig.tail()
        rig.start()
        assert job.reply().outcome in (Outcome.DONE, Outcome.FAILED)
    finally:
        rig.close()


def test_a_second_signal_ends_at_once_and_what_was_charged_is_recorded(tmp_path: Path) -> None:
    rig = SiteRig(tmp_path, grace_s=60)
    try:
        rig.start(light=False)
        plan = site_data.plan(**{"local_steps: 4": "local_steps: 4000", "rounds: 3": "rounds: 1"})
        job = PlayedJob(rig.coordinator, plan)
        job.accepted()
        job.ask(0, deadline_s=120)
        until(lambda: charged_steps(rig, job.job) > 0, what="training began")
        assert rig.process is not None
        rig.process.send_signal(signal.SIGTERM)
        until(lambda: "service.stopping" in rig.tail(), what="the first signal is said")
        assert rig.stop(within_s=30) == 0  # half the grace, and the phase has longer
        assert ("data.abandoned", "allowed") in rig.actions("data.abandoned")
        assert rig.actions("budget.spent")
        assert [entry["reason"] for entry in rig.entries() if entry["action"] == "log.closed"][-1] == "signal"
        rig.start(light=False)
        failed = job.reply()
        assert failed.outcome is Outcome.FAILED
        assert failed.reason is not None
        assert failed.reason.code in ("CFD-R53", "CFD-R56")
    finally:
        rig.close()


def test_a_trainer_killed_in_a_round_fails_the_phase_at_once_and_the_next_round_has_a_new_one(rig: SiteRig) -> None:
    rig.start(light=False)
    job = PlayedJob(rig.coordinator, site_data.plan(**{"local_steps: 4": "local_steps: 400"}))
    job.accepted()
    job.ask(0, deadline_s=120)
    until(lambda: charged_steps(rig, job.job) > 0, what="training began")
    (trainer,) = children_of(rig)
    began = time.monotonic()
    os.kill(trainer, signal.SIGKILL)
    failed = job.reply()
    assert time.monotonic() - began < 60  # long before the deadline
    assert (failed.outcome, failed.reason and failed.reason.code) == (Outcome.FAILED, "CFD-R50")
    assert failed.reference
    assert ("data.abandoned", "failed") in rig.actions("data.abandoned")
    charged = charged_steps(rig, job.job)
    job.ask(0, 1, deadline_s=120)
    late = job.reply()
    assert late.reason is None or late.reason.code == "CFD-R55"
    assert charged_steps(rig, job.job) >= charged


def test_a_job_rests_after_its_trainer_died_and_longer_after_the_next(rig: SiteRig) -> None:
    rig.configure(rest_first_s=1.0, rest_bound_s=2.0)
    rig.start(light=False)
    job = PlayedJob(rig.coordinator, site_data.plan(**{"local_steps: 4": "local_steps: 100000"}))
    job.accepted()
    for attempt, rest_s in enumerate((0.0, 1.0, 2.0)):
        began, charged = time.monotonic(), charged_steps(rig, job.job)
        job.ask(0, attempt, deadline_s=120)
        # Not before it trains: a trainer that was only warm is replaced, and the phase goes on.
        until(lambda: charged_steps(rig, job.job) > charged, what="training began")  # noqa: B023
        (trainer,) = children_of(rig)
        assert time.monotonic() - began >= rest_s - 0.5  # counted from the death, which came a moment earlier
        os.kill(trainer, signal.SIGKILL)
        failed = job.reply()
        assert (failed.outcome, failed.reason and failed.reason.code) == (Outcome.FAILED, "CFD-R50")
    assert rig.tail().count("phase.rests") == 2


def children_of(rig: SiteRig) -> list[int]:
    assert rig.process is not None
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            if parent == rig.process.pid and b"site_client.trainer" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_no_trainer_outlives_a_killed_daemon(rig: SiteRig) -> None:
    rig.start(light=False)
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    until(lambda: children_of(rig), what="the trainer is warm")
    (trainer,) = children_of(rig)
    assert rig.process is not None
    rig.process.kill()
    rig.process.wait()
    until(lambda: not Path(f"/proc/{trainer}").exists() or is_zombie(trainer), what="the trainer is gone")


def is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_the_daemon_loads_neither_torch_nor_flwr(rig: SiteRig) -> None:
    rig.start(light=False)
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    job.ask(0)
    assert job.reply(within_s=120).outcome is Outcome.DONE
    assert rig.process is not None
    maps = Path(f"/proc/{rig.process.pid}/maps").read_text()
    assert "torch" not in maps
    assert "flwr" not in maps


def test_a_deadline_ends_the_phase_and_says_so(rig: SiteRig) -> None:
    rig.start(light=False)
    plan = site_data.plan(**{"local_steps: 4": "local_steps: 100000", "rounds: 3": "rounds: 1"})
    job = PlayedJob(rig.coordinator, plan)
    job.accepted()
    until(lambda: "device" in status_of(rig, job.job) and status_of(rig, job.job)["device"] == "cpu", within_s=120)
    job.ask(0, deadline_s=2)
    failed = job.reply()
    assert failed.reason is not None
    assert failed.reason.code == "CFD-R47"


def status_of(rig: SiteRig, job: str) -> dict[str, object]:
    found = json.loads(rig.confide("site", "status", "--format", "json"))
    return next((item for item in found["jobs"] if item["job"] == job), {})


def test_sighup_takes_up_a_new_policy_and_records_it(rig: SiteRig) -> None:
    rig.start()
    rig.home.policy_file.write_text(rig.home.policy_file.read_text().replace("DUO:0000007", "DUO:0000006"))
    assert rig.process is not None
    rig.process.send_signal(signal.SIGHUP)
    until(lambda: "policy.reloaded" in rig.tail(), what="the policy is read again")
    rig.coordinator.offer(site_data.plan())
    answer = rig.coordinator.next(Answer)
    assert answer.decision is Decision.REFUSED
    assert len(json.loads(rig.confide("site", "policy", "history", "--format", "json"))["rows"]) == 2
    assert rig.actions("policy.changed") == [("policy.changed", "allowed")] * 2


def test_a_second_daemon_on_the_same_home_is_refused(rig: SiteRig) -> None:
    rig.start()
    assert "CFD-G03" in failing(rig, "site", "run")


def failing(rig: SiteRig, *arguments: str) -> str:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "confide_cli", *arguments, "--home", str(rig.home.path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 78
    return done.stderr


def test_a_new_charter_epoch_is_taken_over_while_running(rig: SiteRig) -> None:
    rig.start()
    rig.coordinator.notify_charter()
    until((rig.home.charter_folder / "2.signature").exists, what="the epoch is kept")
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()


def test_a_reply_that_the_coordinator_never_acknowledged_is_sent_again_after_a_restart(rig: SiteRig) -> None:
    rig.start()
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()

    def lost(body: object) -> None:
        if isinstance(body, PhaseReply):
            raise RuntimeError("the coordinator's disk is full")

    rig.coordinator.before_taking = lost
    job.ask(0)
    until(lambda: "phase.ended" in rig.tail(), what="the phase ended")
    assert rig.process is not None
    rig.process.kill()
    rig.process.wait()
    rig.coordinator.before_taking = lambda _body: None
    rig.start()
    assert job.reply().outcome is Outcome.DONE
    assert trained_steps(rig) == 4


def test_cancelling_in_the_middle_of_a_phase_settles_and_answers_nothing_more(rig: SiteRig) -> None:
    rig.start(light=False)
    plan = site_data.plan(**{"local_steps: 4": "local_steps: 4000", "rounds: 3": "rounds: 1"})
    job = PlayedJob(rig.coordinator, plan)
    job.accepted()
    job.ask(0, deadline_s=120)
    until(lambda: charged_steps(rig, job.job) > 0, what="training began")
    rig.coordinator.control(job.job, JobAction.CANCEL)
    until(lambda: ("budget.released", "allowed") in rig.actions("budget.released"), what="the rest goes back")
    assert ("job.cancelled", "allowed") in rig.actions("job.cancelled")
    assert ("data.abandoned", "allowed") in rig.actions("data.abandoned")
    assert not children_of(rig)
    rig.coordinator.nothing_more()
