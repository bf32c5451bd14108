"""Passes of a model over a few synthetic units, and what the checks before training compare."""

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from privacy.dpsgd.batches import Units
from privacy.dpsgd.functional import Parameters, RowLoss, frozen_state, masked_mean, trainable

MOST_UNITS: Final = 1024


def micro_batch_for(model: nn.Module, loss: RowLoss, units: Units, memory_bytes: int) -> int:
    """Return how many units at a time keep to `memory_bytes`, by what a pass over two of them keeps (F1).

    A function of the model and of shapes alone: it tells nothing of the data, and changes neither sums nor epsilon.
    """
    kept: dict[int, int] = {}

    def note(value: Tensor) -> Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    two = Units(units.inputs[:2], units.targets[:2], units.mask[:2])
    parameters = trainable(model)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        unit_losses(model, loss, leaves_of(parameters), two).sum()
    own = sum(value.numel() * value.element_size() for value in parameters.values())
    each = max(sum(kept.values()) - own, 0) / len(two) + own
    return int(max(1, min(MOST_UNITS, memory_bytes // max(each, 1))))


def coupled_module(model: nn.Module, units: Units, other: Units) -> str:
    """Return the first module through which unit 0 reaches another's output, or nothing where it is the loss.

    Args:
        model: The model.
        units: Units.
        other: The same with unit 0 replaced.
    """
    rows = units.mask.shape[1]
    seen: list[dict[str, Tensor]] = []
    paths = {module: path for path, module in model.named_modules() if not any(module.children())}

    def keep(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim:
            seen[-1].setdefault(paths[module] or type(module).__name__, output.detach()[rows:].clone())

    handles = [module.register_forward_hook(keep) for module in paths]
    try:
        for batch in (units, other):
            seen.append({})
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # the same dropout in both; carries no guarantee
                outputs = outputs_of(model, trainable(model), batch.inputs.flatten(0, 1))
            seen[-1][type(model).__name__] = outputs.detach()[rows:].clone()
    finally:
        for handle in handles:
            handle.remove()
    first, second = seen
    return next((path for path, value in first.items() if not torch.allclose(value, second[path], 1e-5)), "")


def outputs_of(model: nn.Module, parameters: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Return the model's outputs, buffers as copies so that nothing is touched."""
    rest = {name: value.clone() for name, value in frozen_state(model, parameters).items()}
    outputs: Tensor = functional_call(model, {**rest, **parameters}, (rows,))
    return outputs


def leaves_of(parameters: Mapping[str, Tensor]) -> Parameters:
    """Return copies that gradients can be taken by."""
    return {name: value.detach().clone().requires_grad_(True) for name, value in parameters.items()}


def unit_losses(model: nn.Module, loss: RowLoss, parameters: Mapping[str, Tensor], units: Units) -> Tensor:
    """Return one loss per unit, all rows of all units in one batch."""
    count, rows = units.mask.shape
    losses = loss(outputs_of(model, parameters, units.inputs.flatten(0, 1)), units.targets.flatten(0, 1))
    table = losses.reshape(count, rows)
    return torch.stack([masked_mean(table[index], units.mask[index]) for index in range(count)])


def gradient_within_batch(model: nn.Module, loss: RowLoss, units: Units, index: int) -> Parameters:
    """Return the gradient of one unit's loss in a pass over all of them."""
    parameters = leaves_of(trainable(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same dropout in both batches; carries no guarantee
        value = unit_losses(model, loss, parameters, units)[index]
    return gradient_of(value, parameters)


def gradient_alone(model: nn.Module, loss: RowLoss, start: Parameters, units: Units, index: int) -> Parameters:
    """Return the gradient of one unit by a pass over this unit alone."""
    parameters = leaves_of(start)
    return gradient_of(unit_losses(model, loss, parameters, one_unit(units, index))[0], parameters)


def gradient_of(value: Tensor, parameters: Parameters) -> Parameters:
    """Return the gradient of `value`, float64; zeros where there is none."""
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return {name: gradient.to(torch.float64) for name, gradient in zip(parameters, found, strict=True)}


def is_random(model: nn.Module, loss: RowLoss, units: Units) -> bool:
    """Return whether two passes over the same units differ."""
    with torch.no_grad():
        first, second = (unit_losses(model, loss, trainable(model), units) for _ in range(2))
    return not torch.equal(first, second)


def one_unit(units: Units, index: int) -> Units:
    """Return one unit."""
    end = index + 1
    return Units(units.inputs[index:end], units.targets[index:end], units.mask[index:end])


def different(values: Tensor) -> Tensor:
    """Return other values of the same shape and kind."""
    return values * -3 + 1 if values.is_floating_point() else values.flip(0).roll(1, -1)


def norm_of(gradients: Mapping[str, Tensor]) -> float:
    """Return the L2 norm over all tensors jointly."""
    return math.sqrt(sum(float(value.to(torch.float64).square().sum()) for value in gradients.values()))


def relative_error(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    """Return the size of the difference beside the larger of both."""
    difference = {name: found[name].to(torch.float64) - value.to(torch.float64) for name, value in expected.items()}
    size = max(norm_of(expected), norm_of(found))
    return norm_of(difference) / size if size else 0.0
