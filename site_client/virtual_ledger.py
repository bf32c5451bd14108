"""The ledger of a virtual site: counts in memory, of steps that a simulation has charged; never anybody's real budget.

It keeps the rule of the real one (`site_client.budget`): the whole job is reserved when it begins, a step is charged
before it is taken, a step that was charged is spent whatever becomes of it, and beyond the reservation there is none.
"""

from dataclasses import dataclass
from typing import Final, Literal

Use = Literal["train", "evaluate"]
NO_BUDGET: Final = "CFD-R55"


@dataclass(slots=True)
class Charged:
    """Steps charged so far, by use."""

    train: int = 0
    evaluate: int = 0


@dataclass(frozen=True, slots=True)
class VirtualLedger:
    """What one site may charge in a job, and what it has.

    Attributes:
        charged: So far; `charge` adds to it.
        train: Steps of training that the whole job reserves.
        evaluate: Charged evaluations that the whole job reserves.
    """

    charged: Charged
    train: int
    evaluate: int

    def remaining(self, use: Use) -> int:
        """Return how many steps may still be charged."""
        if use == "train":
            return self.train - self.charged.train
        return self.evaluate - self.charged.evaluate

    def charge(self, use: Use, steps: int) -> int:
        """Charge at most `steps` and return how many may now be taken; 0 where none is left."""
        given = max(0, min(steps, self.remaining(use)))
        if use == "train":
            self.charged.train += given
        else:
            self.charged.evaluate += given
        return given
