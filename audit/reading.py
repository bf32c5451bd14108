"""Finding and reading logs: a live home, a copied home or audit folder, one epoch's folder. Nothing is written.

A reader sees an entry only after its line agreed with the chain and its leaf opened; `read_matching` also holds the
whole against the signed checkpoint before it hands over a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import checkpoint, edge, storage
from audit.canonical import Event
from audit.entry import hash_text
from audit.errors import AuditError, EntryRefused, LogUnreadable, NotCanonical, NoteRefused
from audit.filters import Filters
from audit.history import History, newest_origin
from audit.merkle import leaf_hash
from audit.names import Origin
from audit.places import CHECKPOINT, is_live
from audit.trust import TrustPolicy, parse_policy

MAX_POLICY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log that a reader named.

    Attributes:
        epoch_folder: Where its entries and its checkpoint lie.
        audit_folder: The folder above, if it is one.
        home: The home that it belongs to, if it brings one.
    """

    epoch_folder: Path
    audit_folder: Path | None
    home: Path | None

    @property
    def entries(self) -> Path:
        """Return the file of entries."""
        return self.epoch_folder / storage.ENTRIES

    @property
    def live(self) -> bool:
        """Return whether readings of this log are recorded in it."""
        return self.audit_folder is not None and is_live(self.audit_folder, edge.host())

    def checkpoint_bytes(self) -> bytes:
        """Return the newest checkpoint, empty where there is none."""
        path = self.epoch_folder / CHECKPOINT
        try:
            return path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise LogUnreadable(f"{path} can't be read: {error.strerror}") from None


def _newest_epoch(folder: Path) -> Path | None:
    epochs = [path for path in folder.glob("[1-9]*") if path.name.isdigit() and (path / storage.ENTRIES).is_file()]
    return max(epochs, key=lambda path: int(path.name), default=None)


def find_log(path: Path) -> FoundLog:
    """Return the log that `path` names: a home, its audit folder, an epoch's folder, or the file of entries.

    Raises:
        LogUnreadable: There is none.
    """
    try:
        if (epoch := _newest_epoch(path / "audit")) is not None:
            return FoundLog(epoch, path / "audit", path)
        if (epoch := _newest_epoch(path)) is not None:
            return FoundLog(epoch, path, path.parent)
        folder = path.parent if path.name == storage.ENTRIES else path
        if (folder / storage.ENTRIES).is_file():
            audit_folder = folder.parent if folder.name.isdigit() else None
            return FoundLog(folder, audit_folder, audit_folder.parent if audit_folder is not None else None)
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
    found = [home for home in default_homes() if _newest_epoch(home / "audit") is not None]
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


def find_policy(log: FoundLog, origin: str, trust: Path | None) -> tuple[TrustPolicy | None, str]:
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
    if log.home is not None:
        folders.append(log.home / "trust")
    for folder in folders:
        path = folder / f"{party}.policy"
        if path.is_file():
            policy = _read_policy(path)
            if policy.for_origin(origin):  # another federation may have a party of that name
                return policy, str(path)
    return None, ""


def origin_of(log: FoundLog) -> str:
    """Return the name that the log's first entry gives, empty where it can't be read; unchecked."""
    for raw in storage.read_lines(log.entries):
        try:
            return newest_origin(storage.parse_line(raw.data).leaf)
        except (NotCanonical, EntryRefused):
            return ""
    return ""


@dataclass(frozen=True, slots=True)
class Row:
    """An entry as a list shows it."""

    index: int
    leaf_hash: str
    leaf: bytes
    event: Event
    interpreted: bool


def read_rows(log: FoundLog) -> Iterator[Row]:
    """Yield every entry, each agreeing with chain, form, key and signature; the root is checked on the way.

    At the end of a live log a piece of a line is one being written, or one that the next boot sets aside.

    Raises:
        AuditError: At the first entry that doesn't agree, or at the end where the log is shorter than it was.
    """
    history = History("")
    signed = _parse_checkpoint(log)  # before the entries, which may grow: then they can't be behind it
    for raw in storage.read_lines(log.entries):
        where = f"entry {history.size}"
        if not raw.whole:
            if log.live:
                break
            raise _damaged(f"{where} is torn", "CFD-A02")
        try:
            line = storage.parse_line(raw.data)
            if history.size == 0:
                history = History(newest_origin(line.leaf))
            hashed = leaf_hash(line.leaf)
            if line.index != history.size or line.chain != storage.chain_hash(history.chain, hashed):
                raise _damaged(f"{where} was altered, moved or removed", "CFD-A01")
            entry = history.open_next(line.leaf)
            flaws = history.flaws_of(entry.event)
            if flaws:
                raise _damaged(f"{where}: {flaws[0].what}", flaws[0].code)
            history = history.after(entry.event, hashed)
        except (NotCanonical, EntryRefused) as refused:
            raise _damaged(f"{where}: {refused.message}", "CFD-A01") from None
        yield Row(line.index, hash_text(hashed), line.leaf, entry.event, entry.interpreted)
        if signed is not None and history.size == signed.size and history.frontier.root() != signed.root:
            raise _damaged(f"the first {signed.size} entries aren't those that were signed", "CFD-A04")
    if signed is not None and history.size < signed.size:
        raise _damaged(f"truncated: {signed.size} entries then, {history.size} now", "CFD-A07")


def _damaged(message: str, code: str) -> AuditError:
    return AuditError(code, message, hint="run `confide audit verify` to see all that is wrong; no row was shown")


def _parse_checkpoint(log: FoundLog) -> checkpoint.Checkpoint | None:
    data = log.checkpoint_bytes()
    if not data:
        return None
    try:
        return checkpoint.parse(data)
    except NoteRefused as refused:
        raise _damaged(f"file checkpoint: {refused.message}", "CFD-A05") from None


def read_matching(log: FoundLog, filters: Filters) -> tuple[list[Row], bool]:
    """Return the entries that `filters` ask for, after the whole log agreed, and whether more would follow.

    Raises:
        AuditError: The log doesn't agree with itself; no row is handed over.
    """
    rows: list[Row] = []
    more = False
    for row in read_rows(log):
        if filters.match(row.index, row.event):
            if filters.limit is not None and len(rows) >= filters.limit:
                more = True
            else:
                rows.append(row)
    return rows, more


def find_entry(log: FoundLog, text: str) -> Row:
    """Return the entry that `text` names: an index, ``EPOCH/INDEX``, or an event's id.

    Raises:
        LogUnreadable: There is no such entry.
        AuditError: The log doesn't agree with itself.
    """
    epoch, _, rest = text.rpartition("/")
    if epoch and epoch != log.epoch_folder.name:
        raise LogUnreadable(f"no epoch {epoch[:20]} in {log.epoch_folder.parent}")
    found: Row | None = None
    for row in read_rows(log):
        if row.event["id"] == rest or (
            rest.isascii() and rest.isdigit() and str(row.index) == rest.lstrip("0").zfill(1)
        ):
            found = row
    if found is None:
        raise LogUnreadable(f"no entry {text[:60]}", hint="give an index or an id from `confide audit query`")
    return found
