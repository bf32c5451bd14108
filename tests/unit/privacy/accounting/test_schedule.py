"""What a plan's fields become at a site, and what is refused before anything is reserved."""

from typing import Any

import pytest
from pydantic import ValidationError

from privacy.accounting.calibrate import least_noise
from privacy.accounting.events import Gaussian, PoissonGaussian, event_from_text, event_text
from privacy.accounting.profile import compute, exact_epsilon
from privacy.accounting.schedule import Schedule, evaluation_schedule, schedule_for
from privacy.errors import (
    DeltaInvalid,
    EngineWrong,
    EpsilonInvalid,
    PrivacyError,
    ScheduleInvalid,
    Unbounded,
    UnitInvalid,
    UnitsUndeclared,
)


def a_schedule(**fields: Any) -> Schedule:
    plan: dict[str, Any] = {
        "epsilon": 2.0,
        "delta": 1e-3,
        "batch": 50,
        "rounds": 4,
        "local_steps": 5,
        "clip": 1.0,
        "units_declared": 200,
    }
    return schedule_for(**{**plan, **fields})


def test_rate_and_normaliser_come_from_the_declared_number_of_units() -> None:
    schedule = a_schedule()
    assert (schedule.sampling_rate, schedule.normaliser, schedule.steps) == (0.25, 50.0, 20)
    assert isinstance(schedule.event, PoissonGaussian)


def test_a_batch_beyond_the_declared_units_is_all_of_them() -> None:
    schedule = a_schedule(batch=1000)
    assert (schedule.sampling_rate, schedule.normaliser) == (1.0, 200.0)
    assert isinstance(schedule.event, Gaussian)


def test_the_whole_schedule_costs_at_most_the_plans_epsilon() -> None:
    schedule = a_schedule()
    assert 1.99 < schedule.epsilon_after(schedule.steps) <= 2.0
    assert schedule.epsilon_after(0) == 0.0


def test_given_noise_is_kept_if_it_costs_no_more_than_epsilon() -> None:
    assert a_schedule(noise_multiplier=50.0).noise_multiplier == 50.0


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"epsilon": 0.0}, EpsilonInvalid),
        ({"epsilon": float("nan")}, EpsilonInvalid),
        ({"epsilon": float("inf")}, EpsilonInvalid),
        ({"noise_multiplier": 0.5}, EpsilonInvalid),
        ({"noise_multiplier": 0.0}, Unbounded),
        ({"noise_multiplier": -1.0}, ScheduleInvalid),
        ({"mechanism": "none"}, Unbounded),
        ({"mechanism": "distributed"}, UnitInvalid),
        ({"unit": "site"}, UnitInvalid),
        ({"unit": "patient"}, UnitInvalid),
        ({"delta": 0.0}, DeltaInvalid),
        ({"delta": 1.0}, DeltaInvalid),
        ({"delta": 1.5}, DeltaInvalid),
        ({"delta": 1 / 200}, DeltaInvalid),
        ({"units_declared": None}, UnitsUndeclared),
        ({"units_declared": 0}, UnitsUndeclared),
        ({"batch": 0}, ScheduleInvalid),
        ({"rounds": 0}, ScheduleInvalid),
        ({"local_steps": 0}, ScheduleInvalid),
        ({"clip": 0.0}, ScheduleInvalid),
        ({"clip": float("inf")}, ScheduleInvalid),
        ({"clipping": "soft"}, ScheduleInvalid),
        ({"epsilon": 1e-6, "delta": 1e-9, "rounds": 10_000}, ScheduleInvalid),
    ],
)
def test_a_plan_that_promises_nothing_is_refused_by_its_class(
    fields: dict[str, Any], refusal: type[PrivacyError]
) -> None:
    with pytest.raises(refusal) as caught:
        a_schedule(**fields)
    assert caught.value.hint


def test_the_sites_operator_may_override_the_rule_about_delta_and_units() -> None:
    assert a_schedule(delta=1 / 200, delta_override=True).delta == 1 / 200


def test_evaluations_fit_their_epsilon_together() -> None:
    schedule = evaluation_schedule(epsilon=1.0, delta=1e-3, evaluations=20)
    alone = evaluation_schedule(epsilon=1.0, delta=1e-3, evaluations=1)
    assert schedule.noise_multiplier > 4 * alone.noise_multiplier
    assert schedule.event == Gaussian(noise_multiplier=schedule.noise_multiplier)


@pytest.mark.parametrize("fields", [{"epsilon": 0.0}, {"evaluations": 0}])
def test_evaluations_without_a_promise_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises((EpsilonInvalid, ScheduleInvalid)):
        evaluation_schedule(**{"epsilon": 1.0, "delta": 1e-3, "evaluations": 3, **fields})


def test_a_calibration_that_contradicts_itself_is_found() -> None:
    asked: set[float] = set()

    def fits_when_asked_twice(noise: float) -> bool:
        again = noise in asked
        asked.add(noise)
        return noise >= 0.7 or again

    with pytest.raises(EngineWrong):
        least_noise(fits_when_asked_twice)


def test_an_event_survives_its_text() -> None:
    event = PoissonGaussian(sampling_rate=0.1, noise_multiplier=1.3)
    assert event_from_text(event_text(event)) == event
    assert '"0x1.' in event_text(event)


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"gaussian","noise_multiplier":"0x0.0p+0"}',
        '{"kind":"gaussian","noise_multiplier":"1.0"}',
        '{"kind":"gaussian","noise_multiplier":"inf"}',
        '{"kind":"unknown"}',
        '{"kind":"gaussian","noise_multiplier":"0x1.0000000000000p+0","more":1}',
    ],
)
def test_a_text_that_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        event_from_text(text)


def test_the_exact_figure_is_a_report_from_a_process_of_its_own() -> None:
    event = PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.0)
    found = exact_epsilon([(event, 1000)], 1e-5, time_limit_s=60)
    assert found == pytest.approx(1.828, abs=2e-3)
    assert found == compute([(event, 1000)], 1e-5)


def test_the_exact_figure_is_left_out_when_it_takes_too_long() -> None:
    assert exact_epsilon([(Gaussian(noise_multiplier=1.0), 1)], 1e-5, time_limit_s=0.01) is None
