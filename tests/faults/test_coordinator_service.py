"""The coordinator's service over real TLS, a real database and a real log, with sites in threads."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.service import open_service
from federation import plan
from federation.edge.clock import SystemClock
from federation.edge.logs import open_log
from federation.errors import ConfideError, ConfigurationWrong, InvalidInput, NotAuthenticated, OutOfOrder, Unreachable
from federation.identity import IdentityKey, check_signature
from federation.messages import Decision, Phase, PhaseRequest, Release, Versions, decode_body
from tests.faults.link_rig import until
from tests.support.coordinator_home import CONTRACT, KNOWN_BYTES, FakeSite, House, plan_text

pytestmark = [pytest.mark.enable_socket, pytest.mark.timeout(120)]
SITES = ("mercy", "north", "st-anna")
# No site that is there is ever given up, however slow the machine; a wait for one that never comes would be seen.
JOBS = "jobs: {offer_grace_s: 600, offer_deadline_s: 1200, preview_s: 600, reconnect_grace_s: 600}\n"
# For tests of jobs that start with a quorum while another site is missing.
SHORT_GRACE = JOBS.replace("offer_grace_s: 600", "offer_grace_s: 0.3")
Join = Callable[..., FakeSite]


@pytest.fixture
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(tmp_path / "coordinator", more=getattr(request, "param", JOBS))
    made.add(*SITES)
    made.start()
    yield made
    made.close()


@pytest.fixture
def join(house: House, tmp_path: Path) -> Iterator[Join]:
    """Start sites; the test goes on once they are connected."""
    started: list[FakeSite] = []

    def make(name: str, **changes: object) -> FakeSite:
        site = FakeSite(house, name, tmp_path / name, **changes)  # type: ignore[arg-type]
        started.append(site)
        site.client.start()
        until(site.client.connected, what=f"{name} connected")
        return site

    yield make
    for site in started:
        site.hold.set()
        site.client.stop()


def state(house: House, job: str) -> str:
    assert house.service is not None
    return house.service.show(job).state


def ends(house: House, job: str, wanted: str, *, within_s: float = 90) -> None:
    until(lambda: state(house, job) in ("completed", "failed", "cancelled"), within_s=within_s, what="an end")
    assert house.service is not None
    shown = house.service.show(job)
    assert shown.state == wanted, shown


def test_a_job_runs_to_its_end_and_every_step_is_recorded(house: House, join: Join) -> None:
    sites = [join(name, value=float(number)) for number, name in enumerate(SITES)]
    job = house.submit(plan_text(SITES))
    ends(house, job, "completed")
    service = house.service
    assert service is not None
    shown = service.show(job)
    assert [found.survivors for found in shown.rounds_done] == [SITES] * 3
    assert shown.metrics == {"accuracy": 1.0, "auc": 1.0, "loss": 1.5 / 21}
    assert [found.epsilon for found in shown.sites] == [2.0] * 3
    until(lambda: all(site.controls() == ["complete"] for site in sites), what="the end at every site")
    names = [event.name for event in service.events(job)]
    assert names.count("round.done") == 3
    assert names[0] == "job.submitted"
    assert names[-1] == "job.completed"
    actions = house.audit_actions()
    for action, count in {
        "job.submitted": 1,
        "job.offered": 3,
        "job.accepted": 3,
        "job.started": 1,
        "round.opened": 3,
        "update.received": 9,
        "round.released": 3,
        "model.released": 3,
        "evaluation.released": 3,
        "job.completed": 1,
    }.items():
        assert actions.count(action) == count, action
    assert actions.index("job.submitted") < actions.index("job.offered") < actions.index("job.started")


def test_releases_are_signed_by_the_coordinator_and_their_files_are_there(house: House, join: Join) -> None:
    for name in SITES:
        join(name)
    job = house.submit(plan_text(SITES))
    ends(house, job, "completed")
    assert house.service is not None
    result = house.service.result_files(job)
    assert len(result.releases) == 4
    for one in result.releases:
        record, signature = bytes.fromhex(one["record"]), bytes.fromhex(one["signature"])
        check_signature(house.service.identity_public, "release", record, signature)
    last = decode_body("release", bytes.fromhex(result.releases[-1]["record"]))
    assert isinstance(last, Release)
    assert last.model == result.model_digest
    assert Path(result.files[0].path).stat().st_size == result.files[0].size_bytes
    assert house.service.result_files(job, 0).round == 0


def test_two_jobs_run_at_once_in_one_process(house: House, join: Join) -> None:
    house.add("west")
    for name in (*SITES, "west"):
        join(name)
    first = house.submit(plan_text(("mercy", "north")))
    second = house.submit(plan_text(("st-anna", "west")))
    ends(house, first, "completed")
    ends(house, second, "completed")


def test_a_site_works_on_one_job_at_a_time_and_the_next_one_says_why_it_waits(house: House, join: Join) -> None:
    sites = [join(name) for name in SITES]
    sites[0].hold.clear()
    first = house.submit(plan_text(SITES))
    until(lambda: state(house, first) == "running")
    second = house.submit(plan_text(SITES))
    assert house.service is not None
    assert state(house, second) == "queued"
    assert house.service.why(second).startswith("place 1 of 1: no free place at mercy (")
    sites[0].hold.set()
    ends(house, first, "completed")
    ends(house, second, "completed")


def test_a_restart_in_the_middle_of_a_round_asks_nobody_again_who_answered(house: House, join: Join) -> None:
    sites = [join(name) for name in SITES]
    slow = sites[2]
    slow.hold.clear()
    job = house.submit(plan_text(SITES))
    assert house.service is not None
    until(
        lambda: (
            house.service.show(job).rounds_done[:1]
            and house.service.show(job).rounds_done[0].waiting_for == ("st-anna",)
        )
    )  # type: ignore[union-attr]
    house.stop()
    house.start()
    slow.hold.set()
    ends(house, job, "completed")
    shown = house.service.show(job)
    assert [found.survivors for found in shown.rounds_done] == [SITES] * 3
    assert [found.attempt for found in shown.rounds_done] == [0, 0, 0]
    for site in sites:
        assert site.trained == [(job, number, 0) for number in range(3)]
    first = [body for body in sites[0].received if isinstance(body, PhaseRequest) and body.phase is Phase.TRAIN]
    assert len([body for body in first if body.round == 0]) == 1


def test_a_bad_update_is_named_and_the_round_goes_on(house: House, join: Join) -> None:
    sites = [join(name) for name in SITES]
    bad = {"output.weight": np.zeros((3, 8), "<f4"), "output.bias": np.zeros(1, "<f4")}
    sites[1].update = lambda request: bad if request.round == 1 else sites[1].constant(1.0)
    job = house.submit(plan_text(SITES))
    ends(house, job, "completed")
    assert house.service is not None
    rounds = house.service.show(job).rounds_done
    assert rounds[1].late == {"north": "tensor output.weight is (3, 8), expected (1, 2)"}
    assert [found.survivors for found in rounds] == [SITES, ("mercy", "st-anna"), SITES]
    refused = [event for event in house.audit_events() if event["action"] == "update.received" and event.get("code")]
    assert [(event["site"], event["code"]) for event in refused] == [("north", "CFD-R03")]


def test_an_answer_after_the_deadline_is_refused_at_the_site_too(house: House, join: Join) -> None:
    mercy, *_ = (join(name) for name in SITES)
    mercy.hold.clear()
    job = house.submit(plan_text(SITES, rounds="1", evaluate="null"))
    service = house.service
    assert service is not None
    until(lambda: [found.waiting_for for found in service.show(job).rounds_done] == [("mercy",)])
    # Stored is not yet handed to the round; an answer that is handed over counts, however late it is looked at.
    until(lambda: not any(service.awaits(site) for site in SITES[1:]))
    house.clock.forward(121)
    ends(house, job, "completed")
    assert service.show(job).rounds_done[0].late == {"mercy": "training, no answer"}
    mercy.hold.set()
    until(lambda: mercy.refused)
    assert mercy.refused[0].code in ("CFD-R07", "CFD-L12", "CFD-L19")
    late = [event for event in house.audit_events() if event["action"] == "round.site_late"]
    assert [(event["site"], event["code"]) for event in late] == [("mercy", "CFD-R08")]


@pytest.mark.parametrize("house", [SHORT_GRACE], indirect=True, ids=["short grace"])
def test_a_job_with_a_missing_site_waits_visibly_and_starts_with_its_quorum(house: House, join: Join) -> None:
    join("mercy")
    job = house.submit(plan_text(SITES, rounds="1"))
    assert house.service is not None
    until(lambda: "1 of 2 (missing: north, st-anna)" in house.service.show(job).waiting)  # type: ignore[union-attr]
    join("north")
    ends(house, job, "completed")
    late = join("st-anna")
    until(lambda: late.controls() == ["complete"])


def test_a_job_whose_sites_never_come_ends_cleanly_and_names_them(house: House, join: Join) -> None:
    join("mercy")
    assert house.service is not None
    job = house.submit(plan_text(SITES, quorum=3))
    until(lambda: house.service.show(job).sites[0].state == "accepted")  # type: ignore[union-attr]
    house.stop()
    house.clock.forward(1200)
    house.start()
    ends(house, job, "failed")
    assert house.service.show(job).reason == "CFD-J16: 1 of 3 sites accepted; no answer: north, st-anna"


def test_refusals_end_a_job_at_once_with_the_sites_reasons(house: House, join: Join) -> None:
    for name in SITES:
        join(name, decision=Decision.REFUSED)
    job = house.submit(plan_text(SITES))
    ends(house, job, "failed")
    assert house.service is not None
    shown = house.service.show(job)
    assert shown.reason.startswith("CFD-J06: ")
    # The job ends with the second refusal; a third one comes when nobody asks any more.
    assert [site.reasons for site in shown.sites].count(("CFD-S03: quorum 2, needed are 3",)) >= 2
    failed = [event for event in house.audit_events() if event["action"] == "job.failed"]
    assert failed[0]["code"] == "CFD-J06"


@pytest.mark.parametrize("house", [SHORT_GRACE], indirect=True, ids=["short grace"])
def test_a_parked_offer_that_a_person_approves_later_joins_the_running_job(house: House, join: Join) -> None:
    sites = [join(name) for name in SITES[:2]]
    parked = join("st-anna", decision=Decision.PARKED)
    sites[0].hold.clear()
    job = house.submit(plan_text(SITES))
    assert house.service is not None
    until(lambda: house.service.show(job).rounds_done)  # type: ignore[union-attr]
    parked.answer(job, Decision.ACCEPTED)
    until(lambda: house.service.show(job).sites[2].state == "accepted")  # type: ignore[union-attr]
    sites[0].hold.set()
    ends(house, job, "completed")
    assert [len(found.survivors) for found in house.service.show(job).rounds_done] == [2, 3, 3]


def test_cancelling_reaches_the_sites_and_nothing_more_is_released(house: House, join: Join) -> None:
    sites = [join(name) for name in SITES]
    sites[0].hold.clear()
    job = house.submit(plan_text(SITES))
    assert house.service is not None
    until(lambda: house.service.show(job).rounds_done)  # type: ignore[union-attr]
    shown = house.service.cancel(job, "alice", "the permit ended")
    assert (shown.state, shown.reason) == ("cancelled", "the permit ended")
    until(lambda: all(site.controls() == ["cancel"] for site in sites))
    until(lambda: house.service.show(job).rounds_done[0].state == "abandoned")  # type: ignore[union-attr]
    with pytest.raises(OutOfOrder):
        house.service.resume(job, "alice")
    cancelled = next(event for event in house.audit_events() if event["action"] == "job.cancelled")
    assert cancelled["actor"]["kind"] == "person"
    assert "alice" not in str(cancelled)


def test_a_pause_finishes_the_round_and_resuming_goes_on(house: House, join: Join) -> None:
    sites = [join(name) for name in SITES]
    sites[0].hold.clear()
    job = house.submit(plan_text(SITES))
    assert house.service is not None
    until(lambda: house.service.show(job).rounds_done)  # type: ignore[union-attr]
    house.service.pause(job, "alice")
    sites[0].hold.set()
    until(lambda: house.service.show(job).round == 1)  # type: ignore[union-attr]
    assert state(house, job) == "paused"
    house.service.resume(job, "alice")
    ends(house, job, "completed")
    assert [action for action in house.audit_actions() if action in ("job.paused", "job.resumed")] == [
        "job.paused",
        "job.resumed",
    ]


def test_retry_starts_from_the_model_of_the_round_before(house: House, join: Join) -> None:
    for name in SITES:
        join(name)
    first = house.submit(plan_text(SITES))
    ends(house, first, "completed")
    service = house.service
    assert service is not None
    resolved = service.resolve_retry(first, 2)
    assert resolved.plan.rounds == 1
    job, new = service.submit(
        resolved.data,
        submitter="alice",
        signature=plan.sign_plan(resolved.plan, house.alice),
        contract=resolved.contract,
    )
    assert new
    ends(house, job.job, "completed")
    shown = service.show(job.job)
    assert (shown.parent, shown.parent_round) == (first, 1)
    again = service.result_files(job.job)
    before = service.result_files(first, 2)
    # The same constant updates on the model after round 1: the same weights as round 2 of the first job.
    assert again.files[0].sha256 == before.files[0].sha256


def test_the_same_idempotency_key_gives_the_same_job(house: House, join: Join) -> None:
    join("north")  # with mercy a quorum of witnesses
    join("mercy")
    one = house.submit(plan_text(("mercy",), quorum=1), idempotency_key="k1")
    assert house.submit(plan_text(("mercy",), quorum=1), idempotency_key="k1") == one
    with pytest.raises(InvalidInput, match="another plan"):
        house.submit(plan_text(("mercy",), quorum=1, rounds="2"), idempotency_key="k1")
    assert house.audit_actions().count("job.submitted") == 1
    ends(house, one, "completed")


def test_only_a_person_of_the_charter_may_submit_and_only_with_their_key(house: House, join: Join) -> None:
    join("mercy")
    service = house.service
    assert service is not None
    resolved = service.resolve(plan_text(("mercy",), quorum=1))
    stranger = plan.sign_plan(resolved.plan, IdentityKey.generate())
    with pytest.raises(NotAuthenticated):
        service.submit(resolved.data, submitter="alice", signature=stranger)
    with pytest.raises(NotAuthenticated):
        service.submit(resolved.data, submitter="bob", signature=stranger)
    assert service.list_jobs() == ()
    refused = [event for event in house.audit_events() if event["action"] == "job.validated"]
    assert [event["code"] for event in refused] == ["CFD-P10", "CFD-J08"]


def test_a_vouched_job_carries_the_services_signature_and_says_so(house: House, join: Join) -> None:
    join("north")  # with mercy a quorum of witnesses
    join("mercy")
    service = house.service
    assert service is not None
    resolved = service.resolve(plan_text(("mercy",), quorum=1))
    job, _ = service.submit(resolved.data, submitter="alice", signature=None)
    assert job.vouched
    ends(house, job.job, "completed")


def test_a_plan_that_invites_a_stranger_is_refused_before_anything_is_stored(house: House, join: Join) -> None:
    join("mercy")
    with pytest.raises(InvalidInput, match=r"no active members: nobody \(unknown\)"):
        house.submit(plan_text(("mercy", "nobody")))
    assert house.service is not None
    with pytest.raises(InvalidInput, match="nobody"):
        house.service.validate(plan_text(("mercy", "nobody")))


def test_sites_that_hold_different_contracts_under_one_name_are_named(house: House, join: Join) -> None:
    join("mercy")
    other = KNOWN_BYTES.replace(b'"title":""', b'"title":"other"')
    join("north", contracts=(other.decode(),))
    with pytest.raises(InvalidInput, match=r"different contracts called heart/v1: .*(mercy|north).*(mercy|north)"):
        house.submit(plan_text(("mercy", "north")))


def test_a_contract_in_the_home_goes_before_what_sites_announce(house: House, join: Join) -> None:
    join("mercy")
    service = house.service
    assert service is not None
    (house.home.contracts / "heart.yaml").write_bytes(CONTRACT.encode())
    assert service.validate(plan_text(("mercy",), quorum=1)).contract_from == "coordinator"
    handed_in = service.validate(plan_text(("mercy",), quorum=1), contract=CONTRACT.encode())
    assert (handed_in.contract_from, handed_in.parameters, handed_in.update_bytes) == ("submission", 3, 12)


def test_previews_wait_for_a_link_lost_a_moment_ago_and_for_no_site_that_was_never_there(
    house: House, join: Join
) -> None:
    mercy = join("mercy")
    join("north", decision=Decision.REFUSED)
    service = house.service
    assert service is not None
    service.link.disconnect("mercy", Unreachable("CFD-L01", "the link is cut just before the preview"))
    found = {view.site: view for view in service.previews(plan_text(SITES), submitter="alice")}
    assert found["mercy"].decision == "accepted"
    assert found["mercy"].epsilon == 1.25
    assert found["north"].decision == "refused"
    assert found["st-anna"].decision == "no answer"
    assert service.link.pending_count("st-anna") == 0
    assert len(mercy.lost) >= 1


def test_a_site_is_shown_lost_and_connected_again_with_times(house: House, join: Join) -> None:
    site = join("mercy")
    service = house.service
    assert service is not None
    until(lambda: service.sites()[0].connected)
    before = service.sites()[0].since
    site.client.stop()
    until(lambda: not service.sites()[0].connected)
    assert service.sites()[0].since > before  # type: ignore[operator]
    join("mercy")
    until(lambda: service.sites()[0].connected)
    assert service.sites()[0].contracts == ("heart/v1",)


def test_a_site_of_a_foreign_protocol_gets_no_offer_and_is_told_who_must_upgrade(house: House, tmp_path: Path) -> None:
    old = FakeSite(house, "mercy", tmp_path / "old", versions=Versions(confide="0.0.1", protocol=0, oldest_protocol=0))
    old.client.start()
    try:
        until(lambda: old.lost)
        assert "upgrade the site" in str(old.lost[0])
        assert old.received == []
    finally:
        old.client.stop()


def test_charter_epochs_reach_sites_in_order_also_while_they_are_connected(house: House, join: Join) -> None:
    site = join("mercy")
    until(site.epochs)
    first = site.epochs()
    assert first == list(range(1, first[-1] + 1))
    house.add("west")
    until(lambda: site.epochs()[-1] > first[-1])
    assert site.epochs() == list(range(1, site.epochs()[-1] + 1))


def test_a_second_process_on_the_home_is_refused(house: House) -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        open_service(house.home, clock=SystemClock(), log=open_log(level="error"))
    assert refused.value.code == "CFD-G03"


def test_watching_wakes_up_as_soon_as_something_happens(house: House, join: Join) -> None:
    join("north")  # with mercy a quorum of witnesses
    site = join("mercy")
    site.hold.clear()
    job = house.submit(plan_text(("mercy",), quorum=1, rounds="1"))
    service = house.service
    assert service is not None
    until(lambda: any(event.name == "round.opened" for event in service.events(job)))
    last = service.events(job)[-1].number
    found: list[str] = []
    watcher = threading.Thread(
        target=lambda: found.extend(event.name for event in service.watch(job, after=last, wait_s=90))
    )
    watcher.start()
    site.hold.set()
    watcher.join(90)
    assert found
    assert service.watch(job, after=10**9, wait_s=0.05) == ()


def test_errors_of_unknown_jobs_have_one_code(house: House) -> None:
    service = house.service
    assert service is not None
    for ask in (service.show, service.why, service.pause, service.cancel, service.result_files, service.plan):
        with pytest.raises(ConfideError) as refused:
            ask("nothing-0a1b2c")
        assert refused.value.code == "CFD-J02"
