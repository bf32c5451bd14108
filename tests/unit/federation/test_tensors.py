import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import safetensors.numpy
import torch

from federation.errors import InvalidInput
from federation.tensors import (
    Manifest,
    NotFinite,
    TensorFile,
    TensorFileRefused,
    TensorSpec,
    TensorWriter,
    TypeNotAveraged,
    UpdateRefused,
    check_update,
    make_update,
    state_digest,
    weighted_mean,
    write_tensors,
)

MODEL = {
    "0.weight": np.linspace(-1, 1, 32, dtype="f4").reshape(8, 4),
    "0.bias": np.zeros(8, dtype="f4"),
    "3.weight": np.ones((2, 8), dtype="f4"),
    "3.bias": np.zeros(2, dtype="f4"),
}
MANIFEST = Manifest.of_arrays(MODEL)


def written(folder, name, arrays):
    path = folder / f"{name}.safetensors"
    write_tensors(path, arrays)
    return path


def mean_of(folder, updates, weights, manifest=None):
    """Return the mean of arrays by site."""
    paths = {site: written(folder, site, arrays) for site, arrays in updates.items()}
    manifest = manifest or Manifest.of_arrays(next(iter(updates.values())))
    out = folder / "mean.safetensors"
    weighted_mean(paths, weights, manifest, out)
    with TensorFile(out) as mean:
        return mean.arrays()


def constants(value, dtype="f4", shape=(3,)):
    return {"w": np.full(shape, value, dtype=dtype)}


# --- the file --------------------------------------------------------------------------------------------------


def test_a_file_is_read_by_the_library_of_the_format_and_back(tmp_path):
    arrays = {
        "half": np.array([1.5], dtype="f2"),
        "scale": np.float32(2.5).reshape(()),
        "empty": np.zeros((0, 3), dtype="f4"),
        "ids": np.arange(5, dtype="i8"),
        "mask": np.array([True, False]),
        "wide": np.array([[1.0, 2.0]]),
    }
    path = written(tmp_path, "model", arrays)
    theirs = safetensors.numpy.load_file(path)
    with TensorFile(path) as ours:
        for name, array in arrays.items():
            assert theirs[name].dtype == ours.read(name).dtype == array.dtype
            assert theirs[name].shape == ours.read(name).shape == array.shape
            assert np.array_equal(theirs[name], array)
            assert np.array_equal(ours.read(name), array)


def test_a_file_of_the_library_of_the_format_is_read(tmp_path):
    safetensors.numpy.save_file(MODEL, tmp_path / "theirs.safetensors")
    with TensorFile(tmp_path / "theirs.safetensors") as file:
        assert file.manifest == MANIFEST
        assert np.array_equal(file.read("0.weight"), MODEL["0.weight"])


def test_the_same_tensors_in_another_order_give_the_same_bytes(tmp_path):
    first = written(tmp_path, "first", MODEL)
    second = written(tmp_path, "second", dict(reversed(MODEL.items())))
    assert first.read_bytes() == second.read_bytes()


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path):
    path = written(tmp_path, "model", MODEL)
    before = path.read_bytes()
    with pytest.raises(TensorFileRefused), TensorWriter(path, MANIFEST) as writer:
        writer.write("0.bias", 4, np.ones(8, dtype="f4"))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "values", [np.ones(9, dtype="f4"), np.ones(8, dtype="f8"), np.ones((2, 4), dtype="f4"), np.ones(8, dtype="i4")]
)
def test_a_window_of_another_type_or_size_is_not_written(tmp_path, values):
    with pytest.raises(TensorFileRefused), TensorWriter(tmp_path / "m", MANIFEST) as writer:
        writer.write("0.bias", 0, values)


def header_file(path, entries, data=b"", *, length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("entries", "data"),
    [
        (b"{", b""),
        (b"[]", b""),
        (b"\xff", b""),
        (b"[" * 100_000, b""),
        (b'{"w": ' + json.dumps(GOOD).encode() + b', "w": ' + json.dumps(GOOD).encode() + b"}", b"1234"),
        ({"w": GOOD}, b""),
        ({"w": GOOD}, b"12345"),
        ({"w": {**GOOD, "data_offsets": [4, 8]}}, b"12345678"),
        ({"w": {**GOOD, "data_offsets": [0, 8]}}, b"12345678"),
        ({"w": {**GOOD, "data_offsets": [4, 0]}}, b"1234"),
        ({"w": GOOD, "v": GOOD}, b"1234"),
        ({"w": {**GOOD, "shape": [-1]}}, b"1234"),
        ({"w": {**GOOD, "shape": [1.0]}}, b"1234"),
        ({"w": {**GOOD, "shape": [True]}}, b"1234"),
        ({"w": {**GOOD, "shape": [2**47, 2**47]}}, b"1234"),
        ({"w": {**GOOD, "shape": [1] * 9}}, b"1234"),
        ({"w": {**GOOD, "more": 1}}, b"1234"),
        ({"w": []}, b"1234"),
        ({"": GOOD}, b"1234"),
        ({"w\n": GOOD}, b"1234"),
        ({"w" * 257: GOOD}, b"1234"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, entries, data):
    with pytest.raises(TensorFileRefused):
        TensorFile(header_file(tmp_path / "bad", entries, data))


@pytest.mark.parametrize("data", [b"", b"1234567", (2**60).to_bytes(8, "little") + b"{}"])
def test_a_file_with_a_cut_header_is_refused(tmp_path, data):
    (tmp_path / "cut").write_bytes(data)
    with pytest.raises(TensorFileRefused, match="cut or too long"):
        TensorFile(tmp_path / "cut")


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path):
    path = written(tmp_path, "model", MODEL)
    with TensorFile(path) as file:
        path.write_bytes(path.read_bytes()[:-4])
        with pytest.raises(TensorFileRefused, match="ends early"):
            [file.read(name) for name in file.manifest.names]


# --- types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["c8", "c16", "U1", "O", "M8[s]", "u4", "u8"])
def test_a_type_that_cannot_be_averaged_is_refused_by_the_tensors_name(dtype):
    with pytest.raises(TypeNotAveraged, match=r"tensor vocab is .*") as refusal:
        Manifest.of_arrays({"vocab": np.zeros(2, dtype=dtype)})
    assert refusal.value.code == "CFD-P11"


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "C64", "U16"])
def test_a_file_with_bfloat16_or_stranger_types_is_refused_by_name(tmp_path, dtype):
    path = header_file(tmp_path / "m", {"w": {"dtype": dtype, "shape": [2], "data_offsets": [0, 4]}}, b"1234")
    with pytest.raises(TypeNotAveraged, match=f"tensor w is {dtype}"):
        TensorFile(path)


def test_a_bfloat16_update_from_torch_is_that_sites_fault(tmp_path):
    import safetensors.torch

    path = tmp_path / "north.safetensors"
    safetensors.torch.save_file({"w": torch.ones(3, dtype=torch.bfloat16)}, path)
    with pytest.raises(UpdateRefused, match="north: tensor w is BF16"):
        check_update(path, Manifest.of({"w": TensorSpec("F32", (3,))}), site="north")


def test_integers_and_masks_are_carried_and_no_update_holds_them(tmp_path):
    model = {**constants(1.0), "counter": np.array(7, dtype="i8"), "mask": np.array([True])}
    manifest = Manifest.of_arrays(model)
    assert manifest.floats.names == ("w",)
    trained = {**model, "w": model["w"] + 1}
    assert set(make_update(model, trained, site="north")) == {"w"}
    path = written(tmp_path, "north", {**constants(1.0), "counter": np.array(0, dtype="i8")})
    with pytest.raises(UpdateRefused, match="north: tensor counter is not in the model"):
        check_update(path, manifest, site="north")


def test_training_that_changes_a_counter_is_refused_at_the_site():
    model = {**constants(1.0), "num_batches_tracked": np.array(7, dtype="i8")}
    trained = {**model, "num_batches_tracked": np.array(8, dtype="i8")}
    with pytest.raises(UpdateRefused, match="num_batches_tracked is a constant of the model"):
        make_update(model, trained, site="north")


# --- an update -------------------------------------------------------------------------------------------------


def test_a_good_update_gives_its_norm(tmp_path):
    update = {name: np.zeros_like(array) for name, array in MODEL.items()} | {"3.bias": np.array([3, 4], dtype="f4")}
    figures = check_update(written(tmp_path, "north", update), MANIFEST, site="north")
    assert (figures.norm, figures.size_bytes) == (5.0, MANIFEST.size_bytes)


def test_tensors_in_another_order_fit(tmp_path):
    check_update(written(tmp_path, "north", dict(reversed(MODEL.items()))), MANIFEST, site="north")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"3.weight": np.ones((3, 8), dtype="f4")}, r"tensor 3\.weight is \(3, 8\), expected \(2, 8\)"),
        ({"3.bias": np.ones(1, dtype="f4")}, r"tensor 3\.bias is \(1,\), expected \(2,\)"),
        ({"3.bias": np.ones((), dtype="f4")}, r"tensor 3\.bias is \(\), expected \(2,\)"),
        ({"3.bias": np.ones((1, 2), dtype="f4")}, r"tensor 3\.bias is \(1, 2\), expected \(2,\)"),
        ({"3.bias": np.ones(2, dtype="f8")}, r"tensor 3\.bias is F64, expected F32"),
        ({"3.bias": np.ones(2, dtype="i4")}, r"tensor 3\.bias is I32, expected F32"),
        ({"3.bias": None}, r"tensor 3\.bias is missing"),
        ({"4.bias": np.ones(2, dtype="f4")}, r"tensor 4\.bias is not in the model"),
        ({"3.bias": np.array([1, np.nan], dtype="f4")}, r"tensor 3\.bias has 1 values that are not finite"),
        ({"0.bias": np.full(8, -np.inf, dtype="f4")}, r"tensor 0\.bias has 8 values that are not finite"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_with_site_and_tensor(tmp_path, change, text):
    update = {name: array for name, array in {**MODEL, **change}.items() if array is not None}
    with pytest.raises(UpdateRefused, match=f"site-b: {text}") as refusal:
        check_update(written(tmp_path, "site-b", update), MANIFEST, site="site-b")
    assert (refusal.value.code, refusal.value.site) == ("CFD-R03", "site-b")


def test_the_prefix_of_a_wrapper_is_named_as_such_and_never_leaves_a_site(tmp_path):
    wrapped = {f"_module.{name}": array for name, array in MODEL.items()}
    with pytest.raises(UpdateRefused, match=r"carries a wrapper's prefix _module\., expected"):
        check_update(written(tmp_path, "site-b", wrapped), MANIFEST, site="site-b")
    with pytest.raises(UpdateRefused, match="wrapper's prefix"):
        make_update(MODEL, wrapped, site="site-b")


def test_a_huge_finite_update_is_refused_where_there_is_a_bound(tmp_path):
    path = written(tmp_path, "north", {name: array * np.float32(1e4) for name, array in MODEL.items()})
    assert check_update(path, MANIFEST, site="north").norm > 1e4
    with pytest.raises(UpdateRefused, match="norm of the update") as refusal:
        check_update(path, MANIFEST, site="north", max_norm=100.0)
    assert refusal.value.code == "CFD-R04"


def test_bytes_that_are_no_tensor_file_are_that_sites_fault(tmp_path):
    (tmp_path / "north").write_bytes(b"\x80\x04\x95")
    with pytest.raises(UpdateRefused, match="north: not a tensor file"):
        check_update(tmp_path / "north", MANIFEST, site="north")


def test_an_update_that_is_not_finite_stops_at_the_site():
    trained = {**MODEL, "3.bias": np.array([np.inf, 0], dtype="f4")}
    with pytest.raises(UpdateRefused, match=r"north: tensor 3\.bias has 1 values"):
        make_update(MODEL, trained, site="north")


# --- the mean --------------------------------------------------------------------------------------------------


def test_the_mean_is_over_those_that_arrived_and_exact(tmp_path):
    updates = {f"site-{number}": constants(float(number)) for number in (1, 2, 3, 4)}
    weights = {f"site-{number}": 10 * number for number in range(1, 11)}
    assert mean_of(tmp_path, updates, weights)["w"].tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_the_type_of_the_mean_is_that_of_the_model_and_halves_do_not_overflow(tmp_path, dtype):
    updates = {site: constants(3.0, dtype) for site in ("north", "south")}
    mean = mean_of(tmp_path, updates, {"north": 30_000, "south": 30_000})
    assert mean["w"].dtype == np.dtype(dtype)
    assert mean["w"].tolist() == [3.0, 3.0, 3.0]


def test_the_mean_does_not_depend_on_who_came_first(tmp_path):
    values = {"a": 1e8, "b": 1.0, "c": -1e8, "d": 1e-8}
    weights = dict(zip(values, (3, 7, 11, 13), strict=True))
    results = []
    for order in ("abcd", "dcba", "bdac"):
        folder = tmp_path / order
        folder.mkdir()
        results.append(mean_of(folder, {site: constants(values[site]) for site in order}, weights)["w"].tobytes())
    assert len(set(results)) == 1


def test_running_means_and_variances_are_averaged_like_weights(tmp_path):
    updates = {
        site: {"running_mean": np.full(8, mean, dtype="f4"), "running_var": np.full(8, variance, dtype="f4")}
        for site, mean, variance in (("a", 0, 1), ("b", 4, 5), ("c", -2, 3))
    }
    mean = mean_of(tmp_path, updates, dict.fromkeys("abc", 100))
    assert mean["running_mean"].tolist() == [np.float32(2 / 3)] * 8
    assert mean["running_var"].tolist() == [3.0] * 8


@pytest.mark.parametrize("weight", [0, -4, 1.5, float("nan"), True, None, 2**60])
def test_a_weight_that_is_no_positive_integer_is_refused(tmp_path, weight):
    with pytest.raises(InvalidInput, match="a positive integer is wanted"):
        mean_of(tmp_path, {"north": constants(1.0)}, {"north": weight})


def test_a_mean_of_nobody_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="a mean of no updates"):
        weighted_mean({}, {}, MANIFEST, tmp_path / "mean")


def test_nothing_is_broadcast_in_a_mean(tmp_path):
    manifest = Manifest.of_arrays(constants(1.0))
    for shape in ((1,), (), (1, 3), (3, 1)):
        with pytest.raises(UpdateRefused, match="tensor w is"):
            mean_of(
                tmp_path,
                {"north": constants(1.0), "south": constants(1.0, shape=shape)},
                {"north": 1, "south": 1},
                manifest,
            )
    assert not (tmp_path / "mean.safetensors").exists()


def test_a_mean_that_is_not_finite_is_not_written(tmp_path):
    huge = constants(1.7e308, "f8")
    with pytest.raises(NotFinite, match="tensor w"):
        mean_of(tmp_path, {"north": huge, "south": huge}, {"north": 3, "south": 3})
    assert not (tmp_path / "mean.safetensors").exists()


def test_more_sites_than_files_may_be_open_are_averaged(tmp_path):
    updates = {f"site-{number:04}": constants(float(number)) for number in range(300)}
    assert mean_of(tmp_path, updates, dict.fromkeys(updates, 1))["w"].tolist() == [149.5] * 3


def test_a_large_mean_needs_a_few_windows_of_memory(tmp_path):
    """64 MB a site: the peak of the process grows by less than one update."""
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        import numpy as np
        from federation.plan_fields import FedAdam
        from federation.server_step import apply
        from federation.tensors import Manifest, TensorSpec, TensorWriter, weighted_mean, windows
        folder = Path(sys.argv[1])
        spec = TensorSpec("F32", (4096, 4096))
        manifest = Manifest.of({"w": spec})
        def write(name, value):
            with TensorWriter(folder / name, manifest) as writer:
                for start, stop in windows(spec):
                    writer.write("w", start, np.full(stop - start, value, dtype="f4"))
            return folder / name
        updates = {f"s{n}": write(f"s{n}", float(n)) for n in range(3)}
        model = write("model", 1.0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        weighted_mean(updates, dict.fromkeys(updates, 1), manifest, folder / "mean")
        apply(FedAdam(strategy="FedAdam"), model=model, mean=folder / "mean", state=None, step=1,
              new_model=folder / "m1", new_state=folder / "v1")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50_000


# --- the digest ------------------------------------------------------------------------------------------------


def test_the_digest_of_a_state_is_that_of_the_published_formula(tmp_path):
    import hashlib

    model = written(tmp_path, "model", {"w": np.array([1.0], dtype="f4"), "b": np.array(2, dtype="i8")})
    text = b"confide-state/v1\n" + (3).to_bytes(8, "big") + (2).to_bytes(8, "big")
    text += (1).to_bytes(4, "big") + b"b" + b"\x03I64" + b"\x00" + (2).to_bytes(8, "little")
    text += (1).to_bytes(4, "big") + b"w" + b"\x03F32" + b"\x01" + (1).to_bytes(8, "big")
    text += np.array([1.0], dtype="<f4").tobytes() + (0).to_bytes(8, "big")
    assert state_digest(model, None, step=3) == hashlib.sha256(text).hexdigest()


def test_the_digest_tells_values_names_shapes_types_state_and_step_apart(tmp_path):
    base = {"w": np.zeros((2, 3), dtype="f4")}
    variants = [
        base,
        {"v": base["w"]},
        {"w": base["w"].reshape(3, 2)},
        {"w": np.zeros((2, 3), dtype="i4")},
        {"w": np.full((2, 3), -0.0, dtype="f4")},
    ]
    digests = {
        state_digest(written(tmp_path, f"m{number}", variant), None, step=1) for number, variant in enumerate(variants)
    }
    model = written(tmp_path, "model", base)
    digests |= {state_digest(model, None, step=2), state_digest(model, model, step=1)}
    assert len(digests) == len(variants) + 2
