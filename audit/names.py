"""The names of logs, parties and keys; pure."""

import re
from dataclasses import dataclass
from typing import Final, Self

from audit.errors import EntryRefused

COORDINATOR: Final = "coordinator"
_FEDERATION: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}\Z")
_PARTY: Final = re.compile(r"[a-z0-9-]{1,64}\Z")
_PROCESS: Final = re.compile(r"[a-z0-9-]{1,32}\Z")
_EPOCH: Final = re.compile(r"[1-9][0-9]{0,5}\Z")


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of one log: ``<federation>/<party>/audit/<epoch>``."""

    federation: str
    party: str
    epoch: int = 1

    def __post_init__(self) -> None:
        if not _FEDERATION.match(self.federation):
            raise EntryRefused("a federation's name is [a-z0-9][a-z0-9.-]{0,62}")
        if not _PARTY.match(self.party):
            raise EntryRefused("a party is a site id [a-z0-9-]{1,64} or `coordinator`")
        if not _EPOCH.match(str(self.epoch)):
            raise EntryRefused("an epoch is 1, 2, …")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the origin that `text` is.

        Raises:
            EntryRefused: Another form.
        """
        parts = text.split("/")
        if len(parts) != 4 or parts[2] != "audit" or not _EPOCH.match(parts[3]):
            raise EntryRefused("a log's name is <federation>/<party>/audit/<epoch>")
        return cls(parts[0], parts[1], int(parts[3]))

    def __str__(self) -> str:
        return f"{self.federation}/{self.party}/audit/{self.epoch}"

    def writer(self, process: str) -> str:
        """Return the name of the writer key of `process`: ``daemon``, or ``cli`` for when no daemon runs."""
        if not _PROCESS.match(process):
            raise EntryRefused("a writing process is named [a-z0-9-]{1,32}")
        return f"{self.federation}/{self.party}/writer/{process}"
