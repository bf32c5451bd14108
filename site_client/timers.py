"""Events that are due later: a heap by monotonic time; pure but for the clock that it is handed."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from site_client.events import Event


class Timers:
    """What is due when.

    Args:
        monotonic_s: Seconds on a clock that never jumps.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._heap: list[tuple[float, int, Event]] = []
        self._order = itertools.count()

    def after(self, seconds: float, event: "Event") -> None:
        """Have `event` due in `seconds`."""
        heapq.heappush(self._heap, (self._monotonic_s() + seconds, next(self._order), event))

    def due(self) -> "Iterator[Event]":
        """Yield, and forget, each event that is due by now."""
        while self._heap and self._heap[0][0] <= self._monotonic_s():
            yield heapq.heappop(self._heap)[2]

    def next_s(self) -> float | None:
        """Return how long until the next event is due, None if there is none."""
        return None if not self._heap else max(0.0, self._heap[0][0] - self._monotonic_s())
