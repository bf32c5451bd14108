"""The limits of a log: how often it signs a checkpoint, how many drafts wait and how long, where it may lie; pure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The limits of a log; section `audit` of a role's file sets them.

    Attributes:
        checkpoint_every_entries: A new checkpoint after this many entries.
        checkpoint_every_s: A new checkpoint after this many seconds with news.
        append_timeout_s: How long a draft waits for room in the queue, and the committer for a lost server.
        queue_entries: Drafts that may wait.
        allow_network_filesystem: Let the log lie where locks and syncs promise less.
        database: ``postgresql+psycopg://USER@HOST/NAME`` for a log that a server keeps, without a password. It holds
            for a log or an epoch that is begun; where an existing one lies, its own folder says.
        password_file: A file (0600) with the password for that server.
    """

    checkpoint_every_entries: int = 256
    checkpoint_every_s: float = 10.0
    append_timeout_s: float = 10.0
    queue_entries: int = 4096
    allow_network_filesystem: bool = False
    database: str | None = None
    password_file: Path | None = None
