import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation import canonical
from federation.canonical import MAX_DEPTH, MAX_INTEGER, NotCanonical, decode, digest, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_keys_stand_in_the_order_of_their_bytes_and_nothing_is_escaped_without_need() -> None:
    assert encode({"é": 1, "b": [True, None], "a": "z\n\u2028"}) == '{"a":"z\\n\u2028","b":[true,null],"é":1}'.encode()
    assert encode({"\U00010000": 1, "\uffff": 2}) == '{"\uffff":2,"\U00010000":1}'.encode()


@given(VALUES)
def test_what_was_encoded_comes_back_and_has_no_other_bytes(value: Any) -> None:
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data


@given(st.binary(max_size=40))
def test_any_bytes_are_the_canonical_form_of_a_value_or_refused(data: bytes) -> None:
    try:
        value = decode(data)
    except NotCanonical:
        return
    assert encode(value) == data


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        math.nan,
        MAX_INTEGER + 1,
        -MAX_INTEGER - 1,
        "\ud800",
        {1: "a"},
        {"\udfff": 1},
        b"bytes",
        {"a": {1, 2}},
        nested(MAX_DEPTH + 1),
    ],
    ids=["float", "nan", "large", "very negative", "surrogate", "key", "surrogate key", "bytes", "set", "deep"],
)
def test_a_value_without_a_form_is_refused(value: Any) -> None:
    with pytest.raises(NotCanonical):
        encode(value)


def test_the_largest_of_everything_has_a_form() -> None:
    for value in (MAX_INTEGER, -MAX_INTEGER, nested(MAX_DEPTH)):
        assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"1.5",
        b"1e3",
        b"NaN",
        b"-Infinity",
        b"9007199254740992",
        b"-0",
        b"123456789012345678",
        b"1" * 5000,
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a": 1}',
        b'"\\u0041"',
        b'"\\ud800"',
        b"\xef\xbb\xbf1",
        b"\xff",
        b"",
        b"1 ",
        b"{",
        b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:14]),
)
def test_bytes_that_are_not_the_one_form_are_refused(data: bytes) -> None:
    with pytest.raises(NotCanonical):
        decode(data)


def test_bytes_over_the_limit_are_refused_before_they_are_read() -> None:
    with pytest.raises(NotCanonical, match="5 bytes, at most 4"):
        decode(b'"abc"', limit_bytes=4)


def test_a_digest_is_sha_256_in_lower_case() -> None:
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_form_is_json_that_others_read() -> None:
    value = {"round": 7, "site": "st-anna", "reasons": ["späť", ""]}
    assert json.loads(canonical.encode(value)) == value
