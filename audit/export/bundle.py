"""The form of an exported bundle: its manifest, the names of its files, the line of a row; pure.

manifest.json                                   canonical JSON and LF; lists every other file by size and hash
policy · log/checkpoint                         the keys as information, the checkpoint that all proofs lead to
entries/<i>.entry, proofs/<i>.tlog-proof        of a selection
log/tile/…                                      of a complete bundle: tiles and entries (C2SP tlog-tiles)
trail/<i>.entry, trail/<i>.tlog-proof           what the others are judged by: keys, redactions, prunings
checkpoints/<n>.checkpoint, <n>.consistency     other checkpoints of the log, with their proofs
rows.jsonl                                      one line for each match
private.jsonl · rows.csv, report.html, …        on demand
verify.py, README.txt
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from audit import canonical
from audit.canonical import Event
from audit.columns import FILTERS
from audit.errors import LogUnreadable, NotCanonical

SCHEMA: Final = "confide/audit-bundle/v1"
MANIFEST: Final = "manifest.json"
POLICY: Final = "policy"
CHECKPOINT: Final = "log/checkpoint"
TILES: Final = "log/"
ROWS: Final = "rows.jsonl"
PRIVATE: Final = "private.jsonl"
VERIFIER: Final = "verify.py"
READ_ME: Final = "README.txt"
RENDERINGS: Final = ("rows.csv", "report.html", "report.json", "report.pdf", "fhir.ndjson", "ocsf.jsonl")
"""Made from the rows, proved by nothing: whoever doubts one makes it anew."""
MAX_MANIFEST_BYTES: Final = 256 << 20

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}){0,11}\Z")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
_NUMBERED: Final = re.compile(r"(0|[1-9][0-9]{0,17})\.([a-z-]+)\Z")


def is_name(name: str) -> bool:
    """Return whether a file of a bundle may have this name: ASCII, no link upwards, nothing hidden."""
    return _NAME.match(name) is not None and ".." not in name.split("/")


def entry_path(index: int) -> str:
    """Return where a selection has its entry `index`."""
    return f"entries/{index}.entry"


def proof_path(index: int) -> str:
    """Return where a selection has the proof of its entry `index`."""
    return f"proofs/{index}.tlog-proof"


def trail_path(index: int) -> str:
    """Return where the trail has entry `index`."""
    return f"trail/{index}.entry"


def trail_proof_path(index: int) -> str:
    """Return where the trail has the proof of entry `index`."""
    return f"trail/{index}.tlog-proof"


def checkpoint_path(size: int) -> str:
    """Return where another checkpoint of the log lies."""
    return f"checkpoints/{size}.checkpoint"


def consistency_path(size: int) -> str:
    """Return where the proof between that checkpoint and the bundle's own lies."""
    return f"checkpoints/{size}.consistency"


def numbered(names: Any, folder: str, suffix: str) -> list[int]:
    """Return the numbers n of the files ``<folder>/<n>.<suffix>`` among `names`, in order."""
    found = []
    for name in names:
        head, _, last = name.rpartition("/")
        match = _NUMBERED.match(last)
        if head == folder and match is not None and match[2] == suffix:
            found.append(int(match[1]))
    return sorted(found)


def row_line(index: int, leaf_hash: str, event: Event) -> bytes:
    """Return the line of `rows.jsonl` for an entry: canonical JSON of index, leaf hash and event."""
    return b'{"event":%b,"index":%d,"leaf_hash":"%b"}\n' % (canonical.encode(event), index, leaf_hash.encode())


@dataclass(frozen=True, slots=True)
class FileSum:
    """Size and hash of a file of the bundle."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says it is.

    Attributes:
        origin: The log.
        size: Entries under the checkpoint that all proofs lead to.
        root: Its root.
        complete: All entries of the range are there, so that the filter can be replayed.
        first: The first index of the range.
        end: The index behind its last.
        filters: What was asked for; times as `since_us`, `until_us`.
        files: Every other file, by path.
    """

    origin: str
    size: int
    root: bytes
    complete: bool
    first: int
    end: int
    filters: Mapping[str, str | int]
    files: Mapping[str, FileSum] = field(default_factory=dict)

    def __bytes__(self) -> bytes:
        value = {
            "schema": SCHEMA,
            "origin": self.origin,
            "size": self.size,
            "root": base64.b64encode(self.root).decode(),
            "complete": self.complete,
            "range": {"from": self.first, "to": self.end},
            "filter": dict(self.filters),
            "files": [
                {"path": one.path, "bytes": one.size_bytes, "sha256": one.sha256}
                for one in sorted(self.files.values(), key=lambda one: one.path)
            ],
        }
        return canonical.encode(value) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Return the manifest whose bytes are exactly `data`.

        Raises:
            LogUnreadable: Another form.
        """
        try:
            value = canonical.decode(data[:-1], limit_bytes=MAX_MANIFEST_BYTES)
            files = [FileSum(one["path"], one["bytes"], one["sha256"]) for one in value["files"]]
            span = value["range"]
            made = cls(
                value["origin"],
                value["size"],
                base64.b64decode(value["root"], validate=True),
                value["complete"],
                span["from"],
                span["to"],
                value["filter"],
                {one.path: one for one in files},
            )
            whole = value["schema"] == SCHEMA and bytes(made) == data and len(made.files) == len(files)
            if not whole or not _in_form(made):
                raise ValueError
        except (NotCanonical, KeyError, TypeError, ValueError, AttributeError):
            raise LogUnreadable(f"{MANIFEST} is not that of a bundle", hint="ask for a new export") from None
        return made


def _in_form(made: Any) -> bool:
    numbers = (made.size, made.first, made.end)
    return bool(
        isinstance(made.origin, str)
        and all(type(one) is int for one in numbers)
        and 0 <= made.first <= made.end <= made.size
        and len(made.root) == 32
        and type(made.complete) is bool
        and made.filters.keys() <= set(FILTERS)
        and all(type(made.filters[name]) is (int if name.endswith("_us") else str) for name in made.filters)
        and all(is_name(one.path) and one.path != MANIFEST and _is_sum(one) for one in made.files.values())
    )


def _is_sum(one: Any) -> bool:
    counted = type(one.size_bytes) is int and one.size_bytes >= 0
    return bool(counted and type(one.sha256) is str and _HASH.match(one.sha256) is not None)


def private_line(index: int, name: str, salt: bytes, value: bytes) -> bytes:
    """Return the line of `private.jsonl` that opens the commitment `name` of an entry."""
    line = {
        "index": index,
        "field": name,
        "salt": base64.urlsafe_b64encode(salt).decode().rstrip("="),
        "value": base64.b64encode(value).decode(),
    }
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def parse_private_line(line: bytes) -> tuple[int, str, bytes, bytes]:
    """Return index, field, salt and value of a line of `private.jsonl`.

    Raises:
        NotCanonical: Another form.
    """
    try:
        value = json.loads(line)
        index, name = value["index"], value["field"]
        salt = base64.urlsafe_b64decode(value["salt"] + "=" * (-len(value["salt"]) % 4))
        opened = base64.b64decode(value["value"], validate=True)
        if type(index) is not int or type(name) is not str or private_line(index, name, salt, opened) != line:
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise NotCanonical("not a line that opens a commitment") from None
    return index, name, salt, opened
