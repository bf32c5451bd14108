"""Which sites share a mask: the ring of Bell et al. (2020), and a bound on how well its survivors are connected.

The ring's order follows from the roster, which nobody could choose alone after seeing it. Instead of an argument about
random graphs, every site checks the graph that came out: a set of removed places can split a ring only by emptying two
disjoint windows of half the degree, so the fewest survivors in two such windows bound the connectivity from below,
whatever the drops were and however the order was drawn. The bound is our own derivation.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privacy.secagg.derivation import digest


@dataclass(frozen=True)
class Ring:
    """The neighbourhoods over the sites that advertised.

    Attributes:
        order: Their ids in the order of the ring.
        degree: Neighbours of each site; `len(order)` − 1 or more means all of them.
    """

    order: tuple[str, ...]
    degree: int

    @property
    def complete(self) -> bool:
        """Return whether every two sites are neighbours."""
        return self.degree >= len(self.order) - 1

    @cached_property
    def positions(self) -> dict[str, int]:
        """Return the place of each site in the ring, from 0."""
        return {site: place for place, site in enumerate(self.order)}

    def neighbours(self, site: str) -> tuple[str, ...]:
        """Return the neighbours of `site`, from the farthest behind it to the farthest ahead."""
        place, size = self.positions[site], len(self.order)
        if self.complete:
            return tuple(self.order[(place + step) % size] for step in range(1, size))
        half = self.degree // 2
        steps = (*range(-half, 0), *range(1, half + 1))
        return tuple(self.order[(place + step) % size] for step in steps)

    def connectivity_bound(self, survivors: Collection[str]) -> int:
        """Return a number that the vertex connectivity among `survivors` never falls below.

        It may be less than the true connectivity: then a graph is refused that would have been safe.
        """
        alive = np.zeros(len(self.order), dtype=np.int64)
        alive[[self.positions[site] for site in survivors]] = 1
        most = len(survivors) - 1
        return most if self.complete else min(most, _fewest_in_two_windows(alive, self.degree // 2))


def ring_over(roster: bytes, sites: Iterable[str], degree: int) -> Ring:
    """Return the ring over `sites`, sorted by their digests under the roster."""
    return Ring(tuple(sorted(sites, key=lambda site: digest("ring", roster, site))), degree)


def _fewest_in_two_windows(alive: np.ndarray[tuple[int], np.dtype[np.int64]], half: int) -> int:
    """Return the least number of survivors in two disjoint windows of `half` consecutive places."""
    size = len(alive)
    sums = np.concatenate(([0], np.cumsum(np.concatenate((alive, alive[:half])))))
    windows = sums[half : half + size] - sums[:size]
    twice = np.concatenate((windows, windows))
    apart = range(half, size // 2 + 1)  # starts `half` or more apart both ways round; the rest is symmetric
    return min(int((windows + twice[step : step + size]).min()) for step in apart)
