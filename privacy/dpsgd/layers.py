"""The kinds of layer that the book-keeping engine knows, each turned into its part of the units' gradients.

| kind | gradient of one unit, over its positions p |
|---|---|
| Linear | weight Σ_p b_p a_pᵀ, bias Σ_p b_p |
| Conv1d, Conv2d, Conv3d | the same on the patches of the input, for each group of channels |
| LayerNorm, GroupNorm, RMSNorm | weight Σ_p b_p·x̂_p, bias Σ_p b_p |
| Embedding | row j: Σ_{p: a_p = j} b_p |

A subclass may do anything with its parameters, so only these very classes are taken.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from privacy.dpsgd.layer_parts import (
    Grads,
    LayerPart,
    Made,
    Product,
    Seen,
    cross_squares,
    cross_terms_are_cheaper,
    join,
    kept,
    scaled,
    squares_of,
)

_WEIGHT_OF: Final = (conv1d_weight, conv2d_weight, conv3d_weight)


def linear(seen: Seen) -> LayerPart:
    """Return the part of a Linear; inputs [units·rows, …, inputs]."""
    left = seen.by_unit(seen.inputs).flatten(1, -2)
    right = seen.by_unit(seen.slopes).flatten(1, -2)
    parts: list[LayerPart] = []
    if "weight" in seen.trained:
        parts.append(_matrix(left, right))
    if "bias" in seen.trained:
        parts.append(Made.of({"bias": right.sum(1)}))
    return join(parts)


def _matrix(left: Tensor, right: Tensor) -> LayerPart:
    positions, inputs, outputs = left.shape[1], left.shape[2], right.shape[2]

    def product(factor: Tensor) -> Tensor:
        return scaled(right, factor).flatten(0, 1).T @ kept(left, factor).flatten(0, 1)

    if positions == 1:
        return Product("weight", squares_of(left) * squares_of(right), product)
    if cross_terms_are_cheaper(positions, inputs, outputs):
        return Product("weight", cross_squares(left, right), product)
    return Made.of({"weight": right.transpose(1, 2) @ left})


def convolution(seen: Seen) -> LayerPart:
    """Return the part of a convolution with zero padding; inputs [units·rows, channels, …]."""
    parts: list[LayerPart] = []
    if "weight" in seen.trained:
        parts.append(_kernel(seen))
    if "bias" in seen.trained:
        parts.append(Made.of({"bias": seen.by_unit(seen.slopes).flatten(3).sum((1, 3))}))
    return join(parts)


def _kernel(seen: Seen) -> LayerPart:
    layer = cast("Any", seen.layer)
    groups, shape = layer.groups, tuple(layer.weight.shape)
    padded = _padded(layer, seen.inputs)
    patches = _patches(layer, padded)  # [units·rows, groups, inputs, positions]
    slopes = _grouped(seen.slopes.flatten(2), groups)
    inputs, outputs = patches.shape[2], slopes.shape[2]
    positions = patches.shape[3] * (len(patches) // seen.units)
    if cross_terms_are_cheaper(positions, inputs, outputs):
        left, right = (_positions_last_but_one(seen.by_unit(values)) for values in (patches, slopes))

        def product(factor: Tensor) -> Tensor:
            weight_of = cast("Callable[..., Tensor]", _WEIGHT_OF[len(shape) - 3])
            rows = factor.repeat_interleave(len(padded) // seen.units)
            moves = {"stride": layer.stride, "dilation": layer.dilation, "groups": groups}
            return weight_of(kept(padded, rows), shape, scaled(seen.slopes, rows), **moves)

        return Product("weight", cross_squares(left, right), product)
    made = seen.by_unit(slopes @ patches.transpose(2, 3)).sum(1)
    return Made.of({"weight": made.reshape(seen.units, *shape)})


def _positions_last_but_one(values: Tensor) -> Tensor:
    """Return [units, groups, rows·positions, channels] of [units, rows, groups, channels, positions]."""
    return values.permute(0, 2, 1, 4, 3).flatten(2, 3)


def _padded(layer: Any, inputs: Tensor) -> Tensor:
    sides = layer._reversed_padding_repeated_twice  # noqa: SLF001 (torch's own figures, also for padding="same")
    return functional.pad(inputs, sides) if any(sides) else inputs


def _patches(layer: Any, padded: Tensor) -> Tensor:
    """Return the patches that each output position sees: [rows, groups, inputs, positions]."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if len(kernel) < 3:
        flat = padded if len(kernel) == 2 else padded.unsqueeze(2)
        ones = (1,) * (2 - len(kernel))
        unfolded = functional.unfold(flat, (*ones, *kernel), dilation=(*ones, *dilation), stride=(*ones, *stride))
        return _grouped(unfolded, layer.groups)
    rows, channels, *sizes = padded.shape
    steps = padded.stride()
    places = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    view = padded.as_strided(
        (rows, channels, *kernel, *places),
        (*steps[:2], *(step * d for step, d in zip(steps[2:], dilation, strict=True)),
         *(step * s for step, s in zip(steps[2:], stride, strict=True))),
    )  # fmt: skip
    return view.reshape(rows, layer.groups, channels // layer.groups * math.prod(kernel), math.prod(places))


def _grouped(values: Tensor, groups: int) -> Tensor:
    """Return [rows, groups, channels, positions] of [rows, groups·channels, positions]."""
    rows, channels, positions = values.shape
    return values.reshape(rows, groups, channels // groups, positions)


def layer_norm(seen: Seen) -> LayerPart:
    """Return the part of a LayerNorm; inputs [units·rows, …, *normalized_shape]."""
    layer = cast("nn.LayerNorm", seen.layer)
    shape = layer.normalized_shape
    return _gains(seen, len(shape), lambda: functional.layer_norm(seen.inputs, shape, eps=layer.eps))


def rms_norm(seen: Seen) -> LayerPart:
    """Return the part of an RMSNorm; inputs [units·rows, …, *normalized_shape]."""
    layer = cast("nn.RMSNorm", seen.layer)
    shape = list(layer.normalized_shape)
    return _gains(seen, len(shape), lambda: functional.rms_norm(seen.inputs, shape, eps=layer.eps))


def _gains(seen: Seen, axes: int, normal: Callable[[], Tensor]) -> LayerPart:
    def summed(values: Tensor) -> Tensor:
        return seen.by_unit(values).flatten(1, -1 - axes).sum(1)

    gradients: Grads = {}
    if "weight" in seen.trained:
        gradients["weight"] = summed(seen.slopes * normal())
    if "bias" in seen.trained:
        gradients["bias"] = summed(seen.slopes)
    return Made.of(gradients)


def group_norm(seen: Seen) -> LayerPart:
    """Return the part of a GroupNorm; inputs [units·rows, channels, …]."""
    layer = cast("nn.GroupNorm", seen.layer)

    def summed(values: Tensor) -> Tensor:
        return seen.by_unit(values.flatten(2).sum(2) if values.ndim > 2 else values).sum(1)

    gradients: Grads = {}
    if "weight" in seen.trained:
        normal = functional.group_norm(seen.inputs, layer.num_groups, eps=layer.eps)
        gradients["weight"] = summed(seen.slopes * normal)
    if "bias" in seen.trained:
        gradients["bias"] = summed(seen.slopes)
    return Made.of(gradients)


def embedding(seen: Seen) -> LayerPart:
    """Return the part of an Embedding; inputs [units·rows, …] of indices."""
    layer = cast("nn.Embedding", seen.layer)
    indices = seen.by_unit(seen.inputs).flatten(1)
    slopes = seen.by_unit(seen.slopes).reshape(seen.units, indices.shape[1], -1)
    if layer.padding_idx is not None:
        slopes = torch.where((indices == layer.padding_idx)[..., None], torch.zeros_like(slopes), slopes)

    def product(factor: Tensor) -> Tensor:
        rows = scaled(slopes, factor).flatten(0, 1)
        return rows.new_zeros(layer.weight.shape).index_add_(0, indices.flatten(), rows)

    return Product("weight", _summed_by_index(indices, slopes), product)


def _summed_by_index(indices: Tensor, slopes: Tensor) -> Tensor:
    """Return for each unit the squared norm of the rows that its positions of equal index sum up to."""
    units, positions, width = slopes.shape
    order = indices.argsort(dim=1)
    first = indices.gather(1, order)
    fresh = torch.ones_like(first, dtype=torch.bool)
    fresh[:, 1:] = first[:, 1:] != first[:, :-1]
    place = (fresh.cumsum(1) - 1) + torch.arange(units, device=indices.device)[:, None] * positions
    rows = slopes.gather(1, order[..., None].expand(-1, -1, width)).flatten(0, 1)
    sums = torch.zeros_like(rows).index_add_(0, place.flatten(), rows)
    return squares_of(sums.reshape(units, -1))


Kind = Callable[[Seen], LayerPart]

KINDS: Final[Mapping[type[nn.Module], Kind]] = MappingProxyType(
    {
        nn.Linear: linear,
        nn.Conv1d: convolution,
        nn.Conv2d: convolution,
        nn.Conv3d: convolution,
        nn.LayerNorm: layer_norm,
        nn.RMSNorm: rms_norm,
        nn.GroupNorm: group_norm,
        nn.Embedding: embedding,
    }
)


def reason_against(layer: nn.Module) -> str:
    """Return why this layer isn't one that is known, or nothing."""
    if type(layer) not in KINDS:
        return f"{type(layer).__name__} has parameters of its own"
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        return f"{type(layer).__name__} pads with other values than zero"
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse):
        return "Embedding changes or scales its rows by how often they are used"
    return ""
