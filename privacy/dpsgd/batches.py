"""Units as tensors: [units, rows, …] with a mask over rows, so that records and entities are one case.

A record is an entity with one row. An entity's loss is the masked mean of its rows' losses, so the entity is what has
one loss and one gradient; rows beyond the cap are left out when the data set is made (privacy design, 5.3).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.errors import ScheduleInvalid


@dataclass(frozen=True, slots=True)
class Units:
    """All units of a data set, or some of them.

    Attributes:
        inputs: [units, rows, …].
        targets: [units, rows, …].
        mask: [units, rows], bool: which rows are there.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.mask.shape)
        if len(shape) != 2 or self.inputs.shape[:2] != shape or self.targets.shape[:2] != shape:
            raise ScheduleInvalid("inputs, targets and mask must begin with the same [units, rows]")
        if self.mask.dtype is not torch.bool:
            raise ScheduleInvalid("the mask of rows must be of booleans")

    @classmethod
    def of_records(cls, inputs: Tensor, targets: Tensor) -> "Units":
        """Return one unit per row of `inputs` [rows, …] and `targets` [rows, …]."""
        return cls(
            inputs[:, None], targets[:, None], torch.ones((len(inputs), 1), dtype=torch.bool, device=inputs.device)
        )

    def __len__(self) -> int:
        return len(self.mask)

    def take(self, indices: NDArray[np.int64]) -> "Units":
        """Return the units at `indices`, in that order."""
        chosen = torch.from_numpy(indices).to(self.mask.device)
        return Units(self.inputs[chosen], self.targets[chosen], self.mask[chosen])

    def micro_batches(self, size: int) -> Iterator["Units"]:
        """Yield the units in order, at most `size` at a time. The split changes no sum."""
        for start in range(0, len(self), size):
            end = start + size
            yield Units(self.inputs[start:end], self.targets[start:end], self.mask[start:end])
