"""One step of training under differential privacy, and the round that repeats it (privacy design, 5.1).

    1  take one charged step; without one nothing is sampled
    2  S: each unit with probability q, by a secret word of its own
    3  G = Σ clip(g_i) over S; zero for an empty S
    4  ḡ = (G + σ·C·z) / B, z a secret normal per coordinate, rounded to a grid
    5  the optimizer, which alone knows weight decay and proximal terms

A step counts whether S is empty or not: steps charged = steps run = steps with noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from privacy.accounting.schedule import Schedule
from privacy.dpsgd.allowance import LeasedSteps, Steps
from privacy.dpsgd.averaging import MovingAverage
from privacy.dpsgd.batches import Units
from privacy.dpsgd.functional import Parameters, PerUnitGradients
from privacy.dpsgd.optimizers import Optimizer
from privacy.dpsgd.sampling import poisson_sample
from privacy.errors import StateChanged
from privacy.noise.gaussian import CHUNK_WORDS, GRID_BITS, Reals, normals
from privacy.noise.keystream import Purpose, StepStreams, WordStream, require
from privacy.noise.self_test import ensure_passed


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What leaves the trainer, and what stays with the operator.

    Attributes:
        parameters: The trainable tensors after the last noisy step.
        steps: Charged steps that were taken.
        left_out: Units whose gradient wasn't finite, over all steps. For the operator's own screen alone.
    """

    parameters: Parameters
    steps: int
    left_out: int


def noisy_step(
    parameters: Mapping[str, Tensor],
    units: Units,
    *,
    schedule: Schedule,
    gradients: PerUnitGradients,
    optimizer: Optimizer,
    lease: Steps,
    streams: StepStreams,
    start: Mapping[str, Tensor],
) -> tuple[Parameters, int]:
    """Return the parameters after one charged step, and how many units had no finite gradient.

    Args:
        parameters: The trainable tensors, by name.
        units: All units of the data set; the step draws from them.
        schedule: q, B, σ, C and the clipping.
        gradients: The engine.
        optimizer: What turns the noisy gradient into parameters.
        lease: Where the charged step is taken from.
        streams: The secret streams of this process.
        start: The global model that the round began with.

    Raises:
        LeaseRefused: No charged step; nothing was sampled.
        NoiseSourceFailed: The random source isn't sound; the charged step is lost.
    """
    ensure_passed(box_muller_by_torch)
    lease.take()
    sampling, noise = streams.next_step()
    indices = poisson_sample(sampling, len(units), schedule.sampling_rate)
    chosen = units if len(indices) == len(units) else units.take(indices)
    total = gradients.clipped_sum(parameters, chosen, schedule.clip, schedule.clipping)
    gradient = noisy_mean(total.sums, schedule, noise)
    following = optimizer.step(parameters, gradient, start)
    return following, total.left_out


def noisy_mean(sums: Mapping[str, Tensor], schedule: Schedule, stream: WordStream) -> Parameters:
    """Return (G + σ·C·z)/B, float64, on the grid, with one normal per coordinate in the order of sorted names.

    The grid is 2^-20·σC: nothing sees the sum with its noise but the whole numbers round((G + σ·C·z) / grid).

    Raises:
        NoiseSourceFailed: `stream` isn't a secret one for noise.
    """
    source = require(stream, Purpose.NOISE)
    names = sorted(sums)
    values = {name: sums[name].detach().to(device="cpu", dtype=torch.float64) for name in names}
    if sum(value.numel() for value in values.values()) <= CHUNK_WORDS:  # a small model's noise is drawn at once
        sizes = [values[name].numel() for name in names]
        noisy = _with_noise(torch.cat([values[name].reshape(-1) for name in names]), schedule, source)
        flat = dict(zip(names, torch.split(noisy, sizes), strict=True))
    else:
        flat = {name: _with_noise(values[name].reshape(-1), schedule, source) for name in names}
    return {name: flat[name].reshape(sums[name].shape).to(sums[name].device) for name in names}


def _with_noise(values: Tensor, schedule: Schedule, source: WordStream) -> Tensor:
    """Return (`values` + σ·C·z)/B on the grid; `values` is flat."""
    grid = math.ldexp(schedule.noise_multiplier * schedule.clip, -GRID_BITS)
    noisy = torch.empty_like(values)
    for start in range(0, len(values), CHUNK_WORDS):  # a chunk stays in the cache through all of this
        part = torch.div(values[start : start + CHUNK_WORDS], grid, out=noisy[start : start + CHUNK_WORDS])
        noise = torch.from_numpy(normals(source, len(part), box_muller_by_torch))
        part.add_(noise, alpha=2.0**GRID_BITS).round_().mul_(grid / schedule.normaliser)
    return noisy


def box_muller_by_torch(first: Reals, second: Reals) -> tuple[Reals, Reals]:
    """Return two arrays of independent normals from two arrays of uniforms on (0, 1); several times as fast as numpy.

    Both arrays are overwritten.
    """
    radius, angle = torch.from_numpy(first).log_().mul_(-2.0).sqrt_(), torch.from_numpy(second).mul_(2.0 * math.pi)
    other = torch.sin(angle)
    return angle.cos_().mul_(radius).numpy(), other.mul_(radius).numpy()


def noisy_round(
    parameters: Mapping[str, Tensor],
    units: Units,
    *,
    schedule: Schedule,
    gradients: PerUnitGradients,
    optimizer: Optimizer,
    lease: LeasedSteps,
    streams: StepStreams,
    average: float = 0.0,
) -> RoundResult:
    """Return the parameters after `schedule.local_steps` charged steps from the global model `parameters`.

    With `average` above 0 it is their moving average with this decay that is returned; the steps go on without it.

    Raises:
        LeaseRefused: The ledger gave fewer steps; nothing may be sent, and the newest lease is lost.
        StateChanged: Names, shapes or types changed, or a parameter isn't finite.
    """
    use_full_precision_products()
    current: Parameters = dict(parameters)
    left_out = 0
    mean = MovingAverage(average)
    for _ in range(schedule.local_steps):
        current, missing = noisy_step(
            current,
            units,
            schedule=schedule,
            gradients=gradients,
            optimizer=optimizer,
            lease=lease,
            streams=streams,
            start=parameters,
        )
        left_out += missing
        if average:
            mean.add(current)
    result = mean.value(current)
    check_same_layout(parameters, result)
    lease.finish()
    return RoundResult(result, lease.taken, left_out)


def use_full_precision_products() -> None:
    """Switch off TF32, which is on by default for convolutions and rounds norms to ten bits (privacy design, 5.6)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def check_same_layout(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Refuse a result with other names, shapes or types, or with a value that isn't finite.

    Raises:
        StateChanged: The name of the tensor.
    """
    if set(before) != set(after):
        raise StateChanged("training changed the names of the tensors")
    for name, value in after.items():
        if value.shape != before[name].shape or value.dtype != before[name].dtype:
            raise StateChanged(f"training changed shape or type of {name}")
        if not bool(torch.isfinite(value).all()):
            raise StateChanged(f"{name} is no longer finite after training", hint="lower the learning rate")
