"""Which models may be trained: rules read off the modules, before anything is run (privacy design, 5.10).

All modules are looked at, also frozen ones, in whatever mode they are. Nothing is replaced automatically: a
replacement can erase what a model knows, so the message names one and a person decides.
"""

from typing import Final

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from privacy.errors import ModelRefused

RUNNING_STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")


def check_modules(model: nn.Module) -> None:
    """Refuse running statistics (M1) and lazy modules (M6).

    Raises:
        ModelRefused: Path of the module, and what may stand in its place.
    """
    for path, module in model.named_modules():
        name = f"{path or 'the model'} ({type(module).__name__})"
        kept = [buffer for buffer in RUNNING_STATISTICS if getattr(module, buffer, None) is not None]
        if kept or isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 (the common class of all BatchNorm)
            raise ModelRefused(
                f"M1: {name} mixes units, or keeps statistics of the data in the model",
                hint=f"replace {path or 'it'} by GroupNorm or LayerNorm",
            )
        if isinstance(module, LazyModuleMixin):
            raise ModelRefused(f"M6: {name} has no shape yet", hint=f"give {path or 'it'} its sizes")


def require_trainable(model: nn.Module) -> None:
    """Refuse a model in which nothing is trained.

    Raises:
        ModelRefused: It has no trainable parameter.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelRefused("M5: the model has no trainable parameter")
