"""The numbers of a sum: how many may collude, drop out, and how many must be left; derived, and always checked.

`derive` is a proposal that both sides can repeat. What counts is that a plan's own numbers satisfy `check`.
"""

from dataclasses import dataclass

from privacy.secagg.errors import SumRefused

LEAST_SITES = 3
MOST_SITES = 4096
COMPLETE_UP_TO = 32


@dataclass(frozen=True, slots=True)
class Parameters:
    """The thresholds of one sum over `sites` invited sites.

    Attributes:
        sites: n, invited.
        colluding: c, sites that may work with the coordinator without learning more than the sum.
        dropouts: δ, sites that may be lost without ending the sum.
        degree: k, neighbours of each site in the ring.
        share_threshold: t, shares that join a secret.
        quorum: Fewest sites in a sum.
    """

    sites: int
    colluding: int
    dropouts: int
    degree: int
    share_threshold: int
    quorum: int

    def consent_threshold(self, shared: int) -> int:
        """Return how many of `shared` sites must sign the same survivors, so that no second set can be signed."""
        return (shared + self.colluding) // 2 + 1


def least_quorum(sites: int, colluding: int) -> int:
    """Return the fewest survivors under which two honest vectors are summed and no second sum can be."""
    return max(3, colluding + 2, (sites + colluding) // 2 + 1)


def derive(sites: int, colluding: int, dropouts: int, job_quorum: int) -> Parameters:
    """Return the parameters of a sum over `sites` sites.

    Raises:
        SumRefused: E_COHORT, there are fewer sites than the quorum; E_PLAN, no parameters exist.
    """
    quorum = max(job_quorum, least_quorum(sites, colluding))
    kept = min(dropouts, sites - quorum)
    if kept < 0:
        raise SumRefused("E_COHORT", f"{sites} sites, the quorum is {quorum}")
    degree = sites - 1
    if sites > COMPLETE_UP_TO:
        needed = max(2, colluding + 1) + kept
        degree = min(degree, needed + needed % 2)
    threshold = max(2, colluding + 1, min(-(-degree // 2), degree - kept))
    return check(Parameters(sites, colluding, kept, degree, threshold, quorum))


def check(found: Parameters) -> Parameters:
    """Return `found` if it keeps P1 to P6, as far as they are numbers.

    Raises:
        SumRefused: E_PLAN, naming the constraint.
    """
    n, c, drops, k = found.sites, found.colluding, found.dropouts, found.degree
    least = least_quorum(n, c)
    _hold(LEAST_SITES <= n <= MOST_SITES, f"P1: {n} sites, allowed are {LEAST_SITES} to {MOST_SITES}")
    _hold(0 <= c <= n - 2, f"P1: {c} colluding of {n} sites, at most {n - 2}")
    _hold(drops >= 0, f"P1: {drops} dropouts")
    _hold(found.quorum >= least, f"P2: quorum {found.quorum}, at least {least}")
    _hold(found.quorum <= n - drops, f"P3: quorum {found.quorum}, at most {n - drops} after {drops} dropouts")
    _hold(k == n - 1 or (k % 2 == 0 and 0 < k < n - 1), f"P4: degree {k} of {n} sites, even or {n - 1}")
    _hold(k >= c + drops + 1, f"P5: degree {k}, at least {c + drops + 1}")
    low, high = max(2, c + 1), k - drops
    _hold(low <= found.share_threshold <= high, f"P6: share threshold {found.share_threshold}, from {low} to {high}")
    return found


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise SumRefused("E_PLAN", message)
