"""An exponential moving average of noisy iterates: post-processing, which costs no privacy (privacy design, 5.7)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from privacy.errors import ScheduleInvalid


class MovingAverage:
    """ā ← decay·ā + (1 − decay)·θ, without the pull towards zero at the start (Adam's correction).

    Args:
        decay: Weight of what was there, 0 to below 1; at 0 the average is the newest iterate.
    """

    def __init__(self, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ScheduleInvalid(f"a moving average with decay {decay}", hint="use a decay from 0 to below 1")
        self._decay = decay
        self._weight = 0.0
        self._sums: dict[str, Tensor] = {}

    def add(self, parameters: Mapping[str, Tensor]) -> None:
        """Take in the parameters after one more noisy step."""
        self._weight = self._decay * self._weight + (1 - self._decay)
        for name, value in parameters.items():
            before = self._sums.get(name, torch.zeros_like(value, dtype=torch.float64))
            self._sums[name] = self._decay * before + (1 - self._decay) * value.to(torch.float64)

    def value(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the average in the types of `parameters`; these themselves before the first step."""
        if not self._weight:
            return dict(parameters)
        return {name: (self._sums[name] / self._weight).to(value.dtype) for name, value in parameters.items()}
