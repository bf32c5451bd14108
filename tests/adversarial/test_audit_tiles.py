"""Whoever writes to the tiles of a log can't make a reader take one that the signed root doesn't cover."""

from collections.abc import Iterator
from functools import cache

import pytest

from audit import tiles
from audit.errors import ProofRefused
from tests.support.rfc6962 import Book

BOOK = Book.counted(70_000)
SIZES = [257, 511, 512, 65_537, 66_000, 70_000]
Place = tuple[int, int]


@cache
def honest(size: int) -> dict[Place, bytes]:
    return {(tile.level, tile.n): tile.hashes for tile in tiles.Edge().grow(BOOK.leaf_hashes[:size]).tiles}


class Forged:
    """The tiles of a log of `size` entries, some of them replaced."""

    def __init__(self, size: int, replaced: dict[Place, bytes]) -> None:
        self.size = size
        self.replaced = replaced

    def tile(self, level: int, n: int, width: int) -> bytes:
        return self.replaced.get((level, n), honest(self.size)[level, n])[: 32 * width]


def flipped(hashes: bytes, at: int = -1) -> bytes:
    forged = bytearray(hashes)
    forged[at] ^= 1
    return bytes(forged)


def places(size: int) -> Iterator[Place]:
    """All upper tiles; of level 0 the first and last, those at the seams of the subtrees, and some between."""
    last = (size - 1) // 256
    chosen = {0, 1, 2, 5, 100, 255, 256, 257, 258, last - 1, last}
    yield from ((level, n) for level, n in honest(size) if level or n in chosen)


def refused(trusted: tiles.TrustedTiles, place: Place, width: int) -> None:
    with pytest.raises(ProofRefused) as info:
        trusted.tile(*place, width)
    assert info.value.code == "CFD-A03"


def check_refused(size: int, replaced: dict[Place, bytes], place: Place) -> None:
    """Refuse `place` read alone, and after every honest tile that can be read."""
    width = tiles.tile_width(*place, size)
    root = BOOK.root(size)
    if width < 256:  # a partial tile is part of the root
        with pytest.raises(ProofRefused):
            tiles.TrustedTiles(Forged(size, replaced), size, root)
        return
    refused(tiles.TrustedTiles(Forged(size, replaced), size, root), place, width)
    warm = tiles.TrustedTiles(Forged(size, replaced), size, root)
    for other in honest(size):
        if other not in replaced and not above(place, other):
            try:
                warm.tile(*other, tiles.tile_width(*other, size))
            except ProofRefused:
                assert any(above(other, forged) for forged in replaced), "an honest tile was refused"
    refused(warm, place, width)
    refused(warm, place, 1)


def above(lower: Place, upper: Place) -> bool:
    return upper[0] > lower[0] and lower[1] >> 8 * (upper[0] - lower[0]) == upper[1]


@pytest.mark.parametrize("size", SIZES)
def test_a_forged_tile_of_any_level_is_refused(size: int) -> None:
    for place in places(size):
        check_refused(size, {place: flipped(honest(size)[place])}, place)


@pytest.mark.parametrize("size", SIZES)
def test_a_tile_made_to_fit_an_altered_entry_is_refused(size: int) -> None:
    altered = Book(BOOK.leaf_hashes[:size])
    altered.leaf_hashes[3] = bytes(32)
    forged = altered.tile(0, 0, 256)
    check_refused(size, {(0, 0): forged}, (0, 0))
    # …and with every full tile above it made to fit as well
    replaced = {(0, 0): forged}
    level = 1
    while tiles.tile_width(level, 0, size) == 256:
        replaced[level, 0] = altered.tile(level, 0, 256)
        level += 1
    check_refused(size, replaced, (0, 0))
    # …and the partial tile at the top, too: then the root isn't the signed one
    replaced[level, 0] = altered.tile(level, 0, tiles.tile_width(level, 0, size))
    with pytest.raises(ProofRefused, match="don't give the root"):
        tiles.TrustedTiles(Forged(size, replaced), size, BOOK.root(size))


@pytest.mark.parametrize("size", SIZES)
def test_every_honest_tile_is_taken(size: int) -> None:
    trusted = tiles.TrustedTiles(Forged(size, {}), size, BOOK.root(size), kept_tiles=3)
    for (level, n), hashes in [*honest(size).items(), *list(honest(size).items())[-3:]]:
        assert trusted.tile(level, n, tiles.tile_width(level, n, size)) == hashes
        assert trusted.tile(level, n, 1) == hashes[:32]


@pytest.mark.parametrize(
    ("level", "n", "width"),
    [(0, 3, 1), (0, 2, 1), (0, 1, 256), (0, 0, 0), (0, 0, 257), (1, 0, 3), (2, 0, 1), (-1, 0, 1), (0, -1, 1)],
)
def test_a_tile_that_the_tree_does_not_have_is_refused(level: int, n: int, width: int) -> None:
    trusted = tiles.TrustedTiles(Forged(511, {}), 511, BOOK.root(511))
    with pytest.raises(ProofRefused):
        trusted.tile(level, n, width)


def test_a_torn_tile_is_refused() -> None:
    torn = {(0, 0): honest(600)[0, 0][:-1]}
    trusted = tiles.TrustedTiles(Forged(600, torn), 600, BOOK.root(600))
    with pytest.raises(ProofRefused, match="tile/0/000 has 8191 bytes"):
        trusted.tile(0, 0, 256)
    with pytest.raises(ProofRefused, match="tile/1/000"):
        tiles.TrustedTiles(Forged(600, {(1, 0): b""}), 600, BOOK.root(600))
