"""The canonical JSON of the audit log: one event, one byte string (RFC 8785 on a subset); pure.

The subset is narrow so that every JSON library agrees on it: no float, no null, ASCII keys, integers within
±(2^53 − 1). A real number is an integer in a stated small unit, an absent field is left out. `decode` parses,
encodes again and compares, so that no second spelling of a value is ever read.

This is not `federation.canonical`: there an absent value is `null` and ids may be keys.
"""

import hashlib
import json
import re
from typing import Any, Final, NoReturn

from audit.errors import NotCanonical

MAX_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 8
MAX_BYTES: Final = 65_535
_KEY: Final = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_LONGEST_INTEGER: Final = len(str(-MAX_INTEGER))

Event = dict[str, Any]


def _check(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise NotCanonical(f"a value lies deeper than {MAX_DEPTH}")
    # Exact types: a bool is no integer here, and an enum or a subclass is nothing at all.
    kind = type(value)
    if kind is bool:
        return
    if kind is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:  # type: ignore[operator]
            raise NotCanonical("an integer lies outside ±(2^53 − 1)")
    elif kind is str:
        try:
            value.encode()  # type: ignore[attr-defined]
        except UnicodeEncodeError:
            raise NotCanonical("a string holds a lone surrogate") from None
    elif kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not _KEY.match(key):
                raise NotCanonical("a key is not of the form [a-z][a-z0-9_]{0,63}")
            _check(item, depth + 1)
    elif kind is list:
        for item in value:  # type: ignore[attr-defined]
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
    return json.dumps(event, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _refuse_number(text: str) -> NoReturn:
    raise NotCanonical(f"a float, an exponent or NaN: {text[:20]}")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:  # before int(), which refuses very long ones with another exception
        raise NotCanonical("an integer lies outside ±(2^53 − 1)")
    return int(text)


def decode(data: bytes, *, limit_bytes: int = MAX_BYTES) -> Event:
    """Return the event whose canonical form is exactly `data`.

    Raises:
        NotCanonical: `data` is too long, no UTF-8, no JSON, outside the subset, or another spelling of its value.
    """
    if len(data) > limit_bytes:
        raise NotCanonical(f"{len(data)} bytes, at most {limit_bytes}")
    try:
        value = json.loads(data.decode(), parse_float=_refuse_number, parse_constant=_refuse_number, parse_int=_integer)
    except (ValueError, RecursionError):
        raise NotCanonical("not JSON in UTF-8") from None
    encoded = encode(value)
    if encoded != data:
        raise NotCanonical("not the canonical spelling of its value")
    return value  # type: ignore[no-any-return]


def sha256(data: bytes) -> str:
    """Return the *hash* of `data`: ``sha256:`` and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
