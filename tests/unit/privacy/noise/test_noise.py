"""Streams, normals and exact integers: known answers, distributions, and every way in which they must refuse."""

import math
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from privacy.errors import NoiseSourceFailed
from privacy.noise import self_test
from privacy.noise.discrete_gaussian import discrete_gaussian, discrete_gaussians
from privacy.noise.gaussian import CHUNK_WORDS, normals
from privacy.noise.keystream import (
    KeyRoot,
    PlannedStream,
    Purpose,
    StepStreams,
    WordStream,
    require,
)

TINY = 1e-7  # a true source fails a test below about this often


def noise(*labels: str | int) -> WordStream:
    return KeyRoot(Purpose.NOISE).derive(*labels)


def test_the_stream_is_aes_256_in_counter_mode_from_zero() -> None:
    # AES-256 of the zero block under the zero key (NIST AESAVS, and FIPS 197 implementations everywhere).
    assert WordStream(bytes(32)).read(16).hex() == "dc95c078a2408989ad48a21492842087"


def test_reading_in_parts_gives_the_same_stream() -> None:
    whole, parts = WordStream(bytes(32)), WordStream(bytes(32))
    assert whole.read(50) == parts.read(7) + parts.read(0) + parts.read(43)
    assert int(WordStream(bytes(32)).words(1)[0]) == int.from_bytes(bytes.fromhex("dc95c078a2408989"), "little")


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(NoiseSourceFailed):
        WordStream(bytes(16))


def test_each_purpose_label_and_root_gives_another_stream() -> None:
    first, second = KeyRoot(Purpose.NOISE), KeyRoot(Purpose.NOISE)
    streams = [
        first.derive("step", 0, 0),
        first.derive("step", 0, 1),
        first.derive("step", 1, 0),
        first.derive("step", 10),
        first.derive("step", "10"),
        first.derive("ste", "p10"),
        second.derive("step", 0, 0),
        KeyRoot(Purpose.SAMPLING).derive("step", 0, 0),
    ]
    assert len({stream.read(32) for stream in streams}) == len(streams)


def test_no_step_ever_gets_a_stream_that_another_had() -> None:
    streams = StepStreams()
    seen = {stream.read(32) for _ in range(50) for stream in streams.next_step()}
    assert len(seen) == 100


def test_two_trainers_never_share_noise() -> None:
    first, second = StepStreams().next_step(), StepStreams().next_step()
    assert not np.array_equal(normals(first[1], 8), normals(second[1], 8))
    assert first[0].read(32) != second[0].read(32)


def test_two_processes_never_share_noise() -> None:
    program = "from privacy.noise.keystream import *; print(StepStreams().next_step()[1].read(32).hex())"
    found = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(found) == 2


def test_a_forked_process_must_not_repeat_its_parents_noise() -> None:
    root = KeyRoot(Purpose.NOISE)
    stream = root.derive("step", 0, 0)
    child = os.fork()
    if child == 0:
        try:
            stream.read(8)
        except NoiseSourceFailed:
            try:
                root.derive("step", 0, 1)
            except NoiseSourceFailed:
                os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_keys_show_in_no_representation() -> None:
    root = KeyRoot(Purpose.NOISE)
    for thing in (root, root.derive("step"), StepStreams(), PlannedStream(7)):
        text = repr(thing) + str(thing)
        assert root._key.hex() not in text
        assert "hidden" in text or "object at" in text


def test_a_planned_stream_repeats_and_is_refused_for_sampling_and_noise() -> None:
    assert PlannedStream(7, "order").read(16) == PlannedStream(7, "order").read(16)
    assert PlannedStream(7, "order").read(16) != PlannedStream(8, "order").read(16)
    for purpose in Purpose:
        with pytest.raises(NoiseSourceFailed):
            require(PlannedStream(7), purpose)
    with pytest.raises(NoiseSourceFailed):
        normals(PlannedStream(7), 4)
    with pytest.raises(NoiseSourceFailed):
        discrete_gaussian(PlannedStream(7), Fraction(1))


def test_a_stream_serves_its_purpose_alone() -> None:
    with pytest.raises(NoiseSourceFailed):
        normals(KeyRoot(Purpose.SAMPLING).derive("x"), 4)
    with pytest.raises(NoiseSourceFailed):
        discrete_gaussian(noise("x"), Fraction(1))


@pytest.mark.parametrize("bound", [1, 2, 3, 255, 256, 257, 10**30])
def test_integers_below_a_bound_are_below_it(bound: int) -> None:
    stream = noise("x")
    assert all(0 <= stream.below(bound) < bound for _ in range(200))


def test_integers_below_a_bound_are_uniform() -> None:
    stream = noise("x")
    counts = Counter(stream.below(6) for _ in range(12_000))
    assert stats.chisquare([counts[value] for value in range(6)]).pvalue > TINY
    with pytest.raises(ValueError, match="at least 1"):
        stream.below(0)


@pytest.mark.parametrize("count", [0, 1, 2, 3, CHUNK_WORDS - 1, CHUNK_WORDS, CHUNK_WORDS + 1, 3 * CHUNK_WORDS + 7])
def test_any_number_of_normals_can_be_drawn(count: int) -> None:
    draws = normals(noise("x"), count)
    assert draws.shape == (count,)
    assert np.isfinite(draws).all()
    assert len(np.unique(draws)) == count


def test_normals_are_standard_normal_and_independent() -> None:
    draws = normals(noise("x"), 200_001)
    assert stats.kstest(draws, "norm").pvalue > TINY
    assert abs(draws.mean()) < 6 / math.sqrt(len(draws))
    assert stats.chi2.sf((draws**2).sum(), len(draws)) > TINY
    assert stats.chi2.cdf((draws**2).sum(), len(draws)) > TINY
    for lag in (1, 2, CHUNK_WORDS // 2, CHUNK_WORDS):
        assert abs(float((draws[lag:] * draws[:-lag]).mean())) < 6 / math.sqrt(len(draws) - lag)
        assert abs(float(np.corrcoef(draws[lag:] ** 2, draws[:-lag] ** 2)[0, 1])) < 6 / math.sqrt(len(draws) - lag)
    assert np.abs(draws).max() < 8.7


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1), Fraction(7, 3), Fraction(40), Fraction(1.7) ** 2])
def test_the_discrete_gaussian_has_its_exact_probabilities(variance: Fraction) -> None:
    draws = discrete_gaussians(KeyRoot(Purpose.RELEASE).derive("x"), variance, 3000)
    reach = 12 * math.isqrt(math.ceil(variance)) + 12
    weights = {value: math.exp(-(value**2) / (2 * float(variance))) for value in range(-reach, reach + 1)}
    whole = sum(weights.values())
    counts = Counter(draws)
    cells = [value for value in weights if 3000 * weights[value] / whole >= 10]
    observed = [counts[value] for value in cells]
    expected = [3000 * weights[value] / whole for value in cells]
    observed.append(3000 - sum(observed))
    expected.append(3000 - sum(expected))
    kept = [(o, e) for o, e in zip(observed, expected, strict=True) if e > 1e-3]
    chi_square = sum((o - e) ** 2 / e for o, e in kept)
    assert stats.chi2.sf(chi_square, len(kept) - 1) > TINY


def test_a_discrete_gaussian_needs_a_variance() -> None:
    with pytest.raises(ValueError, match="positive"):
        discrete_gaussian(KeyRoot(Purpose.RELEASE).derive("x"), Fraction(0))


def test_the_self_test_passes_on_this_machine() -> None:
    self_test.run()
    self_test.ensure_passed()


@pytest.mark.parametrize(
    ("name", "bend"),
    [
        ("mean", lambda draws: draws + 0.05),
        ("variance", lambda draws: draws * 0.95),
        ("distribution", lambda draws: np.where(np.abs(draws) < 0.1, np.sign(draws) * 1.0, draws)),
        ("tails", lambda draws: np.clip(draws, -3, 3)),
    ],
)
def test_the_self_test_finds_noise_that_is_off(name: str, bend: object) -> None:
    draws = normals(noise("x"), self_test.DRAWS)
    self_test.check_normals(draws)
    with pytest.raises(NoiseSourceFailed, match=name if name != "distribution" else "mean|variance|distribution"):
        self_test.check_normals(bend(draws))  # type: ignore[operator]


def test_the_self_test_finds_a_wrong_cipher_and_a_repeated_process() -> None:
    with pytest.raises(NoiseSourceFailed, match="known answer"):
        self_test.check_known_answer("00" * 32)
    with pytest.raises(NoiseSourceFailed, match="another process"):
        self_test.check_other_process(b"same", b"same")
    with pytest.raises(NoiseSourceFailed, match="another process"):
        self_test.check_other_process(b"same", b"")


def test_a_machine_without_a_second_process_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_CHILD", "raise SystemExit(1)")
    with pytest.raises(NoiseSourceFailed, match="no second process"):
        self_test._draw_elsewhere()


def test_a_failed_self_test_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_passed", False)
    monkeypatch.setattr(self_test, "_CIPHER", "00" * 32)
    for _ in range(2):
        with pytest.raises(NoiseSourceFailed):
            self_test.ensure_passed()
