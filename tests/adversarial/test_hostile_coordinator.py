"""A coordinator that lies, against a real site daemon: each lie is refused, recorded, and costs no budget."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np  # tensors of the wrong form
import pytest

from federation import canonical
from federation import plan as plans
from federation.edge.clock import SystemClock
from federation.identity import IdentityKey
from federation.messages import Answer, BlobReference, Decision, Outcome, Phase
from federation.tensors import write_tensors
from site_client.budget.store import BudgetStore
from tests.support import site_data
from tests.support.site_rig import PlayedJob, SiteRig

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteRig]:
    made = SiteRig(tmp_path_factory.mktemp("hostile"), units=64)
    made.start()
    yield made
    made.close()


@pytest.fixture
def job(rig: SiteRig, request: pytest.FixtureRequest) -> Iterator[PlayedJob]:
    """A job of little epsilon that the site accepted, ended after the test."""
    number = canonical.digest(request.node.name.encode())[:6]
    small = site_data.plan(**{"epsilon: 4.0": "epsilon: 0.3", "epsilon: 2.0": "epsilon: 0.1"})
    made = PlayedJob(rig.coordinator, small, f"heart-risk-{number}")
    made.accepted()
    yield made
    from federation.messages import JobAction

    rig.coordinator.control(made.job, JobAction.CANCEL)


def refused_offer(rig: SiteRig, **changes: Any) -> str:
    """Offer a plan with something changed, and return the code of the site's refusal."""
    number = canonical.digest(repr(sorted(changes)).encode())[:6]
    changes.setdefault("job", f"heart-risk-{number}")
    job = changes.pop("job")
    plan = changes.pop("_plan", site_data.plan())
    rig.coordinator.offer(plan, job, **changes)
    answer = rig.coordinator.next(Answer)
    assert answer.decision is Decision.REFUSED, answer
    refused = [entry for entry in rig.entries() if entry["action"] == "job.refused" and entry["job"] == job]
    assert refused, "the refusal is in the log"
    assert refused[-1]["code"] == answer.reasons[0].code
    return answer.reasons[0].code


def spent(rig: SiteRig) -> float:
    store = BudgetStore.open(rig.home.ledger, clock=SystemClock())
    try:
        return store.show("heart").policies[0].epsilon_spent
    finally:
        store.close()


def signed(rig: SiteRig, document: dict[str, Any]) -> dict[str, str]:
    data = canonical.encode(document)
    return {"plan": data.hex(), "signature": rig.federation.alice.sign("plan", data).hex()}


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plans.canonical_bytes(site_data.plan()))
    return found


def test_a_plan_signed_by_a_key_that_the_charter_doesnt_name_is_refused(rig: SiteRig) -> None:
    plan = site_data.plan()
    stranger = IdentityKey.generate()
    assert refused_offer(rig, signature=plans.sign_plan(plan, stranger).hex(), job="heart-risk-a00001") == "CFD-R64"


def test_a_plan_signed_by_a_person_without_the_role_is_refused(rig: SiteRig) -> None:
    signature = plans.sign_plan(site_data.plan(), rig.federation.bob).hex()
    assert refused_offer(rig, submitter="bob", signature=signature, job="heart-risk-a00002") == "CFD-R64"


def test_the_coordinators_own_signature_is_not_a_persons(rig: SiteRig) -> None:
    signature = plans.sign_plan(site_data.plan(), rig.federation.identity).hex()
    assert refused_offer(rig, signature=signature, job="heart-risk-a00003") == "CFD-R64"


def test_a_plan_that_is_only_vouched_for_needs_a_rule_that_says_so(rig: SiteRig) -> None:
    signature = plans.sign_plan(site_data.plan(), rig.federation.identity).hex()
    code = refused_offer(rig, submitter="mallory", vouched=True, signature=signature, job="heart-risk-a00004")
    assert code == "CFD-S03"


def test_a_plan_changed_after_it_was_signed_is_refused(rig: SiteRig) -> None:
    changed = document()
    changed["privacy"]["epsilon"] = (7.9).hex()
    assert refused_offer(rig, plan=canonical.encode(changed).hex(), job="heart-risk-a00005") == "CFD-R64"


def test_a_model_kind_that_is_none_of_ours_is_refused(rig: SiteRig) -> None:
    changed = document()
    changed["model"] = {"kind": "pickle", "code": "import os; os.system('id')"}
    assert refused_offer(rig, **signed(rig, changed), job="heart-risk-a00006").startswith("CFD-P")


def test_a_path_or_code_in_a_plan_is_refused(rig: SiteRig) -> None:
    for number, (key, value) in enumerate(
        [("path", "/etc/passwd"), ("script", "__import__('os')"), ("url", "file:///")]
    ):
        changed = {**document(), key: value}
        assert refused_offer(rig, **signed(rig, changed), job=f"heart-risk-b0000{number}").startswith("CFD-P")


def test_a_contract_name_that_climbs_out_of_the_home_is_refused(rig: SiteRig) -> None:
    changed = document()
    changed["data"]["contract"] = "../../../etc/passwd"
    assert refused_offer(rig, **signed(rig, changed), job="heart-risk-a00007").startswith("CFD-P")


def test_bytes_that_are_no_plan_are_refused(rig: SiteRig) -> None:
    garbage = b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix"
    signature = rig.federation.alice.sign("plan", garbage).hex()
    assert refused_offer(rig, plan=garbage.hex(), signature=signature, job="heart-risk-a00008").startswith("CFD-P")


def test_an_oversized_plan_is_refused_and_not_kept(rig: SiteRig) -> None:
    huge = b"[" + b"0," * (plans.MAX_DOCUMENT_BYTES // 2) + b"0]"
    signature = rig.federation.alice.sign("plan", huge).hex()
    before = rig.home.database.stat().st_size
    assert refused_offer(rig, plan=huge.hex(), signature=signature, job="heart-risk-a00009") == "CFD-R67"
    assert rig.home.database.stat().st_size - before < 100_000


def test_another_contract_than_the_plans_is_refused(rig: SiteRig) -> None:
    other = site_data.contract_bytes().replace(b"chol", b"ldlc")
    assert refused_offer(rig, contract=other.hex(), job="heart-risk-a0000a") == "CFD-R65"


def test_a_plan_that_doesnt_invite_this_site_is_refused(rig: SiteRig) -> None:
    plan = site_data.plan(**{"invite: [mercy, st-anna]": "invite: [st-anna]"})
    assert refused_offer(rig, _plan=plan, job="heart-risk-a0000b") == "CFD-R77"


def test_work_on_a_job_that_was_never_offered_is_refused(rig: SiteRig) -> None:
    ghost = PlayedJob(rig.coordinator, site_data.plan(), "heart-risk-a0000c")
    ghost.ask(0)
    failed = ghost.reply()
    assert failed.reason is not None
    assert failed.reason.code == "CFD-R42"


def failed_code(rig: SiteRig, job: PlayedJob) -> str:
    before = spent(rig)
    failed = job.reply()
    assert failed.outcome is Outcome.FAILED, failed
    assert failed.reason is not None
    assert not failed.reason.text, "no text of the site leaves"
    assert spent(rig) == before, "a refusal costs no budget"
    return failed.reason.code


def refusals(rig: SiteRig, action: str, job: PlayedJob) -> list[str]:
    return [
        entry["code"]
        for entry in rig.entries()
        if entry["action"] == action and entry["decision"] == "refused" and entry["job"] == job.job
    ]


def test_an_old_round_again_is_refused_and_recorded(rig: SiteRig, job: PlayedJob) -> None:
    job.ask(0)
    assert job.reply().outcome is Outcome.DONE
    job.release(0)
    job.ask(1)
    assert job.reply().outcome is Outcome.DONE
    job.ask(0, 1)
    assert failed_code(rig, job) == "CFD-R41"
    assert refusals(rig, "round.abandoned", job) == ["CFD-R41"]


def test_a_round_beyond_the_plan_is_refused(rig: SiteRig, job: PlayedJob) -> None:
    job.ask(3)
    assert failed_code(rig, job) == "CFD-R46"


def test_a_release_with_a_wrong_signature_is_refused(rig: SiteRig, job: PlayedJob) -> None:
    reference, _ = job.releases[0]
    record = rig.coordinator.blobs.path(reference).read_bytes()
    job.ask(0, release_signature=IdentityKey.generate().sign("release", record).hex())
    assert failed_code(rig, job) == "CFD-R58"
    assert refusals(rig, "model.accepted", job) == ["CFD-R58"]


def test_a_digest_that_the_step_doesnt_reach_is_refused(rig: SiteRig, job: PlayedJob) -> None:
    job.ask(0)
    job.reply()
    job.release(0)
    lie = job.record(0, job.releases[-1][0]).model_copy(update={"model": "d" * 64})
    honest = _release_of(rig, job)
    job.releases.pop()
    job.sign(honest.model_copy(update={"model": lie.model}))
    job.ask(1)
    assert failed_code(rig, job) == "CFD-R81"
    assert refusals(rig, "model.accepted", job) == ["CFD-R81"]


def _release_of(rig: SiteRig, job: PlayedJob) -> Any:
    from federation.messages import decode_body

    return decode_body("release", rig.coordinator.blobs.path(job.releases[-1][0]).read_bytes())


@pytest.mark.parametrize(
    "arrays",
    [
        {"output.weight": np.zeros((1, 3), "<f4"), "output.bias": np.zeros(1, "<f4")},
        {"output.weight": np.zeros((1, 1), "<f4"), "output.bias": np.zeros(1, "<f4")},
        {"output.weight": np.full((1, 2), np.inf, "<f4"), "output.bias": np.zeros(1, "<f4")},
    ],
    ids=["wider", "that would broadcast", "not finite"],
)
def test_a_mean_of_the_wrong_form_is_refused(rig: SiteRig, job: PlayedJob, arrays: dict[str, Any]) -> None:
    job.ask(0)
    job.reply()
    path = job.folder / "wrong"
    write_tensors(path, arrays)
    job.release(0)
    honest = _release_of(rig, job)
    job.releases.pop()
    job.sign(honest.model_copy(update={"mean": rig.coordinator.blobs.put_file(path)}))
    job.ask(1)
    assert failed_code(rig, job) == "CFD-R80"


def test_a_mean_of_a_gigabyte_is_refused_before_a_byte_of_it_is_fetched(rig: SiteRig, job: PlayedJob) -> None:
    job.ask(0)
    job.reply()
    job.release(0)
    honest = _release_of(rig, job)
    job.releases.pop()
    job.sign(honest.model_copy(update={"mean": BlobReference(root="e" * 64, size_bytes=1 << 30)}))
    job.ask(1)
    assert failed_code(rig, job) == "CFD-R80"


def test_a_release_of_another_job_is_refused(rig: SiteRig, job: PlayedJob) -> None:
    honest = _release_of(rig, job)
    job.releases.pop()
    job.sign(honest.model_copy(update={"job": "heart-risk-ffffff"}))
    job.ask(0)
    assert failed_code(rig, job) == "CFD-R59"


def test_an_evaluation_is_no_way_to_ask_twice_for_the_same_noise(rig: SiteRig, job: PlayedJob) -> None:
    job.ask(0, phase=Phase.EVALUATE)
    first = job.reply()
    before = spent(rig)
    job.ask(0, phase=Phase.EVALUATE)
    again = job.reply()
    assert again.evaluation == first.evaluation
    assert spent(rig) == before


def test_evaluations_beyond_those_that_were_reserved_are_refused(rig: SiteRig, job: PlayedJob) -> None:
    for attempt in range(3):
        job.ask(0, attempt, Phase.EVALUATE)
        assert job.reply().outcome is Outcome.DONE
    job.ask(0, 3, Phase.EVALUATE)
    assert failed_code(rig, job) == "CFD-R55"


def test_training_beyond_what_was_reserved_is_refused(rig: SiteRig, job: PlayedJob) -> None:
    for attempt in range(3):
        job.ask(0, attempt)
        reply = job.reply()
        assert reply.outcome is Outcome.DONE
        assert reply.update is not None
        next(rig.home.path.rglob(reply.update.root)).unlink()  # so that the next attempt trains anew
    job.ask(0, 3)
    assert failed_code(rig, job) == "CFD-R55"


def test_a_message_that_only_a_site_sends_is_refused(rig: SiteRig, job: PlayedJob) -> None:
    from federation.messages import JobStatus, Reason
    from tests.support.site_rig import Refusal

    rig.coordinator.send(
        JobStatus(message_id=rig.coordinator.server.message_ids.next(), job=job.job, reason=Reason(code="CFD-R42"))
    )
    assert rig.coordinator.next(Refusal).code == "CFD-L09"


def test_a_charter_that_the_root_key_didnt_sign_is_refused(rig: SiteRig) -> None:
    from federation.messages import CharterNotice
    from tests.support.site_rig import Refusal

    body, _ = rig.federation.charter()
    rig.federation.epochs.pop()
    forged = IdentityKey.generate().sign("charter-epoch", body)
    rig.coordinator.send(
        CharterNotice(
            message_id=rig.coordinator.server.message_ids.next(), epoch=2, charter=body.hex(), signature=forged.hex()
        )
    )
    assert rig.coordinator.next(Refusal).code == "CFD-E17"


def test_after_all_this_the_site_still_works_and_its_log_verifies(rig: SiteRig, job: PlayedJob) -> None:
    job.ask(0)
    assert job.reply().outcome is Outcome.DONE
    assert "verified" in rig.confide("audit", "verify")
