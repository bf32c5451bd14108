"""The exact loss distribution of a job whose schedule was fixed beforehand: a report, never a decision.

Shown as "exact for this job alone". It is never a stopping rule and never added up over jobs that were chosen after
results were seen (privacy design, 7.5). It is computed by dp-accounting in a process of its own, which is ended after
the time limit: then the report leaves it out.
"""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal

from privacy.accounting.events import EVENT, Event, Gaussian, Laplace, PoissonGaussian, PureEpsilon, RowSampledGaussian

Relation = Literal["add-or-remove", "replace"]

TIME_LIMIT_S: Final = 10.0

_CHILD: Final = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from privacy.accounting.profile import answer
sys.stdout.write(answer(request))
"""


def exact_epsilon(
    steps: Sequence[tuple[Event, int]],
    delta: float,
    *,
    relation: Relation = "add-or-remove",
    time_limit_s: float = TIME_LIMIT_S,
) -> float | None:
    """Return ε of the given events; None where it can't be said in time.

    Args:
        steps: Events and how often each was executed; fixed before any result was seen.
        delta: δ.
        relation: What is compared: one unit more or less, or one unit in place of another.
        time_limit_s: When the computation is ended.
    """
    request = {
        "path": sys.path,
        "events": [[event.model_dump(mode="json"), count] for event, count in steps],
        "delta": delta.hex(),
        "relation": relation,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=time_limit_s,
            check=True,
        )
        epsilon = float.fromhex(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return epsilon if math.isfinite(epsilon) and epsilon >= 0 else None


def answer(request: dict[str, Any]) -> str:
    """Return the answer of the separate process, as the string of `float.hex`."""
    steps = [(EVENT.validate_json(json.dumps(event)), int(count)) for event, count in request["events"]]
    return compute(steps, float.fromhex(request["delta"]), request["relation"]).hex()


def compute(steps: Sequence[tuple[Event, int]], delta: float, relation: Relation = "add-or-remove") -> float:
    """Return ε by composing loss distributions, in this process, however long it takes.

    Raises:
        ValueError: An event that has no loss distribution here.
    """
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    relations = {
        "add-or-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace": NeighboringRelation.REPLACE_ONE,
    }
    accountant = PLDAccountant(neighboring_relation=relations[relation])
    for event, count in steps:
        match event:
            case Gaussian():
                known: Any = dp_event.GaussianDpEvent(event.noise_multiplier)
            case PoissonGaussian():
                known = dp_event.PoissonSampledDpEvent(
                    event.sampling_rate, dp_event.GaussianDpEvent(event.noise_multiplier)
                )
            case Laplace():
                known = dp_event.LaplaceDpEvent(event.noise_multiplier)
            case RowSampledGaussian():
                known = dp_event.MixtureOfGaussiansDpEvent(
                    event.noise_multiplier, *_binomial(event.sampling_rate, event.rows)
                )
            case PureEpsilon():
                raise ValueError("a release known by its epsilon alone has no loss distribution")
        accountant.compose(known, count)
    return float(accountant.get_epsilon(delta))


def _binomial(rate: float, rows: int) -> tuple[list[float], list[float]]:
    """Return how many rows of a person may be drawn, and how probable each number is."""
    counts = range(rows + 1)
    return [float(j) for j in counts], [math.comb(rows, j) * rate**j * (1 - rate) ** (rows - j) for j in counts]
