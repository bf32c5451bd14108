"""How long a job rests after its trainer died, before it gets another: longer each time, up to a bound. Pure.

A trainer that dies at its start would otherwise use up all attempts of a round within seconds, and whatever ails the
machine (memory, a device, a disk) would have no time to pass. A phase that was done ends the row.
"""

from federation.messages import JobId


class Rests:
    """The rests of one daemon's jobs, on a clock that never jumps.

    Args:
        first_s: The rest after a first death; it doubles with each further one.
        bound_s: The longest rest.
    """

    def __init__(self, *, first_s: float, bound_s: float) -> None:
        self._first_s = first_s
        self._bound_s = bound_s
        self._deaths: dict[JobId, tuple[int, float]] = {}

    def died(self, job: JobId, now_s: float) -> None:
        """Note that the job's trainer died by itself."""
        deaths, _ = self._deaths.get(job, (0, 0.0))
        self._deaths[job] = (deaths + 1, now_s)

    def forget(self, job: JobId) -> None:
        """Note that a phase of the job was done, or that the job is over."""
        self._deaths.pop(job, None)

    def left_s(self, job: JobId, now_s: float) -> float:
        """Return how long the job still rests, 0 where it doesn't."""
        deaths, last_s = self._deaths.get(job, (0, 0.0))
        if deaths == 0:
            return 0.0
        rest_s = min(self._bound_s, self._first_s * 2.0 ** min(deaths - 1, 60))
        return max(0.0, last_s + rest_s - now_s)
