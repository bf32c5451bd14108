"""The book-keeping gradient engine: one forward pass, one backward pass for the gradients of layer outputs alone.

Interchangeable with the functional engine through `PerUnitGradients`, and cheaper: no gradient of a parameter is made
by autograd, so none ever lies in `.grad`. Each trained layer's input is kept on the way forward; its part of the
units' gradients is made on the way back (`layers`), as soon as the gradient of its output is there. Norms are added
over all layers; then one weighted sum per layer gives Σ clip(g_i).

Not for every model: a parameter used twice, layers of other kinds, inputs that are changed in place. `refusal` says so
of the modules before anything runs, the pass itself refuses what only shows then, and the pre-flight holds the sum to a
plain loop. What is refused here goes to the functional engine (privacy design, 5.4).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from privacy.accounting.schedule import Clipping
from privacy.dpsgd.batches import Units
from privacy.dpsgd.clipping import factors, margin
from privacy.dpsgd.functional import ClippedSum, RowLoss, reduced_precision
from privacy.dpsgd.layer_parts import Factors, LayerPart, Seen, total
from privacy.dpsgd.layers import KINDS, reason_against
from privacy.errors import EngineUnsuitable


class BookKeepingGradients:
    """Per-unit gradients from layer inputs and the gradients of layer outputs, in micro-batches.

    Args:
        model: What it marks as trainable is what is trained; its values are given to each call.
        loss: One loss per row, no reduction.
        micro_batch: Most units at a time; changes neither sums nor epsilon.
        autocast: Reduced precision of the forward and backward pass; norms and sums stay in that of the parameters.

    Raises:
        EngineUnsuitable: A module that this engine doesn't know.
    """

    version = f"book-keeping/1 torch {torch.__version__}"

    def __init__(
        self, model: nn.Module, loss: RowLoss, *, micro_batch: int = 256, autocast: torch.dtype | None = None
    ) -> None:
        reason = refusal(model)
        if reason:
            raise EngineUnsuitable(reason)
        self._model = model
        self._loss = loss
        self._micro_batch = micro_batch
        self._autocast = autocast
        self._layers = {path: _trained_of(module) for path, module in model.named_modules() if _trained_of(module)}

    def clipped_sum(
        self, parameters: Mapping[str, Tensor], units: Units, clip: float, clipping: Clipping
    ) -> ClippedSum:
        """Return Σ clip(g_i) over `units`; zeros for none.

        Raises:
            EngineUnsuitable: A layer ran twice, or its input was changed in place.
        """
        sums: dict[str, Tensor] = {}
        left_out = 0
        kappa = margin(self._autocast or torch.float32, *(value.dtype for value in parameters.values()))
        for batch in units.micro_batches(self._micro_batch):
            parts = self._parts(parameters, batch)
            squares = [part.squares for part in parts.values()]
            norms = (total(squares) if squares else torch.zeros_like(batch.mask[:, 0], dtype=torch.float64)).sqrt()
            factor = factors(norms, clip, clipping, kappa)
            weights = Factors.of(factor)
            for path, part in parts.items():
                for name, value in part.weighted(weights).items():
                    whole = f"{path}.{name}" if path else name
                    sums[whole] = sums[whole].add_(value) if whole in sums else value.to(torch.float64)
            left_out += 0 if weights.whole else int((factor == 0).sum())
        for name in parameters.keys() - sums.keys():
            sums[name] = torch.zeros_like(parameters[name], dtype=torch.float64)
        return ClippedSum(sums, left_out)

    def _parts(self, parameters: Mapping[str, Tensor], units: Units) -> dict[str, LayerPart]:
        """Return each layer's part of the units' gradients at `parameters`."""
        trained = {name: value.detach() for name, value in parameters.items()}
        watch = _Watch(len(units), next(iter(trained.values())).dtype)
        with watch.over(self._model, self._layers), torch.enable_grad():
            with reduced_precision(units.inputs.device, self._autocast):
                outputs = functional_call(self._model, trained, (units.inputs.flatten(0, 1),))
                losses = self._loss(outputs, units.targets.flatten(0, 1))
            watch.back(total_loss(losses, units.mask))
        return watch.parts


def total_loss(losses: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over units of the masked mean of a unit's losses: `losses` [units·rows], `mask` [units, rows]."""
    table = losses.reshape(mask.shape)
    there = torch.where(mask, table, torch.zeros_like(table))
    return (there.sum(1) / mask.sum(1).clamp(min=1)).sum()


def refusal(model: nn.Module) -> str:
    """Return why this engine can't be used for `model`, with the module's path, or nothing."""
    uses = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False) if value.requires_grad)
    for path, module in model.named_modules():
        if not _trained_of(module):
            continue
        reason = reason_against(module)
        if reason:
            return f"{path or 'the model'}: {reason}"
        if any(uses[id(value)] > 1 for value in module.parameters(recurse=False)):
            return f"{path or 'the model'}: shares a parameter with another module"
    return ""


def _trained_of(module: nn.Module) -> frozenset[str]:
    return frozenset(name for name, value in module.named_parameters(recurse=False) if value.requires_grad)


@dataclass(slots=True)
class _Call:
    """One call of one layer: its input, and the input's version then."""

    path: str
    layer: nn.Module
    trained: frozenset[str]
    inputs: Tensor
    version: int


@dataclass(slots=True)
class _Watch:
    """What the trained layers see in one pass."""

    units: int
    kind: torch.dtype
    parts: dict[str, LayerPart] = field(default_factory=dict)
    _calls: dict[str, _Call] = field(default_factory=dict)
    _roots: dict[str, Tensor] = field(default_factory=dict)

    @contextmanager
    def over(self, model: nn.Module, layers: Mapping[str, frozenset[str]]) -> Iterator[None]:
        """Watch the trained layers of `model` for one pass."""
        handles = [
            model.get_submodule(path).register_forward_hook(self._hook(path, trained))
            for path, trained in layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def back(self, total: Tensor) -> None:
        """Make every layer's part from the gradients of `total` by the layers' outputs."""
        if not self._calls or not total.requires_grad:
            return
        names = list(self._roots)
        slopes = torch.autograd.grad(total, [self._roots[name] for name in names], allow_unused=True)
        for name, slope in zip(names, slopes, strict=True):
            if slope is not None:
                self._keep(name, slope)

    def _hook(self, path: str, trained: frozenset[str]) -> Any:
        def forward(layer: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                return output
            if path in self._calls:
                raise EngineUnsuitable(f"{path or 'the model'} runs twice in one pass")
            inputs = arguments[0].detach()
            self._calls[path] = _Call(path, layer, trained, inputs, inputs._version)  # noqa: SLF001 (torch's own count)
            if output.requires_grad:
                output.register_hook(lambda slope: self._keep(path, slope))  # type: ignore[no-untyped-call]
                return output
            self._roots[path] = output.detach().requires_grad_()
            return self._roots[path]

        return forward

    def _keep(self, path: str, slopes: Tensor) -> None:
        call = self._calls[path]
        if call.inputs._version != call.version:  # noqa: SLF001
            raise EngineUnsuitable(f"the input of {path or 'the model'} was changed in place")
        rows = len(slopes)
        if len(call.inputs) != rows or rows % max(self.units, 1):
            raise EngineUnsuitable(f"{path or 'the model'} doesn't have the units on its first axis")
        inputs = call.inputs if not call.inputs.is_floating_point() else call.inputs.to(self.kind)
        seen = Seen(
            layer=call.layer, trained=call.trained, inputs=inputs, slopes=slopes.to(self.kind), units=self.units
        )
        self.parts[path] = KINDS[type(call.layer)](seen)
        call.inputs = inputs[:0]
