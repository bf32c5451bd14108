"""What this site says: stored before it is sent, sent again until the coordinator has it, forgotten when it has."""

from typing import Final

from federation.edge.logs import Log
from federation.errors import OutOfOrder
from federation.link.client import LinkClient
from federation.messages import Body, decode_body
from site_client.store import Store

FLUSH_AT: Final = 64


class Outgoing:
    """The messages of one daemon.

    Args:
        store: Keeps what isn't acknowledged.
        link: Sends.
        log: The process log.
    """

    def __init__(self, store: Store, link: LinkClient, log: Log) -> None:
        self._store = store
        self._link = link
        self._log = log
        self._acknowledged: set[str] = set()

    def new_id(self) -> str:
        """Return an id for a message of this site."""
        return self._link.message_ids.next()

    def send(self, message: Body, *, keep: bool = True) -> None:
        """Send a message; with `keep` it is stored first, so that it is sent again after a crash."""
        if keep:
            self._store.queue(message, str(getattr(message, "message_id", "")))
        try:
            self._link.send(message)
        except OutOfOrder as problem:
            self._log.warning("message.waits", code=problem.code)  # it is in the store, and goes when connected

    def send_waiting(self) -> None:
        """Send again what the coordinator hasn't acknowledged; for a new connection."""
        self.flush()
        for waiting in self._store.outbox():
            self.send(decode_body(waiting.kind, waiting.body), keep=False)

    def acknowledged(self, message_id: str) -> None:
        """Note that the coordinator has a message, or finally refused it; forgotten on disk a little later."""
        self._acknowledged.add(message_id)
        if len(self._acknowledged) >= FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        """Forget on disk what the coordinator has."""
        if self._acknowledged:
            self._store.acknowledge(tuple(self._acknowledged))
            self._acknowledged.clear()
