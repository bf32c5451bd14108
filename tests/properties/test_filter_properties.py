"""The filter against exact composition: whatever an adversary chooses after seeing what came out, the promise holds."""

import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.calibrate import cost
from privacy.accounting.convert import epsilon_at
from privacy.accounting.events import Gaussian
from privacy.accounting.filter import admits, limits, uniform_shares
from privacy.accounting.renyi import DEFAULT_ORDERS, charges, grains


def exact_delta(epsilon: float, mu: float) -> float:
    """Return δ(ε) of Gaussian noise whose squared signal-to-noise ratios sum to `mu`² (Balle, Wang 2018, theorem 8)."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)


@given(
    st.floats(0.2, 6.0),
    st.sampled_from([1e-2, 1e-3, 1e-5]),
    st.lists(st.floats(0.6, 60.0), min_size=1, max_size=60),
)
def test_what_the_filter_lets_through_is_private_by_exact_composition(
    epsilon: float, delta: float, noises: list[float]
) -> None:
    allowed = limits(epsilon, DEFAULT_ORDERS, uniform_shares(delta, DEFAULT_ORDERS))
    total, mu_squared = [0] * len(DEFAULT_ORDERS), 0.0
    for noise in noises:
        row = [grains(step) for step in charges(Gaussian(noise_multiplier=noise), DEFAULT_ORDERS)]
        after = [spent + step for spent, step in zip(total, row, strict=True)]
        if admits(after, allowed):
            total, mu_squared = after, mu_squared + 1 / noise**2
    if mu_squared:
        assert exact_delta(epsilon, math.sqrt(mu_squared)) <= delta
        assert exact_delta(epsilon_at(total, delta, DEFAULT_ORDERS), math.sqrt(mu_squared)) <= delta


LOUD, QUIET = 1.7, 9.0


@lru_cache(maxsize=4096)
def fits(epsilon: float, delta: float, loud: int, quiet: int) -> bool:
    both = zip(cost(Gaussian(noise_multiplier=LOUD), loud), cost(Gaussian(noise_multiplier=QUIET), quiet), strict=True)
    return admits(
        [one + other for one, other in both], limits(epsilon, DEFAULT_ORDERS, uniform_shares(delta, DEFAULT_ORDERS))
    )


@pytest.mark.parametrize("greedy_when_it_learns", [True, False])
def test_an_adversary_who_looks_at_the_loss_so_far_gains_nothing(greedy_when_it_learns: bool) -> None:
    """Draw the loss under P; choose the noise of each step by it; estimate δ(ε) = E[(1 − e^(ε−L))₊]."""
    epsilon, delta, runs = 2.0, 0.02, 40_000
    generator = np.random.default_rng(20261201)
    loss = np.zeros(runs)
    loud, quiet = np.zeros(runs, dtype=int), np.zeros(runs, dtype=int)
    running = np.ones(runs, dtype=bool)
    while running.any():
        wants_loud = (loss > 0.5) == greedy_when_it_learns
        states = {(int(a), int(b)) for a, b in zip(loud[running], quiet[running], strict=True)}
        may_loud = {state: fits(epsilon, delta, state[0] + 1, state[1]) for state in states}
        may_quiet = {state: fits(epsilon, delta, state[0], state[1] + 1) for state in states}
        for state in states:
            here = running & (loud == state[0]) & (quiet == state[1])
            for wanted, may, counts, noise in (
                (True, may_loud, loud, LOUD),
                (False, may_quiet, quiet, QUIET),
            ):
                chosen = here & (wants_loud == wanted)
                if not may[state]:
                    running &= ~chosen
                    continue
                mean = 1 / (2 * noise**2)
                loss[chosen] += generator.normal(mean, 1 / noise, int(chosen.sum()))
                counts[chosen] += 1
    found = np.maximum(0.0, 1 - np.exp(epsilon - loss))
    assert found.mean() - 4 * found.std() / math.sqrt(runs) <= delta
    assert int(loud.max()) >= 1
