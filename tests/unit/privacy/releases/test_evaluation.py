"""Evaluation counts: exact where public, noisy by one unit's sensitivity where charged, and what they mean."""

import numpy as np
import pytest
from scipy import stats

from privacy.errors import ScheduleInvalid
from privacy.releases.evaluation import (
    BINS_CHARGED,
    LOSS_SCALE,
    EvaluationCounts,
    Scores,
    accuracy_deviation,
    add,
    charged_counts,
    exact_counts,
    metrics,
)

RANDOM = np.random.default_rng(5)  # test data, no noise


def some_scores(units: int = 400) -> Scores:
    label = RANDOM.integers(0, 2, units)
    score = np.clip(0.3 + 0.4 * label + 0.2 * RANDOM.standard_normal(units), 0, 1)
    return Scores(score, label, -np.log(np.clip(np.where(label == 1, score, 1 - score), 1e-3, 1)))


def table(counts: EvaluationCounts) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(counts.histogram)


def test_exact_counts_give_the_metrics_of_the_scores_themselves() -> None:
    scores = some_scores()
    found = metrics(exact_counts(scores, loss_clamp=10.0))
    positive, negative = scores.score[scores.label == 1], scores.score[scores.label == 0]
    auc = stats.mannwhitneyu(positive, negative).statistic / (len(positive) * len(negative))
    assert found.auc == pytest.approx(auc, abs=1e-3)
    assert found.accuracy == pytest.approx(float(((scores.score >= 0.5) == scores.label).mean()), abs=1e-9)
    assert found.loss == pytest.approx(float(scores.loss.mean()), abs=1e-2)


def test_one_unit_moves_one_cell_by_one_and_the_loss_by_at_most_its_scale() -> None:
    scores = some_scores(50)
    whole = exact_counts(scores, loss_clamp=2.0, bins=BINS_CHARGED)
    for index in range(50):
        keep = np.arange(50) != index
        without = exact_counts(
            Scores(scores.score[keep], scores.label[keep], scores.loss[keep]), loss_clamp=2.0, bins=BINS_CHARGED
        )
        assert np.abs(table(whole) - table(without)).sum() == 1
        assert 0 <= whole.loss_sum - without.loss_sum <= LOSS_SCALE


def test_a_unit_without_a_finite_score_or_loss_counts_as_the_worst() -> None:
    scores = Scores(np.array([np.nan, np.inf, 2.0]), np.array([1, 0, 1]), np.array([np.inf, np.nan, -1.0]))
    counts = exact_counts(scores, loss_clamp=3.0, bins=4)
    assert counts.histogram == ((0, 0, 0, 1), (1, 0, 0, 1))
    assert counts.loss_sum == 2 * LOSS_SCALE


def test_charged_counts_have_the_noise_that_is_accounted_for() -> None:
    scores, noise = some_scores(100), 3.0
    exact = exact_counts(scores, loss_clamp=2.0, bins=BINS_CHARGED)
    draws = [charged_counts(scores, loss_clamp=2.0, noise_multiplier=noise) for _ in range(40)]
    cells = np.concatenate([(table(drawn) - table(exact)).ravel() for drawn in draws]) / (np.sqrt(2) * noise)
    losses = np.array([drawn.loss_sum - exact.loss_sum for drawn in draws]) / (np.sqrt(2) * noise * LOSS_SCALE)
    for values in (cells, losses):
        total = float((values**2).sum())
        assert 1e-7 < stats.chi2.sf(total, len(values)) < 1 - 1e-7
    assert len({drawn.histogram for drawn in draws}) == 40


def test_counts_of_sites_add_up_to_the_counts_of_all() -> None:
    scores = some_scores(60)
    halves = [
        Scores(scores.score[part], scores.label[part], scores.loss[part]) for part in (slice(0, 25), slice(25, 60))
    ]
    summed = add([exact_counts(half, loss_clamp=2.0) for half in halves])
    assert summed == exact_counts(scores, loss_clamp=2.0)


def test_metrics_stay_in_their_ranges_whatever_the_noise() -> None:
    wild = EvaluationCounts(((-50,) + (0,) * 15, (0,) * 15 + (80,)), 10**9, 2.0)
    found = metrics(wild)
    assert found.loss == 2.0
    assert found.accuracy == 1.0
    assert found.auc is None
    assert metrics(EvaluationCounts(((-5,) * 16, (0,) * 16), 3, 2.0)).accuracy is None


def test_predicted_deviation_of_the_accuracy_is_about_the_measured_one() -> None:
    scores = some_scores(500)
    found = [metrics(charged_counts(scores, loss_clamp=2.0, noise_multiplier=2.0)).accuracy or 0 for _ in range(60)]
    assert np.std(found) == pytest.approx(accuracy_deviation(2.0, 500), rel=0.5)


@pytest.mark.parametrize(
    ("scores", "bins"),
    [
        (Scores(np.array([0.1]), np.array([2]), np.array([0.0])), 16),
        (Scores(np.array([0.1]), np.array([1, 0]), np.array([0.0])), 16),
        (Scores(np.array([0.1]), np.array([1]), np.array([0.0])), 15),
    ],
)
def test_scores_that_make_no_histogram_are_refused(scores: Scores, bins: int) -> None:
    with pytest.raises(ScheduleInvalid):
        exact_counts(scores, loss_clamp=1.0, bins=bins)


def test_counts_that_do_not_add_up_are_refused() -> None:
    one = exact_counts(some_scores(5), loss_clamp=1.0)
    with pytest.raises(ScheduleInvalid):
        add([one, exact_counts(some_scores(5), loss_clamp=2.0)])
    with pytest.raises(ScheduleInvalid):
        add([])
    with pytest.raises(ScheduleInvalid):
        charged_counts(some_scores(5), loss_clamp=1.0, noise_multiplier=0.0)
