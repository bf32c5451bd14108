"""The trainer's side of a lease: it can't take a step that wasn't charged before (privacy design, 8.3 R2).

The trainer is a process of its own; `ask` is how it reaches the ledger. A lease is asked for when the one before is
used up, so that a crash loses at most one.
"""

from collections.abc import Callable
from typing import Final, Protocol

from privacy.errors import LeaseRefused

STEPS_PER_LEASE: Final = 10


class Steps(Protocol):
    """Charged steps to be taken."""

    def take(self) -> None:
        """Take one charged step.

        Raises:
            LeaseRefused: There is none; nothing may be sampled.
        """
        ...


class LeasedSteps:
    """The charged steps of one round.

    Args:
        steps: How many this round takes.
        ask: Gets a number of steps, returns how many are now charged and durable (0 for none).
        done: Gets the number of steps of a lease once all of them have been taken.
        at_a_time: Most steps in one lease.
    """

    def __init__(
        self,
        steps: int,
        ask: Callable[[int], int],
        done: Callable[[int], None],
        *,
        at_a_time: int = STEPS_PER_LEASE,
    ) -> None:
        self._to_ask = steps
        self._ask = ask
        self._done = done
        self._at_a_time = at_a_time
        self._leased = 0
        self._left = 0
        self.taken = 0

    def take(self) -> None:
        """Take one charged step, asking for a lease where none is left.

        Raises:
            LeaseRefused: The round's steps are taken, or the ledger gave none.
        """
        if self._left == 0:
            self._next_lease()
        self._left -= 1
        self.taken += 1

    def finish(self) -> None:
        """Say that the newest lease's steps have all been taken and executed.

        Raises:
            LeaseRefused: Some haven't; the lease is to be reported as lost.
        """
        if self._left:
            raise LeaseRefused(f"{self._left} leased steps were not taken")
        if self._leased:
            self._done(self._leased)
            self._leased = 0

    def _next_lease(self) -> None:
        self.finish()
        wanted = min(self._at_a_time, self._to_ask)
        if wanted < 1:
            raise LeaseRefused("all steps of this round are taken")
        given = self._ask(wanted)
        if not 1 <= given <= wanted:
            raise LeaseRefused(f"{wanted} steps were asked for, {given} were given")
        self._to_ask -= given
        self._leased = self._left = given
