"""Which writer key may sign which entry, by index and never by clock; pure.

Entry 0 lists the first keys. A key added at index i is valid from i+1, one revoked at i is valid up to i. A
revocation is never retroactive, or a party could disown its past.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Self

from audit.canonical import Event
from audit.errors import EntryRefused, NoteRefused
from audit.note import VerifierKey

_ALWAYS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Validity:
    """A writer key and the indices that it may sign.

    Attributes:
        key: The public key.
        first: The first index.
        last: The last index, as far as is known.
        suspect_from: Entries from here on were perhaps not written by the key's owner; they stay valid.
    """

    key: VerifierKey
    first: int
    last: int = _ALWAYS
    suspect_from: int | None = None


@dataclass(frozen=True, slots=True)
class Keyring:
    """The writer and log keys of one log, as its own entries declare them."""

    writers: dict[tuple[str, bytes], Validity] = field(default_factory=dict)
    logs: dict[tuple[str, bytes], Validity] = field(default_factory=dict)

    @classmethod
    def opened(cls, event: Event) -> Self:
        """Return the keys that a `log.opened` event lists, valid from index 0.

        Raises:
            EntryRefused: The event is no `log.opened` or a key in it is malformed.
        """
        try:
            log_key = VerifierKey.parse(event["log_key"])
            writers = [VerifierKey.parse(text) for text in event["writer_keys"]]
        except (KeyError, TypeError, AttributeError, NoteRefused):
            raise EntryRefused("entry 0 is not a log.opened with its keys") from None
        return cls(
            {(key.name, key.id): Validity(key, 0) for key in writers},
            {(log_key.name, log_key.id): Validity(log_key, 0)},
        )

    def after(self, index: int, event: Event) -> Self:
        """Return the keyring after the entry `event` at `index`; the same object where that changes no key.

        Raises:
            EntryRefused: A key event with a malformed key, or one that revokes an unknown key.
        """
        if event["action"] not in ("key.added", "key.revoked") or event["decision"] != "allowed":
            return self
        if event["role"] == "witness":
            return self
        try:
            key = VerifierKey.parse(event["vkey"])
        except NoteRefused as refused:
            raise EntryRefused(f"entry {index}: {refused.message}") from None
        which = "writers" if event["role"] == "writer" else "logs"
        keys: dict[tuple[str, bytes], Validity] = dict(getattr(self, which))
        known = keys.get((key.name, key.id))
        if event["action"] == "key.added":
            keys[key.name, key.id] = Validity(key, index + 1)
        elif known is None:
            raise EntryRefused(f"entry {index} revokes key {key.name}, which was never added")
        else:
            keys[key.name, key.id] = replace(known, last=index, suspect_from=event.get("suspect_from"))
        return replace(self, **{which: keys})

    def writer(self, name: str, key_id: bytes, index: int) -> VerifierKey:
        """Return the writer key that may sign entry `index` under this name and id.

        Raises:
            EntryRefused: The key is unknown, or not valid at that index.
        """
        validity = self.writers.get((name, key_id))
        if validity is None:
            raise EntryRefused(f"writer key {name} with id {key_id.hex()} is not known", code="CFD-A10")
        if not validity.first <= index <= validity.last:
            raise EntryRefused(f"writer key {name} is not valid at entry {index}", code="CFD-A10")
        return validity.key

    def log_keys(self) -> tuple[VerifierKey, ...]:
        """Return every log key that the log itself declares; only a pinned key says whose log it is."""
        return tuple(validity.key for validity in self.logs.values())
