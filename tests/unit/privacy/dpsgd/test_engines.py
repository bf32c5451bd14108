"""Every engine gives what a plain loop over units gives, for every kind of layer; what it can't do, it says."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privacy.accounting.schedule import Clipping
from privacy.dpsgd.batches import Units
from privacy.dpsgd.bookkeeping import BookKeepingGradients, refusal
from privacy.dpsgd.clipping import MARGIN_FULL, MARGIN_REDUCED, factors
from privacy.dpsgd.engines import engine_for
from privacy.dpsgd.functional import FunctionalGradients, PerUnitGradients, trainable
from privacy.dpsgd.layer_parts import cross_squares, products
from privacy.dpsgd.lora import LoraLinear, add_lora
from privacy.errors import EngineUnsuitable, ModelRefused

BOTH: list[Any] = [BookKeepingGradients, FunctionalGradients]
UNITS, CLASSES = 6, 3


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def plain_loop(
    model: nn.Module, units: Units, clip: float, clipping: Clipping, *, left_out: frozenset[int] = frozenset()
) -> dict[str, Tensor]:
    """Σ clip(g_i) by one ordinary backward pass for each unit."""
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    sums = {name: torch.zeros_like(model.get_parameter(name)) for name in names}
    for index in range(len(units)):
        mask = units.mask[index]
        if index in left_out or not bool(mask.any()):
            continue
        losses = cross_entropy(model(units.inputs[index][mask]), units.targets[index][mask])
        found = torch.autograd.grad(
            losses.mean(), [model.get_parameter(name) for name in names], allow_unused=True, materialize_grads=True
        )
        norm = torch.stack([value.square().sum() for value in found]).sum().sqrt()
        factor = factors(norm[None].double(), clip, clipping, MARGIN_FULL)[0]
        for name, value in zip(names, found, strict=True):
            sums[name] += factor * value
    return sums


def relative_error(expected: dict[str, Tensor], found: dict[str, Tensor]) -> float:
    assert expected.keys() == found.keys()
    size = math.sqrt(sum(float(value.square().sum()) for value in expected.values()))
    return math.sqrt(sum(float((found[name] - value).square().sum()) for name, value in expected.items())) / size


def check(engine: Any, model: nn.Module, units: Units, *, bound: float = 1e-5, **fields: Any) -> None:
    made: PerUnitGradients = engine(model, cross_entropy, **fields)
    for clip, clipping in ((0.3, Clipping.THRESHOLD), (1e6, Clipping.THRESHOLD), (1.0, Clipping.NORMALISED)):
        expected = plain_loop(model, units, clip, clipping)
        assert relative_error(expected, made.clipped_sum(trainable(model), units, clip, clipping).sums) <= bound


def records(*shape: int, kind: torch.dtype = torch.float64) -> Units:
    return Units.of_records(torch.randn(UNITS, *shape, dtype=kind), torch.randint(0, CLASSES, (UNITS,)))


def entities(*shape: int) -> Units:
    mask = torch.rand(UNITS, 3) > 0.4
    mask[0], mask[1] = True, False
    return Units(torch.randn(UNITS, 3, *shape).double(), torch.randint(0, CLASSES, (UNITS, 3)), mask)


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).double()


def pooled(axes: int, channels: int) -> tuple[nn.Module, ...]:
    pool: nn.Module = getattr(nn, f"AdaptiveAvgPool{axes}d")(1)
    return pool, nn.Flatten(), nn.Linear(channels, CLASSES)


class Words(nn.Module):
    """Tokens, summed after a layer over positions; the padding word learns nothing."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(5, width, padding_idx=1)
        self.between = nn.Linear(width, 40)
        self.head = nn.Linear(40, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.between(self.words(tokens))).mean(1))
        return outputs


def word_units(*rows: int) -> Units:
    mask = torch.ones(UNITS, *(rows or (1,)), dtype=torch.bool)
    return Units(torch.randint(0, 5, (*mask.shape, 9)), torch.randint(0, CLASSES, mask.shape), mask)


CONVOLUTIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "1d, stride 2": (1, {"stride": 2, "padding": 1}),
    "1d, dilated, padding same": (1, {"dilation": 2, "padding": "same"}),
    "2d, two groups": (2, {"groups": 2}),
    "2d, stride and dilation": (2, {"stride": (2, 1), "dilation": (1, 2), "padding": (1, 2)}),
    "2d, depthwise": (2, {"groups": 4, "bias": False}),
    "3d, stride, groups": (3, {"stride": 2, "groups": 2, "padding": 1}),
    "3d, dilated": (3, {"dilation": 2, "padding": 2}),
}
SIZES: dict[int, tuple[int, ...]] = {1: (14,), 2: (7, 9), 3: (5, 6, 7)}


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("channels", [8, 256], ids=["gradients made", "norms from cross terms"])
def test_a_convolution_gives_the_loops_sum(engine: Any, kind: str, channels: int) -> None:
    axes, fields = CONVOLUTIONS[kind]
    if channels == 256 and axes == 3:
        channels = 128
    layer = getattr(nn, f"Conv{axes}d")
    model = chain(layer(4, channels, 3, **fields), nn.Tanh(), *pooled(axes, channels))
    check(engine, model, records(4, *SIZES[axes]))


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer": (lambda: chain(nn.LayerNorm(5), nn.Linear(5, CLASSES)), (5,)),
    "layer, over two axes, no bias": (
        lambda: chain(nn.LayerNorm((4, 5), bias=False), nn.Flatten(), nn.Linear(20, CLASSES)), (4, 5)
    ),
    "layer, many positions": (
        lambda: chain(nn.LayerNorm(5), nn.Tanh(), nn.Flatten(), nn.Linear(35, CLASSES)), (7, 5)
    ),
    "group": (lambda: chain(nn.GroupNorm(2, 4), nn.Tanh(), *pooled(2, 4)), (4, 3, 3)),
    "group, vectors": (lambda: chain(nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)), (4,)),
    "root mean square": (lambda: chain(nn.RMSNorm(5), nn.Linear(5, CLASSES)), (7, 5)[1:]),
}  # fmt: skip


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_layer_gives_the_loops_sum(engine: Any, kind: str) -> None:
    build, shape = NORMS[kind]
    check(engine, build(), records(*shape))


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("width", [4, 200], ids=["gradients made", "norms from cross terms"])
@pytest.mark.parametrize("shape", [(5,), (7, 5)], ids=["vectors", "sequences"])
def test_a_linear_layer_gives_the_loops_sum(engine: Any, width: int, shape: tuple[int, ...]) -> None:
    model = chain(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width, bias=False), nn.Flatten(),
                  nn.Linear(width * (shape[0] if len(shape) > 1 else 1), CLASSES))  # fmt: skip
    check(engine, model, records(*shape))


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("rows", [(), (3,)], ids=["records", "entities"])
def test_an_embedding_gives_the_loops_sum(engine: Any, rows: tuple[int, ...]) -> None:
    check(engine, Words().double(), word_units(*rows))


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("micro_batch", range(1, UNITS + 1))
def test_entities_with_masks_give_the_loops_sum_whatever_the_micro_batch(engine: Any, micro_batch: int) -> None:
    model = chain(nn.Conv2d(2, 64, 3), nn.Tanh(), nn.Conv2d(64, 64, 2), nn.GroupNorm(4, 64), *pooled(2, 64))
    check(engine, model, entities(2, 5, 5), micro_batch=micro_batch)


@pytest.mark.parametrize("engine", BOTH)
def test_frozen_parts_get_no_gradient_and_are_no_part_of_the_norm(engine: Any) -> None:
    model = chain(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    model[0].requires_grad_(requires_grad=False)  # type: ignore[index]
    model[2].bias.requires_grad_(requires_grad=False)  # type: ignore[index]
    model[4].weight.requires_grad_(requires_grad=False)  # type: ignore[index]
    assert sorted(trainable(model)) == ["2.weight", "4.bias"]
    check(engine, model, records(5))


@pytest.mark.parametrize("engine", BOTH)
def test_a_branch_that_is_not_used_gets_zeros(engine: Any) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(5, CLASSES)
            self.unused = nn.Linear(5, CLASSES)
            self.watched = nn.Linear(5, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            with torch.no_grad():
                shift = self.watched(values)
            outputs: Tensor = self.used(values) + shift
            self.watched(values.detach()).sum().detach()  # computed and thrown away
            return outputs

    model = Branch().double()
    check(engine, model, records(5))
    found = engine(model, cross_entropy).clipped_sum(trainable(model), records(5), 1.0, Clipping.NORMALISED)
    assert not found.sums["unused.weight"].any()
    assert not found.sums["watched.weight"].any()


@pytest.mark.parametrize("engine", BOTH)
def test_adapters_on_a_frozen_body_give_the_loops_sum(engine: Any) -> None:
    model = chain(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    add_lora(model, ["0"], rank=2, train=["2"])
    nn.init.normal_(model.get_parameter("0.up.weight"))
    assert sorted(trainable(model)) == ["0.down.weight", "0.up.weight", "2.bias", "2.weight"]
    check(engine, model, records(5))


@pytest.mark.parametrize("engine", BOTH)
def test_float32_stays_within_its_bound(engine: Any) -> None:
    model = nn.Sequential(nn.Conv2d(2, 64, 3), nn.GroupNorm(4, 64), nn.Tanh(), nn.Conv2d(64, 64, 2), *pooled(2, 64))
    check(engine, model, records(2, 6, 6, kind=torch.float32), bound=1e-3)


@pytest.mark.parametrize("engine", BOTH)
def test_no_units_give_zeros_and_no_gradient_is_ever_stored(engine: Any) -> None:
    model, units = chain(nn.Linear(5, CLASSES)), records(5)
    found = engine(model, cross_entropy).clipped_sum(
        trainable(model), units.take(np.arange(0)), 1.0, Clipping.NORMALISED
    )
    assert not any(value.any() for value in found.sums.values())
    assert found.left_out == 0
    engine(model, cross_entropy).clipped_sum(trainable(model), units, 1.0, Clipping.NORMALISED)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_unit_that_is_not_finite_changes_nothing_else(engine: Any, bad: float) -> None:
    model = chain(nn.Conv2d(2, 64, 3), nn.GroupNorm(4, 64), nn.Tanh(), nn.Conv2d(64, 64, 2), *pooled(2, 64))
    units = records(2, 6, 6)
    units.inputs[2, 0, 0, 1, 1] = bad
    found = engine(model, cross_entropy).clipped_sum(trainable(model), units, 1.0, Clipping.NORMALISED)
    assert found.left_out == 1
    expected = plain_loop(model, units, 1.0, Clipping.NORMALISED, left_out=frozenset({2}))
    assert relative_error(expected, found.sums) <= 1e-9


def test_in_reduced_precision_nobody_passes_the_clip_and_sums_stay_wide() -> None:
    model = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, CLASSES))
    units = records(5, kind=torch.float32)
    for engine in BOTH:
        made = engine(model, cross_entropy, autocast=torch.bfloat16)
        for index in range(UNITS):
            alone = made.clipped_sum(trainable(model), units.take(np.array([index])), 1e-3, Clipping.THRESHOLD)
            norm = math.sqrt(sum(float(value.square().sum()) for value in alone.sums.values()))
            assert norm <= 1e-3 * (1 - MARGIN_REDUCED / 2)
            assert all(value.dtype == torch.float64 for value in alone.sums.values())


def test_cancelling_cross_terms_never_make_a_norm_too_small() -> None:
    left = torch.ones(3, 40, 900) * 1000
    right = torch.randn(3, 40, 900)
    right = right - right.mean(1, keepdim=True)
    exact = torch.einsum("uso,usi->uoi", right.double(), left.double()).flatten(1).norm(dim=1)
    assert bool((cross_squares(products(left), products(right), 900).sqrt() >= exact).all())


# -- what an engine can't do ----------------------------------------------------------------------------------------


class Tied(nn.Module):
    """The table of words is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, 4)
        self.head = nn.Linear(4, CLASSES, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.words(tokens).mean(1))
        return outputs


def test_tied_weights_go_to_the_functional_engine_which_gives_the_loops_sum() -> None:
    model = Tied().double()
    assert "shares a parameter" in refusal(model)
    with pytest.raises(EngineUnsuitable, match="words: shares"):
        BookKeepingGradients(model, cross_entropy)
    units = Units.of_records(torch.randint(0, CLASSES, (UNITS, 4)), torch.randint(0, CLASSES, (UNITS,)))
    assert isinstance(engine_for(model, cross_entropy), FunctionalGradients)
    check(engine_for, model, units)


def test_a_module_with_parameters_of_its_own_goes_to_the_functional_engine() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(5))
            self.head = nn.Linear(5, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            outputs: Tensor = self.head(values * self.shift)
            return outputs

    model = Shifted().double()
    assert refusal(model).startswith("the model: Shifted")
    check(engine_for, model, records(5))
    circular = nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular")
    assert "pads with other values" in refusal(nn.Sequential(circular))
    assert "how often" in refusal(nn.Sequential(nn.Embedding(3, 2, scale_grad_by_freq=True)))


def test_a_module_that_runs_twice_is_refused_in_the_pass() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.again = nn.Linear(5, 5)
            self.head = nn.Linear(5, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            outputs: Tensor = self.head(self.again(torch.tanh(self.again(values))))
            return outputs

    model = Twice().double()
    with pytest.raises(EngineUnsuitable, match="again runs twice"):
        check(BookKeepingGradients, model, records(5))
    check(FunctionalGradients, model, records(5))


def test_an_input_that_is_changed_in_place_is_refused_in_the_pass() -> None:
    class Overwritten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 5)
            self.head = nn.Linear(5, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            own = values.clone()
            outputs: Tensor = self.head(self.first(own))
            own.mul_(2)
            return outputs

    model = Overwritten().double()
    with pytest.raises(EngineUnsuitable, match="changed in place"):
        BookKeepingGradients(model, cross_entropy).clipped_sum(trainable(model), records(5), 1.0, Clipping.NORMALISED)


def test_a_model_without_units_on_its_first_axis_is_refused_in_the_pass() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            outputs: Tensor = self.first(values.transpose(0, 1)).mean(0)
            return outputs

    with pytest.raises(EngineUnsuitable, match="first axis"):
        check(BookKeepingGradients, Turned().double(), records(4, 5))


def test_an_activation_in_place_between_layers_is_counted_rightly() -> None:
    model = chain(nn.LayerNorm(5), nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES))
    check(BookKeepingGradients, model, records(5))


# -- adapters -------------------------------------------------------------------------------------------------------


def test_an_adapter_begins_as_its_base_and_merges_to_the_same_outputs() -> None:
    base = nn.Linear(6, 4)
    rows = torch.randn(3, 6)
    expected = base(rows).detach()
    adapter = LoraLinear(base, 2, alpha=3.0)
    assert torch.equal(adapter(rows), expected)
    nn.init.normal_(adapter.up.weight)
    assert torch.allclose(adapter.merge()(rows), adapter(rows), atol=1e-5)
    without = LoraLinear(nn.Linear(6, 4, bias=False), 2)
    assert torch.allclose(without.merge()(rows), without(rows))


def test_an_adapter_of_an_impossible_rank_or_at_no_linear_layer_is_refused_and_changes_nothing() -> None:
    with pytest.raises(ModelRefused, match="rank 5"):
        LoraLinear(nn.Linear(6, 4), 5)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    with pytest.raises(ModelRefused, match="1 is no Linear"):
        add_lora(model, ["0", "1"], rank=2)
    assert all(value.requires_grad for value in model.parameters())
