"""Who may ask what of a log: roles, what each sees, and what each may do; pure.

Running the host and administering the record are two roles. Where no readers are named, whoever can read the files of
the home is its compliance officer, as on a machine with one account.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from audit.canonical import Event
from audit.columns import column

COMPLIANCE: Final = "compliance"
OPERATOR: Final = "operator"
COORDINATING: Final = "coordinator"
VIEWER: Final = "viewer"
REGULATOR: Final = "regulator"
_READING: Final = frozenset({"query", "show", "verify", "checkpoint", "report", "prove", "witness"})
_CHANGING: Final = frozenset({"acknowledge", "erase", "redact", "prune", "approve", "requests"})
VERBS: Final[Mapping[str, frozenset[str]]] = {
    COMPLIANCE: _READING | _CHANGING | {"export", "rebuild", "new-epoch"},
    OPERATOR: _READING | {"rebuild", "new-epoch"},
    COORDINATING: _READING,
    VIEWER: frozenset({"query", "show", "verify", "checkpoint"}),
    REGULATOR: _READING | {"export"},
}
"""What each role may do."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, and for a regulator what it is bounded by.

    Attributes:
        role: A key of `VERBS`.
        datasets: The only data sets that are shown; all where empty.
        since_us: Entries from this time on.
        until_us: Entries before this time.
        expires_us: The grant ends then.
    """

    role: str
    datasets: frozenset[str] = frozenset()
    since_us: int | None = None
    until_us: int | None = None
    expires_us: int | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What one account may see of one log.

    Attributes:
        grant: Its role.
        pseudonym: Its pseudonym in this home.
        party: Whose log it is.
        own_jobs: The jobs that it launched.
    """

    grant: Grant
    pseudonym: str = ""
    party: str = ""
    own_jobs: Collection[str] = field(default_factory=frozenset)

    def may(self, verb: str, now_us: int) -> bool:
        """Return whether the role allows the verb now."""
        expires_us = self.grant.expires_us
        return verb in VERBS[self.grant.role] and (expires_us is None or now_us < expires_us)

    @property
    def sees_all(self) -> bool:
        """Return whether no entry is kept from it."""
        return self.grant.role == COMPLIANCE

    def sees(self, event: Event) -> bool:
        """Return whether it may see the entry."""
        match self.grant.role:
            case "compliance":
                return True
            case "operator":
                return bool(event.get("site", self.party) == self.party)
            case "coordinator":
                return column(event, "job") in self.own_jobs
            case "viewer":
                return column(event, "actor") == self.pseudonym
            case _:
                return self._is_granted(event)

    def _is_granted(self, event: Event) -> bool:
        grant, t_us = self.grant, event["t_us"]
        if (grant.since_us is not None and t_us < grant.since_us) or (
            grant.until_us is not None and t_us >= grant.until_us
        ):
            return False
        return not grant.datasets or column(event, "dataset") in grant.datasets
