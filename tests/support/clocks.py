"""Clocks that a test moves."""

from datetime import datetime, timedelta

from federation.edge.clock import SystemClock


class MovableClock(SystemClock):
    """The machine's clock, ahead by as much as the test moved it: what would take hours is over at once."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s

    def forward(self, seconds: float) -> None:
        self.ahead_s += seconds
