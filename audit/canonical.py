"""The canonical JSON of the audit log: one event, one byte string (RFC 8785 on a subset); pure.

The subset is narrow so that every JSON library agrees on it: no float, no null, ASCII keys, integers within
±(2^53 − 1). A real number is an integer in a stated small unit, an absent field is left out. `decode` parses,
encodes again and compares, so that no second spelling of a value is ever read.

This is not `federation.canonical`: there an absent value is `null` and ids may be keys.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NoReturn

from audit.errors import NotCanonical

MAX_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 8
MAX_BYTES: Final = 65_535
_LONGEST_KEY: Final = 64
_KEY: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
_PLAIN: Final[frozenset[type]] = frozenset({str, bool})
_LONGEST_INTEGER: Final = len(str(-MAX_INTEGER))

Event = dict[str, Any]


@lru_cache(maxsize=1024)  # an event has few keys, and each is met again in nearly every other
def _is_key(short: str) -> bool:
    return _KEY.match(short) is not None


def _check(container: dict[str, Any] | list[Any], depth: int) -> None:
    """Refuse what lies in `container` outside the subset; that a string has a form in UTF-8 shows when it gets it."""
    if depth == MAX_DEPTH and container:
        raise NotCanonical(f"a value lies deeper than {MAX_DEPTH}")
    for key in container if type(container) is dict else ():
        if type(key) is not str or len(key) > _LONGEST_KEY or not _is_key(key):
            raise NotCanonical("a key is not of the form [a-z][a-z0-9_]{0,63}")
    items: Iterable[Any] = container.values() if type(container) is dict else container
    for item in items:
        # Exact types: a bool is no integer here, and an enum or a subclass is nothing at all.
        kind = type(item)
        if kind in _PLAIN:
            continue
        if kind is int:
            if not -MAX_INTEGER <= item <= MAX_INTEGER:
                raise NotCanonical("an integer lies outside ±(2^53 − 1)")
        elif kind is dict or kind is list:
            _check(item, depth + 1)
        else:
            raise NotCanonical(f"a value of type {kind.__name__} has no canonical form")


def encode(event: Event) -> bytes:
    """Return the one byte string that stands for `event`.

    Raises:
        NotCanonical: The top level is no object, or it holds a value outside the subset.
    """
    if type(event) is not dict:
        raise NotCanonical("the top level is not an object")
    _check(event, 0)
    try:
        return _ENCODER.encode(event).encode()
    except UnicodeEncodeError:
        raise NotCanonical("a string holds a lone surrogate") from None


def _refuse_number(text: str) -> NoReturn:
    raise NotCanonical(f"a float, an exponent or NaN: {text[:20]}")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:  # before int(), which refuses very long ones with another exception
        raise NotCanonical("an integer lies outside ±(2^53 − 1)")
    return int(text)


# Made once: `json.dumps` and `json.loads` would make them anew for each event. Nothing as deep as a circle gets here.
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False)
_DECODER: Final = json.JSONDecoder(parse_float=_refuse_number, parse_constant=_refuse_number, parse_int=_integer)


def decode(data: bytes, *, limit_bytes: int = MAX_BYTES) -> Event:
    """Return the event whose canonical form is exactly `data`.

    Raises:
        NotCanonical: `data` is too long, no UTF-8, no JSON, outside the subset, or another spelling of its value.
    """
    if len(data) > limit_bytes:
        raise NotCanonical(f"{len(data)} bytes, at most {limit_bytes}")
    try:
        value = _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        raise NotCanonical("not JSON in UTF-8") from None
    encoded = encode(value)
    if encoded != data:
        raise NotCanonical("not the canonical spelling of its value")
    return value  # type: ignore[no-any-return]


def sha256(data: bytes) -> str:
    """Return the *hash* of `data`: ``sha256:`` and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
