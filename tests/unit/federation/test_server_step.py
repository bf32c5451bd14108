import numpy as np
import pytest

from federation.errors import InvalidInput
from federation.plan_fields import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from federation.server_step import advance, apply, power, slots_of, state_manifest
from federation.tensors import NotFinite, TensorFile, state_digest, write_tensors

STRATEGIES = [
    FedAvg(),
    FedAvgM(strategy="FedAvgM", server_learning_rate=0.7, server_momentum=0.9),
    FedAdam(strategy="FedAdam", eta=0.05),
    FedYogi(strategy="FedYogi"),
    FedAdagrad(strategy="FedAdagrad"),
]
NAMES = [strategy.strategy for strategy in STRATEGIES]
MODEL = {
    "counter": np.array(7, dtype="i8"),
    "half": np.array([0.5, -0.5], dtype="f2"),
    "w": np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4),
    "wide": np.array(0.25),
}


def direction(step):
    """Return a deterministic mean update for a step."""
    return {
        name: (0.01 * np.sin(np.arange(array.size) + step * 1.7)).astype(array.dtype).reshape(array.shape)
        for name, array in MODEL.items()
        if name != "counter"
    }


class Job:
    """Steps with files, as a coordinator and a site make them."""

    def __init__(self, folder, strategy):
        self.folder, self.strategy, self.step = folder, strategy, 0
        folder.mkdir()
        self.model, self.state = folder / "model-0", None
        write_tensors(self.model, MODEL)

    def advance(self, steps):
        for _ in range(steps):
            self.step += 1
            mean = self.folder / "mean"
            write_tensors(mean, direction(self.step))
            new_model, new_state = self.folder / f"model-{self.step}", self.folder / f"state-{self.step}"
            apply(
                self.strategy,
                model=self.model,
                mean=mean,
                state=self.state,
                step=self.step,
                new_model=new_model,
                new_state=new_state,
            )
            self.model, self.state = new_model, new_state
        return self

    def reopened(self, folder):
        """Return a job that knows only the files, the strategy and the step number, as after a restart."""
        other = Job.__new__(Job)
        folder.mkdir()
        other.folder, other.strategy, other.step = folder, self.strategy, self.step
        other.model, other.state = folder / "m", folder / "s"
        other.model.write_bytes(self.model.read_bytes())
        other.state.write_bytes(self.state.read_bytes())
        return other

    @property
    def digest(self):
        return state_digest(self.model, self.state, step=self.step)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_a_resumed_job_equals_an_uninterrupted_one_bit_for_bit(tmp_path, strategy):
    whole = Job(tmp_path / "whole", strategy).advance(9)
    resumed = Job(tmp_path / "first", strategy).advance(4).reopened(tmp_path / "second").advance(5)
    assert whole.digest == resumed.digest
    assert whole.model.read_bytes() == resumed.model.read_bytes()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_types_shapes_and_constants_never_drift(tmp_path, strategy):
    job = Job(tmp_path / "job", strategy).advance(3)
    with TensorFile(job.model) as model, TensorFile(tmp_path / "job" / "model-0") as first:
        assert model.manifest == first.manifest
        assert model.read("counter") == 7
        assert not np.array_equal(model.read("w"), first.read("w"))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_the_state_is_kept_in_binary64_by_name(tmp_path, strategy):
    job = Job(tmp_path / "job", strategy).advance(1)
    with TensorFile(job.state) as state, TensorFile(job.model) as model:
        assert state.manifest == state_manifest(strategy, model.manifest)
        assert all(spec.dtype == "F64" for _, spec in state.manifest.tensors)
        assert len(state.manifest.tensors) == 3 * len(slots_of(strategy))


def test_plain_averaging_adds_the_mean_update(tmp_path):
    job = Job(tmp_path / "job", FedAvg()).advance(1)
    with TensorFile(job.model) as model:
        expected = (MODEL["w"].astype("f8") + direction(1)["w"].astype("f8")).astype("f4")
        assert np.array_equal(model.read("w"), expected)


@pytest.mark.parametrize("strategy", STRATEGIES[1:], ids=NAMES[1:])
def test_the_step_number_and_the_state_are_part_of_the_result(tmp_path, strategy):
    first = Job(tmp_path / "first", strategy).advance(2)
    forgetful = Job(tmp_path / "second", strategy).advance(1)
    forgetful.state = None
    forgetful.advance(1)
    assert first.digest != forgetful.digest


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_a_step_that_is_not_finite_writes_neither_file(tmp_path, strategy, bad):
    job = Job(tmp_path / "job", strategy).advance(1)
    mean = direction(2)
    mean["w"][1, 2] = bad
    write_tensors(tmp_path / "mean", mean)
    before = job.digest
    with pytest.raises(NotFinite, match="tensor w"):
        apply(
            strategy,
            model=job.model,
            mean=tmp_path / "mean",
            state=job.state,
            step=2,
            new_model=tmp_path / "m",
            new_state=tmp_path / "s",
        )
    assert not (tmp_path / "m").exists()
    assert not (tmp_path / "s").exists()
    assert job.digest == before


def test_a_half_that_would_overflow_is_named(tmp_path):
    write_tensors(tmp_path / "model", {"half": np.array([60_000], dtype="f2")})
    write_tensors(tmp_path / "mean", {"half": np.array([10_000], dtype="f2")})
    with pytest.raises(NotFinite, match="tensor half would hold 1 values that are not finite as F16"):
        apply(
            FedAvg(),
            model=tmp_path / "model",
            mean=tmp_path / "mean",
            state=None,
            step=1,
            new_model=tmp_path / "m",
            new_state=tmp_path / "s",
        )


@pytest.mark.parametrize("change", [{"w": np.zeros(4, dtype="f4")}, {"w": None}, {"more": np.zeros(1, dtype="f4")}])
def test_a_mean_of_another_layout_is_refused(tmp_path, change):
    job = Job(tmp_path / "job", FedAvg())
    mean = {name: array for name, array in {**direction(1), **change}.items() if array is not None}
    write_tensors(tmp_path / "mean", mean)
    with pytest.raises(InvalidInput, match="averaged tensors"):
        apply(
            FedAvg(),
            model=job.model,
            mean=tmp_path / "mean",
            state=None,
            step=1,
            new_model=tmp_path / "m",
            new_state=tmp_path / "s",
        )


def test_the_state_of_another_strategy_is_refused(tmp_path):
    adam = Job(tmp_path / "adam", STRATEGIES[2]).advance(1)
    adam.strategy = STRATEGIES[4]
    with pytest.raises(InvalidInput, match="isn't one of FedAdagrad"):
        adam.advance(1)


def test_steps_are_counted_from_one(tmp_path):
    job = Job(tmp_path / "job", FedAvg())
    job.step = -1
    with pytest.raises(InvalidInput, match="counted from 1"):
        job.advance(1)


def test_shapes_are_never_broadcast():
    with pytest.raises(InvalidInput, match="nothing is broadcast"):
        advance(FedAvg(), np.zeros(3), np.zeros(1), {}, step=1)
    with pytest.raises(InvalidInput, match="nothing is broadcast"):
        advance(STRATEGIES[4], np.zeros(3), np.zeros(3), {"v": np.zeros(1)}, step=1)


def test_powers_are_products():
    assert power(0.5, 3) == 0.125
    assert power(0.9, 2) == 0.9 * 0.9
    assert power(0.0, 5) == 0.0
    assert power(0.3, 0) == 1.0
    assert power(0.5, 100_000) == 0.0
