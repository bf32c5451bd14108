"""The round loop of a job, as the paper has it: open, ask, collect, check, mean, step, release, evaluate, close.

This is the one function that is the system. Each numbered step is a method of `RoundWork` that may be repeated, so the
loop itself keeps nothing and may be killed and begun again anywhere. It decides one thing: a round whose mean or step
is unusable is abandoned, and the last good model stays.
"""

from collections.abc import Mapping

from coordinator.exchange import Exchange
from coordinator.records import AttemptRecord
from coordinator.round_machine import RoundState
from coordinator.round_work import RoundWork
from federation.errors import InvalidInput
from federation.messages import PhaseRequest, SiteId
from federation.secure_sums import SumFailed
from federation.tensors import NotFinite, UpdateRefused


def run_job(work: RoundWork, exchange: Exchange) -> None:
    """Run the rounds of a job until it ends, pauses, or the exchange is interrupted."""
    work.prepare_first_model()
    while (attempt := work.open_round()) is not None:  # 1. open the round, or find it as it was left
        attempt = work.witnessed(attempt)  # a quorum of others has seen how the round before ended
        requests = work.training_requests(attempt)  # 2. ask the cohort to train
        heard = exchange.ask(requests, timeout_s=work.left_s(attempt))
        attempt = work.collect(attempt, heard)  # 3. until quorum and deadline; 4. check each update
        if attempt.round.awaits_mean:
            attempt = _release(work, exchange, attempt)
        if attempt.round.state is RoundState.RELEASED:
            requests = work.evaluation_requests(attempt)  # 8. score the new model where it is due
            work.evaluate(attempt, requests, exchange.ask(requests, timeout_s=_longest_s(requests)))
        work.close_round(attempt)  # 9. the job goes on to the next round, the next attempt, or its end
    work.wind_up()


def _release(work: RoundWork, exchange: Exchange, attempt: AttemptRecord) -> AttemptRecord:
    try:
        if work.is_secure:
            return _release_sum(work, exchange, attempt)
        with work.workplace() as folder:
            mean = work.mean(attempt, folder)  # 5. the mean of those that arrived
            stepped = work.server_step(mean, folder)  # 6. the server step
        return work.release(attempt, stepped)  # 7. store and sign
    except SumFailed as problem:
        return work.abandon(attempt, f"{problem.message} [{problem.code}]", problem.code)
    except (NotFinite, UpdateRefused, InvalidInput) as problem:
        return work.abandon(attempt, problem.message, "CFD-R06")


def _release_sum(work: RoundWork, exchange: Exchange, attempt: AttemptRecord) -> AttemptRecord:
    with work.workplace() as folder:
        summed = work.secure_sum(attempt, exchange, folder)  # 5. the sum of those that arrived, and nothing else
        mean = work.mean_of_sum(summed, folder)
        stepped = work.server_step(mean, folder, words=summed.words)  # 6. the server step
        work.publish_sum(summed, stepped)
    released = work.release(summed.attempt, stepped)  # 7. store and sign
    work.conclude_sum(released, exchange)
    return released


def _longest_s(requests: Mapping[SiteId, PhaseRequest]) -> float:
    return max((request.deadline_s for request in requests.values()), default=0)
