"""Where an export goes on the disk: a zip or a folder that has its name only once it is whole.

Files are the owner's alone. What was begun under a temporary name and not finished is removed.
"""

import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from audit import durable
from audit.errors import LogUnreadable

_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # a bundle says when by its checkpoint, not by its files
_MODE: Final = 0o600 << 16


class Outgoing:
    """A zip, where the name ends so, or a folder; use it as a context and call `finish` once it may be handed over."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise LogUnreadable(f"{path} is there already", hint="name a file that isn't")
        self._path = path
        self._begun = path.with_name(f".{path.name}.part")
        self._archive: zipfile.ZipFile | None = None
        self.form: Final = "zip" if path.suffix == ".zip" else "folder"

    def __enter__(self) -> Self:
        try:
            self._remove()
            if self.form == "zip":
                self._begun.touch(mode=durable.PRIVATE_FILE)
                self._archive = zipfile.ZipFile(self._begun, "w", zipfile.ZIP_DEFLATED)
            else:
                self._begun.mkdir(mode=durable.PRIVATE_FOLDER)
        except OSError as error:
            raise LogUnreadable(f"{self._path} can't be written: {error.strerror}") from None
        return self

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write one file."""
        if self._archive is not None:
            member = zipfile.ZipInfo(name, _LONG_AGO)
            member.external_attr, member.compress_type = _MODE, zipfile.ZIP_DEFLATED
            with self._archive.open(member, "w", force_zip64=True) as stream:
                for piece in pieces:
                    stream.write(piece)
            return
        target = self._begun / name
        target.parent.mkdir(mode=durable.PRIVATE_FOLDER, parents=True, exist_ok=True)
        target.touch(mode=durable.PRIVATE_FILE)
        with target.open("wb") as file:
            for piece in pieces:
                file.write(piece)

    def finish(self) -> None:
        """Give what was written its name."""
        if self._archive is not None:
            self._archive.close()
            self._archive = None
            with self._begun.open("rb") as file:
                durable.sync(file.fileno())
        self._begun.rename(self._path)
        durable.sync_folder(self._path.parent)

    def __exit__(self, *_: object) -> None:
        if self._archive is not None:
            self._archive.close()
        self._remove()

    def _remove(self) -> None:
        if self._begun.is_dir():
            shutil.rmtree(self._begun)
        else:
            self._begun.unlink(missing_ok=True)
