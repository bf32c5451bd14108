"""The architectures as torch modules; only site trainers and tests come here.

No module keeps running statistics, works in place or couples the units of a batch, so each can be trained under
per-unit clipping. `loss` has the shape (B,): one value for each unit, never reduced; the engine divides by the public
normaliser.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from federation.errors import InvalidInput
from federation.models.images import Cnn, Resnet18, flat
from federation.models.layout import manifest, outputs_of, require_width
from federation.models.sequences import Transformer
from federation.plan_fields import CnnModel, LogisticModel, MlpModel, ModelSpec, Resnet18Model, TransformerModel
from federation.tensor_file import Array


class Logistic(nn.Module):
    """One linear layer. Input (B, width) float32; output (B,) log-odds, or (B, classes)."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the log-odds of `rows`."""
        return flat(self.output(rows))


class Mlp(nn.Module):
    """Linear layers with an activation between. Input (B, width) float32; output (B,) log-odds, or (B, classes)."""

    def __init__(self, width: int, hidden: tuple[int, ...], activation: str, outputs: int) -> None:
        super().__init__()
        widths = (width, *hidden)
        self.layers = nn.ModuleList(nn.Linear(left, right) for left, right in pairwise(widths))
        self.activation = nn.ReLU() if activation == "relu" else nn.Tanh()
        self.output = nn.Linear(widths[-1], outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the log-odds of `rows`."""
        for layer in self.layers:
            rows = self.activation(layer(rows))
        return flat(self.output(rows))


def build(spec: ModelSpec, width: int, classes: int = 2) -> nn.Module:
    """Return an untrained module whose `state_dict` has exactly the tensors of `layout.manifest`.

    Its values are torch's own; `load` puts in those of the job before anything else happens.

    Raises:
        InvalidInput: Rows of another width than the model takes, or an impossible number of classes.
    """
    outputs = outputs_of(classes)
    require_width(spec, width)
    match spec:
        case LogisticModel():
            return Logistic(width, outputs)
        case MlpModel(hidden=hidden, activation=activation):
            return Mlp(width, hidden, activation, outputs)
        case CnnModel():
            return Cnn(spec, outputs)
        case Resnet18Model():
            return Resnet18(spec, outputs)
        case TransformerModel():
            return Transformer(spec, width, outputs)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each unit, shape (B,).

    Args:
        outputs: (B,) log-odds: binary cross entropy with logits; (B, classes): cross entropy.
        labels: (B,) float in [0, 1] for log-odds, (B,) int64 for classes.

    Raises:
        InvalidInput: The shapes don't belong together; a broadcast loss would couple the units of a batch.
    """
    if labels.ndim != 1 or outputs.ndim not in (1, 2) or outputs.shape[0] != labels.shape[0]:
        raise InvalidInput(
            "CFD-R62", f"outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)} don't belong together"
        )
    if outputs.ndim == 1:
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def load(module: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Put `arrays` into `module`: the same names, types and shapes, or nothing is changed.

    Raises:
        InvalidInput: Names the first tensor that doesn't fit.
    """
    present = module.state_dict()
    for name in sorted(set(present) ^ set(arrays)):
        raise InvalidInput("CFD-R60", f"tensor {name} is {'missing' if name in present else 'not in the model'}")
    tensors = {name: torch.from_numpy(np.array(array, copy=True)) for name, array in arrays.items()}
    for name, tensor in tensors.items():
        if tensor.dtype != present[name].dtype or tensor.shape != present[name].shape:
            found, wanted = (
                f"{tensor.dtype} {tuple(tensor.shape)}",
                f"{present[name].dtype} {tuple(present[name].shape)}",
            )
            raise InvalidInput("CFD-R60", f"tensor {name} is {found}, expected {wanted}")
    module.load_state_dict(tensors, strict=True)


def take(module: nn.Module) -> dict[str, Array]:
    """Return the module's tensors as numpy arrays, copied from wherever they are."""
    return {name: cast("Array", tensor.detach().cpu().numpy().copy()) for name, tensor in module.state_dict().items()}


__all__ = ["Cnn", "Logistic", "Mlp", "Resnet18", "Transformer", "build", "load", "loss", "manifest", "take"]
