"""The next epoch of a log: the way out of a restored backup, a stolen log key, a clock beyond repair.

The old log is closed for ever, with an entry that says so where it can still be written. The new one begins with the
name, size and root of the old, and with what the old one is known to have had and has no more: the larger tree that its
own checkpoint file names. It is built beside the old one and takes its place whole. Peers pin it by a charter change.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import checkpoint, database, durable, key_files
from audit.canonical import Event
from audit.clock import Clock
from audit.errors import AuditError, LogUnreadable, SecondWriter
from audit.events import Actor, Approval, LostTree, PreviousLog
from audit.frame import hash_text, read_frame
from audit.home_lock import hold_lock
from audit.log import NO_CHARTER, AuditLog, First
from audit.merkle import EMPTY_ROOT
from audit.names import Origin
from audit.open_log import CLI
from audit.places import Places
from audit.settings import LogSettings
from audit.snapshot import Snapshot, first_leaf
from audit.tiles import Edge, TrustedTiles
from audit.trust_file import pin_another_log_key

NEW_EPOCH: Final = "new-epoch"


@dataclass(frozen=True, slots=True)
class LeftEpoch:
    """An epoch as it was left.

    Attributes:
        origin: Its name.
        size: Its entries, as far as they can be read.
        root: The root over them.
        opened: Its first entry, empty where that can't be read.
        lost: The larger or other tree that it signed, and what became of that.
    """

    origin: Origin
    size: int
    root: bytes
    opened: Event
    lost: LostTree | None

    @property
    def previous(self) -> PreviousLog:
        """Return what the next epoch says of this one."""
        return PreviousLog(origin=str(self.origin), size=self.size, root=hash_text(self.root))


def begin_next(
    folder: Path,
    *,
    reason: str,
    commit: Callable[[str], str],
    actor: Actor,
    approval: Approval | None = None,
    clock: Clock,
    settings: LogSettings | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> tuple[LeftEpoch, Origin]:
    """Close the newest epoch in the audit folder `folder`, begin the next, and return both.

    A run that was cut goes on where it stopped.

    Args:
        folder: The home's folder `audit`.
        reason: Why, in a person's words; the new log has a commitment to them.
        commit: Makes that commitment, its value durable in the side store.
        actor: Who begins it.
        approval: Who asked for it, and who confirmed.
        clock: Wall and monotonic time.
        settings: Where the new log is kept.
        random_bytes: Gives the log key and ids.

    Raises:
        LogUnreadable: There is no log.
        SecondWriter: A process writes the log.
        SettingsUnsafe: A key is missing, or the place isn't safe.
    """
    places = Places.newest(folder)
    if not places.has_log:
        raise LogUnreadable(f"no log in {folder}", hint="make the home first, or name another --home")
    _close(places, clock)
    lock = hold_lock(places)
    try:
        if Places.newest(folder) != places:
            raise SecondWriter("another process began the next epoch")
        left = look_at(places)
        durable.replace_file(places.frozen, NEW_EPOCH.encode() + b"\n")
        origin = Origin(left.origin.federation, left.origin.party, places.epoch + 1)
        building = Places(folder, places.epoch + 1, building=True)
        if building.epoch_folder.exists():
            shutil.rmtree(building.epoch_folder)
        first = First(
            actor,
            left.opened.get("charter", NO_CHARTER),
            left.opened.get("quorum", 0),
            tuple(left.opened.get("witness_keys", ())),
            left.previous,
            left.lost,
            {"reason": commit(reason)},
            approval,
        )
    except BaseException:
        os.close(lock)
        raise
    log_key = AuditLog.begin_epoch(
        building, origin, first=first, lock=lock, clock=clock, random_bytes=random_bytes, settings=settings
    )
    pin_another_log_key(folder.parent / "trust", party=origin.party, log_key=log_key)
    building.epoch_folder.rename(Places(folder, origin.epoch).epoch_folder)
    durable.sync_folder(folder)
    return left, origin


def _close(places: Places, clock: Clock) -> None:
    """Let the log say itself that it ends, where it can still be opened."""
    try:
        log = AuditLog.open(places.folder, clock=clock, process=CLI)
    except SecondWriter:
        raise
    except AuditError:
        return  # it is frozen, or what stops its start is why it must not go on
    log.freeze(NEW_EPOCH)


def look_at(places: Places) -> LeftEpoch:
    """Return what an epoch holds and what it is known to have lost.

    Raises:
        LogUnreadable: Neither its entries nor its checkpoint say whose log it is.
    """
    promised = _promised(places)
    size, root, opened, same = 0, EMPTY_ROOT, Event(), False
    with contextlib.suppress(AuditError), database.open_to_read(places, live=False) as connection:
        snapshot = Snapshot(connection)
        if leaf := first_leaf(snapshot):
            opened, _ = read_frame(leaf, origin=None)
        head = snapshot.head()
        if head is not None:
            tree = TrustedTiles(snapshot, head.size, head.root)
            size, root = head.size, head.root
            if promised is not None and promised.size <= size:
                same = Edge.read(tree, promised.size).root() == promised.root
    name = str(opened.get("origin", "")) or (promised.origin if promised is not None else "")
    if not name:
        raise LogUnreadable(f"nothing in {places.epoch_folder} says whose log it is")
    lost = None
    if promised is not None and not same:
        cause = "shorter-than-signed" if promised.size > size else "other-than-signed"
        lost = LostTree(size=promised.size, root=hash_text(promised.root), cause=cause)
    return LeftEpoch(Origin.parse(name), size, root, opened, lost)


def _promised(places: Places) -> checkpoint.Checkpoint | None:
    """Return the newest checkpoint that the epoch's own key signed, None where there is none."""
    try:
        data = places.checkpoint.read_bytes()
        found = checkpoint.parse(data)
        key = key_files.read_key(places.log_key(), found.origin).key
        checkpoint.open_checkpoint(data, origin=found.origin, log_keys=[key])
    except (OSError, AuditError):
        return None
    return found
