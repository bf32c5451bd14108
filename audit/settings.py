"""The limits of a log: how often it signs a checkpoint, how many drafts wait and how long, where it may lie."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The limits of a log; section `audit` of a role's file sets them.

    Attributes:
        checkpoint_every_entries: A new checkpoint after this many entries.
        checkpoint_every_s: A new checkpoint after this many seconds with news.
        append_timeout_s: How long a draft waits for room in the queue.
        queue_entries: Drafts that may wait.
        allow_network_filesystem: Let the log lie where locks and syncs promise less.
    """

    checkpoint_every_entries: int = 256
    checkpoint_every_s: float = 10.0
    append_timeout_s: float = 10.0
    queue_entries: int = 4096
    allow_network_filesystem: bool = False
