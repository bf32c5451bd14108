"""The receipt: proof in hand that an entry is durable, without which no data are read and no byte leaves.

Only the committer makes one. To another process it crosses as index and leaf, and is made again there by
`Receipt.reopen` under the writer's public key. What acts takes a receipt as an argument, so that acting without a
record doesn't type-check, and acts on what the entry says (`Receipt.permitting`); `ReceiptGuard` is what a loader asks
before it reads.
"""

from typing import Final, Self, final

from audit.canonical import Event
from audit.entry import open_leaf
from audit.errors import EntryRefused
from audit.frame import hash_text
from audit.merkle import leaf_hash
from audit.note import VerifierKey

_SEAL: Final = object()


@final
class Receipt:
    """A durable entry: `origin`, `index`, `leaf_hash`, `leaf`, and its `event`."""

    __slots__ = ("event", "index", "leaf", "leaf_hash", "origin")

    def __init__(self, seal: object, origin: str, index: int, leaf: bytes, event: Event) -> None:
        if seal is not _SEAL:
            raise TypeError("a Receipt is made by the committer, or by Receipt.reopen from a signed leaf")
        self.origin: Final = origin
        self.index: Final = index
        self.leaf: Final = leaf
        self.leaf_hash: Final = leaf_hash(leaf)
        self.event: Final = event

    @classmethod
    def reopen(cls, *, origin: str, index: int, leaf: bytes, writer_key: VerifierKey | str) -> Self:
        """Return the receipt for a leaf that came from the process that wrote it.

        Args:
            origin: The log that the caller expects.
            index: As handed over.
            leaf: As handed over; its signature is checked.
            writer_key: The public key of the writing process, as the caller knows it.

        Raises:
            EntryRefused: The leaf is malformed, of another log, or not signed by that key.
        """
        key = VerifierKey.parse(writer_key) if isinstance(writer_key, str) else writer_key

        def only(name: str, key_id: bytes) -> VerifierKey:
            if (name, key_id) != (key.name, key.id):
                raise EntryRefused(f"not written by {key.name}", code="CFD-A10")
            return key

        entry = open_leaf(leaf, origin=origin, writer_key=only)
        return cls(_SEAL, origin, index, leaf, entry.event)

    @property
    def leaf_hash_text(self) -> str:
        """Return the leaf hash as an event's `prev` or `peer` holds it."""
        return hash_text(self.leaf_hash)

    def permitting(self, action: str) -> Event:
        """Return the entry, which is an allowed one of `action`: its fields say what may be done.

        Raises:
            EntryRefused: It is of another action, or it says no; nothing may be done.
        """
        if (self.event["action"], self.event["decision"]) != (action, "allowed"):
            raise EntryRefused(f"entry {self.index} is no permission: {self.event['action']}, where {action} is needed")
        return self.event

    def __repr__(self) -> str:
        return f"Receipt({self.origin}, {self.index}, {self.event['action']})"


def issue(origin: str, index: int, leaf: bytes, event: Event) -> Receipt:
    """Return the receipt of a committed entry; for the committer, after its sync."""
    return Receipt(_SEAL, origin, index, leaf, event)


class ReceiptGuard:
    """Admits each `data.opened` receipt of one boot of one log once, and only for what it says.

    Args:
        origin: The site's log.
        boot: The running process start, `AuditLog.boot`.
    """

    def __init__(self, *, origin: str, boot: str) -> None:
        self._origin = origin
        self._boot = boot
        self._used: set[int] = set()

    def admit(
        self,
        receipt: Receipt,
        *,
        dataset: str,
        version: str,
        mode: str,
        job: str | None = None,
        round_number: int | None = None,
    ) -> None:
        """Return if the receipt permits exactly this reading, and never again for the same receipt.

        Args:
            receipt: Of a `data.opened` entry.
            dataset: Id of the data set to be read.
            version: Its content hash, ``sha256:…``, as the reader computed it.
            mode: ``intake``, ``train``, ``evaluate`` or ``verify``.
            job: The reader's own job.
            round_number: The reader's own round.

        Raises:
            EntryRefused: It permits another reading, is of another boot or log, or was used; nothing may be read.
        """
        event = receipt.event
        opened = event.get("dataset", {})
        found = (
            receipt.origin,
            event["action"],
            event["decision"],
            event["boot"],
            opened.get("id"),
            opened.get("version"),
            event.get("mode"),
            event.get("job"),
            event.get("round"),
        )
        wanted = (
            self._origin,
            "data.opened",
            "allowed",
            self._boot,
            dataset,
            version,
            mode,
            job,
            round_number,
        )
        names = ("log", "action", "decision", "boot", "data set", "version", "mode", "job", "round")
        wrong = [name for name, have, want in zip(names, found, wanted, strict=True) if have != want]
        if wrong:
            raise EntryRefused(f"the receipt of entry {receipt.index} is for another {', '.join(wrong)}")
        if receipt.index in self._used:
            raise EntryRefused(f"the receipt of entry {receipt.index} was used before")
        self._used.add(receipt.index)
