"""Entries whose leaf was emptied, as later entries record it; pure.

The leaf hash stays, so root and proofs stay. An empty leaf is accepted only with such a record, which also gives the
place that the emptied entry has in its writer's chain.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from audit.canonical import Event
from audit.frame import hash_text, read_frame


@dataclass(frozen=True, slots=True)
class Redaction:
    """One record.

    Attributes:
        index: The entry that was emptied.
        leaf_hash: What its leaf hashed to, as an event writes it.
        writer: Who had written it.
        seq: Its place in that writer's chain.
        record: The entry that says so.
        approvers: How many people approved it.
    """

    index: int
    leaf_hash: str
    writer: str
    seq: int
    record: int
    approvers: int


def redaction_of(record: int, event: Event) -> Redaction | None:
    """Return what the entry at `record` says of another; None of an entry that redacts nothing before it."""
    if event.get("action") != "audit.redacted" or event.get("decision") != "allowed":
        return None
    try:
        found = Redaction(
            int(event["index"]),
            str(event["leaf_hash"]),
            str(event["target_writer"]),
            int(event["target_seq"]),
            record,
            len(event["approval"]["by"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return found if 0 <= found.index < record else None


def redactions_in(trail: Iterable[tuple[int, bytes]], origin: str) -> dict[int, Redaction]:
    """Return the redactions that a log's trail records, by the index of the emptied entry."""
    found: dict[int, Redaction] = {}
    for record, leaf in trail:
        event, _ = read_frame(leaf, origin=origin)
        redaction = redaction_of(record, event)
        if redaction is not None:
            found.setdefault(redaction.index, redaction)
    return found


def is_redacted(leaf: bytes, hashed: bytes, redaction: Redaction | None) -> bool:
    """Return whether a leaf is empty, and a record says that one of this hash was emptied."""
    return not leaf and redaction is not None and redaction.leaf_hash == hash_text(hashed)
