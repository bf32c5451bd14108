"""`confide job simulate` before anything starts: what it refuses, where it looks, what it leaves."""

import importlib.util
import json
import signal
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest

from coordinator import simulation_command, simulation_process
from coordinator.simulation import DIVIDED, SYNTHETIC, Broken, Happened, Order, Result, Up
from coordinator.views import EventView
from federation import contract as contracts
from federation import plan as plans
from federation.errors import ConfigurationWrong, InvalidInput, OutOfOrder, TimedOut
from tests.support.plans import document

CONTRACT = {
    "apiVersion": "confide/v1",
    "kind": "DataContract",
    "name": "heart-disease/v1",
    "columns": [{"name": "age", "type": "integer", "range": [18, 99]}, {"name": "disease", "type": "boolean"}],
    "label": {"column": "disease", "positive": ["true"]},
}
RESULT = Result(
    job="heart-risk-00ff00",
    state="completed",
    reason="",
    sites=4,
    refused=0,
    quorum=3,
    rounds=1,
    rounds_released=1,
    metrics={"loss": 0.5},
    epsilon=1.0,
    epsilon_allowed=4.0,
    model="0" * 64,
    data=SYNTHETIC,
    seconds=1.5,
)
DONE = EventView(
    number=1,
    job="heart-risk-00ff00",
    at="2026-01-01T00:00:00.000Z",
    name="round.done",
    fields={
        "round": 0,
        "rounds": 1,
        "quorum": 3,
        "survivors": ["a", "b", "c"],
        "late": {},
        "metrics": {"loss": 0.5},
        "seconds": 1.0,
        "upload_bytes": 100,
        "epsilon": 1.0,
        "epsilon_allowed": 4.0,
    },
)


class Process:
    """Stands for the simulation's process, and keeps the order."""

    lines_said: ClassVar[tuple] = (Up(sites=4, workers=2, alone=True, seconds=1.0), Happened(event=DONE), RESULT)
    orders: ClassVar[list[Order]] = []

    def __init__(self, order, *, variables, log, clock):
        self.orders.append(order)
        self.seen = (Path(order.folder).is_dir(), Path(order.engine_folder).is_dir())
        log.write_text("what the engine said\n")

    def __enter__(self):
        assert self.seen == (True, True)
        return self

    def __exit__(self, *_):
        return None

    def lines(self):
        yield from self.lines_said


@pytest.fixture
def process(monkeypatch, tmp_path):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    class Fresh(Process):
        orders: ClassVar[list[Order]] = []

    monkeypatch.setattr(simulation_command, "SimulationProcess", Fresh)
    return Fresh


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(document()))
    (tmp_path / "another.yaml").write_text("kind: SitePolicy\n")
    (tmp_path / "contract.yaml").write_text(json.dumps(CONTRACT))
    return path


def refusal(*arguments):
    with pytest.raises(InvalidInput) as found:
        simulation_command.main([str(argument) for argument in arguments])
    return found.value.code


def test_help_has_an_example_that_names_every_option(capsys):
    assert simulation_command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "confide job simulate job.yaml --sites 100" in shown
    options = "sites rounds contract data map held-out split units workers up-s out format"
    for option in options.split():
        assert f"--{option} " in shown


def test_a_simulation_prints_a_line_a_round_and_what_came_of_it(plan, process, capsys):
    assert simulation_command.main([str(plan), "--sites", "8", "--rounds", "1"]) == 0
    shown = capsys.readouterr()
    assert "round 1/1  quorum 3/3" in shown.out
    assert SYNTHETIC in shown.out
    assert "8 virtual sites, quorum 6, 1 rounds" in shown.err
    assert SYNTHETIC in shown.err
    (order,) = process.orders
    wanted = plans.decode(bytes.fromhex(order.plan))
    assert (len(wanted.sites.invite), wanted.rounds) == (8, 1)
    assert contracts.from_canonical(bytes.fromhex(order.contract)).name == "heart-disease/v1"
    assert (order.units, order.data, order.out) == (250, None, None)


def test_json_is_one_document_and_the_lines_go_to_the_other_side(plan, process, capsys):
    assert simulation_command.main([str(plan), "--format", "json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["schema"], found["state"], found["data"]) == ("confide/simulation/v1", "completed", SYNTHETIC)
    assert "round 1/1" in shown.err


def test_a_job_that_fails_is_status_1(plan, process):
    process.lines_said = (RESULT.model_copy(update={"state": "failed", "reason": "no quorum"}),)
    assert simulation_command.main([str(plan)]) == 1


def test_given_data_reach_the_order_with_whole_paths(plan, process, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert simulation_command.main([str(plan), "--data", "rows.csv", "--map", "map.yaml", "--held-out", "0.1"]) == 0
    given = process.orders[0].data
    assert (given.path, given.data_map) == (str(tmp_path / "rows.csv"), str(tmp_path / "map.yaml"))
    assert (given.held_out, given.split) == (0.1, None)
    assert DIVIDED in capsys.readouterr().err


def test_no_more_workers_than_sites_are_started(plan, process):
    simulation_command.main([str(plan), "--workers", "64"])
    assert process.orders[0].workers == 4


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--sites", "0"],
        ["--sites", "5000"],
        ["--rounds", "0"],
        ["--units", "0"],
        ["--workers", "0"],
        ["--map", "map.yaml"],
        ["--split", "fold"],
        ["--data", "rows.csv", "--units", "5"],
        ["--held-out", "1"],
        ["--up-s", "0"],
        ["--up-s", "nan"],
        ["--up-s", "inf"],
    ],
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_starts(plan, process, arguments):
    assert refusal(*([plan, *arguments] if arguments else [])) in ("CFD-G02", "CFD-P03", "CFD-P04")
    assert process.orders == []


def test_without_a_contract_beside_the_plan_one_has_to_be_given(plan, process, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    alone = elsewhere / "job.yaml"
    alone.write_text(plan.read_text())
    assert refusal(alone) == "CFD-J04"
    assert simulation_command.main([str(alone), "--contract", str(tmp_path / "contract.yaml")]) == 0


def test_a_folder_that_is_not_empty_is_refused(plan, process, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    assert refusal(plan, "--out", out) == "CFD-J20"
    assert [path.name for path in out.iterdir()] == ["precious"]
    assert process.orders == []


@pytest.mark.parametrize("missing", ["ray", "flwr", "torch"])
def test_without_the_engine_the_extra_is_named_and_nothing_starts(plan, process, monkeypatch, missing):
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else known(name))
    with pytest.raises(ConfigurationWrong, match=missing) as found:
        simulation_command.main([str(plan)])
    assert (found.value.code, found.value.exit_status) == ("CFD-J10", 78)
    assert "confide[simulation]" in found.value.hint
    assert process.orders == []


def test_no_folder_is_left_behind(plan, process):
    simulation_command.main([str(plan)])
    order = process.orders[0]
    assert not Path(order.folder).exists()
    assert not Path(order.engine_folder).exists()


def test_a_request_to_end_leaves_no_folder_either(plan, process):
    def asked_to_end(_self):
        signal.raise_signal(signal.SIGTERM)
        yield RESULT

    process.lines = asked_to_end
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as found:
        simulation_command.main([str(plan)])
    assert found.value.code == 143
    assert not Path(process.orders[0].folder).exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_of_the_simulation_is_the_commands_own(plan, process):
    process.lines_said = (Broken(code="CFD-J11", message="2 of 4 virtual sites came up in time", hint="wait"),)
    with pytest.raises(Exception, match="2 of 4") as found:
        simulation_command.main([str(plan)])
    assert (found.value.code, found.value.exit_status) == ("CFD-J11", 5)
    assert not isinstance(found.value, TimedOut | OutOfOrder)


@pytest.mark.parametrize("kept_in_out", [False, True])
def test_when_only_the_log_tells_why_it_stays_and_is_named(plan, process, tmp_path, kept_in_out):
    process.lines_said = (Broken(code="CFD-J12", message="the simulation met an error (ValueError)", hint=""),)
    out = tmp_path / "out"
    with pytest.raises(OutOfOrder) as found:
        simulation_command.main([str(plan), *(["--out", str(out)] if kept_in_out else [])])
    kept = Path(found.value.hint.removeprefix("see "))
    assert kept.read_text() == "what the engine said\n"
    assert kept.is_relative_to(out) == kept_in_out
    assert not Path(process.orders[0].folder).exists()


def test_a_code_that_nobody_knows_becomes_that_of_a_simulation_without_a_result(plan, process):
    process.lines_said = (Broken(code="ValueError", message="x", hint="y"),)
    with pytest.raises(OutOfOrder) as found:
        simulation_command.main([str(plan)])
    assert found.value.code == "CFD-J12"


def test_the_environment_of_a_simulation_is_built_and_holds_no_credential(tmp_path):
    found = simulation_process.environment(
        {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "RAY_ADDRESS": "auto", "HTTPS_PROXY": "http://proxy"},
        folder=tmp_path,
        mark="m",
    )
    assert found["PATH"] == "/bin"
    assert not {"AWS_SECRET_ACCESS_KEY", "RAY_ADDRESS", "HTTPS_PROXY"} & set(found)
    switches = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    assert switches.items() <= found.items()
    assert found["RAY_AUTH_MODE"] == "token"
    assert len(bytes.fromhex(found["RAY_AUTH_TOKEN"])) == 32
    again = simulation_process.environment({}, folder=tmp_path, mark="m")
    assert again["RAY_AUTH_TOKEN"] != found["RAY_AUTH_TOKEN"]
    assert all(str(tmp_path) in found[name] for name in ("HOME", "FLWR_HOME", "TMPDIR", "XDG_CACHE_HOME"))


def test_the_engines_folder_is_private_and_short_wherever_temporary_files_go(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(deep))
    found = simulation_process.short_folder()
    try:
        assert len(str(found)) <= simulation_process.MAX_ENGINE_FOLDER
        assert found.stat().st_mode & 0o777 == 0o700
    finally:
        found.rmdir()


def test_without_a_short_place_the_engine_is_not_started(monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(OutOfOrder) as found:
        simulation_process.short_folder()
    assert found.value.code == "CFD-J12"
