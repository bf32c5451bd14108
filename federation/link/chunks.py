"""How a blob is named: chunks of 1 MiB, a hash for each, and one root over them; pure, no files.

A blob's root is ``SHA-256("confide-blob/v1\\n" ‖ u64be(size) ‖ SHA-256(chunk 0) ‖ SHA-256(chunk 1) ‖ …)``. Whoever
holds a signed root can check the list of hashes before the first chunk arrives, and then each chunk by itself, so
a receiver never keeps an unverified byte and a broken transfer goes on at the last good chunk. The empty blob has
no chunk. Only the last chunk may be shorter than `CHUNK_BYTES`.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from federation.messages import BlobReference

CHUNK_BYTES: Final = 1 << 20
HASH_BYTES: Final = 32
_DOMAIN: Final = b"confide-blob/v1\n"
Bytes = bytes | bytearray | memoryview


def chunk_count(size_bytes: int) -> int:
    """Return how many chunks a blob of `size_bytes` has."""
    return -(-size_bytes // CHUNK_BYTES)


def chunk_span(index: int, size_bytes: int) -> tuple[int, int]:
    """Return offset and length, in bytes, of chunk `index` of a blob of `size_bytes`.

    Raises:
        IndexError: The blob has no such chunk.
    """
    if not 0 <= index < chunk_count(size_bytes):
        raise IndexError(f"chunk {index} of a blob with {chunk_count(size_bytes)} chunks")
    offset = index * CHUNK_BYTES
    return offset, min(CHUNK_BYTES, size_bytes - offset)


def chunk_hash(chunk: Bytes) -> bytes:
    """Return the 32-byte hash of one chunk."""
    return hashlib.sha256(chunk).digest()


def root_of(size_bytes: int, hashes: Bytes) -> str:
    """Return the root, in hex, of a blob with these concatenated chunk hashes.

    Raises:
        ValueError: The number of hashes isn't that of the size.
    """
    if len(hashes) != chunk_count(size_bytes) * HASH_BYTES:
        raise ValueError(f"{len(hashes)} bytes of chunk hashes for {chunk_count(size_bytes)} chunks")
    whole = hashlib.sha256(_DOMAIN + size_bytes.to_bytes(8, "big"))
    whole.update(hashes)
    return whole.hexdigest()


class BlobHasher:
    """Hashes bytes that arrive in pieces of any length; each byte is hashed once."""

    def __init__(self) -> None:
        self._hashes = bytearray()
        self._chunk = hashlib.sha256()
        self._room = CHUNK_BYTES
        self._size_bytes = 0

    def update(self, data: Bytes) -> None:
        """Add `data` to the blob."""
        view = memoryview(data).cast("B")
        self._size_bytes += len(view)
        while view:
            piece = view[: self._room]
            self._chunk.update(piece)
            self._room -= len(piece)
            view = view[len(piece) :]
            if self._room == 0:
                self._close_chunk()

    def _close_chunk(self) -> None:
        self._hashes += self._chunk.digest()
        self._chunk = hashlib.sha256()
        self._room = CHUNK_BYTES

    def finish(self) -> tuple[BlobReference, bytes]:
        """Return the blob's reference and its concatenated chunk hashes. Nothing may be added afterwards."""
        if self._room < CHUNK_BYTES:
            self._close_chunk()
        hashes = bytes(self._hashes)
        return BlobReference(root=root_of(self._size_bytes, hashes), size_bytes=self._size_bytes), hashes


def reference_of(data: Bytes) -> BlobReference:
    """Return the reference of the blob that holds exactly `data`."""
    hasher = BlobHasher()
    hasher.update(data)
    return hasher.finish()[0]


def spans(first_chunk: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each chunk from `first_chunk` to the end."""
    for index in range(first_chunk, chunk_count(size_bytes)):
        yield chunk_span(index, size_bytes)
