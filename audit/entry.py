"""One entry: a signed note of two lines, from a draft to a leaf and back; pure.

    audit-entry/v1 <origin>
    <canonical JSON of the event>
    (an empty line)
    — <writer key name> <base64( key id[4] ‖ Ed25519 signature[64] over both lines with their LF )>

Line 1 ties the entry to one log; `writer` in the JSON is the name in the signature line; there is exactly one
signature and no other byte.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from audit import canonical, merkle, note
from audit.canonical import Event
from audit.errors import EntryRefused
from audit.events import ACTIONS, Committed, Draft
from audit.events.common import COMMITTED_FIELDS
from audit.frame import HEADER, WriterKey, read_frame

MAX_WRITTEN_BYTES: Final = 16_384
_DRAFT_FIELDS: Final = frozenset(Draft.model_fields)


@dataclass(frozen=True, slots=True)
class Entry:
    """An opened leaf: form, schema and signature have been checked.

    Attributes:
        leaf: The exact bytes.
        event: The whole event, draft and committer's fields.
        interpreted: Whether this version knows the action and all its fields.
    """

    leaf: bytes
    event: Event
    interpreted: bool

    @property
    def leaf_hash(self) -> bytes:
        """Return the RFC 6962 leaf hash."""
        return merkle.leaf_hash(self.leaf)


def draft_digest(body: Event) -> str:
    """Return the digest by which a retry of a draft is recognised; time and sequence aren't part of it."""
    return digest_of(canonical.encode(body))


def digest_of(encoded_draft: bytes) -> str:
    """Return the digest of a draft whose canonical form is at hand."""
    return hashlib.sha256(b"confide-draft/v1\n" + encoded_draft).hexdigest()


def draft_of(event: Event) -> Event:
    """Return the draft that a committed event came from."""
    return {name: value for name, value in event.items() if name not in COMMITTED_FIELDS}


def write_leaf(origin: str, event: Event, signer: note.Signer) -> bytes:
    """Return the leaf of `event`, signed by the writer that the event names.

    Raises:
        EntryRefused: The leaf would be longer than 16,384 bytes.
        NotCanonical: The event has no canonical form.
    """
    leaf = note.sign_note(f"{HEADER}{origin}\n{canonical.encode(event).decode()}\n", signer)
    if len(leaf) > MAX_WRITTEN_BYTES:
        raise EntryRefused(f"an entry of {len(leaf)} bytes, at most {MAX_WRITTEN_BYTES}")
    return leaf


def _plain(errors: ValidationError) -> str:
    """Return where and why a model refused, without the refused value: it may be personal."""
    first = errors.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def draft_from(body: Event) -> Draft:
    """Return the typed draft that `body` is.

    Raises:
        EntryRefused: An unknown action, an unknown field, or a value against its grammar.
    """
    model = ACTIONS.get(body.get("action", ""))
    if model is None:
        raise EntryRefused("the action is not known")
    try:
        return model.model_validate(body)
    except ValidationError as errors:
        raise EntryRefused(f"{body['action']}: {_plain(errors)}") from None


def _check_committed(event: Event) -> None:
    """Refuse an event of which the committer's fields are wrong; they mean the same in every version."""
    version = event.get("v")
    if type(version) is not int or version < 1:
        raise EntryRefused("v is not a version")
    try:
        Committed.model_validate({**{name: event[name] for name in COMMITTED_FIELDS if name in event}, "v": 1})
    except ValidationError as errors:
        raise EntryRefused(f"common fields: {_plain(errors)}") from None
    if (event["seq"] == 0) == ("prev" in event):
        raise EntryRefused("`prev` is absent exactly at seq 0")


def _check_common(event: Event) -> None:
    """Refuse an event whose other common fields are wrong."""
    try:
        Draft.model_validate({name: value for name, value in event.items() if name in _DRAFT_FIELDS})
    except ValidationError as errors:
        raise EntryRefused(f"common fields: {_plain(errors)}") from None


def _is_interpreted(event: Event) -> bool:
    """Return whether the action's model knows the event; an unknown action or field is for a newer reader.

    Raises:
        EntryRefused: A common field, or a field that the model does know, holds a wrong value.
    """
    action = event.get("action")
    model = ACTIONS.get(action) if event["v"] == 1 and isinstance(action, str) else None
    if model is None:
        _check_common(event)
        return False
    try:
        model.model_validate(draft_of(event))  # each model has the common fields, too
    except ValidationError as errors:
        _check_common(event)
        kinds = {error["type"] for error in errors.errors(include_url=False, include_input=False)}
        if kinds == {"extra_forbidden"}:
            return False
        raise EntryRefused(f"{event['action']}: {_plain(errors)}") from None
    return True


def read_leaf(leaf: bytes, *, origin: str) -> tuple[Entry, note.Note]:
    """Return the entry in `leaf` and its note, with everything checked but the signature.

    Enough where the leaf was found in a tree whose root was signed.

    Raises:
        EntryRefused: With the code of the first check that failed.
    """
    event, signed = read_frame(leaf, origin=origin)
    _check_committed(event)
    return Entry(leaf, event, _is_interpreted(event)), signed


def open_leaf(leaf: bytes, *, origin: str, writer_key: WriterKey) -> Entry:
    """Return the entry in `leaf`, with everything checked that a single entry can show.

    The order is that of the specification: length, framing, one signature, origin, canonical form, writer, common
    fields, the action's schema, the key where the entry stands, the signature.

    Raises:
        EntryRefused: With the code of the first check that failed.
    """
    entry, signed = read_leaf(leaf, origin=origin)
    line = signed.signatures[0]
    key = writer_key(line.name, line.key_id)
    if not key.check(signed.text.encode(), line.signature):
        raise EntryRefused(f"the signature of {line.name} is wrong", code="CFD-A10")
    return entry


def event_of(leaf: bytes) -> Event:
    """Return the event of a leaf that `open_leaf` has returned before: the same bytes, so nothing is checked again."""
    event: Event = json.loads(leaf.split(b"\n", 2)[1])
    return event


def committed_event(body: Event, **fields: Any) -> Event:
    """Return the event that the committer makes of a draft; fields that are None are left out."""
    return {**body, "v": 1, **{name: value for name, value in fields.items() if value is not None}}
