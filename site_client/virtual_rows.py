"""The rows of virtual sites, and how given ones are divided among them. Pure.

A data set that is given is divided by units, so that nobody is at two sites: the units, in an order that the plan's
seed fixes, are dealt out one by one, those to train on and the held-out ones each for themselves. Every site so gets
the same number of each, or one more.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from federation.errors import InvalidInput

TOO_FEW_UNITS: Final = "CFD-J17"


@dataclass(frozen=True, slots=True)
class Rows:
    """Encoded rows: features float32 (rows, width), labels and units int64 (rows,), held_out bool (rows,)."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.bool_]

    def take(self, chosen: npt.NDArray[np.intp]) -> "Rows":
        """Return the rows at the places `chosen`."""
        return Rows(self.features[chosen], self.labels[chosen], self.units[chosen], self.held_out[chosen])

    def units_count(self, *, held_out: bool) -> int:
        """Return the number of units to train on, or of held-out ones."""
        return len(np.unique(self.units[self.held_out == held_out]))


def divide(rows: Rows, sites: Sequence[str], *, seed: int) -> Iterator[tuple[str, Rows]]:
    """Yield the rows of each site.

    Raises:
        InvalidInput: There are fewer units to train on than sites.
    """
    train = rows.units_count(held_out=False)
    if train < len(sites):
        raise InvalidInput(TOO_FEW_UNITS, f"{len(sites)} virtual sites, the data hold fewer units to train on")
    owner = np.full(int(rows.units.max()) + 1, -1, dtype=np.int64)
    for held_out in (False, True):
        units = sorted(np.unique(rows.units[rows.held_out == held_out]).tolist(), key=lambda unit: _place(seed, unit))
        owner[units] = np.arange(len(units)) % len(sites)
    owners = owner[rows.units]
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(len(sites) + 1))
    for number, site in enumerate(sites):
        yield site, rows.take(order[ends[number] : ends[number + 1]])


def _place(seed: int, unit: int) -> bytes:
    return hashlib.sha256(f"confide-partition/v1\n{seed}\n{unit}".encode()).digest()
