"""Recording from a command: through the process that holds the log, or with its lock where none runs."""

import time
from pathlib import Path
from typing import Final

from audit.clock import Clock
from audit.errors import SecondWriter
from audit.events import Draft
from audit.hand_over import hand_over
from audit.log import AuditLog
from audit.open_log import CLI

ATTEMPTS: Final = 5
WAIT_S: Final = 0.2


def record(folder: Path, draft: Draft, *, clock: Clock) -> tuple[int, bytes]:
    """Return index and leaf of `draft` once its entry is on the disk.

    A process that starts or ends holds the lock for a moment without listening, so a few attempts are made.

    Args:
        folder: The audit folder of a live home.
        draft: What to record.
        clock: Wall and monotonic time.

    Raises:
        SecondWriter: A process holds the log and doesn't listen.
        AuditError: As `AuditLog.open` and `AuditLog.append`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        handed = hand_over(folder, draft.body())
        if handed is not None:
            return handed
        try:
            with AuditLog.open(folder, clock=clock, process=CLI) as log:
                receipt = log.append(draft)
            return receipt.index, receipt.leaf
        except SecondWriter:
            if attempt == ATTEMPTS:
                break
            time.sleep(WAIT_S)
    raise SecondWriter(f"another process writes the log in {folder} and doesn't take drafts")
