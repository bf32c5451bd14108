"""Finding and reading logs: a live home, a copied home or audit folder, one epoch's folder. Nothing is written.

What a reader sees of an entry was found in the tree first (`checked`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from audit import checkpoint, database, edge
from audit.bundle_log import BundleLog
from audit.canonical import Event
from audit.checked import CheckedLog, ReadableLog, Row
from audit.errors import AuditError, EntryRefused, LogDamaged, LogUnreadable, NoteRefused
from audit.export import bundle, container
from audit.export.bundle_check import BundleReader
from audit.frame import hash_text, read_frame
from audit.names import Origin
from audit.places import SQLITE, Places, epochs_in, has_log, is_live
from audit.snapshot import Snapshot, first_leaf
from audit.trust import TrustPolicy, parse_policy

MAX_POLICY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log that a reader named.

    Attributes:
        places: Where it lies.
        audit_folder: The folder above its epoch, if it is one.
        home: The home that it belongs to, if it brings one.
    """

    places: Places
    audit_folder: Path | None
    home: Path | None

    @property
    def live(self) -> bool:
        """Return whether readings of this log are recorded in it."""
        return self.audit_folder is not None and is_live(self.audit_folder, edge.host())

    @property
    def is_home(self) -> bool:
        """Return whether the log lies in a home with its keys, into which its owner may write."""
        return self.audit_folder is not None and (self.audit_folder / "keys").is_dir()

    def epochs(self) -> "list[FoundLog]":
        """Return all epochs of the log, in order; the one alone where a single epoch's folder was named."""
        if self.audit_folder is None or self.places.at is not None:
            return [self]
        found = epochs_in(self.audit_folder)
        return [replace(self, places=Places(self.audit_folder, epoch)) for epoch in found]

    def checkpoint_bytes(self) -> bytes:
        """Return the newest checkpoint, empty where there is none."""
        path = self.places.checkpoint
        try:
            return path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise LogUnreadable(f"{path} can't be read: {error.strerror}") from None

    @contextmanager
    def moment(self) -> Iterator[tuple[Snapshot, bytes]]:
        """Give the store as it is now, and the newest checkpoint, which isn't newer than that.

        Raises:
            LogUnreadable: The store can't be opened.
        """
        signed = self.checkpoint_bytes()  # before the store, which may grow
        try:
            with database.open_to_read(self.places, live=self.live) as connection:
                yield Snapshot(connection), signed
        except LogDamaged as damaged:
            raise LogUnreadable(damaged.message, hint=damaged.hint) from None

    @contextmanager
    def checked(self) -> Iterator[ReadableLog]:
        """Give the epoch as it is now, every entry of it checked against the tree.

        An epoch that was left because it had lost what it signed is held against what is left of it: the next one names
        the loss, and each entry shown is opened with its writer's signature.

        Raises:
            AuditError: It can't be opened, is shorter than its checkpoint, or another one.
        """
        with self.moment() as (snapshot, signed):
            several = len(self.epochs()) > 1
            yield CheckedLog(snapshot, b"" if several and self.loss_declared() else signed, one_of_several=several)

    def loss_declared(self) -> bool:
        """Return whether the next epoch says that this one lost what its checkpoint file names."""
        following = next((log for log in self.epochs() if log.places.epoch == self.places.epoch + 1), None)
        if following is None:
            return False
        lost = opening_of(following).get("lost")
        try:
            promised = checkpoint.parse(self.checkpoint_bytes())
        except NoteRefused:
            return False
        return lost is not None and (lost["size"], lost["root"]) == (promised.size, hash_text(promised.root))


@dataclass(frozen=True, slots=True)
class FoundBundle(FoundLog):
    """A bundle or a directory of tiles that a reader named; it is never live.

    Attributes:
        trust: The policy that the reader named, if any.
    """

    trust: Path | None = None

    @property
    def path(self) -> Path:
        """Return where it lies."""
        return self.places.epoch_folder

    @contextmanager
    def files(self) -> Iterator[container.BundleFiles]:
        """Give its files.

        Raises:
            LogUnreadable: It can't be opened, or holds what no bundle holds.
        """
        with container.open_files(self.path) as files:
            yield files

    def checkpoint_bytes(self) -> bytes:
        """Return the checkpoint that everything in it leads to, empty where there is none."""
        with self.files() as files:
            return container.read(files, bundle.CHECKPOINT) or container.read(files, "checkpoint")

    def epochs(self) -> list[FoundLog]:
        """Return it alone: a bundle is of one epoch."""
        return [self]

    @contextmanager
    def checked(self) -> Iterator[BundleLog]:
        """Give the log in it, once all of it was verified.

        Raises:
            AuditError: It has a flaw, or can't be read.
        """
        try:
            origin = checkpoint.parse(self.checkpoint_bytes()).origin
        except NoteRefused as wrong:
            raise LogUnreadable(f"{self.path} has no checkpoint: {wrong.message}") from None
        policy, pinned_by = find_policy(self, origin, self.trust)
        with self.files() as files:
            yield BundleLog(files, BundleReader(policy, pinned_by))


def is_bundle(path: Path) -> bool:
    """Return whether `path` is a zip, or a folder with a manifest or with tiles, and not a home."""
    if path.is_dir():
        return (path / bundle.MANIFEST).is_file() or ((path / "checkpoint").is_file() and (path / "tile").is_dir())
    return path.suffix == ".zip" and path.exists()


def find_log(path: Path) -> FoundLog:
    """Return the log that `path` names: a home, its audit folder, an epoch's folder or file, a bundle, or tiles.

    Raises:
        LogUnreadable: There is none.
    """
    try:
        if epochs_in(path / "audit"):
            return FoundLog(Places.newest(path / "audit"), path / "audit", path)
        if epochs_in(path):
            return FoundLog(Places.newest(path), path, path.parent)
        folder = path.parent if path.name == SQLITE else path
        if is_bundle(path):
            return FoundBundle(Places(path.parent, at=path), None, None)
        if has_log(folder):
            named = folder.name.isdigit() and folder.name.isascii()
            places = Places(folder.parent, int(folder.name) if named else 1, at=folder)
            return FoundLog(places, folder.parent if named else None, folder.parent.parent if named else None)
    except OSError as error:
        raise LogUnreadable(f"{path} can't be read: {error.strerror}") from None
    raise LogUnreadable(f"no audit log in {path}", hint="name a home, its audit folder, or a copy of either")


def default_homes() -> list[Path]:
    """Return where a home lies when none is named: CONFIDE_HOME, else the XDG places of the two roles."""
    named = edge.environment("CONFIDE_HOME")
    if named:
        return [Path(named)]
    shared = edge.environment("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return [Path(shared) / "confide" / "site", Path(shared) / "confide" / "coordinator"]


def find_home() -> FoundLog:
    """Return the log of this account's home.

    Raises:
        LogUnreadable: There is none, or one of each role.
    """
    found = [home for home in default_homes() if epochs_in(home / "audit")]
    if not found:
        places = ", ".join(map(str, default_homes()))
        raise LogUnreadable(f"no home with a log in {places}", hint="name it: --home DIR, or CONFIDE_HOME")
    if len(found) > 1:
        raise LogUnreadable("a site's and a coordinator's home are here", hint=f"choose with --home {found[0]}")
    return find_log(found[0])


def _read_policy(path: Path) -> TrustPolicy:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LogUnreadable(f"trust policy {path} can't be read: {error.strerror}") from None
    if len(data) > MAX_POLICY_BYTES:
        raise NoteRefused(f"trust policy {path} is too long")
    return parse_policy(data.decode("utf-8", "replace"))


def find_policy(log: FoundLog | None, origin: str, trust: Path | None) -> tuple[TrustPolicy | None, str]:
    """Return what the reader trusts about the log `origin`, and the file's name.

    Sought in `trust` alone where that is given; else in the reader's own homes and configuration, and at last in the
    home that the log lies in.

    Raises:
        LogUnreadable: `trust` has no policy.
        NoteRefused: A policy is malformed.
    """
    try:
        party = Origin.parse(origin).party
    except EntryRefused:
        return None, ""
    if trust is not None:
        for path in (trust, trust / f"{party}.policy", trust / "trust" / f"{party}.policy", trust / "policy"):
            if path.is_file():
                return _read_policy(path), str(path)
        raise LogUnreadable(f"no trust policy for {party} in {trust}")
    configuration = edge.environment("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    folders = [Path(configuration) / "confide" / "trust"]
    if named := edge.environment("CONFIDE_HOME"):
        folders.insert(0, Path(named) / "trust")
    if log is not None and log.home is not None:
        folders.append(log.home / "trust")
    for folder in folders:
        path = folder / f"{party}.policy"
        if path.is_file():
            policy = _read_policy(path)
            if policy.for_origin(origin):  # another federation may have a party of that name
                return policy, str(path)
    return None, ""


def opening_of(log: FoundLog) -> Event:
    """Return the log's first entry as its row has it, empty where it can't be read; unchecked."""
    try:
        with log.moment() as (snapshot, _):
            leaf = first_leaf(snapshot)
            return read_frame(leaf, origin=None)[0] if leaf else {}
    except AuditError:
        return {}


def origin_of(log: FoundLog) -> str:
    """Return the name that the log's first entry gives, empty where it can't be read; unchecked."""
    return str(opening_of(log).get("origin", ""))


def read_rows(log: FoundLog) -> Iterator[Row]:
    """Yield every entry of the epoch, each found in the tree.

    Raises:
        AuditError: At the first entry that doesn't agree, or where the log is shorter than it was.
    """
    with log.checked() as checked:
        yield from checked.rows()


def find_entry(log: FoundLog, text: str) -> Row:
    """Return the entry that `text` names: an index, ``EPOCH/INDEX``, or an event's id.

    Raises:
        LogUnreadable: There is no such entry.
        AuditError: It doesn't agree with the tree.
    """
    epoch, _, rest = text.rpartition("/")
    if epoch:
        named = [one for one in log.epochs() if str(one.places.epoch) == epoch]
        if not named:
            raise LogUnreadable(f"no epoch {epoch[:20]} in {log.places.folder}")
        log = named[0]
    with log.checked() as checked:
        index = _index(checked, rest)
        if index is None or index >= checked.size:
            raise LogUnreadable(f"no entry {text[:60]}", hint="give an index or an id from `confide audit query`")
        return checked.row(index)


def _index(checked: ReadableLog, text: str) -> int | None:
    if len(text) == 32 and set(text) <= set("0123456789abcdef"):
        return checked.find_id(bytes.fromhex(text))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
