"""Canonical bytes of what the parties sign: one value, one byte string.

JSON restricted as in RFC 8785 without floats: keys sorted by byte, no spaces, UTF-8 without escapes beyond JSON's
own, integers within ±(2^53 − 1), `null` allowed. A real number travels as the string of `float.hex`, bytes travel
as lower-case hex, so nothing depends on how a language prints a float. `decode` is strict: it parses, encodes
again and compares, so that two byte strings never mean the same value. (`audit` keeps a narrower profile of its own.)
"""

import hashlib
import json
from typing import Any, Final, NoReturn

MAX_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 16


class NotCanonical(ValueError):
    """The value or the bytes have no canonical form; nothing was used."""


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise NotCanonical(f"nesting is deeper than {MAX_DEPTH}")
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is int:
        if abs(value) > MAX_INTEGER:
            raise NotCanonical("integer outside ±(2^53 − 1)")
    elif kind is str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise NotCanonical("string holds a lone surrogate") from None
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise NotCanonical("a key is not a string")
            _check(key, depth)
            _check(item, depth + 1)
    elif kind in (list, tuple):
        for item in value:
            _check(item, depth + 1)
    else:
        raise NotCanonical(f"value of type {kind.__name__} has no canonical form")


def encode(value: Any) -> bytes:
    """Return the one byte string that stands for `value`.

    Raises:
        NotCanonical: A float, a deep nesting, a large integer or a type without a form.
    """
    _check(value, 0)
    # Code-point order equals UTF-8 byte order, which is the order wanted here.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _refuse_float(text: str) -> NoReturn:
    raise NotCanonical(f"float or exponent in canonical JSON: {text[:20]}")


def _integer(text: str) -> int:
    if len(text) > 17:
        raise NotCanonical("integer outside ±(2^53 − 1)")
    return int(text)


def decode(data: bytes, *, limit_bytes: int = 4 << 20) -> Any:
    """Return the value of canonical `data`, or refuse it.

    Raises:
        NotCanonical: Too large, not UTF-8, not JSON, or not the canonical form of its value.
    """
    if len(data) > limit_bytes:
        raise NotCanonical(f"{len(data)} bytes, at most {limit_bytes}")
    try:
        value = json.loads(
            data.decode("utf-8"), parse_float=_refuse_float, parse_constant=_refuse_float, parse_int=_integer
        )
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise NotCanonical("not JSON in UTF-8") from None
    if encode(value) != data:
        raise NotCanonical("not in canonical form")
    return value


def digest(data: bytes) -> str:
    """Return SHA-256 of `data` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()
