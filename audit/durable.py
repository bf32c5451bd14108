"""Bytes that survive the power switch: files replaced whole, folders synced, private files 0600."""

import fcntl
import os
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
# macOS keeps fsync'ed bytes in the drive's cache; only this request reaches the disk there.
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)


def sync(descriptor: int) -> None:
    """Return once all written bytes of the file are on the disk.

    Raises:
        OSError: They may not be; asking again may lie, so the caller must stop using the file.
    """
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, readable by the owner only; an existing one is left as it is."""
    if not folder.is_dir():
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        sync_folder(folder.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Make `path` hold exactly `data`, durably; a reader sees the old bytes or the new, never a mixture."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    try:
        write_all(descriptor, data)
        sync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
