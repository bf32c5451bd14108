"""A result's folder that somebody changed, or that another key signed: named, never verified."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.model_command import main as model
from coordinator.result import verify_result, write_result
from coordinator.views import JobView, ResultFile, ResultView, RoundView, SiteInJobView
from federation import contract as contracts
from federation import messages
from federation import plan as plans
from federation.edge.documents import parse_document
from federation.errors import CheckFailed, InvalidInput
from federation.identity import IdentityKey
from federation.link.chunks import reference_of
from federation.models import layout
from federation.tensor_file import write_tensors
from federation.tensors import state_digest
from federation.words import fingerprint_words
from tests.support.processes import CONTRACT, PLAN

JOB = "heart-risk-0a1b2c"


class SmallCoordinator:
    """Answers like the API's client, from a job of two rounds made up here."""

    def __init__(self, folder: Path) -> None:
        self.key = IdentityKey.generate()
        self.contract = parse_document(CONTRACT.encode(), contracts.DataContract, name="contract")
        document = {**PLAN, "sites": {"invite": ["bern", "mercy", "oslo"], "quorum": 2}}
        self.plan = plans.resolve(
            plans.read(json.dumps(document)), contract_digest=contracts.digest(self.contract), has_entities=False
        )
        folder.mkdir()
        self.model = folder / "current.safetensors"
        initial = layout.initial(self.plan.model, contracts.width(self.contract), seed=7)
        self.releases: list[dict[str, str]] = []
        previous: messages.BlobReference | None = None
        for step in range(3):
            arrays = {name: np.asarray(array) + np.float32(step) for name, array in initial.items()}
            write_tensors(self.model, arrays)
            record = messages.encode_body(
                messages.Release(
                    job=JOB,
                    plan_digest=plans.digest(self.plan),
                    round=max(0, step - 1),
                    step=step,
                    previous=previous,
                    mean=reference_of(b"mean"),
                    model=state_digest(self.model, None, step=step),
                    survivors=("bern", "mercy"),
                    weights=(1, 1),
                )
            )
            self.releases.append({"record": record.hex(), "signature": self.key.sign("release", record).hex()})
            previous = reference_of(record)

    def result(self, _job: str) -> ResultView:
        file = ResultFile(name="model.safetensors", path="", size_bytes=1, sha256="0" * 64)
        return ResultView(job=JOB, round=1, step=2, model_digest="0" * 64, files=(file,), releases=tuple(self.releases))

    def job(self, _job: str) -> JobView:
        rounds = [
            RoundView(round=r, attempt=0, state="released", quorum=2, cohort=("bern",), survivors=("bern", "mercy"))
            for r in range(2)
        ]
        shared: dict[str, Any] = {"priority": 50, "quorum": 2, "invited": 3, "round": 2, "rounds": 2, "attempt": 0}
        return JobView(
            job=JOB, name="heart-risk", state="completed", plan_digest=plans.digest(self.plan), purpose="DUO:0000007",
            submitter="alice", vouched=False, secure_aggregation=False, epsilon=4.0, number=1,
            metrics={"auc": 0.87, "loss": None},
            sites=(SiteInJobView(site="bern", state="training", epsilon=3.991),), rounds_done=tuple(rounds), **shared,
        )  # fmt: skip

    def identity(self) -> str:
        return self.key.public.hex()

    def plan_bytes(self, _job: str) -> bytes:
        return plans.canonical_bytes(self.plan)

    def contract_bytes(self, _job: str) -> bytes:
        return contracts.canonical_bytes(self.contract)

    def download(self, _job: str, _name: str, target: Path) -> None:
        target.write_bytes(self.model.read_bytes())


@pytest.fixture
def coordinator(tmp_path: Path) -> SmallCoordinator:
    return SmallCoordinator(tmp_path / "coordinator")


@pytest.fixture
def folder(coordinator: SmallCoordinator, tmp_path: Path) -> Path:
    target = tmp_path / "result"
    write_result(coordinator, JOB, target)  # type: ignore[arg-type]  # answers like the client, without HTTP
    return target


def relist(folder: Path) -> None:
    """Rewrite the list of hashes, as somebody who changes a file would."""
    import hashlib

    path = folder / "provenance.json"
    origin = json.loads(path.read_text())
    origin["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in origin["files"]}
    path.write_text(json.dumps(origin))


def test_an_untouched_result_verifies_and_names_its_signer(coordinator: SmallCoordinator, folder: Path) -> None:
    found = verify_result(folder)
    assert (found.job, found.rounds, found.coordinator_identity) == (JOB, 2, coordinator.key.public)


def test_the_command_says_unpinned_until_it_is_given_the_words(coordinator: SmallCoordinator, folder: Path) -> None:
    words = fingerprint_words(coordinator.key.public)
    assert model(["verify", str(folder)]) == 3
    assert model(["verify", str(folder), "--coordinator-words", words]) == 0
    with pytest.raises(CheckFailed, match="another coordinator"):
        model(["verify", str(folder), "--coordinator-words", fingerprint_words(IdentityKey.generate().public)])


@pytest.mark.parametrize("name", ["model.safetensors", "privacy.json", "model-card.md", "proofs/plan.json"])
def test_a_changed_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckFailed, match=name):
        verify_result(folder)


def test_a_changed_model_is_found_even_when_the_list_of_hashes_is_changed_with_it(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))
    relist(folder)
    with pytest.raises(CheckFailed, match="model's digest"):
        verify_result(folder)


def test_a_release_left_out_reordered_or_signed_by_another_is_found(
    coordinator: SmallCoordinator, folder: Path
) -> None:
    path = folder / "proofs" / "releases.jsonl"
    lines = path.read_text().splitlines()
    forged = json.loads(lines[2])
    forged["signature"] = IdentityKey.generate().sign("release", bytes.fromhex(forged["record"])).hex()
    for bent in ([lines[0], lines[2]], [lines[1], lines[0], lines[2]], lines[1:], [*lines[:2], json.dumps(forged)]):
        path.write_text("\n".join(bent) + "\n")
        relist(folder)
        with pytest.raises(CheckFailed):
            verify_result(folder)
    path.write_text("\n".join(lines[:2]) + "\n")
    relist(folder)
    with pytest.raises(CheckFailed, match="model's digest"):
        verify_result(folder)


def test_a_file_more_or_less_is_named(folder: Path) -> None:
    (folder / "notes.txt").write_text("hello")
    with pytest.raises(CheckFailed, match=r"notes\.txt is not listed"):
        verify_result(folder)
    (folder / "notes.txt").unlink()
    (folder / "privacy.json").unlink()
    with pytest.raises(CheckFailed, match=r"privacy\.json is missing"):
        verify_result(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"schema": "other"}'])
def test_what_is_no_result_is_refused_without_a_trace(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "provenance.json").write_bytes(content)
    with pytest.raises(InvalidInput):
        verify_result(tmp_path)


def test_a_result_is_never_written_over_something(coordinator: SmallCoordinator, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="not empty"):
        write_result(coordinator, JOB, folder)  # type: ignore[arg-type]


def test_the_privacy_statement_has_unit_relation_and_odds_and_none_of_the_forbidden_words(folder: Path) -> None:
    card = (folder / "model-card.md").read_text()
    facts = json.loads((folder / "privacy.json").read_text())
    assert facts["epsilon_by_site"] == {"bern": 4.0}
    assert facts["relation"] == "adding or removing one unit"
    assert "at most 99 % of the time" in card
    assert "each site's own noisy update" in card
    assert "not available" in card
    assert not any(word in card.lower() for word in ("anonymous", "no risk"))
