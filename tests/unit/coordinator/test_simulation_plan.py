"""The plan of a simulation, and the lines between it and whoever started it."""

import pytest

from coordinator import simulation
from coordinator.simulation import Broken, Happened, Result, Up, decode, encode, simulated_plan
from coordinator.views import EventView
from federation import plan as plans
from federation.contract import digest
from federation.errors import InvalidInput, OutOfOrder
from federation.plan import PlanRefused
from tests.support.plans import document
from tests.support.virtual_engine import a_small_contract as a_contract


def a_plan(**changes):
    return plans.from_document(document(**changes))


def test_without_a_number_of_sites_the_plan_is_the_persons_own():
    found = simulated_plan(a_plan(), a_contract())
    assert found.sites.invite == ("east", "north", "south", "west")
    assert (found.sites.quorum, found.rounds) == (3, 20)
    assert found.data.contract_digest == digest(a_contract())


def test_the_same_number_of_sites_keeps_their_names():
    assert simulated_plan(a_plan(), a_contract(), sites=4).sites == simulated_plan(a_plan(), a_contract()).sites


@pytest.mark.parametrize(("sites", "quorum"), [(1, 1), (2, 2), (3, 3), (5, 4), (100, 75), (1000, 750)])
def test_with_another_number_the_quorum_keeps_its_share_rounded_up(sites, quorum):
    found = simulated_plan(a_plan(), a_contract(), sites=sites).sites
    assert (len(found.invite), found.quorum) == (sites, quorum)


def test_a_quorum_that_is_left_to_the_default_stays_a_majority():
    found = simulated_plan(a_plan(sites__quorum=None), a_contract(), sites=10)
    assert found.sites.quorum == 6


def test_virtual_sites_sort_by_their_numbers():
    names = simulation.virtual_names(100)
    assert names[0] == "site-001"
    assert list(names) == sorted(names)


@pytest.mark.parametrize("sites", [0, -1, 4097])
def test_a_number_of_sites_that_no_plan_can_have_is_refused(sites):
    with pytest.raises(InvalidInput) as refusal:
        simulated_plan(a_plan(), a_contract(), sites=sites)
    assert refusal.value.code == "CFD-G02"


def test_fewer_rounds_than_an_evaluation_waits_for_evaluate_the_last():
    found = simulated_plan(a_plan(evaluate__every=5), a_contract(), rounds=2)
    assert (found.rounds, found.evaluate.every) == (2, 2)


def test_a_plan_that_does_not_hold_with_so_many_sites_is_refused():
    robust = a_plan(
        server={"strategy": "Krum", "num_malicious_nodes": 1}, sites__invite=list("abcdef"), sites__quorum=5
    )
    with pytest.raises(PlanRefused):
        simulated_plan(robust, a_contract(), sites=3)


@pytest.mark.parametrize(
    "contract",
    [
        a_contract(name="heart-disease/v2"),
        a_contract(label={"column": "age", "positive": ["50"]}),
    ],
)
def test_another_contract_or_label_is_refused(contract):
    with pytest.raises(InvalidInput) as refusal:
        simulated_plan(a_plan(), contract)
    assert refusal.value.code == "CFD-J04"


def test_a_plan_that_starts_from_a_release_is_refused():
    start = {"job": "heart-risk-00ff00", "round": 1, "model": "0" * 64}
    with pytest.raises(InvalidInput) as refusal:
        simulated_plan(a_plan(start=start), a_contract())
    assert refusal.value.code == "CFD-J15"


@pytest.mark.parametrize(
    ("changes", "units"),
    [
        ({}, 250),  # four batches are 256
        ({"privacy__delta": 1e-2}, 99),  # δ < 1/units
        ({"privacy__delta": 1e-2, "training__batch": 4}, 16),
        ({"privacy": {"unit": "record", "mechanism": "none"}, "evaluate__release": "public"}, 250),
    ],
)
def test_made_up_sites_have_four_batches_or_as_many_units_as_delta_allows(changes, units):
    changes.setdefault("evaluate__release", "charged")
    if changes["evaluate__release"] == "public":
        changes["evaluate"] = {"every": 1, "metrics": ["loss"], "release": "public"}
        del changes["evaluate__release"]
    assert simulation.units_of_a_site(a_plan(**changes)) == units


@pytest.mark.parametrize(("sites", "workers", "turns"), [(1, 1, 1), (10, 2, 5), (11, 2, 6), (3, 8, 1)])
def test_a_phase_is_open_for_as_many_turns_as_the_workers_take(sites, workers, turns):
    assert simulation.turns(sites, workers) == turns


RESULT = Result(
    job="heart-risk-00ff00",
    state="completed",
    reason="",
    sites=4,
    refused=0,
    quorum=3,
    rounds=2,
    rounds_released=2,
    metrics={"loss": 0.5, "auc": None},
    epsilon=1.0,
    epsilon_allowed=4.0,
    model="0" * 64,
    data=simulation.SYNTHETIC,
    seconds=1.5,
)


@pytest.mark.parametrize(
    "line",
    [
        Up(sites=4, workers=2, alone=True, seconds=1.0),
        Happened(event=EventView(number=1, job="j", at="2026-01-01T00:00:00.000Z", name="round.done", fields={"a": 1})),
        Broken(code="CFD-J11", message="late", hint="wait"),
        RESULT,
    ],
)
def test_a_line_comes_back_as_it_was_said(line):
    data = encode(line)
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert decode(data) == line


@pytest.mark.parametrize("data", [b"", b"Ray says hello\n", b'{"say":"up"}\n', b'{"say":"result","state":1}\n', b"[]"])
def test_whatever_else_comes_out_of_a_simulation_is_refused(data):
    with pytest.raises(OutOfOrder) as refusal:
        decode(data)
    assert refusal.value.code == "CFD-J12"


def test_an_order_that_is_none_is_refused():
    with pytest.raises(OutOfOrder):
        simulation.decode_order(b"{}")


def test_the_summary_says_what_the_rows_were():
    assert simulation.summary(RESULT)["data"] == simulation.SYNTHETIC
    assert "reason" not in simulation.summary(RESULT)
    failed = RESULT.model_copy(update={"state": "failed", "reason": "no quorum"})
    assert simulation.summary(failed)["reason"] == "no quorum"
