"""People who opted out: kept as keyed marks that name nobody; no row of theirs enters a version made from then on.

The list lies in the home beside the prepared rows, ``data/<name>/opted-out.json``, 0600. A mark is HMAC-SHA256 of the
person's id under the site's secret key, so the list alone tells nobody who is in it. A mark is never taken away.
"""

import hmac
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from federation.edge.files import make_folder, write_whole
from federation.errors import CheckFailed, InvalidInput

MAX_PEOPLE: Final = 1_000_000
MAX_FILE_BYTES: Final = 64_000_000
MAX_ID_CHARACTERS: Final = 1024
_DOMAIN: Final = b"confide-opt-out/v1\n"
_FILE: Final = "opted-out.json"


@dataclass(frozen=True, slots=True)
class OptOuts:
    """Who opted out of one data set: `marks` under the site's `key`."""

    key: bytes = field(repr=False)
    marks: frozenset[str] = frozenset()

    def covers(self, entity: str) -> bool:
        """Return whether the person with this id opted out."""
        return bool(self.marks) and self._mark(entity) in self.marks

    def with_people(self, entities: list[str]) -> "OptOuts":
        """Return these and the people with the ids `entities`."""
        return OptOuts(self.key, self.marks | {self._mark(entity) for entity in entities})

    def _mark(self, entity: str) -> str:
        return hmac.digest(self.key, _DOMAIN + entity.encode("utf-8"), "sha256").hex()


def people_in(path: Path) -> list[str]:
    """Return the ids that `path` lists, one a line, as they stand in the entity column; blank lines are passed over.

    Raises:
        InvalidInput: It can't be read, isn't UTF-8 text, lists nobody, or more than a million.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise InvalidInput("CFD-D26", f"the list of people can't be read: {problem.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInput("CFD-D26", f"the list of people is larger than {MAX_FILE_BYTES // 1_000_000} MB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput("CFD-D26", "the list of people isn't UTF-8 text", hint="one id a line, UTF-8") from None
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(found) <= MAX_PEOPLE:
        raise InvalidInput("CFD-D26", f"the list names {len(found)} people, 1 to {MAX_PEOPLE} are possible")
    for number, entity in enumerate(found, 1):
        if len(entity) > MAX_ID_CHARACTERS or not entity.isprintable():
            raise InvalidInput("CFD-D26", f"entry {number} of the list is no id of a person", hint="one id a line")
    return found


def read(home: Path, name: str, key: bytes) -> OptOuts:
    """Return who opted out of the data set `name`.

    Raises:
        CheckFailed: The list is damaged; without it nobody knows whose rows to leave out, so nothing is read.
    """
    try:
        marks = json.loads((home / "data" / name / _FILE).read_bytes())["marks"]
        return OptOuts(key, frozenset(map(_checked, marks)))
    except FileNotFoundError:
        return OptOuts(key)
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckFailed("CFD-D27", f"the list of who opted out of data set {name} is damaged") from None


def keep(home: Path, name: str, opted: OptOuts) -> None:
    """Write the list, durable on return."""
    folder = make_folder(home / "data" / name)
    write_whole(folder / _FILE, json.dumps({"marks": sorted(opted.marks)}).encode())


def _checked(mark: object) -> str:
    if not (isinstance(mark, str) and len(bytes.fromhex(mark)) == 32):
        raise ValueError(mark)
    return mark
