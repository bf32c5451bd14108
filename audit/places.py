"""Where the files of one party's log lie.

<home>/audit/<epoch>/{log.db or database, checkpoint, frozen, aside/}
<home>/audit/{private.db, keys/, lock, append.sock}
<home>/trust/<party>.policy

A log is in `log.db`, or in the PostgreSQL database that the file `database` names.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

CHECKPOINT: Final = "checkpoint"
LOCK: Final = "lock"
SOCKET: Final = "append.sock"
SQLITE: Final = "log.db"
SERVER: Final = "database"


def epochs_in(folder: Path) -> list[int]:
    """Return the epochs whose log lies in the audit folder `folder`, in order."""
    names = (path.name for path in folder.glob("[1-9]*") if path.name.isdigit() and path.name.isascii())
    return sorted(int(name) for name in names if has_log(folder / name))


def has_log(epoch_folder: Path) -> bool:
    """Return whether a log was begun in `epoch_folder`."""
    return (epoch_folder / SQLITE).is_file() or (epoch_folder / SERVER).is_file()


@dataclass(frozen=True, slots=True)
class Places:
    """The files of an audit folder at one epoch.

    Attributes:
        folder: The audit folder.
        epoch: 1, 2, …
        building: The epoch is being made, in a folder that takes its name when it is whole.
        at: The epoch's folder, where a copy has another name.
    """

    folder: Path
    epoch: int = 1
    building: bool = False
    at: Path | None = None

    @classmethod
    def newest(cls, folder: Path) -> Self:
        """Return the places of the newest epoch in `folder`, of epoch 1 where there is none yet."""
        return cls(folder, max(epochs_in(folder), default=1))

    @property
    def epoch_folder(self) -> Path:
        """Return the folder of this epoch."""
        return self.at or self.folder / (f".{self.epoch}.new" if self.building else str(self.epoch))

    @property
    def sqlite(self) -> Path:
        """Return the file of the log where SQLite keeps it."""
        return self.epoch_folder / SQLITE

    @property
    def write_ahead(self) -> Path:
        """Return what SQLite has committed and not yet moved into its file."""
        return self.epoch_folder / f"{SQLITE}-wal"

    @property
    def server(self) -> Path:
        """Return the file that names a PostgreSQL database, where that keeps the log."""
        return self.epoch_folder / SERVER

    @property
    def has_log(self) -> bool:
        """Return whether a log was begun here."""
        return has_log(self.epoch_folder)

    @property
    def is_begun(self) -> bool:
        """Return whether a log was begun here and signed its first checkpoint, without which its making was cut."""
        return self.has_log and self.checkpoint.exists()

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
