"""The daemon's one queue: every thread puts events in, the loop alone takes them out."""

import queue
import threading
from typing import Final

from federation.errors import OutOfOrder
from federation.messages import Body
from site_client.events import Arrived, Event

STOPPING: Final = "CFD-R56"


class Mailbox:
    """Events on their way to the loop. Safe for threads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._closed = threading.Event()

    def post(self, event: Event) -> None:
        """Put an event in; never blocks."""
        self._queue.put(event)

    def take_message(self, body: Body) -> None:
        """Have the loop deal with a message of the coordinator, and return when it has; from the link's thread.

        Raises:
            ConfideError: The loop's final no.
        """
        arrived = Arrived(body)
        self._queue.put(arrived)
        while not arrived.done.wait(1.0):
            if self._closed.is_set():
                raise OutOfOrder(STOPPING, "the site is stopping")
        if arrived.problem is not None:
            raise arrived.problem

    def next(self, wait_s: float | None) -> Event | None:
        """Return the next event, or None when there was none for `wait_s`."""
        try:
            return self._queue.get(timeout=wait_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Let nobody wait for the loop any more."""
        self._closed.set()
