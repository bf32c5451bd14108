"""Which models may be trained: rules read off the modules, before anything is run (privacy design, 5.10).

All modules are looked at, also frozen ones, in whatever mode they are. Nothing is replaced automatically: a
replacement can erase what a model knows, so the message names one and a person decides.
"""

from typing import Final

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from privacy.errors import ModelRefused

RUNNING_STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")


def check_modules(model: nn.Module, *, local_noise: bool = True) -> None:
    """Refuse running statistics (M1), attention across units (M2), modules that can't be followed (M6), and rows that
    few units touch where no noise of the site covers them (M7). Tied weights (M4) are left to the functional engine.

    Args:
        model: All its modules are looked at, also frozen ones.
        local_noise: Whether every step's noise covers all coordinates at the site.

    Raises:
        ModelRefused: Path of the module, and what may stand in its place.
    """
    for path, module in model.named_modules():
        name, it = f"{path or 'the model'} ({type(module).__name__})", path or "it"
        kept = [buffer for buffer in RUNNING_STATISTICS if getattr(module, buffer, None) is not None]
        if kept or isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 (the common class of all BatchNorm)
            raise ModelRefused(
                f"M1: {name} mixes units, or keeps statistics of the data in the model",
                hint=f"replace {it} by GroupNorm or LayerNorm",
            )
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and not module.batch_first:
            raise ModelRefused(
                f"M2: {name} takes the first axis, which is that of units, for time", hint=f"give {it} batch_first=True"
            )
        if isinstance(module, LazyModuleMixin):
            raise ModelRefused(f"M6: {name} has no shape yet", hint=f"give {it} its sizes")
        if _is_spectral(module):
            raise ModelRefused(
                f"M6: {name} estimates the norm of its weight in a buffer, with each pass",
                hint=f"take spectral_norm off {it}; clipping already bounds each unit's gradient",
            )
        if not local_noise and isinstance(module, nn.Embedding) and module.weight.requires_grad:
            raise ModelRefused(
                f"M7: {name} has rows that only a few units touch, and no noise of the site covers them",
                hint=f"use local-dp-sgd, or freeze {it}",
            )


def _is_spectral(module: nn.Module) -> bool:
    parts = [module, *(part for part in getattr(module, "parametrizations", {}).values())]
    hooks = list(module._forward_pre_hooks.values())  # noqa: SLF001 (where torch.nn.utils.spectral_norm sits)
    inner = [entry for part in parts for entry in (part if isinstance(part, nn.ModuleList) else [part])]
    return any("SpectralNorm" in type(entry).__name__ for entry in [*hooks, *inner])


def require_trainable(model: nn.Module) -> None:
    """Refuse a model in which nothing is trained.

    Raises:
        ModelRefused: It has no trainable parameter.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelRefused("M5: the model has no trainable parameter")
