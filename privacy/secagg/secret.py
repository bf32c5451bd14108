"""Secrets that don't show, compare in constant time and are overwritten when spent.

Python may have copied a value before it came here (the cryptography library takes its own copy of a key, an integer
can't be overwritten), so wiping shortens a secret's life and promises no more.
"""

import hmac
from typing import NoReturn, Protocol


class RandomSource(Protocol):
    """Where a site's secrets come from: the operating system's generator."""

    def take(self, count: int) -> bytes:
        """Return `count` fresh random bytes."""


class Secret:
    """Bytes that nobody else may see; empty once wiped."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = bytearray(value)

    @classmethod
    def draw(cls, random: RandomSource, count: int = 32) -> "Secret":
        """Return `count` fresh bytes from `random`."""
        return cls(random.take(count))

    def __repr__(self) -> str:
        return "Secret(<hidden>)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret can't be stored or copied")

    @property
    def spent(self) -> bool:
        """Return whether it was wiped."""
        return not self._value

    def reveal(self) -> bytearray:
        """Return the bytes themselves, not a copy; the caller keeps no reference.

        Raises:
            ValueError: The secret was wiped.
        """
        if not self._value:
            raise ValueError("this secret was wiped")
        return self._value

    def part(self, start: int, stop: int) -> bytes:
        """Return a copy of a part, to be handed out on purpose."""
        return bytes(self.reveal()[start:stop])

    def wipe(self) -> None:
        """Overwrite the bytes and forget them."""
        self._value[:] = bytes(len(self._value))
        self._value = bytearray()


def same(left: bytes | bytearray, right: bytes | bytearray) -> bool:
    """Return whether two byte strings are equal, in a time that doesn't depend on where they differ."""
    return hmac.compare_digest(left, right)
