"""Metrics from sums of counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.evaluation import BINS as BINS_OF
from coordinator.evaluation import Totals, metrics, misfit, total
from federation.messages import EvaluationCounts, SiteId

BINS = BINS_OF["charged"]
NAMES = ("loss", "accuracy", "auc")
bins = st.lists(st.integers(0, 50), min_size=BINS, max_size=BINS)


def counts(positives: list[int], negatives: list[int], loss: float = 1.0) -> EvaluationCounts:
    return EvaluationCounts(
        release="charged", bins=BINS, positives=tuple(positives), negatives=tuple(negatives), loss_sum=loss.hex()
    )


@given(bins, bins)
def test_auc_is_the_share_of_pairs_in_the_right_order_with_halves_for_ties(
    positives: list[int], negatives: list[int]
) -> None:
    found = metrics(Totals(tuple(positives), tuple(negatives), 0.0, 1), NAMES)["auc"]
    pairs = sum(positives) * sum(negatives)
    if not pairs:
        assert found is None
        return
    right = sum(
        p * n * (1.0 if i > j else 0.5 if i == j else 0.0)
        for i, p in enumerate(positives)
        for j, n in enumerate(negatives)
    )
    assert math.isclose(found or 0.0, right / pairs, abs_tol=1e-12)


@given(st.lists(st.tuples(bins, bins, st.floats(0, 100)), min_size=1, max_size=5))
def test_the_sum_over_sites_is_the_same_as_if_the_units_lay_at_one(
    parts: list[tuple[list[int], list[int], float]],
) -> None:
    found = total({SiteId(f"site-{place}"): counts(*part) for place, part in enumerate(parts)})
    assert found.positives == tuple(sum(part[0][place] for part in parts) for place in range(BINS))
    assert found.sites_count == len(parts)
    for value in metrics(found, NAMES).values():
        assert value is None or (math.isfinite(value) and value >= 0)


@given(
    st.lists(st.integers(-60, 60), min_size=BINS, max_size=BINS),
    st.lists(st.integers(-60, 60), min_size=BINS, max_size=BINS),
    st.floats(-10, 10),
)
def test_noise_never_brings_a_metric_out_of_its_range(positives: list[int], negatives: list[int], loss: float) -> None:
    found = metrics(Totals(tuple(positives), tuple(negatives), loss, 2), NAMES)
    assert found["accuracy"] is None or 0 <= found["accuracy"] <= 1
    assert found["auc"] is None or 0 <= found["auc"] <= 1
    assert found["loss"] is None or found["loss"] >= 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"release": "exact"}, "figures are exact, expected charged"),
        ({"bins": 8}, "figures have 8 bins"),
        ({"positives": (1,) * 15}, "figures have 16 bins"),
        ({"loss_sum": "inf"}, "not finite"),
    ],
)
def test_figures_that_do_not_fit_are_not_added(changes: dict[str, object], why: str) -> None:
    whole = counts([0] * BINS, [0] * BINS)
    assert why in misfit(whole.model_copy(update=changes), release="charged")
    assert misfit(counts([0] * BINS, [0] * BINS), release="charged") == ""
