"""Whether a plan's values make a sum that is exact, private and can end: P1 to P10, on both sides before anything else.

`Floors` are a site's own, above those.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from privacy.secagg import distributed, parameters
from privacy.secagg.envelope import Registry
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import CHUNK_WORDS
from privacy.secagg.keys import KEYSTREAM_LIMIT_BYTES
from privacy.secagg.messages import SumPlan
from privacy.secagg.quantize import Grid

MOST_SCALE: Final = 36
MOST_POINTS: Final = 2**37
MOST_NOISY_SCALE: Final = 22


@dataclass(frozen=True, slots=True)
class Floors:
    """What a site asks of every sum.

    Attributes:
        colluding: Least c.
        quorum: Least number of survivors.
        mechanisms: Those that it takes part in.
        least_z: Least noise multiplier under `distributed`, as a decimal string.
    """

    colluding: int = 0
    quorum: int = 3
    mechanisms: frozenset[str] = frozenset({"none", "local-dp-sgd", "distributed"})
    least_z: str = "0"


def grid_of(plan: SumPlan, site: str) -> Grid:
    """Return the grid on which `site` rounds its update."""
    return Grid(plan.clip_value, plan.scale_log2, plan.q_max, plan.rounding_rule, plan.weight_of(site))


def check_plan(plan: SumPlan, registry: Registry) -> None:
    """Refuse a plan that breaks a constraint.

    Raises:
        SumRefused: E_PLAN, naming the constraint.
    """
    _check_sites(plan, registry)
    parameters.check(parameters_of(plan))
    _check_grid(plan)
    _check_noise(plan)
    room = 2 ** (plan.word_bits - 1) - 1
    most = len(plan.invited) * plan.q_max + distributed.tail(len(plan.invited), plan.dp.sigma_sq)
    _hold(most <= room, f"P7: sums reach {most}, {plan.word_bits}-bit words hold {room}")
    _hold(plan.dim >= 1, "P8: no words")
    _hold(plan.dim * plan.word_bits // 8 <= KEYSTREAM_LIMIT_BYTES, f"P8: {plan.dim} words are beyond one keystream")
    _hold(plan.chunk_words == CHUNK_WORDS, f"P8: chunks of {plan.chunk_words} words, they must have {CHUNK_WORDS}")


def parameters_of(plan: SumPlan) -> parameters.Parameters:
    """Return the thresholds that a plan carries."""
    return parameters.Parameters(
        len(plan.invited), plan.colluding, plan.dropouts, plan.degree, plan.share_threshold, plan.quorum
    )


def check_floors(plan: SumPlan, floors: Floors) -> None:
    """Refuse a plan that a site's own rules don't allow.

    Raises:
        SumRefused: E_POLICY.
    """
    checks = {
        f"colluding {plan.colluding}, at least {floors.colluding}": plan.colluding >= floors.colluding,
        f"quorum {plan.quorum}, at least {floors.quorum}": plan.quorum >= floors.quorum,
        f"mechanism {plan.dp.mechanism}": plan.dp.mechanism in floors.mechanisms,
        f"z {plan.dp.z}, at least {floors.least_z}": plan.dp.mechanism != "distributed"
        or Fraction(plan.dp.z) >= Fraction(floors.least_z),
    }
    for text, held in checks.items():
        if not held:
            raise SumRefused("E_POLICY", text)


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise SumRefused("E_PLAN", message)


def _check_sites(plan: SumPlan, registry: Registry) -> None:
    invited = plan.invited
    _hold(list(invited) == sorted(set(invited)), "P1: invited sites aren't sorted, or one appears twice")
    members = [registry.members.get(site) for site in invited]
    _hold(all(member is not None and member.active for member in members), "P1: an invited site isn't active")
    operators = {member.operator for member in members if member is not None}
    _hold(len(operators) == len(invited), "P1: two sites of one operator")
    if plan.weights is not None:
        _hold(len(plan.weights) == len(invited), f"P1: {len(plan.weights)} weights for {len(invited)} sites")
        _hold(all(plan.weights), "P1: a weight is 0")


def _check_grid(plan: SumPlan) -> None:
    _hold(plan.scale_log2 <= MOST_SCALE, f"P10: scale_log2 {plan.scale_log2}, at most {MOST_SCALE}")
    clip, points = plan.clip_value, 2**plan.scale_log2
    _hold(clip > 0, "P10: clip isn't positive")
    if plan.rounding == "integer":
        _hold((plan.scale_log2, clip) == (0, 1.0), "P10: integers have no grid: scale_log2 0 and clip 1")
        _hold(plan.weights is None, "P10: integers have no weights")
    else:
        _hold(plan.scale_log2 >= 1, "P10: scale_log2 is 0")
        free = plan.dp.mechanism == "distributed" and plan.dp.unit in ("record", "entity")
        _hold(free or plan.q_max == points, f"P10: q_max {plan.q_max}, it must be {points}")
        _hold(math.isfinite(points / clip), "P10: clip is too small for the grid")
    _hold(1 <= plan.q_max < MOST_POINTS, f"P10: q_max {plan.q_max}, from 1 to {MOST_POINTS - 1}")


def _check_noise(plan: SumPlan) -> None:
    dp = plan.dp
    if dp.mechanism != "distributed":
        values = (dp.z, dp.sigma_sq, dp.norm_sq_max, dp.honest_min)
        _hold(values == ("0", 0, 0, 0), f"P10: values of noise under {dp.mechanism}")
        _hold(dp.mechanism != "none" or dp.unit == "none", "P10: a unit without a mechanism")
        return
    bound = distributed.sensitivity(plan.scale_log2, plan.dim) if plan.dim else 1
    honest = plan.quorum - plan.colluding
    _hold(dp.unit != "none", "P10: noise needs a unit")
    _hold(plan.word_bits == 32, "P10: noise needs 32-bit words")
    _hold(plan.rounding == "stochastic", "P10: noise needs stochastic rounding")
    _hold(plan.scale_log2 <= MOST_NOISY_SCALE, f"P10: scale_log2 {plan.scale_log2} under noise, at most 22")
    _hold(100 * (bound - 2**plan.scale_log2) <= 2**plan.scale_log2, "P10: rounding is beyond 1 % of the clip")
    _hold(dp.honest_min == honest, f"P10: honest_min {dp.honest_min}, it must be quorum − colluding, {honest}")
    _hold(Fraction(dp.z) > 0, "P10: z is 0")
    norm_sq_max = bound**2 if dp.unit == "site" else 0
    _hold(dp.norm_sq_max == norm_sq_max, f"P10: norm_sq_max {dp.norm_sq_max}, it must be {norm_sq_max}")
    least = max(distributed.least_sigma_sq(dp.z, bound, honest), distributed.LEAST_SIGMA_SQ)
    below = distributed.SIGMA_SQ_LIMIT
    _hold(least <= dp.sigma_sq < below, f"P10: sigma_sq {dp.sigma_sq}, at least {least} and below 2^52")
