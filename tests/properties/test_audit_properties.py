"""Properties of the audit log's pure parts, for any input."""

import contextlib
import csv
import io
import json
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from audit import canonical, note, rendering
from audit.errors import NotCanonical, NoteRefused
from audit.visible import json_text, visible

KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True)
SCALARS = (
    st.booleans()
    | st.integers(-canonical.MAX_INTEGER, canonical.MAX_INTEGER)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
EVENTS = st.dictionaries(KEYS, VALUES, max_size=6)


def depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, items), default=0)


@given(EVENTS)
def test_canonical_form_is_unique(event: dict[str, Any]) -> None:
    if depth(event) - 1 > canonical.MAX_DEPTH:
        return
    encoded = canonical.encode(event)
    assert canonical.decode(encoded) == event
    assert encoded == canonical.encode(dict(reversed(event.items())))


@given(EVENTS, st.data())
def test_no_other_bytes_decode_to_the_same_event(event: dict[str, Any], data: st.DataObject) -> None:
    if depth(event) - 1 > canonical.MAX_DEPTH:
        return
    encoded = bytearray(canonical.encode(event))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        other = canonical.decode(bytes(encoded))
    except NotCanonical:
        return
    assert other != event or [type(value) for value in other.values()] != [type(value) for value in event.values()]


@given(st.binary(max_size=400))
def test_no_bytes_break_a_decoder(data: bytes) -> None:
    for decode in (canonical.decode, note.parse_note):
        with contextlib.suppress(NotCanonical, NoteRefused):
            decode(data)


@given(st.text())
def test_what_a_terminal_shows_neither_controls_nor_hides(text: str) -> None:
    shown = visible(text)
    assert all(unicodedata.category(character) not in {"Cc", "Cf", "Zl", "Zp", "Co", "Cn", "Cs"} for character in shown)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_exports_neutralise_and_give_back(text: str) -> None:
    cell = rendering.csv_cell(text)
    assert cell.removeprefix("'") == text if cell != text else not text.startswith("'")
    first = next((c for c in cell if not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf")), "")
    assert first not in set("=+-@|%＝＋－＠") or first == "'"
    quoted = '"' + cell.replace('"', '""') + '"\r\n'
    assert next(iter(csv.reader(io.StringIO(quoted, newline=""), strict=True))) == [cell]


@given(st.dictionaries(KEYS, st.text(), max_size=4))
def test_one_event_stays_one_line_everywhere(event: dict[str, str]) -> None:
    line = json_text(event)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == event
