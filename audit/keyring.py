"""Which key of a log may sign which entry or checkpoint, by index and never by clock; pure.

Entry 0 lists the first keys. A writer key added at index i signs entries from i+1 on, one revoked at i signs up to
entry i. A log key added at i signs checkpoints of sizes from i+1 on, one revoked at i signs sizes up to i. A
revocation is never retroactive, or a party could disown its past. A key that was revoked may be added again, which
gives it nothing of what lies between.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Self

from audit.canonical import Event
from audit.errors import EntryRefused, NoteRefused
from audit.note import ED25519, VerifierKey

_ALWAYS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Validity:
    """A key and what it may sign: entries by their index, or checkpoints by their size.

    Attributes:
        key: The public key.
        first: The first index or size.
        last: The last, as far as is known.
        suspect_from: Entries from here on were perhaps not written by the key's owner; they stay valid.
    """

    key: VerifierKey
    first: int
    last: int = _ALWAYS
    suspect_from: int | None = None


@dataclass(frozen=True, slots=True)
class Keyring:
    """The writer and log keys of one log with the intervals in which they are valid, as its own entries declare them.

    Attributes:
        writers: By name and key id, the intervals ascending.
        logs: The same of the log keys.
    """

    writers: dict[tuple[str, bytes], tuple[Validity, ...]] = field(default_factory=dict)
    logs: dict[tuple[str, bytes], tuple[Validity, ...]] = field(default_factory=dict)

    @classmethod
    def opened(cls, event: Event) -> Self:
        """Return the keys that a `log.opened` event lists, valid from index 0.

        Raises:
            EntryRefused: The event is no `log.opened` or a key in it is malformed.
        """
        try:
            log_key = _signing_key(event["log_key"])
            writers = [_signing_key(text) for text in event["writer_keys"]]
        except (KeyError, TypeError, AttributeError, NoteRefused):
            raise EntryRefused("entry 0 is not a log.opened with its keys") from None
        return cls(
            {(key.name, key.id): (Validity(key, 0),) for key in writers},
            {(log_key.name, log_key.id): (Validity(log_key, 0),)},
        )

    def after(self, index: int, event: Event) -> Self:
        """Return the keyring after the entry `event` at `index`; the same object where that changes no key.

        Raises:
            EntryRefused: A malformed key or one of another type, an addition of one that is in force, or a revocation
                of one that isn't.
        """
        if event["action"] not in ("key.added", "key.revoked") or event["decision"] != "allowed":
            return self
        if event["role"] == "witness":
            return self
        try:
            key = _signing_key(event["vkey"])
        except NoteRefused as refused:
            raise EntryRefused(f"entry {index}: {refused.message}") from None
        which = "writers" if event["role"] == "writer" else "logs"
        keys: dict[tuple[str, bytes], tuple[Validity, ...]] = dict(getattr(self, which))
        known = keys.get((key.name, key.id), ())
        in_force = bool(known) and known[-1].last == _ALWAYS
        if event["action"] == "key.added":
            if in_force:
                raise EntryRefused(f"entry {index} adds key {key.name}, which is in force")
            keys[key.name, key.id] = (*known, Validity(key, index + 1))
        elif not in_force:
            raise EntryRefused(f"entry {index} revokes key {key.name}, which is not in force")
        else:
            revoked = replace(known[-1], last=index, suspect_from=event.get("suspect_from"))
            keys[key.name, key.id] = (*known[:-1], revoked)
        return replace(self, **{which: keys})

    def writer(self, name: str, key_id: bytes, index: int) -> VerifierKey:
        """Return the writer key that may sign entry `index` under this name and id.

        Raises:
            EntryRefused: The key is unknown, or not valid at that index.
        """
        intervals = self.writers.get((name, key_id))
        if intervals is None:
            raise EntryRefused(f"writer key {name} with id {key_id.hex()} is not known", code="CFD-A10")
        if not any(one.first <= index <= one.last for one in intervals):
            raise EntryRefused(f"writer key {name} is not valid at entry {index}", code="CFD-A10")
        return intervals[0].key

    def log_keys(self) -> tuple[VerifierKey, ...]:
        """Return every log key that the log itself declares; only a pinned key says whose log it is."""
        return tuple(intervals[0].key for intervals in self.logs.values())

    def log_keys_at(self, size: int) -> tuple[VerifierKey, ...]:
        """Return the log keys that may sign a checkpoint of `size`, two while one replaces the other."""
        return tuple(one.key for intervals in self.logs.values() for one in intervals if one.first <= size <= one.last)


def _signing_key(vkey: str) -> VerifierKey:
    """Return the key that `vkey` describes, which must be one for entries and checkpoints."""
    key = VerifierKey.parse(vkey)
    if key.kind != ED25519:
        raise NoteRefused(f"key {key.name} is not one for entries or checkpoints")
    return key
