"""From a noisy gradient to the next parameters. Everything here is after the noise and costs no privacy.

Weight decay and the proximal term live here and nowhere else: in the loss they would be dropped by some engines and
escape the clip in others (privacy design, 5.7). One object serves a round; its state never leaves the trainer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from privacy.errors import ScheduleInvalid


class Optimizer(Protocol):
    """One rule for the next parameters."""

    def step(
        self, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the next parameters.

        Args:
            parameters: Current ones.
            gradient: Noisy mean gradient, float64.
            start: The global model that the round began with, for the proximal term.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is added to the gradient after the noise: weight_decay·θ + proximal·(θ − θ_global)."""

    weight_decay: float = 0.0
    proximal: float = 0.0

    def add(self, gradient: Tensor, parameter: Tensor, start: Tensor) -> Tensor:
        """Return `gradient` with both terms, float64 as it is."""
        if self.weight_decay:
            gradient = torch.add(gradient, parameter, alpha=self.weight_decay)
        if self.proximal:
            gradient = torch.add(gradient, parameter.to(torch.float64) - start, alpha=self.proximal)
        return gradient


class Sgd:
    """θ ← θ − lr·(momentum·v + g)."""

    def __init__(self, lr: float, *, momentum: float = 0.0, terms: Terms | None = None) -> None:
        self.lr = lr
        self._momentum = momentum
        self._terms = terms or Terms()
        self._velocity: dict[str, Tensor] = {}

    def step(
        self, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the next parameters."""
        result = {}
        for name, parameter in parameters.items():
            direction = self._terms.add(gradient[name], parameter, start[name])
            if self._momentum:
                direction = direction + self._momentum * self._velocity.get(name, torch.zeros_like(direction))
                self._velocity[name] = direction
            result[name] = parameter - (self.lr * direction).to(parameter.dtype)
        return result


class Adam:
    """Adam (Kingma, Ba 2015); with `decoupled`, weight decay as in AdamW (Loshchilov, Hutter 2019)."""

    def __init__(
        self,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        decoupled: bool = False,
        terms: Terms | None = None,
    ) -> None:
        self.lr = lr
        self._betas = betas
        self._epsilon = epsilon
        self._decoupled = decoupled
        self._terms = terms or Terms()
        self._first: dict[str, Tensor] = {}
        self._second: dict[str, Tensor] = {}
        self._correction = [1.0, 1.0]

    def step(
        self, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the next parameters."""
        one, two = self._betas
        self._correction = [self._correction[0] * one, self._correction[1] * two]
        added = Terms(proximal=self._terms.proximal) if self._decoupled else self._terms
        result = {}
        for name, parameter in parameters.items():
            current = parameter.to(torch.float64)
            direction = added.add(gradient[name], current, start[name].to(torch.float64))
            zeros = torch.zeros_like(direction)
            self._first[name] = one * self._first.get(name, zeros) + (1 - one) * direction
            self._second[name] = two * self._second.get(name, zeros) + (1 - two) * direction**2
            mean = self._first[name] / (1 - self._correction[0])
            deviation = (self._second[name] / (1 - self._correction[1])).sqrt() + self._epsilon
            if self._decoupled:
                current = current * (1 - self.lr * self._terms.weight_decay)
            result[name] = (current - self.lr * mean / deviation).to(parameter.dtype)
        return result


def optimizer_for(
    name: str, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, proximal: float = 0.0
) -> Optimizer:
    """Return the optimizer that a plan names: sgd, adam or adamw.

    Raises:
        ScheduleInvalid: Another name.
    """
    terms = Terms(weight_decay=weight_decay, proximal=proximal)
    if name == "sgd":
        return Sgd(lr, momentum=momentum, terms=terms)
    if name in ("adam", "adamw"):
        return Adam(lr, decoupled=name == "adamw", terms=terms)
    raise ScheduleInvalid(f"optimizer {name!r} is unknown", hint="use sgd, adam or adamw")
