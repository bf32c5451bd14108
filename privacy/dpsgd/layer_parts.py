"""What one layer adds to each unit's gradient, from the layer's input and the gradient of its output.

A part knows the squared norm of each unit's gradient of this layer, and Σ factor_i·g_i once the factors are known
(book-keeping: Bu et al. 2023, ICML). Either the gradient of each unit is made, which is one product and two passes over
it, or only its norm, from Σ_{s,t} (a_s·a_t)(b_s·b_t) over the unit's positions, and the product afterwards. The rows of
an entity are positions too, so cross terms between rows are counted.

The norm by cross terms can cancel: rounding could make it smaller than it is, and the clip would be broken. A bound of
that rounding is added, (Σ_s |a_s||b_s|)² times √(longest sum) roundings (Higham, Mary 2019), so that it errs upwards.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor, nn

PASS_PRODUCTS: Final = 100
"""Multiplications that cost as much as going over one coordinate of a unit's gradient; from measurements."""

Grads = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Factors:
    """The factor of each unit, and whether none of them is zero.

    Attributes:
        values: [units] float64.
        whole: Whether every unit is in the sum.
    """

    values: Tensor
    whole: bool

    @classmethod
    def of(cls, values: Tensor) -> "Factors":
        """Return the factors; looks once whether one is zero."""
        return cls(values, bool((values > 0).all()))

    def repeated(self, times: int) -> "Factors":
        """Return each unit's factor for each of its rows."""
        return self if times == 1 else Factors(self.values.repeat_interleave(times), self.whole)


class LayerPart(Protocol):
    """One layer's part of each unit's gradient."""

    @property
    def squares(self) -> Tensor:
        """Return the squared norms, [units] float64."""
        ...

    def weighted(self, factor: Factors) -> Grads:
        """Return Σ factor_i·g_i by the parameter's name in the layer; a unit with factor zero adds exactly zero."""
        ...


@dataclass(frozen=True, slots=True)
class Made:
    """Gradients of the units as they are: name to [units, …]."""

    gradients: Grads
    squares: Tensor

    @classmethod
    def of(cls, gradients: Grads) -> "Made":
        """Return the part with its norms."""
        return cls(gradients, total([squares_of(gradient) for gradient in gradients.values()]))

    def weighted(self, factor: Factors) -> Grads:
        """Return Σ factor_i·g_i."""
        result = {}
        for name, gradient in self.gradients.items():
            flat = kept(gradient.flatten(1), factor)
            result[name] = (factor.values.to(flat.dtype) @ flat).reshape(gradient.shape[1:])
        return result


@dataclass(frozen=True, slots=True)
class Product:
    """A weight's gradient whose norm is known and which is made for all units at once."""

    name: str
    squares: Tensor
    product: Callable[[Factors], Tensor]

    def weighted(self, factor: Factors) -> Grads:
        """Return Σ factor_i·g_i."""
        return {self.name: self.product(factor)}


@dataclass(frozen=True, slots=True)
class Joined:
    """Several parts of one layer."""

    parts: tuple[LayerPart, ...]

    @property
    def squares(self) -> Tensor:
        """Return the squared norms over all parts."""
        return total([part.squares for part in self.parts])

    def weighted(self, factor: Factors) -> Grads:
        """Return Σ factor_i·g_i of each."""
        return {name: value for part in self.parts for name, value in part.weighted(factor).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one layer did in one pass.

    Attributes:
        layer: The module.
        trained: Which of its own parameters are trained.
        inputs: Its input, [units·rows, …].
        slopes: Gradient of its output, [units·rows, …].
        units: How many units.
    """

    layer: nn.Module
    trained: frozenset[str]
    inputs: Tensor
    slopes: Tensor
    units: int

    def by_unit(self, values: Tensor) -> Tensor:
        """Return `values` with the rows of each unit beside each other: [units, rows, …]."""
        return values.reshape(self.units, -1, *values.shape[1:])


def squares_of(values: Tensor) -> Tensor:
    """Return the squared norm of each unit's values, float64."""
    norms: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms.to(torch.float64).square()


def kept(values: Tensor, factor: Factors) -> Tensor:
    """Return `values` with zeros for units whose factor is zero: they may hold NaN, which a product would spread."""
    if factor.whole:
        return values
    keep = (factor.values > 0).reshape(-1, *[1] * (values.ndim - 1))
    return torch.where(keep, values, torch.zeros_like(values))


def total(parts: list[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    return functools.reduce(torch.add, parts)


def scaled(values: Tensor, factor: Factors) -> Tensor:
    """Return each unit's values times its factor; zeros for a factor of zero."""
    weights = factor.values.to(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
    return torch.mul(kept(values, factor), weights)


def join(parts: list[LayerPart]) -> LayerPart:
    """Return one part that stands for several."""
    return parts[0] if len(parts) == 1 else Joined(tuple(parts))


# -- by cross terms ---------------------------------------------------------------------------------------------------


def cross_terms_are_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Return whether the norm from cross terms costs less than going over each unit's gradient."""
    return 2 * positions * positions * (inputs + outputs) < PASS_PRODUCTS * inputs * outputs


def products(vectors: Tensor) -> Tensor:
    """Return the products of all pairs of positions: [..., positions, positions] of [..., positions, width]."""
    return vectors @ vectors.transpose(-1, -2)


def cross_squares(first: Tensor, second: Tensor, longest: int) -> Tensor:
    """Return an upper bound, up to rounding, of ‖Σ_s a_s b_sᵀ‖² for each unit, float64.

    Args:
        first: [units, …, positions, positions], the a_s·a_t; axes between are summed over.
        second: The b_s·b_t.
        longest: How many numbers a vector a_s has.
    """
    lengths = (first.diagonal(dim1=-2, dim2=-1) * second.diagonal(dim1=-2, dim2=-1)).clamp(min=0).sqrt()
    roundings = math.sqrt(longest + first.shape[-1] ** 2)
    slack = 2 * roundings * torch.finfo(first.dtype).eps * lengths.sum(-1).to(torch.float64).square()
    exact = (first * second).sum((-1, -2)).to(torch.float64).clamp(min=0)
    return (exact + slack).reshape(len(first), -1).sum(1)
