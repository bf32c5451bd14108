"""The server step: from a model and the mean of the updates to the next model, in binary64.

`advance` is the pure arithmetic, `apply` runs it over files window by window.

Coordinator and sites both compute it and must reach the same bits, so only operations that IEEE 754 rounds correctly
are used (+, −, ×, ÷, √, one at a time), powers by repeated multiplication, in binary64 throughout; the new model is
cast once to the manifest's types. Names, parameters and results are those of flwr 1.42's strategies; with `d` the mean
update, `x` the model and `t` the job's own step number from 1:

    FedAvg      x + d
    FedAvgM     m = server_momentum·m + d;   x + server_learning_rate·m
    FedAdam     m = β₁·m + (1 − β₁)·d;  v = β₂·v + (1 − β₂)·d²;  x + η·√(1 − β₂ᵗ⁺¹)/(1 − β₁ᵗ⁺¹)·m / (√v + τ)
    FedYogi     m as FedAdam;  v = v − (1 − β₂)·d²·sign(v − d²);  x + η·m / (√v + τ)
    FedAdagrad  v = v + d²;  x + η·d / (√v + τ)

The exponent t + 1 is flwr's. m and v begin at zero, stay in binary64 by tensor name, are stored with the model and
are part of its digest, so a resumed job equals an uninterrupted one bit for bit. A step that would give a value that
is not finite changes nothing.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from federation.errors import InvalidInput
from federation.plan_fields import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, MeanStrategy
from federation.tensor_file import Array, Manifest, TensorFile, TensorSpec, TensorWriter, windows
from federation.tensors import NotFinite, cast_once

_SLOTS: Final[Mapping[type, tuple[str, ...]]] = {
    FedAvg: (),
    FedAvgM: ("m",),
    FedAdam: ("m", "v"),
    FedYogi: ("m", "v"),
    FedAdagrad: ("v",),
}
Slots = dict[str, Array]


def slots_of(strategy: MeanStrategy) -> tuple[str, ...]:
    """Return the names of what the strategy remembers for each tensor: m (first moment, momentum), v (second)."""
    return _SLOTS[type(strategy)]


def state_manifest(strategy: MeanStrategy, model: Manifest) -> Manifest:
    """Return the manifest of the server state: a binary64 tensor ``m/NAME`` or ``v/NAME`` for each averaged tensor."""
    return Manifest.of(
        {
            f"{slot}/{name}": TensorSpec("F64", spec.shape)
            for slot in slots_of(strategy)
            for name, spec in model.floats.tensors
        }
    )


def power(base: float, exponent: int) -> float:
    """Return base^exponent for 0 ≤ base ≤ 1 by `exponent` multiplications, the same bits on every machine."""
    result = 1.0
    for _ in range(exponent):
        if result == 0.0 or base == 1.0:
            break
        result *= base
    return result


def advance(strategy: MeanStrategy, x: Array, d: Array, slots: Slots, *, step: int) -> tuple[Array, Slots]:
    """Return the next binary64 values of a piece of a tensor and of its slots.

    Args:
        strategy: With its parameters.
        x: The model's values, binary64.
        d: The mean update's values, binary64, same shape.
        slots: What the strategy remembers of these elements, binary64; zeros before the first step.
        step: The job's own step number, from 1.
    """
    if x.shape != d.shape or any(slot.shape != x.shape for slot in slots.values()):
        raise InvalidInput("CFD-R62", f"shapes {x.shape} and {d.shape} differ; nothing is broadcast")
    with np.errstate(over="ignore", invalid="ignore"):
        match strategy:
            case FedAvg():
                return x + d, {}
            case FedAvgM(server_learning_rate=rate, server_momentum=momentum):
                m = momentum * slots["m"] + d
                return x + rate * m, {"m": m}
            case FedAdagrad(eta=eta, tau=tau):
                v = slots["v"] + d * d
                return x + eta * d / (np.sqrt(v) + tau), {"v": v}
            case FedAdam(eta=eta, beta_1=beta_1, beta_2=beta_2, tau=tau):
                m = beta_1 * slots["m"] + (1.0 - beta_1) * d
                v = beta_2 * slots["v"] + (1.0 - beta_2) * (d * d)
                rate = eta * math.sqrt(1.0 - power(beta_2, step + 1)) / (1.0 - power(beta_1, step + 1))
                return x + rate * m / (np.sqrt(v) + tau), {"m": m, "v": v}
            case FedYogi(eta=eta, beta_1=beta_1, beta_2=beta_2, tau=tau):
                square = d * d
                m = beta_1 * slots["m"] + (1.0 - beta_1) * d
                v = slots["v"] - (1.0 - beta_2) * square * np.sign(slots["v"] - square)
                return x + eta * m / (np.sqrt(v) + tau), {"m": m, "v": v}


def apply(
    strategy: MeanStrategy,
    *,
    model: Path,
    mean: Path,
    state: Path | None,
    step: int,
    new_model: Path,
    new_state: Path,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the model and server state after one step; window by window, whole or not at all.

    Args:
        strategy: One of the five that work on a mean.
        model: Tensor file of the present model.
        mean: Tensor file of the mean update, with the model's averaged tensors.
        state: The present server state, None before the first step.
        step: The job's own step number, from 1.
        new_model: Where the next model goes; another file than `model`.
        new_state: Where the next state goes; a file without tensors where the strategy remembers nothing.
        metadata: Of both files.

    Raises:
        InvalidInput: Mean or state don't have the model's layout, or `step` isn't positive.
        NotFinite: A value would not be finite; neither file is written.
    """
    if step < 1:
        raise InvalidInput("CFD-R62", f"server step {step}, counted from 1")
    with TensorFile(model) as old, TensorFile(mean) as direction:
        layout = state_manifest(strategy, old.manifest)
        if direction.manifest != old.manifest.floats:
            raise InvalidInput("CFD-R62", "the mean doesn't have the model's averaged tensors")
        memory = None if state is None else TensorFile(state)
        try:
            if memory is not None and memory.manifest != layout:
                raise InvalidInput("CFD-R62", f"the server state isn't one of {strategy.strategy} for this model")
            with (
                TensorWriter(new_state, layout, metadata=metadata) as state_out,
                TensorWriter(new_model, old.manifest, metadata=metadata) as model_out,
            ):
                for name, spec in old.manifest.tensors:
                    _tensor(strategy, name, spec, step, (old, direction, memory), (model_out, state_out))
        finally:
            if memory is not None:
                memory.close()


def _tensor(
    strategy: MeanStrategy,
    name: str,
    spec: TensorSpec,
    step: int,
    sources: tuple[TensorFile, TensorFile, TensorFile | None],
    targets: tuple[TensorWriter, TensorWriter],
) -> None:
    old, direction, memory = sources
    model_out, state_out = targets
    for start, stop in windows(spec):
        values = old.window(name, start, stop)
        if not spec.is_float:
            model_out.write(name, start, values)
            continue
        slots = {
            slot: np.zeros(stop - start) if memory is None else memory.window(f"{slot}/{name}", start, stop)
            for slot in slots_of(strategy)
        }
        d = direction.window(name, start, stop).astype(np.float64)
        wide, after = advance(strategy, values.astype(np.float64), d, slots, step=step)
        for slot, kept in after.items():
            if not np.isfinite(kept).all():
                raise NotFinite(f"server state {slot} of tensor {name} would not be finite")
            state_out.write(f"{slot}/{name}", start, kept)
        model_out.write(name, start, cast_once(wide, spec, name))
