"""What the coordinator relays between witnesses: each site's newest checkpoint, its proofs, and who cosigned what.

All of it is in memory: sites call when they connect, and bring it again. Nothing here is believed by anybody: proofs
and cosignatures are checked by whoever they are handed to. It holds no key and knows no network.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from audit import gossip, proofs
from audit.checkpoint import Checkpoint
from audit.witness import AddCheckpoint
from federation.witness_messages import CosignedTree

KEPT: Final = 4
"""Trees of one log whose cosignatures are kept for its owner."""


@dataclass(slots=True)
class _Log:
    """What is relayed of one log."""

    newest: Checkpoint | None = None
    growth: Mapping[int, proofs.Proof] = field(default_factory=dict)
    lines: dict[int, dict[str, CosignedTree]] = field(default_factory=dict)
    cosigned: dict[str, int] = field(default_factory=dict)
    words: dict[str, bytes] = field(default_factory=dict)


class WitnessBoard:
    """The relay's memory. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, _Log] = {}

    def _of(self, origin: str) -> _Log:
        return self._logs.setdefault(origin, _Log())

    def put(self, checkpoint: Checkpoint, growth: Mapping[int, proofs.Proof]) -> None:
        """Show a log's checkpoint, which the coordinator itself has cosigned, to its other witnesses from now on."""
        with self._lock:
            log = self._of(checkpoint.origin)
            if log.newest is None or log.newest.size <= checkpoint.size:
                log.newest, log.growth = checkpoint, dict(growth)

    def saw(self, witness: str, origin: str, size: int, word: bytes | None = None) -> None:
        """Note what a witness last cosigned of a log, by its own word."""
        with self._lock:
            log = self._of(origin)
            log.cosigned[witness] = size
            if word is not None:
                log.words[witness] = word

    def add(self, witness: str, line: CosignedTree) -> None:
        """Keep a witness's line for the log's owner."""
        with self._lock:
            log = self._of(line.origin)
            log.cosigned[witness] = max(line.size, log.cosigned.get(witness, 0))
            log.lines.setdefault(line.size, {})[witness] = line
            for size in sorted(log.lines)[:-KEPT]:
                del log.lines[size]
            if log.newest is not None and log.newest.size == line.size:
                log.words[witness] = bytes(log.newest.signed)

    def lines(self, origin: str) -> tuple[CosignedTree, ...]:
        """Return the cosignatures of a log for its owner."""
        with self._lock:
            log = self._of(origin)
            return tuple(line for size in sorted(log.lines) for line in log.lines[size].values())

    def words(self, origin: str, *, except_party: str) -> dict[str, bytes]:
        """Return what each witness last cosigned of a log; a witness that was heard and named nothing says nothing."""
        with self._lock:
            found = {party: b"" for log in self._logs.values() for party in log.cosigned}
            found |= self._of(origin).words
            return {party: word for party, word in found.items() if party != except_party}

    def sizes(self, origin: str) -> dict[str, int]:
        """Return the size of a log that each witness last cosigned."""
        with self._lock:
            return dict(self._of(origin).cosigned)

    def offers(self, receiver: str, owners: Mapping[str, str]) -> tuple[AddCheckpoint, ...]:
        """Return what a witness is asked to cosign: logs that go beyond what it saw, where a proof is at hand.

        Args:
            receiver: The witness.
            owners: The origin of each party's log.
        """
        with self._lock:
            newest = {
                party: log.newest.size
                for party, origin in owners.items()
                if (log := self._of(origin)).newest is not None
            }
            cosigned = {party: self._of(owners[party]).cosigned.get(receiver, 0) for party in newest}
            found = (
                self._offer(owners[party], cosigned[party]) for party in gossip.to_hand_over(receiver, newest, cosigned)
            )
            return tuple(offer for offer in found if offer is not None)

    def _offer(self, origin: str, old_size: int) -> AddCheckpoint | None:
        log = self._of(origin)
        if log.newest is None:
            return None
        proof = () if old_size == 0 else log.growth.get(old_size)
        return None if proof is None else AddCheckpoint(old_size, proof, log.newest)
