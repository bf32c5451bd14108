"""The universal gradient engine: one gradient per unit by `torch.func`, for anything that is functional.

Interchangeable with the book-keeping engine through `PerUnitGradients`. Each unit runs as a batch of its own rows, so
no unit can reach another's gradient; the raw gradient is never in `.grad`.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privacy.accounting.schedule import Clipping
from privacy.dpsgd.batches import Units
from privacy.dpsgd.clipping import clipped_sum, factors, margin, unit_norms

Parameters = dict[str, Tensor]
RowLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs [rows, …] and targets [rows, …] to losses [rows]."""


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """Σ clip(g_i), and what the operator alone may see.

    Attributes:
        sums: Name to float64 tensor of the parameter's shape.
        left_out: Units whose gradient wasn't finite.
    """

    sums: Parameters
    left_out: int


class PerUnitGradients(Protocol):
    """An engine: the sum of clipped gradients at `parameters` over `units`."""

    version: str

    def clipped_sum(
        self, parameters: Mapping[str, Tensor], units: Units, clip: float, clipping: Clipping
    ) -> ClippedSum:
        """Return Σ clip(g_i) over `units`; zeros for none."""
        ...


class FunctionalGradients:
    """Per-unit gradients by vmap over units, in micro-batches.

    Args:
        model: Frozen parameters and buffers are taken from it; what is trained is given to each call.
        loss: One loss per row, no reduction.
        micro_batch: Most units at a time; changes neither sums nor epsilon.
        autocast: Reduced precision of the forward and backward pass; norms and sums stay in that of the parameters.
    """

    version = f"functional/1 torch {torch.__version__}"

    def __init__(
        self, model: nn.Module, loss: RowLoss, *, micro_batch: int = 256, autocast: torch.dtype | None = None
    ) -> None:
        self._model = model
        self._loss = loss
        self._micro_batch = micro_batch
        self._autocast = autocast
        self._per_unit = vmap(grad(self._unit_loss), in_dims=(None, None, 0, 0, 0), randomness="different")

    def clipped_sum(
        self, parameters: Mapping[str, Tensor], units: Units, clip: float, clipping: Clipping
    ) -> ClippedSum:
        """Return Σ clip(g_i) over `units`; zeros for none."""
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}
        left_out = 0
        kappa = margin(self._autocast or torch.float32, *(value.dtype for value in parameters.values()))
        for batch in units.micro_batches(self._micro_batch):
            gradients = self.unit_gradients(parameters, batch)
            factor = factors(unit_norms(gradients), clip, clipping, kappa)
            for name, part in clipped_sum(gradients, factor).items():
                sums[name] += part
            left_out += int((factor == 0).sum())
        return ClippedSum(sums, left_out)

    def unit_gradients(self, parameters: Mapping[str, Tensor], units: Units) -> Parameters:
        """Return the gradient of each unit's loss, name to [units, …], unclipped. Must not leave the trainer."""
        trained = {name: value.detach() for name, value in parameters.items()}
        rest = frozen_state(self._model, trained)
        gradients: Parameters = self._per_unit(trained, rest, units.inputs, units.targets, units.mask)
        return gradients

    def _unit_loss(self, trained: Any, rest: Any, inputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        with reduced_precision(inputs.device, self._autocast):
            outputs = functional_call(self._model, {**rest, **trained}, (inputs,))
            losses = self._loss(outputs, targets)
        return masked_mean(losses, mask)


def reduced_precision(device: torch.device, kind: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return a context in which products run in `kind`, or as they are for None."""
    return nullcontext() if kind is None else torch.autocast(device.type, dtype=kind)


def masked_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of `losses` over rows that are there; a row that isn't adds exactly zero."""
    kept = torch.where(mask, losses, torch.zeros_like(losses))
    return kept.sum() / mask.sum().clamp(min=1)


def frozen_state(model: nn.Module, trained: Mapping[str, Tensor]) -> Parameters:
    """Return the model's parameters and buffers that aren't trained, detached."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value.detach() for name, value in state.items() if name not in trained}


def trainable(model: nn.Module) -> Parameters:
    """Return copies of the parameters that the model marks as trainable, by name."""
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}
