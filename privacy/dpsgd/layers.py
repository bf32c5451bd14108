"""The kinds of layer that the book-keeping engine knows, each turned into its part of the units' gradients.

| kind | gradient of one unit, over its positions p |
|---|---|
| Linear | weight Σ_p b_p a_pᵀ, bias Σ_p b_p |
| Conv1d, Conv2d, Conv3d | the same on the patches of the input, for each group of channels |
| LayerNorm, GroupNorm, RMSNorm | weight Σ_p b_p·x̂_p, bias Σ_p b_p |
| Embedding | row j: Σ_{p: a_p = j} b_p |

A subclass may do anything with its parameters, so only these very classes are taken.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from privacy.dpsgd.layer_parts import (
    PASS_PRODUCTS,
    Factors,
    Grads,
    LayerPart,
    Made,
    Product,
    Seen,
    cross_squares,
    cross_terms_are_cheaper,
    join,
    kept,
    products,
    scaled,
    squares_of,
)
from privacy.errors import EngineUnsuitable

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

    def product(factor: Factors) -> Tensor:
        return scaled(right, factor).flatten(0, 1).T @ kept(left, factor).flatten(0, 1)

    if positions == 1:
        return Product("weight", squares_of(left) * squares_of(right), product)
    if cross_terms_are_cheaper(positions, inputs, outputs):
        return Product("weight", cross_squares(products(left), products(right), inputs), product)
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
    slopes = _grouped(seen.slopes.flatten(2), groups)
    channels, inputs, outputs = shape[1], math.prod(shape[1:]), slopes.shape[2]
    positions = slopes.shape[3] * (len(slopes) // seen.units)
    if 2 * positions**2 * (channels + outputs) < PASS_PRODUCTS * inputs * outputs:
        right = _positions_last_but_one(seen.by_unit(slopes))

        def product(factor: Factors) -> Tensor:
            weight_of = cast("Callable[..., Tensor]", _WEIGHT_OF[len(shape) - 3])
            rows = factor.repeated(len(padded) // seen.units)
            moves = {"stride": layer.stride, "dilation": layer.dilation, "groups": groups}
            return weight_of(kept(padded, rows), shape, scaled(seen.slopes, rows), **moves)

        return Product("weight", cross_squares(_patch_products(seen, layer, padded), products(right), inputs), product)
    made = seen.by_unit(slopes @ _patches(layer, padded).transpose(2, 3)).sum(1)
    return Made.of({"weight": made.reshape(seen.units, *shape)})


def _positions_last_but_one(values: Tensor) -> Tensor:
    """Return [units, groups, rows·positions, channels] of [units, rows, groups, channels, positions]."""
    return values.permute(0, 2, 1, 4, 3).flatten(2, 3)


def _padded(layer: Any, inputs: Tensor) -> Tensor:
    sides = layer._reversed_padding_repeated_twice  # noqa: SLF001 (torch's own figures, also for padding="same")
    return functional.pad(inputs, sides) if any(sides) else inputs.contiguous()


def _places(layer: Any, sizes: Sequence[int]) -> list[int]:
    """Return how many positions a convolution has along each axis of a padded input of `sizes`."""
    moves = zip(sizes, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    return [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in moves]


def _patches(layer: Any, padded: Tensor) -> Tensor:
    """Return the patches that each output position sees: [rows, groups, inputs, positions]."""
    rows, channels, *sizes = padded.shape
    own, kernel, places = padded.stride()[2:], layer.kernel_size, _places(layer, sizes)
    within = [step * d for step, d in zip(own, layer.dilation, strict=True)]
    between = [step * s for step, s in zip(own, layer.stride, strict=True)]
    view = padded.as_strided((rows, channels, *kernel, *places), (*padded.stride()[:2], *within, *between))
    return view.reshape(rows, layer.groups, channels // layer.groups * math.prod(kernel), math.prod(places))


def _patch_products(seen: Seen, layer: Any, padded: Tensor) -> Tensor:
    """Return the products of all pairs of patches, [units, groups, rows·positions, rows·positions].

    A product of two patches is the sum over the kernel's places of products of two pixels, so the patches themselves
    needn't be made.
    """
    rows, _, *sizes = padded.shape
    per_unit, places = rows // seen.units, _places(layer, sizes)
    pixels = _positions_last_but_one(seen.by_unit(_grouped(padded.flatten(2), layer.groups)))
    pairs = products(pixels).reshape(seen.units, layer.groups, per_unit, *sizes, per_unit, *sizes)
    total: Tensor | None = None
    for offset in itertools.product(*(range(size) for size in layer.kernel_size)):
        moves = zip(offset, layer.dilation, layer.stride, places, strict=True)
        window = tuple(slice(o * d, o * d + (count - 1) * s + 1, s) for o, d, s, count in moves)
        part = pairs[:, :, :, *window, :, *window]
        total = part.clone() if total is None else total.add_(part)
    if total is None:
        raise EngineUnsuitable("a convolution without a kernel")
    positions = per_unit * math.prod(places)
    return total.reshape(seen.units, layer.groups, positions, positions)


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

    def product(factor: Factors) -> Tensor:
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
