"""Everything that privacy refuses, one class per decision, each with its inner cause and its public code.

`cause` is the specification's name (``DP_BUDGET``), which the audit log keeps; `code` is what people look up. The
message is for the people of the site that owns the data: it may name epsilons that were spent there. Another party
gets `code`, `text_for_others` and a reference, never `message`.
"""

from typing import ClassVar, Final


class PrivacyError(Exception):
    """A refusal by the rules of differential privacy.

    Args:
        message: What, which, found against allowed. One line.
        hint: What to do now; by default the cure of the class.
    """

    code: ClassVar[str] = "CFD-B00"
    cause: ClassVar[str] = "DP"
    exit_status: ClassVar[int] = 70
    reason: ClassVar[str] = "privacy rules refused this"
    cure: ClassVar[str] = "report the reference id; the log has the trace"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message: Final = message
        self.hint: Final = hint or self.cure

    @property
    def text_for_others(self) -> str:
        """Return what another party may read: the cause, without any figure."""
        return self.reason


class UnitInvalid(PrivacyError):
    """The mechanism gives no guarantee for this privacy unit."""

    code = "CFD-B01"
    cause = "DP_UNIT"
    exit_status = 2
    reason = "the mechanism gives no guarantee for this privacy unit"
    cure = "use unit record or entity with local-dp-sgd, and the unit that the data set's policy names"


class DeltaInvalid(PrivacyError):
    """Delta is out of range, or too large for the declared number of units."""

    code = "CFD-B02"
    cause = "DP_DELTA"
    exit_status = 2
    reason = "delta is not between 0 and 1, or too large for the declared number of units"
    cure = "choose delta well below one divided by the declared number of units"


class EpsilonInvalid(PrivacyError):
    """Epsilon isn't a finite positive number, or the given noise costs more than it."""

    code = "CFD-B03"
    cause = "DP_EPSILON"
    exit_status = 2
    reason = "epsilon is not a finite positive number, or the given noise costs more than it"
    cure = "choose a finite positive epsilon; leave noise_multiplier out to have it calculated"


class ScheduleInvalid(PrivacyError):
    """Steps, batch, clip or noise make no schedule that privacy can be computed for."""

    code = "CFD-B04"
    cause = "DP_SCHEDULE"
    exit_status = 2
    reason = "the training schedule cannot be made private as asked"
    cure = "fewer steps, a larger epsilon or a larger batch"


class UnitsUndeclared(PrivacyError):
    """The data set has no public number of units."""

    code = "CFD-B05"
    cause = "DP_UNITS_UNDECLARED"
    exit_status = 4
    reason = "the data set has no declared number of units"
    cure = "declare one with `confide site data add … --units N` or `--units dp`"


class ModelRefused(PrivacyError):
    """The model breaks one of the rules M1 to M7."""

    code = "CFD-B06"
    cause = "DP_MODEL"
    exit_status = 4
    reason = "the model has a part that cannot be trained under differential privacy"
    cure = "replace the named module, for instance BatchNorm by GroupNorm"


class DryRunFailed(PrivacyError):
    """One full micro-batch of synthetic data could not be run."""

    code = "CFD-B07"
    cause = "DP_DRY_RUN"
    exit_status = 1
    reason = "the model could not be run on synthetic data"
    cure = "see the named module; lower the memory it needs, or fix its shapes"


class LossShapeWrong(PrivacyError):
    """The loss doesn't give one value per unit."""

    code = "CFD-B08"
    cause = "DP_LOSS_SHAPE"
    exit_status = 4
    reason = "the loss does not give one value per unit"
    cure = "use a loss without reduction that returns shape (B,)"


class BatchCoupled(PrivacyError):
    """One unit moves another unit's gradient."""

    code = "CFD-B09"
    cause = "DP_BATCH_COUPLED"
    exit_status = 4
    reason = "one unit moves the gradient of another"
    cure = "remove operations across the batch; weight units with a fixed denominator"


class BuffersMoved(PrivacyError):
    """A buffer of the model changed during a step."""

    code = "CFD-B10"
    cause = "DP_BUFFERS"
    exit_status = 4
    reason = "a buffer of the model changes while training"
    cure = "remove running statistics from the model"


class EngineWrong(PrivacyError):
    """The gradient engine disagrees with a plain loop over units."""

    code = "CFD-B11"
    cause = "DP_ENGINE"
    exit_status = 1
    reason = "the gradient engine disagrees with a plain loop over units"
    cure = "use the functional engine; report the model that shows this"


class EngineUnsuitable(EngineWrong):
    """The book-keeping engine can't be used for this model; the functional one may."""

    reason = "this gradient engine cannot be used for the model"


class ClipExceeded(PrivacyError):
    """A unit contributes more than the clip."""

    code = "CFD-B12"
    cause = "DP_CLIP"
    exit_status = 1
    reason = "a unit contributes more than the clip allows"
    cure = "report the model that shows this; it must not be trained"


class ReductionWrong(PrivacyError):
    """A unit's gradient norm isn't that of a one-unit backward pass."""

    code = "CFD-B13"
    cause = "DP_REDUCTION"
    exit_status = 4
    reason = "the gradient of a unit depends on the size of the batch"
    cure = "use a loss without reduction"


class NoiseWrong(PrivacyError):
    """A step on an empty batch doesn't move parameters as the noise says."""

    code = "CFD-B14"
    cause = "DP_NOISE"
    exit_status = 1
    reason = "a step did not add the noise that was accounted for"
    cure = "report this; nothing may be trained on this machine"


class StateChanged(PrivacyError):
    """Frozen tensors, names, shapes or types changed."""

    code = "CFD-B15"
    cause = "DP_STATE"
    exit_status = 1
    reason = "training changed what it must not touch"
    cure = "check which tensors the plan names as trainable"


class NoiseSourceFailed(PrivacyError):
    """The source of noise and sampling isn't what it must be."""

    code = "CFD-B16"
    cause = "DP_NOISE_SOURCE"
    exit_status = 1
    reason = "the random source failed its self-test"
    cure = "nothing may be trained on this machine until it passes; check the operating system's random source"


class BudgetRefused(PrivacyError):
    """The ledger's admission says no."""

    code = "CFD-B17"
    cause = "DP_BUDGET"
    exit_status = 4
    reason = "the privacy budget does not cover this"
    cure = "ask for a lower epsilon, or for other data"


class AtomExhausted(PrivacyError):
    """The data's budget is used up for good."""

    code = "CFD-B18"
    cause = "DP_ATOM_EXHAUSTED"
    exit_status = 4
    reason = "the privacy budget of this data is used up"
    cure = "use data that were added later; budgets do not refill"


class LeaseRefused(PrivacyError):
    """There is no charged step to take; nothing was sampled."""

    code = "CFD-B19"
    cause = "DP_LEASE"
    exit_status = 4
    reason = "no charged step is left for this round"
    cure = "the job's reservation is used up or settled; a new job needs a new reservation"


class LedgerBroken(PrivacyError):
    """Entries, chain or totals of the ledger don't agree."""

    code = "CFD-B20"
    cause = "DP_LEDGER_BROKEN"
    exit_status = 78
    reason = "the privacy ledger is damaged"
    cure = "restore the missing entries; nothing is trained until the ledger is whole"


class LedgerBehind(PrivacyError):
    """The ledger is older than what others have seen of it."""

    code = "CFD-B21"
    cause = "DP_LEDGER_BEHIND"
    exit_status = 78
    reason = "the privacy ledger is older than its witnessed head"
    cure = "an old backup was restored; recover the missing entries before anything runs"


class LedgerForked(PrivacyError):
    """The ledger has another entry at a position that others have seen."""

    code = "CFD-B22"
    cause = "DP_LEDGER_FORK"
    exit_status = 78
    reason = "the privacy ledger differs from its witnessed head"
    cure = "two copies of this site have run; recover before anything runs"


class LedgerUnavailable(PrivacyError):
    """The ledger can't be written; no step may be taken."""

    code = "CFD-B23"
    cause = "DP_LEDGER_UNAVAILABLE"
    exit_status = 1
    reason = "the privacy ledger cannot be written"
    cure = "check disk space, permissions and the database; training goes on by itself at the next round"


class Unbounded(PrivacyError):
    """No epsilon exists for this."""

    code = "CFD-B24"
    cause = "DP_UNBOUNDED"
    exit_status = 4
    reason = "this has no finite epsilon"
    cure = "add noise, or have the site's policy allow mechanism none"


class LedgerMisused(PrivacyError):
    """Our own caller names something that the ledger doesn't hold, or asks out of order; nothing changed."""

    code = "CFD-B25"
    cause = "DP_LEDGER_USE"
    exit_status = 2
    reason = "the ledger does not know this data set or job"
    cure = "see `confide site data list` for the names"


class SecondPersonNeeded(PrivacyError):
    """Who asked for a change of a promise confirms it himself."""

    code = "CFD-B26"
    cause = "DP_SECOND_PERSON"
    exit_status = 4
    reason = "a change of a privacy budget takes two people"
    cure = "another account confirms it: `confide site approvals approve REQUEST`"


CLASSES: Final[tuple[type[PrivacyError], ...]] = (
    UnitInvalid, DeltaInvalid, EpsilonInvalid, ScheduleInvalid, UnitsUndeclared, ModelRefused, DryRunFailed,
    LossShapeWrong, BatchCoupled, BuffersMoved, EngineWrong, ClipExceeded, ReductionWrong, NoiseWrong, StateChanged,
    NoiseSourceFailed, BudgetRefused, AtomExhausted, LeaseRefused, LedgerBroken, LedgerBehind, LedgerForked,
    LedgerUnavailable, Unbounded, LedgerMisused, SecondPersonNeeded,
)  # fmt: skip

ROWS: Final[tuple[tuple[str, int, str, str], ...]] = tuple(
    (kind.code, kind.exit_status, f"{kind.reason} ({kind.cause})", kind.cure) for kind in CLASSES
)
"""Code, exit status, cause and cure of each class: the rows of the page of codes."""
