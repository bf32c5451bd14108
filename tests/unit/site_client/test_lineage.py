"""The site's own copy of the model: followed step by step, and nothing that doesn't follow is taken."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation import plan as plans
from federation import server_step
from federation.identity import IdentityKey
from federation.link.blobs import BlobStore
from federation.messages import BlobReference, JobId, Release, encode_body
from federation.models import layout
from federation.plan import Plan
from federation.plan_fields import mean_strategy
from federation.tensors import TensorFile, state_digest, write_tensors
from site_client import lineage
from site_client.lineage import Followed, LineageRefused, follow
from site_client.stored import Applied

JOB = JobId("heart-risk-0a1b2c")
WIDTH = 3
DOCUMENT = """
apiVersion: confide/v1
kind: TrainingJob
name: heart-risk
purpose: {code: DUO:0000007, text: "risk of heart disease"}
data: {contract: heart-disease/v1, label: disease}
model: {kind: logistic}
training: {local_steps: 2, batch: 8, optimizer: {name: sgd, lr: 0.1}, seed: 7}
privacy: {unit: record, mechanism: local-dp-sgd, epsilon: 4.0, delta: 1e-5, clip: 1.0}
secure_aggregation: {enabled: false}
rounds: 4
sites: {invite: [mercy, st-anna, charite], quorum: 2}
server: {strategy: FedAdam, eta: 0.05}
"""


def plan() -> Plan:
    return plans.resolve(plans.read(DOCUMENT), contract_digest="c" * 64, has_entities=False)


class Coordinator:
    """An honest coordinator of one job, whose releases a test may bend before they are signed."""

    def __init__(self, folder: Path, job_plan: Plan) -> None:
        folder.mkdir()
        self.plan = job_plan
        self.key = IdentityKey.generate()
        self.blobs = BlobStore(folder / "blobs")
        self.folder = folder
        self.model = folder / "model-0"
        self.state: Path | None = None
        self.releases: list[tuple[BlobReference, bytes]] = []
        write_tensors(self.model, layout.initial(job_plan.model, WIDTH, seed=job_plan.training.seed))
        self.sign(self.record(round_number=0, step=0, mean=self.blobs.put_file(self.model)))

    def record(self, *, round_number: int, step: int, mean: BlobReference) -> Release:
        return Release(
            job=JOB,
            plan_digest=plans.digest(self.plan),
            round=round_number,
            step=step,
            previous=self.releases[-1][0] if self.releases else None,
            mean=mean,
            model=state_digest(self.model, self.state, step=step),
            survivors=("mercy",) if step else (),
            weights=(1,) if step else (),
        )

    def sign(self, release: Release) -> tuple[BlobReference, bytes]:
        record = encode_body(release)
        self.releases.append((self.blobs.put_bytes(record), self.key.sign("release", record)))
        return self.releases[-1]

    def advance(self, round_number: int, **changes: Any) -> tuple[BlobReference, bytes]:
        step = len(self.releases)
        mean = self.mean(step)
        model, state = self.folder / f"model-{step}", self.folder / f"state-{step}"
        server_step.apply(
            mean_strategy(self.plan.server),
            model=self.model,
            mean=mean,
            state=self.state,
            step=step,
            new_model=model,
            new_state=state,
        )
        self.model, self.state = model, state
        release = self.record(round_number=round_number, step=step, mean=self.blobs.put_file(mean))
        return self.sign(release.model_copy(update=changes))

    def mean(self, step: int) -> Path:
        path = self.folder / f"mean-{step}"
        arrays = layout.initial(self.plan.model, WIDTH, seed=step)
        write_tensors(path, {name: np.asarray(value * np.float32(0.1)) for name, value in arrays.items()})
        return path


class Site:
    """A site that follows, and counts what it fetched."""

    def __init__(self, folder: Path, coordinator: Coordinator) -> None:
        folder.mkdir()
        self.coordinator = coordinator
        self.fetched: list[BlobReference] = []
        self.applied: Applied | None = None
        self.job = lineage.Job(
            job=JOB,
            plan=coordinator.plan,
            plan_digest=plans.digest(coordinator.plan),
            coordinator=coordinator.key.public,
            width=WIDTH,
            classes=2,
            folder=folder,
        )

    def fetch(self, reference: BlobReference) -> Path:
        self.fetched.append(reference)
        return self.coordinator.blobs.path(reference)

    def follow(self, newest: tuple[BlobReference, bytes] | None = None, *, round_number: int = 3) -> Followed:
        reference, signature = newest or self.coordinator.releases[-1]
        followed = follow(
            self.job,
            newest=reference,
            signature=signature,
            round_number=round_number,
            applied=self.applied,
            fetch=self.fetch,
        )
        self.applied = followed.applied
        return followed


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path / "coordinator", plan())


@pytest.fixture
def site(tmp_path: Path, coordinator: Coordinator) -> Site:
    return Site(tmp_path / "site", coordinator)


def same(left: Path, right: Path) -> bool:
    with TensorFile(left) as one, TensorFile(right) as other:
        return one.manifest == other.manifest and all(
            np.array_equal(one.read(name), other.read(name)) for name in one.manifest.names
        )


def test_the_first_model_follows_from_the_seed_and_is_not_fetched(site: Site, coordinator: Coordinator) -> None:
    followed = site.follow()
    assert same(followed.model, coordinator.model)
    assert site.fetched == [coordinator.releases[0][0]]
    assert followed.applied.step == 0


def test_each_release_is_followed_by_the_same_step_to_the_same_bits(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    for number in range(3):
        coordinator.advance(number)
        followed = site.follow()
        assert same(followed.model, coordinator.model)
        assert [step.release.step for step in followed.steps] == [number + 1]


def test_a_site_that_missed_rounds_follows_all_of_them(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    for number in range(3):
        coordinator.advance(number)
    followed = site.follow()
    assert [step.release.step for step in followed.steps] == [1, 2, 3]
    assert same(followed.model, coordinator.model)


def test_the_same_release_again_fetches_nothing(site: Site) -> None:
    site.follow()
    site.fetched.clear()
    assert site.follow().steps == ()
    assert site.fetched == []


def test_a_site_that_lost_its_files_begins_anew(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    coordinator.advance(0)
    site.follow()
    for path in site.job.folder.iterdir():
        path.unlink()
    coordinator.advance(1)
    assert same(site.follow().model, coordinator.model)


def test_only_the_newest_two_steps_are_kept(site: Site, coordinator: Coordinator) -> None:
    for number in range(3):
        coordinator.advance(number)
    lineage.forget_older(site.job, site.follow().applied)
    assert sorted(path.name for path in site.job.folder.iterdir()) == [
        "model-2.safetensors",
        "model-3.safetensors",
        "state-2.safetensors",
        "state-3.safetensors",
    ]


def refused(site: Site, newest: tuple[BlobReference, bytes] | None = None, *, round_number: int = 3) -> str:
    before = site.applied
    with pytest.raises(LineageRefused) as caught:
        site.follow(newest, round_number=round_number)
    assert site.applied == before
    return caught.value.code


def test_a_release_that_another_key_signed_is_refused(site: Site, coordinator: Coordinator) -> None:
    reference, _ = coordinator.releases[0]
    forged = IdentityKey.generate().sign("release", coordinator.blobs.path(reference).read_bytes())
    assert refused(site, (reference, forged)) == lineage.NOT_SIGNED


def test_a_signature_for_another_kind_of_message_is_refused(site: Site, coordinator: Coordinator) -> None:
    reference, _ = coordinator.releases[0]
    wrong = coordinator.key.sign("offer", coordinator.blobs.path(reference).read_bytes())
    assert refused(site, (reference, wrong)) == lineage.NOT_SIGNED


def test_a_digest_that_is_not_that_of_the_step_is_refused(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    coordinator.advance(0, model="d" * 64)
    assert refused(site) == lineage.OTHER_MODEL


def test_an_initial_model_that_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    other = plan().model_copy(update={"training": plan().training.model_copy(update={"seed": 8})})
    coordinator = Coordinator(tmp_path / "coordinator", other)
    coordinator.plan = plan()
    coordinator.releases.clear()
    coordinator.sign(coordinator.record(round_number=0, step=0, mean=coordinator.blobs.put_file(coordinator.model)))
    assert refused(Site(tmp_path / "site", coordinator)) == lineage.OTHER_MODEL


@pytest.mark.parametrize(
    "arrays",
    [
        {"output.weight": np.zeros((1, WIDTH + 1), "<f4"), "output.bias": np.zeros(1, "<f4")},
        {"output.weight": np.zeros((1, 1), "<f4"), "output.bias": np.zeros(1, "<f4")},
        {"output.weight": np.zeros((1, WIDTH), "<f8"), "output.bias": np.zeros(1, "<f4")},
        {"output.weight": np.zeros((1, WIDTH), "<f4")},
    ],
    ids=["wider", "that would broadcast", "of another type", "with a tensor missing"],
)
def test_a_mean_of_another_form_is_refused(site: Site, coordinator: Coordinator, arrays: dict[str, Any]) -> None:
    site.follow()
    path = coordinator.folder / "wrong"
    write_tensors(path, arrays)
    coordinator.advance(0, mean=coordinator.blobs.put_file(path))
    assert refused(site) == lineage.WRONG_TENSORS


def test_a_mean_with_a_value_that_is_not_finite_is_refused(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    path = coordinator.folder / "wrong"
    write_tensors(path, {"output.weight": np.full((1, WIDTH), np.nan, "<f4"), "output.bias": np.zeros(1, dtype="<f4")})
    coordinator.advance(0, mean=coordinator.blobs.put_file(path))
    assert refused(site) == lineage.WRONG_TENSORS


def test_a_mean_that_is_no_tensor_file_is_refused(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    coordinator.advance(0, mean=coordinator.blobs.put_bytes(b"\x80\x04\x95cposix\nsystem\n."))
    assert refused(site) == lineage.WRONG_TENSORS


def test_a_mean_too_large_for_the_model_is_refused_before_it_is_fetched(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    huge = BlobReference(root="e" * 64, size_bytes=1 << 30)
    coordinator.advance(0, mean=huge)
    site.fetched.clear()
    assert refused(site) == lineage.WRONG_TENSORS
    assert huge not in site.fetched


def test_a_record_too_large_is_refused_before_it_is_fetched(site: Site, coordinator: Coordinator) -> None:
    huge = BlobReference(root="e" * 64, size_bytes=1 << 30)
    assert refused(site, (huge, bytes(64))) == lineage.DOES_NOT_FOLLOW
    assert site.fetched == []


def test_an_older_release_is_refused(site: Site, coordinator: Coordinator) -> None:
    coordinator.advance(0)
    site.follow()
    assert refused(site, coordinator.releases[0]) == lineage.DOES_NOT_FOLLOW


def test_another_branch_of_history_is_refused(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    coordinator.advance(0)
    site.follow()
    first, model, state = coordinator.releases[0], coordinator.folder / "model-0", None
    coordinator.releases, coordinator.model, coordinator.state = [first], model, state
    coordinator.mean = lambda step: Coordinator.mean(coordinator, step + 10)  # type: ignore[method-assign]
    coordinator.advance(0)
    coordinator.advance(1)
    assert refused(site) == lineage.DOES_NOT_FOLLOW


def test_another_branch_is_refused_even_after_the_files_were_lost(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    coordinator.advance(0)
    site.follow()
    for path in site.job.folder.iterdir():
        path.unlink()
    coordinator.releases, coordinator.model = coordinator.releases[:1], coordinator.folder / "model-0"
    coordinator.state = None
    coordinator.mean = lambda step: Coordinator.mean(coordinator, step + 10)  # type: ignore[method-assign]
    coordinator.advance(0)
    coordinator.advance(1)
    assert refused(site) == lineage.DOES_NOT_FOLLOW


def test_a_release_of_a_later_round_than_asked_for_is_refused(site: Site, coordinator: Coordinator) -> None:
    coordinator.advance(2)
    assert refused(site, round_number=1) == lineage.DOES_NOT_FOLLOW


@pytest.mark.parametrize(
    "changes",
    [
        {"job": "heart-risk-ffffff"},
        {"plan_digest": "b" * 64},
        {"step": 5},
        {"round": 4},
        {"previous": None},
    ],
    ids=["other job", "other plan", "step beyond the plan", "round beyond the plan", "no release before it"],
)
def test_a_release_that_contradicts_the_job_is_refused(
    site: Site, coordinator: Coordinator, changes: dict[str, Any]
) -> None:
    site.follow()
    coordinator.advance(0, **changes)
    assert refused(site, round_number=9) == lineage.DOES_NOT_FOLLOW


def test_a_release_that_skips_a_step_is_refused(site: Site, coordinator: Coordinator) -> None:
    site.follow()
    coordinator.advance(0, step=2)
    assert refused(site) == lineage.DOES_NOT_FOLLOW


def test_a_record_that_is_no_release_is_refused(site: Site, coordinator: Coordinator) -> None:
    record = b'{"job":"../../etc/passwd"}'
    newest = (coordinator.blobs.put_bytes(record), coordinator.key.sign("release", record))
    assert refused(site, newest) == lineage.DOES_NOT_FOLLOW


def test_a_job_that_starts_from_a_released_model_takes_it_over(tmp_path: Path) -> None:
    base = plan()
    start = {"job": "heart-risk-111111", "round": 3, "model": "f" * 64}
    begun = plans.from_document({**base.model_dump(mode="json"), "start": start})
    coordinator = Coordinator(tmp_path / "coordinator", replace_seed(begun))
    site = Site(tmp_path / "site", coordinator)
    site.job = replace(site.job, plan=begun, plan_digest=plans.digest(coordinator.plan))
    followed = site.follow()
    assert same(followed.model, coordinator.model)
    coordinator.blobs.remove(coordinator.blobs.put_file(coordinator.model))
    assert followed.model.exists()


def replace_seed(base: Plan) -> Plan:
    return base.model_copy(update={"training": base.training.model_copy(update={"seed": 99})})
