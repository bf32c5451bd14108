"""Simulated jobs without Ray: the coordinator's own round loop, virtual sites in this process.

The contract behind the simulation is the first test: the same plan and the same rows give the same model, bit for bit,
as a plain loop over sites and rounds does. `tests/end_to_end/test_simulation.py` holds the real engine to them.
"""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import confide_simulation
from coordinator import simulation
from coordinator.simulation import Broken, GivenData, Happened, Up
from federation import contract as contracts
from federation import flower, server_step
from federation import plan as plans
from federation.errors import OutOfOrder
from federation.models import layout
from federation.tensors import TensorFile, make_update, state_digest, weighted_mean, write_tensors
from site_client.virtual_files import RowFiles
from tests.support.audit_logs import bytes_of
from tests.support.plans import REMOVE, document
from tests.support.simulated import Simulated
from tests.support.virtual_engine import InProcessEngine, an_order

CONTRACT = contracts.DataContract.model_validate_json(
    json.dumps(
        {
            "apiVersion": "confide/v1",
            "kind": "DataContract",
            "name": "heart-disease/v1",
            "columns": [
                {"name": "who", "type": "text-id"},
                {"name": "age", "type": "integer", "range": [18, 99], "scaling": {"centre": 55, "scale": 20}},
                {"name": "pressure", "type": "number", "range": [80, 200], "scaling": {"centre": 130, "scale": 20}},
                {"name": "smoker", "type": "boolean", "scaling": {"centre": 0.5, "scale": 0.5}},
                {"name": "disease", "type": "boolean"},
            ],
            "label": {"column": "disease", "positive": ["true"]},
        }
    )
)
PLAIN = {
    "privacy": {"unit": "record", "mechanism": "none"},
    "evaluate": REMOVE,
    "training": {"local_steps": 3, "batch": 8, "optimizer": {"name": "sgd", "lr": 0.5}, "seed": 7},
    "model": {"kind": "mlp", "hidden": [4], "activation": "tanh"},
    "rounds": 3,
}
NOISY = {
    "privacy": {"unit": "record", "mechanism": "local-dp-sgd", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0},
    "training": {"local_steps": 2, "batch": 8, "optimizer": {"name": "sgd", "lr": 0.5}, "seed": 7},
    "model": {"kind": "logistic"},
    "rounds": 2,
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    for name, value in flower.quiet_variables(tmp_path).items():
        monkeypatch.setenv(name, value)  # so that the environment of the test process is restored
    flower.quieten_flower(tmp_path)


def simulated(folder, changes, **more):
    return Simulated(folder, plans.from_document(document(**changes)), CONTRACT, **more)


def a_plain_loop(found, folder):
    """Return the digest of what federated training is: for each round, train everywhere, average, step."""
    import torch

    from federation.models import modules
    from privacy.dpsgd.batches import Units
    from privacy.dpsgd.functional import trainable
    from privacy.dpsgd.optimizers import optimizer_for
    from privacy.dpsgd.plain import plain_round

    plan, rows = found.plan, RowFiles(found.folder / "rows")
    manifest = layout.manifest(plan.model, contracts.width(CONTRACT))
    model, state = folder / "model-0", None
    write_tensors(model, layout.initial(plan.model, contracts.width(CONTRACT), seed=plan.training.seed))
    torch.set_num_threads(1)
    for number in range(plan.rounds):
        updates = {}
        for site in plan.sites.invite:
            module = modules.build(plan.model, contracts.width(CONTRACT))
            with TensorFile(model) as tensors:
                base = tensors.arrays()
            modules.load(module, base)
            mine = rows.site(site)
            train = ~mine.held_out
            trained = plain_round(
                trainable(module),
                Units.of_records(
                    torch.from_numpy(mine.features[train]), torch.from_numpy(mine.labels[train].astype(np.float32))
                ),
                model=module,
                loss=modules.loss,
                optimizer=optimizer_for("sgd", lr=plan.training.optimizer.lr),
                local_steps=plan.training.local_steps,
                batch=plan.training.batch,
                seed=plan.training.seed,
                site=site,
                round_number=number,
            )
            updates[site] = folder / f"{site}-{number}"
            result = {name: tensor.detach().numpy() for name, tensor in trained.items()}
            write_tensors(updates[site], make_update(base, result, site=site))
        mean = folder / f"mean-{number}"
        weighted_mean(updates, dict.fromkeys(updates, 1), manifest, mean)
        after, state_after = folder / f"model-{number + 1}", folder / f"state-{number + 1}"
        server_step.apply(
            plan.server, model=model, mean=mean, state=state, step=number + 1, new_model=after, new_state=state_after
        )
        model, state = after, state_after
    return state_digest(model, state, step=plan.rounds)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in flower.quiet_variables(folder).items():
            patch.setenv(name, value)
        yield simulated(folder / "simulation", PLAIN)


def test_a_simulation_without_noise_ends_with_the_bits_of_a_plain_loop(plain, tmp_path):
    assert plain.result.state == "completed"
    assert plain.result.rounds_released == 3
    assert plain.result.model == a_plain_loop(plain, tmp_path)


def test_the_order_in_which_sites_are_worked_on_changes_no_bit(plain, tmp_path):
    assert simulated(tmp_path / "again", PLAIN, reverse=True).result.model == plain.result.model


def test_the_model_that_is_kept_is_the_one_that_was_released(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    found = simulated(tmp_path / "run", {**PLAIN, "rounds": 1}, order={"out": str(out)})
    assert sorted(path.name for path in out.iterdir()) == ["audit", "model.safetensors", "simulation.json", "trust"]
    kept = json.loads((out / "simulation.json").read_bytes())
    assert (kept["schema"], kept["model"], kept["data"]) == (
        "confide/simulation/v1",
        found.result.model,
        simulation.SYNTHETIC,
    )


def test_the_coordinators_log_is_that_of_a_simulation_and_tells_of_no_data(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    simulated(tmp_path / "run", {**PLAIN, "rounds": 1}, order={"out": str(out)})
    entries = bytes_of(out / "audit")
    assert b"heart-risk.simulation/coordinator/audit/1" in entries
    assert b"round.released" in entries
    assert b"job.completed" in entries
    assert b"data.opened" not in entries


def test_each_round_is_told_as_watch_tells_it(plain):
    rounds = plain.events("round.done")
    assert [(found["round"], found["rounds"], found["quorum"]) for found in rounds] == [(0, 3, 3), (1, 3, 3), (2, 3, 3)]
    assert all(len(found["survivors"]) == 4 for found in rounds)
    (up,) = (line for line in plain.said if isinstance(line, Up))
    assert (up.sites, up.workers) == (4, 2)


def test_a_virtual_site_spends_what_the_schedule_says_and_nothing_is_left(tmp_path):
    found = simulated(tmp_path / "run", NOISY)
    schedule_epsilon = float.fromhex(next(iter(found.answers.values())).epsilon)
    assert found.result.state == "completed"
    assert found.result.epsilon == pytest.approx(schedule_epsilon, abs=1e-8)
    assert found.result.epsilon >= schedule_epsilon
    assert found.result.epsilon <= found.result.epsilon_allowed == 8.0
    first, second = (fields["epsilon"] for fields in found.events("round.done"))
    assert first < second


def test_noise_makes_each_simulation_another_one(tmp_path):
    first, second = (simulated(tmp_path / name, NOISY).result.model for name in ("one", "two"))
    assert first != second


def test_training_teaches_something_where_nothing_is_hidden(tmp_path):
    changes = {
        **PLAIN,
        "rounds": 8,
        "server": {"strategy": "FedAvg"},
        "evaluate": {"every": 4, "metrics": ["loss", "accuracy", "auc"], "release": "public"},
    }
    found = simulated(tmp_path / "run", changes, order={"units": 200})
    first, last = (fields["metrics"] for fields in found.events("round.done") if fields["metrics"])
    assert last["loss"] < first["loss"]
    assert last["auc"] > 0.75
    assert found.result.metrics == last


def test_a_silent_site_is_late_and_a_round_goes_on_with_the_quorum(tmp_path):
    changes = {**PLAIN, "rounds": 1, "deadlines": {"training_s": 1, "phase_s": 1}}
    found = simulated(tmp_path / "run", changes, silent={0})
    (done,) = found.events("round.done")
    assert list(done["late"].values()) == ["training, no answer"]
    assert len(done["survivors"]) == 3
    assert found.result.state == "completed"


def test_below_the_quorum_a_round_releases_nothing_and_the_job_fails(tmp_path):
    changes = {**PLAIN, "rounds": 1, "round_attempts": 2}
    found = simulated(tmp_path / "run", changes, broken={0, 1})
    assert [fields["attempt"] for fields in found.events("round.abandoned")] == [0, 1]
    assert (found.result.state, found.result.rounds_released, found.result.model) == ("failed", 0, "")


def test_an_attempt_that_is_abandoned_is_charged_and_what_is_left_does_not_reach(tmp_path):
    found = simulated(tmp_path / "run", {**NOISY, "round_attempts": 3}, broken={0, 1})
    last = found.events("round.abandoned")[-1]
    charged_out = [why for why in last["late"].values() if "CFD-R55" in why]
    assert len(charged_out) == 2  # the two that trained twice have charged the whole job
    assert found.result.state == "failed"


def test_sites_at_which_the_plan_makes_no_guarantee_refuse_and_the_job_ends_without_a_round(tmp_path):
    found = simulated(tmp_path / "run", NOISY, order={"units": 2000})
    assert found.result.state == "failed"
    assert found.result.refused >= 2
    assert {fields["decision"] for fields in found.events("site.answered")} == {"refused"}
    assert all("CFD-B" in " ".join(fields["reasons"]) for fields in found.events("site.answered"))
    assert found.events("round.done") == []


def test_declared_weights_are_those_that_the_sites_answered(tmp_path):
    found = simulated(tmp_path / "run", {**PLAIN, "rounds": 1, "weights": "declared"})
    assert {answer.units_declared for answer in found.answers.values()} == {40}
    assert found.result.state == "completed"


def test_given_rows_are_divided_among_the_sites_and_entities_stay_whole(tmp_path):
    rows = ["who,age,pressure,smoker,disease"]
    rows += [f"p{n // 2},{20 + n % 70},{90 + n % 100},{n % 2},{int(n % 3 == 0)}" for n in range(240)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(rows) + "\n")
    with_people = CONTRACT.model_copy(update={"entity": "who"})
    plan = simulation.simulated_plan(
        plans.from_document(document(**{**NOISY, "privacy": {**NOISY["privacy"], "unit": "entity", "cap_rows": 4}})),
        with_people,
        sites=5,
    )
    given = GivenData(path=str(table), data_map=None, split=None, held_out=0.25)
    order = an_order(plan, with_people, tmp_path / "run", data=given)
    parts = dict(confide_simulation.rows_of_sites(order, plan, with_people))
    assert list(parts) == list(plan.sites.invite)
    assert sum(len(part.labels) for part in parts.values()) == 240
    people = [set(part.units) for part in parts.values()]
    assert sum(map(len, people)) == 120
    again = dict(confide_simulation.rows_of_sites(order, plan, with_people))
    assert all((again[site].features == parts[site].features).all() for site in parts)


def test_a_simulation_of_given_rows_says_that_they_were_divided(tmp_path):
    rows = ["age,pressure,smoker,disease,who"]
    rows += [f"{20 + n % 70},{90 + n % 100},{n % 2},{int(n % 3 == 0)},p{n}" for n in range(100)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(rows) + "\n")
    given = GivenData(path=str(table), data_map=None, split=None, held_out=0.2)
    found = simulated(tmp_path / "run", {**PLAIN, "rounds": 1}, sites=6, order={"data": given})
    assert (found.result.state, found.result.sites, found.result.data) == ("completed", 6, simulation.DIVIDED)


def test_rows_that_break_the_contract_stop_the_simulation_before_anything_runs(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("who,age,pressure,smoker,disease\np1,abc,100,1,0\n")
    given = GivenData(path=str(table), data_map=None, split=None, held_out=0.2)
    plan = simulation.simulated_plan(plans.from_document(document(**PLAIN)), CONTRACT)
    said = []
    order = an_order(plan, CONTRACT, tmp_path / "run", data=given)
    confide_simulation.run(order, alone=True, say=said.append)
    (broken,) = said
    assert isinstance(broken, Broken)
    assert broken.code == "CFD-D14"
    assert broken.hint


def test_an_error_of_our_own_is_told_without_its_text(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise ValueError("patient 4711")

    monkeypatch.setattr(confide_simulation, "prepare", fails)
    said = []
    plan = simulation.simulated_plan(plans.from_document(document(**PLAIN)), CONTRACT)
    confide_simulation.run(an_order(plan, CONTRACT, tmp_path / "run"), alone=True, say=said.append)
    assert said == [Broken(code="CFD-J12", message="the simulation met an error (ValueError)", hint="")]


def test_an_update_that_is_announced_and_not_there_is_a_bad_update_of_that_site(tmp_path, monkeypatch):
    from coordinator.simulated_job import Depot

    take_in = Depot.take_in

    def loses_one(self, file):
        if file.startswith("north-"):
            (self.updates / file).unlink()
        take_in(self, file)

    monkeypatch.setattr(Depot, "take_in", loses_one)
    found = simulated(tmp_path / "run", {**PLAIN, "rounds": 1})
    (done,) = found.events("round.done")
    assert list(done["late"]) == ["north"]
    assert "not delivered" in done["late"]["north"]
    assert found.result.state == "completed"


@pytest.mark.parametrize("name", ["", ".", "..", "../coordinator.db", "/etc/passwd"])
def test_a_name_of_an_update_leads_to_no_other_file(plain, name):
    before = sorted(plain.folder.iterdir())
    plain.job.depot.take_in(name)
    assert sorted(plain.folder.iterdir()) == before
    assert Path("/etc/passwd").exists()


def a_run_on(engine, tmp_path, monkeypatch):
    from coordinator import virtual_grid

    monkeypatch.setattr(virtual_grid.flower, "run_virtual_nodes", engine)
    said = []
    plan = simulation.simulated_plan(plans.from_document(document(**PLAIN)), CONTRACT)
    confide_simulation.run(an_order(plan, CONTRACT, tmp_path / "run"), alone=True, say=said.append)
    return said


def test_an_engine_that_ends_before_the_rounds_is_an_error(tmp_path, monkeypatch):
    said = a_run_on(lambda *_, **__: None, tmp_path, monkeypatch)
    assert isinstance(said[-1], Broken)
    assert (said[-1].code, "before the rounds did" in said[-1].message) == ("CFD-J12", True)


def test_when_the_engine_breaks_its_own_error_is_told_and_the_rounds_stop(tmp_path, monkeypatch):
    threads = []

    def breaks(app, client_app, *, nodes_count, backend):
        engine = InProcessEngine(client_app, 0)  # no node ever comes up
        threads.append(threading.Thread(target=app, args=(engine, flower.context_for("simulation", "coordinator"))))
        threads[0].start()
        raise OutOfOrder("CFD-J12", "the simulation engine ended with an error")

    said = a_run_on(breaks, tmp_path, monkeypatch)
    threads[0].join(20)
    assert not threads[0].is_alive()
    assert [line.message for line in said if isinstance(line, Broken)] == ["the simulation engine ended with an error"]
    failed = [line.event for line in said if isinstance(line, Happened) and line.event.name == "job.failed"]
    assert [event.fields["reason"] for event in failed] == ["CFD-J12"]


def test_a_release_that_was_changed_on_the_way_is_refused_by_every_site(tmp_path, monkeypatch):
    from coordinator.simulated_job import Depot

    publish = Depot.publish

    def bent(self, release):
        publish(self, release)
        for path in self.releases.iterdir():
            if b"safetensors" not in path.name.encode() and path.stat().st_nlink > 1:
                copy = path.read_bytes()
                path.unlink()
                path.write_bytes(copy[:-2] + bytes([copy[-2] ^ 1]) + copy[-1:])

    monkeypatch.setattr(Depot, "publish", bent)
    found = simulated(tmp_path / "run", {**PLAIN, "rounds": 1, "round_attempts": 1, "sites__quorum": 1})
    (abandoned,) = found.events("round.abandoned")
    assert len(abandoned["late"]) == 4
    assert all("CFD-R58" in why for why in abandoned["late"].values()), abandoned


def test_the_folder_of_the_sites_updates_is_empty_afterwards(plain):
    assert list(Path(plain.job.depot.updates).iterdir()) == []
