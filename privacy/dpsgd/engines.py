"""Which gradient engine a model gets: book-keeping where it applies, else the functional one.

Both give the same sums; `privacy.dpsgd.preflight` holds the chosen one to a plain loop before any data is opened and
falls back to the functional engine where the book-keeping one turns out not to fit.
"""

import torch
from torch import nn

from privacy.dpsgd.bookkeeping import BookKeepingGradients, refusal
from privacy.dpsgd.functional import FunctionalGradients, PerUnitGradients, RowLoss


def engine_for(
    model: nn.Module, loss: RowLoss, *, micro_batch: int = 256, autocast: torch.dtype | None = None
) -> PerUnitGradients:
    """Return the cheaper engine whose rules the modules of `model` keep."""
    if refusal(model):
        return FunctionalGradients(model, loss, micro_batch=micro_batch, autocast=autocast)
    return BookKeepingGradients(model, loss, micro_batch=micro_batch, autocast=autocast)
