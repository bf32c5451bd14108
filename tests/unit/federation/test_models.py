import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from federation.errors import InvalidInput
from federation.models import layout
from federation.models.modules import build, load, loss, take
from federation.plan_fields import CnnModel, LogisticModel, MlpModel, Resnet18Model, TransformerModel
from federation.tensors import Manifest
from privacy.accounting.schedule import schedule_for
from privacy.dpsgd.batches import Units
from privacy.dpsgd.preflight import preflight

SCHEDULE = schedule_for(epsilon=2.0, delta=1e-3, batch=50, rounds=2, local_steps=2, clip=1.0, units_declared=200)

LOGISTIC = LogisticModel(kind="logistic")
MLP = MlpModel(kind="mlp", hidden=(16, 8), activation="relu")
TANH = MlpModel(kind="mlp", hidden=(16, 8), activation="tanh")
ALL = [LOGISTIC, MLP, TANH]


CNN = CnnModel(kind="cnn", channels=2, height=14, width=18)
RESNET = Resnet18Model(kind="resnet18", channels=3, height=14, width=15, filters=8)
WORDS = TransformerModel(kind="transformer", tokens=6, vocabulary=20, dim=16, layers=2, heads=4)
NUMBERS = TransformerModel(kind="transformer", tokens=6, dim=16, layers=1, heads=2)
LARGE = {"cnn": (CNN, 504), "resnet18": (RESNET, 630), "words": (WORDS, 6), "numbers": (NUMBERS, 30)}


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("spec", "width"), LARGE.values(), ids=LARGE)
def test_a_model_of_images_or_tokens_holds_its_manifest_loads_its_first_values_and_gives_log_odds(spec, width, classes):
    module, first = build(spec, width, classes), layout.initial(spec, width, classes, seed=7)
    assert Manifest.of_arrays(take(module)) == layout.manifest(spec, width, classes)
    load(module, first)
    outputs = module(3 * torch.rand(4, width))
    assert outputs.shape == ((4,) if classes == 2 else (4, 5))
    assert 0.01 < outputs.std() < 10
    assert module(torch.zeros(0, width)).shape[0] == 0


@pytest.mark.parametrize(("spec", "width"), LARGE.values(), ids=LARGE)
def test_the_gradient_engine_for_a_named_model_is_the_book_keeping_one_and_passes_every_check(spec, width):
    module = build(spec, width)
    load(module, layout.initial(spec, width, seed=7))
    report = preflight(module, loss, Units.of_records(9 * torch.rand(4, width), torch.tensor([0.0, 1, 1, 0])), SCHEDULE)
    assert report.engine.startswith("book-keeping")
    assert {"F3", "F5", "F6", "F7"} <= set(report.checks)


def test_the_cnn_for_ten_digits_has_the_weights_that_its_page_says():
    spec = CnnModel(kind="cnn", height=28, width=28)
    assert sum(tensor.elements for _, tensor in layout.manifest(spec, 784, 10).tensors) == 26_010


@pytest.mark.parametrize(
    ("spec", "width"),
    [(CNN, 505), (RESNET, 629), (WORDS, 12), (NUMBERS, 31), (NUMBERS.model_copy(update={"heads": 3}), 30)],
)
def test_rows_that_a_model_does_not_take_are_refused(spec, width):
    for make in (layout.manifest, build):
        with pytest.raises(InvalidInput) as refusal:
            make(spec, width)
        assert refusal.value.code == "CFD-P03"


def test_a_word_outside_the_vocabulary_counts_as_the_nearest_one():
    module = build(WORDS, 6)
    assert torch.equal(module(torch.full((1, 6), 99.0)), module(torch.full((1, 6), 19.0)))


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("spec", ALL, ids=["logistic", "relu", "tanh"])
def test_a_module_holds_exactly_the_tensors_of_the_manifest(spec, classes):
    module = build(spec, 13, classes)
    assert Manifest.of_arrays(take(module)) == layout.manifest(spec, 13, classes)


@pytest.mark.parametrize("spec", ALL, ids=["logistic", "relu", "tanh"])
def test_the_first_values_load_and_come_back(spec):
    first, module = layout.initial(spec, 13, seed=7), build(spec, 13)
    load(module, first)
    assert all(np.array_equal(array, first[name]) for name, array in take(module).items())


@pytest.mark.parametrize("spec", ALL, ids=["logistic", "relu", "tanh"])
def test_outputs_are_log_odds_of_shape_b(spec):
    assert build(spec, 13)(torch.zeros(5, 13)).shape == (5,)
    assert build(spec, 13)(torch.zeros(0, 13)).shape == (0,)
    assert build(spec, 13, 5)(torch.zeros(5, 13)).shape == (5, 5)


def test_the_first_values_are_known_bytes():
    stream = hashlib.sha256(
        b"confide-initial/v1\n" + (7).to_bytes(8, "big") + (13).to_bytes(4, "big") + b"output.weight" + bytes(8)
    ).digest()
    words = [int.from_bytes(stream[8 * j : 8 * j + 8], "big") >> 11 for j in range(3)]
    expected = np.array([(3.0 / 3) ** 0.5 * (2.0 * (word / 2**53) - 1.0) for word in words]).astype("f4")
    assert np.array_equal(layout.initial(LOGISTIC, 3, seed=7)["output.weight"], expected.reshape(1, 3))


def test_first_values_depend_on_the_seed_and_the_tensor_alone():
    first, again, other = (layout.initial(MLP, 13, seed=seed) for seed in (7, 7, 8))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["output.weight"], other["output.weight"])
    assert not first["output.bias"].any()


@pytest.mark.parametrize(("spec", "bound"), [(MLP, (6 / 400) ** 0.5), (TANH, (3 / 400) ** 0.5)])
def test_first_weights_fill_their_interval_evenly(spec, bound):
    weights = layout.initial(spec, 400, seed=1)["layers.0.weight"].ravel() / bound
    assert abs(weights).max() <= 1
    counts = np.histogram(weights, bins=10, range=(-1, 1))[0]
    assert counts.min() > 540  # 6,400 values, 640 expected in a tenth; four standard deviations
    assert counts.max() < 740


def test_the_module_computes_what_the_formula_says():
    spec = MlpModel(kind="mlp", hidden=(4,), activation="tanh")
    first, module = layout.initial(spec, 3, seed=3), build(spec, 3)
    load(module, first)
    rows = np.array([[0.5, -1.0, 2.0]], dtype="f4")
    hidden = np.tanh(rows @ first["layers.0.weight"].T + first["layers.0.bias"])
    expected = hidden @ first["output.weight"].T + first["output.bias"]
    assert module(torch.from_numpy(rows)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_loss_is_one_value_a_unit():
    outputs, labels = torch.tensor([0.0, 100.0, -100.0]), torch.tensor([1.0, 1.0, 1.0])
    values = loss(outputs, labels)
    assert values.shape == (3,)
    assert values.tolist() == pytest.approx([np.log(2), 0.0, 100.0])
    assert loss(torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64)).shape == (4,)
    assert loss(torch.zeros(0), torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("outputs", "labels"), [((3, 1), (3, 1)), ((3,), (3, 1)), ((3,), (1,)), ((3, 1, 1), (3,)), ((), ())]
)
def test_a_loss_whose_shapes_would_broadcast_is_refused(outputs, labels):
    with pytest.raises(InvalidInput, match="don't belong together"):
        loss(torch.zeros(outputs), torch.zeros(labels))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"output.bias": None}, r"tensor output\.bias is missing"),
        ({"more": np.zeros(1, dtype="f4")}, "tensor more is not in the model"),
        ({"output.bias": np.zeros(1)}, r"tensor output\.bias is torch\.float64 \(1,\), expected torch\.float32"),
        ({"output.bias": np.zeros((), dtype="f4")}, r"is torch\.float32 \(\), expected torch\.float32 \(1,\)"),
    ],
)
def test_arrays_that_do_not_fit_change_nothing_in_the_module(change, text):
    module = build(LOGISTIC, 3)
    before = take(module)
    arrays = {k: v for k, v in {**layout.initial(LOGISTIC, 3, seed=1), **change}.items() if v is not None}
    with pytest.raises(InvalidInput, match=text):
        load(module, arrays)
    assert all(np.array_equal(array, before[name]) for name, array in take(module).items())


@pytest.mark.parametrize(("width", "classes"), [(0, 2), (3, 1), (3, 5000)])
def test_a_model_without_inputs_or_classes_is_refused(width, classes):
    with pytest.raises(InvalidInput):
        layout.manifest(LOGISTIC, width, classes)
    with pytest.raises(InvalidInput):
        build(LOGISTIC, width, classes)


def test_the_first_model_is_made_without_torch_and_flower():
    program = (
        "import sys; from federation.models.layout import initial; from federation.plan_fields import LogisticModel;"
        "initial(LogisticModel(kind='logistic'), 3, seed=1);"
        "import federation.plan, federation.policy, federation.server_step, federation.flower;"
        "print([name for name in ('torch', 'flwr', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
