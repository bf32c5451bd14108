"""The store: one append-only file of lines, `entries.log`; each line is one entry and the hash of all before it.

    {"chain":"sha256:…","index":7,"leaf":"audit-entry/v1 …"}

in canonical JSON, ended by LF. ``chain`` of entry n is SHA-256(``confide-chain/v1`` LF ‖ chain of n−1 ‖ leaf hash
of n), with 32 zero bytes before entry 0, so that an altered, removed or moved line is found without any key. The
signatures are inside the leaf; the root over all leaves is in the file `checkpoint`.

Durability: `append` returns once the lines are on the disk. A failed write leaves the file as it was. A failed sync
leaves it unknown: the store then refuses all further appends of this process. One process appends at a time (the
lock is `audit.log`'s); readers may read at any time and see whole lines only.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import canonical, durable, merkle
from audit.errors import AppendFailed, LogDamaged, NotCanonical

ENTRIES: Final = "entries.log"
FIRST_CHAIN: Final = bytes(32)
# A leaf of 65,535 bytes at most doubles when its quotes are escaped; the rest is chain and index.
MAX_LINE_BYTES: Final = 2 * 65_535 + 512
MAX_TAIL_BYTES: Final = 8 << 20


def chain_hash(before: bytes, leaf_hash: bytes) -> bytes:
    """Return the chain value of an entry from the one before it."""
    return hashlib.sha256(b"confide-chain/v1\n" + before + leaf_hash).digest()


@dataclass(frozen=True, slots=True)
class StoredLine:
    """One line of the store: what it claims, not yet compared with anything."""

    index: int
    chain: bytes
    leaf: bytes

    def __bytes__(self) -> bytes:
        line = {"chain": "sha256:" + self.chain.hex(), "index": self.index, "leaf": self.leaf.decode()}
        return json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def parse_line(line: bytes) -> StoredLine:
    """Return what a line (without its LF) says.

    Raises:
        NotCanonical: It isn't the canonical form of an index, a chain value and a leaf.
    """
    value = canonical.decode(line, limit_bytes=MAX_LINE_BYTES)
    index, chain, leaf = value.get("index"), value.get("chain"), value.get("leaf")
    if len(value) != 3 or type(index) is not int or index < 0 or type(leaf) is not str or type(chain) is not str:
        raise NotCanonical("a line of the store has an index, a chain value and a leaf")
    prefix, _, digest = chain.partition(":")
    if prefix != "sha256" or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise NotCanonical("a chain value is not a hash")
    return StoredLine(index, bytes.fromhex(digest), leaf.encode())


@dataclass(frozen=True, slots=True)
class RawLine:
    """A stretch of the file up to and including an LF, or what lies behind the last one.

    Attributes:
        offset: Where it begins.
        data: Its bytes without the LF.
        whole: Whether an LF ended it.
    """

    offset: int
    data: bytes
    whole: bool


def read_lines(path: Path, *, up_to_bytes: int | None = None) -> Iterator[RawLine]:
    """Yield the lines of the store in order, in memory independent of its size.

    A stretch longer than any line is cut: it can't be a line, and a file of zeros must not fill the memory.
    """
    offset = 0
    with path.open("rb") as file:
        while True:
            limit = MAX_LINE_BYTES + 1
            if up_to_bytes is not None:
                limit = min(limit, up_to_bytes - offset)
            data = file.readline(limit)
            if not data:
                return
            whole = data.endswith(b"\n")
            yield RawLine(offset, data[:-1] if whole else data, whole)
            offset += len(data)


def torn_tail(path: Path, offset: int) -> bytes:
    """Return what an interrupted append left from `offset` on, or refuse to call it that.

    An append that never returned leaves a piece of a line without LF, or zeros where the file system had made room
    and not yet written. Nothing whole ever follows it: a whole line behind a broken one means that the file was
    altered, and a broken line that is ended in order was never written by an append.

    Raises:
        LogDamaged: The bytes aren't those of an interrupted append.
    """
    with path.open("rb") as file:
        file.seek(offset)
        tail = file.read(MAX_TAIL_BYTES + 1)
    if len(tail) > MAX_TAIL_BYTES:
        raise LogDamaged("more bytes behind the last whole entry than one append can leave")
    first, _, rest = tail.partition(b"\n")
    if b"\x00" not in first and (rest or tail.endswith(b"\n")):
        raise LogDamaged("a line was altered: it is ended in order and isn't one that was written")
    if b"\x00" in first and not tail.endswith(b"\x00"):
        raise LogDamaged("zeros lie inside the file, not at its end")
    for line in rest.split(b"\n"):
        try:
            parse_line(line)
        except NotCanonical:
            continue
        raise LogDamaged("entries were overwritten: what follows them is whole")
    return tail


class EntryFile:
    """The file of entries, opened for appending by the one committer."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, durable.PRIVATE_FILE)
        self._size_bytes = size_bytes
        self._broken = ""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes are known to be on the disk."""
        return self._size_bytes

    @property
    def broken(self) -> str:
        """Return why this process may append no more, or nothing."""
        return self._broken

    def append(self, lines: bytes) -> int:
        """Write `lines` and return the offset of the first once all are on the disk.

        Raises:
            AppendFailed: They aren't. After a failed write the file is as before and a later append may work; after
                a failed sync no append of this process works.
        """
        if self._broken:
            raise AppendFailed(f"the log takes nothing more in this process: {self._broken}")
        try:
            durable.write_all(self._descriptor, lines)
        except OSError as error:
            self._take_back(error)
            raise AppendFailed(f"writing the log failed: {error.strerror}") from None
        try:
            durable.sync(self._descriptor)
        except OSError as error:
            self._broken = f"syncing the log failed: {error.strerror}"
            raise AppendFailed(self._broken, hint="repair the disk, then start again") from None
        offset = self._size_bytes
        self._size_bytes += len(lines)
        return offset

    def _take_back(self, cause: OSError) -> None:
        try:
            os.ftruncate(self._descriptor, self._size_bytes)
            durable.sync(self._descriptor)
        except OSError:
            self._broken = f"a half-written batch can't be removed after: {cause.strerror}"

    def cut(self) -> None:
        """Remove what lies behind the known size; the caller has kept a durable copy of it.

        Raises:
            OSError: The file may still hold it.
        """
        os.ftruncate(self._descriptor, self._size_bytes)
        durable.sync(self._descriptor)

    def read_line(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`."""
        return os.pread(self._descriptor, length, offset)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lines_for(first_index: int, chain: bytes, leaves: list[bytes]) -> tuple[list[bytes], bytes]:
    """Return the stored lines of `leaves` from `first_index` on, and the chain value after the last."""
    lines = []
    for position, leaf in enumerate(leaves):
        chain = chain_hash(chain, merkle.leaf_hash(leaf))
        lines.append(bytes(StoredLine(first_index + position, chain, leaf)))
    return lines, chain
