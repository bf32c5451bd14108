"""From the sites' summable figures to the metrics of a round: loss, accuracy, AUC. Pure.

Only sums are turned into metrics; a single site's figures are added and forgotten. A metric that is undefined (no
units, one class only) is None, which people see as "not available"; it is never 0 and never NaN. Charged figures carry
noise, so sums of counts may be negative or contradict each other a little; results are brought into their own range.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from federation.messages import EvaluationCounts, SiteId
from privacy.releases.evaluation import BINS_CHARGED, BINS_PUBLIC

BINS: Final[Mapping[str, int]] = {"charged": BINS_CHARGED, "public": BINS_PUBLIC, "exact": BINS_PUBLIC}
"""Equal bins of the score in [0, 1], by true class, that every site counts in: few where each costs noise."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The sum over sites. `positives[k]`, `negatives[k]` count units scored in bin k, by true class."""

    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    loss_sum: float
    sites_count: int


def misfit(counts: EvaluationCounts, *, release: str) -> str:
    """Return why a site's figures can't be added, or nothing."""
    if counts.release != release:
        return f"figures are {counts.release}, expected {release}"
    expected = BINS[release]
    if not counts.bins == len(counts.positives) == len(counts.negatives) == expected:
        return f"figures have {counts.bins} bins, expected {expected}"
    if not math.isfinite(float.fromhex(counts.loss_sum)):
        return "the loss is not finite"
    return ""


def total(counts: Mapping[SiteId, EvaluationCounts]) -> Totals:
    """Return the sum of figures that fit each other, in the order of site ids."""
    ordered = [counts[site] for site in sorted(counts)]
    return Totals(
        positives=tuple(map(sum, zip(*(found.positives for found in ordered), strict=True))),
        negatives=tuple(map(sum, zip(*(found.negatives for found in ordered), strict=True))),
        loss_sum=math.fsum(float.fromhex(found.loss_sum) for found in ordered),
        sites_count=len(ordered),
    )


def metrics(totals: Totals, names: Iterable[str]) -> dict[str, float | None]:
    """Return the named metrics of a sum; None where a metric is undefined.

    Accuracy counts a unit as right when its score is on its class's side of 1/2. AUC counts pairs of a positive and a
    negative unit; a pair in one bin counts half.
    """
    known = {"loss": _loss, "accuracy": _accuracy, "auc": _auc}
    return {name: known[name](totals) for name in names}


def _loss(totals: Totals) -> float | None:
    units = sum(totals.positives) + sum(totals.negatives)
    return max(0.0, totals.loss_sum / units) if units > 0 else None


def _accuracy(totals: Totals) -> float | None:
    units = sum(totals.positives) + sum(totals.negatives)
    if units <= 0:
        return None
    half = len(totals.positives) // 2
    right = sum(totals.negatives[:half]) + sum(totals.positives[half:])
    return _within(right / units)


def _auc(totals: Totals) -> float | None:
    positives, negatives = sum(totals.positives), sum(totals.negatives)
    if positives <= 0 or negatives <= 0:
        return None
    twice, below = 0, 0
    for positive, negative in zip(totals.positives, totals.negatives, strict=True):
        twice += positive * (2 * below + negative)
        below += negative
    return _within(twice / (2 * positives * negatives))


def _within(value: float) -> float:
    return min(1.0, max(0.0, value))
