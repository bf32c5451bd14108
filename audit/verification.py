"""Is this log whole, whose is it, and what does that prove? Over lines and keys that are handed in; pure.

Everything is recomputed from the entries alone: bytes, chain, each leaf with its writer's signature, sequence,
ids, times, and the root, which must be the one that the pinned log key signed. A flaw names its entry, and the walk
goes on behind it, so that one altered byte isn't reported as a thousand flaws.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from audit import checkpoint, storage
from audit.canonical import Event
from audit.entry import hash_text, read_frame
from audit.errors import EntryRefused, LogUnreadable, NotCanonical, NoteRefused
from audit.history import Flaw, History, newest_origin
from audit.keyring import Keyring
from audit.merkle import leaf_hash
from audit.note import VerifierKey
from audit.quorum import judge
from audit.sequence import SequenceRules
from audit.trust import TrustPolicy

MAX_FLAWS: Final = 1000
NOT_PROVED: Final = ("that nothing was left unrecorded", "that what was written is true")


class Verdict(StrEnum):
    """What a verification ends with."""

    VERIFIED = "verified"
    FLAWED = "flawed"
    UNPINNED = "unpinned"


EXIT_STATUS: Final = {Verdict.VERIFIED: 0, Verdict.FLAWED: 1, Verdict.UNPINNED: 3}


@dataclass(frozen=True, slots=True)
class Reader:
    """What a reader brings along.

    Attributes:
        policy: The keys that the reader trusts, if any were found.
        pinned_by: Where they came from, for the output.
        against: Earlier or other checkpoints of this log, by the name to show.
        complete: Replay the rules of order, too.
        may_grow: A process is writing, so that a piece of a line at the end is one being written.
    """

    policy: TrustPolicy | None = None
    pinned_by: str = ""
    against: Mapping[str, bytes] = field(default_factory=dict)
    complete: bool = False
    may_grow: bool = False


@dataclass(slots=True)
class Verification:
    """What was found.

    Attributes:
        origin: The log's name, as its entries say it.
        size: Entries that were read.
        root: Root over them, as events write it; empty where entries are missing.
        cosigned: Size that a quorum of witnesses has cosigned, 0 for none.
        quorum: How many cosignatures the policy asks for.
        pinned_by: The trust policy that was used; empty for none.
        proved: Sentences.
        notes: What is no flaw, but to be known.
        flaws: What is wrong.
    """

    origin: str = ""
    size: int = 0
    root: str = ""
    cosigned: int = 0
    quorum: int = 0
    pinned_by: str = ""
    proved: list[str] = field(default_factory=list)
    notes: list[Flaw] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Return the verdict; a flaw comes before a missing key."""
        if self.flaws:
            return Verdict.FLAWED
        return Verdict.VERIFIED if self.pinned_by else Verdict.UNPINNED

    def as_json(self) -> dict[str, Any]:
        """Return the machine form, `confide/audit-verification/v1`."""
        return {
            "schema": "confide/audit-verification/v1",
            "verdict": str(self.verdict),
            "log": {
                "origin": self.origin,
                "size": self.size,
                "root": self.root,
                "cosigned": self.cosigned,
                "quorum": self.quorum,
                "pinned_by": self.pinned_by,
            },
            "proved": self.proved,
            "notes": [{"code": note.code, "where": note.where, "what": note.what} for note in self.notes],
            "flaws": [{"code": flaw.code, "where": flaw.where, "what": flaw.what} for flaw in self.flaws],
            "not_proved": list(NOT_PROVED),
        }


@dataclass(slots=True)
class _Walk:
    """The replay of one store."""

    wanted_sizes: set[int]
    rules: SequenceRules | None
    may_grow: bool
    history: History = field(default_factory=lambda: History(""))
    flaws: list[Flaw] = field(default_factory=list)
    notes: list[Flaw] = field(default_factory=list)
    roots: dict[int, bytes] = field(default_factory=dict)
    ids: dict[bytes, int] = field(default_factory=dict)
    last_event: Event | None = None
    tainted: bool = False
    """The entry before is flawed, so this one's link to it can't be judged."""
    chain_unknown: bool = False
    """The chain value before this line isn't known."""
    broken: bool = False
    """Some entry's hash isn't known, so no root follows."""
    stopped: bool = False
    """Without the keys that entry 0 lists, nothing behind it can be judged."""

    def flaw(self, code: str, where: str, what: str) -> None:
        if len(self.flaws) < MAX_FLAWS:
            self.flaws.append(Flaw(code, where, what))

    def take(self, raw: storage.RawLine) -> bool:
        """Go on by one line of the file; return whether more can follow."""
        where = f"entry {self.history.size}"
        if not raw.whole:
            if not self.may_grow:
                zeros = "zeros" if not raw.data.strip(b"\x00") else "a piece of a line"
                self.flaw("CFD-A02", where, f"torn: {zeros} at byte {raw.offset}, not an entry")
            return False
        try:
            line = storage.parse_line(raw.data)
        except NotCanonical:
            self.flaw("CFD-A01", where, "was altered: its line is not one that a log writes")
            self._lose(self.history.size + 1, self.history.chain)
            self.chain_unknown = True
            return self._go_on_without_keys(None)
        if not self._in_place(line) or self.stopped:
            return not self.stopped
        self._take_line(line)
        return not self.stopped

    def _lose(self, size: int, chain: bytes) -> None:
        self.history = self.history.skip_to(size, chain)
        self.tainted = self.broken = True

    def _in_place(self, line: storage.StoredLine) -> bool:
        """Return whether to read the line; one that stands behind its place is named and left out."""
        size = self.history.size
        if line.index < size:
            self.flaw("CFD-A01", f"entry {line.index}", f"stands where entry {size} should be: moved or repeated")
            self.tainted = self.broken = True
            return False
        if line.index > size:
            last = line.index - 1
            missing = f"entry {size}" if last == size else f"entries {size} to {last}"
            self.flaw("CFD-A02", missing, "missing: removed, or moved elsewhere")
            self._lose(line.index, line.chain)
            self.chain_unknown = True
            self._go_on_without_keys(None)
        return True

    def _go_on_without_keys(self, leaf: bytes | None) -> bool:
        """Return whether what follows can be judged; where entry 0 is flawed, by the keys that it may still show."""
        if self.history.keyring.writers:
            return True
        with contextlib.suppress(EntryRefused):
            if leaf is not None:
                event, _ = read_frame(leaf, origin=None)
                origin, keyring = newest_origin(leaf), Keyring.opened(event)
                self.history = replace(self.history, origin=origin, keyring=keyring)
                return True
        self.flaw("CFD-A02", "entry 0", "without the keys that it lists, the entries behind it can't be judged")
        self.stopped = True
        return False

    def _take_line(self, line: storage.StoredLine) -> None:
        history, where = self.history, f"entry {line.index}"
        hashed = leaf_hash(line.leaf)
        chained = self.chain_unknown or line.chain == storage.chain_hash(history.chain, hashed)
        self.chain_unknown = False
        if history.size == 0:
            try:
                self.history = history = History(newest_origin(line.leaf))
            except EntryRefused:
                history = self.history
        try:
            entry = history.open_next(line.leaf)
        except EntryRefused as refused:
            # An altered byte breaks chain and signature alike; the first is the plainer word for it.
            code = refused.code if chained else "CFD-A01"
            self.flaw(code, where, refused.message if chained else f"was altered: {refused.message}")
            self._lose(line.index + 1, line.chain)
            self._go_on_without_keys(line.leaf)
            return
        if not chained:
            self.flaw("CFD-A01", where, "was altered, or an entry before it was: the chain breaks here")
        if not self.tainted:
            for flaw in history.flaws_of(entry.event):
                self.flaw(flaw.code, flaw.where, flaw.what)
        try:
            history = history.after(entry.event, hashed)
        except EntryRefused as refused:
            self.flaw("CFD-A10", where, refused.message)
            self._lose(line.index + 1, line.chain)
            return
        self.history = history.skip_to(history.size, line.chain) if self.broken else history
        if not chained:
            self._lose(self.history.size, line.chain)
        self.tainted = not chained
        if not self.broken and history.size in self.wanted_sizes:
            self.roots[history.size] = history.frontier.root()
        self._note(entry.event, line.index, interpreted=entry.interpreted)

    def _note(self, event: Event, index: int, *, interpreted: bool) -> None:
        where = f"entry {index}"
        self.last_event = event
        event_id = bytes.fromhex(event["id"])
        if event_id in self.ids:
            self.flaw("CFD-A12", where, f"repeats the id of entry {self.ids[event_id]}")
        self.ids[event_id] = index
        if not interpreted:
            self.notes.append(Flaw("CFD-A44", where, "not interpreted by this version; its bytes and signature agree"))
            return
        if event["action"] == "log.booted" and event.get("unclean"):
            self.notes.append(Flaw("CFD-A40", where, "unclean end before this entry, repaired at boot"))
        if event["action"] == "key.revoked" and "suspect_from" in event:
            self.notes.append(
                Flaw("CFD-A43", f"entries {event['suspect_from']} to {index}", "may be by a thief of the writer's key")
            )
        if self.rules is not None:
            self.rules.take(index, event)


def _parsed(data: bytes) -> checkpoint.Checkpoint | None:
    try:
        return checkpoint.parse(data)
    except NoteRefused:
        return None


def verify(
    lines: Iterable[storage.RawLine],
    newest_checkpoint: bytes,
    reader: Reader,
    progress: Callable[[int], None] = lambda _bytes: None,
) -> Verification:
    """Return what the store in `lines` and its newest checkpoint prove to `reader`.

    Args:
        lines: The file of entries, in order.
        newest_checkpoint: The file `checkpoint`, empty where there is none.
        reader: Keys and checkpoints that the reader brings.
        progress: Told the offset of each line.

    Raises:
        LogUnreadable: There is no line at all.
    """
    known = [found for found in map(_parsed, (newest_checkpoint, *reader.against.values())) if found is not None]
    walk = _Walk({found.size for found in known}, SequenceRules() if reader.complete else None, reader.may_grow)
    seen = False
    for raw in lines:
        seen = True
        progress(raw.offset)
        if not walk.take(raw):
            break
    if not seen:
        raise LogUnreadable("the log has no entry")
    return _concluded(walk, newest_checkpoint, reader)


def _concluded(walk: _Walk, newest_checkpoint: bytes, reader: Reader) -> Verification:
    history = walk.history
    pinned = reader.policy.for_origin(history.origin) if reader.policy is not None else ()
    result = Verification(
        origin=history.origin,
        size=history.size,
        root="" if walk.broken else hash_text(history.frontier.root()),
        quorum=reader.policy.needed() if reader.policy is not None and pinned else 0,
        pinned_by=reader.pinned_by if pinned else "",
        notes=walk.notes,
    )
    keys = pinned or history.keyring.log_keys()
    signed = _check_newest(walk, newest_checkpoint, keys) if not walk.stopped else None
    if signed is not None:
        _check_quorum(signed, reader, result, pinned=bool(pinned))
        if signed.size < history.size:
            result.notes.append(
                Flaw("CFD-A45", f"entries {signed.size} to {history.size - 1}", "not yet in a signed checkpoint")
            )
    extended = _check_against(walk, reader, keys) if not walk.stopped else []
    if walk.rules is not None:
        walk.flaws.extend(walk.rules.finish(walk.last_event))
    result.flaws = walk.flaws
    if not walk.flaws:
        result.proved.append(_whole(result))
        result.proved.extend(extended)
        if walk.rules is not None:
            result.proved.append("the entries keep the rules of order: openings, acceptances, budgets, what left")
    return result


def _whole(result: Verification) -> str:
    witnessed = f", cosigned up to {result.cosigned} (quorum {result.quorum})" if result.quorum else ""
    return f"{result.size} entries{witnessed}; all bytes, signatures, chains and times agree"


def _check_newest(walk: _Walk, data: bytes, keys: tuple[VerifierKey, ...]) -> checkpoint.OpenedCheckpoint | None:
    """Return the log's newest checkpoint if it is signed and agrees with the entries."""
    where = "file checkpoint"
    if not data:
        walk.flaw("CFD-A05", where, "missing: nothing says how long the log is")
        return None
    try:
        signed = checkpoint.open_checkpoint(data, origin=walk.history.origin, log_keys=keys)
    except NoteRefused as refused:
        walk.flaw("CFD-A05", where, refused.message)
        return None
    if walk.history.size < signed.size:
        walk.flaw("CFD-A07", where, f"truncated: {signed.size} entries then, {walk.history.size} now")
        return None
    if walk.broken:
        return None
    if walk.roots[signed.size] != signed.root:
        walk.flaw("CFD-A04", where, f"the root over the first {signed.size} entries isn't the one that was signed")
        return None
    if not _in_force(walk, signed):
        walk.flaw("CFD-A10", where, f"no log key that signed it was in force at {signed.size} entries")
        return None
    return signed


def _in_force(walk: _Walk, signed: checkpoint.OpenedCheckpoint) -> bool:
    """Return whether a key that signed was, by the log's own entries, one for checkpoints of that size."""
    return not set(signed.signers).isdisjoint(walk.history.keyring.log_keys_at(signed.size))


def _check_quorum(signed: checkpoint.OpenedCheckpoint, reader: Reader, result: Verification, *, pinned: bool) -> None:
    policy = reader.policy
    if policy is None or not pinned or not result.quorum:
        return
    try:
        found = judge(signed, policy)
    except NoteRefused as refused:
        result.notes.append(Flaw("CFD-A45", "file checkpoint", refused.message))
        return
    if found.met:
        result.cosigned = signed.size
    else:
        result.notes.append(
            Flaw("CFD-A45", "file checkpoint", f"not yet witnessed: {len(found.heard)} of {result.quorum} cosignatures")
        )


def _check_against(walk: _Walk, reader: Reader, keys: tuple[VerifierKey, ...]) -> list[str]:
    """Return what is proved about the reader's own checkpoints, and name those that contradict the log."""
    proved = []
    for name, data in reader.against.items():
        try:
            other = checkpoint.open_checkpoint(data, origin=walk.history.origin, log_keys=keys)
        except NoteRefused as refused:
            walk.flaw("CFD-A05", name, refused.message)
            continue
        if walk.history.size < other.size:
            walk.flaw("CFD-A07", name, f"truncated: {other.size} entries then, {walk.history.size} now")
        elif other.size in walk.roots and walk.roots[other.size] != other.root:
            walk.flaw("CFD-A08", name, f"forked: another history of the first {other.size} entries was signed")
        elif other.size in walk.roots and not _in_force(walk, other):
            walk.flaw("CFD-A10", name, f"no log key that signed it was in force at {other.size} entries")
        elif other.size in walk.roots:
            proved.append(f"extends the checkpoint of {other.size} entries in {name}")
    return proved
