"""The tensors of a named architecture and their first values, without torch. Pure.

`manifest` tells what a model of a plan holds; `initial` gives its first values from the plan's seed, so that the
coordinator makes the first model without torch and every party can make the same one.

| kind | layers, for inputs of width w | tensors (float32) |
|---|---|---|
| logistic | Linear(w, 1) | ``output.weight`` (1, w), ``output.bias`` (1,) |
| mlp, hidden h₀ … hₖ | Linear, activation, …, Linear(hₖ, 1) | ``layers.i.weight`` (hᵢ, hᵢ₋₁ or w), ``layers.i.bias`` (hᵢ,), ``output.weight`` (1, hₖ), ``output.bias`` (1,) |

With c > 2 classes the output has c rows; a logistic model or an MLP with two classes has one, the log-odds of the
positive class.

First values: biases 0, weights uniform in [−b, b] with b = √(3 / inputs) (tanh, outputs) or √(6 / inputs) (relu).
Element j of tensor n is b·(2·u/2⁵³ − 1), where u is the top 53 bits of big-endian word j mod 4 of
SHA-256("confide-initial/v1\\n" ‖ u64be(seed) ‖ u32be(length of n) ‖ n ‖ u64be(j div 4)). The value is computed in
binary64 and cast once. Nothing here is a secret: the seed stands in the plan, and no noise is ever taken from it.
"""  # noqa: E501 (one row of a table is one line)

import hashlib
import math
from typing import Final

import numpy as np

from federation.errors import InvalidInput
from federation.plan_checks import LATER_MODEL_KINDS, MODEL_KINDS
from federation.plan_fields import LogisticModel, MlpModel, ModelSpec
from federation.tensor_file import Array, Manifest, TensorSpec

_LABEL: Final = b"confide-initial/v1\n"
MAX_CLASSES: Final = 4096


def outputs_of(classes: int) -> int:
    """Return how many outputs a model has for `classes` classes: one for two, else one for each."""
    if not 2 <= classes <= MAX_CLASSES:
        raise InvalidInput("CFD-P03", f"{classes} classes, 2 to {MAX_CLASSES} are possible")
    return 1 if classes == 2 else classes


def require_kind(kind: str) -> None:
    """Raise `InvalidInput` (CFD-P07) unless this version has the architecture `kind`."""
    if kind not in MODEL_KINDS:
        later = " yet" if kind in LATER_MODEL_KINDS else ""
        raise InvalidInput(
            "CFD-P07", f"model {kind[:40]!r} is not in this version{later}, {', '.join(MODEL_KINDS)} are"
        )


def manifest(spec: ModelSpec, width: int, classes: int = 2) -> Manifest:
    """Return name, type and shape of every tensor of the model.

    Args:
        spec: The plan's model.
        width: Number of inputs, as the data contract encodes a row.
        classes: Number of classes of the label.

    Raises:
        InvalidInput: No inputs, or an impossible number of classes.
    """
    if width < 1:
        raise InvalidInput("CFD-P03", f"a model of {width} inputs")
    shapes: dict[str, tuple[int, ...]] = {}
    inputs = width
    for number, hidden in enumerate(_hidden(spec)):
        shapes[f"layers.{number}.weight"] = (hidden, inputs)
        shapes[f"layers.{number}.bias"] = (hidden,)
        inputs = hidden
    outputs = outputs_of(classes)
    shapes["output.weight"] = (outputs, inputs)
    shapes["output.bias"] = (outputs,)
    return Manifest.of({name: TensorSpec("F32", shape) for name, shape in shapes.items()})


def initial(spec: ModelSpec, width: int, classes: int = 2, *, seed: int) -> dict[str, Array]:
    """Return the first values of the model's tensors (float32), the same bits at every party."""
    arrays: dict[str, Array] = {}
    for name, tensor in manifest(spec, width, classes).tensors:
        if name.endswith(".bias"):
            arrays[name] = np.zeros(tensor.shape, dtype="<f4")
            continue
        inside = name.startswith("layers.") and isinstance(spec, MlpModel) and spec.activation == "relu"
        bound = math.sqrt((6.0 if inside else 3.0) / tensor.shape[1])
        values = bound * (2.0 * _uniform(name, tensor.elements, seed) - 1.0)
        arrays[name] = values.astype("<f4").reshape(tensor.shape)
    return arrays


def _hidden(spec: ModelSpec) -> tuple[int, ...]:
    match spec:
        case LogisticModel():
            return ()
        case MlpModel(hidden=hidden):
            return hidden


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
