"""The product's own step attacked by whoever sees every noisy sum, and seeded bugs that the attack must find.

A linear model on 2,000 canaries, each alone on its own coordinate with a gradient far above the clip, each in or out
by a coin, beside 50 ordinary rows. The learning rate is zero, so every step is the worst case. One run gives 2,000
membership scores. Test A holds them to the claimed curve δ(ε); test B to the claimed variance. Levels are 10⁻⁶, so
that a sound engine doesn't fail by chance.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor, nn

from privacy.accounting.schedule import Clipping, Schedule, Unit
from privacy.dpsgd import bookkeeping
from privacy.dpsgd import step as step_module
from privacy.dpsgd.allowance import LeasedSteps
from privacy.dpsgd.batches import Units
from privacy.dpsgd.bookkeeping import BookKeepingGradients
from privacy.dpsgd.functional import ClippedSum, FunctionalGradients, PerUnitGradients, trainable
from privacy.dpsgd.step import noisy_round
from privacy.noise.keystream import StepStreams

CANARIES, ORDINARY, SIZE = 2000, 50, 100.0
STEPS, NOISE, CLIP = 12, 2.5, 1.0
LEVEL = 1e-6
EPSILONS = np.linspace(0.0, 6.0, 13)
GRID = 60


@dataclass(frozen=True)
class Attack:
    """Scores of all canaries, who was in, and each step's noisy sums on the canaries' coordinates."""

    scores: np.ndarray  # type: ignore[type-arg]
    inside: np.ndarray  # type: ignore[type-arg]
    steps: np.ndarray  # type: ignore[type-arg]
    rate: float


class Recorder:
    """Learning rate zero: nothing moves, every noisy mean is kept."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def step(
        self, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        self.seen.append(gradient["weight"][0])
        return dict(parameters)


def output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0]


Engine = Callable[[nn.Module, Any], PerUnitGradients]
ENGINES: list[Any] = [BookKeepingGradients, FunctionalGradients]


def attack(
    *, rate: float = 1.0, clipping: Clipping = Clipping.THRESHOLD, engine: Engine = BookKeepingGradients
) -> Attack:
    """Return what an observer of every noisy sum of one run has."""
    inside = np.frombuffer(np.random.default_rng().bytes(CANARIES), dtype=np.uint8) % 2 == 1
    rows = torch.zeros(int(inside.sum()) + ORDINARY, CANARIES + 3)
    rows[torch.arange(int(inside.sum())), torch.from_numpy(np.flatnonzero(inside))] = SIZE
    rows[int(inside.sum()) :, CANARIES:] = torch.randn(ORDINARY, 3)
    model = nn.Linear(CANARIES + 3, 1, bias=False)
    plan = Schedule(
        unit=Unit.RECORD,
        epsilon=1.0,
        delta=1e-5,
        sampling_rate=rate,
        normaliser=64.0,
        rounds=1,
        local_steps=STEPS,
        noise_multiplier=NOISE,
        clip=CLIP,
        clipping=clipping,
        units_declared=1000,
    )
    recorder = Recorder()
    noisy_round(
        trainable(model),
        Units.of_records(rows, torch.zeros(len(rows))),
        schedule=plan,
        gradients=engine(model, output),
        optimizer=recorder,
        lease=LeasedSteps(STEPS, ask=lambda wanted: wanted, done=lambda steps: None),
        streams=StepStreams(),
    )
    steps = torch.stack(recorder.seen).numpy()[:, :CANARIES] * plan.normaliser
    return Attack(steps.sum(0), inside, steps, rate)


# -- the two tests ------------------------------------------------------------------------------------------------


def gaussian_curve() -> "np.ndarray":  # type: ignore[type-arg]
    """Return δ(ε) on the grid for STEPS Gaussian steps, exactly (Balle, Wang 2018, theorem 8)."""
    mu = math.sqrt(STEPS) / NOISE
    first = special.ndtr(mu / 2 - EPSILONS / mu)
    return np.asarray(first - np.exp(EPSILONS) * special.ndtr(-mu / 2 - EPSILONS / mu))


CURVE = gaussian_curve()


@pytest.fixture(scope="module")
def sampled_curve() -> "np.ndarray":  # type: ignore[type-arg]
    """Return δ(ε) on the grid for STEPS Poisson-sampled Gaussian steps at rate 0.5, by the exact loss distribution."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(dp_event.PoissonSampledDpEvent(0.5, dp_event.GaussianDpEvent(NOISE)), STEPS)
    return np.array([float(accountant.get_delta(float(epsilon))) for epsilon in EPSILONS])


def profile_is_rejected(seen: Attack, curve: "np.ndarray") -> bool:  # type: ignore[type-arg]
    """Test A: some threshold and some ε of the grid contradict δ(ε), in either direction (Clopper–Pearson bounds)."""
    level = LEVEL / (2 * GRID * len(EPSILONS) * 2)
    members, others = np.sort(seen.scores[seen.inside]), np.sort(seen.scores[~seen.inside])
    thresholds = np.quantile(seen.scores, np.linspace(0.001, 0.999, GRID))
    above = len(members) - np.searchsorted(members, thresholds), len(others) - np.searchsorted(others, thresholds)
    for first, of_first, second, of_second in (
        (above[0], len(members), above[1], len(others)),
        (len(others) - above[1], len(others), len(members) - above[0], len(members)),
    ):
        true_low = _lower(first, of_first, level)
        false_high = 1 - _lower(of_second - second, of_second, level)
        if bool((true_low[:, None] - np.exp(EPSILONS) * false_high[:, None] > curve).any()):
            return True
    return False


def _lower(hits: Any, of: int, level: float) -> Any:
    some = np.maximum(hits, 1)
    return np.where(hits > 0, special.betaincinv(some, of - some + 1, level), 0.0)


def variance_is_rejected(seen: Attack) -> bool:
    """Test B: out-scores have variance Tσ²C², step by step and in sum; in-scores have a mean of at most TqC."""
    others = seen.scores[~seen.inside]
    single = seen.steps[:, ~seen.inside]
    for values, variance in ((others, STEPS * NOISE**2 * CLIP**2), (single.ravel(), NOISE**2 * CLIP**2)):
        total = float((values**2).sum()) / variance
        if min(stats.chi2.cdf(total, values.size), stats.chi2.sf(total, values.size)) < LEVEL / 4:
            return True
    members = seen.scores[seen.inside]
    slack = 5.5 * math.sqrt(STEPS) * math.hypot(NOISE, 0.5) / math.sqrt(len(members))
    return bool(members.mean() > STEPS * seen.rate * CLIP + slack)


# -- the sound engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clipping", list(Clipping))
def test_the_engine_keeps_its_claim_on_full_batches(clipping: Clipping, engine: Engine) -> None:
    seen = attack(clipping=clipping, engine=engine)
    assert not profile_is_rejected(seen, CURVE)
    assert not variance_is_rejected(seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_keeps_its_claim_with_sampling(engine: Engine, sampled_curve: Any) -> None:
    seen = attack(rate=0.5, engine=engine)
    assert not profile_is_rejected(seen, sampled_curve)
    assert not variance_is_rejected(seen)


def test_fifty_runs_of_the_sound_engine_raise_no_alarm() -> None:
    for _ in range(50):
        seen = attack()
        assert not profile_is_rejected(seen, CURVE)
        assert not variance_is_rejected(seen)


def test_the_attack_has_power_the_scores_tell_members_from_others() -> None:
    seen = attack()
    members, others = seen.scores[seen.inside], seen.scores[~seen.inside]
    assert members.mean() - others.mean() == pytest.approx(STEPS * CLIP, rel=0.1)


def test_two_sites_never_have_equal_noise() -> None:
    first, second = attack(), attack()
    assert abs(float(np.corrcoef(first.steps.ravel(), second.steps.ravel())[0, 1])) < 0.1


# -- seeded bugs --------------------------------------------------------------------------------------------------


def scaled_noise(factor: float) -> Callable[[pytest.MonkeyPatch], None]:
    def seed(patch: pytest.MonkeyPatch) -> None:
        real = step_module.normals
        patch.setattr(step_module, "normals", lambda *arguments: factor * real(*arguments))

    return seed


def same_noise_every_step(patch: pytest.MonkeyPatch) -> None:
    real = step_module.normals
    kept: dict[int, Any] = {}

    def repeated(stream: Any, count: int, *rest: Any) -> Any:
        if count not in kept:
            kept[count] = real(stream, count, *rest)
        return kept[count]

    patch.setattr(step_module, "normals", repeated)


def clip_changed(change: Callable[[float], float]) -> Callable[[pytest.MonkeyPatch], None]:
    """Change the clip that reaches the factors of the book-keeping engine itself."""

    def seed(patch: pytest.MonkeyPatch) -> None:
        real = bookkeeping.factors

        def factors(norms: Tensor, clip: float, clipping: Clipping, kappa: float) -> Tensor:
            return real(norms, change(clip), clipping, kappa)

        patch.setattr(bookkeeping, "factors", factors)

    return seed


def factors_times_a_column_of_losses(patch: pytest.MonkeyPatch) -> None:
    """(B,) clip factors times (B,1) losses: every unit gets the sum of all factors, as in a known library."""
    real = bookkeeping.factors

    def factors(norms: Tensor, clip: float, clipping: Clipping, kappa: float) -> Tensor:
        right = real(norms, clip, clipping, kappa)
        return (right[None, :] * torch.ones(len(right), 1, dtype=right.dtype)).sum(1)

    patch.setattr(bookkeeping, "factors", factors)


class Unclipped(FunctionalGradients):
    """Sums gradients as they are."""

    def clipped_sum(self, parameters: Any, units: Units, clip: float, clipping: Clipping) -> ClippedSum:
        return super().clipped_sum(parameters, units, 1e9, Clipping.THRESHOLD)


class Twice(FunctionalGradients):
    """Clips to 2C."""

    def clipped_sum(self, parameters: Any, units: Units, clip: float, clipping: Clipping) -> ClippedSum:
        return super().clipped_sum(parameters, units, 2 * clip, clipping)


class AverageClipped(FunctionalGradients):
    """Clips the batch's mean and takes it as many times as there are units."""

    def clipped_sum(self, parameters: Any, units: Units, clip: float, clipping: Clipping) -> ClippedSum:
        whole = super().clipped_sum(parameters, units, 1e9, Clipping.THRESHOLD)
        mean = {name: value / len(units) for name, value in whole.sums.items()}
        norm = math.sqrt(sum(float((value**2).sum()) for value in mean.values()))
        factor = min(1.0, clip / norm) * len(units)
        return ClippedSum({name: value * factor for name, value in mean.items()}, 0)


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None] | None, Engine, bool]] = {
    "noise times 0.9": (scaled_noise(0.9), BookKeepingGradients, False),
    "noise times 0.5": (scaled_noise(0.5), FunctionalGradients, True),
    "noise divided by the root of the batch": (scaled_noise(1 / 8), FunctionalGradients, True),
    "no noise": (scaled_noise(0.0), BookKeepingGradients, True),
    "the same noise every step": (same_noise_every_step, BookKeepingGradients, False),
    "no clipping": (None, Unclipped, True),
    "clipping to 2C": (None, Twice, True),
    "clipping after averaging": (None, AverageClipped, True),
    "no clipping, book-keeping": (clip_changed(lambda clip: 1e9), BookKeepingGradients, True),
    "clipping to 2C, book-keeping": (clip_changed(lambda clip: 2 * clip), BookKeepingGradients, True),
    "the loss of shape (B, 1)": (factors_times_a_column_of_losses, BookKeepingGradients, True),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_turns_the_audit_red(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, engine, breaks_the_profile = BUGS[bug]
    if seed is not None:
        seed(monkeypatch)
    seen = attack(engine=engine)
    assert variance_is_rejected(seen)
    if breaks_the_profile:
        assert profile_is_rejected(seen, CURVE)
