"""What a private step costs beside a plain step of the same model, in the same run.

Processor time of this process, one thread; both steps in turn, after a warm-up, the median of each. The plain step is a
forward pass, a backward pass and torch's own SGD. The private step is the whole of `noisy_step`: sampling at rate one,
per-unit clipping, the product's noise, its optimizer. Peak memory is that of a process of its own for each kind, above
what it held before the model was made. Where Opacus is installed, its hooks are shown beside, without its noise.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.row import Row, at_most
from federation.models import modules
from federation.plan_fields import CnnModel, LogisticModel, MlpModel, Resnet18Model, TransformerModel
from privacy.accounting.schedule import Clipping, Schedule, Unit
from privacy.dpsgd.allowance import LeasedSteps
from privacy.dpsgd.batches import Units
from privacy.dpsgd.engines import engine_for
from privacy.dpsgd.functional import trainable
from privacy.dpsgd.lora import add_lora
from privacy.dpsgd.optimizers import Sgd
from privacy.dpsgd.step import box_muller_by_torch, noisy_step
from privacy.noise.gaussian import normals
from privacy.noise.keystream import KeyRoot, Purpose, StepStreams

MANY = 1 << 22
WORDS = TransformerModel(kind="transformer", tokens=128, vocabulary=1000, dim=256, layers=4, heads=8)


@dataclass(frozen=True)
class Case:
    """One model, its batch, and what its private step may cost."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    classes: int
    target: float
    repeats: int


def _lora() -> nn.Module:
    model = modules.build(WORDS, 128)
    paths = [f"blocks.{block}.{part}" for block in range(4) for part in ("attend", "join", "widen", "narrow")]
    return add_lora(model, paths, rank=8, train=["output"])


RESNET = Resnet18Model(kind="resnet18", channels=3, height=32, width=32)
CASES = (
    Case("logistic", lambda: modules.build(LogisticModel(kind="logistic"), 30), (30,), 256, 2, 2.0, 400),
    Case("mlp", lambda: modules.build(MlpModel(kind="mlp", hidden=(64, 64)), 30), (30,), 256, 2, 1.7, 200),
    Case("cnn", lambda: modules.build(CnnModel(kind="cnn", height=28, width=28), 784, 10), (784,), 256, 10, 1.8, 11),
    Case("resnet18-gn", lambda: modules.build(RESNET, 3072, 10), (3072,), 32, 10, 1.8, 3),
    Case("transformer", lambda: modules.build(WORDS, 128), (128,), 16, 2, 1.25, 5),
    Case("lora", _lora, (128,), 16, 2, 1.1, 5),
)


def rows() -> list[Row]:
    """Return the rows of all models, of memory, of the noise and of an audit run."""
    torch.set_num_threads(1)
    found = [row for case in CASES for row in _steps(case)]
    plain, private = _peak("plain"), _peak("private")
    text = f"plain {plain / 2**20:.0f} MiB, private {private / 2**20:.0f} MiB"
    found.append(at_most("dp/resnet18-gn-peak-memory-vs-plain", private / plain, "× plain", target=2.5, against=text))
    return [*found, _noise(), _audit_run()]


def _steps(case: Case) -> list[Row]:
    model, units, labels = _made(case)
    works = [_plain_step(model, units, labels), _private_step(model, units)]
    if importlib.util.find_spec("opacus") is not None:
        works.append(_opacus_step(case, units, labels))
    plain, private, *others = _medians(works, case.repeats)
    text = f"plain {plain * 1e3:.2f} ms, private {private * 1e3:.2f} ms" + "".join(
        f", Opacus hooks {other / plain:.2f} × plain" for other in others
    )
    return [at_most(f"dp/{case.name}-step-vs-plain", private / plain, "× plain", target=case.target, against=text)]


def _made(case: Case) -> tuple[nn.Module, Units, Tensor]:
    torch.manual_seed(1)
    model = case.build()
    inputs = torch.randn(case.batch, *case.shape)
    if case.shape == (128,):
        inputs = torch.randint(0, 1000, (case.batch, 128)).float()
    labels = torch.arange(case.batch) % case.classes
    labels = labels.float() if case.classes == 2 else labels
    return model, Units.of_records(inputs, labels), labels


def _plain_step(model: nn.Module, units: Units, labels: Tensor) -> Callable[[], object]:
    inputs = units.inputs[:, 0]
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        modules.loss(model(inputs), labels).mean().backward()
        optimizer.step()

    return step


def _private_step(model: nn.Module, units: Units) -> Callable[[], object]:
    gradients, optimizer, streams = engine_for(model, modules.loss), Sgd(1e-6), StepStreams()
    lease = LeasedSteps(10**9, ask=lambda wanted: wanted, done=lambda steps: None)
    schedule = Schedule(
        unit=Unit.RECORD, epsilon=1.0, delta=1e-5, sampling_rate=1.0, normaliser=float(len(units)), rounds=1,
        local_steps=1, noise_multiplier=1.0, clip=1.0, clipping=Clipping.NORMALISED, units_declared=len(units),
    )  # fmt: skip
    current = trainable(model)

    def step() -> None:
        nonlocal current
        current, _ = noisy_step(
            current, units, schedule=schedule, gradients=gradients, optimizer=optimizer, lease=lease,
            streams=streams, start=current,
        )  # fmt: skip

    return step


def _opacus_step(case: Case, units: Units, labels: Tensor) -> Callable[[], object]:
    from opacus import GradSampleModule  # a peer, in benchmarks only

    model = case.build()
    wrapped = GradSampleModule(model)
    inputs = units.inputs[:, 0]

    def step() -> None:
        wrapped.zero_grad()
        modules.loss(wrapped(inputs), labels).sum().backward()
        grads = [value.grad_sample for value in wrapped.parameters() if value.requires_grad]
        norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads]).norm(dim=0)
        factor = 1 / (norms + 0.01)
        for value, grad in zip((v for v in wrapped.parameters() if v.requires_grad), grads, strict=True):
            value.grad = torch.einsum("i,i...->...", factor, grad) / len(inputs)

    return step


def _medians(works: list[Callable[[], object]], repeats: int) -> list[float]:
    spent: list[list[float]] = [[] for _ in works]
    for repeat in range(-max(1, repeats // 5), repeats):
        for place, work in enumerate(works):
            started = time.process_time()
            work()
            if repeat >= 0:
                spent[place].append(time.process_time() - started)
    return [statistics.median(values) for values in spent]


def _peak(kind: str) -> int:
    """Return the bytes that a process of its own reached above what it had before the model was made."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.dp", kind],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return int(found.stdout)


def _noise() -> Row:
    stream = KeyRoot(Purpose.NOISE).derive("benchmark")
    ours, theirs = _medians(
        [lambda: normals(stream, MANY, box_muller_by_torch), lambda: torch.randn(MANY, dtype=torch.float64)], 5
    )
    text = f"{ours / MANY * 1e9:.1f} ns a number by AES-256-CTR, torch.randn {theirs / MANY * 1e9:.1f} ns, float64"
    return at_most("dp/noise-vs-torch-randn", ours / theirs, "× randn", target=2.0, against=text)


def _audit_run() -> Row:
    from tests.statistical import test_privacy_audit as audit

    def run() -> None:
        seen = audit.attack()
        audit.profile_is_rejected(seen, audit.CURVE)
        audit.variance_is_rejected(seen)

    return at_most("dp/audit-run-s", _medians([run], 5)[0], "s", target=1.0, against="one attack, tests A and B")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def _measure(kind: str) -> int:
    torch.set_num_threads(1)
    np.zeros(1)
    before = _status("VmRSS")
    case = next(case for case in CASES if case.name == "resnet18-gn")
    model, units, labels = _made(case)
    step = _plain_step(model, units, labels) if kind == "plain" else _private_step(model, units)
    for _ in range(2):
        step()
    return _status("VmHWM") - before


if __name__ == "__main__":
    print(_measure(sys.argv[1]))
