"""The tiles and entries of a log as files (C2SP tlog-tiles), read out of a bundle or a folder; nothing is trusted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from audit import tiles
from audit.errors import AuditError, LogUnreadable, ProofRefused
from audit.export import container
from audit.export.container import BundleFiles
from audit.tiles import HASH_BYTES, HASHES_PER_TILE, TrustedTiles

_LIMIT_BYTES: Final = HASHES_PER_TILE * (2 + tiles.MAX_LEAF_BYTES)


@dataclass(frozen=True, slots=True)
class TileFiles:
    """The tiles of a tree of `size` leaves; a `TileReader`.

    Attributes:
        files: Where they lie.
        prefix: What stands before ``tile/``.
        size: The number of leaves.
    """

    files: BundleFiles
    prefix: str
    size: int

    def _find(self, full: str, partial: str) -> bytes:
        for name in (full, partial):
            if self.prefix + name in self.files.sizes:
                try:
                    return container.read(self.files, self.prefix + name, limit_bytes=_LIMIT_BYTES)
                except LogUnreadable as torn:
                    raise ProofRefused(torn.message, code="CFD-A02") from None
        raise ProofRefused(f"{full} is missing", code="CFD-A03")

    def tile(self, level: int, n: int, width: int) -> bytes:
        """Return the first `width` hashes of a tile.

        Raises:
            ProofRefused: There is no such tile, or it has fewer hashes.
        """
        there = tiles.tile_width(level, n, self.size)
        full, partial = tiles.tile_path(level, n), tiles.tile_path(level, n, there or width)
        hashes = self._find(full, partial)
        kept = HASHES_PER_TILE if self.prefix + full in self.files.sizes else there
        if kept < width or len(hashes) != HASH_BYTES * kept:
            raise ProofRefused(f"{tiles.tile_path(level, n, width)} has another length", code="CFD-A03")
        return hashes[: HASH_BYTES * width]

    def leaves(self, n: int) -> tuple[bytes, ...]:
        """Return the entries of the bundle beside tile `n` of level 0; empty where one is blank.

        Raises:
            ProofRefused: It is missing or torn.
        """
        width = tiles.tile_width(0, n, self.size)
        full, partial = tiles.entries_path(n), tiles.entries_path(n, width)
        if self.prefix + full in self.files.sizes:
            return tiles.decode_entries(self._find(full, full), HASHES_PER_TILE)[:width]
        return tiles.decode_entries(self._find(partial, partial), width)

    def check_upper(self, tree: TrustedTiles, flaw: Callable[[str, str], None]) -> None:
        """Name every tile in the files, of whichever level, that doesn't lead to the root of `tree`."""
        begin = f"{self.prefix}tile/"
        for name in sorted(self.files.sizes):
            if not name.startswith(begin) or name.startswith(f"{begin}entries/"):
                continue
            try:
                path = tiles.TilePath.parse(name.removeprefix(self.prefix))
                level = path.level or 0
                width = min(path.width, tiles.tile_width(level, path.n, self.size))
                if width and self.tile(level, path.n, width) != tree.tile(level, path.n, width):
                    flaw(name, "isn't the tile of the signed tree")
            except AuditError as refused:
                flaw(name, refused.message)
