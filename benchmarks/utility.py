"""How good models are under privacy, on real tables: `make bench-utility CONFIDE_BENCH_DATA=<folder>`.

Fed-Heart-Disease: four hospitals, the demo's plan as it stands (logistic regression, 15 rounds of one full step, ε 1,
δ 1e-3 by the ledger's own accounting), the contract's public scaling, FLamby's split. Diabetes-130: one site, the unit
is the patient with up to four encounters, ε 1, δ 1e-6, patients that were never trained on are scored. Eight runs each,
with other noise and other first values; the spread over them is printed. Learning rates, clip and steps were set on
training folds; held-out rows were used for nothing but the figures here.

The folder holds `heart/processed.*.data` and `diabetes130/dataset_diabetes.zip`; see `benchmarks/README.md`.
"""

import csv
import io
import os
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from benchmarks.row import Row, at_least, shown
from confide_demo_baselines import Patients, load_hospitals, score
from confide_demo_hospitals import HABITS, read_folds, split_file, table
from federation.contract import DataContract, width
from federation.edge.documents import read_document
from federation.models import layout, modules
from federation.plan import Plan, read
from federation.plan_fields import LogisticModel
from privacy.accounting.schedule import Schedule, schedule_for
from privacy.dpsgd.allowance import LeasedSteps
from privacy.dpsgd.batches import Units
from privacy.dpsgd.engines import engine_for
from privacy.dpsgd.functional import Parameters, trainable
from privacy.dpsgd.optimizers import Sgd
from privacy.dpsgd.step import noisy_round
from privacy.noise.keystream import StepStreams
from site_client.work import rows_of_units

SEEDS = range(8)
LOGISTIC = LogisticModel(kind="logistic")
CAP_ROWS = 4
HEART_FILES = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "long-beach": "va"}
HEART_COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
FLAMBY = "FLamby: FedAvg .685, pooled .735; the larger class .721"


def rows() -> list[Row]:
    """Return the rows of both tables.

    Raises:
        SystemExit: `CONFIDE_BENCH_DATA` names no folder with the tables.
    """
    folder = Path(os.environ.get("CONFIDE_BENCH_DATA", ""))
    if not (folder / "heart").is_dir() or not (folder / "diabetes130").is_dir():
        raise SystemExit("CONFIDE_BENCH_DATA names no folder with heart/ and diabetes130/")
    torch.set_num_threads(1)
    return [*_heart(folder / "heart"), *_diabetes(folder / "diabetes130" / "dataset_diabetes.zip")]


def _spread(values: Iterable[float]) -> str:
    found = np.array(list(values))
    return f"± {found.std(ddof=1):.3f} over {len(found)} runs, {found.min():.3f} to {found.max():.3f}"


def _round(
    parameters: Parameters, units: Units, schedule: Schedule, lr: float, streams: StepStreams, average: float = 0.0
) -> Parameters:
    model = modules.build(LOGISTIC, units.inputs.shape[-1])
    lease = LeasedSteps(schedule.local_steps, lambda wanted: wanted, lambda _: None)  # the tables leave nothing
    return noisy_round(
        parameters, units, schedule=schedule, gradients=engine_for(model, modules.loss, micro_batch=4096),
        optimizer=Sgd(lr), lease=lease, streams=streams, average=average,
    ).parameters  # fmt: skip


def _first(inputs: int, seed: int) -> Parameters:
    model = modules.build(LOGISTIC, inputs)
    modules.load(model, layout.initial(LOGISTIC, inputs, seed=seed))
    return trainable(model)


# -- Fed-Heart-Disease ------------------------------------------------------------------------------------------------


def _heart(folder: Path) -> list[Row]:
    files = split_file().parent
    plan = read((files / "job.yaml").read_bytes(), source="job.yaml")
    contract = read_document(files / "contract.yaml", DataContract)
    with tempfile.TemporaryDirectory() as scratch:
        hospitals = load_hospitals(_written(folder, Path(scratch)), files, contract)
    found = [_federated(plan, hospitals, width(contract), seed) for seed in SEEDS]
    mean, pooled, auc = (
        [float(run[key] or 0) for run in found] for key in ("accuracy_mean_of_four", "accuracy", "auc")
    )
    return [
        at_least(
            "dp/heart-eps1-mean-accuracy", float(np.mean(mean)), "", target=0.79, against=f"{_spread(mean)}; {FLAMBY}"
        ),
        at_least("dp/heart-eps1-pooled-auc", float(np.mean(auc)), "", target=0.86, against=_spread(auc)),
        shown("dp/heart-eps1-pooled-accuracy", float(np.mean(pooled)), "", against=_spread(pooled)),
    ]


def _written(source: Path, folder: Path) -> dict[str, Path]:
    """Write each hospital's table in its own way, as the demo does; ids go on from file to file, in FLamby's order."""
    folds, written, number = read_folds(split_file()), {}, 0
    for site, name in HEART_FILES.items():
        patients = []
        for line in (source / f"processed.{name}.data").read_text(encoding="ascii").splitlines():
            number += 1
            cells = line.split(",")
            values = [cells[place] for place in range(10)] + [cells[13]]
            named = dict(zip((*HEART_COLUMNS, "disease"), map(_plain, values), strict=True))
            patients.append({"id": str(number), **named, "fold": folds.get(str(number), "unused")})
        path = folder / site / HABITS[site].file
        path.parent.mkdir()
        path.write_bytes(table(patients, HABITS[site]))
        written[site] = path
    return written


def _plain(text: str) -> str:
    return "" if text == "?" else f"{float(text):g}"


def _federated(
    plan: Plan, hospitals: dict[str, tuple[Patients, Patients]], inputs: int, seed: int
) -> dict[str, float | None]:
    privacy, training = plan.privacy, plan.training
    parts, schedules, streams = {}, {}, {}
    for site, (train, _) in hospitals.items():
        parts[site] = Units.of_records(torch.from_numpy(train.features), torch.from_numpy(train.labels).float())
        schedules[site] = schedule_for(
            epsilon=privacy.epsilon or 0, delta=privacy.delta or 0, batch=training.batch, rounds=plan.rounds,
            local_steps=training.local_steps, clip=privacy.clip, clipping=privacy.clipping,
            units_declared=len(train.labels),
        )  # fmt: skip
        streams[site] = StepStreams()
    whole = sum(len(part) for part in parts.values())
    current = _first(inputs, seed)
    for _ in range(plan.rounds):
        updates = {
            site: _round(current, parts[site], schedules[site], training.optimizer.lr, streams[site]) for site in parts
        }
        current = {
            name: torch.stack([updates[site][name] * (len(parts[site]) / whole) for site in parts]).sum(0)
            for name in current
        }
    return score(plan, current, {site: test for site, (_, test) in hospitals.items()}, inputs)


# -- Diabetes-130 -----------------------------------------------------------------------------------------------------

COUNTS = {  # (centre, scale), from what the columns mean
    "time_in_hospital": (4, 3), "num_lab_procedures": (40, 20), "num_procedures": (1, 2), "num_medications": (15, 8),
    "number_outpatient": (0, 1), "number_emergency": (0, 1), "number_inpatient": (0, 1), "number_diagnoses": (7, 2),
}  # fmt: skip
LEVELS = {
    "race": ("AfricanAmerican", "Asian", "Caucasian", "Hispanic", "Other"),
    "gender": ("Female",),
    "age": tuple(f"[{low}-{low + 10})" for low in range(0, 100, 10)),
    "admission_type_id": ("1", "2", "3", "5", "6"),
    "discharge_disposition_id": ("1", "2", "3", "4", "5", "6", "7", "11", "13", "14", "18", "22", "23", "25", "28"),
    "admission_source_id": ("1", "2", "4", "5", "6", "7", "17", "20"),
    "medical_specialty": (
        "?", "Cardiology", "Emergency/Trauma", "Family/GeneralPractice", "InternalMedicine", "Nephrology",
        "Orthopedics", "Psychiatry", "Surgery-General",
    ),
    "max_glu_serum": (">200", ">300", "Norm"),
    "A1Cresult": (">7", ">8", "Norm"),
    "metformin": ("Up", "Down", "Steady"),
    "insulin": ("Up", "Down", "Steady"),
    "glipizide": ("Up", "Down", "Steady"),
    "glyburide": ("Up", "Down", "Steady"),
    "change": ("Ch",),
    "diabetesMed": ("Yes",),
}  # fmt: skip
CHAPTERS = (
    ("circulatory", 390, 460), ("respiratory", 460, 520), ("digestive", 520, 580), ("diabetes", 250, 251),
    ("injury", 800, 1000), ("musculoskeletal", 710, 740), ("genitourinary", 580, 630), ("neoplasms", 140, 240),
)  # fmt: skip


def _chapter(code: str) -> str:
    try:
        value = float(code)
    except ValueError:
        return "other"
    return next((name for name, low, high in CHAPTERS if low <= value < high), "other")


def _features(row: dict[str, str]) -> list[float]:
    found = [max(-4.0, min(4.0, (float(row[name]) - centre) / scale)) for name, (centre, scale) in COUNTS.items()]
    for name, levels in LEVELS.items():
        found += [float(row[name] == level) - 0.1 for level in levels]
    chapters = [_chapter(row[f"diag_{place}"]) for place in (1, 2)]
    for chapter in chapters:
        found += [float(chapter == name) - 0.1 for name, _, _ in CHAPTERS]
    return found


def _diabetes(path: Path) -> list[Row]:
    with zipfile.ZipFile(path) as archive:
        inside = next(name for name in archive.namelist() if name.endswith("diabetic_data.csv"))
        text = archive.read(inside).decode("utf-8")
    table_rows = list(csv.DictReader(io.StringIO(text)))
    features = np.array([_features(row) for row in table_rows], dtype=np.float32)
    labels = np.array([row["readmitted"] == "<30" for row in table_rows])
    patients, of_row = np.unique([int(row["patient_nbr"]) for row in table_rows], return_inverse=True)
    chosen = np.random.default_rng(0).permutation(len(patients))[: -(-4 * len(patients) // 5)]
    training = np.isin(of_row, chosen)
    entities = _entities(features[training], labels[training], of_row[training])
    test, truth = torch.from_numpy(features[~training]), labels[~training]
    schedule = schedule_for(
        epsilon=1.0, delta=1e-6, batch=round(0.05 * len(chosen)), rounds=1, local_steps=300, clip=2.0,
        clipping="threshold", unit="entity", units_declared=len(chosen),
    )  # fmt: skip

    def trained(seed: int, noise_multiplier: float) -> float:
        plan = replace(schedule, noise_multiplier=noise_multiplier)
        found = _round(_first(features.shape[1], seed), entities, plan, 6.0, StepStreams(), average=0.97)
        return _auc(test @ found["output.weight"][0], truth)

    found = [trained(seed, schedule.noise_multiplier) for seed in SEEDS]
    without = trained(0, 1e-6)
    noise = f"σ {schedule.noise_multiplier:.3f}, without noise {without:.3f}"
    text = f"{_spread(found)}; {features.shape[1]} features, {noise}"
    return [at_least("dp/diabetes-entity-eps1-auc", float(np.mean(found)), "", target=0.66, against=text)]


def _entities(features: NDArray[np.float32], labels: NDArray[np.bool_], of_row: NDArray[np.int64]) -> Units:
    names, units = np.unique(of_row, return_inverse=True)
    index, mask = rows_of_units(units, len(names), CAP_ROWS)
    return Units(torch.from_numpy(features[index]), torch.from_numpy(labels[index]).float(), torch.from_numpy(mask))


def _auc(scores: Tensor, truth: NDArray[np.bool_]) -> float:
    ranks = rankdata(scores.numpy())
    ill = int(truth.sum())
    return float((ranks[truth].sum() - ill * (ill + 1) / 2) / (ill * (len(truth) - ill)))
