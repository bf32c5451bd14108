"""Quantising, masking, staging and adding up, at chunk edges and limits."""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privacy.secagg import distributed
from privacy.secagg.derivation import digest
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import CHUNK_WORDS, centred, chunk_count, to_words, word_type
from privacy.secagg.keys import Keystream
from privacy.secagg.masking import Mask, MaskJob, Masks, Payload
from privacy.secagg.quantize import Grid, Points, Rounding, Scratch, inspect, shrink_to
from privacy.secagg.secret import Secret
from privacy.secagg.sums import Accumulator, Stage, SumFigures, SumInspection, check_bounds
from tests.support.secure_sums import integers

GRID = Grid(1.0, 18, 2**18, Rounding.STOCHASTIC)
WHOLE = Grid(1.0, 0, 10**6, Rounding.INTEGER)
EDGES = [1, 3, 17, CHUNK_WORDS - 1, CHUNK_WORDS, CHUNK_WORDS + 1]


def secret(number: int) -> Secret:
    return Secret(bytes([number]) * 32)


def job(dim: int, word_bits: int = 32, masks: int = 3) -> MaskJob:
    points = Points(integers("a", dim, 30_000), Grid(1.0, 0, 30_000, Rounding.INTEGER), secret(99))
    return MaskJob(
        points, [Mask(secret(number), number % 2 == 0) for number in range(masks)], dim=dim, word_bits=word_bits
    )


def masked_by_hand(dim: int, word_bits: int, masks: int) -> list[int]:
    """Return what `job` gives, by Python's integers and one long keystream a mask."""
    values = [int(value) for value in integers("a", dim, 30_000)]
    size = word_bits // 8
    for number in range(masks):
        stream = bytearray()
        source = Keystream(bytes([number]) * 32)
        while len(stream) < dim * size:
            block = bytearray(4096)
            source.write(memoryview(block))
            stream += block
        sign = 1 if number % 2 == 0 else -1
        for place in range(dim):
            word = int.from_bytes(stream[place * size : (place + 1) * size], "little")
            values[place] = (values[place] + sign * word) % 2**word_bits
    return values


@pytest.mark.parametrize("word_bits", [16, 32, 64])
@pytest.mark.parametrize("dim", [1, 17, CHUNK_WORDS + 1])
def test_a_masked_vector_is_the_sum_of_its_parts(dim: int, word_bits: int) -> None:
    data = b"".join(chunk for _, chunk in job(dim, word_bits).chunks())
    assert np.frombuffer(data, dtype=word_type(word_bits)).tolist() == masked_by_hand(dim, word_bits, 3)


@pytest.mark.parametrize("dim", EDGES)
def test_a_resend_from_any_chunk_is_byte_identical_and_so_are_threads(dim: int) -> None:
    made = job(dim)
    whole = dict(made.chunks())
    payload = made.payload.digest()
    for start in range(made.chunks_count):
        assert dict(made.chunks(start)) == {index: data for index, data in whole.items() if index >= start}
    assert made.payload.digest() == payload
    spread = job(dim)
    with ThreadPoolExecutor(4) as threads:
        ranges = [(index, index + 1) for index in range(spread.chunks_count)]
        parts = threads.map(lambda bounds: list(spread.chunks(*bounds)), ranges)
        assert dict(pair for part in parts for pair in part) == whole
    assert spread.payload.digest() == payload


def test_a_payload_is_the_digest_over_its_chunks() -> None:
    made = job(CHUNK_WORDS + 1)
    with pytest.raises(ValueError, match="missing"):
        made.payload.digest()
    chunks = dict(made.chunks())
    leaves = [digest("chunk", index * CHUNK_WORDS, data) for index, data in chunks.items()]
    assert made.payload.digest() == digest("payload", *leaves)
    assert made.payload.fits(1, chunks[1])
    assert not made.payload.fits(1, chunks[1][::-1])


def test_a_wiped_job_makes_no_byte_more() -> None:
    made = job(5)
    assert "hidden" in repr(made)
    under_way = made.chunks()
    made.wipe()
    assert made.spent
    with pytest.raises(SumRefused, match="E_PHASE"):
        next(made.chunks())
    with pytest.raises(SumRefused, match="E_PHASE"):
        next(under_way)
    with pytest.raises(ValueError, match="dropped"):
        made._points.chunk(0)


def test_noise_is_added_before_the_masks_and_repeats_on_a_resend() -> None:
    asked: list[tuple[bytes, int, int]] = []

    def noise(key: bytes, index: int, count: int) -> Any:
        asked.append((bytes(key), index, count))
        return np.full(count, 7 + index, dtype=np.int64)

    points = Points(np.zeros(CHUNK_WORDS + 2, dtype=np.int64), WHOLE, secret(1))
    made = MaskJob(points, [], dim=CHUNK_WORDS + 2, word_bits=32, noise=noise, noise_key=secret(8))
    chunks = dict(made.chunks())
    assert set(np.frombuffer(chunks[0], dtype=np.uint32).tolist()) == {7}
    assert np.frombuffer(chunks[1], dtype=np.uint32).tolist() == [8, 8]
    assert asked == [(b"\x08" * 32, 0, CHUNK_WORDS), (b"\x08" * 32, 1, 2)]


@pytest.mark.parametrize("scale_log2", [1, 8, 18, 22, 30, 36])
def test_rounding_is_unbiased_stays_within_a_step_and_keeps_integers(scale_log2: int) -> None:
    grid = Grid(2.5, scale_log2, 2**scale_log2, Rounding.STOCHASTIC)
    values = np.random.default_rng(3).uniform(-2.5, 2.5, 60_000)
    values[:4] = [2.5, -2.5, 0.0, np.nextafter(2.5, 0)]
    points = Points(values, grid, secret(5)).chunk(0)
    exact = values * (2.0**scale_log2 / 2.5)
    assert np.all(np.abs(points - exact) < 1)
    assert points.max() <= 2**scale_log2
    assert points.min() >= -(2**scale_log2)
    assert points[:3].tolist() == [2**scale_log2, -(2**scale_log2), 0]
    error = points - exact
    if scale_log2 < 30:
        assert abs(error.mean()) < 6 * error.std() / math.sqrt(len(error))
    integers_only = np.arange(-(2**scale_log2), 2**scale_log2 + 1, max(1, 2**scale_log2 // 1000)).astype(np.float64)
    kept = Points(integers_only, Grid(2.0**scale_log2, scale_log2, 2**scale_log2, Rounding.STOCHASTIC), secret(6))
    assert kept.chunk(0).tolist() == integers_only.astype(np.int64).tolist()


@pytest.mark.parametrize("bits", range(1, 38))
def test_the_largest_dither_never_carries_beyond_the_largest_point(bits: int) -> None:
    q_max = min(2**bits, 2**37 - 1)
    grid = Grid(1.0, 1, q_max, Rounding.STOCHASTIC)
    largest = np.array([1e300, -1e300])
    for word in (0, 2**32 - 1):
        points = grid.rounded(largest, np.full(2, word, dtype=np.uint32), Scratch())
        assert points.tolist() == [q_max, -q_max]


def test_nearest_rounds_half_to_even_and_integers_have_no_grid() -> None:
    grid = Grid(4.0, 2, 4, Rounding.NEAREST)
    assert grid.rounded(np.array([0.5, 1.5, 2.5, -0.5, 9.0]), None, Scratch()).tolist() == [0, 2, 2, 0, 4]
    assert Points(np.array([-3, 8], dtype=np.int64), WHOLE, secret(1)).chunk(0).tolist() == [-3, 8]


def test_weight_and_shrink_scale_an_update_before_it_is_rounded() -> None:
    grid = Grid(1.0, 4, 16, Rounding.NEAREST, weight=0.5, shrink=0.5)
    assert grid.rounded(np.array([1.0, -1.0]), None, Scratch()).tolist() == [4, -4]


@pytest.mark.parametrize(
    ("values", "grid"),
    [
        (np.array([0.0, math.nan]), GRID),
        (np.array([0.0, math.inf], dtype=np.float32), GRID),
        (np.array([0.0, 1.0000001]), GRID),
        (np.array([0.0, 1.7e308]), Grid(0.5, 18, 2**18, Rounding.STOCHASTIC)),
        (np.zeros(3), GRID),
        (np.zeros((2, 1)), GRID),
        (np.zeros(2, dtype=np.int64), GRID),
        (np.zeros(2), WHOLE),
        (np.array([0, 10**6 + 1], dtype=np.int64), WHOLE),
        (np.array([0, -(2**63)], dtype=np.int64), WHOLE),
    ],
)
def test_an_update_that_cannot_be_summed_stops_at_the_site(values: Any, grid: Grid) -> None:
    with pytest.raises(SumRefused) as refused:
        inspect(values, grid, 2, clamp_ppm_max=0)
    assert refused.value.code == "E_RANGE"


def test_clamped_values_are_counted_by_tensor_and_may_be_allowed_for() -> None:
    values = np.zeros(CHUNK_WORDS + 10)
    values[[1, 2, CHUNK_WORDS - 1, CHUNK_WORDS + 3]] = 2.0
    starts = (0, 2, CHUNK_WORDS)
    found = inspect(values, GRID, len(values), clamp_ppm_max=62, tensor_starts=starts)
    assert found.counts == (1, 2, 1)
    assert found.total == 4
    with pytest.raises(SumRefused, match="61 ppm"):
        inspect(values, GRID, len(values), clamp_ppm_max=61, tensor_starts=starts)
    assert inspect(values, GRID, len(values), clamp_ppm_max=None).counts == (4,)


def test_a_norm_is_brought_to_the_clip_and_never_above() -> None:
    values = np.full(400, 1.0)
    factor = shrink_to(values, GRID)
    assert np.linalg.norm(values * factor) <= 1.0
    assert factor == pytest.approx(1 / 20, rel=1e-9)
    assert shrink_to(values / 100, GRID) == 1.0
    assert shrink_to(np.full(4, 1e300), GRID) == 0.0
    assert Points(values, Grid(1.0, 4, 16, Rounding.NEAREST), secret(1)).norm_sq() == 400 * 16**2
    dropped = Points(values, GRID, secret(1))
    dropped.drop()
    assert dropped.norm_sq() == 0


def test_noise_is_calibrated_to_the_fewest_honest_survivors_exactly() -> None:
    bound = distributed.sensitivity(22, 10**6)
    assert bound == 2**22 + 1000
    for z, honest in (("1", 3), ("0.5", 8), ("1.25", 91)):
        sigma_sq = distributed.least_sigma_sq(z, bound, honest)
        assert honest * sigma_sq >= Fraction(z) ** 2 * bound**2 + 16 > honest * (sigma_sq - 1)
        claimed = distributed.claimed_multiplier(sigma_sq, bound, honest)
        assert claimed >= float(z)
        assert Fraction(claimed) ** 2 * bound**2 <= honest * sigma_sq - 16
        assert distributed.realised_multiplier(sigma_sq, bound, 2 * honest) > claimed
    assert distributed.tail(10, 0) == 0
    assert [distributed.ceiling_root(value) for value in (1, 2, 4, 5, 9)] == [1, 2, 2, 3, 3]


def test_a_claimed_multiplier_is_rounded_down() -> None:
    for sigma_sq in range(256, 700):
        claimed = distributed.claimed_multiplier(sigma_sq, 7, 3)
        assert Fraction(claimed) ** 2 <= Fraction(3 * sigma_sq - 16, 49)
        assert Fraction(math.nextafter(claimed, 10**9)) ** 2 > Fraction(3 * sigma_sq - 16, 49)


def staged(dim: int, chunks: dict[int, bytes]) -> Stage:
    stage = Stage(dim, 32)
    for index in range(chunk_count(dim)):
        stage.take(index, chunks[index])
    return stage


def test_uploads_add_up_in_place_once_each() -> None:
    dim = CHUNK_WORDS + 3
    accumulator = Accumulator(dim, 32)
    for number in (1, 2):
        words = to_words(np.full(dim, -number, dtype=np.int64), 32)
        chunks = {0: words[:CHUNK_WORDS].tobytes(), 1: words[CHUNK_WORDS:].tobytes()}
        accumulator.add(f"s{number}", staged(dim, chunks), chunks.__getitem__)
        with pytest.raises(SumRefused, match="E_DUP"):
            accumulator.add(f"s{number}", staged(dim, chunks), chunks.__getitem__)
    assert set(centred(accumulator.words(1)).tolist()) == {-3}
    with pytest.raises(ValueError, match="read-only"):
        accumulator.words(0)[0] = 1


def test_masks_come_off_in_any_ranges_of_chunks() -> None:
    dim = 2 * CHUNK_WORDS + 5
    accumulator = Accumulator(dim, 32)
    masks = [Mask(secret(1), added=True), Mask(secret(2), added=False)]
    accumulator.unmask(masks)
    undo = [Mask(mask.key, not mask.added) for mask in masks]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda index: accumulator.unmask(undo, index, index + 1), range(3)))
    assert not any(accumulator.words(index).any() for index in range(3))


def test_a_spool_that_changed_breaks_the_accumulator_for_good() -> None:
    accumulator = Accumulator(4, 32)
    stage = staged(4, {0: bytes(16)})
    with pytest.raises(SumRefused, match="E_PAYLOAD"):
        accumulator.add("s1", stage, lambda _: b"\x01" * 16)
    with pytest.raises(SumRefused, match="made again"):
        accumulator.words(0)


def test_a_stage_takes_whole_chunks_in_order_and_no_more() -> None:
    dim = CHUNK_WORDS + 1
    stage = Stage(dim, 32)
    for index, data in ((1, bytes(4)), (0, bytes(4)), (0, bytes(4 * CHUNK_WORDS + 4))):
        with pytest.raises(SumRefused, match="E_PAYLOAD"):
            stage.take(index, data)
    stage.take(0, bytes(4 * CHUNK_WORDS))
    stage.take(1, bytes(4))
    assert stage.complete
    with pytest.raises(SumRefused, match="E_PAYLOAD"):
        stage.take(2, bytes(4))


def test_a_stage_is_read_again_after_a_restart_if_its_bytes_are_those_signed() -> None:
    chunks = {0: bytes(range(16))}
    signed = staged(4, chunks).payload.digest()
    assert Stage.read_again(4, 32, signed, chunks.__getitem__).complete
    with pytest.raises(SumRefused, match="E_PAYLOAD"):
        Stage.read_again(4, 32, bytes(32), chunks.__getitem__)


@pytest.mark.parametrize(
    ("bits", "values"),
    [
        (32, [5, -7, 0]),
        (32, [2**31 - 1, -(2**31), 2**23]),
        (64, [2**62, -(2**63), 3]),
        (64, [2**42, -(2**42) - 12345, 2**21 - 1]),
        (16, [-(2**15), 2**15 - 1]),
    ],
)
def test_an_inspection_finds_digest_largest_word_and_norm_exactly(bits: int, values: list[int]) -> None:
    words = to_words(np.array(values, dtype=np.int64), bits)
    inspection = SumInspection(len(values), bits)
    inspection.read(words[:1])
    inspection.read(words[1:].tobytes())
    found = inspection.figures()
    assert found.largest == max(abs(value) for value in values)
    assert found.norm_sq == sum(value * value for value in values)
    assert found.digest == digest("sum", words.tobytes())


def test_an_inspection_wants_every_word_and_no_more() -> None:
    inspection = SumInspection(2, 32)
    with pytest.raises(SumRefused, match="more words"):
        inspection.read(bytes(12))
    inspection.read(bytes(4))
    with pytest.raises(SumRefused, match="1 words of the sum are missing"):
        inspection.figures()


def test_a_sum_beyond_its_bounds_is_refused() -> None:
    limits = {"survivors": 3, "q_max": 10, "sites": 4, "sigma_sq": 0, "dim": 4, "norm_sq_max": 0}
    check_bounds(SumFigures(b"", 30, 0), **limits)
    with pytest.raises(SumRefused, match="E_SUM_RANGE"):
        check_bounds(SumFigures(b"", 31, 0), **limits)
    noisy = limits | {"sigma_sq": 256, "norm_sq_max": 81}
    check_bounds(SumFigures(b"", 30 + 12 * 33, 0), **noisy)
    longest = 3 * 9 + (2 + 12) * 33
    check_bounds(SumFigures(b"", 1, longest**2), **noisy)
    with pytest.raises(SumRefused, match="norm"):
        check_bounds(SumFigures(b"", 1, longest**2 + 1), **noisy)


def test_a_payload_of_no_vector_misses_all_chunks() -> None:
    assert Payload(CHUNK_WORDS * 3).missing == 3


@pytest.mark.parametrize("start", [0, 1, 2])
def test_seeking_equals_slicing(start: int) -> None:
    whole = np.zeros(3 * CHUNK_WORDS, dtype=np.uint32)
    Masks([Mask(secret(4), added=True)], 32, 0).apply(whole)
    part = np.zeros(CHUNK_WORDS, dtype=np.uint32)
    Masks([Mask(secret(4), added=True)], 32, start * CHUNK_WORDS).apply(part)
    assert part.tolist() == whole[start * CHUNK_WORDS : (start + 1) * CHUNK_WORDS].tolist()
