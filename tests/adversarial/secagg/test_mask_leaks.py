"""What a coordinator with colluding sites can compute from all that it holds, and attacks that find a broken mask."""

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from privacy.secagg import aggregator_states as hub
from privacy.secagg import site_states as at
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import centred
from privacy.secagg.graph import Ring
from privacy.secagg.keys import MaskSeed, self_key
from privacy.secagg.masking import Mask, MaskJob, Masks
from privacy.secagg.quantize import Grid, Points, Rounding
from privacy.secagg.secret import Secret
from privacy.secagg.shamir import join
from tests.support.secure_sums import Federation, federation_of, integer_plan, names_of, run_sum, until

WORDS = 40_000


# --- the rank oracle: privacy by linear algebra ---------------------------------------------------------------


def computable(ring: Ring, survivors: set[str], colluding: set[str]) -> int:
    """Return how many independent combinations of honest vectors the coordinator and its colluders can compute.

    Rows are the masked vectors that it holds, those of lost sites included; columns the masks that it doesn't know: the
    self masks of lost sites, and the pair masks between two honest survivors. What is left of the rows when these
    columns are eliminated is all that can be computed.
    """
    honest = [name for name in ring.order if name not in colluding]
    columns: dict[Any, int] = {}
    entries = []
    for row, name in enumerate(honest):
        if name not in survivors:
            entries.append((row, columns.setdefault(name, len(columns)), 1))
            continue
        for peer in ring.neighbours(name):
            if peer in survivors and peer not in colluding:
                place = columns.setdefault(tuple(sorted((name, peer))), len(columns))
                entries.append((row, place, 1 if name < peer else -1))
    matrix = np.zeros((len(honest), max(1, len(columns))))
    for row, place, value in entries:
        matrix[row, place] = value
    return len(honest) - int(np.linalg.matrix_rank(matrix))


@pytest.mark.parametrize(("size", "degree", "c"), [(6, 4, 1), (7, 4, 1), (8, 4, 1), (8, 6, 2), (9, 4, 0), (7, 6, 3)])
def test_whatever_passes_the_graph_check_gives_the_sum_and_nothing_else(size: int, degree: int, c: int) -> None:
    ring = Ring(tuple(names_of(size)), degree)
    leaks = 0
    for marks in product((False, True), repeat=size):
        survivors = {name for name, mark in zip(ring.order, marks, strict=True) if mark}
        if len(survivors) < c + 2:
            continue
        passes = ring.connectivity_bound(survivors) >= c + 1
        for colluding in combinations(ring.order, c):
            found = computable(ring, survivors, set(colluding))
            if passes:
                assert found == 1
            leaks += found > 1
    assert leaks or ring.complete  # else the oracle would see nothing anywhere


def test_randomly_drawn_rings_of_many_sites_leak_nothing_that_the_check_passes() -> None:
    random = np.random.default_rng(5)
    names = names_of(60)
    checked = 0
    for _ in range(60):
        ring = Ring(tuple(random.permutation(names).tolist()), 20)
        lost = set(random.permutation(names)[: random.integers(0, 12)].tolist())
        colluding = set(random.permutation(names)[:10].tolist())
        survivors = set(names) - lost
        if ring.connectivity_bound(survivors) >= 11:
            checked += 1
            assert computable(ring, survivors, colluding) == 1
    assert checked > 10


# --- the view of colluders in a real run ----------------------------------------------------------------------


def held_by(found: Federation, colluding: list[str]) -> dict[str, at.Masked]:
    return {name: found.sites[name].state for name in colluding}  # type: ignore[misc]


@pytest.mark.parametrize("lost", [[], ["s002"], ["s005"]])
def test_colluders_with_the_coordinator_join_one_secret_of_each_honest_site_and_never_the_other(
    lost: list[str],
) -> None:
    names, colluding = names_of(7), ["s000", "s003"]
    plan = integer_plan(names, 3, colluding=2, dropouts=1)
    found = until(federation_of(plan), "mask")
    found.mask([name for name in names if name not in lost])
    shares: dict[tuple[str, str], dict[int, bytes]] = {}
    for name in colluding:
        state = found.sites[name].state
        assert isinstance(state, at.Masked)
        place = sorted(names).index(name) + 1
        for dealer, deal in state.held.items():
            shares.setdefault((dealer, "b"), {})[place] = deal.part(0, 33)
            shares.setdefault((dealer, "m"), {})[place] = deal.part(49, 82)
    found.consent(names)
    state = found.state
    found.reveal(names)
    assert isinstance(found.state, hub.Unmasking)
    assert isinstance(state, hub.Revealing)
    for name in names:
        for message in found.sites[name].sent:
            if message.kind == "reveal":
                from privacy.secagg.messages import Reveal

                body = Reveal.model_validate_json(message.body)
                for kind, given in (("b", body.b), ("m", body.m)):
                    for owner, (share, _) in given.items():
                        shares.setdefault((owner, kind), {})[names.index(name) + 1] = bytes.fromhex(share)
    for owner in set(names) - set(colluding):
        due, other = ("m", "b") if owner in lost else ("b", "m")
        assert len(join(shares[owner, due], plan.share_threshold)) == 32
        with pytest.raises(SumRefused, match="E_TOO_FEW_SHARES"):
            join(shares[owner, other], plan.share_threshold)


# --- attacks on vectors ---------------------------------------------------------------------------------------


def is_uniform(data: bytes) -> bool:
    """Return whether bytes look uniform: χ² over their values, and no correlation between neighbours."""
    values = np.frombuffer(data, dtype=np.uint8)
    counts = np.bincount(values, minlength=256)
    expected = len(values) / 256
    chi = (((counts - expected) ** 2 / expected).sum() - 255) / math.sqrt(510)
    shifted = np.corrcoef(values[:-1].astype(float), values[1:].astype(float))[0, 1] * math.sqrt(len(values))
    return bool(abs(chi) < 6 and abs(shifted) < 6)


def finds_difference(first: bytes, second: bytes, truth: np.ndarray[Any, Any]) -> bool:
    """Return whether two masked vectors differ by the difference of their plain vectors: one mask, used twice."""
    left, right = (np.frombuffer(data, dtype=np.uint32) for data in (first, second))
    return bool(np.array_equal(centred(left - right), truth))


def masked(values: np.ndarray[Any, Any], keys: list[int]) -> bytes:
    points = Points(values, Grid(1.0, 0, 10**6, Rounding.INTEGER), Secret(b"\x63" * 32))
    job = MaskJob(points, [Mask(Secret(bytes([key]) * 32), True) for key in keys], dim=len(values), word_bits=32)
    return b"".join(data for _, data in job.chunks())


def test_the_attack_finds_a_mask_that_is_missing_or_used_twice() -> None:
    """So that the tests below mean something: broken masks don't pass them."""
    first, second = np.arange(WORDS), np.arange(WORDS)[::-1].copy()
    assert not is_uniform(masked(first, []))
    assert finds_difference(masked(first, [1, 2]), masked(second, [1, 2]), first - second)
    assert not finds_difference(masked(first, [1, 2]), masked(second, [1, 3]), first - second)
    repeated = np.zeros(WORDS, dtype=np.uint32)
    block = np.frombuffer(masked(np.zeros(64, dtype=np.int64), [1]), dtype=np.uint32)
    repeated[:] = np.tile(block, WORDS // 64)
    assert not is_uniform(repeated.tobytes())


def uploads(sum_id: str, vectors: dict[str, Any], seed: str = "") -> dict[str, bytes]:
    names = list(vectors)
    plan = integer_plan(names, WORDS, colluding=1, dropouts=1, sum_id=sum_id)
    found = until(federation_of(plan, vectors, seed=seed), "mask")
    sent = {}
    for name in names:
        relay = found.relayed[name]
        found.sites[name].tell(at.SharesShown(relay.messages, relay.boxes))
        job = found.sites[name].upload
        assert job is not None
        sent[name] = b"".join(data for _, data in job.job.chunks())
    return sent


def test_masked_vectors_look_uniform_and_no_two_share_a_mask() -> None:
    names = names_of(4)
    vectors = {name: np.full(WORDS, number * 1000, dtype=np.int64) for number, name in enumerate(names)}
    first = uploads("21" * 32, vectors)
    # even a random source that repeats itself gives other masks in another sum: keys hang on the view
    second = uploads("22" * 32, {name: values + 5 for name, values in vectors.items()})
    everything = {
        **{f"{name} 1": data for name, data in first.items()},
        **{f"{name} 2": data for name, data in second.items()},
    }
    assert all(is_uniform(data) for data in everything.values())
    plain = {**{f"{name} 1": vectors[name] for name in names}, **{f"{name} 2": vectors[name] + 5 for name in names}}
    for left, right in combinations(everything, 2):
        assert not finds_difference(everything[left], everything[right], plain[left] - plain[right])
        pair = np.frombuffer(everything[left], np.uint32) - np.frombuffer(everything[right], np.uint32)
        assert is_uniform(pair.tobytes())


def test_a_late_vector_stays_uniform_after_its_pair_keys_are_rebuilt() -> None:
    """A lost site's pair masks are all known in the end; its own mask still hides what it may have sent."""
    names = names_of(4)
    plan = integer_plan(names, WORDS, colluding=1, dropouts=1)
    vectors = {name: np.zeros(WORDS, dtype=np.int64) for name in names}
    found = federation_of(plan, vectors)
    found.advertise(names)
    states = {name: found.sites[name].state for name in names}
    assert all(isinstance(state, at.Advertised) for state in states.values())
    seed = Secret(bytes(states["s001"].mask_seed.reveal()))  # type: ignore[union-attr]
    self_seed = Secret(bytes(states["s001"].self_seed.reveal()))  # type: ignore[union-attr]
    found.share(names)
    view = found.state.view  # type: ignore[union-attr]
    found.mask(names, half=["s001"])
    upload = found.sites["s001"].upload
    assert upload is not None
    vector = np.frombuffer(b"".join(data for _, data in upload.job.chunks()), dtype=np.uint32).copy()
    agreement = MaskSeed(seed)
    off = []
    for peer in names:
        if peer != "s001":
            key = agreement.pair_key(bytes.fromhex(view.adverts[peer].body.mask_pk), view.digest, "s001", peer)
            off.append(Mask(key, added=peer < "s001"))
    Masks(off, 32, 0).apply(vector)
    assert is_uniform(vector.tobytes())
    Masks([Mask(self_key(self_seed, view.digest, "s001"), added=False)], 32, 0).apply(vector)
    assert not vector.any()
    found.consent(names)
    found.reveal(names)
    found.publish()
    assert found.code is None


def test_the_sum_and_nothing_about_who_gave_what_is_in_the_accumulator() -> None:
    names = names_of(4)
    vectors = {name: np.full(WORDS, 10**number, dtype=np.int64) for number, name in enumerate(names)}
    found = run_sum(federation_of(integer_plan(names, WORDS, colluding=1, dropouts=1), vectors))
    assert set(found.total.tolist()) == {1111}
    for name in names:
        assert is_uniform(b"".join(data for (sender, _), data in found.spool.items() if sender == name))
