"""The encoded rows of a version, kept in the home so that a trainer doesn't parse the files anew in every round.

One safetensors file for each version, ``data/<name>/<version>.safetensors``, 0600, written whole; beside it a small
file with its SHA-256, contract and size. The files of the institution are not touched. What is here is people's data:
it never leaves the home, and goes when the data set is retired.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from federation.edge.files import cannot_write, make_folder, write_whole
from federation.errors import CheckFailed
from site_client.data.intake import Prepared

FOLDER: Final = "data"
DAMAGED: Final = "CFD-D23"
REPLACED: Final = "CFD-D28"


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A version's encoded rows and the digest of the contract that they were encoded under."""

    contract_digest: str
    prepared: Prepared


def store_rows(home: Path, name: str, version: str, contract_digest: str, prepared: Prepared) -> Path:
    """Write the encoded rows of a version, durable on return; again is harmless."""
    from safetensors.numpy import save

    folder = make_folder(home / FOLDER / name)
    content = save(
        {
            "features": prepared.features,
            "labels": prepared.labels,
            "units": prepared.units,
            "held_out": prepared.held_out.astype(np.uint8),
        }
    )
    path = folder / f"{version}.safetensors"
    write_whole(path, content)
    facts = {"sha256": sha256(content).hexdigest(), "contract": contract_digest, "version": version}
    # Last, so that a file without it is one that was cut off.
    write_whole(folder / f"{version}.json", json.dumps(facts).encode())
    return path


def load_rows(home: Path, name: str, version: str) -> StoredRows:
    """Return the encoded rows of a version, their hash checked.

    Raises:
        CheckFailed: They were taken away because somebody opted out (CFD-D28), or are missing or damaged (CFD-D23);
            `confide site data verify NAME` makes those of the newest version again from the files.
    """
    from safetensors.numpy import load

    folder = home / FOLDER / name
    if _is_replaced(folder / f"{version}.json"):
        raise CheckFailed(REPLACED, f"version {version[:12]} of data set {name} was replaced: somebody in it opted out")
    try:
        facts = json.loads((folder / f"{version}.json").read_bytes())
        content = (folder / f"{version}.safetensors").read_bytes()
        sound = sha256(content).hexdigest() == facts["sha256"] and facts["version"] == version
        contract_digest = str(facts["contract"])
    except (OSError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise CheckFailed(DAMAGED, f"the prepared rows of data set {name} are missing or damaged")
    arrays = load(content)
    held_out = arrays["held_out"].astype(np.bool_)
    return StoredRows(contract_digest, Prepared(arrays["features"], arrays["labels"], arrays["units"], held_out))


def _is_replaced(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes()) == _REPLACED)
    except (OSError, ValueError):
        return False


_REPLACED: Final = {"replaced": True}


def replace_rows(home: Path, name: str, versions: Iterable[str]) -> None:
    """Take the encoded rows of `versions` away for good: whoever opens one of them is told that it was replaced.

    Raises:
        ConfigurationWrong: The folder of this home can't be changed.
    """
    folder = make_folder(home / FOLDER / name)
    for version in versions:
        write_whole(folder / f"{version}.json", json.dumps(_REPLACED).encode())
        try:
            (folder / f"{version}.safetensors").unlink(missing_ok=True)
        except OSError as problem:
            raise cannot_write(folder, problem) from problem


def is_sound(home: Path, name: str, version: str) -> bool:
    """Return whether the encoded rows of a version are there and undamaged."""
    try:
        load_rows(home, name, version)
    except CheckFailed:
        return False
    return True


def remove_rows(home: Path, name: str) -> None:
    """Remove all encoded rows of a data set, if there are any.

    Raises:
        ConfigurationWrong: The folder of this home can't be changed.
    """
    folder = home / FOLDER / name
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as problem:
        raise cannot_write(folder, problem) from problem
