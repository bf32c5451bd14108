"""Mechanism none: ordinary minibatch training, the same from the same plan, and without any promise of privacy.

Only where the site's policy allows it; the ledger then says that no bound holds. It is here, beside the private step,
so that both take the same units, losses and optimizers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from privacy.dpsgd.batches import Units
from privacy.dpsgd.functional import Parameters, RowLoss, frozen_state
from privacy.dpsgd.optimizers import Optimizer
from privacy.dpsgd.sampling import planned_order
from privacy.dpsgd.step import check_same_layout
from privacy.errors import ScheduleInvalid


def plain_round(
    parameters: Mapping[str, Tensor],
    units: Units,
    *,
    model: nn.Module,
    loss: RowLoss,
    optimizer: Optimizer,
    local_steps: int,
    batch: int,
    seed: int,
    site: str,
    round_number: int,
) -> Parameters:
    """Return the parameters after `local_steps` minibatches in an order that the plan's seed fixes.

    Buffers with running statistics, which are allowed here, are updated in `model`.

    Raises:
        ScheduleInvalid: There are no units.
        StateChanged: A parameter isn't finite any more.
    """
    if len(units) == 0:
        raise ScheduleInvalid("there are no units to train on")
    current: Parameters = dict(parameters)
    queue: list[int] = []
    epoch = 0
    for _ in range(local_steps):
        if not queue:
            queue = planned_order(seed, site, round_number, epoch, len(units)).tolist()
            epoch += 1
        indices, queue = queue[:batch], queue[batch:]
        gradient = _mean_gradient(current, _at(units, indices), model, loss)
        current = optimizer.step(current, gradient, parameters)
    check_same_layout(parameters, current)
    return current


def _at(units: Units, indices: list[int]) -> Units:
    return units.take(torch.tensor(indices, dtype=torch.int64).numpy())


def _mean_gradient(parameters: Parameters, batch: Units, model: nn.Module, loss: RowLoss) -> Parameters:
    leaves = {name: value.detach().clone().requires_grad_(True) for name, value in parameters.items()}
    count, rows = batch.mask.shape
    outputs = functional_call(model, {**_live_state(model, leaves), **leaves}, (batch.inputs.flatten(0, 1),))
    losses = loss(outputs, batch.targets.flatten(0, 1)).reshape(count, rows)
    mean = _row_means(losses, batch.mask).mean()
    gradients = torch.autograd.grad(mean, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {name: gradient.to(torch.float64) for name, gradient in zip(leaves, gradients, strict=True)}


def _row_means(losses: Tensor, mask: Tensor) -> Tensor:
    """Return each unit's mean loss over the rows that are there: `losses` and `mask` are [units, rows]."""
    there = torch.where(mask, losses, torch.zeros_like(losses))
    return there.sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def _live_state(model: nn.Module, trained: Mapping[str, Tensor]) -> Parameters:
    """Return frozen parameters, and the model's own buffers, so that running statistics move in place."""
    return {**frozen_state(model, trained), **dict(model.named_buffers())}
