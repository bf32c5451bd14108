"""No unit contributes more than the clip, whatever its gradient (privacy design, 5.5).

Flat over all trainable coordinates jointly. Both kinds aim below C by a margin κ that covers rounding in sums
[P-4]; the noise is relative to C. A unit whose norm isn't finite contributes zero.
"""

from typing import Final

import torch
from torch import Tensor

from privacy.accounting.schedule import Clipping

NORM_FLOOR: Final = 0.01
"""The γ of automatic clipping (Bu et al. 2023): a gradient far below it keeps its proportion."""

MARGIN_FULL: Final = 2.0**-10
MARGIN_REDUCED: Final = 2.0**-7


def margin(*types: torch.dtype) -> float:
    """Return κ for a computation in which these types occur."""
    full = all(kind in (torch.float32, torch.float64) for kind in types)
    return MARGIN_FULL if full and not torch.backends.cuda.matmul.allow_tf32 else MARGIN_REDUCED


def factors(norms: Tensor, clip: float, clipping: Clipping, kappa: float) -> Tensor:
    """Return the factor of each unit's gradient, so that its norm is at most `clip` · (1 − `kappa`).

    Args:
        norms: [units], float64; may hold infinities and NaN.
        clip: C.
        clipping: normalised, C'/(‖g‖ + 0.01), or threshold, min(1, C'/‖g‖).
        kappa: The margin.
    """
    target = clip * (1.0 - kappa)
    if clipping is Clipping.NORMALISED:
        scale = target / (norms + NORM_FLOOR)
    else:
        scale = torch.clamp(target / norms, max=1.0)
        scale = torch.where(norms == 0, torch.ones_like(scale), scale)
    return torch.where(torch.isfinite(norms), scale, torch.zeros_like(scale))


def unit_norms(gradients: dict[str, Tensor]) -> Tensor:
    """Return the L2 norm of each unit's gradient over all tensors jointly, [units] in float64.

    Args:
        gradients: Name to [units, …].
    """
    squares = [
        torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=torch.float64) ** 2
        for gradient in gradients.values()
    ]
    return torch.stack(squares).sum(0).sqrt()


def clipped_sum(gradients: dict[str, Tensor], factor: Tensor) -> dict[str, Tensor]:
    """Return Σ factor_i · g_i for each tensor, in float64; a unit with factor zero adds exactly zero.

    Args:
        gradients: Name to [units, …]; values of units with factor zero may be anything.
        factor: [units], float64.
    """
    keep = factor > 0
    whole = bool(keep.all())
    sums = {}
    for name, gradient in gradients.items():
        flat = gradient.flatten(1)
        if not whole:
            flat = torch.where(keep[:, None], flat, torch.zeros_like(flat))
        sums[name] = (factor @ flat.to(torch.float64)).reshape(gradient.shape[1:])
    return sums
