"""The queue: who starts, who waits, and the sentence that says why."""

from coordinator.queue import AtWork, Waiting, startable, why
from federation.messages import JobId, SiteId


def waiting(name: str, *sites: str, priority: int = 50, number: int = 1) -> Waiting:
    return Waiting(JobId(name), priority, number, frozenset(map(SiteId, sites)))


def at_work(name: str, *sites: str) -> AtWork:
    return AtWork(JobId(name), frozenset(map(SiteId, sites)))


def test_priority_goes_before_age_and_age_before_name() -> None:
    queue = [waiting("b", "x", number=2), waiting("a", "x", number=3, priority=90), waiting("c", "x", number=1)]
    assert startable(queue, [], {}, default_places=1) == ["a"]
    assert startable(queue, [], {}, default_places=2) == ["a", "c"]


def test_jobs_of_different_sites_start_together() -> None:
    queue = [waiting("a", "x"), waiting("b", "y", number=2)]
    assert startable(queue, [], {}, default_places=1) == ["a", "b"]


def test_a_job_waits_while_one_of_its_sites_is_full() -> None:
    queue = [waiting("b", "x", "y")]
    assert startable(queue, [at_work("a", "x")], {}, default_places=1) == []
    assert why(JobId("b"), queue, [at_work("a", "x")], {}, default_places=1) == "place 1 of 1: no free place at x (a)"


def test_a_waiting_job_is_not_passed_for_ever_by_smaller_jobs_at_its_full_site() -> None:
    queue = [waiting("big", "x", "y"), waiting("small", "x", number=2)]
    assert startable(queue, [at_work("a", "x")], {SiteId("x"): 1}, default_places=1) == []


def test_places_of_a_site_are_configured() -> None:
    queue = [waiting("b", "x")]
    assert startable(queue, [at_work("a", "x")], {SiteId("x"): 2}, default_places=1) == ["b"]


def test_the_sentence_says_when_a_job_before_it_waits_for_the_same_sites() -> None:
    queue = [waiting("a", "x", "y"), waiting("b", "x", number=2)]
    busy = [at_work("z", "y")]
    assert startable(queue, busy, {}, default_places=1) == ["b"]
    queue = [waiting("a", "x"), waiting("b", "x", number=2)]
    assert why(JobId("a"), queue, [], {}, default_places=1) == "the job starts now"
    assert why(JobId("b"), queue, [], {}, default_places=1).startswith("place 2 of 2")
    assert why(JobId("gone"), queue, [], {}, default_places=1) == "the job isn't queued"
