"""One model for each rule and check, which must be refused by that rule and with that class."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privacy.accounting.schedule import Clipping, Schedule, schedule_for
from privacy.dpsgd import preflight as preflight_module
from privacy.dpsgd.batches import Units
from privacy.dpsgd.functional import FunctionalGradients
from privacy.dpsgd.preflight import check_buffers, check_state, preflight
from privacy.dpsgd.trial import MOST_UNITS
from privacy.errors import (
    BatchCoupled,
    BuffersMoved,
    ClipExceeded,
    DryRunFailed,
    EngineWrong,
    LossShapeWrong,
    ModelRefused,
    NoiseWrong,
    PrivacyError,
    ReductionWrong,
    StateChanged,
)

SCHEDULE: Schedule = schedule_for(
    epsilon=2.0, delta=1e-3, batch=50, rounds=2, local_steps=2, clip=1.0, units_declared=200
)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def synthetic(width: int = 3, count: int = 8) -> Units:
    torch.manual_seed(1)
    return Units.of_records(torch.randn(count, width), torch.randint(0, 2, (count,)))


def mlp(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 8), *more, nn.ReLU(), nn.Linear(8, 2))


def refused(refusal: type[PrivacyError], model: nn.Module, **fields: Any) -> str:
    options = {"loss": cross_entropy, "synthetic": synthetic(), "schedule": SCHEDULE, **fields}
    with pytest.raises(refusal) as caught:
        preflight(model, **options)
    assert caught.value.hint
    return caught.value.message


def hint_of(model: nn.Module) -> str:
    with pytest.raises(ModelRefused) as caught:
        preflight(model, cross_entropy, synthetic(), SCHEDULE)
    return caught.value.hint


def test_a_sound_model_passes_every_check_and_is_left_as_it_was() -> None:
    model = mlp(nn.LayerNorm(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = preflight(model, cross_entropy, synthetic(), SCHEDULE)
    assert {"M1", "M5", "F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9"} <= set(report.checks)
    assert report.engine.startswith("book-keeping/1")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_is_checked_in_the_precision_that_it_is_trained_in() -> None:
    report = preflight(mlp(nn.LayerNorm(8)), cross_entropy, synthetic(), SCHEDULE, autocast=torch.bfloat16)
    assert {"F5", "F6"} <= set(report.checks)


def test_a_model_with_dropout_passes() -> None:
    assert "F5" in preflight(mlp(nn.Dropout(0.3)), cross_entropy, synthetic(), SCHEDULE).checks


def test_a_model_that_always_draws_is_reported_without_the_checks_that_need_the_same_draw() -> None:
    class Noisy(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values + torch.randn_like(values) * 0.1

    report = preflight(mlp(Noisy()), cross_entropy, synthetic(), SCHEDULE)
    assert "F5" not in report.checks
    assert "F6" in report.checks


def test_entities_with_several_rows_pass() -> None:
    torch.manual_seed(1)
    entities = Units(torch.randn(6, 3, 3), torch.randint(0, 2, (6, 3)), torch.ones(6, 3, dtype=torch.bool))
    preflight(mlp(), cross_entropy, entities, SCHEDULE)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(8),
        nn.BatchNorm1d(8, affine=False),
        nn.BatchNorm1d(8, track_running_stats=False),
        nn.BatchNorm1d(8).eval().requires_grad_(False),
        nn.InstanceNorm1d(8, track_running_stats=True),
    ],
)
def test_running_statistics_are_refused_also_without_parameters_and_frozen(layer: nn.Module) -> None:
    message = refused(ModelRefused, mlp(layer))
    assert message.startswith("M1: 1 (")


def test_attention_or_memory_along_the_axis_of_units_is_refused() -> None:
    assert refused(ModelRefused, mlp(nn.MultiheadAttention(8, 2))).startswith("M2: 1 (MultiheadAttention)")
    assert refused(ModelRefused, mlp(nn.GRU(8, 8))).startswith("M2: 1 (GRU)")


def test_spectral_norm_is_refused_in_both_ways_that_torch_has() -> None:
    new = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this way is old
        old = nn.utils.spectral_norm(nn.Linear(8, 8))
    for layer in (new, old):
        assert "spectral_norm off 1" in hint_of(mlp(layer))


def test_another_parametrisation_goes_to_the_functional_engine() -> None:
    model = mlp(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    assert preflight(model, cross_entropy, synthetic(), SCHEDULE).engine.startswith("functional/1")


def test_tied_weights_go_to_the_functional_engine() -> None:
    model = mlp(nn.Linear(8, 8), nn.Linear(8, 8))
    model[2].weight = model[1].weight
    assert preflight(model, cross_entropy, synthetic(), SCHEDULE).engine.startswith("functional/1")


def test_a_layer_that_is_used_around_its_module_goes_to_the_functional_engine() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.head = nn.Linear(3, 2)

        def forward(self, values: Tensor) -> Tensor:
            outputs: Tensor = self.head(torch.tanh(self.first(values)) @ self.first.weight)
            return outputs

    assert preflight(Around(), cross_entropy, synthetic(), SCHEDULE).engine.startswith("functional/1")


def test_rows_that_few_units_touch_are_refused_without_noise_of_the_site() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    words = Units.of_records(torch.randint(0, 9, (8, 3)), torch.randint(0, 2, (8,)))
    assert refused(ModelRefused, model, synthetic=words, local_noise=False).startswith("M7: 0 (Embedding)")
    preflight(model, cross_entropy, words, SCHEDULE)


def test_the_micro_batch_keeps_to_the_memory_that_it_may_use() -> None:
    report = preflight(mlp(), cross_entropy, synthetic(), SCHEDULE)
    assert report.micro_batch == MOST_UNITS
    assert preflight(mlp(), cross_entropy, synthetic(), SCHEDULE, memory_bytes=2000).micro_batch in range(1, 8)
    assert preflight(mlp(), cross_entropy, synthetic(), SCHEDULE, memory_bytes=1).micro_batch == 1


def test_a_lazy_module_and_a_model_with_nothing_to_train_are_refused() -> None:
    assert refused(ModelRefused, nn.Sequential(nn.LazyLinear(2))).startswith("M6")
    assert refused(ModelRefused, mlp().requires_grad_(False)).startswith("M5")


def test_a_parameter_without_gradient_is_named() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(3, 2)
            self.unused = nn.Linear(3, 2)

        def forward(self, values: Tensor) -> Tensor:
            outputs: Tensor = self.used(values)
            return outputs

    assert "unused.weight, unused.bias" in refused(ModelRefused, Branch())


@pytest.mark.parametrize(
    "loss",
    [
        nn.functional.cross_entropy,
        lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="sum"),
        lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")[:, None],
    ],
)
def test_a_loss_that_is_not_one_value_per_row_is_refused(loss: Any) -> None:
    assert refused(LossShapeWrong, mlp(), loss=loss).startswith("F2")


def test_a_model_that_looks_across_the_batch_is_refused() -> None:
    class Centred(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values - values.mean(0)

    assert refused(BatchCoupled, mlp(Centred())).startswith("F3: 1 lets")


def test_a_loss_that_looks_across_the_batch_is_refused() -> None:
    def weighted_mean(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(outputs, targets)
        weight = torch.where(targets == 1, 3.0, 1.0)
        return losses * weight / weight.sum()

    torch.manual_seed(1)
    uneven = Units.of_records(torch.randn(4, 3), torch.tensor([1, 0, 1, 0]))
    assert refused(BatchCoupled, mlp(), loss=weighted_mean, synthetic=uneven).startswith("F3: the loss")


def test_a_survival_loss_over_everyone_at_risk_is_refused_and_discrete_time_is_named() -> None:
    def cox(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.logcumsumexp(outputs[:, 0], 0) - outputs[:, 0]

    with pytest.raises(BatchCoupled) as caught:
        preflight(mlp(), cox, synthetic(), SCHEDULE)
    assert "discrete time" in caught.value.hint


def test_a_model_that_does_not_fit_the_data_is_refused_without_a_trace() -> None:
    assert refused(DryRunFailed, mlp(), synthetic=synthetic(5)).startswith("F1")


class Halved(FunctionalGradients):
    """An engine that loses half of each gradient."""

    def unit_gradients(self, parameters: Any, units: Units) -> Any:
        return {name: value * 0.5 for name, value in super().unit_gradients(parameters, units).items()}


class BatchMean(FunctionalGradients):
    """An engine under which a unit's gradient shrinks with its batch."""

    def unit_gradients(self, parameters: Any, units: Units) -> Any:
        return {name: value / len(units) for name, value in super().unit_gradients(parameters, units).items()}


class Unclipped(FunctionalGradients):
    """An engine that doesn't clip."""

    def clipped_sum(self, parameters: Any, units: Units, clip: float, clipping: Clipping) -> Any:
        return super().clipped_sum(parameters, units, math.inf, Clipping.THRESHOLD)


class AverageClip(FunctionalGradients):
    """An engine that clips the sum and not the units."""

    def clipped_sum(self, parameters: Any, units: Units, clip: float, clipping: Clipping) -> Any:
        whole = super().clipped_sum(parameters, units, 1e30, Clipping.THRESHOLD)
        norm = math.sqrt(sum(float((value**2).sum()) for value in whole.sums.values()))
        factor = min(1.0, 0.9 * clip / norm)
        return type(whole)({name: value * factor for name, value in whole.sums.items()}, 0)


@pytest.mark.parametrize(
    ("engine", "refusal"), [(Halved, ReductionWrong), (BatchMean, EngineWrong), (Unclipped, ClipExceeded)]
)
def test_an_engine_that_computes_something_else_is_refused(engine: Any, refusal: type[PrivacyError]) -> None:
    refused(refusal, mlp(), engine=engine)


def test_an_engine_that_clips_the_sum_instead_of_the_units_is_refused() -> None:
    assert "not applied to each unit" in refused(ClipExceeded, mlp(), engine=AverageClip)


def test_noise_that_is_not_what_was_accounted_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = preflight_module.noisy_mean
    torch.manual_seed(2)
    wide = nn.Sequential(nn.Linear(3, 400), nn.ReLU(), nn.Linear(400, 2))

    def halved(*arguments: Any) -> Any:
        return {name: value * 0.5 for name, value in real(*arguments).items()}

    monkeypatch.setattr(preflight_module, "noisy_mean", halved)
    assert refused(NoiseWrong, wide).startswith("F8")


def test_a_buffer_that_moves_and_a_tensor_that_changes_are_named() -> None:
    model = mlp()
    model.register_buffer("seen", torch.zeros(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_buffers(model, before)
    check_state(model, before)
    assert isinstance(model.seen, Tensor)
    model.seen += 1
    with pytest.raises(BuffersMoved, match="seen"):
        check_buffers(model, before)
    with pytest.raises(StateChanged, match="seen"):
        check_state(model, before)
    model.register_buffer("more", torch.zeros(1))
    with pytest.raises(StateChanged, match="other names"):
        check_state(model, before)


def test_a_model_that_counts_in_a_buffer_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.inner = nn.Linear(3, 2)

        def forward(self, values: Tensor) -> Tensor:
            self.calls += 1
            outputs: Tensor = self.inner(values)
            return outputs

    refused((BuffersMoved, StateChanged, DryRunFailed), Counting())  # type: ignore[arg-type]
