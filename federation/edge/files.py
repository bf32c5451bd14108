"""Files of a home: made private, written whole, read with care.

Rules: folders are 0700 and files 0600 from their first moment; a file is either the old one or the new one, on disk,
after a crash (temporary name, fsync, rename, fsync of the folder); a private key that other accounts may read is
refused; what can't be written is said with the account that tried and the account that owns.
"""

import errno
import fcntl
import os
import pwd
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from federation.errors import ConfideError, ConfigurationWrong, InvalidInput

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
MAX_SMALL_FILE_BYTES: Final = 16 << 20


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _owner(path: Path) -> str:
    for place in (path, *path.parents):
        try:
            return _account(place.stat().st_uid)
        except OSError:
            continue
    return "unknown"


def cannot_write(path: Path, problem: OSError) -> ConfideError:
    """Return the error that says which account can't write `path`, and who owns it (or its nearest folder)."""
    if problem.errno == errno.EROFS:
        why, hint = "read-only file system", "mount it writable, or choose another --home"
    elif problem.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"cannot write {path}: the disk of {_mount_of(path)} is full"
        return ConfigurationWrong("CFD-G08", text, hint="free some space, and run this again")
    else:
        why, hint = problem.strerror or "not allowed", "change the owner or the permissions, or choose another --home"
    return ConfigurationWrong(
        "CFD-G04", f"cannot write {path} (uid {os.geteuid()}, owner {_owner(path)}): {why}", hint=hint
    )


def _mount_of(path: Path) -> Path:
    place = next((found for found in (path, *path.parents) if found.exists()), Path("/")).resolve()
    while not place.is_mount():
        place = place.parent
    return place


def make_folder(path: Path) -> Path:
    """Make `path` and its missing parents, each 0700 from its first moment; an existing folder is left as it is.

    Raises:
        ConfigurationWrong: A folder can't be made, or a file stands in the way.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        try:
            place.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            pass
        except OSError as problem:
            raise cannot_write(place, problem) from problem
    if not path.is_dir():
        raise cannot_write(path, NotADirectoryError(errno.ENOTDIR, "a file stands in the way"))
    return path


def sync_folder(path: Path) -> None:
    """Make renames and removals in the folder `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, *, mode: int = FILE_MODE, replace: bool = True) -> None:
    """Write `content` to `path` durably: after a crash the file is the old one or the new one, never a part.

    Args:
        path: The file; its folder exists.
        content: All of its bytes.
        mode: Permissions, in force from the first moment.
        replace: False refuses an existing file, without a gap in which another process could make it.

    Raises:
        InvalidInput: `replace` is False and the file exists; it is unchanged.
        ConfigurationWrong: Not writable; an existing file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except FileExistsError:
        raise InvalidInput("CFD-C08", f"{path} exists already, and is not overwritten") from None
    except OSError as problem:
        raise cannot_write(path, problem) from problem


def remove_file(path: Path) -> None:
    """Remove `path`, if it is there, durably."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as problem:
        raise cannot_write(path, problem) from problem


def read_bytes(path: Path, *, limit_bytes: int = MAX_SMALL_FILE_BYTES) -> bytes:
    """Return the content of a small file of this home.

    Raises:
        ConfigurationWrong: Missing, not readable, or larger than `limit_bytes`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as problem:
        if problem.errno == errno.ENOENT:
            raise ConfigurationWrong("CFD-G04", f"cannot read {path}: there is no such file") from problem
        raise ConfigurationWrong(
            "CFD-G04",
            f"cannot read {path} (uid {os.geteuid()}, owner {_owner(path)}): {problem.strerror or 'not allowed'}",
        ) from problem
    if len(content) > limit_bytes:
        raise ConfigurationWrong("CFD-G04", f"{path} is larger than {limit_bytes} bytes")
    return content


def read_input(path: Path, *, limit_bytes: int = MAX_SMALL_FILE_BYTES) -> bytes:
    """Return the content of a small file that somebody named on the command line.

    Raises:
        InvalidInput: Missing, not readable, or larger than `limit_bytes`.
    """
    try:
        return read_bytes(path, limit_bytes=limit_bytes)
    except ConfigurationWrong as problem:
        raise InvalidInput("CFD-G07", problem.message) from None


def read_text_input(path: Path, *, limit_bytes: int = MAX_SMALL_FILE_BYTES) -> str:
    """Return the text of a small UTF-8 file that somebody named on the command line, without a byte-order mark.

    Raises:
        InvalidInput: As `read_input`, or the file isn't UTF-8.
    """
    return decode_input(read_input(path, limit_bytes=limit_bytes), path.name)


def decode_input(data: bytes, name: str) -> str:
    """Return `data` as text, without a byte-order mark.

    Raises:
        InvalidInput: It isn't UTF-8; the message has the place.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"{name}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8"
        raise InvalidInput("CFD-P01", text, hint="save the file as UTF-8") from None


def read_secret(path: Path) -> bytes:
    """Return the content of a file that only this account may read.

    Raises:
        ConfigurationWrong: Missing, not readable, or open to other accounts (then nothing is read).
    """
    try:
        found = path.stat()
    except OSError:
        return read_bytes(path)
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise ConfigurationWrong(
            "CFD-C05",
            f"{path} is open to other accounts (mode {mode:04o}, allowed 0600)",
            hint=f"chmod 600 {path}",
        )
    return read_bytes(path)


class HomeLock:
    """The right to be the one process that works in a home; it ends with the process, however that ends.

    The lock is the kernel's (`flock`) on the file `lock`, so a dead process keeps nothing. The file holds the process
    id of the holder for people; it is never trusted.
    """

    def __init__(self, home: Path, *, name: str = "lock") -> None:
        self._path = home / name
        self._descriptor: int | None = None

    def acquire(self) -> Self:
        """Take the lock at once.

        Raises:
            ConfigurationWrong: Another process has it, or the file can't be written.
        """
        if self._descriptor is not None:
            return self
        make_folder(self._path.parent)
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as problem:
            raise cannot_write(self._path, problem) from problem
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise ConfigurationWrong(
                "CFD-G03", f"{who} already uses {self._path.parent}", hint="stop it, or use another --home"
            ) from None
        except OSError as problem:
            os.close(descriptor)
            raise cannot_write(self._path, problem) from problem
        os.ftruncate(descriptor, 0)
        try:
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError as problem:
            os.close(descriptor)
            raise cannot_write(self._path, problem) from problem
        self._descriptor = descriptor
        return self

    def release(self) -> None:
        """Give the lock back; again is harmless."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
