"""Properties of proofs: the recursions of RFC 6962 give them, and nothing else checks."""

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import proofs, tiles
from audit.errors import NoteRefused, ProofRefused
from audit.proof_file import ProofFile
from audit.witness import AddCheckpoint
from tests.support.rfc6962 import Book
from tests.support.witnessed_trees import Grown, cosigned, opened, signed, witness_signer

BOOK = Book.counted(70_000)
LOG = Grown(BOOK.leaf_hashes)
SIZES = st.integers(1, 1300) | st.integers(65_530, 65_542) | st.integers(1, 70_000)


def holds(index: int, size: int, proof: Sequence[bytes], leaf_hash: bytes, root: bytes) -> bool:
    try:
        proofs.check_inclusion_under_root(leaf_hash, index, size, proof, root)
    except ProofRefused:
        return False
    return True


def grew(old_size: int, size: int, proof: Sequence[bytes], old_root: bytes, root: bytes) -> bool:
    try:
        proofs.check_consistency_of_roots(old_size, old_root, size, root, proof)
    except ProofRefused:
        return False
    return True


def test_all_proofs_of_small_trees_are_those_of_the_recursions() -> None:
    for size in range(1, 70):
        trusted = tiles.TrustedTiles(LOG, size, BOOK.root(size))
        for index in range(size):
            proof = proofs.prove_inclusion(trusted, index, size)
            assert list(proof) == BOOK.path(index, 0, size)
            assert holds(index, size, proof, BOOK.leaf_hashes[index], BOOK.root(size))
        for old_size in range(1, size + 1):
            proof = proofs.prove_consistency(trusted, old_size, size)
            assert list(proof) == BOOK.proof(old_size, size)
            assert grew(old_size, size, proof, BOOK.root(old_size), BOOK.root(size))


@given(SIZES, st.data())
def test_all_proofs_are_those_of_the_recursions(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    old_size = data.draw(st.integers(1, size))
    assert list(proofs.prove_inclusion(LOG, index, size)) == BOOK.path(index, 0, size)
    assert list(proofs.prove_consistency(LOG, old_size, size)) == BOOK.proof(old_size, size)
    assert proofs.root_at(LOG, size) == BOOK.root(size)


def altered(proof: Sequence[bytes], data: st.DataObject) -> list[bytes]:
    """The proof with one bit, the order, or the length changed."""
    hashes = list(proof)
    kinds = (
        ["longer"] if not hashes else ["bit", "shorter", "longer", "torn", *(["order"] if len(set(hashes)) > 1 else [])]
    )
    kind = data.draw(st.sampled_from(kinds))
    at = data.draw(st.integers(0, max(len(hashes) - 1, 0)))
    match kind:
        case "bit":
            bit = data.draw(st.integers(0, 255))
            hashes[at] = (int.from_bytes(hashes[at], "big") ^ 1 << bit).to_bytes(32, "big")
        case "shorter":
            del hashes[at]
        case "longer":
            hashes.insert(data.draw(st.integers(0, len(hashes))), data.draw(st.sampled_from([bytes(32), *hashes])))
        case "torn":
            hashes[at] = hashes[at][:-1]
        case "order":
            hashes = data.draw(st.permutations(hashes).filter(lambda other: other != hashes))
    return hashes


@given(SIZES, st.data())
def test_only_the_true_proof_checks(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    leaf_hash, root = BOOK.leaf_hashes[index], BOOK.root(size)
    proof = proofs.prove_inclusion(LOG, index, size)
    assert holds(index, size, proof, leaf_hash, root)
    assert not holds(index, size, altered(proof, data), leaf_hash, root)
    assert not holds(index, size, proof, bytes(32), root)
    assert not holds(index, size, proof, leaf_hash, bytes(32))
    assert not holds(data.draw(st.integers(-1, size + 1).filter(lambda at: at != index)), size, proof, leaf_hash, root)
    old_size = data.draw(st.integers(0, size))
    old_root = BOOK.root(old_size)
    growth = proofs.prove_consistency(LOG, old_size, size)
    assert grew(old_size, size, growth, old_root, root)
    assert not grew(old_size, size, altered(growth, data), old_root, root)
    assert not grew(old_size, size, growth, bytes(32), root)
    assert old_size == 0 or not grew(old_size, size, growth, old_root, bytes(32))
    assert not grew(old_size, old_size - 1, growth, old_root, root)
    if old_size:
        other_size = data.draw(st.integers(1, size).filter(lambda one: one != old_size) if size > 1 else st.just(2))
        assert not grew(other_size, size, growth, old_root, root)


@given(SIZES, st.integers(1, 70_000), st.data())
def test_a_proof_under_another_size_does_not_check(size: int, other: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    proof = proofs.prove_inclusion(LOG, index, size)
    if other != size:
        assert not holds(index, other, proof, BOOK.leaf_hashes[index], BOOK.root(other))


def test_an_empty_tree_grows_into_any_and_is_one_only() -> None:
    empty = BOOK.root(0)
    assert grew(0, 0, [], empty, empty)
    assert grew(0, 9, [], empty, BOOK.root(9))
    assert not grew(0, 0, [], empty, bytes(32))
    assert not grew(0, 0, [], bytes(32), bytes(32))
    assert not grew(0, 9, [bytes(32)], empty, BOOK.root(9))
    assert not grew(9, 9, [bytes(32)], BOOK.root(9), BOOK.root(9))


@pytest.mark.parametrize(("index", "size"), [(0, 0), (5, 5), (-1, 5), (0, 1 << 63)])
def test_no_proof_is_made_of_an_entry_that_is_not_there(index: int, size: int) -> None:
    with pytest.raises(ProofRefused):
        proofs.prove_inclusion(LOG, index, size)


@pytest.mark.parametrize(("old_size", "size"), [(6, 5), (-1, 5), (1, 1 << 63)])
def test_no_proof_is_made_of_a_log_that_shrank(old_size: int, size: int) -> None:
    with pytest.raises(ProofRefused):
        proofs.prove_consistency(LOG, old_size, size)


@given(st.binary(max_size=400) | st.text(max_size=300).map(str.encode))
def test_no_bytes_break_the_decoders_of_proofs(tail: bytes) -> None:
    for parse in (AddCheckpoint.parse, ProofFile.parse):
        for head in (b"", b"old 3\n", b"c2sp.org/tlog-proof@v1\n", b"c2sp.org/tlog-proof@v1\nindex 2\n"):
            with contextlib.suppress(NoteRefused):
                assert bytes(parse(head + tail)) == head + tail


@given(st.integers(0, 2**63 - 2), st.lists(st.binary(min_size=32, max_size=32), max_size=63), st.data())
def test_a_proof_on_paper_has_one_form(number: int, hashes: list[bytes], data: st.DataObject) -> None:
    root = opened(cosigned(signed(7, BOOK.root(7)), witness_signer("hungary")))
    leaf = data.draw(st.none() | st.binary(min_size=1, max_size=300))
    for made in (ProofFile(number, tuple(hashes), root, leaf), AddCheckpoint(number, tuple(hashes), root)):
        encoded = bytes(made)
        again = type(made).parse(encoded)
        assert bytes(again) == encoded
        flipped = bytearray(encoded)
        flipped[data.draw(st.integers(0, encoded.index(b"\n\n")))] ^= data.draw(st.integers(1, 127))
        with contextlib.suppress(NoteRefused):
            assert bytes(type(made).parse(bytes(flipped))) == bytes(flipped)
