"""The files of a bundle or a tile directory, read out of a zip or a folder that somebody else made.

Names are ASCII and lead nowhere else; links, devices, names that differ in case alone, encryption, overlapping members
and members that grow without measure are refused before anything is inflated. Nothing is ever unpacked onto the disk.
"""

import contextlib
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Protocol

from audit.errors import LogUnreadable
from audit.export.bundle import is_name

MAX_FILES: Final = 4_000_000
MAX_TOTAL_BYTES: Final = 64 << 30
MAX_RATIO: Final = 250
"""How many times its compressed size a member may have, above `FREE_BYTES`; deflate can give a thousand."""
FREE_BYTES: Final = 1 << 20
MAX_READ_BYTES: Final = 256 << 20
_HINT: Final = "ask for a new export; never unpack this one"


class BundleFiles(Protocol):
    """Files by name, of which each can be read more than once."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes, by name."""
        ...

    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Give the bytes of a file as a stream.

        Raises:
            LogUnreadable: It can't be read.
        """
        ...


def read(files: BundleFiles, name: str, *, limit_bytes: int = MAX_READ_BYTES) -> bytes:
    """Return the bytes of one file, empty where there is none.

    Raises:
        LogUnreadable: It can't be read, or is longer than `limit_bytes`.
    """
    size = files.sizes.get(name)
    if size is None:
        return b""
    if size > limit_bytes:
        raise LogUnreadable(f"{name} has {size} bytes, at most {limit_bytes}", hint=_HINT)
    with files.open(name) as stream:
        return stream.read(limit_bytes + 1)


class _Zip:
    def __init__(self, archive: zipfile.ZipFile, size_bytes: int) -> None:
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        packed = 0
        for member in archive.infolist():
            packed += member.compress_size
            if member.is_dir() and is_name(member.filename.rstrip("/")) and member.file_size == 0:
                continue
            _check_member(member)
            if member.filename in self._members:
                raise LogUnreadable(f"the zip holds {member.filename} twice", hint=_HINT)
            self._members[member.filename] = member
        self.sizes = {name: member.file_size for name, member in self._members.items()}
        if packed > size_bytes:  # members that share bytes inflate to more than the file could hold
            raise LogUnreadable("members of the zip overlap", hint=_HINT)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(self._members[name]) as stream:
                yield stream
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, KeyError):
            raise LogUnreadable(f"{name} can't be read out of the zip: it is torn or altered", hint=_HINT) from None


def _check_member(member: zipfile.ZipInfo) -> None:
    name, mode = member.filename, member.external_attr >> 16
    if not is_name(name) or member.orig_filename != name:
        raise LogUnreadable(f"the zip has a member with a name that no bundle has: {name[:60]!r}", hint=_HINT)
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise LogUnreadable(f"{name} in the zip is a link or no file", hint=_HINT)
    if member.flag_bits & 0x1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise LogUnreadable(f"{name} in the zip is encrypted, or compressed in another way", hint=_HINT)
    if member.file_size > FREE_BYTES and member.file_size > MAX_RATIO * member.compress_size:
        raise LogUnreadable(f"{name} would grow to {member.file_size} bytes", hint=_HINT)


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.sizes: dict[str, int] = {}
        self._gather(root, "", 0)

    def _gather(self, folder: Path, prefix: str, depth: int) -> None:
        if depth > 12:
            raise LogUnreadable(f"{folder} lies too deep", hint=_HINT)
        for path in sorted(folder.iterdir()):
            name, mode = prefix + path.name, path.lstat().st_mode
            if stat.S_ISDIR(mode):
                self._gather(path, name + "/", depth + 1)
            elif not stat.S_ISREG(mode):
                raise LogUnreadable(f"{name[:100]!r} is a link or no file", hint=_HINT)
            elif not is_name(name):
                raise LogUnreadable(f"a file with a name that no bundle has: {name[:60]!r}", hint=_HINT)
            else:
                self.sizes[name] = path.lstat().st_size
                if len(self.sizes) > MAX_FILES:
                    raise LogUnreadable(f"more than {MAX_FILES} files", hint=_HINT)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with (self._root / name).open("rb") as stream:
                yield stream
        except OSError as error:
            raise LogUnreadable(f"{name} can't be read: {error.strerror}") from None


@contextlib.contextmanager
def open_files(path: Path) -> Iterator[BundleFiles]:
    """Give the files in `path`, a zip or a folder.

    Raises:
        LogUnreadable: It can't be opened, or holds what no bundle holds.
    """
    with contextlib.ExitStack() as stack:
        try:
            if path.is_dir():
                found = _checked(_Folder(path))
            else:
                archive = stack.enter_context(zipfile.ZipFile(path))
                found = _checked(_Zip(archive, path.stat().st_size))
        except (zipfile.BadZipFile, NotImplementedError, ValueError):
            raise LogUnreadable(f"{path} is not a zip, or a torn one", hint=_HINT) from None
        except OSError as error:
            raise LogUnreadable(f"{path} can't be read: {error.strerror}") from None
        yield found


def _checked(files: BundleFiles) -> BundleFiles:
    sizes = files.sizes
    if len(sizes) > MAX_FILES or sum(sizes.values()) > MAX_TOTAL_BYTES:
        raise LogUnreadable(f"more than {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes", hint=_HINT)
    if len({name.lower() for name in sizes}) != len(sizes):
        raise LogUnreadable("two names differ in case alone", hint=_HINT)
    return files
