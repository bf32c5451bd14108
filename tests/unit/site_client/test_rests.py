"""Rests between trainers that die: they double, up to a bound, and end with a phase that was done."""

from hypothesis import given
from hypothesis import strategies as st

from federation.messages import JobId
from site_client.rests import Rests

JOB, OTHER = JobId("heart-0a1b2c"), JobId("heart-3d4e5f")


def test_each_death_doubles_the_rest_up_to_the_bound_and_another_job_does_not_rest() -> None:
    rests = Rests(first_s=2, bound_s=10)
    assert rests.left_s(JOB, 0) == 0
    for now_s, rest_s in ((100, 2), (200, 4), (300, 8), (400, 10), (500, 10)):
        rests.died(JOB, now_s)
        assert rests.left_s(JOB, now_s) == rest_s
        assert rests.left_s(JOB, now_s + rest_s) == 0
        assert rests.left_s(OTHER, now_s) == 0


def test_a_phase_that_was_done_ends_the_row() -> None:
    rests = Rests(first_s=2, bound_s=10)
    rests.died(JOB, 0)
    rests.died(JOB, 0)
    rests.forget(JOB)
    assert rests.left_s(JOB, 0) == 0
    rests.died(JOB, 5)
    assert rests.left_s(JOB, 5) == 2


@given(st.integers(1, 5000), st.floats(0, 3600), st.floats(0, 3600))
def test_no_rest_is_longer_than_the_bound(deaths: int, first_s: float, bound_s: float) -> None:
    rests = Rests(first_s=first_s, bound_s=bound_s)
    for _ in range(min(deaths, 200)):
        rests.died(JOB, 0)
    assert 0 <= rests.left_s(JOB, 0) <= bound_s
