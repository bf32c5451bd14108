"""Field, shares, keys, trees, parameters and the graph, at their edges."""

import pickle
from itertools import combinations, product

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from privacy.secagg import field, keys, shamir
from privacy.secagg.deal_tree import root_from, tree_paths
from privacy.secagg.errors import CAUSES, OutOfOrder, SumRefused
from privacy.secagg.graph import Ring
from privacy.secagg.parameters import Parameters, check, derive
from privacy.secagg.secret import Secret
from tests.support.secure_sums import InsecureSeededRandom


class Zeros:
    """A source whose first draws are out of the field."""

    def __init__(self, *draws: bytes) -> None:
        self.draws = list(draws)

    def take(self, count: int) -> bytes:
        return self.draws.pop(0) if self.draws else bytes(count)


def code_of(refused: pytest.ExceptionInfo[SumRefused]) -> str:
    return refused.value.code


def test_a_secret_shows_nothing_compares_in_constant_time_and_is_gone_once_wiped() -> None:
    secret = Secret.draw(InsecureSeededRandom("x"))
    assert repr(secret) == "Secret(<hidden>)" == str(secret)
    assert secret == Secret(bytes(secret.reveal()))
    assert secret != Secret(bytes(32))
    assert secret != bytes(secret.reveal())
    bytes_inside = secret.reveal()
    secret.wipe()
    assert secret.spent
    assert bytes_inside == bytes(32)
    with pytest.raises(ValueError, match="wiped"):
        secret.reveal()
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        hash(secret)


def test_every_refusal_has_a_code_of_the_table_and_a_hint() -> None:
    refusal = SumRefused("E_COHORT", "two sites, the quorum is 3")
    assert str(refusal) == "E_COHORT: two sites, the quorum is 3\nhint: open a new attempt"
    assert refusal.hint == CAUSES["E_COHORT"][1]
    assert OutOfOrder("late").code == "E_PHASE"
    with pytest.raises(KeyError):
        SumRefused("E_NOTHING", "")


def test_a_big_endian_host_is_refused() -> None:
    with pytest.raises(ImportError, match="little-endian"):
        field.require_little_endian("big")


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_words_stand_for_centred_integers(bits: int) -> None:
    values = np.array([0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))], dtype=np.int64)
    assert field.centred(field.to_words(values, bits)).tolist() == values.tolist()


def test_chunks_cover_a_vector_exactly() -> None:
    assert [field.chunk_span(index, 65_537) for index in range(field.chunk_count(65_537))] == [
        (0, 65_536),
        (65_536, 65_537),
    ]
    with pytest.raises(ValueError, match="chunk 2"):
        field.chunk_span(2, 65_537)


def test_a_coefficient_is_drawn_again_until_it_lies_in_the_field() -> None:
    too_large = b"\x01" + b"\xff" * 32
    just_below = (field.PRIME - 1).to_bytes(33, "big")
    assert shamir.coefficient(Zeros(too_large, b"\xfe" + just_below[1:])) == int.from_bytes(just_below[1:], "big")
    assert shamir.coefficient(Zeros(b"\xff" + just_below[1:])) == field.PRIME - 1


@pytest.mark.parametrize("threshold", [2, 3, 5])
def test_any_threshold_of_shares_gives_the_secret(threshold: int) -> None:
    secret = bytes(range(32))
    shares = shamir.split(secret, range(1, 8), threshold, InsecureSeededRandom("s"))
    for chosen in combinations(shares, threshold):
        assert shamir.join({place: shares[place] for place in chosen}, threshold) == secret
    assert shamir.join(shares, threshold) == secret
    with pytest.raises(SumRefused) as refused:
        shamir.join(dict(list(shares.items())[: threshold - 1]), threshold)
    assert code_of(refused) == "E_TOO_FEW_SHARES"


def test_fewer_shares_than_the_threshold_fit_every_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exhaustive over a toy field: for each pair of shares at t = 3, every secret has as many polynomials."""
    prime = 11
    monkeypatch.setattr(shamir, "PRIME", prime)
    seen: dict[tuple[int, int], dict[int, int]] = {}
    for secret, first, second in product(range(prime), repeat=3):
        polynomial = [secret, first, second]
        pair = shamir.evaluate(polynomial, 2), shamir.evaluate(polynomial, 5)
        counts = seen.setdefault(pair, {})
        counts[secret] = counts.get(secret, 0) + 1
    assert len(seen) == prime**2
    assert all(counts == dict.fromkeys(range(prime), 1) for counts in seen.values())


@pytest.mark.parametrize(
    ("shares", "code"),
    [
        ({0: bytes(33), 1: bytes(33)}, "E_SHARE_X"),
        ({field.PRIME: bytes(33), 1: bytes(33)}, "E_SHARE_X"),
        ({1: field.PRIME.to_bytes(33, "big"), 2: bytes(33)}, "E_SHARE_RANGE"),
        ({1: bytes(32), 2: bytes(33)}, "E_SHARE_RANGE"),
        # a line through 2^256 at 0: no 32 bytes
        (
            {1: (2**256 % field.PRIME).to_bytes(33, "big"), 2: (2**256 % field.PRIME).to_bytes(33, "big")},
            "E_SHARE_RANGE",
        ),
    ],
)
def test_shares_that_are_no_shares_are_refused(shares: dict[int, bytes], code: str) -> None:
    with pytest.raises(SumRefused) as refused:
        shamir.join(shares, 2)
    assert code_of(refused) == code


def test_only_secrets_of_32_bytes_are_split_and_never_to_place_zero() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        shamir.split(bytes(31), [1, 2], 2, InsecureSeededRandom("s"))
    with pytest.raises(ValueError, match="place"):
        shamir.split(bytes(32), [0], 2, InsecureSeededRandom("s"))


def test_low_order_and_unreduced_public_keys_are_refused() -> None:
    probe = X25519PrivateKey.from_private_bytes(b"\x07" * 32)
    for key in keys._LOW_ORDER:
        with pytest.raises(ValueError, match="shared key"):
            probe.exchange(X25519PublicKey.from_public_bytes(key))
        with pytest.raises(SumRefused) as refused:
            keys.check_public_key(key)
        assert code_of(refused) == "E_KEY"
        with pytest.raises(SumRefused) as refused:
            keys.MaskSeed(Secret(b"\x07" * 32)).pair_key(key, bytes(32), "a", "b")
        assert code_of(refused) == "E_KEY"
    assert len(keys._LOW_ORDER) == 5
    for key in ((2**255 - 19 + 9).to_bytes(32, "little"), (9 + 2**255).to_bytes(32, "little"), bytes(31)):
        with pytest.raises(SumRefused):
            keys.check_public_key(key)
    keys.check_public_key((9).to_bytes(32, "little"))


def test_a_box_opens_for_its_recipient_alone() -> None:
    own, other, plain = Secret(b"\x11" * 32), Secret(b"\x12" * 32), Secret(bytes(range(98)))
    roster = bytes(32)
    box = keys.seal_box(plain, keys.public_key(own), roster, "alpha", "beta")
    assert len(box) == keys.BOX_BYTES
    assert keys.BoxKey(own).open(box, roster, "alpha", "beta") == plain
    assert repr(keys.BoxKey(own)) == "BoxKey(<hidden>)"
    assert repr(keys.MaskSeed(own)) == "MaskSeed(<hidden>)"
    broken = box[:-1] + bytes([box[-1] ^ 1])
    for attempt in (
        (box, other, roster, "alpha", "beta"),
        (box, own, bytes([1]) * 32, "alpha", "beta"),
        (box, own, roster, "beta", "alpha"),
        (broken, own, roster, "alpha", "beta"),
        (bytes(146), own, roster, "alpha", "beta"),
        (box[:-1], own, roster, "alpha", "beta"),
    ):
        with pytest.raises(SumRefused) as refused:
            keys.BoxKey(attempt[1]).open(attempt[0], *attempt[2:])
        assert code_of(refused) == "E_BOX"


def test_a_keystream_starts_at_whole_blocks_below_its_limit() -> None:
    assert repr(keys.Keystream(bytes(32))) == "Keystream(<hidden>)"
    for offset in (8, -16, keys.KEYSTREAM_LIMIT_BYTES):
        with pytest.raises(ValueError, match="keystream"):
            keys.Keystream(bytes(32), offset)


@pytest.mark.parametrize("size", range(1, 20))
def test_every_path_leads_to_the_root_and_no_other_does(size: int) -> None:
    leaves = [bytes([number]) * 32 for number in range(size)]
    root, paths = tree_paths(leaves)
    for number, path in enumerate(paths):
        assert root_from(leaves[number], number, size, path) == root
        assert root_from(leaves[number], number, size, [*path, bytes(32)]) != root
        if path:
            assert root_from(leaves[number], number, size, path[:-1]) != root
            assert root_from(leaves[number], number, size, [path[0][::-1] + b"", *path[1:-1], bytes(32)]) != root
        if size > 1:
            assert root_from(leaves[number], (number + 1) % size, size, path) != root


TABLE = [
    (3, 0, 0, 2, 2, 3), (4, 1, 1, 3, 2, 3), (5, 0, 2, 4, 2, 3), (5, 1, 1, 4, 2, 4), (10, 2, 2, 9, 5, 7),
    (20, 5, 4, 19, 10, 13), (50, 10, 8, 20, 11, 31), (100, 15, 20, 36, 16, 58), (200, 20, 20, 42, 21, 111),
    (1000, 50, 50, 102, 51, 526),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_parameters_are_derived_as_the_table_says(row: tuple[int, ...]) -> None:
    n, c, drops, degree, threshold, quorum = row
    found = derive(n, c, drops, 0)
    assert (found.degree, found.share_threshold, found.quorum) == (degree, threshold, quorum)
    assert found.consent_threshold(n) <= quorum


@pytest.mark.parametrize("n", [*range(3, 45), 100, 333, 4096])
def test_what_is_derived_always_holds(n: int) -> None:
    for colluding in {0, 1, 2, n // 5, n // 3, n - 2}:
        for drops in {0, 1, n // 4, n}:
            found = derive(n, min(colluding, n - 2), drops, 0)
            assert found == check(found)
            assert found.dropouts <= drops


def test_too_few_sites_open_no_sum() -> None:
    with pytest.raises(SumRefused) as refused:
        derive(4, 0, 0, 5)
    assert code_of(refused) == "E_COHORT"


@pytest.mark.parametrize(
    "wrong",
    [
        Parameters(2, 0, 0, 1, 2, 3), Parameters(4097, 0, 0, 4096, 2049, 4097), Parameters(5, 4, 0, 4, 5, 6),
        Parameters(5, -1, 0, 4, 2, 3), Parameters(5, 0, -1, 4, 2, 3), Parameters(5, 0, 0, 4, 2, 2),
        Parameters(5, 0, 3, 4, 2, 3), Parameters(6, 0, 0, 3, 2, 4), Parameters(6, 0, 0, 0, 2, 4),
        Parameters(9, 2, 2, 4, 3, 7), Parameters(5, 0, 2, 4, 3, 3), Parameters(5, 0, 0, 4, 1, 3),
    ],
)  # fmt: skip
def test_parameters_that_break_a_constraint_are_refused(wrong: Parameters) -> None:
    with pytest.raises(SumRefused) as refused:
        check(wrong)
    assert code_of(refused) == "E_PLAN"


def connectivity(ring: Ring, alive: tuple[str, ...]) -> int:
    """Return the true vertex connectivity among `alive`, by removing every set of them."""
    near = {site: set(ring.neighbours(site)) for site in alive}
    for size in range(len(alive)):
        for removed in combinations(alive, size):
            left = set(alive) - set(removed)
            if len(left) < 2:
                return len(alive) - 1
            reached, edge = {min(left)}, {min(left)}
            while edge:
                edge = {peer for site in edge for peer in near[site] & left} - reached
                reached |= edge
            if reached != left:
                return size
    return max(len(alive) - 1, -1)


@pytest.mark.parametrize(("size", "degree"), [(n, k) for n in range(4, 9) for k in range(2, n - 1, 2)])
def test_the_bound_never_exceeds_the_true_connectivity(size: int, degree: int) -> None:
    ring = Ring(tuple(f"s{place}" for place in range(size)), degree)
    for marks in product((False, True), repeat=size):
        alive = tuple(site for site, mark in zip(ring.order, marks, strict=True) if mark)
        assert ring.connectivity_bound(alive) <= connectivity(ring, alive)
    assert ring.connectivity_bound(ring.order) == connectivity(ring, ring.order) == degree


def test_everyone_is_a_neighbour_where_the_graph_is_complete() -> None:
    ring = Ring(("a", "b", "c", "d"), 7)
    assert ring.complete
    assert sorted(ring.neighbours("c")) == ["a", "b", "d"]
    assert ring.connectivity_bound(["a", "c"]) == 1
