"""The only way from the trainer to people's data: a receipt of `data.opened` in, arrays out.

Nothing is read before the receipt was admitted: it must be this log's and this boot's, allowed, unused, and for exactly
this data set, version, mode, job and round. So no row reaches a model without a durable entry that says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from audit.errors import AuditError
from audit.receipt import Receipt, ReceiptGuard
from federation.errors import CheckFailed
from site_client.data.prepared import load_rows

Mode = Literal["train", "evaluate"]
NOT_PERMITTED: Final = "CFD-D22"


@dataclass(frozen=True, slots=True)
class OpenedData:
    """The rows of one side of a version: for training the training rows, for evaluation the held-out rows.

    Attributes:
        features: float32, (rows, width of the contract).
        labels: int64, (rows,): 1 for positive and 0 else, or the class's number.
        units: int64, (rows,): rows with the same number are one unit's; numbers 0 to units_count − 1.
        units_count: Number of units; secret, like every count here.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64]
    units_count: int


def open_dataset(
    home: Path,
    *,
    dataset: str,
    version: str,
    contract_digest: str,
    receipt: Receipt,
    guard: ReceiptGuard,
    mode: Mode,
    job: str | None = None,
    round_number: int | None = None,
) -> OpenedData:
    """Return the rows that `receipt` permits to read.

    Args:
        home: The site's home.
        dataset: The data set's name.
        version: Its version, 64 hex digits.
        contract_digest: The digest of the contract that the plan was written for.
        receipt: Of the `data.opened` entry, re-opened in this process.
        guard: This process's guard; it admits each receipt once.
        mode: Which side of the split.
        job: The job that reads.
        round_number: Its round.

    Raises:
        CheckFailed: The receipt permits something else, or was used (CFD-D22); the prepared rows are missing, damaged
            or of another contract (CFD-D23). Nothing was read in the first case.
    """
    try:
        guard.admit(
            receipt, dataset=dataset, version=f"sha256:{version}", mode=mode, job=job, round_number=round_number
        )
    except AuditError as problem:
        raise CheckFailed(NOT_PERMITTED, problem.message) from None
    stored = load_rows(home, dataset, version)
    if stored.contract_digest != contract_digest:
        raise CheckFailed("CFD-D23", f"the rows of data set {dataset} were prepared under another contract")
    rows = stored.prepared
    chosen = rows.held_out if mode == "evaluate" else ~rows.held_out
    names, units = np.unique(rows.units[chosen], return_inverse=True)
    return OpenedData(rows.features[chosen], rows.labels[chosen], units.astype(np.int64, copy=False), len(names))
