"""Blobs on disk: content-addressed files, written once, verified chunk by chunk while they arrive.

    objects/ab/abcd…          a complete blob, named by its root; never changed afterwards
    objects/ab/abcd….hashes   its chunk hashes, so that a blob sent many times is hashed once
    staging/OWNER/abcd…       a blob that is arriving: only verified chunks, in order
    staging/OWNER/abcd….hashes
    writing/                  blobs that this process is making

A name in `objects` means: complete and verified. Bytes are synced once, at completion, before the rename; until then
a crash costs at most the chunks since the last good one, because a staging that is opened again hashes what it finds
and keeps the good beginning. A blob that can be fetched again isn't synced at all: its hashes lie in ``….unsynced``
instead, and the next process hashes its bytes before it believes them. One process uses a folder at a time (the
home's lock); threads may share a store. Nothing here decides who may read or write a blob: the link's backend does.
"""

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from federation.errors import InvalidInput, OutOfOrder, PeerMisbehaved
from federation.link.blob_files import read_at, sync_file, sync_folder, write_all, write_at, write_durably
from federation.link.chunks import (
    CHUNK_BYTES,
    HASH_BYTES,
    BlobHasher,
    Bytes,
    chunk_count,
    chunk_hash,
    chunk_span,
    root_of,
    spans,
)
from federation.messages import BlobReference

_HASHES: Final = ".hashes"
_UNSYNCED: Final = ".unsynced"


class BlobStore:
    """The blobs of one home.

    Args:
        folder: Made with mode 0700 if it isn't there. Leftovers of `writing` from an earlier process are removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._objects = folder / "objects"
        self._staging = folder / "staging"
        self._writing = folder / "writing"
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], Staging] = {}
        self._written = 0
        shutil.rmtree(self._writing, ignore_errors=True)
        for part in (folder, self._objects, self._staging, self._writing):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        for mark in sorted(self._objects.glob(f"??/*{_UNSYNCED}")):
            _believe_or_remove(mark)

    # --- complete blobs ---------------------------------------------------------------------------------------

    def has(self, reference: BlobReference) -> bool:
        """Return whether the blob is here, complete."""
        try:
            return self._object(reference.root).stat().st_size == reference.size_bytes
        except FileNotFoundError:
            return False

    def path(self, reference: BlobReference) -> Path:
        """Return the file of a complete blob; it must not be changed.

        Raises:
            OutOfOrder: The blob isn't here, or its file hasn't the referenced size.
        """
        if not self.has(reference):
            raise OutOfOrder("CFD-L20", f"blob {reference.root[:12]} ({reference.size_bytes} bytes) isn't in the store")
        return self._object(reference.root)

    def hashes(self, reference: BlobReference) -> bytes:
        """Return the concatenated chunk hashes of a complete blob, made again from its bytes if their file is lost.

        Raises:
            OutOfOrder: The blob isn't here, or its bytes aren't those of its name any more (disk fault).
        """
        path = self.path(reference)
        for kind in (_HASHES, _UNSYNCED):
            try:
                known = _beside(path, kind).read_bytes()
                if root_of(reference.size_bytes, known) == reference.root:
                    return known
            except (FileNotFoundError, ValueError):
                continue  # made again below
        found, hashes = _hashed(path)
        if found != reference:
            raise OutOfOrder("CFD-L21", f"blob {reference.root[:12]}: the bytes on disk are not those of its name")
        if chunk_count(reference.size_bytes) > 1:
            write_durably(_beside(path, _HASHES), hashes)
        return hashes

    def read_chunks(self, reference: BlobReference, first_chunk: int) -> Iterator[bytes]:
        """Yield the chunks of a complete blob from `first_chunk`; one chunk is in memory at a time."""
        descriptor = os.open(self.path(reference), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for offset, length in spans(first_chunk, reference.size_bytes):
                yield read_at(descriptor, length, offset)
        finally:
            os.close(descriptor)

    def references(self) -> Iterator[BlobReference]:
        """Yield every complete blob, for whoever decides what may be removed."""
        for path in sorted(self._objects.glob("??/*")):
            if "." not in path.name:
                yield BlobReference(root=path.name, size_bytes=path.stat().st_size)

    def remove(self, reference: BlobReference) -> None:
        """Remove a complete blob; nothing happens if it isn't here. A transfer that reads it goes on to its end."""
        path = self._object(reference.root)
        path.unlink(missing_ok=True)
        _beside(path, _HASHES).unlink(missing_ok=True)
        _beside(path, _UNSYNCED).unlink(missing_ok=True)

    # --- making blobs -----------------------------------------------------------------------------------------

    def writer(self) -> "BlobWriter":
        """Return a writer for a new blob, to be used in a `with` block."""
        with self._lock:
            self._written += 1
            return BlobWriter(self, self._writing / f"{os.getpid()}-{self._written}")

    def put_bytes(self, data: Bytes, *, durable: bool = True) -> BlobReference:
        """Store `data` and return its reference; if not `durable`, it isn't synced, and the next process hashes it."""
        with self.writer() as writer:
            writer.write(data)
            return writer.finish(durable=durable)

    def put_file(self, path: Path) -> BlobReference:
        """Store a copy of the bytes of `path` durably and return the reference; the file stays as it is."""
        with self.writer() as writer, path.open("rb", buffering=0) as stream:
            room = bytearray(CHUNK_BYTES)
            while length := stream.readinto(room):
                writer.write(memoryview(room)[:length])
            return writer.finish()

    def adopt_file(self, path: Path) -> BlobReference:
        """Make `path` itself a blob, durably, and return the reference; the file has gone from where it was.

        Nothing is copied where the store lies on the same file system. The caller has closed the file.
        """
        with self._lock:
            self._written += 1
            taken = self._writing / f"{os.getpid()}-{self._written}"
        try:
            path.rename(taken)
        except OSError as problem:
            if problem.errno != errno.EXDEV:
                raise
            reference = self.put_file(path)
            path.unlink()
            return reference
        taken.chmod(0o600)
        reference, hashes = _hashed(taken)
        sync_file(taken)
        self._keep(taken, reference, hashes)
        return reference

    def _keep(self, temporary: Path, reference: BlobReference, hashes: bytes, *, durable: bool = True) -> None:
        """Give a file its name; durably if its bytes are synced. Equal blobs may replace each other."""
        path = self._object(reference.root)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if durable:
            if chunk_count(reference.size_bytes) > 1:  # that of one chunk is made again sooner than it is written
                write_durably(_beside(path, _HASHES), hashes)
            temporary.rename(path)
            sync_folder(path.parent)
            _beside(path, _UNSYNCED).unlink(missing_ok=True)
        elif not path.exists():
            write_durably(_beside(path, _UNSYNCED), hashes)
            sync_folder(path.parent)
            temporary.rename(path)

    def _object(self, root: str) -> Path:
        return self._objects / root[:2] / root

    # --- arriving blobs ---------------------------------------------------------------------------------------

    def open_staging(self, reference: BlobReference, hashes: bytes, *, owner: str = "self") -> "Staging":
        """Return the staging of an arriving blob, with what is already here of it.

        The same open staging is returned again while this process runs, so its chunks are verified once; after a
        restart the chunks found on disk are hashed again and the good beginning is kept.

        Args:
            reference: The blob, from a signed message.
            hashes: Its concatenated chunk hashes, from whoever sends it.
            owner: Who sends it: stagings of different owners never meet.

        Raises:
            PeerMisbehaved: The hashes don't lead to the root; nothing was written.
            InvalidInput: `owner` can't be a folder name.
        """
        if not owner or not all(letter.isalnum() or letter == "-" for letter in owner):
            raise InvalidInput("CFD-L22", "the owner of a staging must be a site id")
        with self._lock:
            known = self._open.get((owner, reference.root))
            if known is not None:
                return known
            try:
                root = root_of(reference.size_bytes, hashes)
            except ValueError:
                root = ""
            if root != reference.root:
                raise PeerMisbehaved(
                    "CFD-L23", f"blob {reference.root[:12]}: its list of hashes isn't that of its root"
                )
            folder = self._staging / owner
            folder.mkdir(mode=0o700, exist_ok=True)
            staging = Staging(self, folder / reference.root, reference, hashes, owner)
            self._open[owner, reference.root] = staging
            return staging

    def staged_chunks(self, reference: BlobReference, *, owner: str = "self") -> int:
        """Return how many good chunks of an arriving blob are here: all of them once it is complete."""
        if self.has(reference):
            return chunk_count(reference.size_bytes)
        path = self._staging / owner / reference.root
        with self._lock:
            known = self._open.get((owner, reference.root))
        if known is None:
            try:
                hashes = _beside(path, _HASHES).read_bytes()
            except FileNotFoundError:
                return 0
            if len(hashes) != chunk_count(reference.size_bytes) * HASH_BYTES:
                return 0
            known = self.open_staging(reference, hashes, owner=owner)
        return known.chunks

    def staged_bytes(self, owner: str) -> int:
        """Return how many bytes of disk the arriving blobs of `owner` may come to hold, counted by their full size."""
        folder = self._staging / owner
        if not folder.is_dir():
            return 0
        with self._lock:
            announced = {root: kept.reference.size_bytes for (who, root), kept in self._open.items() if who == owner}
        for path in folder.iterdir():
            if not path.name.endswith(_HASHES) and path.name not in announced:
                announced[path.name] = path.stat().st_size
        return sum(announced.values())

    def discard_untouched(self, since_s: float) -> int:
        """Forget every arriving blob of which nothing has come since then, and return how many.

        A sender that died, or whose job ended, never sends the rest; what it left would fill its share of the disk.

        Args:
            since_s: Seconds since 1970, in UTC, as file systems count.
        """
        newest: dict[tuple[str, str], float] = {}
        for path in self._staging.glob("*/*"):
            about = (path.parent.name, path.name.removesuffix(_HASHES))
            newest[about] = max(newest.get(about, 0.0), path.stat().st_mtime)
        stale = [about for about, touched_s in newest.items() if touched_s < since_s]
        for owner, root in stale:
            self._discard_staging(owner, root)
        return len(stale)

    def _discard_staging(self, owner: str, root: str) -> None:
        with self._lock:
            known = self._open.pop((owner, root), None)
        if known is not None:
            known.close()
        path = self._staging / owner / root
        path.unlink(missing_ok=True)
        _beside(path, _HASHES).unlink(missing_ok=True)

    def _close_staging(self, owner: str, root: str) -> None:
        with self._lock:
            self._open.pop((owner, root), None)


class BlobWriter:
    """Writes one new blob; leaving the `with` block without `finish` removes what was written."""

    def __init__(self, store: BlobStore, temporary: Path) -> None:
        self._store = store
        self._temporary = temporary
        self._hasher = BlobHasher()
        self._descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, data: Bytes) -> int:
        """Add `data`, hashed once; return its length in bytes."""
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        write_all(self._descriptor, view)
        return len(view)

    def finish(self, *, durable: bool = True) -> BlobReference:
        """Give the blob the name of its root, durably unless told otherwise, and return its reference."""
        if durable:
            os.fsync(self._descriptor)
        reference, hashes = self._hasher.finish()
        self._store._keep(self._temporary, reference, hashes, durable=durable)  # noqa: SLF001 (one noun in two classes)
        return reference

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        self._temporary.unlink(missing_ok=True)


class Staging:
    """An arriving blob: verified chunks in order. Threads may race for it; each chunk is written once."""

    def __init__(self, store: BlobStore, path: Path, reference: BlobReference, hashes: bytes, owner: str) -> None:
        self._store = store
        self._path = path
        self.reference: Final = reference
        self._hashes = hashes
        self._owner = owner
        self._lock = threading.Lock()
        self._complete = False
        write_durably(_beside(path, _HASHES), hashes, sync=False)
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._chunks = self._good_chunks(self._descriptor)
        os.ftruncate(self._descriptor, min(self._chunks * CHUNK_BYTES, reference.size_bytes))

    def _good_chunks(self, descriptor: int) -> int:
        found_bytes = os.fstat(descriptor).st_size
        for index, (offset, length) in enumerate(spans(0, self.reference.size_bytes)):
            if offset + length > found_bytes or not self._is(index, read_at(descriptor, length, offset)):
                return index
        return chunk_count(self.reference.size_bytes)

    def _is(self, index: int, chunk: Bytes) -> bool:
        return chunk_hash(chunk) == self._hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]

    @property
    def chunks(self) -> int:
        """Return how many good chunks are here."""
        return self._chunks

    @property
    def is_whole(self) -> bool:
        """Return whether every chunk is here."""
        return self._chunks == chunk_count(self.reference.size_bytes)

    def append(self, index: int, chunk: Bytes) -> None:
        """Verify and keep chunk `index`, which must be the next one.

        Raises:
            OutOfOrder: Another chunk is due (another transfer of the same blob overtook this one); nothing was kept.
            PeerMisbehaved: The chunk isn't the one that the root promises; nothing was kept.
        """
        if not 0 <= index < chunk_count(self.reference.size_bytes):
            raise PeerMisbehaved("CFD-L24", f"blob {self.reference.root[:12]} has no chunk {index}")
        _, length = chunk_span(index, self.reference.size_bytes)
        if len(chunk) != length or not self._is(index, chunk):
            raise PeerMisbehaved("CFD-L24", f"blob {self.reference.root[:12]}: chunk {index} isn't what its root says")
        with self._lock:
            if self._descriptor is None or index != self._chunks:
                raise OutOfOrder(
                    "CFD-L25", f"blob {self.reference.root[:12]}: chunk {self._chunks} is due, not {index}"
                )
            write_at(self._descriptor, chunk, index * CHUNK_BYTES)
            self._chunks += 1

    def complete(self, *, durable: bool = True) -> Path:
        """Give the whole blob its name and return its path; again the same path if it already has it.

        Args:
            durable: Whether it must survive a loss of power. If not, it isn't synced, and the next process hashes it.

        Raises:
            OutOfOrder: Chunks are missing; the staging stays.
        """
        with self._lock:
            if self._complete:
                return self._store.path(self.reference)
            if self._descriptor is None or not self.is_whole:
                raise OutOfOrder("CFD-L25", f"blob {self.reference.root[:12]}: chunk {self._chunks} is still missing")
            if durable:
                os.fsync(self._descriptor)
            self._store._keep(self._path, self.reference, self._hashes, durable=durable)  # noqa: SLF001 (one noun in two classes)
            _beside(self._path, _HASHES).unlink(missing_ok=True)
            self._complete = True
            self._close()
            return self._store.path(self.reference)

    def close(self) -> None:
        """Let go of the file; what has arrived stays on disk for the next time."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._store._close_staging(self._owner, self.reference.root)  # noqa: SLF001 (one noun in two classes)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(path.name + kind)


def _hashed(path: Path) -> tuple[BlobReference, bytes]:
    hasher = BlobHasher()
    with path.open("rb", buffering=0) as stream:
        while piece := stream.read(CHUNK_BYTES):
            hasher.update(piece)
    return hasher.finish()


def _believe_or_remove(mark: Path) -> None:
    """Look at a blob that an earlier process left unsynced: keep it if its bytes are those of its name."""
    path = mark.with_name(mark.name.removesuffix(_UNSYNCED))
    if path.exists() and _hashed(path)[0].root == path.name:
        return
    path.unlink(missing_ok=True)
    mark.unlink()
