"""The files behind a data set: found, looked at, read once, and never written to.

A path is one file, or a folder whose files of the declared kind are parts, taken in the order of their names; hidden
and system files are left out. A file is judged by its first bytes, not by its name. What this version can't read
(images, DICOM, workbooks, archives) is refused by content, in one sentence, with the way out.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from federation.edge.documents import printable
from federation.errors import InvalidInput

SUPPORTED: Final = "this version reads CSV, Parquet and JSON lines, each as one file or a folder"
Kind = Literal["csv", "parquet", "jsonl"]
_SUFFIXES: Final[dict[Kind, tuple[str, ...]]] = {
    "csv": (".csv", ".tsv", ".txt", ".data"),
    "parquet": (".parquet",),
    "jsonl": (".jsonl", ".ndjson", ".json"),
}
_SYSTEM_FILES: Final = frozenset({"thumbs.db", "desktop.ini", "_success", "_metadata", "_common_metadata"})
# First bytes, what they are, and what to do. Order matters: the longer first.
_CONTENT: Final = (
    (b"PAR1", "a Parquet file", "declare `format: {kind: parquet}` in the map"),
    (b"PK\x03\x04", "an Excel workbook or another ZIP archive", "export the sheet as CSV, or unpack the archive"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "export the sheet as CSV"),
    (b"\x1f\x8b", "compressed with gzip", "unpack it first"),
    (b"BZh", "compressed with bzip2", "unpack it first"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first"),
    (b"\x89PNG", "a PNG image", "images are not supported yet"),
    (b"\xff\xd8\xff", "a JPEG image", "images are not supported yet"),
    (b"GIF8", "a GIF image", "images are not supported yet"),
    (b"II*\x00", "a TIFF image", "images are not supported yet"),
    (b"MM\x00*", "a TIFF image", "images are not supported yet"),
    (b"%PDF", "a PDF document", "export the table as CSV"),
    (b"SQLite format 3\x00", "an SQLite database", "export the table as CSV"),
    (b"Obj\x01", "an Avro file", "convert it to Parquet"),
    (b"ARROW1", "an Arrow file", "convert it to Parquet"),
    (b"ORC", "an ORC file", "convert it to Parquet"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One file: its path, and its name for people, safe to print."""

    path: Path
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RawFile:
    """What a file was when it was read: name in the folder, size, SHA-256 of its bytes."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(slots=True)
class Table:
    """An opened part: its column names, and its rows with the line (CSV) or row number (Parquet) each begins on.

    `rows` is read once. A `typed` table hands out the needed columns alone, as values and not as text. A row shorter or
    longer than `columns` is the reader's caller's to refuse. After the last row `raw` says what the bytes were, and
    `blank_lines` how many empty lines were passed over.
    """

    part: Part
    columns: list[str]
    rows: Iterator[tuple[int, list[Any]]]
    line_word: str = "line"
    typed: bool = False
    raw: RawFile | None = None
    blank_lines: int = 0


class Progress(Protocol):
    """Told how many bytes of how many have been read."""

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Take the figures."""
        ...


def find_parts(path: Path, kind: Kind) -> list[Part]:
    """Return the parts of the data set at `path`, in the order of their names.

    Raises:
        InvalidInput: Nothing there, not readable, nothing of this kind, or files of other kinds among the parts.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            parts = _parts_of_folder(path, kind)
        elif stat.S_ISREG(mode):
            parts = [_part(path, path.parent)]
        else:
            raise InvalidInput("CFD-D10", f"{printable(path)} is neither a file nor a folder")
    except OSError as problem:
        raise cannot_read(path, problem) from None
    for part in parts:
        _refuse_foreign_content(part, kind)
    return parts


def _parts_of_folder(folder: Path, kind: Kind) -> list[Part]:
    found: list[Path] = []
    foreign: list[str] = []
    for entry in sorted(folder.rglob("*"), key=lambda place: os.fsencode(place.relative_to(folder))):
        relative = entry.relative_to(folder)
        if any(name.startswith(".") or name.casefold() in _SYSTEM_FILES for name in relative.parts):
            continue
        if entry.is_dir():
            continue
        (found if entry.suffix.casefold() in _SUFFIXES[kind] else foreign).append(entry)  # type: ignore[arg-type]
    if foreign:
        some = ", ".join(printable(Path(place).name) for place in foreign[:3])
        raise InvalidInput(
            "CFD-D11",
            f"{printable(folder)}: {len(foreign)} files are not {' '.join(_SUFFIXES[kind])}, such as {some}",
            hint=f"{SUPPORTED}; keep other files elsewhere",
        )
    if not found:
        raise InvalidInput("CFD-D10", f"{printable(folder)}: the folder holds no {' '.join(_SUFFIXES[kind])} file")
    return [_part(entry, folder) for entry in found]


def _part(path: Path, folder: Path) -> Part:
    return Part(path, printable(path.relative_to(folder)), path.stat().st_size)


def cannot_read(path: Path, problem: OSError) -> InvalidInput:
    """Return the error for a file that the system doesn't let us read."""
    return InvalidInput("CFD-D10", f"{printable(path)}: {problem.strerror or 'it cannot be read'} (uid {os.geteuid()})")


def _refuse_foreign_content(part: Part, kind: Kind) -> None:
    try:
        with part.path.open("rb") as file:
            start = file.read(4096)
    except OSError as problem:
        raise cannot_read(part.path, problem) from None
    if not start:
        raise InvalidInput("CFD-D10", f"{part.name}: the file is empty (0 bytes)", hint="check the export")
    found = _content(start, part.path.suffix.casefold())
    if kind == "jsonl" and found is not None and found[0] == "JSON":
        return
    if found is None and kind == "parquet" and not start.startswith(b"PAR1"):
        found = ("no Parquet file", "declare `format: {kind: csv}` in the map if it is text")
    if found is None or (kind == "parquet" and start.startswith(b"PAR1")):
        return
    what, way_out = found
    raise InvalidInput("CFD-D11", f"{part.name} is {what}", hint=f"{way_out}; {SUPPORTED}")


def _content(start: bytes, suffix: str) -> tuple[str, str] | None:
    # DICOM (PS3.10 §7.1): "DICM" after 128 bytes; old files begin with a group 0002 or 0008 element at once.
    if start[128:132] == b"DICM" or (start[:2] in (b"\x02\x00", b"\x08\x00") and start[3:4] == b"\x00"):
        return "a DICOM object", "convert the measurements to a table; images are not supported yet"
    for magic, what, way_out in _CONTENT:
        if start.startswith(magic):
            return what, way_out
    if suffix in (".json", ".jsonl", ".ndjson") or (start.lstrip()[:1] == b"{" and b'":' in start):
        return "JSON", "declare `format: {kind: jsonl}` in the map if each line is one object"
    return None


@dataclass(slots=True)
class HashedFile:
    """A file opened for reading once, hashed and counted as it is read; it is never written to."""

    part: Part
    on_bytes: Callable[[int], None]
    _stream: "_HashedStream" = field(init=False)

    def __enter__(self) -> "_HashedStream":
        try:
            self._stream = _HashedStream(self.part.path, self.on_bytes)
        except OSError as problem:
            raise cannot_read(self.part.path, problem) from None
        return self._stream

    def __exit__(self, *_: object) -> None:
        self._stream.close()


class _HashedStream(RawIOBase):
    """Reads `path` without buffering and hashes what it hands out."""

    def __init__(self, path: Path, on_bytes: Callable[[int], None]) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` and return the number of bytes."""
        count = self._file.readinto(buffer) or 0
        self._hash.update(memoryview(buffer)[:count])
        self._size_bytes += count
        self._on_bytes(count)
        return count

    def close(self) -> None:
        """Close the file; again is harmless."""
        self._file.close()
        super().close()

    def facts(self, name: str) -> RawFile:
        """Return size and hash of what was read, which is the whole file once the end was reached."""
        return RawFile(name, self._size_bytes, self._hash.hexdigest())


def hash_file(part: Part) -> RawFile:
    """Return size and hash of a file, read in pieces."""
    with HashedFile(part, lambda _: None) as stream:
        while stream.read(1 << 20):
            pass
        return stream.facts(part.name)
