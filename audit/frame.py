"""The frame of an entry: form, log, writer and signature, without what its action means; pure.

This is what whoever holds an exported bundle can check with nothing but the standard library and `cryptography`.
What an action's fields may hold is `audit.entry`'s.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from audit import canonical, note
from audit.canonical import Event
from audit.errors import EntryRefused, NotCanonical, NoteRefused
from audit.keyring import Keyring

HEADER: Final = "audit-entry/v1 "
MAX_READ_BYTES: Final = 65_535
TRAIL_ACTIONS: Final = frozenset({"log.opened", "key.added", "key.revoked", "audit.redacted", "audit.pruned"})
"""Entries from which the others are judged; the store keeps a second copy of them."""

WriterKey = Callable[[str, bytes], note.VerifierKey]
"""Name and key id to the writer key that is valid where the entry stands, or `EntryRefused`."""

_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def hash_text(digest: bytes) -> str:
    """Return a leaf hash or root as an event holds it: ``sha256:`` and 64 hex digits."""
    return "sha256:" + digest.hex()


def read_frame(leaf: bytes, *, origin: str | None) -> tuple[Event, note.Note]:
    """Return event and note of `leaf`, checked in form and against `origin`, signature and schema not yet.

    Raises:
        EntryRefused: Length, framing, number of signatures, origin, canonical form, or writer.
    """
    if not leaf:
        raise EntryRefused("the entry is empty", code="CFD-A02")
    try:
        signed = note.parse_note(leaf, limit_bytes=MAX_READ_BYTES)
    except NoteRefused as refused:
        raise EntryRefused(refused.message) from None
    if len(signed.signatures) != 1:
        raise EntryRefused(f"an entry has exactly one signature, this one {len(signed.signatures)}")
    lines = signed.text[:-1].split("\n")
    if len(lines) != 2 or not lines[0].startswith(HEADER):
        raise EntryRefused("an entry has two lines, the first of them audit-entry/v1 and the log's origin")
    if origin is not None and lines[0] != HEADER + origin:
        raise EntryRefused(f"an entry of another log than {origin}")
    try:
        event = canonical.decode(lines[1].encode())
    except NotCanonical as refused:
        raise EntryRefused(refused.message) from None
    if event.get("writer") != signed.signatures[0].name:
        raise EntryRefused("the field `writer` doesn't name the signer")
    return event, signed


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def check_common_form(event: Event) -> None:
    """Refuse an event whose common fields haven't their form; they mean the same in every version.

    Raises:
        EntryRefused: Naming the first field that is wrong.
    """
    actor = event.get("actor")
    wrong = {
        "v": not _is_count(event.get("v")) or event["v"] < 1,
        "id": not _matches(_ID, event.get("id")),
        "action": type(event.get("action")) is not str,
        "decision": event.get("decision") not in ("allowed", "refused", "failed"),
        "code": (event.get("decision") == "allowed") == ("code" in event),
        "actor": not isinstance(actor, dict) or type(actor.get("id")) is not str,
        "t_us": not _is_count(event.get("t_us")),
        "mono_us": not _is_count(event.get("mono_us")),
        "boot": not _matches(_ID, event.get("boot")),
        "seq": not _is_count(event.get("seq")),
        "prev": (event.get("seq") == 0) == _matches(_HASH, event.get("prev")),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise EntryRefused(f"common fields: {name} is missing or has another form")


def _matches(form: re.Pattern[str], value: Any) -> bool:
    return type(value) is str and form.match(value) is not None


def open_frame(leaf: bytes, *, origin: str, index: int, keyring: Keyring) -> Event:
    """Return the event of the entry at `index`, signed by a writer whose key is valid there.

    Raises:
        EntryRefused: With the code of the first check that failed.
    """
    event, signed = read_frame(leaf, origin=origin)
    check_common_form(event)
    line = signed.signatures[0]
    key = keyring.writer(line.name, line.key_id, index)
    if not key.check(signed.text.encode(), line.signature):
        raise EntryRefused(f"the signature of {line.name} is wrong", code="CFD-A10")
    return event


def keyring_of(trail: Iterable[tuple[int, bytes]], origin: str) -> Keyring:
    """Return the keys that a log's trail declares; each of its leaves must have been found in the tree.

    Raises:
        EntryRefused: It doesn't begin with a `log.opened`, or an entry in it can't be.
    """
    keyring: Keyring | None = None
    for index, leaf in trail:
        event, _ = read_frame(leaf, origin=origin)
        check_common_form(event)
        try:
            if keyring is None:
                if index != 0 or event.get("action") != "log.opened":
                    raise EntryRefused("entry 0 is not a log.opened")
                keyring = Keyring.opened(event)
            else:
                keyring = keyring.after(index, event)
        except (KeyError, TypeError, AttributeError):
            raise EntryRefused(f"entry {index} changes keys and doesn't say which") from None
    if keyring is None:
        raise EntryRefused("the log's first entry is missing", code="CFD-A02")
    return keyring


def newest_origin(leaf: bytes) -> str:
    """Return the origin that a leaf names in its first line, unchecked; to learn whose log a file says it is.

    Raises:
        EntryRefused: The bytes don't have the form of an entry.
    """
    read_frame(leaf, origin=None)
    return leaf.split(b"\n", 1)[0].decode().partition(" ")[2]
