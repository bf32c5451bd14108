"""Low-rank adapters of our own: a frozen Linear and two small trained ones beside it (Hu et al. 2021).

Both matrices are plain Linear layers, so the book-keeping engine applies; the frozen tensors stay bit-identical and
are not sent. `merge` gives back an ordinary Linear with the same outputs (privacy design, 5.8).
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from privacy.errors import ModelRefused


class LoraLinear(nn.Module):
    """y = base(x) + (alpha/rank)·up(down(x)). `up` begins at zero, so the model begins as the base does.

    Args:
        base: The layer that is frozen.
        rank: Width between the two trained layers.
        alpha: Scale of what they add.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float | None = None) -> None:
        super().__init__()
        if not 1 <= rank <= min(base.in_features, base.out_features):
            raise ModelRefused(
                f"rank {rank} for a layer of {base.in_features} inputs and {base.out_features} outputs",
                hint=f"use a rank from 1 to {min(base.in_features, base.out_features)}",
            )
        kind = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False, **kind)
        self.up = nn.Linear(rank, base.out_features, bias=False, **kind)
        nn.init.zeros_(self.up.weight)
        self.scale = (rank if alpha is None else alpha) / rank

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs for `rows` [..., inputs]."""
        outputs: Tensor = self.base(rows) + self.scale * self.up(self.down(rows))
        return outputs

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Return one Linear that computes the same."""
        merged = nn.Linear(
            self.base.in_features,
            self.base.out_features,
            bias=self.base.bias is not None,
            device=self.base.weight.device,
            dtype=self.base.weight.dtype,
        )
        merged.weight.copy_(self.base.weight + self.scale * self.up.weight @ self.down.weight)
        if self.base.bias is not None:
            merged.bias.copy_(self.base.bias)
        return merged


def add_lora(model: nn.Module, paths: Iterable[str], *, rank: int, train: Iterable[str] = ()) -> nn.Module:
    """Freeze `model` and put an adapter at each of `paths`, in place; returns `model`.

    Args:
        model: Any model.
        paths: Paths of Linear layers.
        rank: Of every adapter.
        train: Paths of modules that are trained whole, such as the head.

    Raises:
        ModelRefused: A path that is no Linear layer; nothing was changed.
    """
    modules = dict(model.named_modules())
    chosen = {path: modules.get(path) for path in paths}
    for path, module in chosen.items():
        if type(module) is not nn.Linear:
            raise ModelRefused(f"{path} is no Linear layer", hint="name Linear layers of the model")
    model.requires_grad_(requires_grad=False)
    for path, module in chosen.items():
        if isinstance(module, nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, LoraLinear(module, rank))
    for path in train:
        model.get_submodule(path).requires_grad_(requires_grad=True)
    return model
