"""What `job validate` proposes for a promise: schedules that keep it, each with its least noise."""

import pytest

from privacy.accounting.calibrate import cost
from privacy.accounting.events import training_event
from privacy.accounting.filter import admits, limits, uniform_shares
from privacy.accounting.proposals import proposals
from privacy.accounting.renyi import DEFAULT_ORDERS
from privacy.errors import DeltaInvalid, EpsilonInvalid, ScheduleInvalid, UnitsUndeclared


def test_every_proposal_keeps_the_promise_and_with_less_noise_does_not() -> None:
    allowed = limits(2.0, DEFAULT_ORDERS, uniform_shares(1e-4, DEFAULT_ORDERS))
    found = proposals(epsilon=2.0, delta=1e-4, units=1000, batch=64, steps=200)
    assert [one.sampling_rate for one in found] == [1.0, 0.5, 0.2, 0.1, 0.064, 0.05, 0.02, 0.01]
    for one in found:
        assert admits(cost(training_event(one.sampling_rate, one.noise_multiplier), one.steps), allowed)
        less = training_event(one.sampling_rate, one.noise_multiplier - 0.002)
        assert not admits(cost(less, one.steps), allowed)
        assert one.epochs == pytest.approx(12.8, rel=0.05)


def test_the_plans_own_schedule_is_among_them_and_large_batches_have_less_noise_in_a_step() -> None:
    found = proposals(epsilon=1.0, delta=1e-4, units=1000, batch=50, steps=300)
    (own,) = [one for one in found if one.is_plans]
    assert (own.sampling_rate, own.steps, own.batch) == (0.05, 300, 50.0)
    noises = [one.noise for one in found]
    assert noises == sorted(noises)


def test_a_batch_above_the_units_takes_them_all_at_once() -> None:
    found = proposals(epsilon=1.0, delta=1e-3, units=30, batch=256, steps=15)
    assert (found[0].is_plans, found[0].sampling_rate, found[0].batch) == (True, 1.0, 30.0)
    assert min(one.batch for one in found) >= 1


def test_what_would_take_too_many_steps_or_more_noise_than_there_is_is_left_out() -> None:
    rates = [one.sampling_rate for one in proposals(epsilon=8.0, delta=1e-6, units=10_000, batch=10_000, steps=400_000)]
    assert rates == [1.0, 0.5]
    tight = proposals(epsilon=0.0165, delta=1e-3, units=500, batch=5, steps=1_000_000)
    assert 1.0 not in [one.sampling_rate for one in tight]


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"epsilon": 0.0}, EpsilonInvalid),
        ({"delta": 1.5}, DeltaInvalid),
        ({"delta": 0.01}, DeltaInvalid),
        ({"units": 0}, UnitsUndeclared),
        ({"batch": 0}, ScheduleInvalid),
        ({"steps": 2_000_000}, ScheduleInvalid),
        ({"epsilon": 1e-9}, ScheduleInvalid),
    ],
)
def test_what_is_no_promise_is_refused(wrong: dict[str, float], refusal: type[Exception]) -> None:
    plain = {"epsilon": 1.0, "delta": 1e-4, "units": 1000, "batch": 50, "steps": 300}
    with pytest.raises(refusal):
        proposals(**{**plain, **wrong})  # type: ignore[arg-type]
