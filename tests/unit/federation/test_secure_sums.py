"""A job's secure sum: codes, the plan that both sides make, the vector and the mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.codes import CODES
from federation.errors import CheckFailed, InvalidInput, PeerMisbehaved
from federation.secure_sums import (
    SumPlace,
    check_as_agreed,
    check_in_range,
    check_survivors,
    figures_of,
    scale_of,
    sum_job_digest,
    sum_plan,
    tensor_starts,
    vector_of,
    words_of,
    write_mean,
)
from federation.sum_codes import PUBLIC_CODES, public_code
from federation.tensors import Manifest, TensorFile, write_tensors
from privacy.secagg.errors import CAUSES, SumRefused
from tests.support.plans import a_plan

SITES = ("east", "north", "south", "west")
ARRAYS: dict[str, Any] = {
    "bias": np.array([0.5, -0.25], np.float32),
    "steps": np.array([3], np.int64),
    "weight": np.array([[1.0, -2.0], [0.0, 7.5]], np.float32),
}
MANIFEST = Manifest.of_arrays(ARRAYS)
DIGEST = sum_job_digest("heart-risk-0a1b2c", "5" * 64)


def secure(**changes: Any) -> Any:
    return a_plan(secure_aggregation={"colluding": 1, "dropouts": 1, **changes})


def place(**changes: Any) -> SumPlace:
    fields = {"round": 2, "attempt": 0, "sum_id": "2" * 64, "model_digest": "3" * 64, "invited": SITES, "epoch": 4}
    return SumPlace(**{**fields, "federation": "heart", **changes})  # type: ignore[arg-type]


def update(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "update.safetensors"
    write_tensors(path, {name: array for name, array in arrays.items() if array.dtype.kind == "f"})
    return path


def test_every_code_of_the_protocol_has_one_public_code_with_its_cure() -> None:
    assert set(PUBLIC_CODES) == set(CAUSES)
    assert len(set(PUBLIC_CODES.values())) == len(CAUSES)
    assert all(CODES[public_code(code)].cure == CAUSES[code][1] for code in CAUSES)


def test_a_site_makes_the_plan_that_the_coordinator_made() -> None:
    made = sum_plan(secure(), DIGEST, MANIFEST, place())
    check_as_agreed(made, secure(), DIGEST, MANIFEST)
    assert (made.dim, made.quorum, made.colluding, made.q_max) == (6, 3, 1, 1 << made.scale_log2)


@pytest.mark.parametrize(
    "changed", [{"quorum": 4}, {"colluding": 0}, {"clip": (9.0).hex()}, {"dim": 7}, {"invited": ("east", "north", "x")}]
)
def test_a_sum_that_differs_from_the_approved_job_is_refused(changed: dict[str, Any]) -> None:
    made = sum_plan(secure(), DIGEST, MANIFEST, place()).model_copy(update=changed)
    with pytest.raises(SumRefused) as refused:
        check_as_agreed(made, secure(), DIGEST, MANIFEST)
    assert refused.value.code == "E_PLAN"


def test_two_jobs_of_one_plan_have_different_sums() -> None:
    assert sum_job_digest("heart-risk-0a1b2c", "5" * 64) != sum_job_digest("heart-risk-0a1b2d", "5" * 64)


@pytest.mark.parametrize("sites", [3, 4, 256, 257, 1000, 4096])
def test_no_sum_of_all_invited_wraps_its_words(sites: int) -> None:
    assert sites << scale_of(sites) <= 2**31 - 1


def test_the_vector_is_the_averaged_tensors_in_the_order_of_their_names(tmp_path: Path) -> None:
    vector = vector_of(update(tmp_path, ARRAYS), MANIFEST)
    assert vector.tolist() == [0.5, -0.25, 1.0, -2.0, 0.0, 7.5]
    assert tensor_starts(MANIFEST) == (0, 2)


def test_binary64_tensors_stay_binary64(tmp_path: Path) -> None:
    arrays = {"weight": np.array([1 + 2.0**-40])}
    vector = vector_of(update(tmp_path, arrays), Manifest.of_arrays(arrays))
    assert vector.tolist() == [1 + 2.0**-40]


@pytest.mark.parametrize("value", [8.5, -9.0, float("nan"), float("inf")])
def test_a_value_out_of_range_stops_at_the_site_with_its_tensors_name(tmp_path: Path, value: float) -> None:
    check_in_range(update(tmp_path, ARRAYS), MANIFEST, 8.0)
    bad = {**ARRAYS, "weight": np.array([[1.0, value], [0.0, 0.0]], np.float32)}
    with pytest.raises(CheckFailed, match=r"tensor weight .*±8"):
        check_in_range(update(tmp_path, bad), MANIFEST, 8.0)


def words(folder: Path, values: list[int]) -> Path:
    path = folder / "sum.words"
    path.write_bytes(np.array(values, np.int64).astype(np.uint32).tobytes())
    return path


def test_the_mean_is_the_sum_times_the_step_over_the_survivors(tmp_path: Path) -> None:
    step = 8.0 / 2 ** scale_of(4)
    out = tmp_path / "mean.safetensors"
    write_mean(words(tmp_path, [3, -6, 0, 9, 2**20, -(2**20)]), secure(), MANIFEST, 3, out)
    with TensorFile(out) as mean:
        found = dict(mean.arrays())
    assert found["bias"].tolist() == [np.float32(step), np.float32(-2 * step)]
    wanted = [0.0, 3 * step, 2**20 * step / 3, -(2**20) * step / 3]
    np.testing.assert_array_equal(found["weight"].ravel(), np.array(wanted, np.float32))


def test_words_of_another_length_give_neither_mean_nor_figures(tmp_path: Path) -> None:
    short = words(tmp_path, [1, 2, 3])
    with pytest.raises(InvalidInput):
        write_mean(short, secure(), MANIFEST, 3, tmp_path / "mean.safetensors")
    with pytest.raises(InvalidInput):
        write_mean(words(tmp_path, [0] * 6), secure(), MANIFEST, 0, tmp_path / "mean.safetensors")
    with pytest.raises(SumRefused):
        figures_of(words(tmp_path, [1, 2, 3]), words_of(MANIFEST))


def test_figures_are_those_of_the_words(tmp_path: Path) -> None:
    found = figures_of(words(tmp_path, [3, -6, 0, 0, 0, 1]), 6)
    assert (found.largest, found.norm_sq) == (6, 46)


def test_a_released_sum_of_too_few_is_refused() -> None:
    check_survivors(["east", "north", "south"], secure())
    with pytest.raises(PeerMisbehaved):
        check_survivors(["east", "north", "north"], secure())
