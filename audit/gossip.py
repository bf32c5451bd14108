"""Who is told of whose checkpoint, and when a log that was started again may sign; pure.

Sites dial the coordinator, which relays: each party's newest checkpoint to all others, their cosignatures back. A
party can hold back what it was told, but then the owner's log lacks its quorum, and both sides see that.
"""

from collections.abc import Callable, Iterable, Mapping

from audit.checkpoint import OpenedCheckpoint
from audit.errors import LogBehind, LogDamaged
from audit.names import COORDINATOR


def proofs_wanted(size: int, cosigned: Iterable[int]) -> tuple[int, ...]:
    """Return the sizes from which a log proves its new checkpoint of `size`, ascending.

    Args:
        size: Of the new checkpoint.
        cosigned: What each witness last cosigned, 0 for nothing; from there, and from `size`, no proof is needed.
    """
    return tuple(sorted({old for old in cosigned if 0 < old < size}))


def to_hand_over(receiver: str, newest: Mapping[str, int], cosigned: Mapping[str, int]) -> tuple[str, ...]:
    """Return whose checkpoints `receiver` is handed: those that go beyond what it cosigned, the coordinator's first.

    Args:
        receiver: The party that called.
        newest: Size of each party's newest checkpoint.
        cosigned: Size of each party's log that the receiver last cosigned; absent for nothing.
    """
    owners = (owner for owner, size in newest.items() if owner != receiver and size > cosigned.get(owner, 0))
    return tuple(sorted(owners, key=lambda owner: (owner != COORDINATOR, owner)))


def words_needed(operators: int, quorum: int) -> int:
    """Return of how many other operators a log hears after a start before it signs again.

    So many that every quorum has one among them: its newest quorum checkpoint is known to one that was heard.
    """
    return operators - quorum + 1 if quorum else 0


def words_missing(
    size: int,
    root_at: Callable[[int], bytes],
    heard: Mapping[str, OpenedCheckpoint | None],
    needed: int,
) -> int:
    """Return how many more operators a log must hear of before it signs again; 0 when it may.

    Args:
        size: How long the log is here.
        root_at: The root that the log had at a size up to `size`.
        heard: What each operator last cosigned of this log, signed by its key; None for nothing.
        needed: See `words_needed`.

    Raises:
        LogBehind: Somebody has a longer tree of this log: this one was restored from a copy.
        LogDamaged: Somebody has another history of this log (CFD-A08).
    """
    for operator, word in heard.items():
        if word is None:
            continue
        if word.size > size:
            raise LogBehind(f"{operator} cosigned {word.size} entries of this log, which has {size}")
        if word.root != root_at(word.size):
            raise LogDamaged(f"{operator} cosigned another history of {word.size} entries of this log", code="CFD-A08")
    return max(needed - len(heard), 0)
