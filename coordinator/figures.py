"""The sites' figures of one evaluation, gathered until they are a sum.

Figures of a site either fit and are added, or the site is named with the reason; nothing of a single site is told on.
Fewer sites than the quorum give no metrics at all. What a metric is made of is `evaluation`'s.
"""

from collections.abc import Iterable
from typing import Final

from coordinator import evaluation
from coordinator.replies import cause_of, failure
from federation.messages import EvaluationCounts, Outcome, PhaseReply, SiteId


class Figures:
    """What has come in so far.

    Args:
        release: How the plan has figures released; others don't fit.
    """

    def __init__(self, release: str) -> None:
        self._release = release
        self._counts: dict[SiteId, EvaluationCounts] = {}
        self.bad: Final[dict[SiteId, str]] = {}

    def take(self, site: SiteId, reply: PhaseReply) -> None:
        """Add a site's figures, or keep in `bad` why they can't be added."""
        if reply.outcome is Outcome.FAILED or reply.evaluation is None:
            self.bad[site] = failure(reply)
        elif why := evaluation.misfit(reply.evaluation, release=self._release):
            self.bad[site] = why
        else:
            self._counts[site] = reply.evaluation

    def refused(self, site: SiteId, code: str) -> None:
        """Keep in `bad` that a site finally refused the request itself."""
        self.bad[site] = cause_of(code)

    def metrics(self, names: Iterable[str], *, quorum: int) -> dict[str, float | None]:
        """Return the named metrics of the sum; all None where fewer than `quorum` sites gave figures that fit."""
        if len(self._counts) < quorum:
            return dict.fromkeys(names)
        return evaluation.metrics(evaluation.total(self._counts), names)
