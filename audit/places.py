"""Where the files of one party's log lie.

<home>/audit/<epoch>/{entries.log, checkpoint, frozen, aside/}
<home>/audit/{private.db, keys/, lock, append.sock}
<home>/trust/<party>.policy
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import storage

CHECKPOINT: Final = "checkpoint"
LOCK: Final = "lock"
SOCKET: Final = "append.sock"


@dataclass(frozen=True, slots=True)
class Places:
    """The files of an audit folder at one epoch."""

    folder: Path
    epoch: int = 1

    @property
    def epoch_folder(self) -> Path:
        """Return the folder of this epoch."""
        return self.folder / str(self.epoch)

    @property
    def entries(self) -> Path:
        """Return the file of entries."""
        return self.epoch_folder / storage.ENTRIES

    @property
    def checkpoint(self) -> Path:
        """Return the file of the newest checkpoint that this log signed."""
        return self.epoch_folder / CHECKPOINT

    @property
    def frozen(self) -> Path:
        """Return the file whose presence closes this epoch."""
        return self.epoch_folder / "frozen"

    @property
    def aside(self) -> Path:
        """Return the folder of what unclean ends left."""
        return self.epoch_folder / "aside"

    @property
    def lock(self) -> Path:
        """Return the file that the one committer holds."""
        return self.folder / LOCK

    def log_key(self) -> Path:
        """Return the file of the log key."""
        return self.folder / "keys" / f"log-{self.epoch}.key"

    def writer_key(self, process: str) -> Path:
        """Return the file of a process's writer key."""
        return self.folder / "keys" / f"writer-{process}.key"


def lock_mark(lock: Path, host: str) -> bytes:
    """Return what a committer writes into the lock: the file's own number on this machine.

    A copy has another number, so a reader can tell a live home, where readings are recorded, from a copy, into which
    nothing is written.
    """
    return json.dumps({"host": host, "inode": lock.stat().st_ino}).encode() + b"\n"


def is_live(folder: Path, host: str) -> bool:
    """Return whether `folder` is the audit folder of a home on this machine, not a copy of one."""
    lock = folder / LOCK
    try:
        return lock.read_bytes() == lock_mark(lock, host)
    except OSError:
        return False
