"""Our seam to Flower, and contract tests that tell when another version of Flower behaves differently."""

import logging
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from federation import flower, robust_means
from federation.errors import InvalidInput, OutOfOrder, PeerMisbehaved
from federation.messages import BlobReference, JobAction, JobControl, Phase, PhaseRequest
from federation.plan_fields import (
    Bulyan,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
)
from federation.server_step import advance, slots_of
from federation.tensors import Manifest, NotFinite, TensorFile, UpdateRefused, write_tensors


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    for name, value in flower.quiet_variables(tmp_path).items():
        monkeypatch.setenv(name, value)  # so that the environment of the test process is restored
    flower.quieten_flower(tmp_path)


@pytest.fixture
def app(quiet):
    flower.load_server()
    import flwr.app

    return flwr.app


REQUEST = PhaseRequest(
    message_id="m-1",
    job="heart-risk-00ff00",
    round=3,
    attempt=0,
    phase=Phase.TRAIN,
    deadline_s=600,
    release=BlobReference(root="0" * 64, size_bytes=10),
    release_signature="00" * 64,
)


def a_message(app, **changes):
    fields = {
        "job": "heart-risk-00ff00",
        "source": 1,
        "destination": flower.number_of("north"),
        "message_id": "m-1",
        "group": "3/0",
        "message_type": "train",
        "created_at_s": 1000.0,
        "ttl_s": 600.0,
    }
    return flower.build_message(app.RecordDict({}), **{**fields, **changes})


# --- conversions and messages ----------------------------------------------------------------------------------


def test_arrays_come_back_from_a_record_with_type_and_shape(app):
    arrays = {
        "half": np.array([1.5], dtype="f2"),
        "scale": np.array(2.5, dtype="f4"),
        "empty": np.zeros((0, 3), dtype="f4"),
        "counter": np.array(7, dtype="i8"),
        "w": np.arange(6, dtype="f4").reshape(2, 3).T,
    }
    record = flower.arrays_to_record(arrays)
    back = flower.record_to_arrays(record, Manifest.of_arrays(arrays))
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array)


@pytest.mark.parametrize(
    "found", [{"w": np.zeros(1, dtype="f4")}, {"w": np.zeros(3)}, {"v": np.zeros(3, dtype="f4")}, {}]
)
def test_a_record_of_another_layout_is_refused(app, found):
    record = app.ArrayRecord({name: app.Array(array) for name, array in found.items()})
    with pytest.raises(PeerMisbehaved):
        flower.record_to_arrays(record, Manifest.of_arrays({"w": np.zeros(3, dtype="f4")}))


def test_an_array_that_cannot_be_decoded_is_refused(app):
    broken = app.Array("float32", (3,), "numpy.ndarray", b"not an array")
    with pytest.raises(PeerMisbehaved, match="can't be decoded"):
        flower.record_to_arrays(app.ArrayRecord({"w": broken}), Manifest.of_arrays({"w": np.zeros(3, dtype="f4")}))


def test_a_pickled_array_is_refused_and_not_executed(app, tmp_path):
    import io
    import pickle  # the attacker's tool: what flwr's loader must never open

    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("executed").touch, ())

    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
    for data in (stream.getvalue(), pickle.dumps(Bomb())):
        broken = app.Array("float32", (1,), "numpy.ndarray", data)
        with pytest.raises(PeerMisbehaved):
            flower.record_to_arrays(app.ArrayRecord({"w": broken}), Manifest.of_arrays({"w": np.zeros(1, dtype="f4")}))
    assert not (tmp_path / "executed").exists()


def test_a_protocol_message_comes_back_from_a_record(app):
    assert flower.content_to_body(flower.body_to_content(REQUEST), kind="phase-request") == REQUEST


def test_a_record_with_another_message_is_refused(app):
    other = flower.body_to_content(JobControl(message_id="m", job="heart-risk-00ff00", action=JobAction.CANCEL))
    malformed = app.RecordDict({"phase-request": app.ConfigRecord({"body": b"{}"})})
    text = app.RecordDict({"phase-request": app.ConfigRecord({"body": "{}"})})
    metrics = app.RecordDict({"phase-request": app.MetricRecord({"body": 1})})
    for content in (other, malformed, text, metrics, app.RecordDict({})):
        with pytest.raises(PeerMisbehaved):
            flower.content_to_body(content, kind="phase-request")


def test_two_jobs_in_one_process_have_messages_of_their_own(app):
    first, second = a_message(app), a_message(app, job="heart-risk-11ee11")
    assert first.metadata.run_id == flower.number_of("heart-risk-00ff00")
    assert second.metadata.run_id == flower.number_of("heart-risk-11ee11")
    assert first.metadata.run_id != second.metadata.run_id


def test_a_reply_goes_back_to_whoever_asked_with_the_time_that_is_left(app):
    asked = a_message(app)
    reply = flower.build_reply(asked, app.RecordDict({}), message_id="m-2", created_at_s=1100.0)
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (asked.metadata.dst_node_id, 1)
    assert (reply.metadata.reply_to_message_id, reply.metadata.run_id) == ("m-1", asked.metadata.run_id)
    assert (reply.metadata.ttl, reply.metadata.message_type) == (500.0, "train")


def test_names_have_numbers_that_fit_and_are_their_own(app):
    numbers = flower.numbers_of(f"site-{number}" for number in range(1000))
    assert len(numbers) == 1000
    assert all(0 < number < 2**63 for number in numbers)


def test_two_names_with_one_number_are_refused(monkeypatch):
    monkeypatch.setattr(flower, "number_of", lambda name: 5)
    with pytest.raises(InvalidInput, match="share a number"):
        flower.numbers_of(["north", "south"])


# --- switched off ----------------------------------------------------------------------------------------------


def in_a_child(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "RAY_"))},
    )
    return done.stdout.strip().splitlines(), done.stderr


RECORDER = """
import socket, sys
asked = []
def refuse(*arguments, **_):
    asked.append(arguments[0])
    raise socket.gaierror("no network here")
socket.getaddrinfo = socket.gethostbyname = socket.gethostbyname_ex = socket.create_connection = refuse
"""


def test_nothing_is_looked_up_when_the_apps_are_loaded_used_and_left(tmp_path):
    program = RECORDER + textwrap.dedent("""
        from pathlib import Path
        import numpy as np
        from federation import flower, robust_means
        from federation.plan_fields import FedMedian
        from federation.tensors import Manifest, write_tensors
        home = Path(sys.argv[1])
        flower.quieten_flower(home)
        server, client = flower.load_server(), flower.load_client()
        server.ServerApp(); client.ClientApp()
        manifest = Manifest.of_arrays({"w": np.zeros(3, dtype="f4")})
        paths = {}
        for number in range(3):
            paths[f"s{number}"] = home / f"s{number}"
            write_tensors(paths[f"s{number}"], {"w": np.full(3, number, dtype="f4")})
        median, weights = FedMedian(strategy="FedMedian"), dict.fromkeys(paths, 1)
        robust_means.robust_mean(median, paths, weights, manifest, home / "out")
        from flwr.supercore import telemetry  # private: the switch that was read at import
        import time
        time.sleep(0.5)
        print(telemetry.FLWR_TELEMETRY_ENABLED)
        import atexit
        atexit.register(lambda: print("asked", asked))
    """)
    lines, errors = in_a_child(program, str(tmp_path))
    assert lines == ["0", "asked []"]
    assert errors == ""


def test_flower_is_not_imported_before_it_is_quiet():
    lines, _ = in_a_child("""
        import sys
        from federation import flower
        from federation.errors import OutOfOrder
        for load in (flower.load_server, flower.load_client):
            try:
                load()
            except OutOfOrder as problem:
                print(problem.code, "flwr" in sys.modules)
    """)
    assert lines == ["CFD-G01 False", "CFD-G01 False"]


def test_a_process_that_imported_flower_first_is_told(monkeypatch, tmp_path):
    flower.load_server()
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    with pytest.raises(OutOfOrder, match="before its telemetry was switched off"):
        flower.quieten_flower(tmp_path)


def test_children_inherit_the_switches_and_files_stay_inside_the_home(tmp_path):
    lines, _ = in_a_child(
        """
        import subprocess, sys
        from pathlib import Path
        from federation import flower
        flower.quieten_flower(Path(sys.argv[1]))
        code = "import os; print(os.environ['FLWR_TELEMETRY_ENABLED'], os.environ['FLWR_DISABLE_UPDATE_CHECK'], " \\
               "os.environ['RAY_USAGE_STATS_ENABLED'], os.environ['FLWR_HOME'])"
        subprocess.run([sys.executable, "-c", code], check=True)
        """,
        str(tmp_path),
    )
    assert lines == [f"0 1 0 {tmp_path}/flower"]


def test_flower_prints_nothing_by_itself_and_its_logger_reaches_ours(app, capsys, caplog):
    for name in ("flwr", "flwr-telemetry"):
        assert logging.getLogger(name).handlers == []
        assert logging.getLogger(name).propagate
    logging.getLogger("flwr").info("the metrics of a reply")
    logging.getLogger("flwr").warning("a line for the root")
    assert caplog.messages == ["a line for the root"]
    # A handler of ours may stand at the root by now and print the warning; Flower itself has none, and prints nothing.
    shown = capsys.readouterr()
    assert "the metrics of a reply" not in shown.out + shown.err


# --- contract: Flower's server steps are ours --------------------------------------------------------------------


def theirs(strategy):
    known = flower.load_server().strategy
    fields = {name: value for name, value in strategy.model_dump().items() if name != "strategy"}
    return getattr(known, strategy.strategy)(**fields)


def as_reply(app, arrays, weight=1):
    content = app.RecordDict(
        {
            "arrays": app.ArrayRecord({name: app.Array(array) for name, array in arrays.items()}),
            "metrics": app.MetricRecord({"num-examples": weight}),
        }
    )
    return flower.build_message(
        content,
        job="contract",
        source=5,
        destination=1,
        message_id="m",
        group="0",
        message_type="train",
        created_at_s=0.0,
        ttl_s=1.0,
    )


def give_current(app, step, arrays):
    """Set what `configure_train` would set; a dict for three strategies, an ArrayRecord for FedAvgM."""
    if type(step).__name__ == "FedAvgM":
        step.current_arrays = app.ArrayRecord({name: app.Array(array) for name, array in arrays.items()})
    else:
        step.current_arrays = arrays


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(),
        FedAvgM(strategy="FedAvgM"),
        FedAvgM(strategy="FedAvgM", server_learning_rate=0.7, server_momentum=0.9),
        FedAdam(strategy="FedAdam"),
        FedAdam(strategy="FedAdam", eta=0.03, beta_1=0.5, beta_2=0.9, tau=1e-2),
        FedYogi(strategy="FedYogi"),
        FedYogi(strategy="FedYogi", eta=0.2, beta_1=0.0, beta_2=0.9),
        FedAdagrad(strategy="FedAdagrad"),
    ],
    ids=["avg", "avgm-default", "avgm", "adam", "adam-other", "yogi", "yogi-other", "adagrad"],
)
def test_a_thousand_server_steps_are_those_of_flower(app, strategy):
    """Relative difference at most 1e-12, tensor by tensor, in binary64; pinned to flwr 1.42."""
    reference = theirs(strategy)
    names = ("a", "b")
    ours = {name: np.cos(np.arange(5.0) * (number + 1)) + 2 for number, name in enumerate(names)}
    flowers = {name: array.copy() for name, array in ours.items()}
    slots = {name: {slot: np.zeros(5) for slot in slots_of(strategy)} for name in names}
    for step in range(1, 1001):
        target = {name: 0.1 * np.sin(np.arange(5.0) * (number + 2) + 0.37 * step) for number, name in enumerate(names)}
        # Flower's strategies take the sites' new models and subtract the old one again; so that the rounding of that
        # subtraction isn't what is compared, the mean update is what Flower will see.
        local = {name: flowers[name] + target[name] for name in names}
        give_current(app, reference, {name: array.copy() for name, array in flowers.items()})
        result, _ = reference.aggregate_train(step, [as_reply(app, local)])
        for name in names:
            d = local[name] - flowers[name]
            ours[name], slots[name] = advance(strategy, ours[name], d, slots[name], step=step)
        flowers = {name: result[name].numpy() for name in names}
        for name in names:
            scale = max(np.abs(flowers[name]).max(), 1e-3)
            assert np.abs(ours[name] - flowers[name]).max() <= 1e-12 * scale, (step, name)


def test_the_parameters_and_their_defaults_are_those_of_flower(app):
    import inspect

    for strategy in (FedAvgM, FedAdam, FedYogi, FedAdagrad, Krum, MultiKrum, Bulyan, FedMedian, FedTrimmedAvg):
        known = inspect.signature(getattr(flower.load_server().strategy, strategy.__name__).__init__).parameters
        for name, field in strategy.model_fields.items():
            if name != "strategy":
                assert known[name].default == field.default, (strategy.__name__, name)


# --- contract: why the seam is as it is; a new version of Flower that behaves otherwise shows here ----------------


def test_flower_still_takes_a_bare_messages_run_from_a_global(app):
    with pytest.raises(RuntimeError, match=r"TaskIdentity\.run_id is not set"):
        app.Message(content=app.RecordDict({}), dst_node_id=1, message_type="train")


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAdagrad", "FedAvgM"])
def test_flowers_strategies_still_need_their_current_arrays_set(app, name):
    strategies = flower.load_server().strategy
    step = getattr(strategies, name)(**({"server_momentum": 0.9} if name == "FedAvgM" else {}))
    from flwr.serverapp.exception import AggregationError

    with pytest.raises(AggregationError):
        step.aggregate_train(1, [as_reply(app, {"w": np.ones(3)})])


def test_flowers_adam_still_turns_float32_into_float64(app):
    step = flower.load_server().strategy.FedAdam()
    step.current_arrays = {"w": np.ones(3, dtype="f4")}
    result, _ = step.aggregate_train(1, [as_reply(app, {"w": np.full(3, 2, dtype="f4")})])
    assert result["w"].numpy().dtype == np.float64


def test_flowers_mean_still_broadcasts_lets_nan_through_and_turns_integers_into_floats(app):
    average = flower.load_server().strategy.FedAvg()
    replies = [as_reply(app, {"w": np.array([1.0, np.nan, 3.0])}), as_reply(app, {"w": np.ones(1)})]
    mixed, _ = average.aggregate_train(1, replies)
    assert mixed["w"].numpy().shape == (3,)
    assert np.isnan(mixed["w"].numpy()[1])
    counter, _ = average.aggregate_train(1, [as_reply(app, {"n": np.array([10])})])
    assert counter["n"].numpy().dtype == np.float64


def test_a_bfloat16_tensor_still_has_no_array_in_flower(app):
    import torch

    with pytest.raises(TypeError):
        app.Array(torch.ones(3, dtype=torch.bfloat16))


def test_a_client_app_still_refuses_an_unknown_message_type(app):
    client = flower.load_client().ClientApp()
    with pytest.raises(ValueError, match="No train function registered"):
        client(a_message(app), flower.context_for("heart-risk-00ff00", "north"))


# --- robust means ------------------------------------------------------------------------------------------------

UPDATES = {f"s{number}": float(number) for number in range(1, 8)}


def robust(folder, strategy, values, *, dtype="f4", weights=None):
    paths = {}
    for site, value in values.items():
        paths[site] = folder / site
        write_tensors(paths[site], {"w": np.full((2, 2), value, dtype=dtype), "b": np.full((), value, dtype=dtype)})
    manifest = Manifest.of_arrays({"w": np.zeros((2, 2), dtype=dtype), "b": np.zeros((), dtype=dtype)})
    robust_means.robust_mean(strategy, paths, weights or dict.fromkeys(values, 1), manifest, folder / "out")
    with TensorFile(folder / "out") as out:
        assert out.manifest == manifest
        result = out.arrays()
    assert np.all(result["w"] == result["b"])
    return float(result["b"])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (FedMedian(strategy="FedMedian"), 4.0),
        (FedTrimmedAvg(strategy="FedTrimmedAvg", beta=0.3), 4.0),
        (Krum(strategy="Krum", num_malicious_nodes=1), 4.0),
        (MultiKrum(strategy="MultiKrum", num_malicious_nodes=1, num_nodes_to_select=3), 4.0),
        (Bulyan(strategy="Bulyan", num_malicious_nodes=1), 4.0),
    ],
    ids=["median", "trimmed", "krum", "multikrum", "bulyan"],
)
def test_one_site_far_away_does_not_move_a_robust_mean(tmp_path, strategy, expected, dtype):
    values = {**UPDATES, "s7": 60_000.0}
    result = robust(tmp_path, strategy, values, dtype=dtype)
    assert abs(result - expected) <= 1.01


def test_the_median_and_the_trimmed_mean_are_exact(tmp_path):
    assert robust(tmp_path, FedMedian(strategy="FedMedian"), {**UPDATES, "s7": 1e6}) == 4.0
    assert robust(tmp_path, FedTrimmedAvg(strategy="FedTrimmedAvg", beta=0.2), {**UPDATES, "s7": 1e6}) == 4.0


def test_a_robust_mean_does_not_depend_on_who_came_first(tmp_path):
    strategy = MultiKrum(strategy="MultiKrum", num_malicious_nodes=1, num_nodes_to_select=3)
    results = set()
    for number, order in enumerate((list(UPDATES), list(UPDATES)[::-1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        results.add(robust(folder, strategy, {site: UPDATES[site] for site in order}))
    assert len(results) == 1


def test_selected_updates_are_weighted_by_the_public_weights(tmp_path):
    strategy = MultiKrum(strategy="MultiKrum", num_nodes_to_select=3)
    assert robust(tmp_path, strategy, {"a": 1.0, "b": 2.0, "c": 3.0}, weights={"a": 1, "b": 1, "c": 2}) == 2.25


@pytest.mark.parametrize(
    ("strategy", "needed"),
    [
        (Krum(strategy="Krum", num_malicious_nodes=3), 9),
        (MultiKrum(strategy="MultiKrum", num_malicious_nodes=3), 9),
        (Bulyan(strategy="Bulyan", num_malicious_nodes=2), 11),
    ],
)
def test_too_few_updates_are_refused_with_the_number_that_is_needed(tmp_path, strategy, needed):
    with pytest.raises(InvalidInput, match=f"needs {needed} updates, 7 arrived"):
        robust(tmp_path, strategy, UPDATES)


def test_a_robust_mean_that_is_not_finite_is_not_written(tmp_path):
    write_tensors(tmp_path / "s", {"w": np.full(2, 1.7e308)})
    paths = dict.fromkeys(("a", "b", "c"), tmp_path / "s")
    manifest = Manifest.of_arrays({"w": np.zeros(2, dtype="f4")})
    with pytest.raises(UpdateRefused, match="no longer fits"):
        robust_means.robust_mean(
            FedMedian(strategy="FedMedian"), paths, dict.fromkeys(paths, 1), manifest, tmp_path / "out"
        )
    manifest = Manifest.of_arrays({"w": np.zeros(2)})
    with pytest.raises(NotFinite):
        robust_means.robust_mean(
            FedTrimmedAvg(strategy="FedTrimmedAvg"), paths, dict.fromkeys(paths, 1), manifest, tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()
