"""Properties of the tree in tiles, against the recursions of RFC 6962."""

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import merkle, tiles
from audit.errors import ProofRefused
from tests.support.rfc6962 import Book
from tests.support.witnessed_trees import Grown

BOOK = Book.counted(70_000)
POWERS = [255, 256, 257, 65_535, 65_536, 65_537]


def check(store: Grown, size: int) -> None:
    assert store.edge.size == size
    assert store.edge.root() == BOOK.root(size)
    assert store.edge.frontier == tiles.Edge.read(store, size).frontier
    assert store.edge == tiles.Edge.read(store, size)
    assert tiles.root_from_partial_tiles(store, size) == BOOK.root(size)
    assert tuple(len(hashes) // 32 for hashes in store.edge.partial) == tiles.partial_widths(size)


def batches(size: int, lengths: Iterator[int]) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        end = min(at + next(lengths), size)
        yield at, end
        at = end


def test_every_way_to_the_root_agrees() -> None:
    store = Grown()
    frontier = merkle.Frontier()
    for size in range(1301):
        check(store, size)
        assert frontier == store.edge.frontier
        store.append([BOOK.leaf_hashes[size]])
        frontier = frontier.add(BOOK.leaf_hashes[size])
    for (level, n), hashes in store.kept.items():
        assert hashes == BOOK.tile(level, n, len(hashes) // 32)


@given(st.integers(0, 1300), st.lists(st.integers(1, 600), min_size=1, max_size=8))
def test_every_batching_gives_the_same_tiles(size: int, lengths: list[int]) -> None:
    store = Grown()
    endless = (lengths[number % len(lengths)] for number in range(size + 1))
    for start, end in batches(size, endless):
        changed = store.append(BOOK.leaf_hashes[start:end])
        assert len({(tile.level, tile.n) for tile in changed}) == len(changed)
        check(store, end)
    for (level, n), hashes in store.kept.items():
        assert hashes == BOOK.tile(level, n, tiles.tile_width(level, n, size))


@pytest.mark.parametrize("length", [1000, 65_536])
def test_roots_beside_the_powers_of_256(length: int) -> None:
    store = Grown()
    for start, end in zip([0, *POWERS[:-1]], POWERS, strict=True):
        for at in range(start, end, length):
            store.append(BOOK.leaf_hashes[at : min(at + length, end)])
        check(store, end)
    assert all(hashes == BOOK.tile(*at, len(hashes) // 32) for at, hashes in store.kept.items())


def test_growing_costs_one_node_hash_a_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def node_hash(left: bytes, right: bytes) -> bytes:
        nonlocal counted
        counted += 1
        return merkle.node_hash(left, right)

    monkeypatch.setattr(tiles, "node_hash", node_hash)
    tiles.Edge().grow(BOOK.leaf_hashes)
    assert counted <= len(BOOK.leaf_hashes)


def test_a_failed_append_leaves_the_edge_as_it_was() -> None:
    edge = tiles.Edge().grow(BOOK.leaf_hashes[:300]).edge
    root = edge.root()
    edge.grow(BOOK.leaf_hashes[300:900])
    assert (edge.size, edge.root(), tuple(map(len, edge.partial))) == (300, root, (44 * 32, 32))


@given(st.text(max_size=40) | st.from_regex(r"tile/(entries|[0-9]{1,2})/(x?[0-9]{3}/){0,4}[0-9]{1,3}(\.p/[0-9]{1,3})?"))
def test_a_path_is_read_in_its_one_form_only(path: str) -> None:
    with contextlib.suppress(ProofRefused):
        assert str(tiles.TilePath.parse(path)) == path


@pytest.mark.parametrize(
    "path",
    [
        "tile/0/x000/000",
        "tile/0/000.p/256",
        "tile/0/000.p/0",
        "tile/8/000",
        "tile/7/001",
        "tile/0/1",
        "tile/00/000",
        "",
    ],
)
def test_another_path_is_none(path: str) -> None:
    with pytest.raises(ProofRefused):
        tiles.TilePath.parse(path)


@pytest.mark.parametrize(
    ("level", "n", "width"), [(0, -1, 1), (-1, 0, 1), (8, 0, 1), (0, 0, 0), (0, 0, 257), (7, 1, 1)]
)
def test_a_tile_that_no_tree_has_has_no_path(level: int, n: int, width: int) -> None:
    with pytest.raises(ProofRefused):
        tiles.tile_path(level, n, width)
    if level == 0:
        with pytest.raises(ProofRefused):
            tiles.entries_path(n, width)


@given(st.none() | st.integers(0, 4), st.integers(0, 10**6), st.integers(1, 256))
def test_a_path_names_one_tile(level: int | None, n: int, width: int) -> None:
    assert tiles.TilePath.parse(str(tiles.TilePath(level, n, width))) == (level, n, width)


@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_a_bundle_gives_its_entries_back(leaves: list[bytes], data: st.DataObject) -> None:
    bundle = tiles.encode_entries(leaves)
    assert tiles.decode_entries(bundle, len(leaves)) == tuple(leaves)
    with pytest.raises(ProofRefused):
        tiles.decode_entries(bundle, len(leaves) + 1)
    with pytest.raises(ProofRefused):
        tiles.decode_entries(bundle + data.draw(st.binary(min_size=1, max_size=4)), len(leaves))


@given(st.binary(max_size=600), st.integers(0, 256))
def test_no_bytes_break_the_bundle_decoder(bundle: bytes, width: int) -> None:
    with contextlib.suppress(ProofRefused):
        assert tiles.encode_entries(tiles.decode_entries(bundle, width)) == bundle


def test_a_leaf_longer_than_its_length_field_is_refused() -> None:
    assert tiles.decode_entries(tiles.encode_entries([bytes(65_535)]), 1) == (bytes(65_535),)
    with pytest.raises(ProofRefused):
        tiles.encode_entries([bytes(65_536)])


def test_a_full_log_takes_no_entry() -> None:
    last = tiles.Edge(merkle.Frontier.unknown(tiles.MAX_SIZE), (bytes(32 * 255),) * 7 + (bytes(32 * 127),))
    with pytest.raises(ProofRefused):
        last.grow([bytes(32)])


def test_a_tile_says_whether_it_will_change() -> None:
    changed = tiles.Edge().grow(BOOK.leaf_hashes[:300]).tiles
    assert [(tile.level, tile.n, tile.width, tile.full) for tile in changed] == [
        (0, 0, 256, True),
        (0, 1, 44, False),
        (1, 0, 1, False),
    ]
