"""Evaluation metrics as histograms of scores by class: noisy integers that are charged, or exact public ones.

One row per unit: adding or removing a unit changes one cell of the histogram by one, and the clamped loss sum by at
most its scale. Each of the two gets discrete Gaussian noise of √2·z times its own sensitivity, so that together they
are one Gaussian event with noise multiplier z, which is what the ledger charges, once per evaluation. Integers add up
over sites, in the clear or in a secure sum; accuracy, AUC and mean loss follow from the sum (privacy design, 7.8).

For more than two classes a unit's score is the probability of the class that the model chose, and its class is 1 if
that choice is right and 0 if not: accuracy then is the share of class 1, and AUC says how well confidence tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privacy.errors import ScheduleInvalid
from privacy.noise.discrete_gaussian import discrete_gaussians
from privacy.noise.keystream import KeyRoot, Purpose

CLASSES: Final = 2
BINS_CHARGED: Final = 16
BINS_PUBLIC: Final = 1024
LOSS_SCALE: Final = 1024
"""The clamped loss of a unit is an integer of 0 … 1024, for 0 … `loss_clamp`."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model says about the held-out units, one row per unit. Never leaves the site.

    Attributes:
        score: [units], probability of class 1.
        label: [units], 0 or 1.
        loss: [units], not below 0.
    """

    score: NDArray[np.float64]
    label: NDArray[np.int64]
    loss: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EvaluationCounts:
    """What leaves: integers that add up over sites.

    Attributes:
        histogram: For class 0, then class 1: counts by score. Noisy ones may be negative.
        loss_sum: Sum of clamped losses in units of `loss_clamp`/1024.
        loss_clamp: The clamp, a public constant of the plan.
    """

    histogram: tuple[tuple[int, ...], tuple[int, ...]]
    loss_sum: int
    loss_clamp: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the counts mean. A figure is None where the noise leaves nothing to divide by."""

    loss: float | None
    accuracy: float | None
    auc: float | None


def exact_counts(scores: Scores, *, loss_clamp: float, bins: int = BINS_PUBLIC) -> EvaluationCounts:
    """Return exact counts. To be released only for units that the operator declared public.

    A score or loss that isn't finite counts as the worst there is, so that no unit is ever left out.

    Raises:
        ScheduleInvalid: Arrays of different length, another class than 0 and 1, or bins that don't split at 0.5.
    """
    _check(scores, bins)
    table = np.zeros((CLASSES, bins), dtype=np.int64)
    worst = np.where(scores.label == 1, 0.0, 1.0)
    score = np.where(np.isfinite(scores.score), np.clip(scores.score, 0.0, 1.0), worst)
    cell = np.minimum((score * bins).astype(np.int64), bins - 1)
    np.add.at(table, (scores.label, cell), 1)
    loss = np.where(np.isfinite(scores.loss), np.clip(scores.loss, 0.0, loss_clamp), loss_clamp)
    total = int(np.rint(loss / loss_clamp * LOSS_SCALE).astype(np.int64).sum())
    return EvaluationCounts((_row(table[0]), _row(table[1])), total, loss_clamp)


def charged_counts(scores: Scores, *, loss_clamp: float, noise_multiplier: float) -> EvaluationCounts:
    """Return noisy counts in 16 bins: one Gaussian event with `noise_multiplier`, to be charged before this call.

    Raises:
        ScheduleInvalid: As `exact_counts`, or a noise multiplier that isn't positive.
    """
    if not noise_multiplier > 0:
        raise ScheduleInvalid(f"the noise multiplier of an evaluation is {noise_multiplier}, it must be positive")
    exact = exact_counts(scores, loss_clamp=loss_clamp, bins=BINS_CHARGED)
    variance = 2 * Fraction(noise_multiplier) ** 2
    stream = KeyRoot(Purpose.RELEASE).derive("evaluation")
    noise = discrete_gaussians(stream, variance, CLASSES * BINS_CHARGED)
    (loss_noise,) = discrete_gaussians(stream, variance * LOSS_SCALE**2, 1)
    return EvaluationCounts(
        (
            _plus(exact.histogram[0], noise[:BINS_CHARGED]),
            _plus(exact.histogram[1], noise[BINS_CHARGED:]),
        ),
        exact.loss_sum + loss_noise,
        loss_clamp,
    )


def add(parts: Sequence[EvaluationCounts]) -> EvaluationCounts:
    """Return the sum over sites.

    Raises:
        ScheduleInvalid: There are none, or they have different bins or clamps.
    """
    if not parts or len({(len(part.histogram[0]), part.loss_clamp) for part in parts}) != 1:
        raise ScheduleInvalid("evaluation counts of different shapes can't be added")
    table = np.sum([np.array(part.histogram, dtype=np.int64) for part in parts], axis=0)
    return EvaluationCounts((_row(table[0]), _row(table[1])), sum(part.loss_sum for part in parts), parts[0].loss_clamp)


def metrics(counts: EvaluationCounts) -> Metrics:
    """Return accuracy at threshold 0.5, AUC with ties counted half, and mean clamped loss, within their ranges."""
    negative, positive = (np.array(row, dtype=np.float64) for row in counts.histogram)
    half = len(negative) // 2
    total = float(negative.sum() + positive.sum())
    if total <= 0:
        return Metrics(None, None, None)
    correct = float(negative[:half].sum() + positive[half:].sum())
    loss = counts.loss_sum / LOSS_SCALE * counts.loss_clamp / total
    auc = None
    if negative.sum() > 0 and positive.sum() > 0:
        below = np.cumsum(negative) - negative / 2
        auc = _within(float((positive * below).sum() / (negative.sum() * positive.sum())), 1.0)
    return Metrics(_within(loss, counts.loss_clamp), _within(correct / total, 1.0), auc)


def accuracy_deviation(noise_multiplier: float, units: int, sites: int = 1) -> float:
    """Return about how far noise moves the accuracy of `units` units over `sites` sites; above 0.05 `validate` warns.

    Half of the cells count as correct; the quotient's own noise is left out, since it moves both parts alike.
    """
    return float(np.sqrt(2.0 * noise_multiplier**2 * CLASSES * BINS_CHARGED / 2 * sites) / units)


def _check(scores: Scores, bins: int) -> None:
    if bins < 2 or bins % 2:
        raise ScheduleInvalid("the number of bins must be even, so that one ends at 0.5")
    if not len(scores.score) == len(scores.label) == len(scores.loss):
        raise ScheduleInvalid("scores, labels and losses must have one row per unit")
    if not np.isin(scores.label, (0, 1)).all():
        raise ScheduleInvalid("labels must be 0 or 1")


def _row(values: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _plus(counts: Sequence[int], noise: Sequence[int]) -> tuple[int, ...]:
    return tuple(count + extra for count, extra in zip(counts, noise, strict=True))


def _within(value: float, most: float) -> float:
    return min(max(value, 0.0), most)
