"""Events of data sets and of their privacy budgets; pure."""

from typing import Literal

from audit.events.common import Draft
from audit.events.parts import Approval, Budget, Count, Dataset, Hash, Private, Purpose, Token


class DataRegistered(Draft):
    """A data set was added under a contract, with its budget; what was counted on it is a commitment."""

    action: Literal["data.registered"] = "data.registered"
    dataset: Dataset
    contract: Token
    budget: Budget
    units_declared: Count | None = None
    private: Private | None = None


class DataVersioned(Draft):
    """The content of a data set changed; `previous` is the version before; `basis` says that people opted out."""

    action: Literal["data.versioned"] = "data.versioned"
    dataset: Dataset
    previous: Hash
    units_declared: Count | None = None
    basis: Literal["opted-out"] | None = None
    private: Private | None = None


class DataVerified(Draft):
    """A data set's files were hashed again and compared with its version."""

    action: Literal["data.verified"] = "data.verified"
    dataset: Dataset


class DataRetired(Draft):
    """A data set is opened no more."""

    action: Literal["data.retired"] = "data.retired"
    dataset: Dataset


class DataOpened(Draft):
    """A data set is about to be read; the loader reads nothing without this entry's receipt."""

    action: Literal["data.opened"] = "data.opened"
    dataset: Dataset
    mode: Literal["intake", "train", "evaluate", "verify"]
    job: Token | None = None
    plan: Hash | None = None
    round: Count | None = None
    purpose: Purpose | None = None
    policy: Hash | None = None
    approval: Approval | None = None
    budget: Budget | None = None

    def check(self) -> None:
        """Refuse an opening for a job that doesn't say what for and under what."""
        if self.job is None:
            if self.mode in ("train", "evaluate"):
                raise ValueError(f"mode {self.mode} is for a job")
            return
        parts = (self.plan, self.round, self.purpose, self.policy)
        if any(part is None for part in parts) or (self.rule is None and self.approval is None):
            raise ValueError("an opening for a job names plan, round, purpose, policy, and a rule or an approval")


class _DataEnded(Draft):
    opened: Count
    """Index of the `data.opened` that this entry ends."""
    dataset: Dataset
    job: Token | None = None
    round: Count | None = None


class DataClosed(_DataEnded):
    """The reading is over; how many records were read is a commitment."""

    action: Literal["data.closed"] = "data.closed"
    private: Private | None = None


class DataAbandoned(_DataEnded):
    """The process that had opened the data set ended without closing it."""

    action: Literal["data.abandoned"] = "data.abandoned"


class _JobBudget(Draft):
    job: Token
    dataset: Dataset
    budget: Budget


class BudgetReserved(_JobBudget):
    """The whole job's budget is set aside before the site says yes."""

    action: Literal["budget.reserved"] = "budget.reserved"


class BudgetReleased(_JobBudget):
    """At settlement: what was reserved and never leased."""

    action: Literal["budget.released"] = "budget.released"


class _RoundBudget(_JobBudget):
    round: Count


class BudgetLeased(_RoundBudget):
    """The most that this round may take, before data are opened."""

    action: Literal["budget.leased"] = "budget.leased"


class BudgetSpent(_RoundBudget):
    """What the round took, lost steps included."""

    action: Literal["budget.spent"] = "budget.spent"


class BudgetExhausted(Draft):
    """A refusal: the data set's budget can't cover what was asked."""

    action: Literal["budget.exhausted"] = "budget.exhausted"
    job: Token | None = None
    dataset: Dataset
    budget: Budget


class BudgetCharged(Draft):
    """A use outside of rounds was charged."""

    action: Literal["budget.charged"] = "budget.charged"
    dataset: Dataset
    budget: Budget
    kind: Literal["single", "foreign", "unbounded"]


class BudgetPolicyChanged(Draft):
    """A budget was raised or set anew, by two people."""

    action: Literal["budget.policy_changed"] = "budget.policy_changed"
    budget: Budget
    replaces: Token | None = None
    approval: Approval


class BudgetRecovered(Draft):
    """A lost or rolled-back ledger was made good, by two people."""

    action: Literal["budget.recovered"] = "budget.recovered"
    budget: Budget
    means: Literal["replayed", "charged", "retired"]
    approval: Approval
