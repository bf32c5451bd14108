"""About a second of checks on synthetic units, before any data is opened; a failure refuses the job.

Run by the coordinator at `validate` and by each site again. What is checked is what the guarantee rests on: one loss
and one gradient per unit (F2, F3, F7), no state that learns beside the parameters (F4, F9), the engine's sum (F5),
the clip under any gradient (F6), and the noise of an empty batch (F8). See privacy design, 5.10 and 5.11.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import torch
from torch import Tensor, nn

from privacy.accounting.schedule import Clipping, Schedule
from privacy.dpsgd.batches import Units
from privacy.dpsgd.bookkeeping import BookKeepingGradients
from privacy.dpsgd.engines import engine_for
from privacy.dpsgd.functional import (
    FunctionalGradients,
    Parameters,
    PerUnitGradients,
    RowLoss,
    trainable,
)
from privacy.dpsgd.model_rules import check_modules, require_trainable
from privacy.dpsgd.step import noisy_mean, use_full_precision_products
from privacy.dpsgd.trial import (
    coupled_module,
    different,
    gradient_alone,
    gradient_within_batch,
    is_random,
    leaves_of,
    micro_batch_for,
    norm_of,
    one_unit,
    outputs_of,
    relative_error,
    unit_losses,
)
from privacy.errors import (
    BatchCoupled,
    BuffersMoved,
    ClipExceeded,
    DryRunFailed,
    EngineWrong,
    LossShapeWrong,
    ModelRefused,
    NoiseWrong,
    PrivacyError,
    ReductionWrong,
    StateChanged,
)
from privacy.noise.keystream import KeyRoot, Purpose

UNITS_CHECKED: Final = 4
RELATIVE_ERROR: Final = 1e-5
RELATIVE_ERROR_CONVOLUTION: Final = 1e-3
BLOW_UP: Final = 1e4
NOISE_DEVIATIONS: Final = 6.0
MEMORY_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What was checked, for the audit log.

    Attributes:
        engine: The engine's name and version.
        checks: The checks that passed.
        gradients: The engine itself, with the micro-batch that the dry run gave.
        micro_batch: Most units that it takes at a time.
    """

    engine: str
    checks: tuple[str, ...]
    gradients: PerUnitGradients
    micro_batch: int


Result = TypeVar("Result")


class Engine(Protocol):
    """Makes an engine for a model."""

    def __call__(
        self, model: nn.Module, loss: RowLoss, *, micro_batch: int = 256, autocast: torch.dtype | None = None
    ) -> PerUnitGradients:
        """Return the engine."""
        ...


def preflight(
    model: nn.Module,
    loss: RowLoss,
    synthetic: Units,
    schedule: Schedule,
    *,
    engine: Engine = engine_for,
    memory_bytes: int = MEMORY_BYTES,
    local_noise: bool = True,
    autocast: torch.dtype | None = None,
) -> PreflightReport:
    """Return the report once every check has passed.

    Args:
        model: The model to be trained; what it marks as trainable is what is trained. Unchanged afterwards.
        loss: One loss per row, no reduction.
        synthetic: Units drawn from the data contract, at least 2; never real data.
        schedule: The job's.
        engine: Makes the engine to be checked; a book-keeping one that doesn't fit gives way to the functional one.
        memory_bytes: What one micro-batch may keep.
        local_noise: Whether every step's noise covers all coordinates at the site (M7).
        autocast: Reduced precision to train in; sums are compared without it, the clip is checked with it.

    Raises:
        PrivacyError: The class of the check that failed; no data may be opened.
    """
    use_full_precision_products()
    check_modules(model, local_noise=local_noise)
    require_trainable(model)
    few = Units(synthetic.inputs[:UNITS_CHECKED], synthetic.targets[:UNITS_CHECKED], synthetic.mask[:UNITS_CHECKED])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_loss_shape(model, loss, few)
    engine = _one_that_fits(engine, model, loss, few)
    micro_batch = _run(lambda: micro_batch_for(model, loss, few, memory_bytes))
    gradients = engine(model, loss, micro_batch=micro_batch, autocast=autocast)
    _dry_run(gradients, trainable(model), synthetic, schedule)
    check_buffers(model, before)
    check_gradients_exist(model, loss, few)
    check_batch_invariance(model, loss, few)
    exact = check_engine(engine, model, loss, few)
    check_clip(model, loss, few, schedule, engine, autocast=autocast)
    check_noise(trainable(model), schedule)
    check_state(model, before)
    passed = (
        *("M1", "M2", "M3", "M4", "M5", "M6", "M7", "F1", "F2", "F3", "F4"),
        *(("F5", "F7") if exact else ()),
        *("F6", "F8", "F9"),
    )
    return PreflightReport(gradients.version, passed, gradients, micro_batch)


def _one_that_fits(engine: Engine, model: nn.Module, loss: RowLoss, units: Units) -> Engine:
    """Return `engine`, or the functional one in the place of a book-keeping one that can't do this model."""
    if not isinstance(engine(model, loss), BookKeepingGradients):
        return engine
    try:
        check_engine(engine, model, loss, units)
        _run(lambda: engine(model, loss).clipped_sum(trainable(model), units, 1.0, Clipping.NORMALISED))
    except (EngineWrong, ReductionWrong, DryRunFailed):
        return FunctionalGradients
    return engine


def check_loss_shape(model: nn.Module, loss: RowLoss, units: Units) -> None:
    """F2: the loss of B rows has shape (B,): not a scalar, not (B, 1).

    Raises:
        LossShapeWrong: The shape found.
    """
    rows = units.inputs.flatten(0, 1)
    losses = _run(lambda: loss(outputs_of(model, trainable(model), rows), units.targets.flatten(0, 1)))
    if tuple(losses.shape) != (len(rows),):
        raise LossShapeWrong(
            f"F2: the loss of {len(rows)} rows has shape {tuple(losses.shape)}, it must be ({len(rows)},)"
        )


def check_buffers(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """F4: every buffer is bit-identical.

    Raises:
        BuffersMoved: Its name.
    """
    for name, value in model.named_buffers():
        if name in before and not torch.equal(value, before[name]):
            raise BuffersMoved(f"F4: buffer {name} changed during a step")


def check_gradients_exist(model: nn.Module, loss: RowLoss, units: Units) -> None:
    """M5: every trainable parameter has a gradient.

    Raises:
        ModelRefused: The names of those without.
    """
    parameters = leaves_of(trainable(model))
    value = unit_losses(model, loss, parameters, units).sum()
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    without = [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None]
    if without:
        raise ModelRefused(
            f"M5: {', '.join(without)} can be trained but gets no gradient", hint="freeze it, or use it in the model"
        )


def check_batch_invariance(model: nn.Module, loss: RowLoss, units: Units) -> None:
    """F3: with unit 0 replaced, the gradients of all other units stay what they were.

    Raises:
        BatchCoupled: By how much the worst one moved.
    """
    other = Units(
        torch.cat([different(units.inputs[:1]), units.inputs[1:]]),
        torch.cat([units.targets[-1:], units.targets[1:]]),
        units.mask,
    )
    for index in range(1, len(units)):
        first = gradient_within_batch(model, loss, units, index)
        second = gradient_within_batch(model, loss, other, index)
        error = relative_error(first, second)
        if not error <= RELATIVE_ERROR:
            path = coupled_module(model, units, other)
            raise BatchCoupled(
                f"F3: {path or 'the loss'} lets one unit move another's gradient by {error:.1e} of its size",
                hint=f"replace {path} by a module that treats each row alone, such as GroupNorm or LayerNorm"
                if path
                else "one loss per unit; weight units with a fixed denominator; for survival use discrete time",
            )


def check_engine(engine: Engine, model: nn.Module, loss: RowLoss, units: Units) -> bool:
    """F5 and F7: without noise the engine's sum is that of a plain loop over units, for units alone and together.

    Compared in evaluation mode, where dropout doesn't draw. Returns False, unchecked, for a model that draws even
    there: F3, F6 and the clip itself don't depend on the draw.

    Raises:
        EngineWrong: The sums differ.
        ReductionWrong: A unit's norm isn't that of a backward pass over that unit alone.
    """
    model = copy.deepcopy(model).eval()
    parameters = trainable(model)
    gradients = engine(model, loss)
    tolerance = RELATIVE_ERROR_CONVOLUTION if _has_convolution(model) else RELATIVE_ERROR
    if is_random(model, loss, units):
        return False
    alone = [gradient_alone(model, loss, parameters, units, index) for index in range(len(units))]
    largest = max(norm_of(gradient) for gradient in alone) or 1.0
    for index, gradient in enumerate(alone):
        one = gradients.clipped_sum(parameters, one_unit(units, index), _no_clip(largest), Clipping.THRESHOLD)
        if abs(norm_of(one.sums) - norm_of(gradient)) > tolerance * largest:
            raise ReductionWrong("F7: a unit's gradient norm isn't that of a backward pass over this unit alone")
    expected = {name: sum((gradient[name] for gradient in alone), torch.zeros(())) for name in parameters}
    found = gradients.clipped_sum(parameters, units, _no_clip(largest), Clipping.THRESHOLD)
    error = relative_error(expected, found.sums)
    if not error <= tolerance:
        raise EngineWrong(f"F5: the engine's sum is {error:.1e} away from a plain loop, {tolerance:.0e} is allowed")
    return True


def check_clip(
    model: nn.Module,
    loss: RowLoss,
    units: Units,
    schedule: Schedule,
    engine: Engine,
    *,
    autocast: torch.dtype | None = None,
) -> None:
    """F6: with gradients blown up by 10,000, each unit contributes a norm of at most C, and the sum is theirs.

    Raises:
        ClipExceeded: The norm found.
    """

    def blown_up(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs, targets) * BLOW_UP

    still = copy.deepcopy(model).eval()
    additive = autocast is None and not is_random(still, loss, units)
    parameters = trainable(model)
    live, quiet = (engine(each, blown_up, autocast=autocast) for each in (model, still))
    for clipping in Clipping:
        _check_contributions(live, parameters, units, schedule.clip, clipping, additive=False)
        _check_contributions(quiet, parameters, units, schedule.clip, clipping, additive=additive)


def _check_contributions(
    gradients: PerUnitGradients,
    parameters: Parameters,
    units: Units,
    clip: float,
    clipping: Clipping,
    *,
    additive: bool,
) -> None:
    """Refuse a unit above the clip and, where nothing is drawn, a sum that isn't that of the units alone."""
    alone = [
        gradients.clipped_sum(parameters, one_unit(units, index), clip, clipping).sums for index in range(len(units))
    ]
    for contribution in alone:
        if not norm_of(contribution) <= clip:
            raise ClipExceeded(f"F6: a unit contributes {norm_of(contribution):.6g}, the clip is {clip:.6g}")
    together = gradients.clipped_sum(parameters, units, clip, clipping).sums
    if not norm_of(together) <= clip * len(units):
        raise ClipExceeded(f"F6: {len(units)} units contribute {norm_of(together):.6g} at a clip of {clip:.6g}")
    if additive:
        expected = {name: torch.stack([part[name] for part in alone]).sum(0) for name in parameters}
        if not relative_error(expected, together) <= RELATIVE_ERROR_CONVOLUTION:
            raise ClipExceeded("F6: the clip is not applied to each unit, but to their sum or their mean")


def check_noise(parameters: Mapping[str, Tensor], schedule: Schedule) -> None:
    """F8: an empty batch gives a gradient with variance (σC/B)² over all coordinates.

    Raises:
        NoiseWrong: How far off it is.
    """
    empty = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}
    noisy = noisy_mean(empty, schedule, KeyRoot(Purpose.NOISE).derive("preflight"))
    values = torch.cat([value.flatten() for value in noisy.values()])
    deviation = schedule.noise_multiplier * schedule.clip / schedule.normaliser
    ratio = float((values / deviation).square().mean())
    if not abs(ratio - 1) <= NOISE_DEVIATIONS * 1.5 * math.sqrt(2 / values.numel()):
        raise NoiseWrong(f"F8: the noise has {ratio:.3f} times the variance that was accounted for")


def check_state(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """F9: names, shapes, types and values of the model's state are what they were.

    Raises:
        StateChanged: The name of the tensor.
    """
    after = model.state_dict()
    if list(after) != list(before):
        raise StateChanged("F9: the model's tensors have other names after a step")
    for name, value in after.items():
        old = before[name]
        if value.dtype != old.dtype or value.shape != old.shape or not torch.equal(value, old):
            raise StateChanged(f"F9: {name} of the model changed during a step")


def _dry_run(gradients: PerUnitGradients, parameters: Parameters, units: Units, schedule: Schedule) -> None:
    _run(lambda: gradients.clipped_sum(parameters, units, schedule.clip, schedule.clipping))


def _run(work: Callable[[], Result]) -> Result:
    """Return what `work` returns; what torch says against the model becomes a refusal (F1)."""
    try:
        return work()
    except PrivacyError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        raise DryRunFailed(
            f"F1: the model can't be run on synthetic data: {str(error).splitlines()[0][:200]}"
        ) from error


def _no_clip(largest: float) -> float:
    """Return a clip that no unit's gradient reaches."""
    return 4.0 * largest


def _has_convolution(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules())
