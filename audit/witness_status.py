"""How a log stands with its witnesses, and how the logs stand that its home witnesses; pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from audit import note, quorum
from audit.checkpoint import OpenedCheckpoint, open_checkpoint
from audit.errors import NoteRefused
from audit.trust import TrustPolicy

NOBODY = TrustPolicy(())


@dataclass(frozen=True, slots=True)
class OwnStatus:
    """One log before its witnesses.

    Attributes:
        origin: The log.
        size: Its entries.
        cosigned_size: Entries under the newest checkpoint with a quorum; 0 where there is none.
        have: Voices that cosigned the newest checkpoint which was shown to witnesses.
        needed: Voices that are enough; 0 where nobody else can witness.
        missing: The voices that it lacks.
        age_s: Seconds since the newest quorum, or since the log began.
        stale: Whether entries have been without a quorum for too long.
    """

    origin: str
    size: int
    cosigned_size: int
    have: int
    needed: int
    missing: tuple[str, ...]
    age_s: int
    stale: bool


@dataclass(frozen=True, slots=True)
class SeenStatus:
    """One log that this home witnesses.

    Attributes:
        origin: The log.
        size: The largest tree that was cosigned; 0 for none.
        time_s: When, POSIX seconds; 0 where it wasn't.
        refusals: How often a cosignature was refused.
        forks: Proofs of two histories that no person has acknowledged.
    """

    origin: str
    size: int
    time_s: int
    refusals: int
    forks: int


def own_status(
    origin: str,
    size: int,
    kept: Iterable[tuple[int, bytes, bool]],
    policy: TrustPolicy,
    *,
    now_s: int,
    began_s: int,
    stale_after_s: float,
) -> OwnStatus:
    """Return how a log stands.

    Args:
        origin: The log.
        size: Its entries now.
        kept: Size, note and quorum of its checkpoints with cosignatures, by size.
        policy: Who witnesses it; checkpoints that its keys didn't sign don't count.
        now_s: The time, POSIX seconds.
        began_s: When the log began.
        stale_after_s: How long entries may be without a quorum.
    """
    opened = [(one, met) for _, data, met in kept if (one := _open(origin, data, policy)) is not None]
    quorums = [one for one, met in opened if met and quorum.judge(one, policy).met]
    newest = opened[-1][0] if opened else None
    found = None if newest is None else quorum.judge(newest, policy)
    since_s = began_s
    if quorums:
        since_s = quorum.judge(quorums[-1], policy).time_s or began_s
    cosigned = quorums[-1].size if quorums else 0
    age_s = max(0, now_s - since_s)
    return OwnStatus(
        origin=origin,
        size=size,
        cosigned_size=cosigned,
        have=0 if found is None else len(found.heard),
        needed=policy.needed(),
        missing=policy.voices() if found is None else found.missing,
        age_s=age_s,
        stale=policy.needed() > 0 and cosigned < size and age_s > stale_after_s,
    )


def _open(origin: str, data: bytes, policy: TrustPolicy) -> OpenedCheckpoint | None:
    try:
        opened = open_checkpoint(data, origin=origin, log_keys=policy.for_origin(origin))
        quorum.judge(opened, policy)
    except NoteRefused:
        return None
    return opened


def seen_status(
    logs: Iterable[str],
    witnessed: Mapping[str, tuple[int, bytes]],
    *,
    own_key_name: str,
    refusals: Mapping[str, int],
    forks: Mapping[str, int],
) -> tuple[SeenStatus, ...]:
    """Return how each log stands that this home witnesses, in order.

    Args:
        logs: The logs that its trust policies name.
        witnessed: Size and note of what was cosigned, by origin.
        own_key_name: The name of the home's witness key.
        refusals: How often a cosignature was refused, by origin.
        forks: Proofs of two histories that nobody has acknowledged, by origin.
    """
    return tuple(
        SeenStatus(
            origin=origin,
            size=witnessed[origin][0] if origin in witnessed else 0,
            time_s=_own_time_s(witnessed[origin][1], own_key_name) if origin in witnessed else 0,
            refusals=refusals.get(origin, 0),
            forks=forks.get(origin, 0),
        )
        for origin in sorted({*logs, *witnessed})
    )


def _own_time_s(data: bytes, own_key_name: str) -> int:
    try:
        lines = note.parse_note(data).signatures
    except NoteRefused:
        return 0
    times = [int.from_bytes(line.signature[:8], "big") for line in lines if line.name == own_key_name]
    return max(times, default=0)
