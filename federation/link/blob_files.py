"""Files as blobs need them: read and written whole, at a place, and synced. What none of it does: names and hashes."""

import os
import threading
from pathlib import Path

from federation.errors import OutOfOrder
from federation.link.chunks import Bytes


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Return `length` bytes from `offset`.

    Raises:
        OutOfOrder: The file ends before.
    """
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            raise OutOfOrder("CFD-L21", "a blob on disk ended before its size")
        data += more
    return data


def write_at(descriptor: int, data: Bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def write_all(descriptor: int, view: memoryview) -> None:
    """Write all of `view` where the file stands."""
    while view:
        view = view[os.write(descriptor, view) :]


def write_durably(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Give `path` these bytes, all or none of them; synced unless told otherwise. Its folder is not synced."""
    temporary = path.with_name(f"{path.name}.{threading.get_ident()}.part")
    with temporary.open("wb", buffering=0) as stream:
        write_all(stream.fileno(), memoryview(data))
        if sync:
            os.fsync(stream.fileno())
    temporary.rename(path)


def sync_file(path: Path) -> None:
    """Return once the bytes of `path` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Return once the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
