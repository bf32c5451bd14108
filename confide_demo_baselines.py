"""What the federated model is compared with: each hospital alone, and all patients pooled in one place.

Only the demo does this: it wrote the four folders itself, so it may read them all. The plan's schedule, its privacy and
its starting model are the same in every row of the comparison; what differs is whose patients are trained on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from federation.contract import DataContract, width
from federation.edge.documents import read_document
from federation.models import layout, modules
from federation.plan import Plan, read
from federation.tensor_file import TensorFile
from privacy.accounting.schedule import Schedule, schedule_for
from privacy.dpsgd.allowance import LeasedSteps
from privacy.dpsgd.batches import Units
from privacy.dpsgd.functional import FunctionalGradients, trainable
from privacy.dpsgd.optimizers import optimizer_for
from privacy.dpsgd.step import noisy_round
from privacy.noise.keystream import StepStreams
from site_client.data.data_map import DataMap
from site_client.data.definition import Definition, SplitByColumn
from site_client.data.intake import find, take_in

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Patients:
    """Encoded patients: features (rows, width) float32, labels (rows,)."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


def load_hospitals(
    folders: Mapping[str, Path], files: Path, contract: DataContract
) -> dict[str, tuple[Patients, Patients]]:
    """Return training and held-out patients of each hospital, read through its own map."""
    found = {}
    for site, path in folders.items():
        definition = Definition(
            contract=contract,
            data_map=read_document(files / f"{site}.map.yaml", DataMap),
            entity=None,
            split=SplitByColumn("fold"),
        )
        rows = take_in(find(path, definition), definition).prepared
        held_out = rows.held_out
        found[site] = (
            Patients(rows.features[~held_out], rows.labels[~held_out]),
            Patients(rows.features[held_out], rows.labels[held_out]),
        )
    return found


def baselines(folders: Mapping[str, Path], files: Path, result: Path, units: Mapping[str, int]) -> dict[str, Any]:
    """Return accuracy and AUC on the same held-out patients: federated, pooled, each hospital alone, larger class.

    Args:
        folders: Each hospital's data.
        files: The folder with contract, maps and plan.
        result: The folder of the job's result.
        units: Training patients that each hospital declares.
    """
    contract = read_document(files / "contract.yaml", DataContract)
    plan = read((files / "job.yaml").read_bytes(), source="job.yaml")
    hospitals = load_hospitals(folders, files, contract)
    held_out = {site: test for site, (_, test) in hospitals.items()}
    with TensorFile(result / "model.safetensors") as model:
        federated = {name: torch.from_numpy(np.array(array)) for name, array in model.arrays().items()}
    inputs = width(contract)
    found = {"federated": score(plan, federated, held_out, inputs)}
    pooled = Patients(
        np.concatenate([train.features for train, _ in hospitals.values()]),
        np.concatenate([train.labels for train, _ in hospitals.values()]),
    )
    found["pooled in one place"] = score(plan, _train(plan, pooled, sum(units.values()), inputs), held_out, inputs)
    for site, (train, _) in hospitals.items():
        found[f"{site} alone"] = score(plan, _train(plan, train, units[site], inputs), held_out, inputs)
    found["guess the larger class"] = _majority(held_out)
    return found


def _schedule(plan: Plan, units: int) -> Schedule:
    privacy, training = plan.privacy, plan.training
    if privacy.epsilon is None or privacy.delta is None:
        raise ValueError("the demo's plan has no epsilon or no delta")
    return schedule_for(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        batch=training.batch,
        rounds=plan.rounds,
        local_steps=training.local_steps,
        clip=privacy.clip,
        units_declared=units,
    )


def _train(plan: Plan, patients: Patients, units: int, inputs: int) -> dict[str, torch.Tensor]:
    """Return a model trained on `patients` for as many steps as the job makes, under the plan's privacy."""
    model = modules.build(plan.model, inputs)
    modules.load(model, layout.initial(plan.model, inputs, seed=plan.training.seed))
    schedule = _schedule(plan, units)
    optimizer = optimizer_for(plan.training.optimizer.name, lr=plan.training.optimizer.lr)
    rows = Units.of_records(torch.from_numpy(patients.features), torch.from_numpy(patients.labels.astype(np.float32)))
    streams = StepStreams()
    parameters = trainable(model)
    for _ in range(plan.rounds):
        # No ledger stands behind this comparison: it is the demo's own, and its models leave nothing.
        lease = LeasedSteps(schedule.local_steps, lambda wanted: wanted, lambda _: None)
        gradients = FunctionalGradients(model, modules.loss)
        parameters = noisy_round(
            parameters,
            rows,
            schedule=schedule,
            gradients=gradients,
            optimizer=optimizer,
            lease=lease,
            streams=streams,
        ).parameters
    return dict(parameters)


def score(
    plan: Plan, parameters: Mapping[str, torch.Tensor], held_out: Mapping[str, Patients], inputs: int
) -> dict[str, float | None]:
    """Return accuracy and AUC of a model on all held-out patients together, and its mean accuracy over hospitals."""
    model = modules.build(plan.model, inputs)
    model.load_state_dict(dict(parameters), strict=True)
    with torch.no_grad():
        odds = {site: model(torch.from_numpy(test.features)).numpy() for site, test in held_out.items()}
    labels = np.concatenate([test.labels for test in held_out.values()])
    together = np.concatenate(list(odds.values()))
    by_site = [float(np.mean((odds[site] > 0) == test.labels)) for site, test in held_out.items()]
    return {
        "accuracy": float(np.mean((together > 0) == labels)),
        "auc": auc(together.astype(np.float64), labels),
        "accuracy_mean_of_four": float(np.mean(by_site)),
    }


def auc(scores: Floats, labels: npt.NDArray[np.int64]) -> float | None:
    """Return the share of (ill, healthy) pairs that `scores` puts in the right order, ties counting half."""
    ill, healthy = scores[labels == 1], scores[labels == 0]
    if not len(ill) or not len(healthy):
        return None
    above = (ill[:, None] > healthy[None, :]).mean()
    level = (ill[:, None] == healthy[None, :]).mean()
    return float(above + level / 2)


def _majority(held_out: Mapping[str, Patients]) -> dict[str, float | None]:
    labels = np.concatenate([test.labels for test in held_out.values()])
    by_site = [max(float(np.mean(test.labels)), 1 - float(np.mean(test.labels))) for test in held_out.values()]
    return {
        "accuracy": max(float(np.mean(labels)), 1 - float(np.mean(labels))),
        "auc": None,
        "accuracy_mean_of_four": float(np.mean(by_site)),
    }
