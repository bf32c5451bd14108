"""Shared noise is exact: its distribution, its two ways of deciding, its guard bands, and what a sum of it hides."""

import decimal
import math
from typing import Any

import numpy as np
import pytest

from privacy.errors import NoiseSourceFailed
from privacy.noise import noise_shares
from privacy.noise.noise_shares import Bands, ExactDecision, NoiseShares, check_exponential, check_logarithm, scale_of
from privacy.secagg import distributed
from privacy.secagg.errors import SumRefused
from privacy.secagg.plan_checks import check_plan
from tests.support.secure_sums import federation_of, names_of, plan_for, registry_of, run_sum

KEY = bytes(range(32))
EXACT = Bands(logarithm=1e40)
"""Every proposal is decided in decimal arithmetic."""


@pytest.mark.parametrize("sigma_sq", [1, 2, 4, 25, 100, 300])
def test_noise_has_the_exact_probabilities(sigma_sq: int) -> None:
    draws = np.concatenate([NoiseShares(sigma_sq)(KEY, chunk, 50_000) for chunk in range(4)])
    reach = math.ceil(4 * math.sqrt(sigma_sq))
    weights = {x: math.exp(-x * x / (2 * sigma_sq)) for x in range(-12 * reach, 12 * reach + 1)}
    total = sum(weights.values())
    inner = [x for x in range(-reach, reach + 1) if len(draws) * weights[x] / total > 20]
    expected = np.array([len(draws) * weights[x] / total for x in inner])
    observed = np.array([int((draws == x).sum()) for x in inner])
    expected = np.append(expected, len(draws) - expected.sum())
    observed = np.append(observed, len(draws) - observed.sum())
    kept = expected > 5
    degrees = int(kept.sum()) - 1
    chi = float((((observed - expected) ** 2) / expected)[kept].sum())
    assert abs(chi - degrees) / math.sqrt(2 * degrees) < 5


def test_noise_of_a_large_variance_has_its_moments() -> None:
    sigma_sq = 2**40
    draws = np.concatenate([NoiseShares(sigma_sq)(KEY, chunk, 65_536) for chunk in range(6)]).astype(np.float64)
    scaled = draws / math.sqrt(sigma_sq)
    count = len(scaled)
    assert abs(scaled.mean()) * math.sqrt(count) < 5
    assert abs((scaled**2).mean() - 1) * math.sqrt(count / 2) < 5
    assert abs((scaled**3).mean()) * math.sqrt(count / 15) < 5
    assert abs((scaled**4).mean() - 3) * math.sqrt(count / 96) < 5
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) * math.sqrt(count) < 5


@pytest.mark.parametrize("sigma_sq", [1, 3, 25, 257, 65_536, 2**40 + 12_345, 2**52 - 1])
def test_deciding_in_decimal_arithmetic_gives_the_same_numbers(sigma_sq: int) -> None:
    assert NoiseShares(sigma_sq, EXACT)(KEY, 3, 100).tolist() == NoiseShares(sigma_sq)(KEY, 3, 100).tolist()


def test_wide_bands_send_many_proposals_the_other_way_and_change_nothing() -> None:
    for bands in (Bands(logarithm=2.0**38), Bands(acceptance=2.0**30), Bands(from_bits=2**60)):
        assert NoiseShares(10_000, bands)(KEY, 1, 400).tolist() == NoiseShares(10_000)(KEY, 1, 400).tolist()


def test_a_shorter_chunk_is_the_beginning_of_a_longer_one_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = NoiseShares(1000)(KEY, 5, 40_000)
    assert NoiseShares(1000)(KEY, 5, 17).tolist() == whole[:17].tolist()
    monkeypatch.setattr(noise_shares, "BATCH", 1000)
    assert NoiseShares(1000)(KEY, 5, 40_000).tolist() == whole.tolist()


def test_chunks_and_keys_have_noise_of_their_own() -> None:
    shares = NoiseShares(10**9)
    first = shares(KEY, 0, 5000)
    for other in (shares(KEY, 1, 5000), shares(KEY[::-1], 0, 5000)):
        assert np.mean(first == other) < 0.01
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    assert shares(KEY, 0, 5000).tolist() == first.tolist()
    assert shares(KEY, 0, 0).tolist() == []


def test_what_is_out_of_range_is_refused() -> None:
    for sigma_sq in (0, -1, 2**52):
        with pytest.raises(ValueError, match="variance"):
            NoiseShares(sigma_sq)
    with pytest.raises(ValueError, match="numbers"):
        NoiseShares(4)(KEY, 0, 65_537)


# --- the guard bands ------------------------------------------------------------------------------------------


def words_to_try() -> np.ndarray[Any, np.dtype[np.uint64]]:
    random = np.random.default_rng(8)
    near_zero = [4096, 4097, 5000, 10**6, 2**20, 2**30, 2**40]
    near_one = [2**64 - 1 - step for step in (0, 1, 2, 1000, 2**11, 2**12, 2**30, 2**40)]
    spread = [
        int(word) >> shift for shift in (0, 10, 20, 30, 40) for word in random.integers(2**63, 2**64, 20, np.uint64)
    ]
    return np.array([*near_zero, *near_one, *spread], dtype=np.uint64)


def worst_share_of_band(bands: Bands) -> float:
    """Return the largest error of a decision in binary64, as a share of its guard band."""
    words, worst = words_to_try(), 0.0
    with decimal.localcontext(decimal.Context(prec=60)):
        for log_a in (0, 1, 4, 13, 22, 26):
            a = 2.0**log_a
            part = (words.astype(np.float64) + 0.5) * 2.0**-64
            value = np.log(part) * -a
            guard = ((a * 2.0**-63) / part + a * 2.0**-50 + value * 2.0**-47) * bands.logarithm
            for word, found, band in zip(words.tolist(), value.tolist(), guard.tolist(), strict=True):
                for end in (word, word + 1):  # ρ lies between these
                    true = -decimal.Decimal(int(a)) * (decimal.Decimal(end) / 2**64).ln()
                    worst = max(worst, abs(float(decimal.Decimal(found) - true)) / band)
    return worst


def worst_share_of_acceptance_band(bands: Bands) -> float:
    worst = 0.0
    with decimal.localcontext(decimal.Context(prec=60)):
        for sigma_sq in (1, 3, 257, 2**20 + 7, 2**44 + 345, 2**52 - 1):
            a = scale_of(sigma_sq)
            for size in {0, 1, 2, a // 3, a, 2 * a + 1, 5 * a, 9 * a}:
                distance = np.array([float(size)]) - sigma_sq / a
                limit = float((np.exp(distance * distance * (-1 / (2 * sigma_sq))) * 2.0**63)[0])
                exponent = decimal.Decimal((a * size - sigma_sq) ** 2) / (2 * a * a * sigma_sq)
                true = (-exponent).exp() * 2**63
                test = 2**62 + 12_345  # the test's own rounding to a double is half a unit, at most 2^9 below 2^63
                rounding = abs(float(test) - test)
                band = (limit * 2.0**-36 + 4) * bands.acceptance
                worst = max(worst, (abs(float(decimal.Decimal(limit) - true)) + rounding) / band)
    return worst


def test_errors_of_binary64_stay_within_half_of_their_guard_bands() -> None:
    assert worst_share_of_band(Bands()) <= 0.5
    assert worst_share_of_acceptance_band(Bands()) <= 0.5


def test_a_sampler_with_narrower_bands_is_caught() -> None:
    assert worst_share_of_band(Bands(logarithm=2.0**-8)) > 0.5
    assert worst_share_of_acceptance_band(Bands(acceptance=2.0**-20)) > 0.5


def test_a_machine_with_a_poor_logarithm_or_exponential_makes_no_noise() -> None:
    points = np.array([0.5, 0.25, 1e-9])
    check_logarithm(points, np.log)
    with pytest.raises(NoiseSourceFailed, match="logarithm"):
        check_logarithm(points, lambda values: np.log(values) * (1 + 1e-13))
    check_exponential(-points, np.exp)
    with pytest.raises(NoiseSourceFailed, match="exponential"):
        check_exponential(-points, lambda values: np.exp(values) * (1 + 1e-11))
    with pytest.raises(NoiseSourceFailed, match="exponential"):
        check_exponential(-points, lambda values: np.maximum(np.exp(values), 2.0**-61))


def test_the_exact_way_draws_bits_until_it_knows() -> None:
    exact = ExactDecision(100, KEY, KEY[::-1])
    assert exact.proposal(0, 0) > 44 * scale_of(100)  # ρ below 2^−64
    assert exact.proposal(2**64 - 1, 1) == 0
    assert exact.accepts(100 // scale_of(100), 2**63 - 1, 0) in (True, False)
    assert exact.accepts(10**6, 0, 1) is False
    # the boundary itself: more bits than the first are needed to know on which side ν is
    limit = int((decimal.Context(prec=80).exp(decimal.Decimal(-((8 * 20 - 100) ** 2)) / (2 * 64 * 100))) * 2**63)
    assert {exact.accepts(20, test, 0) for test in (limit - 1, limit, limit + 1)} == {True, False}


class NoBits:
    """A stream of zeros, so that ρ stays 0 for a while."""

    def __init__(self) -> None:
        self.count = 0

    def update(self, data: bytes) -> bytes:
        self.count += 1
        return bytes(8) if self.count < 3 else b"\x80" + bytes(7)


def test_a_logarithm_of_nothing_waits_for_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_shares, "_more_bits", lambda key, number: NoBits())
    found = ExactDecision(100, KEY, KEY).proposal(0, 0)
    assert found == math.floor(-scale_of(100) * (-(64 * 3 + 1)) * math.log(2))


class AllOnes:
    """A stream of ones, so that ρ is as near to 1 as the bits tell."""

    def update(self, data: bytes) -> bytes:
        return b"\xff" * len(data)


def test_a_real_just_below_one_gives_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_shares, "_more_bits", lambda key, number: AllOnes())
    assert ExactDecision(2**51, KEY, KEY).proposal(2**64 - 1, 0) == 0


def test_undecided_bits_are_extended_until_the_ends_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """ν that follows the limit itself for 127 bits isn't decided by those."""
    exponent = decimal.Decimal((8 * 20 - 100) ** 2) / (2 * 64 * 100)
    with decimal.localcontext(decimal.Context(prec=120)):
        bits = int((-exponent).exp() * 2**191)

    class Following:
        def __init__(self) -> None:
            self.parts = [(bits >> 64) & (2**64 - 1), 0]

        def update(self, data: bytes) -> bytes:
            return self.parts.pop(0).to_bytes(8, "big")

    monkeypatch.setattr(noise_shares, "_more_bits", lambda key, number: Following())
    assert ExactDecision(100, KEY, KEY).accepts(20, bits >> 128, 0) is True

    near = math.exp(-3 / 8)  # ⌊−a·ln ρ⌋ changes at ρ = e^(−3/8): first bits equal, then below
    with decimal.localcontext(decimal.Context(prec=120)):
        edge = int((decimal.Decimal(-3) / 8).exp() * 2**192)

    class OnTheEdge:
        def __init__(self) -> None:
            self.parts = [(edge >> 64) & (2**64 - 1), 2**64 - 1]

        def update(self, data: bytes) -> bytes:
            return self.parts.pop(0).to_bytes(8, "big")

    monkeypatch.setattr(noise_shares, "_more_bits", lambda key, number: OnTheEdge())
    assert ExactDecision(100, KEY, KEY).proposal(edge >> 128, 0) == 2
    assert near < 1


# --- what a sum of it hides -----------------------------------------------------------------------------------


def noisy_plan(names: list[str], dim: int, *, honest: int | None = None) -> Any:
    bound = distributed.sensitivity(20, dim)
    least = len(names) // 2 + 1  # with one colluding of five: quorum 4, three honest at least
    plan = plan_for(names, dim, colluding=1, dropouts=1)
    fewest = plan.quorum - 1
    noise = {"mechanism": "distributed", "unit": "site", "z": "1", "norm_sq_max": bound**2, "honest_min": fewest}
    noise["sigma_sq"] = distributed.least_sigma_sq("1", bound, honest or fewest)
    assert least <= plan.quorum
    return plan_for(names, dim, colluding=1, dropouts=1, scale_log2=20, q_max=2**20, dp=noise)


def noise_left(plan: Any) -> float:
    """Return the deviation of what hides in the smallest sum once its colluder's share is known."""
    names = list(plan.invited)
    zeros = {name: np.zeros(plan.dim, dtype=np.float32) for name in names}
    found = federation_of(plan, zeros, noise=NoiseShares)
    for run in found.sites.values():
        run.lease = "lease-1"
    colluder = found.sites[names[1]]
    object.__setattr__(colluder.site, "noise", lambda _: lambda key, chunk, count: np.zeros(count, dtype=np.int64))
    run_sum(found, {names[0]: 2})
    assert found.code is None
    assert len(found.survivors) == plan.quorum
    return float(np.std(found.total))


def test_the_fewest_honest_survivors_hide_the_sensitivity_even_beside_a_colluder() -> None:
    names, dim = names_of(5), 10_000
    plan = noisy_plan(names, dim)
    bound = distributed.sensitivity(20, dim)
    measured = noise_left(plan) / bound
    assert measured > 1 - 5 / math.sqrt(2 * dim)
    claimed = distributed.claimed_multiplier(plan.dp.sigma_sq, bound, plan.dp.honest_min)
    assert 1 <= claimed < 1.0001


def test_noise_calibrated_to_all_sites_is_refused_and_would_not_hide_it() -> None:
    names, dim = names_of(5), 10_000
    wrong = noisy_plan(names, dim, honest=5)
    with pytest.raises(SumRefused, match="P10: sigma_sq"):
        check_plan(wrong, registry_of(tuple(names)))
    share = math.sqrt(wrong.dp.sigma_sq * wrong.dp.honest_min)
    assert share / distributed.sensitivity(20, dim) < 1 - 5 / math.sqrt(2 * dim)
