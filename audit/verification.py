"""Is this log whole, whose is it, and what does that prove? Over a store and keys that are handed in; pure.

Everything is recomputed from the entries alone, in memory independent of their number (`walk`); here it is held
against what the log key, the witnesses and the reader's own checkpoints say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from audit import checkpoint
from audit.canonical import Event
from audit.errors import LogUnreadable, NoteRefused
from audit.findings import Flaw, Verification, span
from audit.frame import hash_text
from audit.note import VerifierKey
from audit.quorum import judge
from audit.stored import StoredLog
from audit.tiles import HASHES_PER_TILE, tile_path
from audit.trust import TrustPolicy
from audit.walk import Opener, Walk


@dataclass(frozen=True, slots=True)
class Reader:
    """What a reader brings along.

    Attributes:
        policy: The keys that the reader trusts, if any were found.
        pinned_by: Where they came from, for the output.
        against: Earlier or other checkpoints of this log, by the name to show.
        complete: Replay the rules of order and compare the projections, too.
    """

    policy: TrustPolicy | None = None
    pinned_by: str = ""
    against: Mapping[str, bytes] = field(default_factory=dict)
    complete: bool = False


def _parsed(data: bytes) -> checkpoint.Checkpoint | None:
    try:
        return checkpoint.parse(data)
    except NoteRefused:
        return None


def verify(
    log: StoredLog,
    newest_checkpoint: bytes,
    reader: Reader,
    progress: Callable[[int], None] = lambda _entries: None,
    openers: Sequence[Opener] = (),
) -> Verification:
    """Return what a stored log and its newest checkpoint prove to `reader`.

    Args:
        log: One moment of the store, not older than the checkpoint.
        newest_checkpoint: The file `checkpoint`, empty where there is none.
        reader: Keys and checkpoints that the reader brings.
        progress: Told how many entries were read.
        openers: Who opens entries meanwhile, such as other processes.

    Raises:
        LogUnreadable: There is no entry at all.
    """
    known = [found for found in map(_parsed, (newest_checkpoint, *reader.against.values())) if found is not None]
    if log.last_index() < 0:
        raise LogUnreadable("the log has no entry")
    kept_size, kept = max(log.quorums().items(), default=(0, b""))
    walk = Walk(log, {found.size for found in known} | ({kept_size} if kept else set()), reader.complete, openers)
    walk.run(progress)
    return _concluded(walk, newest_checkpoint, kept, reader)


def _concluded(walk: Walk, newest_checkpoint: bytes, newest_cosigned: bytes, reader: Reader) -> Verification:
    history = walk.history
    pinned = reader.policy.for_origin(history.origin) if reader.policy is not None else ()
    result = Verification(
        origin=history.origin,
        size=history.size,
        root="" if walk.broken else hash_text(walk.root),
        quorum=reader.policy.needed() if reader.policy is not None and pinned else 0,
        pinned_by=reader.pinned_by if pinned else "",
        notes=walk.notes,
    )
    keys = pinned or history.keyring.log_keys()
    signed = _check_newest(walk, newest_checkpoint, keys) if not walk.stopped else None
    kept = _check_kept(walk, newest_cosigned, keys) if newest_cosigned and not walk.stopped else None
    if signed is not None:
        _check_quorum(signed, kept, reader, result, pinned=bool(pinned))
        if signed.size < history.size:
            result.notes.append(Flaw("CFD-A45", span(signed.size, history.size), "not yet in a signed checkpoint"))
    extended = _check_against(walk, reader, keys) if not walk.stopped else []
    _settle_disputes(walk, signed)
    if reader.complete:
        walk.flaws.extend(walk.rules.finish(walk.last_event))
    result.flaws = walk.flaws
    if not walk.flaws:
        result.proved.append(_whole(result, walk.begin))
        result.proved.extend(extended)
        if reader.complete:
            result.proved.append("the entries keep the rules of order: openings, acceptances, budgets, what left")
            result.proved.append("the rows by which queries find entries are those of the entries")
    return result


def joined(results: Sequence[tuple[Verification, Event]]) -> Verification:
    """Return what several epochs prove together, each following the one before it.

    Args:
        results: Of each epoch in order what it proves, and its first entry.
    """
    whole = results[-1][0]
    for (older, _), (newer, first) in pairwise(results):
        number, following = older.origin.rpartition("/")[2], newer.origin.rpartition("/")[2]
        lost = first.get("lost")
        flaws = [flaw for flaw in older.flaws if not (lost and flaw.code in ("CFD-A07", "CFD-A04", "CFD-A08"))]
        told = [flaw for flaw in older.flaws if flaw not in flaws]
        for found, into in ((flaws, whole.flaws), (older.notes, whole.notes)):
            into.extend(Flaw(one.code, f"epoch {number}, {one.where}", one.what) for one in found)
        whole.notes.extend(
            Flaw(one.code, f"epoch {number}, {one.where}", f"{one.what}; epoch {following} says so") for one in told
        )
        whole.proved.extend(f"epoch {number}: {text}" for text in older.proved)
        previous = first.get("previous", {})
        if (previous.get("origin"), previous.get("size"), previous.get("root")) == (
            older.origin,
            older.size,
            older.root,
        ):
            people = len(first.get("approval", {}).get("by", ()))
            whole.proved.append(
                f"epoch {following} follows epoch {number} as it was left, with {older.size} entries;"
                f" begun by {'two people' if people > 1 else 'one person alone'}"
            )
        else:
            what = f"says that epoch {number} was left with {previous.get('size')} entries; it isn't what is there now"
            whole.flaws.append(Flaw("CFD-A08", f"epoch {following}, entry 0", what))
    if whole.flaws:
        whole.proved.clear()
    return whole


def _settle_disputes(walk: Walk, signed: checkpoint.Checkpoint | None) -> None:
    """Say of entries that their tile contradicts which of the two was altered: the one that the signed root lacks."""
    if not walk.disputed:
        return
    if signed is not None and walk.roots.get(signed.size) == signed.root:
        for n in sorted({index // HASHES_PER_TILE for index in walk.disputed}):
            walk.flaw("CFD-A03", tile_path(0, n), "isn't the tile over its entries, which the signed root covers")
        return
    for index in walk.disputed:
        walk.flaw("CFD-A01", f"entry {index}", "was altered, and its row with it: its tile has another hash")


def _whole(result: Verification, begin: int) -> str:
    witnessed = f", cosigned up to {result.cosigned} (quorum {result.quorum})" if result.cosigned else ""
    counted = f"entries {begin} to {result.size - 1}" if begin else f"{result.size} entries"
    return f"{counted}{witnessed}; all bytes, signatures, chains and times agree"


def _check_newest(walk: Walk, data: bytes, keys: tuple[VerifierKey, ...]) -> checkpoint.OpenedCheckpoint | None:
    """Return the log's newest checkpoint if it is signed and agrees with the entries."""
    where = "file checkpoint"
    if not data:
        walk.flaw("CFD-A05", where, "missing: nothing says how long the log is")
        return None
    return _check_own(walk, where, data, keys)


def _check_kept(walk: Walk, data: bytes, keys: tuple[VerifierKey, ...]) -> checkpoint.OpenedCheckpoint | None:
    """Return the newest checkpoint that the log keeps with cosignatures if it is signed and agrees with the entries."""
    return _check_own(walk, "cosigned checkpoint", data, keys)


def _check_own(
    walk: Walk, where: str, data: bytes, keys: tuple[VerifierKey, ...]
) -> checkpoint.OpenedCheckpoint | None:
    try:
        signed = checkpoint.open_checkpoint(data, origin=walk.history.origin, log_keys=keys)
    except NoteRefused as refused:
        walk.flaw("CFD-A05", where, refused.message)
        return None
    if walk.size < signed.size:
        walk.flaw("CFD-A07", where, f"truncated: {signed.size} entries then, {walk.size} now")
        return None
    if walk.broken:
        return None
    if not walk.has_root(signed.root, signed.size):
        walk.flaw("CFD-A04", where, f"the root over the first {signed.size} entries isn't the one that was signed")
        return None
    if not _in_force(walk, signed):
        walk.flaw("CFD-A10", where, f"no log key that signed it was in force at {signed.size} entries")
        return None
    return signed


def _in_force(walk: Walk, signed: checkpoint.OpenedCheckpoint) -> bool:
    """Return whether a key that signed was, by the log's own entries, one for checkpoints of that size."""
    return not set(signed.signers).isdisjoint(walk.history.keyring.log_keys_at(signed.size))


def _check_quorum(
    signed: checkpoint.OpenedCheckpoint,
    kept: checkpoint.OpenedCheckpoint | None,
    reader: Reader,
    result: Verification,
    *,
    pinned: bool,
) -> None:
    """Say up to where a quorum of others has seen the log: by its newest checkpoint, or by the newest kept with one."""
    policy = reader.policy
    if policy is None or not pinned or not result.quorum:
        return
    said = ""
    for one in (signed, kept):
        if one is None:
            continue
        try:
            found = judge(one, policy)
        except NoteRefused as refused:
            said = said or refused.message
            continue
        if found.met:
            result.cosigned = max(result.cosigned, one.size)
        said = said or f"not yet witnessed: {len(found.heard)} of {result.quorum} cosignatures"
    if not result.cosigned:
        result.notes.append(Flaw("CFD-A45", "file checkpoint", said))
    elif result.cosigned < signed.size:
        what = f"signed, and not yet cosigned by a quorum of {result.quorum}"
        result.notes.append(Flaw("CFD-A45", span(result.cosigned, signed.size), what))


def _check_against(walk: Walk, reader: Reader, keys: tuple[VerifierKey, ...]) -> list[str]:
    """Return what is proved about the reader's own checkpoints, and name those that contradict the log."""
    proved = []
    for name, data in reader.against.items():
        try:
            other = checkpoint.open_checkpoint(data, origin=walk.history.origin, log_keys=keys)
        except NoteRefused as refused:
            walk.flaw("CFD-A05", name, refused.message)
            continue
        if walk.size < other.size:
            walk.flaw("CFD-A07", name, f"truncated: {other.size} entries then, {walk.size} now")
        elif other.size in walk.roots and walk.roots[other.size] != other.root:
            walk.flaw("CFD-A08", name, f"forked: another history of the first {other.size} entries was signed")
        elif other.size in walk.roots and not _in_force(walk, other):
            walk.flaw("CFD-A10", name, f"no log key that signed it was in force at {other.size} entries")
        elif other.size in walk.roots:
            proved.append(f"extends the checkpoint of {other.size} entries in {name}")
    return proved
