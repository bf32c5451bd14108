"""YAML that people write: what is accepted from Windows and word processors, and what is refused with its place."""

import contextlib
import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from federation.edge.documents import (
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    DocumentUnreadable,
    parse_document,
    parse_yaml,
    printable,
    read_document,
)
from federation.errors import ConfideError, ConfigurationWrong, InvalidInput

SITE = 'coordinator:\n  address: "coordinator.example:9443"\n  ca: certs/ca.pem\nsite:\n  name: site-a\n'


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Coordinator(Strict):
    address: str
    ca: str


class Site(Strict):
    name: Annotated[str, Field(pattern=r"^[a-z-]+$")]


class Circle(Strict):
    shape: Literal["circle"]
    radius: float


class Square(Strict):
    shape: Literal["square"]
    width: float


class Document(Strict):
    coordinator: Coordinator
    site: Site
    shapes: tuple[Annotated[Circle | Square, Field(discriminator="shape")], ...] = ()
    named: dict[str, Site] = Field(default={})
    limits: Site | None = None


def problem(text: str | bytes) -> ConfideError:
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    with pytest.raises(InvalidInput) as caught:
        parse_document(data, Document, name="site.yaml")
    return caught.value


@pytest.mark.parametrize("change", [lambda text: text, lambda text: "\ufeff" + text, lambda t: t.replace("\n", "\r\n")])
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(change: object) -> None:
    data = change(SITE).encode("utf-8")  # type: ignore[operator]
    assert parse_document(data, Document, name="site.yaml").site.name == "site-a"


def test_a_windows_path_is_text() -> None:
    assert parse_yaml(rb"data: C:\data\train.csv").value == {"data": "C:\\data\\train.csv"}


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("a: 1\nb: “x”\n", "line 2, character 4: ", "typographic quote “"),
        ("a: 1\nb: x”\n", "line 2, character 5: ", "typographic quote ”"),
        ("a: 1\nb: „x“\n", "line 2, character 4: ", "typographic quote „"),
        ("a: 1\n“b”: x\n", "line 2, character 1: ", "typographic quote “"),
        ("a:\n  b: 1\n\u00a0 c: 2\n", "line 3, character 1: ", "a no-break space"),
        ("a: b\u00a0c\n", "line 1, character 5: ", "a no-break space"),
        ("a: b\u200bc\n", "line 1, character 5: ", "a zero-width space"),
    ],
)
def test_typographic_quotes_and_blanks_are_refused_with_line_and_character(text: str, place: str, what: str) -> None:
    with pytest.raises(DocumentUnreadable) as caught:
        parse_yaml(text.encode("utf-8"))
    assert caught.value.place == place
    assert what in caught.value.problem


def test_an_apostrophe_inside_words_and_anything_in_quotes_is_text() -> None:
    text = 'a: patient’s risk\nb: "“x”\u00a0y"\n# “comment”\nc: |\n  “x”\n'
    assert parse_yaml(text.encode()).value == {"a": "patient’s risk", "b": "“x”\u00a0y", "c": "“x”\n"}


def test_a_byte_that_is_not_utf_8_is_shown_in_hex_with_its_place() -> None:
    with pytest.raises(DocumentUnreadable, match="byte 0xfc is not UTF-8") as caught:
        parse_yaml("a: 1\nü: 2\nname: M".encode() + b"\xfc\n")
    assert (caught.value.line, caught.value.character) == (3, 8)


def test_utf_16_is_refused_by_name() -> None:
    with pytest.raises(DocumentUnreadable, match="UTF-16"):
        parse_yaml("a: 1\n".encode("utf-16"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1.5", 1.5), (".5", 0.5), ("-3", -3), ("0", 0), ("true", True), ("False", False), ("~", None),
        ("null", None), ("yes", "yes"), ("no", "no"), ("off", "off"), ("018", "018"), ("007", "007"), ("0x1f", "0x1f"),
        ("18:00", "18:00"), ("2021-03-04", "2021-03-04"), ("1_000", "1_000"), (".inf", ".inf"), (".nan", ".nan"),
        ("1e999", "1e999"), ("=", "="), ('"1"', "1"), ("'true'", "true"),
    ],
)  # fmt: skip
def test_a_plain_word_means_what_it_looks_like(text: str, value: object) -> None:
    found = parse_yaml(f"a: {text}".encode()).value["a"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_always_text() -> None:
    assert parse_yaml(b"{1: a, true: b, no: c, 1.5: d}").value == {"1": "a", "true": "b", "no": "c", "1.5": "d"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: &x 1\n", "anchors and aliases"),
        ("a: 1\nb: *a\n", "anchors and aliases"),
        ("a: !!python/object/apply:os.system [ls]\n", "tags"),
        ("a: !x 1\n", "tags"),
        ("a: 1\na: 2\n", "the key `a` occurs twice"),
        ("a: {b: 1, b: 2}\n", "the key `b` occurs twice"),
        ("a: 1\n---\nb: 2\n", "a second document"),
        ("? [a]\n: 1\n", "a key must be text"),
        ("a:\n\tb: 1\n", "cannot start any token"),
        ("a: [1\n", "expected"),
        ("a: \x07\n", "U+0007"),
        ('a: "\\ud800"\n', "half a surrogate pair"),
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("[" * (MAX_DEPTH + 1), "nesting is deeper"),
        ("[" * 200_000, "nesting is deeper"),
        ("[" + "1," * 200_000 + "]", "more than 100000 values"),
        ("a: " + "x" * MAX_DOCUMENT_BYTES, "larger than"),
    ],
)
def test_what_lies_outside_the_strict_subset_is_refused(text: str, what: str) -> None:
    with pytest.raises(DocumentUnreadable) as caught:
        parse_yaml(text.encode())
    assert what in caught.value.problem


def test_an_unknown_key_is_refused_with_line_and_the_nearest_known_one() -> None:
    error = problem(SITE.replace("address", "adress"))
    assert error.code == "CFD-D02"
    assert error.message.startswith("site.yaml: line 2: unknown key `coordinator.adress`; ")
    assert error.hint == "did you mean `address`?"


def test_a_key_without_a_likeness_is_answered_with_those_that_exist() -> None:
    error = problem(SITE + "wallpaper: blue\n")
    assert "unknown key `wallpaper`" in error.message
    assert error.hint == "known keys here: coordinator, limits, named, shapes, site"


def test_an_unknown_key_in_a_list_of_kinds_is_answered_with_the_keys_of_that_kind() -> None:
    error = problem(SITE + "shapes:\n  - {shape: circle, radios: 1}\n")
    assert "line 7: unknown key `shapes[0].radios`" in error.message
    assert error.hint == "did you mean `radius`?"


def test_an_unknown_key_below_names_and_options_is_found_too() -> None:
    assert problem(SITE + "named:\n  x: {nam: a}\n").hint == "did you mean `name`?"
    assert problem(SITE + "limits: {nmae: a}\n").hint == "did you mean `name`?"


def test_an_unknown_kind_is_answered_with_the_kinds() -> None:
    error = problem(SITE + "shapes:\n  - {shape: circl, radius: 1}\n")
    assert "`shapes[0].shape` must be one of circle, square, found circl" in error.message
    assert error.hint == "did you mean `circle`?"


def test_a_wrong_type_shows_what_was_found() -> None:
    assert "`coordinator.ca` must be a valid string, found 7" in problem(SITE.replace("certs/ca.pem", "7")).message


def test_many_problems_are_counted_and_not_all_printed() -> None:
    error = problem(SITE + "".join(f"key{i}: 1\n" for i in range(9)))
    assert "and 4 more" in error.message


def test_a_missing_file_is_named_and_the_class_of_error_is_the_callers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationWrong, match="No such file") as caught:
        read_document(tmp_path / "no.yaml", Document, raises=ConfigurationWrong, codes=("CFD-G04", "CFD-G04"))
    assert caught.value.exit_status == 78


def test_printable_shows_what_a_terminal_would_obey() -> None:
    assert printable("a\x1b[31m\n\u202eb\udcff") == "a\\x1b[31m\\x0a\\u202eb\\xff"
    assert len(printable("x" * 100_000)) == 298


@given(st.binary(max_size=400))
def test_any_bytes_are_a_value_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(DocumentUnreadable):
        json.dumps(parse_yaml(data).value).encode("utf-8")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(st.characters(codec="utf-8"), max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_json_is_read_as_itself(value: object) -> None:
    text = json.dumps({"value": value})
    assert parse_yaml(text.encode()).value == {"value": value}
