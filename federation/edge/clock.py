"""The one place that reads the machine's clock; everything else takes a `Clock`."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time and monotonic time, so that tests can jump either."""

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait `seconds` of monotonic time."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        return datetime.now(UTC)  # noqa: TID251 (the edge that the ban points to)

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`."""
        time.sleep(seconds)


def rfc3339(moment: datetime) -> str:
    """Return `moment` in UTC as RFC 3339 with ``Z``, to the second."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
