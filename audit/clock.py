"""The time that the log is handed; nothing in this package reads a clock by itself but `audit.edge`."""

from datetime import UTC, datetime
from typing import Final, Protocol

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Wall time and monotonic time, so that a test can jump either."""

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps."""
        ...


def microseconds(moment: datetime) -> int:
    """Return `moment` as whole microseconds since 1970 in UTC, without passing through a float."""
    elapsed = moment - EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
