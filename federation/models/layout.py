"""The tensors of a named architecture and their first values, without torch. Pure.

`manifest` tells what a model of a plan holds; `initial` gives its first values from the plan's seed, so that the
coordinator makes the first model without torch and every party can make the same one.

| kind | layers, for rows of width w | tensors (float32) |
|---|---|---|
| logistic | Linear(w, 1) | ``output.weight`` (1, w), ``output.bias`` (1,) |
| mlp, hidden h₀ … hₖ | Linear, activation, …, Linear(hₖ, 1) | ``layers.i.weight`` (hᵢ, hᵢ₋₁ or w), ``layers.i.bias`` (hᵢ,), ``output`` |
| cnn, k channels of H·W | Conv 8², 16 filters, stride 2; pool 2², stride 1; Conv 4², 32, stride 2; pool; Linear 32 | ``first.weight`` (16, k, 8, 8), ``second.weight`` (32, 16, 4, 4), ``hidden.weight`` (32, 32·h·w), their biases, ``output`` |
| resnet18, k channels, f filters | Conv 3²; 4 stages of 2 blocks with f, 2f, 4f, 8f channels, each Conv 3², GroupNorm, Conv 3², GroupNorm beside a shortcut; mean | ``stem.weight`` (f, k, 3, 3), ``stem_norm``, ``blocks.i.first``, ``first_norm``, ``second``, ``second_norm``; ``shortcut``, ``shortcut_norm`` where a stage begins with other channels; ``output`` |
| transformer, d wide, n tokens | tokens, positions; blocks of norm, attention, norm, Linear 4d; norm, mean | ``tokens.weight`` (vocabulary, d) or (d, w/n) with bias, ``positions.weight`` (n, d), ``blocks.i.first_norm``, ``attend`` (3d, d), ``join`` (d, d), ``second_norm``, ``widen`` (4d, d), ``narrow`` (d, 4d), ``norm``, ``output`` |

With c > 2 classes the output has c rows; with two classes it has one, the log-odds of the positive class. Images and
tokens lie in a row one after the other: channels, rows, columns; token by token.

First values: biases 0, gains of norms 1, other weights uniform in [−b, b] with b = √(6 / inputs) before a relu, 0.1·√3
for tables of words and positions, √(3 / inputs) elsewhere.
Element j of tensor n is b·(2·u/2⁵³ − 1), where u is the top 53 bits of big-endian word j mod 4 of
SHA-256("confide-initial/v1\\n" ‖ u64be(seed) ‖ u32be(length of n) ‖ n ‖ u64be(j div 4)). The value is computed in
binary64 and cast once. Nothing here is a secret: the seed stands in the plan, and no noise is ever taken from it.
"""  # noqa: E501 (one row of a table is one line)

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from federation.errors import InvalidInput
from federation.plan_fields import CnnModel, LogisticModel, MlpModel, ModelSpec, Resnet18Model, TransformerModel
from federation.tensor_file import Array, Manifest, TensorSpec

_LABEL: Final = b"confide-initial/v1\n"
MAX_CLASSES: Final = 4096


def outputs_of(classes: int) -> int:
    """Return how many outputs a model has for `classes` classes: one for two, else one for each."""
    if not 2 <= classes <= MAX_CLASSES:
        raise InvalidInput("CFD-P03", f"{classes} classes, 2 to {MAX_CLASSES} are possible")
    return 1 if classes == 2 else classes


def manifest(spec: ModelSpec, width: int, classes: int = 2) -> Manifest:
    """Return name, type and shape of every tensor of the model.

    Args:
        spec: The plan's model.
        width: Number of inputs, as the data contract encodes a row.
        classes: Number of classes of the label.

    Raises:
        InvalidInput: No inputs, or an impossible number of classes.
    """
    return Manifest.of({tensor.name: TensorSpec("F32", tensor.shape) for tensor in _tensors(spec, width, classes)})


def initial(spec: ModelSpec, width: int, classes: int = 2, *, seed: int) -> dict[str, Array]:
    """Return the first values of the model's tensors (float32), the same bits at every party."""
    arrays: dict[str, Array] = {}
    for tensor in _tensors(spec, width, classes):
        if tensor.bound is None:
            arrays[tensor.name] = np.full(tensor.shape, float(tensor.name.endswith(".weight")), dtype="<f4")
            continue
        values = tensor.bound * (2.0 * _uniform(tensor.name, math.prod(tensor.shape), seed) - 1.0)
        arrays[tensor.name] = values.astype("<f4").reshape(tensor.shape)
    return {name: arrays[name] for name in sorted(arrays)}


def require_width(spec: ModelSpec, width: int) -> None:
    """Raise `InvalidInput` (CFD-P03) unless rows of `width` numbers are what the model takes."""
    if width < 1:
        raise InvalidInput("CFD-P03", f"a model of {width} inputs")
    match spec:
        case CnnModel() | Resnet18Model():
            wanted = spec.channels * spec.height * spec.width
            if width != wanted:
                raise InvalidInput(
                    "CFD-P03",
                    f"images of {spec.channels} * {spec.height} * {spec.width} = {wanted} numbers, a row has {width}",
                )
        case TransformerModel():
            if width % spec.tokens or (spec.vocabulary is not None and width != spec.tokens):
                raise InvalidInput("CFD-P03", f"{spec.tokens} tokens, a row of {width} numbers isn't cut into them")
            if spec.dim % spec.heads:
                raise InvalidInput("CFD-P03", f"dim {spec.dim} is no multiple of heads {spec.heads}")
        case _:
            pass


def cnn_map(size: int) -> int:
    """Return how many places of an axis of `size` pixels are left before the hidden layer of a cnn."""
    return ((size // 2 - 1) - 4) // 2


def resnet_blocks(filters: int) -> Iterator[tuple[int, int, int]]:
    """Yield channels in, channels out and stride of each block of a resnet18."""
    channels = filters
    for stage in range(4):
        for place in range(2):
            wide = filters << stage
            yield channels, wide, 2 if stage and not place else 1
            channels = wide


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor; its first values fill [−bound, bound], or are 1 for a weight and 0 for a bias where None."""

    name: str
    shape: tuple[int, ...]
    bound: float | None = None


def _layer(name: str, shape: tuple[int, ...], *, relu: bool = False, bias: bool = True) -> Iterator[_Tensor]:
    yield _Tensor(f"{name}.weight", shape, math.sqrt((6.0 if relu else 3.0) / math.prod(shape[1:])))
    if bias:
        yield _Tensor(f"{name}.bias", shape[:1])


def _norm(name: str, channels: int) -> Iterator[_Tensor]:
    yield _Tensor(f"{name}.weight", (channels,))
    yield _Tensor(f"{name}.bias", (channels,))


def _tensors(spec: ModelSpec, width: int, classes: int) -> Iterator[_Tensor]:
    """Yield every tensor of the model; its last layer has an output for each class, or one for two."""
    require_width(spec, width)
    match spec:
        case LogisticModel():
            inputs = width
        case MlpModel():
            inputs = width
            for number, hidden in enumerate(spec.hidden):
                yield from _layer(f"layers.{number}", (hidden, inputs), relu=spec.activation == "relu")
                inputs = hidden
        case CnnModel():
            inputs = 32
            yield from _layer("first", (16, spec.channels, 8, 8), relu=True)
            yield from _layer("second", (32, 16, 4, 4), relu=True)
            yield from _layer("hidden", (32, 32 * cnn_map(spec.height) * cnn_map(spec.width)), relu=True)
        case Resnet18Model():
            inputs = 8 * spec.filters
            yield from _resnet(spec)
        case TransformerModel():
            inputs = spec.dim
            yield from _transformer(spec, width)
    yield from _layer("output", (outputs_of(classes), inputs))


def _resnet(spec: Resnet18Model) -> Iterator[_Tensor]:
    yield from _layer("stem", (spec.filters, spec.channels, 3, 3), relu=True, bias=False)
    yield from _norm("stem_norm", spec.filters)
    for number, (channels, wide, _) in enumerate(resnet_blocks(spec.filters)):
        block = f"blocks.{number}"
        yield from _layer(f"{block}.first", (wide, channels, 3, 3), relu=True, bias=False)
        yield from _norm(f"{block}.first_norm", wide)
        yield from _layer(f"{block}.second", (wide, wide, 3, 3), relu=True, bias=False)
        yield from _norm(f"{block}.second_norm", wide)
        if channels != wide:
            yield from _layer(f"{block}.shortcut", (wide, channels, 1, 1), bias=False)
            yield from _norm(f"{block}.shortcut_norm", wide)


def _transformer(spec: TransformerModel, width: int) -> Iterator[_Tensor]:
    dim, table = spec.dim, 0.1 * math.sqrt(3.0)
    if spec.vocabulary is None:
        yield from _layer("tokens", (dim, width // spec.tokens))
    else:
        yield _Tensor("tokens.weight", (spec.vocabulary, dim), table)
    yield _Tensor("positions.weight", (spec.tokens, dim), table)
    for number in range(spec.layers):
        block = f"blocks.{number}"
        yield from _norm(f"{block}.first_norm", dim)
        yield from _layer(f"{block}.attend", (3 * dim, dim))
        yield from _layer(f"{block}.join", (dim, dim))
        yield from _norm(f"{block}.second_norm", dim)
        yield from _layer(f"{block}.widen", (4 * dim, dim), relu=True)
        yield from _layer(f"{block}.narrow", (dim, 4 * dim))
    yield from _norm("norm", dim)


def _uniform(name: str, count: int, seed: int) -> Array:
    """Return `count` binary64 numbers in [0, 1): the seed's stream for one tensor."""
    text = name.encode("utf-8")
    prefix = hashlib.sha256(_LABEL + seed.to_bytes(8, "big") + len(text).to_bytes(4, "big") + text)
    stream = bytearray()
    for block in range(-(-count // 4)):
        hasher = prefix.copy()
        hasher.update(block.to_bytes(8, "big"))
        stream += hasher.digest()
    words = np.frombuffer(bytes(stream), dtype=">u8")[:count]
    return (words >> np.uint64(11)).astype(np.float64) / float(2**53)
