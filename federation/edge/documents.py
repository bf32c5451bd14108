"""Reading a YAML document that a person wrote: strictly, and with an answer that names line and character.

Every document of the product (contract, map, plan, policy, a role's configuration) comes through here, so that the
same file means the same everywhere. The reader is a subset of YAML 1.2: no aliases, anchors or tags, no repeated
keys, `yes`, `no`, dates and numbers with leading zeros stay text, `1e-5` is a number, keys are always text. A
byte-order mark and Windows line ends are accepted; typographic quotes and no-break spaces outside quotes, which look
right and are not, are refused with their place. An unknown key is refused with the nearest known one suggested.

`parse_document` is pure; `read_document` adds the file. Nothing here is for bytes from the network: those are
canonical JSON (`federation.canonical`).
"""

import difflib
import json
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from federation.errors import ConfideError, InvalidInput

MAX_DOCUMENT_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 24
MAX_VALUES: Final = 100_000
MAX_PROBLEMS_SHOWN: Final = 5

_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_QUOTES: Final = "“”„‟‘’‚‛«»"
_BLANKS: Final = {
    "\u00a0": "a no-break space",
    "\u202f": "a narrow no-break space",
    "\u2007": "a figure space",
    "\u200b": "a zero-width space",
    "\u3000": "a wide space",
    "\ufeff": "a byte-order mark",
}
_ENCODING_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)

M = TypeVar("M", bound=BaseModel)
Place = tuple[str | int, ...]


class DocumentUnreadable(Exception):
    """The bytes are no document of the strict kind. `line` and `character` count from 1, 0 where there is no place."""

    def __init__(self, problem: str, line: int = 0, character: int = 0, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.character = character
        self.hint = hint

    @property
    def place(self) -> str:
        """Return ``line 3, character 12: `` or nothing."""
        return f"line {self.line}, character {self.character}: " if self.line else ""


@dataclass(slots=True)
class Parsed:
    """A document's value and, for each path in it, the line on which it begins (from 1)."""

    value: Any
    lines: dict[Place, int] = field(default_factory=dict)


def read_document(
    path: Path,
    model: type[M],
    *,
    raises: type[ConfideError] = InvalidInput,
    codes: tuple[str, str] = ("CFD-D01", "CFD-D02"),
) -> M:
    """Return the `model` that the YAML file at `path` holds.

    Args:
        path: A file of at most 1 MiB.
        model: A pydantic model that refuses unknown keys.
        raises: The class of error, such as `ConfigurationWrong` for a role's own file.
        codes: The codes for a file that can't be read, and for content that breaks the schema.

    Raises:
        ConfideError: Of the class `raises`; the message names file, line and key, the hint what to write instead.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as problem:
        reason = problem.strerror or "it can't be read"
        raise raises(codes[0], f"{printable(path)}: {reason}", hint="check the path and the permissions") from None
    return parse_document(data, model, name=printable(path), raises=raises, codes=codes)


def parse_document(
    data: bytes,
    model: type[M],
    *,
    name: str,
    raises: type[ConfideError] = InvalidInput,
    codes: tuple[str, str] = ("CFD-D01", "CFD-D02"),
) -> M:
    """Return the `model` that the YAML bytes `data` hold; `name` stands for the file in messages.

    Raises:
        ConfideError: As `read_document`.
    """
    try:
        parsed = parse_yaml(data)
    except DocumentUnreadable as problem:
        raise raises(codes[0], f"{name}: {problem.place}{problem.problem}", hint=problem.hint) from None
    try:
        return TypeAdapter(model).validate_json(json.dumps(parsed.value))
    except ValidationError as problem:
        message, hint = describe(problem, model, parsed)
        raise raises(codes[1], f"{name}: {message}", hint=hint) from None


def parse_yaml(data: bytes) -> Parsed:
    """Return the value of the YAML bytes `data`, made of dict, list, str, int, float, bool and None.

    Raises:
        DocumentUnreadable: Too large, not UTF-8, no YAML, or outside the strict subset; with line and character.
    """
    text = _decode(data)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        what = (problem.problem or problem.context or "not YAML").replace("\n", " ")
        hint = "indent with spaces" if "'\\t'" in what else "check indentation, colons and quotes near this line"
        line, character = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise DocumentUnreadable(what, line, character, hint) from None
    except yaml.reader.ReaderError as problem:
        line, character = _place(text, problem.position)
        what = f"character U+{_code_point(problem.character):04X} is not allowed"
        raise DocumentUnreadable(what, line, character, "remove the control character") from None
    if not builder.documents:
        raise DocumentUnreadable("the document is empty", hint="write the document's keys, beginning with apiVersion")
    return Parsed(builder.documents[0], builder.lines)


def printable(thing: object) -> str:
    """Return `thing` as text that is safe on a terminal and on one line: no control characters, at most 300 characters.

    File names may hold any byte; one that is not UTF-8 shows as ``\\xNN``.
    """
    text = str(thing)
    safe = "".join(c if c.isprintable() else _escape(c) for c in text)
    return safe if len(safe) <= 300 else safe[:297] + "…"


def nearest(word: str, known: typing.Iterable[str]) -> str | None:
    """Return the one of `known` that `word` was probably meant to be, or None."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(word.casefold(), list(by_fold), n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def describe(problem: ValidationError, model: type[BaseModel], parsed: Parsed) -> tuple[str, str]:
    """Return message and hint for a document whose content breaks the schema of `model`."""
    # Unknown keys first: a misspelt key is the cause of the missing one.
    errors = sorted(problem.errors(include_url=False), key=lambda error: error["type"] != "extra_forbidden")
    parts: list[str] = []
    hint = ""
    for error in errors[:MAX_PROBLEMS_SHOWN]:
        location = tuple(error["loc"])
        path = _path_in(parsed.value, location, missing=error["type"] == "missing")
        text, advice = _explain(error, location, path, model)
        line = _line_of(parsed, path)
        parts.append(f"line {line}: {text}" if line else text)
        hint = hint or advice
    if len(errors) > MAX_PROBLEMS_SHOWN:
        parts.append(f"and {len(errors) - MAX_PROBLEMS_SHOWN} more")
    return "; ".join(parts), hint


def _explain(error: Any, location: Place, path: Place, model: type[BaseModel]) -> tuple[str, str]:
    where = _dotted(path) or "the document"
    if error["type"] == "extra_forbidden":
        known = sorted(_known_keys(model, location[:-1]))
        guess = nearest(str(location[-1]), known)
        advice = f"did you mean `{guess}`?" if guess else f"known keys here: {', '.join(known)}"
        return f"unknown key `{where}`", advice
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        allowed = re.findall(r"'([^']*)'", context["expected_tags"])
        key = context["discriminator"].strip("'")
        guess = nearest(context["tag"], allowed)
        advice = f"did you mean `{guess}`?" if guess else ""
        return f"`{where}.{key}` must be one of {', '.join(allowed)}, found {printable(context['tag'])[:60]}", advice
    if error["type"] == "missing":
        return f"`{where}` is missing", f"add `{path[-1]}`"
    what = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if error["type"] == "value_error":
        return f"`{where}`: {what}", ""
    found = error.get("input")
    shown = f", found {printable(json.dumps(found))[:60]}" if isinstance(found, str | int | float | bool) else ""
    return f"`{where}` must be {what[0].lower()}{what[1:]}{shown}", ""


# --- bytes to value -------------------------------------------------------------------------------------------


def _decode(data: bytes) -> str:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DocumentUnreadable(f"the document is larger than {MAX_DOCUMENT_BYTES} bytes")
    for mark, encoding in _ENCODING_MARKS:
        if data.startswith(mark):
            raise DocumentUnreadable(f"the file is {encoding}, only UTF-8 is read", hint="save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = data[: problem.start]
        line = before.count(b"\n") + 1
        character = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        what = f"byte 0x{data[problem.start]:02x} is not UTF-8"
        raise DocumentUnreadable(what, line, character, "save the file as UTF-8") from None


def _code_point(character: object) -> int:
    # The library's error holds an integer in some of its paths and a string in others.
    return ord(character) if isinstance(character, str) else int(str(character))


def _escape(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # PEP 383: an undecodable byte of a file name
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _place(text: str, position: int) -> tuple[int, int]:
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


@dataclass(slots=True)
class _Open:
    """A mapping or sequence under construction."""

    value: dict[str, Any] | list[Any]
    path: Place
    key: str | None = None


@dataclass(slots=True)
class _Builder:
    """Builds the value from parser events without recursion, so that depth is a count and not a crash."""

    documents: list[Any] = field(default_factory=list)
    lines: dict[Place, int] = field(default_factory=dict)
    stack: list[_Open] = field(default_factory=list)
    values_count: int = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.NodeEvent):
            self._refuse_references(event)
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.stack.pop()
        elif isinstance(event, yaml.DocumentStartEvent) and self.documents:
            raise _at(event, "a second document begins here", "keep one document in a file")

    def _refuse_references(self, event: yaml.NodeEvent) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            raise _at(event, "anchors and aliases (& and *) are not read", "write the value out, or put it in quotes")
        if getattr(event, "tag", None) not in (None, "!"):
            raise _at(event, "tags (!) are not read", "leave the tag out, or put the value in quotes")
        self.values_count += 1
        if self.values_count > MAX_VALUES:
            raise _at(event, f"the document holds more than {MAX_VALUES} values", "split the document")

    def _start(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            raise _at(event, "a key must be text", "write the key as a word")
        if len(self.stack) >= MAX_DEPTH:
            raise _at(event, f"nesting is deeper than {MAX_DEPTH}", "")
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._put(value, event)
        self.stack.append(_Open(value, path))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        if event.style is None:
            _refuse_lookalikes(event)
        elif event.style == '"':
            event.value = _joined(event)
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            if event.value in top.value:
                raise _at(event, f"the key `{printable(event.value)}` occurs twice", "keep one of the two")
            top.key = event.value
            self.lines[(*top.path, event.value)] = _begin(event)[0]
            return
        self._put(_plain(event.value) if event.style is None else event.value, event)

    def _put(self, value: Any, event: yaml.Event) -> Place:
        if not self.stack:
            self.documents.append(value)
            return ()
        top = self.stack[-1]
        if isinstance(top.value, dict):
            key = typing.cast("str", top.key)
            top.value[key] = value
            top.key = None
            return (*top.path, key)
        top.value.append(value)
        path = (*top.path, len(top.value) - 1)
        self.lines[path] = _begin(event)[0]
        return path


def _at(event: yaml.Event, problem: str, hint: str) -> DocumentUnreadable:
    return DocumentUnreadable(problem, *_begin(event), hint)


def _begin(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (0, 0) if mark is None else (mark.line + 1, mark.column + 1)


def _refuse_lookalikes(event: yaml.ScalarEvent) -> None:
    text = event.value
    for position, character in enumerate(text):
        at_edge = position in (0, len(text) - 1)
        if character in _BLANKS or (character in _QUOTES and at_edge):
            problem = _BLANKS.get(character) or f"the typographic quote {character}"
            hint = "use an ordinary space" if character in _BLANKS else "use the plain quotes \" or '"
            # A plain scalar on one line: the place in the file is its start plus the place in it.
            line, column = _begin(event)
            raise DocumentUnreadable(f"{problem} stands here", line, column + position, hint)


def _joined(event: yaml.ScalarEvent) -> str:
    """Return the text, pairs like ``\\ud83d\\ude00``, as JSON writes them, joined to one character."""
    try:
        joined: str = event.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise _at(event, "half a surrogate pair is written here", "write the character itself") from None
    return joined


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar, by the core schema of YAML 1.2 without octal, hex, inf and nan."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if len(text) <= 40:
        if _INTEGER.match(text):
            return int(text)
        if _FLOAT.match(text) and abs(float(text)) != float("inf"):
            return float(text)
    return text


# --- messages -------------------------------------------------------------------------------------------------


def _dotted(path: Place) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return printable(text)


def _path_in(value: Any, location: Place, *, missing: bool) -> Place:
    """Return `location` without the parts that pydantic adds (names of union members) and the document lacks."""
    path: list[str | int] = []
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(value, dict) and part in value:  # noqa: SIM114 (two containers, two kinds of index)
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif not (last and missing):
            continue
        path.append(part)
    return tuple(path)


def _line_of(parsed: Parsed, path: Place) -> int:
    while path:
        if path in parsed.lines:
            return parsed.lines[path]
        path = path[:-1]
    return 0


def _known_keys(annotation: Any, location: Place) -> set[str]:
    """Return the keys that the models at `location` below `annotation` know."""
    options = list(_members(annotation))
    if not location:
        return {
            item.alias or name
            for option in options
            if isinstance(option, type) and issubclass(option, BaseModel)
            for name, item in option.model_fields.items()
        }
    part, rest = location[0], location[1:]
    known: set[str] = set()
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            known |= _below_model(option, part, rest)
        elif typing.get_origin(option) in (list, tuple, dict, set, frozenset):
            for argument in typing.get_args(option)[-2:]:
                known |= _known_keys(argument, rest) if argument is not Ellipsis else set()
    return known


def _below_model(model: type[BaseModel], part: str | int, rest: Place) -> set[str]:
    for name, item in model.model_fields.items():
        if part in (name, item.alias):
            return _known_keys(item.annotation, rest)
    # The name of a union's member: its tag, or its class.
    tags = {str(tag) for item in model.model_fields.values() for tag in typing.get_args(item.annotation)}
    return _known_keys(model, rest) if part == model.__name__ or part in tags else set()


def _members(annotation: Any) -> typing.Iterator[Any]:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for argument in typing.get_args(annotation):
            yield from _members(argument)
    else:
        yield annotation
