"""The daemon's side of one round's training: what the trainer asks for is charged here, and nowhere else.

The receipt of the round's `budget.leased` entry says for which job and round, and how many steps at most; without one
there are no leases. The trainer is a subprocess; its requests reach `ask` over whatever carries them. A lease is
durable before the number of steps is given back. Whatever is still open when the round ends here was not finished, and
is lost: charged, not used. If this process dies, `BudgetStore.lose_open_leases` says the same at the next start.
"""

from types import TracebackType
from typing import Self

from audit.receipt import Receipt
from privacy.accounting.entries import Use
from privacy.errors import LeaseRefused, PrivacyError
from site_client.budget.store import BudgetStore, Lease


class RoundLeases:
    """The leases of one job's round; a context that loses what is open when it is left.

    Args:
        store: The ledger.
        permitted: The receipt of `budget.leased`: job, round, and the most steps that the round may take.
        attempt: Which attempt at the round this is.
        use: Training or evaluation.

    Raises:
        EntryRefused: The receipt is of another entry.
    """

    def __init__(self, store: BudgetStore, permitted: Receipt, *, attempt: int = 0, use: Use = "train") -> None:
        entry = permitted.permitting("budget.leased")
        self._store = store
        self._job: str = entry["job"]
        self._round: int = entry["round"]
        self._left: int = entry["budget"].get("steps", 0)
        self._attempt = attempt
        self._use: Use = use
        self._open: Lease | None = None
        self.refusal: PrivacyError | None = None
        self.leased = 0
        self.lost = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, steps: int) -> int:
        """Return how many steps are now charged and durable: `steps`, or fewer at the round's end, or 0 if refused.

        A refusal is kept in `refusal`, for the reason of `late(budget)` or `late(ledger unavailable)`.
        """
        wanted = min(steps, self._left)
        if wanted < 1:
            self.refusal = LeaseRefused(f"job {self._job} asked for more steps than round {self._round} has")
            return 0
        self.close()
        try:
            self._open = self._store.lease(self._job, self._round, wanted, attempt=self._attempt, use=self._use)
        except PrivacyError as error:
            self.refusal = error
            return 0
        self._left -= wanted
        self.leased += wanted
        return wanted

    def done(self, steps: int) -> None:
        """Record that all steps of the open lease were taken.

        Raises:
            LeaseRefused: There is no open lease of that many steps.
        """
        if self._open is None or self._open.steps != steps:
            raise LeaseRefused(f"job {self._job} reports {steps} steps of a lease that isn't open")
        self._store.used(self._open)
        self._open = None

    def close(self) -> None:
        """Record an open lease as lost."""
        if self._open is not None:
            lease, self._open = self._open, None
            self.lost += lease.steps
            self._store.lost(lease)
