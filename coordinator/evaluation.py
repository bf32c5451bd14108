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

BINS: Final = 16
"""Equal bins of the score in [0, 1], by true class, that every site counts in."""


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
    if not counts.bins == len(counts.positives) == len(counts.negatives) == BINS:
        return f"figures have {counts.bins} bins, expected {BINS}"
    if not math.isfinite(float.fromhex(counts.loss_sum)):
        return "the loss is not finite"
    return ""


def total(counts: Mapping[SiteId, EvaluationCounts]) -> Totals:
    """Return the sum of figures that fit each other, in the order of site ids."""
    ordered = [counts[site] for site in sorted(counts)]
    return Totals(
        positives=tuple(sum(found.positives[place] for found in ordered) for place in range(BINS)),
        negatives=tuple(sum(found.negatives[place] for found in ordered) for place in range(BINS)),
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
    right = sum(totals.negatives[: BINS // 2]) + sum(totals.positives[BINS // 2 :])
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
