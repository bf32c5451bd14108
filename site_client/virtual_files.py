"""The rows of all virtual sites of a simulation in files that every worker maps, so that they are in memory once."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from federation.edge.files import write_whole
from site_client.virtual_rows import Rows

_INDEX: Final = "sites.json"


class RowFiles:
    """The rows of all virtual sites in a folder; a site's are read by mapping, so that they cost no memory twice."""

    def __init__(self, folder: Path) -> None:
        self._index: Final[Mapping[str, tuple[int, int]]] = {
            site: (start, stop) for site, (start, stop) in json.loads((folder / _INDEX).read_bytes()).items()
        }
        self._all: Final = Rows(*(_mapped(folder, name) for name in ("features", "labels", "units", "held_out")))

    @classmethod
    def write(cls, folder: Path, parts: Iterator[tuple[str, Rows]]) -> "RowFiles":
        """Write the rows of all sites to `folder`, which is made, and return them as read from there."""
        folder.mkdir(mode=0o700)
        index: dict[str, tuple[int, int]] = {}
        every: list[Rows] = []
        start = 0
        for site, rows in parts:
            index[site] = (start, start + len(rows.labels))
            start += len(rows.labels)
            every.append(rows)
        for name in ("features", "labels", "units", "held_out"):
            np.save(folder / f"{name}.npy", np.concatenate([getattr(rows, name) for rows in every]), allow_pickle=False)
        write_whole(folder / _INDEX, json.dumps(index).encode())
        return cls(folder)

    def site(self, name: str) -> Rows:
        """Return one site's rows, copied from the mapped files."""
        start, stop = self._index[name]
        return self._all.take(np.arange(start, stop))


def _mapped(folder: Path, name: str) -> Any:
    return np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
