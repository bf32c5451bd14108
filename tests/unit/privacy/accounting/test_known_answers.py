"""The published figures of the accountant, and what they are held to: dp-accounting, closed forms, quadrature."""

import math

import numpy as np
import pytest

from privacy.accounting.calibrate import cost, noise_for
from privacy.accounting.convert import epsilon_at, epsilon_of, nano, odds_percent, printed
from privacy.accounting.events import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    PureEpsilon,
    RowSampledGaussian,
    training_event,
)
from privacy.accounting.filter import admits, limits, thresholds, uniform_shares
from privacy.accounting.profile import compute
from privacy.accounting.renyi import (
    DEFAULT_ORDERS,
    charge_per_step,
    divergences,
    grains,
    grains_as_float,
    grains_below,
)

THRESHOLDS = {
    (4.0, 1e-5): (
        -8.20607265, -1.84141225, 0.218991191, 1.82220005, 2.97586301, 3.6085932, 3.86601052, 3.95757298,
    ),
    (1.0, 1e-3): (
        -6.60090246, -2.53882716, -1.24595208, -0.256765913, 0.436380025, 0.800475286, 0.939108456, 0.983888234,
    ),
}  # fmt: skip
SAMPLED = {
    (0.01, 1.0): (
        1.71813422e-4, 2.64637575e-4, 3.63154049e-4, 5.83498149e-4, 0.440704968, 7.70294773, 27.3217319, 83.3685146,
    ),
    (0.2, 2.0): (
        0.011296965, 0.0177812651, 0.0249715653, 0.0421525055, 0.120951023, 1.45914804, 6.36501604, 20.3813653,
    ),
}  # fmt: skip
SCHEDULES = (
    (1.0, 0.01, 1000, 1e-5, 2.761, 1.828),
    (2.0, 0.1, 500, 1e-5, 6.783, 5.555),
    (20.0, 1.0, 100, 1e-5, 2.399, 1.993),
    (1.5, 0.05, 300, 1e-3, 2.702, 1.943),
    (0.6, 0.001, 20_000, 1e-6, 5.377, 3.747),
)


@pytest.mark.parametrize(("policy", "expected"), THRESHOLDS.items())
def test_thresholds_are_the_published_ones(policy: tuple[float, float], expected: tuple[float, ...]) -> None:
    epsilon, delta = policy
    found = thresholds(epsilon, DEFAULT_ORDERS, uniform_shares(delta, DEFAULT_ORDERS))
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("event", "expected"), SAMPLED.items())
def test_divergences_of_the_sampled_gaussian_are_the_published_ones(
    event: tuple[float, float], expected: tuple[float, ...]
) -> None:
    rate, noise = event
    found = divergences(PoissonGaussian(sampling_rate=rate, noise_multiplier=noise), DEFAULT_ORDERS)
    assert found == pytest.approx(expected, rel=1e-6)


def test_without_sampling_the_divergence_is_alpha_over_two_sigma_squared() -> None:
    assert divergences(Gaussian(noise_multiplier=10.0), DEFAULT_ORDERS) == pytest.approx(
        [order / 200 for order in DEFAULT_ORDERS], rel=1e-15
    )
    full = PoissonGaussian(sampling_rate=1.0, noise_multiplier=10.0)
    assert divergences(full, DEFAULT_ORDERS) == divergences(Gaussian(noise_multiplier=10.0), DEFAULT_ORDERS)


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "epsilon", "exact"), SCHEDULES)
def test_epsilon_of_whole_schedules_is_the_published_one_and_above_the_exact_one(
    noise: float, rate: float, steps: int, delta: float, epsilon: float, exact: float
) -> None:
    found = epsilon_at(cost(training_event(rate, noise), steps), delta, DEFAULT_ORDERS)
    assert found == pytest.approx(epsilon, abs=5e-4)
    assert found > exact


@pytest.mark.parametrize(("rate", "noise"), [(1e-4, 0.7), (0.003, 1.1), (0.02, 0.5), (0.3, 4.0), (0.9, 1.0)])
def test_divergences_equal_those_of_dp_accounting(rate: float, noise: float) -> None:
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(list(DEFAULT_ORDERS))
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)))
    theirs = accountant._rdp
    ours = divergences(PoissonGaussian(sampling_rate=rate, noise_multiplier=noise), DEFAULT_ORDERS)
    assert ours == pytest.approx(list(theirs), rel=1e-6)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.2, 2.0), (0.5, 0.8), (0.95, 3.0)])
def test_the_charge_covers_both_directions_by_quadrature(rate: float, noise: float) -> None:
    grid = np.linspace(-60 * noise, 60 * noise + 60, 2_000_001)
    log_zero = -(grid**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    log_one = -((grid - 1) ** 2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    log_mixture = np.logaddexp(math.log1p(-rate) + log_zero, math.log(rate) + log_one)
    event = PoissonGaussian(sampling_rate=rate, noise_multiplier=noise)
    for order, ours in zip((2, 3, 4, 6, 11), divergences(event, (2, 3, 4, 6, 11)), strict=True):
        for first, second in ((log_mixture, log_zero), (log_zero, log_mixture)):
            logs = order * first + (1 - order) * second
            top = logs.max()
            integral = np.trapezoid(np.exp(logs - top), grid)
            there = (top + math.log(integral)) / (order - 1)
            assert there <= charge_per_step(ours) * (1 + 1e-9) + 1e-12
        # The first direction is the one that the sum gives.
        logs = order * log_mixture + (1 - order) * log_zero
        assert ours == pytest.approx(
            (logs.max() + math.log(np.trapezoid(np.exp(logs - logs.max()), grid))) / (order - 1), rel=1e-6, abs=1e-12
        )


def test_laplace_divergence_equals_quadrature_and_stays_below_its_epsilon() -> None:
    scale = 1.7
    grid = np.linspace(-150, 150, 1_500_001)
    zero, one = -np.abs(grid) / scale - math.log(2 * scale), -np.abs(grid - 1) / scale - math.log(2 * scale)
    for order, ours in zip((2, 6, 25), divergences(Laplace(noise_multiplier=scale), (2, 6, 25)), strict=True):
        quadrature = math.log(np.trapezoid(np.exp(order * one + (1 - order) * zero), grid)) / (order - 1)
        assert ours == pytest.approx(quadrature, rel=1e-5)
        assert ours <= 1 / scale


def test_pure_epsilon_is_charged_the_smaller_of_its_two_bounds() -> None:
    assert divergences(PureEpsilon(epsilon=0.1), (2, 64)) == pytest.approx((0.01, 0.1))


def test_a_tiny_divergence_keeps_its_relative_accuracy() -> None:
    event = PoissonGaussian(sampling_rate=1e-6, noise_multiplier=3.0)
    (found,) = divergences(event, (2,))
    assert found == pytest.approx(1e-12 * math.expm1(1 / 9), rel=1e-10)


def test_a_charge_is_above_its_divergence_and_an_exact_integer_of_grains() -> None:
    for divergence in (0.0, 1e-16, 1.7e-4, 0.4407, 83.37, 1e5):
        charge = charge_per_step(divergence)
        assert charge > divergence
        assert grains(charge) / 2**60 == charge
        assert charge <= divergence * (1 + 2e-9) + 2e-14


def test_what_was_not_charged_here_is_no_integer_of_grains() -> None:
    with pytest.raises(ValueError, match="2\\^-60"):
        grains(1e-19)
    with pytest.raises(ValueError, match="2\\^-60"):
        grains(math.inf)


def test_grains_round_against_the_spender() -> None:
    assert grains_below(-0.5) == -(2**59)
    odd = 2**54 + 1
    assert grains_as_float(odd) * 2**60 >= odd
    assert grains_as_float(2**60) == 1.0


def test_shares_of_delta_never_sum_to_more_than_delta() -> None:
    for delta in (1e-5, 1e-3, 0.1, 3e-7):
        for orders in (DEFAULT_ORDERS, (2, 3, 4), (2, 3, 4, 6, 7, 8, 9)):
            shares = uniform_shares(delta, orders)
            assert math.fsum(shares) <= delta


def test_nothing_spent_is_zero_and_always_admitted() -> None:
    zeros = (0,) * len(DEFAULT_ORDERS)
    assert epsilon_at(zeros, 1e-5, DEFAULT_ORDERS) == 0.0
    assert admits(zeros, (-1,) * len(DEFAULT_ORDERS))


def test_epsilon_is_never_negative() -> None:
    tiny = cost(Gaussian(noise_multiplier=9_000.0), 1)
    assert epsilon_at(tiny, 0.9, DEFAULT_ORDERS) >= 0.0


def test_admission_and_conversion_agree() -> None:
    shares = uniform_shares(1e-5, DEFAULT_ORDERS)
    for noise in (2.0, 3.0, 5.0, 9.0):
        total = cost(PoissonGaussian(sampling_rate=0.1, noise_multiplier=noise), 300)
        epsilon = epsilon_of(total, DEFAULT_ORDERS, shares)
        assert admits(total, limits(epsilon * (1 + 1e-12), DEFAULT_ORDERS, shares))
        assert not admits(total, limits(epsilon * (1 - 1e-9), DEFAULT_ORDERS, shares))


def test_a_calibrated_schedule_is_admitted_and_two_thousandths_less_noise_is_not() -> None:
    for epsilon, delta, rate, steps in ((4.0, 1e-5, 0.2, 400), (1.0, 1e-3, 1.0, 15), (0.3, 1e-6, 0.01, 1000)):
        noise = noise_for(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps)
        allowed = limits(epsilon, DEFAULT_ORDERS, uniform_shares(delta, DEFAULT_ORDERS))
        assert noise * 1000 == pytest.approx(round(noise * 1000), abs=1e-9)
        assert admits(cost(training_event(rate, noise), steps), allowed)
        assert not admits(cost(training_event(rate, noise - 0.002), steps), allowed)


def test_printed_epsilon_rounds_up() -> None:
    assert printed(1.3000001) == "1.31"
    assert printed(1.25) == "1.25"
    assert printed(0.0) == "0.00"
    assert printed(math.inf) == "unbounded"
    assert nano(1.0000000001) == 1_000_000_001


@pytest.mark.parametrize(("epsilon", "percent"), [(0.5, 63), (1.0, 74), (2.0, 89), (4.0, 99)])
def test_odds_are_those_of_the_statement(epsilon: float, percent: int) -> None:
    assert odds_percent(epsilon, 1e-5) == percent


ROWS_OF_ONE_PERSON = (
    2.90229e-3, 5.63475e-3, 7.44236, 25.8952, 67.7373, 180.812, 493.287, 1389.47,
)  # fmt: skip


def test_divergences_for_a_person_with_four_rows_are_the_published_ones() -> None:
    event = RowSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0, rows=4)
    assert divergences(event, DEFAULT_ORDERS) == pytest.approx(ROWS_OF_ONE_PERSON, rel=1e-5)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.2, 2.0), (0.5, 0.8), (0.003, 0.6)])
def test_a_person_with_one_row_is_charged_the_sampled_gaussian(rate: float, noise: float) -> None:
    orders = (2, 3, 4, 6, 11, 25)
    one = divergences(RowSampledGaussian(sampling_rate=rate, noise_multiplier=noise, rows=1), orders)
    plain = divergences(PoissonGaussian(sampling_rate=rate, noise_multiplier=noise), orders)
    assert one == pytest.approx(plain, rel=2e-6)
    assert all(more >= less for more, less in zip(one, plain, strict=True))


def test_without_sampling_a_persons_rows_add_up() -> None:
    event = RowSampledGaussian(sampling_rate=1.0, noise_multiplier=4.0, rows=3)
    assert divergences(event, (2, 6)) == pytest.approx((2 * 9 / 32, 6 * 9 / 32))


@pytest.mark.parametrize(("rows", "exact", "dense"), [(2, 3.98, 4.5), (4, 8.9, 10.0), (8, 20.9, 22.9)])
def test_a_persons_figure_lies_above_the_exact_one_and_above_rows_times_a_rows_own(
    rows: int, exact: float, dense: float
) -> None:
    event = RowSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0, rows=rows)
    orders = (2, 3, 4, 5)
    total = cost(event, 1000, orders)
    found = epsilon_at(total, 1e-5, orders)
    # The published bound takes all of δ at the best of many orders; ours has fewer orders and a share of δ.
    unsplit = min(
        grains_as_float(spent) + math.log(1 - 1 / order) - math.log(1e-5 * order) / (order - 1)
        for order, spent in zip(orders, total, strict=True)
    )
    assert exact < dense <= unsplit * 1.01
    assert unsplit < found
    assert found > rows * 1.83


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "exact", "replaced"),
    [(20.0, 1.0, 100, 1e-5, 1.993, 4.377), (1.5, 0.05, 300, 1e-3, 1.943, 3.772)],
)
def test_the_exact_figures_for_a_unit_more_and_for_a_unit_replaced_are_the_published_ones(
    noise: float, rate: float, steps: int, delta: float, exact: float, replaced: float
) -> None:
    event = training_event(rate, noise)
    assert compute([(event, steps)], delta) == pytest.approx(exact, abs=1e-3)
    assert compute([(event, steps)], delta, "replace") == pytest.approx(replaced, abs=1e-3)


@pytest.mark.slow
def test_the_exact_figure_of_one_persons_rows_is_below_what_the_ledger_charges() -> None:
    event = RowSampledGaussian(sampling_rate=0.1, noise_multiplier=6.0, rows=2)
    exact = compute([(event, 4)], 1e-3)
    assert 0 < exact < epsilon_at(cost(event, 4), 1e-3, DEFAULT_ORDERS)
