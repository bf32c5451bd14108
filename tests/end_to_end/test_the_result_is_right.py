"""Real processes against a few lines of numpy: the federated model is what one computer would have computed."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from federation.contract import DataContract, width
from federation.edge.documents import parse_document
from federation.models import layout
from federation.plan_fields import LogisticModel
from federation.tensor_file import TensorFile
from tests.support.processes import CONTRACT, Federation, confide, federation

pytestmark = [pytest.mark.process, pytest.mark.enable_socket, pytest.mark.timeout(400)]

SITES = ["bern", "mercy", "oslo"]
ROUNDS, RATE = 6, 0.5
FULL_BATCH: dict[str, Any] = {
    "training": {"local_steps": 1, "batch": 64, "optimizer": {"name": "sgd", "lr": RATE}, "seed": 7},
    "privacy": {"unit": "record", "mechanism": "none", "clip": 1.0},
    "rounds": ROUNDS,
}
Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("right"), SITES) as made:
        yield made


def patients(path: Path, fold: str) -> tuple[Floats, Floats]:
    with path.open(encoding="utf-8", newline="") as source:
        rows = [row for row in csv.DictReader(source) if row["fold"] == fold]
    age = np.array([np.clip((float(row["age"]) - 55) / 10, -4, 4) for row in rows])
    pressure = np.array([np.clip((float(row["pressure"]) - 130) / 20, -4, 4) for row in rows])
    return np.stack([age, pressure], axis=1), np.array([float(row["ill"]) for row in rows])


def start() -> tuple[Floats, float]:
    contract = parse_document(CONTRACT.encode(), DataContract, name="contract")
    arrays = layout.initial(LogisticModel(kind="logistic"), width(contract), seed=7)
    return np.asarray(arrays["output.weight"], np.float64).ravel(), float(np.asarray(arrays["output.bias"]).ravel()[0])


def computed(folder: Path) -> tuple[Floats, float]:
    """Return weights and bias after `ROUNDS` steps of the mean of the sites' full-batch gradients."""
    weights, bias = start()
    data = [patients(folder / f"{site}.csv", "train") for site in SITES]
    for _ in range(ROUNDS):
        steps = []
        for rows, ill in data:
            error = 1 / (1 + np.exp(-(rows @ weights + bias))) - ill
            steps.append((-RATE * (error @ rows) / len(ill), -RATE * error.mean()))
        weights = weights + np.mean([step[0] for step in steps], axis=0)
        bias = bias + float(np.mean([step[1] for step in steps]))
    return weights, bias


def test_full_batch_rounds_without_noise_give_what_one_computer_gives(running: Federation) -> None:
    job = running.submit(running.plan(SITES, **FULL_BATCH))
    shown = running.wait_for(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    out = running.folder / "result"
    running.job("result", job, "--out", str(out))
    with TensorFile(out / "model.safetensors") as model:
        arrays = model.arrays()
        found = np.asarray(arrays["output.weight"], np.float64).ravel()
        bias = float(np.asarray(arrays["output.bias"]).ravel()[0])
    weights, expected_bias = computed(running.folder)
    np.testing.assert_allclose(found, weights, atol=2e-6)
    assert bias == pytest.approx(expected_bias, abs=2e-6)
    together = [patients(running.folder / f"{site}.csv", "held-out") for site in SITES]
    odds = np.concatenate([rows @ weights + expected_bias for rows, _ in together])
    ill = np.concatenate([labels for _, labels in together])
    assert shown["metrics"]["accuracy"] == pytest.approx(float(np.mean((odds > 0) == ill)), abs=1e-9)
    loss = float(np.mean(np.log1p(np.exp(-odds * (2 * ill - 1)))))
    assert shown["metrics"]["loss"] == pytest.approx(loss, abs=1e-3)
    above = (odds[ill == 1][:, None] > odds[ill == 0][None, :]).mean()
    assert shown["metrics"]["auc"] == pytest.approx(float(above), abs=5e-3)


def test_weights_by_declared_size_are_the_plans_public_integers(running: Federation) -> None:
    job = running.submit(running.plan(SITES, **FULL_BATCH, weights="declared"))
    shown = running.wait_for(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    out = running.folder / "declared"
    running.job("result", job, "--out", str(out))
    line = (out / "proofs" / "releases.jsonl").read_text().splitlines()[-1]
    assert json.loads(bytes.fromhex(json.loads(line)["record"]))["weights"] == [40, 40, 40]


def test_a_job_with_privacy_spends_what_it_says_and_every_log_verifies(running: Federation) -> None:
    job = running.submit(running.plan(SITES))
    shown = running.wait_for(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    for site in shown["sites"]:
        assert 3.5 < site["epsilon"] <= 4.0, site
    for party in ("coordinator", *SITES):
        verified = json.loads(confide("audit", "verify", str(running.home(party)), "--format", "json"))
        assert verified["verdict"] == "verified", verified
    spent = confide("site", "budget", "show", "heart", "--home", str(running.home("oslo")), "--format", "json")
    assert job in spent


def test_what_leaves_a_site_is_in_its_log_before_it_is_in_the_coordinators(running: Federation) -> None:
    def rows(party: str, action: str) -> list[dict[str, Any]]:
        printed = confide("audit", "query", str(running.home(party)), "--action", action, "--format", "jsonl")
        return [json.loads(line) for line in printed.splitlines()]

    job = running.submit(running.plan(SITES, **FULL_BATCH))
    assert running.wait_for(job, "completed", "failed")["state"] == "completed"
    sent = {row["event"]["egress"]["hash"] for site in SITES for row in rows(site, "update.sent")}
    received = {row["event"]["egress"]["hash"] for row in rows("coordinator", "update.received")}
    assert received
    assert received <= sent
