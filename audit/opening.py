"""Opening a stored log for appending, in time independent of its size; refused means that nothing was written.

The partial tiles give the root; the tree at the size of each checkpoint that the log signed must have the checkpoint's
root; the last entries are hashed, and those above the newest checkpoint, which nothing signed covers yet, are opened
in full. What lies deeper is checked by whoever reads it, and by `confide audit verify`.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from audit import checkpoint, database, durable
from audit.canonical import Event
from audit.errors import (
    AuditError,
    EntryRefused,
    LogBehind,
    LogDamaged,
    LogFrozen,
    LogUnreadable,
    NoteRefused,
    ProofRefused,
    SecondWriter,
    SettingsUnsafe,
)
from audit.events import SetAside
from audit.frame import TRAIL_ACTIONS, hash_text, keyring_of, newest_origin, read_frame
from audit.history import History, WriterTail, open_at
from audit.merkle import leaf_hash
from audit.note import VerifierKey
from audit.places import Places
from audit.proofs import Proof
from audit.pruning import Pruning, check_inside, insides, newest_pruning
from audit.redactions import Redaction, is_redacted, redactions_in
from audit.snapshot import Snapshot
from audit.storage import Store
from audit.stored import Head, StoredEntry, WriterRow
from audit.tiles import HASH_BYTES, HASHES_PER_TILE, Edge, TrustedTiles

CHECKED: Final = 256
KEPT_ASIDE: Final = 3


@dataclass(slots=True)
class Opened:
    """What opening found.

    Attributes:
        history: The state after the last entry.
        edge: The right edge of the tree.
        unclean: The last process of the daemon didn't record its end.
        set_aside: The copy in `aside` of what SQLite had committed and not yet moved into its file.
        checkpoint_size: Entries under the newest checkpoint.
        checkpoint_note: That checkpoint.
        redactions: Entries that are empty or have to be emptied, by index.
        to_empty: Those that are not empty yet.
        pruning: Where the log begins, if its first entries went to an archive.
        to_prune: Some of them are there yet.
    """

    history: History
    edge: Edge = field(default_factory=Edge)
    unclean: bool = False
    set_aside: SetAside | None = None
    checkpoint_size: int = 0
    checkpoint_note: bytes = b""
    redactions: dict[int, Redaction] = field(default_factory=dict)
    to_empty: list[Redaction] = field(default_factory=list)
    pruning: Pruning | None = None
    to_prune: bool = False


def open_store(places: Places) -> tuple[Opened, Store]:
    """Return what a check of the log found, and its database; the caller holds the home's lock.

    Raises:
        LogUnreadable: There is no log.
        SecondWriter, LogFrozen, LogDamaged, LogBehind, SettingsUnsafe: And nothing was written.
    """
    if not places.has_log:
        raise LogUnreadable(f"no log in {places.folder}", hint="make the home first, or name another --home")
    if places.frozen.exists():
        raise LogFrozen(f"the log in {places.epoch_folder} is frozen")
    opened, head = check(places)
    if opened.unclean:
        opened.set_aside = _copy_aside(places)
    store = Store(database.open_to_write(places), places)
    if store.snapshot.head() != head:
        store.close()
        raise SecondWriter("the log grew while it was opened")
    return opened, store


def check(places: Places) -> tuple[Opened, Head]:
    """Return the state of a log whose last entries, tiles and checkpoints agree, and its head.

    Raises:
        LogUnreadable, LogFrozen, LogDamaged, LogBehind: They don't; nothing was written, not even by SQLite.
    """
    signed = places.checkpoint.read_bytes() if places.checkpoint.exists() else b""
    try:
        # As a copy is opened: the caller holds the lock, nobody writes, and a refused log stays as it is.
        with database.open_to_read(places, live=False) as connection:
            return _checked(Snapshot(connection), signed)
    except (ProofRefused, EntryRefused) as refused:
        raise LogDamaged(refused.message, code=refused.code) from None
    except AuditError as error:
        if error.code == "CFD-A29":
            raise SettingsUnsafe(error.message, code=error.code) from None
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        # Rows that agree with each other and were never entries: their fields aren't there.
        raise LogDamaged("an entry is no event", code="CFD-A09") from None


def _checked(snapshot: Snapshot, signed: bytes) -> tuple[Opened, Head]:
    head = snapshot.head()
    if head is None:
        raise LogDamaged("the log's head is missing", code="CFD-A02")
    if head.size == 0:
        raise LogUnreadable("the log has no entry", hint="make the home anew")
    last_index = snapshot.last_index()
    if last_index + 1 != head.size:
        raise LogDamaged(f"{last_index + 1} entries are stored, {head.size} were written", code="CFD-A02")
    edge = Edge.read(snapshot, head.size)
    if edge.root() != head.root:
        raise LogDamaged(f"the tiles of {head.size} entries don't give their root", code="CFD-A04")
    trusted = TrustedTiles(snapshot, head.size, head.root)
    trail = dict(_in_tree(snapshot.trail(), trusted, insides(snapshot.trail_paths())))
    origin = newest_origin(trail[0]) if 0 in trail else ""
    keyring = keyring_of(trail.items(), origin)
    opened = Opened(History(origin, head.size, keyring, t_us=head.t_us), edge, unclean=head.running)
    opened.pruning = newest_pruning(sorted(trail.items()), origin)
    opened.redactions = redactions_in(sorted(trail.items()), origin)
    _check_promises(opened, trusted, signed, snapshot.newest_quorum())
    _check_last_entries(opened, snapshot, trusted, head, frozenset(trail))
    opened.to_prune = opened.pruning is not None and snapshot.first_index() < opened.pruning.below
    opened.to_empty = [one for one in opened.redactions.values() if _has_leaf(snapshot, one.index)]
    return opened, head


def _in_tree(
    leaves: Iterable[tuple[int, bytes]], trusted: TrustedTiles, inside: Mapping[int, Proof]
) -> Iterator[tuple[int, bytes]]:
    for index, leaf in leaves:
        if index in inside:
            check_inside(trusted, index, leaf, inside[index])
        elif leaf_hash(leaf) != hash_in_tree(trusted, index):
            raise LogDamaged(f"the copy of entry {index} in the trail was altered")
        yield index, leaf


def hash_in_tree(trusted: TrustedTiles, index: int) -> bytes:
    """Return the leaf hash that the tree has at `index`.

    Raises:
        ProofRefused: The tree is smaller, or its tiles were altered.
    """
    n, at = divmod(index, HASHES_PER_TILE)
    return trusted.tile(0, n, at + 1)[-HASH_BYTES:]


# --- what the log signed ----------------------------------------------------------------------------------------


def _check_promises(opened: Opened, trusted: TrustedTiles, signed: bytes, quorum: bytes) -> None:
    """Refuse a log that is shorter than it said, or another one."""
    history = opened.history
    if not signed and history.size > 1:
        raise LogDamaged(
            f"file checkpoint is missing beside {history.size} entries",
            code="CFD-A05",
            hint="find the file; a log without it may be a restored backup",
        )
    for name, data in (("file checkpoint", signed), ("the newest cosigned checkpoint", quorum)):
        if not data:
            continue
        try:
            keys = history.keyring.log_keys_at(checkpoint.parse(data).size)
            promised = checkpoint.open_checkpoint(data, origin=history.origin, log_keys=keys)
        except NoteRefused as refused:
            raise LogDamaged(f"{name}: {refused.message}", code="CFD-A05") from None
        if history.size < promised.size:
            raise LogBehind(
                f"truncated: {promised.size} entries in {name}, {history.size} here",
                hint="find the newest copy; where it is lost, `confide audit new-epoch --reason TEXT` begins anew",
            )
        if Edge.read(trusted, promised.size).root() != promised.root:
            raise LogDamaged(f"the first {promised.size} entries aren't those that this log signed", code="CFD-A08")
        if promised.size >= opened.checkpoint_size and name == "file checkpoint":
            opened.checkpoint_size, opened.checkpoint_note = promised.size, data


# --- the last entries -------------------------------------------------------------------------------------------


def _check_last_entries(
    opened: Opened, snapshot: Snapshot, trusted: TrustedTiles, head: Head, trail: frozenset[int]
) -> None:
    """Hash the last entries, open those that no checkpoint covers, and take over the writers' chains."""
    history = opened.history
    first = max(0 if opened.pruning is None else opened.pruning.below, head.size - CHECKED)
    found = {row.index: row for row in snapshot.entries(first, head.size)}
    rows = {row.name: row for row in snapshot.writers()}
    opened.history = History(
        history.origin,
        history.size,
        history.keyring,
        {name: WriterTail(row.next_seq, hash_text(row.last_hash)) for name, row in rows.items()},
        history.t_us,
    )
    last: Event = {}
    chains: dict[str, WriterTail] = {}
    for index in range(first, head.size):
        entry, redacted = found.get(index), opened.redactions.get(index)
        if entry is not None and redacted is not None and _is_emptied(entry, redacted, trusted):
            chains[redacted.writer] = WriterTail(redacted.seq + 1, redacted.leaf_hash)
            continue
        event = _checked_entry(opened, entry, index, trusted)
        if event.get("action") in TRAIL_ACTIONS and index not in trail:
            raise LogDamaged(f"entry {index} is missing in the trail", code="CFD-A02")
        writer = str(event.get("writer"))
        if index >= opened.checkpoint_size and writer in chains:
            _check_link(index, event, chains[writer])
        if index >= opened.checkpoint_size and event.get("t_us", 0) < last.get("t_us", 0):
            raise LogDamaged(f"entry {index} is before the one before it", code="CFD-A13")
        chains[writer] = WriterTail(_seq(event) + 1, hash_text(found[index].leaf_hash))
        last = event
    if last.get("t_us") != head.t_us:
        raise LogDamaged("the head has another time than the last entry", code="CFD-A04")
    if last.get("action") == "log.frozen":
        raise LogFrozen("the log's last entry closes this epoch")
    for row in rows.values():
        _check_writer(opened, snapshot, trusted, row, head.size)
    missing = set(chains) - set(rows)
    if missing:
        raise LogDamaged(f"the row of writer {min(missing)} is missing")


def _has_leaf(snapshot: Snapshot, index: int) -> bool:
    entry = snapshot.entry(index)
    return entry is not None and bool(entry.leaf)


def _is_emptied(row: StoredEntry, redacted: Redaction, trusted: TrustedTiles) -> bool:
    in_tree = row.leaf_hash == hash_in_tree(trusted, row.index)
    return not row.damage and in_tree and is_redacted(row.leaf, row.leaf_hash, redacted)


def _seq(event: Event) -> int:
    return event["seq"] if type(event.get("seq")) is int else -1


def _checked_entry(opened: Opened, row: StoredEntry | None, index: int, trusted: TrustedTiles) -> Event:
    history = opened.history
    if row is None:
        raise LogDamaged(f"entry {index} is missing", code="CFD-A02")
    if row.damage:
        raise LogDamaged(f"entry {index} can't be read: {row.damage}", code="CFD-A02")
    hashed = leaf_hash(row.leaf)
    if hashed != row.leaf_hash or hashed != hash_in_tree(trusted, index):
        raise LogDamaged(f"entry {index} was altered")
    try:
        if index >= opened.checkpoint_size or index == 0:
            event = open_at(index, row.leaf, origin=history.origin, keyring=history.keyring).event
        else:
            event, _ = read_frame(row.leaf, origin=history.origin)
    except EntryRefused as refused:
        raise LogDamaged(f"entry {index}: {refused.message}", code=refused.code) from None
    if event.get("id") != row.event_id.hex():
        raise LogDamaged(f"entry {index} is kept under another id than its own")
    return event


def _check_link(index: int, event: Event, tail: WriterTail) -> None:
    if (event["seq"], event.get("prev", "")) != (tail.next_seq, tail.last):
        raise LogDamaged(f"entry {index} doesn't follow its writer's last entry", code="CFD-A11")


def _check_writer(opened: Opened, snapshot: Snapshot, trusted: TrustedTiles, row: WriterRow, size: int) -> None:
    """Refuse a writer's row that isn't about that writer's last entry, or would let it go on elsewhere."""
    wrong = LogDamaged(f"the row of writer {row.name[:80]} doesn't match its last entry", code="CFD-A01")
    if opened.pruning is not None and row.last_index < opened.pruning.below:
        return  # its last entry went to the archive, and with it what the row could be held against
    if not 0 <= row.last_index < size or hash_in_tree(trusted, row.last_index) != row.last_hash:
        raise wrong
    entry, redacted = snapshot.entry(row.last_index), opened.redactions.get(row.last_index)
    if entry is not None and redacted is not None and _is_emptied(entry, redacted, trusted):
        if (redacted.writer, redacted.seq + 1) != (row.name, row.next_seq):
            raise wrong
        return
    if entry is None or leaf_hash(entry.leaf) != row.last_hash:
        raise wrong
    event, signed = read_frame(entry.leaf, origin=opened.history.origin)
    if (event["writer"], _seq(event) + 1) != (row.name, row.next_seq) or signed.signatures[0].key_id != row.key_id:
        raise wrong


def check_keys(history: History, *, log_key: VerifierKey, writer: VerifierKey) -> None:
    """Refuse keys that the log doesn't have in force for its next entry.

    Raises:
        SettingsUnsafe: One isn't (CFD-A10).
    """
    try:
        history.keyring.writer(writer.name, writer.id, history.size)
    except EntryRefused as refused:
        raise SettingsUnsafe(refused.message, code="CFD-A10") from None
    if log_key not in history.keyring.log_keys_at(history.size + 1):
        raise SettingsUnsafe("the log key isn't one that the log declares", code="CFD-A10")


# --- what an unclean end left -----------------------------------------------------------------------------------


def _copy_aside(places: Places) -> SetAside | None:
    """Keep a durable copy of what SQLite left in its write-ahead log, the newest three, and return what to record."""
    try:
        if not places.write_ahead.exists() or places.write_ahead.stat().st_size == 0:
            return None
        durable.make_folder(places.aside)
        taken = sorted(int(path.stem) for path in places.aside.glob("*.wal") if path.stem.isdigit())
        path = places.aside / f"{taken[-1] + 1 if taken else 1}.wal"
        with places.write_ahead.open("rb") as source, open(path, "xb", opener=_private) as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            durable.sync(copy.fileno())
        durable.sync_folder(places.aside)
        for old in taken[: max(0, len(taken) - KEPT_ASIDE + 1)]:
            (places.aside / f"{old}.wal").unlink()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SetAside(hash=f"sha256:{digest}", bytes=path.stat().st_size)
    except OSError as error:
        raise SettingsUnsafe(f"what an unclean end left can't be set aside: {error.strerror}") from None


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, durable.PRIVATE_FILE)
