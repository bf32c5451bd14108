"""The noisy step: what it takes, adds and leaves alone."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from privacy.accounting.schedule import Clipping, Schedule, Unit
from privacy.dpsgd.allowance import LeasedSteps
from privacy.dpsgd.averaging import MovingAverage
from privacy.dpsgd.batches import Units
from privacy.dpsgd.clipping import clipped_sum, factors, margin, unit_norms
from privacy.dpsgd.functional import FunctionalGradients, masked_mean, trainable
from privacy.dpsgd.optimizers import Adam, Optimizer, Sgd, optimizer_for
from privacy.dpsgd.plain import plain_round
from privacy.dpsgd.sampling import planned_order, poisson_sample
from privacy.dpsgd.step import box_muller_by_torch, check_same_layout, noisy_mean, noisy_round, noisy_step
from privacy.errors import LeaseRefused, NoiseSourceFailed, ScheduleInvalid, StateChanged
from privacy.noise.gaussian import box_muller
from privacy.noise.keystream import KeyRoot, PlannedStream, Purpose, StepStreams

TINY = 1e-7


def schedule(**fields: Any) -> Schedule:
    plain: dict[str, Any] = {
        "unit": Unit.RECORD,
        "epsilon": 1.0,
        "delta": 1e-3,
        "sampling_rate": 0.5,
        "normaliser": 10.0,
        "rounds": 1,
        "local_steps": 4,
        "noise_multiplier": 1.0,
        "clip": 1.0,
        "clipping": Clipping.NORMALISED,
        "units_declared": 20,
    }
    return Schedule(**{**plain, **fields})


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets) ** 2


def linear(width: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(width, 1)


def units(count: int = 20, width: int = 3) -> Units:
    torch.manual_seed(2)
    return Units.of_records(torch.randn(count, width), torch.randn(count))


def leased(steps: int) -> LeasedSteps:
    return LeasedSteps(steps, ask=lambda wanted: wanted, done=lambda steps: None)


class Recorder:
    """An optimizer that changes nothing and remembers the noisy gradients."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def step(
        self, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        self.seen.append(dict(gradient))
        return dict(parameters)


def run(model: nn.Module, data: Units, plan: Schedule, optimizer: Optimizer, lease: LeasedSteps | None = None) -> Any:
    return noisy_round(
        trainable(model),
        data,
        schedule=plan,
        gradients=FunctionalGradients(model, squared),
        optimizer=optimizer,
        lease=lease or leased(plan.local_steps),
        streams=StepStreams(),
    )


# -- leases -------------------------------------------------------------------------------------------------------


def test_without_a_lease_nothing_is_sampled() -> None:
    class Untouchable(Units):
        def take(self, indices: Any) -> Units:
            raise AssertionError("units were drawn without a charged step")

    data = units()
    with pytest.raises(LeaseRefused):
        noisy_step(
            trainable(linear()),
            Untouchable(data.inputs, data.targets, data.mask),
            schedule=schedule(),
            gradients=FunctionalGradients(linear(), squared),
            optimizer=Sgd(0.1),
            lease=LeasedSteps(4, ask=lambda wanted: 0, done=lambda steps: None),
            streams=StepStreams(),
            start=trainable(linear()),
        )


def test_steps_leased_are_steps_run_are_steps_with_noise() -> None:
    asked: list[int] = []
    done: list[int] = []

    def ask(wanted: int) -> int:
        asked.append(wanted)
        return wanted

    recorder = Recorder()
    lease = LeasedSteps(25, ask=ask, done=done.append)
    result = run(linear(), units(), schedule(local_steps=25), recorder, lease)
    assert asked == done == [10, 10, 5]
    assert result.steps == len(recorder.seen) == 25
    flat = [tuple(gradient["weight"].flatten().tolist()) for gradient in recorder.seen]
    assert len(set(flat)) == 25


def test_a_round_stops_where_the_ledger_gives_no_more() -> None:
    given = [10, 0]
    reported: list[int] = []
    lease = LeasedSteps(25, ask=lambda wanted: given.pop(0), done=reported.append)
    with pytest.raises(LeaseRefused):
        run(linear(), units(), schedule(local_steps=25), Recorder(), lease)
    assert reported == [10]


def test_a_lease_of_more_than_was_asked_for_is_refused() -> None:
    with pytest.raises(LeaseRefused):
        LeasedSteps(4, ask=lambda wanted: wanted + 1, done=lambda steps: None).take()


def test_a_round_takes_no_more_steps_than_it_has_and_does_not_report_unfinished_leases() -> None:
    reported: list[int] = []
    lease = LeasedSteps(2, ask=lambda wanted: wanted, done=reported.append)
    lease.take()
    with pytest.raises(LeaseRefused, match="not taken"):
        lease.finish()
    lease.take()
    with pytest.raises(LeaseRefused, match="all steps"):
        lease.take()
    assert reported == [2]


# -- sampling -----------------------------------------------------------------------------------------------------


def test_each_unit_is_in_or_out_independently_at_its_rate() -> None:
    rate, count, steps = 0.3, 400, 300
    streams = StepStreams()
    inside = np.zeros((steps, count), dtype=bool)
    for number in range(steps):
        inside[number, poisson_sample(streams.next_step()[0], count, rate)] = True
    total = int(inside.sum())
    assert stats.binomtest(total, steps * count, rate).pvalue > TINY
    per_unit = inside.sum(0)
    chi_square = float(((per_unit - steps * rate) ** 2 / (steps * rate * (1 - rate))).sum())
    assert TINY < stats.chi2.sf(chi_square, count) < 1 - TINY
    sizes = inside.sum(1)
    assert (
        TINY < stats.chi2.sf(float(((sizes - count * rate) ** 2).sum()) / (count * rate * (1 - rate)), steps) < 1 - TINY
    )
    for pairs in (inside[:, 1:] & inside[:, :-1], inside[1:] & inside[:-1]):
        assert stats.binomtest(int(pairs.sum()), pairs.size, rate**2).pvalue > TINY or abs(
            pairs.mean() - rate**2
        ) < 8 * math.sqrt(rate**2 / pairs.size)


def test_at_rate_one_every_unit_takes_part() -> None:
    assert poisson_sample(KeyRoot(Purpose.SAMPLING).derive("x"), 7, 1.0).tolist() == list(range(7))


def test_a_tiny_rate_takes_almost_nobody_and_no_units_give_nobody() -> None:
    stream = KeyRoot(Purpose.SAMPLING).derive("x")
    assert len(poisson_sample(stream, 1000, 2.0**-60)) == 0
    assert len(poisson_sample(stream, 0, 0.5)) == 0


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_rate_that_is_no_chance_is_refused(rate: float) -> None:
    with pytest.raises(ScheduleInvalid):
        poisson_sample(KeyRoot(Purpose.SAMPLING).derive("x"), 7, rate)


def test_no_seed_of_a_plan_reaches_sampling_or_noise() -> None:
    with pytest.raises(NoiseSourceFailed):
        poisson_sample(PlannedStream(7), 10, 0.5)
    with pytest.raises(NoiseSourceFailed):
        noisy_mean({"w": torch.zeros(3, dtype=torch.float64)}, schedule(), PlannedStream(7))


def test_the_same_seeds_give_other_noise_each_time() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        np.random.seed(7)  # what a plan's seed might set elsewhere
        results.append(run(linear(), units(), schedule(), Sgd(0.1)).parameters["weight"])
    assert not torch.equal(results[0], results[1])


# -- clipping -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", list(Clipping))
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-3, 1.0, 1e4, 1e18])
def test_no_unit_contributes_more_than_the_clip(clipping: Clipping, size: float) -> None:
    gradients = {"a": torch.full((5, 4), size), "b": torch.full((5, 2, 3), -size)}
    factor = factors(unit_norms(gradients), 1.5, clipping, margin(torch.float32))
    for index in range(5):
        one = {name: value[index : index + 1] for name, value in gradients.items()}
        part = clipped_sum(one, factor[index : index + 1])
        assert math.sqrt(sum(float((value**2).sum()) for value in part.values())) <= 1.5


def test_threshold_clipping_leaves_small_gradients_alone_and_normalised_keeps_directions() -> None:
    norms = torch.tensor([0.1, 5.0], dtype=torch.float64)
    assert factors(norms, 1.0, Clipping.THRESHOLD, 0.0).tolist() == [1.0, 0.2]
    assert factors(norms, 1.0, Clipping.NORMALISED, 0.0).tolist() == pytest.approx([1 / 0.11, 1 / 5.01])


def test_reduced_precision_has_the_wider_margin() -> None:
    assert margin(torch.float32, torch.float64) == 2.0**-10
    assert margin(torch.float32, torch.bfloat16) == 2.0**-7


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("clipping", list(Clipping))
def test_a_unit_that_is_not_finite_contributes_zero_and_changes_nothing_else(bad: float, clipping: Clipping) -> None:
    model, data = linear(), units()
    engine = FunctionalGradients(model, squared)
    inputs = data.inputs.clone()
    inputs[4] = bad
    spoiled = Units(inputs, data.targets, data.mask)
    without = data.take(np.array([index for index in range(20) if index != 4]))
    found = engine.clipped_sum(trainable(model), spoiled, 1.0, clipping)
    expected = engine.clipped_sum(trainable(model), without, 1.0, clipping)
    assert found.left_out == 1
    assert expected.left_out == 0
    for name, value in expected.sums.items():
        # 20 rows and 19 rows in one product: float32 rounds the others differently on some processors.
        assert torch.allclose(found.sums[name], value, rtol=1e-5, atol=1e-6)


# -- the engine ---------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """Convolution, group norm and an embedding-free head: the layers of the named models."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.relu(self.norm(self.convolution(images))).mean((2, 3)))
        return outputs


def loop(model: nn.Module, data: Units, clip: float, clipping: Clipping) -> dict[str, Tensor]:
    """Return Σ clip(g_i) by one ordinary backward pass for each unit."""
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in trainable(model).items()}
    for index in range(len(data)):
        model.zero_grad()
        losses = squared(model(data.inputs[index]), data.targets[index])
        masked_mean(losses, data.mask[index]).backward()  # type: ignore[no-untyped-call]
        own = {
            name: value.grad.to(torch.float64)
            for name, value in model.named_parameters()
            if value.requires_grad and value.grad is not None
        }
        norm = math.sqrt(sum(float((value**2).sum()) for value in own.values()))
        target = clip * (1 - 2.0**-10)
        factor = target / (norm + 0.01) if clipping is Clipping.NORMALISED else min(1.0, target / norm)
        for name, value in own.items():
            sums[name] += factor * value
    model.zero_grad()
    return sums


@pytest.mark.parametrize("clipping", list(Clipping))
@pytest.mark.parametrize("kind", ["linear", "mlp", "convolution", "frozen"])
@pytest.mark.parametrize("micro_batch", [1, 3, 16])
def test_the_engine_equals_a_plain_loop(clipping: Clipping, kind: str, micro_batch: int) -> None:
    torch.manual_seed(3)
    model: nn.Module
    if kind == "convolution":
        model, inputs = Small(), torch.randn(7, 1, 6, 6)
    else:
        model, inputs = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(7, 3)
        if kind == "linear":
            model = nn.Linear(3, 1)
        if kind == "frozen":
            model[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    data = Units.of_records(inputs, torch.randn(7))
    found = FunctionalGradients(model, squared, micro_batch=micro_batch).clipped_sum(
        trainable(model), data, 0.7, clipping
    )
    expected = loop(model, data, 0.7, clipping)
    assert set(found.sums) == set(expected)
    for name, value in expected.items():
        assert torch.allclose(found.sums[name], value, rtol=1e-5, atol=1e-6)
    assert all(value.grad is None for value in model.parameters())


def test_an_entity_has_one_gradient_the_mean_over_its_rows_and_padding_counts_nothing() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    inputs, targets = torch.randn(3, 3, 3), torch.randn(3, 3)
    engine = FunctionalGradients(model, squared)
    found = engine.clipped_sum(trainable(model), Units(inputs, targets, mask), 0.7, Clipping.THRESHOLD)
    padded = engine.clipped_sum(
        trainable(model), Units(inputs.masked_fill(~mask[..., None], 9.0), targets, mask), 0.7, Clipping.THRESHOLD
    )
    expected = loop(model, Units(inputs, targets, mask), 0.7, Clipping.THRESHOLD)
    for name, value in expected.items():
        assert torch.allclose(found.sums[name], value, rtol=1e-5, atol=1e-6)
        assert torch.equal(found.sums[name], padded.sums[name])


def test_units_of_other_shapes_are_refused() -> None:
    with pytest.raises(ScheduleInvalid):
        Units(torch.zeros(3, 1, 2), torch.zeros(4, 1), torch.ones(3, 1, dtype=torch.bool))
    with pytest.raises(ScheduleInvalid):
        Units(torch.zeros(3, 1, 2), torch.zeros(3, 1), torch.ones(3, 1))


# -- noise --------------------------------------------------------------------------------------------------------


def test_an_empty_batch_is_a_step_of_pure_noise() -> None:
    recorder = Recorder()
    plan = schedule(sampling_rate=2.0**-60, local_steps=400, noise_multiplier=2.0, clip=3.0, normaliser=5.0)
    result = run(linear(20), units(8, 20), plan, recorder)
    assert result.steps == 400
    values = torch.cat([gradient[name].flatten() for gradient in recorder.seen for name in gradient]).numpy()
    assert stats.kstest(values / (2.0 * 3.0 / 5.0), "norm").pvalue > TINY


def test_the_noisy_mean_divides_by_the_public_normaliser_and_lies_on_the_grid() -> None:
    plan = schedule(noise_multiplier=1e-9, normaliser=7.0)
    sums = {"w": torch.tensor([3.5, -7.0], dtype=torch.float64)}
    found = noisy_mean(sums, plan, KeyRoot(Purpose.NOISE).derive("x"))["w"]
    assert found.tolist() == pytest.approx([0.5, -1.0], abs=1e-8)
    plan = schedule(noise_multiplier=2.0, normaliser=8.0)
    noisy = noisy_mean(sums, plan, KeyRoot(Purpose.NOISE).derive("x"))["w"].numpy() * 8.0 / (2.0 * 2.0**-20)
    assert np.allclose(noisy, np.rint(noisy), atol=1e-4)


def test_the_true_number_of_units_divides_nothing() -> None:
    recorders = [Recorder(), Recorder()]
    for recorder, count in zip(recorders, (20, 40), strict=True):
        data = units(20)
        zeros = Units.of_records(torch.zeros(count - 20, 3), torch.zeros(count - 20))
        whole = Units(
            torch.cat([data.inputs, zeros.inputs]),
            torch.cat([data.targets, zeros.targets]),
            torch.cat([data.mask, zeros.mask]),
        )
        model = nn.Linear(3, 1, bias=False)
        nn.init.ones_(model.weight)
        run(model, whole, schedule(sampling_rate=1.0, local_steps=1, noise_multiplier=1e-7), recorder)
    first, second = (recorder.seen[0]["weight"] for recorder in recorders)
    assert torch.allclose(first, second, rtol=1e-3, atol=1e-5)


# -- optimizers and results ---------------------------------------------------------------------------------------


def test_weight_decay_and_proximal_terms_come_after_the_noise() -> None:
    start = {"w": torch.tensor([1.0, 2.0])}
    current = {"w": torch.tensor([2.0, 2.0])}
    nothing = {"w": torch.zeros(2, dtype=torch.float64)}
    assert optimizer_for("sgd", lr=0.1, proximal=3.0).step(current, nothing, start)["w"].tolist() == pytest.approx(
        [1.7, 2.0]
    )
    assert optimizer_for("sgd", lr=0.1, weight_decay=1.0).step(current, nothing, start)["w"].tolist() == pytest.approx(
        [1.8, 1.8]
    )


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_optimizers_equal_those_of_torch(name: str) -> None:
    torch.manual_seed(4)
    parameter = torch.randn(5, dtype=torch.float64)
    gradients = [torch.randn(5, dtype=torch.float64) for _ in range(6)]
    theirs = nn.Parameter(parameter.clone())
    made: dict[str, tuple[Optimizer, torch.optim.Optimizer]] = {
        "sgd": (optimizer_for("sgd", lr=0.1, weight_decay=0.2), torch.optim.SGD([theirs], lr=0.1, weight_decay=0.2)),
        "momentum": (optimizer_for("sgd", lr=0.1, momentum=0.9), torch.optim.SGD([theirs], lr=0.1, momentum=0.9)),
        "adam": (optimizer_for("adam", lr=0.1, weight_decay=0.2), torch.optim.Adam([theirs], lr=0.1, weight_decay=0.2)),
        "adamw": (
            optimizer_for("adamw", lr=0.1, weight_decay=0.2),
            torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.2),
        ),
    }
    ours, reference = made[name]
    current = {"w": parameter}
    for gradient in gradients:
        current = ours.step(current, {"w": gradient}, current)
        theirs.grad = gradient.clone()
        reference.step()
    assert torch.allclose(current["w"], theirs.detach(), rtol=1e-12, atol=1e-12)


def test_an_optimizer_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ScheduleInvalid):
        optimizer_for("lbfgs", lr=0.1)
    assert isinstance(optimizer_for("adam", lr=0.1), Adam)


def test_a_round_leaves_the_model_and_the_start_untouched() -> None:
    model = linear()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = run(model, units(), schedule(), Sgd(0.5))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not torch.equal(result.parameters["weight"], before["weight"])
    assert result.parameters["weight"].dtype == torch.float32


@pytest.mark.parametrize(
    "after",
    [
        {},
        {"w": torch.zeros(3)},
        {"w": torch.zeros(2, dtype=torch.float64)},
        {"w": torch.tensor([1.0, float("nan")])},
    ],
)
def test_a_result_of_another_layout_or_not_finite_does_not_leave(after: dict[str, Tensor]) -> None:
    with pytest.raises(StateChanged):
        check_same_layout({"w": torch.zeros(2)}, after)


def test_private_training_learns() -> None:
    torch.manual_seed(5)
    inputs = torch.randn(600, 4)
    data = Units.of_records(inputs, inputs @ torch.tensor([1.0, -1.0, 0.5, 0.0]))
    plan = schedule(sampling_rate=0.2, normaliser=120.0, local_steps=60, noise_multiplier=1.0, units_declared=600)
    model = nn.Linear(4, 1)
    result = run(model, data, plan, Sgd(0.3))
    found = torch.func.functional_call(model, result.parameters, (inputs,))
    assert float(((found[:, 0] - data.targets[:, 0]) ** 2).mean()) < 0.3 * float((data.targets**2).mean())


# -- mechanism none -----------------------------------------------------------------------------------------------


def plain(model: nn.Module, data: Units, **fields: Any) -> dict[str, Tensor]:
    options: dict[str, Any] = {"local_steps": 12, "batch": 6, "seed": 7, "site": "alice", "round_number": 0, **fields}
    return plain_round(trainable(model), data, model=model, loss=squared, optimizer=Sgd(0.1), **options)


def test_without_privacy_the_plans_seed_fixes_everything() -> None:
    first, second = plain(linear(), units()), plain(linear(), units())
    assert torch.equal(first["weight"], second["weight"])
    assert not torch.equal(first["weight"], plain(linear(), units(), seed=8)["weight"])
    assert not torch.equal(first["weight"], plain(linear(), units(), site="bob")["weight"])
    assert not torch.equal(first["weight"], plain(linear(), units(), round_number=1)["weight"])


def test_without_privacy_an_epoch_touches_each_unit_once() -> None:
    assert sorted(planned_order(7, "alice", 0, 0, 20).tolist()) == list(range(20))
    assert planned_order(7, "alice", 0, 0, 20).tolist() != planned_order(7, "alice", 0, 1, 20).tolist()


def test_without_privacy_a_full_batch_step_is_gradient_descent() -> None:
    model, data = linear(), units()
    found = plain(model, data, local_steps=1, batch=20)
    losses = squared(model(data.inputs[:, 0]), data.targets[:, 0]).mean()
    weight, bias = torch.autograd.grad(losses, [model.weight, model.bias])  # type: ignore[list-item]
    assert torch.allclose(found["weight"], model.weight.detach() - 0.1 * weight, atol=1e-6)  # type: ignore[operator]
    assert torch.allclose(found["bias"], model.bias.detach() - 0.1 * bias, atol=1e-6)  # type: ignore[operator]


def test_without_privacy_running_statistics_are_allowed_and_move() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    before = model[1].running_mean.clone()  # type: ignore[union-attr, operator]
    plain(model, units())
    assert not torch.equal(before, model[1].running_mean)  # type: ignore[arg-type]


def test_without_units_there_is_nothing_to_train_on() -> None:
    with pytest.raises(ScheduleInvalid):
        plain(linear(), units(0))


# -- averages and proximal terms ----------------------------------------------------------------------------------


def test_a_moving_average_is_that_of_the_iterates_without_a_pull_to_zero() -> None:
    mean = MovingAverage(0.5)
    start = {"w": torch.tensor([9.0])}
    assert mean.value(start) is not start
    assert torch.equal(mean.value(start)["w"], start["w"])
    for value in (1.0, 4.0):
        mean.add({"w": torch.tensor([value])})
    assert mean.value(start)["w"].item() == pytest.approx(3.0)
    with pytest.raises(ScheduleInvalid):
        MovingAverage(1.0)


def test_a_round_returns_the_average_of_its_steps_where_the_plan_asks_for_it() -> None:
    seen: list[dict[str, Tensor]] = []

    class Kept(Sgd):
        def step(self, *arguments: Any) -> dict[str, Tensor]:
            seen.append(super().step(*arguments))
            return seen[-1]

    model = linear()
    result = noisy_round(
        trainable(model),
        units(),
        schedule=schedule(),
        gradients=FunctionalGradients(model, squared),
        optimizer=Kept(0.1),
        lease=leased(4),
        streams=StepStreams(),
        average=0.5,
    )
    weights = [0.5 ** (4 - place) for place in range(4)]
    total = sum(weights)
    expected = sum(weight / total * step["weight"].double() for weight, step in zip(weights, seen, strict=True))
    assert torch.allclose(result.parameters["weight"].double(), expected, atol=1e-6)


def test_a_proximal_term_pulls_towards_the_rounds_model_and_never_reaches_the_clip() -> None:
    start, far = {"w": torch.tensor([0.0])}, {"w": torch.tensor([10.0])}
    pulled = optimizer_for("sgd", lr=0.1, proximal=0.5).step(far, {"w": torch.zeros(1, dtype=torch.float64)}, start)
    assert pulled["w"].item() == pytest.approx(10 - 0.1 * 0.5 * 10)


# -- the grid -----------------------------------------------------------------------------------------------------


def test_a_sum_with_its_noise_is_a_whole_number_of_millionths_of_the_noise() -> None:
    sums = {"a": torch.randn(70_001, dtype=torch.float64), "b": torch.randn(3, 5, dtype=torch.float64)}
    plan = schedule(noise_multiplier=1.5, clip=2.0)
    for name, value in noisy_mean(sums, plan, KeyRoot(Purpose.NOISE).derive("x")).items():
        whole = value * plan.normaliser / math.ldexp(3.0, -20)
        assert value.shape == sums[name].shape
        assert torch.allclose(whole, whole.round(), rtol=0, atol=1e-6)


def test_noise_by_torch_is_noise_by_numpy() -> None:
    uniforms = np.random.default_rng(1).uniform(1e-12, 1, (2, 5000))
    for ours, theirs in zip(box_muller_by_torch(*uniforms.copy()), box_muller(*uniforms), strict=True):
        assert np.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
