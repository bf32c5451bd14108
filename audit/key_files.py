"""Private keys in files that only their owner can read; the text form of Go's sumdb/note.

PRIVATE+KEY+<name>+<hex key id>+<base64( type ‖ seed )>
"""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from audit import durable, note
from audit.errors import NoteRefused, SettingsUnsafe

_PREFIX: Final = "PRIVATE+KEY+"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def private_text(key: note.VerifierKey, seed: bytes) -> bytes:
    """Return what the file of a private key holds."""
    return f"{_PREFIX}{key.name}+{key.id.hex()}+{note.encode_base64(bytes([key.kind]) + seed)}\n".encode()


def create_key(path: Path, name: str, random_bytes: Callable[[int], bytes]) -> note.Ed25519Signer:
    """Return a new Ed25519 key under `name`, durable at `path` with mode 0600."""
    seed = random_bytes(32)
    signer = note.Ed25519Signer(name, seed)
    durable.replace_file(path, private_text(signer.key, seed))
    return signer


def read_private(path: Path) -> bytes:
    """Return the bytes of a private file.

    Raises:
        SettingsUnsafe: The file is missing, or others than its owner may touch it.
    """
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        raise SettingsUnsafe(
            f"key file {path.name} can't be read: {error.strerror}",
            code="CFD-A10",
            hint="restore the key, or begin a new epoch of the log",
        ) from None
    if mode & _OTHERS:
        raise SettingsUnsafe(
            f"key file {path.name} has mode {stat.S_IMODE(mode):04o}, allowed 0600", hint=f"chmod 600 {path.name}"
        )
    return data


def read_key(path: Path, name: str, kind: int = note.ED25519) -> note.Ed25519Signer:
    """Return the key at `path`, which must be the one named `name`, and of this type.

    Raises:
        SettingsUnsafe: Missing, readable by others, malformed, of another type, or under another name.
    """
    wrong = SettingsUnsafe(
        f"key file {path.name} doesn't hold the key {name}",
        code="CFD-A10",
        hint="restore the key, or begin a new epoch of the log",
    )
    parts = read_private(path).decode("ascii", "replace").removesuffix("\n").removeprefix(_PREFIX).split("+", 2)
    if len(parts) != 3 or parts[0] != name:
        raise wrong
    try:
        data = note.decode_base64(parts[2])
    except NoteRefused:
        raise wrong from None
    if len(data) != 33 or data[0] != kind:
        raise wrong
    signer = note.Ed25519Signer(name, data[1:], kind)
    if signer.key.id.hex() != parts[1]:
        raise wrong
    return signer
