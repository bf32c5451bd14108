"""Opening a stored log for appending: check everything, then change something; refused means nothing was written.

The root that the log key signed covers the entries below the checkpoint, so those need hashing only; each entry from
256 before the checkpoint on is opened in full, signature included.
"""

import hashlib
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from audit import canonical, checkpoint, durable, storage
from audit.canonical import Event
from audit.entry import read_frame
from audit.errors import (
    EntryRefused,
    LogBehind,
    LogDamaged,
    LogFrozen,
    LogUnreadable,
    NotCanonical,
    NoteRefused,
    SettingsUnsafe,
)
from audit.events import SetAside
from audit.history import History, newest_origin
from audit.merkle import leaf_hash
from audit.places import Places

FULLY_CHECKED: Final = 256
KEPT_ASIDE: Final = 3


@dataclass(slots=True)
class Opened:
    """What opening found.

    Attributes:
        history: The state after the last whole entry.
        ids: Event id to index.
        offsets: Where each line begins, and where the last one ends.
        left_open: `data.opened` events without an end, by index.
        commitments: SHA-256 of every commitment in the log.
        unclean: The last process of the daemon didn't record its end.
        set_aside: What lay behind the last whole entry; the file still holds it, and `aside` a durable copy.
        checkpoint_size: Entries under the newest checkpoint.
        checkpoint_note: That checkpoint.
        lock: The descriptor that holds the home.
    """

    history: History
    ids: dict[bytes, int] = field(default_factory=dict)
    offsets: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    left_open: dict[int, Event] = field(default_factory=dict)
    commitments: set[bytes] = field(default_factory=set)
    unclean: bool = False
    set_aside: SetAside | None = None
    checkpoint_size: int = 0
    checkpoint_note: bytes = b""
    lock: int = -1

    def take(self, event: Event, index: int) -> None:
        """Note what a process that starts needs to know of an entry."""
        event_id = bytes.fromhex(event["id"])
        if event_id in self.ids:
            raise LogDamaged(f"entry {index} repeats the id of entry {self.ids[event_id]}", code="CFD-A12")
        self.ids[event_id] = index
        for value in event.get("private", {}).values():
            self.commitments.add(hashlib.sha256(value.encode()).digest())
        match event["action"]:
            case "data.opened" if event["decision"] == "allowed":
                self.left_open[index] = event
            case "data.closed" | "data.abandoned":
                self.left_open.pop(event["opened"], None)
            case "log.booted":
                self.unclean = True
            case "log.closed":
                self.unclean = False


def open_store(places: Places, *, hold_lock: Callable[[], int]) -> Opened:
    """Return the checked log, with the lock held.

    Raises:
        LogUnreadable: There is no log.
        SecondWriter, LogFrozen, LogDamaged, LogBehind: And the lock isn't held.
    """
    if not places.entries.is_file():
        raise LogUnreadable(f"no log in {places.folder}", hint="make the home first, or name another --home")
    lock = hold_lock()
    try:
        opened = _checked(places)
    except BaseException:
        os.close(lock)
        raise
    opened.lock = lock
    return opened


def _checked(places: Places) -> Opened:
    if places.frozen.exists():
        raise LogFrozen(f"the log in {places.epoch_folder} is frozen")
    signed = places.checkpoint.read_bytes() if places.checkpoint.exists() else b""
    try:
        promised = checkpoint.parse(signed) if signed else None
    except NoteRefused as refused:
        raise LogDamaged(f"file checkpoint: {refused.message}", code="CFD-A05") from None
    opened, tail_offset, root_at_checkpoint = _replayed(places, promised)
    history = opened.history
    tail = storage.torn_tail(places.entries, tail_offset) if tail_offset < places.entries.stat().st_size else b""
    if promised is None:
        if history.size > 1:
            raise LogDamaged(
                f"file checkpoint is missing beside {history.size} entries",
                code="CFD-A05",
                hint="find the file; a log without it may be a restored backup",
            )
    else:
        if history.size < promised.size:
            raise LogBehind(f"{history.size} entries here, {promised.size} in the checkpoint that this log signed")
        if root_at_checkpoint != promised.root:
            raise LogDamaged(f"the first {promised.size} entries aren't those that this log signed", code="CFD-A08")
        try:
            checkpoint.open_checkpoint(signed, origin=history.origin, log_keys=history.keyring.log_keys())
        except NoteRefused as refused:
            raise LogDamaged(f"file checkpoint: {refused.message}", code="CFD-A05") from None
        opened.checkpoint_size = promised.size
        opened.checkpoint_note = signed
    if tail:
        opened.set_aside = _keep_aside(places, tail)
    return opened


def _replayed(places: Places, promised: checkpoint.Checkpoint | None) -> tuple[Opened, int, bytes]:
    """Return the log, where its last whole line ends, and the root at the checkpoint's size."""
    opened = Opened(History(""))
    wanted = promised.size if promised is not None else 0
    root = opened.history.frontier.root()
    for raw in storage.read_lines(places.entries):
        line = _line_of(raw)
        if line is None:
            return opened, raw.offset, root
        if opened.history.size == 0:
            opened.history = History(_origin_of(line.leaf))
        _take_line(opened, line, fully=opened.history.size >= wanted - FULLY_CHECKED)
        opened.offsets.append(raw.offset + len(raw.data) + 1)
        if opened.history.size == wanted:
            root = opened.history.frontier.root()
    if opened.history.size == 0:
        raise LogUnreadable(f"the log in {places.folder} has no entry", hint="make the home anew")
    return opened, opened.offsets[-1], root


def _line_of(raw: storage.RawLine) -> storage.StoredLine | None:
    if not raw.whole:
        return None
    try:
        return storage.parse_line(raw.data)
    except NotCanonical:
        return None


def _origin_of(leaf: bytes) -> str:
    try:
        return newest_origin(leaf)
    except EntryRefused as refused:
        raise LogDamaged(f"entry 0: {refused.message}", code=refused.code) from None


def _take_line(opened: Opened, line: storage.StoredLine, *, fully: bool) -> None:
    """Go on by one entry, or refuse the log because of it."""
    history = opened.history
    index = history.size
    hashed = leaf_hash(line.leaf)
    if line.index != index or line.chain != storage.chain_hash(history.chain, hashed):
        raise LogDamaged(
            f"entry {index} was altered, moved or removed", code="CFD-A01" if line.index == index else "CFD-A02"
        )
    try:
        if fully or index == 0:
            event = history.open_next(line.leaf).event
        else:
            event, _ = read_frame(line.leaf, origin=history.origin)
        flaws = history.flaws_of(event)
        if flaws:
            raise LogDamaged(f"{flaws[0].where}: {flaws[0].what}", code=flaws[0].code)
        opened.history = history.after(event, hashed)
        opened.take(event, index)
    except EntryRefused as refused:
        raise LogDamaged(f"entry {index}: {refused.message}", code=refused.code) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        # A line that chain and checkpoint do cover, but that was never an event: its fields aren't there.
        raise LogDamaged(f"entry {index} is no event", code="CFD-A09") from None


def _keep_aside(places: Places, tail: bytes) -> SetAside:
    """Keep a durable copy of the torn tail, the newest three of them, and return what to record."""
    try:
        durable.make_folder(places.aside)
        taken = sorted(int(path.stem) for path in places.aside.glob("*.tail") if path.stem.isdigit())
        number = taken[-1] + 1 if taken else 1
        durable.replace_file(places.aside / f"{number}.tail", tail)
        for old in taken[: max(0, len(taken) - KEPT_ASIDE + 1)]:
            (places.aside / f"{old}.tail").unlink()
    except OSError as error:
        raise SettingsUnsafe(f"what an unclean end left can't be set aside: {error.strerror}") from None
    return SetAside(hash=canonical.sha256(tail), bytes=len(tail))
