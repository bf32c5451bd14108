import json

import jsonschema
import pytest

from federation import canonical
from federation import plan as plans
from federation.errors import NotAuthenticated
from federation.identity import IdentityKey
from federation.plan_checks import STRATEGIES, least_quorum
from federation.plan_fields import FedAdam, FedAvg, Krum, mean_strategy
from tests.support.plans import DIGEST, REMOVE, a_plan, document, problems_of

EXAMPLE = """
apiVersion: confide/v1
kind: TrainingJob
name: heart-risk
purpose: {code: DUO:0000007, text: "risk of coronary heart disease"}
data: {contract: heart-disease/v1, label: disease}
model: {kind: mlp, hidden: [16], activation: relu}          # logistic | mlp
training: {local_steps: 20, batch: 64, optimizer: {name: sgd, lr: 0.1}, seed: 7}
privacy: {unit: record, mechanism: local-dp-sgd, epsilon: 4.0, delta: 1e-5, clip: 1.0}
secure_aggregation: {enabled: false}
rounds: 20
sites: {invite: [cleveland, hungary, switzerland, long-beach], quorum: 3}
deadlines: {training_s: 600, phase_s: 60}
server: {strategy: FedAdam, eta: 0.05}
weights: uniform
evaluate: {every: 1, metrics: [loss, accuracy, auc], release: charged, epsilon: 1.0}
priority: 50
resources: {accelerators: 1, memory_gib: 4}
"""


def test_the_example_of_the_documentation_is_read_with_its_numbers():
    plan = plans.read(EXAMPLE)
    assert plan.privacy.delta == 1e-5
    assert plan.sites.invite == ("cleveland", "hungary", "long-beach", "switzerland")
    assert plan.steps == 400


def test_windows_line_ends_and_a_byte_order_mark_change_nothing():
    windows = b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode()
    assert plans.canonical_bytes(plans.read(windows)) == plans.canonical_bytes(plans.read(EXAMPLE))


@pytest.mark.parametrize("delta", [0, 1, 1.5, -1e-5, ".nan", float("nan"), "abc", True, None])
def test_a_delta_outside_zero_and_one_is_refused(delta):
    assert problems_of(privacy__delta=delta)["privacy.delta"].code == "CFD-P03"


@pytest.mark.parametrize("delta", [1e-5, 0.1, 0.5])
def test_a_delta_between_zero_and_one_is_read(delta):
    assert problems_of(privacy__delta=delta) == {}


@pytest.mark.parametrize("epsilon", [0, -1, float("inf"), "inf", float("nan"), 1001])
def test_an_epsilon_that_is_not_finite_and_positive_is_refused(epsilon):
    assert problems_of(privacy__epsilon=epsilon)["privacy.epsilon"].code == "CFD-P03"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("privacy.clip", 0),
        ("privacy.clip", -8),
        ("privacy.clip", float("nan")),
        ("privacy.clip", "abc"),
        ("privacy.noise_multiplier", 0),
        ("rounds", 0),
        ("rounds", 2.5),
        ("rounds", True),
        ("rounds", 10**40),
        ("training.batch", 0),
        ("training.local_steps", -1),
        ("training.seed", -1),
        ("training.optimizer.name", "lion"),
        ("sites.quorum", 0.5),
        ("sites.quorum", 0),
        ("deadlines.training_s", 0),
        ("deadlines.phase_s", 10**9),
        ("priority", 101),
        ("resources.memory_gib", 0),
        ("model.hidden", []),
        ("model.hidden", [0]),
        ("model.activation", "gelu"),
        ("server.beta_1", 1),
        ("server.tau", 0),
        ("evaluate.metrics", ["recall"]),
        ("evaluate.metrics", []),
        ("name", "Heart Risk"),
        ("name", "heart\n"),
        ("apiVersion", "confide/v2"),
        ("purpose.text", ""),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_field(path, value):
    found = problems_of(**{path.replace(".", "__"): value})
    assert [item.code for place, item in found.items() if place.startswith(path)] == ["CFD-P03"]


def test_a_misspelt_key_is_refused_with_the_nearest_known_one():
    found = problems_of(model__hiden=[16])
    assert found["model.hiden"].code == "CFD-P02"
    assert found["model.hiden"].hint == "did you mean hidden?"


def test_a_key_of_another_strategy_is_refused_where_it_does_nothing():
    assert problems_of(server__server_momentum=0.9)["server.server_momentum"].code == "CFD-P02"


def test_a_parameter_that_flower_ignores_is_refused_with_the_field_that_works():
    assert "training.optimizer.lr" in problems_of(server__eta_l=0.1)["server.eta_l"].hint


def test_every_problem_is_named_at_once():
    found = problems_of(rounds=0, privacy__epsilon=-1, server__strategy="FedAdm", model__kind="vgg16")
    assert set(found) == {"rounds", "privacy.epsilon", "server.strategy", "model.kind"}


def test_contradictions_are_named_beside_unknown_keys():
    assert set(problems_of(colour="red", sites__quorum=9)) == {"colour", "sites.quorum"}


def test_the_message_of_several_problems_lists_each_with_field_and_code():
    with pytest.raises(plans.PlanRefused) as refusal:
        plans.from_document(document(rounds=0, privacy__epsilon=-1), source="job.yaml")
    assert refusal.value.message.startswith("job.yaml: 2 problems:")
    assert "\n  rounds: " in refusal.value.message
    assert refusal.value.exit_status == 2


def test_a_quorum_above_the_invited_is_refused_with_both_numbers():
    assert problems_of(sites__quorum=9)["sites.quorum"].text == "quorum 9 > 4 invited"


def test_one_invited_site_with_defaults_gets_a_quorum_that_it_can_reach():
    plan = a_plan(sites={"invite": ["north"]})
    assert plan.sites.quorum == 1


@pytest.mark.parametrize("invite", [["north", "north"], ["coordinator"], ["North"], [], ["a" * 65], ["-north"]])
def test_sites_are_well_formed_and_named_once(invite):
    assert any(path.startswith("sites.invite") for path in problems_of(sites={"invite": invite}))


def test_secure_aggregation_is_on_by_default():
    assert problems_of(secure_aggregation=REMOVE) == {}
    assert a_plan(secure_aggregation=REMOVE).secure_aggregation.enabled


def test_declared_weights_are_refused_under_secure_aggregation_and_only_there():
    assert problems_of(weights="declared", secure_aggregation={"enabled": True})["weights"].code == "CFD-P07"
    assert problems_of(weights="declared") == {}


def test_noise_that_sites_share_out_is_refused_until_this_version_has_it():
    changes = {"mechanism": "distributed", "unit": "site", "epsilon": 4.0, "delta": 1e-5, "clip": 1.0}
    found = problems_of(privacy=changes, secure_aggregation={"enabled": True})
    assert found["privacy.mechanism"].code == "CFD-P06"


@pytest.mark.parametrize(
    ("sites", "colluding", "dropouts", "quorum", "path", "arithmetic"),
    [
        (2, 0, 0, 2, "sites.invite", "needs 3 sites, 2 invited"),
        (4, 1, 1, 2, "sites.quorum", "quorum 2 < max(3, colluding 1 + 2) = 3"),
        (4, 3, 0, 4, "secure_aggregation.colluding", "colluding 3 > 4 invited - 2 = 2"),
        (5, 1, 2, 3, "secure_aggregation.dropouts", "dropouts 2 > 5 invited - 4 needed = 1"),
        (10, 2, 4, 3, "secure_aggregation.dropouts", "10 invited - 7 needed = 3"),
        (10, 2, 1, 10, "secure_aggregation.dropouts", "10 invited - 10 needed = 0"),
    ],
)
def test_secure_sums_that_contradict_themselves_are_refused_with_the_arithmetic(
    sites, colluding, dropouts, quorum, path, arithmetic
):
    found = problems_of(
        secure_aggregation={"colluding": colluding, "dropouts": dropouts},
        sites={"invite": [f"site-{number}" for number in range(sites)], "quorum": quorum},
    )
    assert arithmetic in found[path].text


@pytest.mark.parametrize(
    ("n", "c", "quorum"),
    [(3, 0, 3), (4, 1, 3), (5, 0, 3), (5, 1, 4), (10, 2, 7), (20, 5, 13), (50, 10, 31), (100, 15, 58), (1000, 50, 526)],
)
def test_the_least_quorum_is_that_of_the_published_table(n, c, quorum):
    plan = plans.Plan.model_validate_json(
        json.dumps(
            document(secure_aggregation={"colluding": c}, sites={"invite": [f"s{number:04}" for number in range(n)]})
        )
    )
    assert least_quorum(plan) == quorum


@pytest.mark.parametrize("strategy", ["Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg"])
def test_strategies_on_single_updates_are_refused_under_secure_aggregation_and_only_there(strategy):
    found = problems_of(server={"strategy": strategy}, secure_aggregation={"enabled": True})
    assert found["server.strategy"].code == "CFD-P09"
    assert "needs each site's own update" in found["server.strategy"].text
    assert problems_of(server={"strategy": strategy}) == {}


def test_robust_strategies_need_enough_sites_for_the_malicious_ones():
    found = problems_of(server={"strategy": "Bulyan", "num_malicious_nodes": 1})
    assert found["sites.quorum"].text == "Bulyan needs 4 * 1 + 3 = 7 sites, quorum 3"


@pytest.mark.parametrize(
    "strategy",
    ["SecAgg+", "SecAggPlus", "SecAggPlusWorkflow", "secagg", "DifferentialPrivacyClientSideFixedClipping", "FedProx"],
)
def test_methods_of_other_frameworks_are_refused_by_name_with_the_reason(strategy):
    problem = problems_of(server={"strategy": strategy})["server.strategy"]
    assert problem.code == "CFD-P08"
    assert "is not used: " in problem.text


@pytest.mark.parametrize("section", ["secagg+", {"protocol": "SecAgg+"}, {"workflow": "SecAggPlusWorkflow"}])
def test_another_protocol_of_secure_sums_is_refused_by_name(section):
    assert problems_of(secure_aggregation=section)["secure_aggregation"].code == "CFD-P08"


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "cnn", "height": 28, "width": 28},
        {"kind": "resnet18", "channels": 3, "height": 32, "width": 32},
        {"kind": "transformer", "tokens": 16, "vocabulary": 100},
    ],
)
def test_a_model_of_images_or_tokens_is_a_plan(model):
    assert problems_of(model=model) == {}


def test_heads_that_do_not_divide_the_width_and_momentum_beside_moments_are_refused():
    model = {"kind": "transformer", "tokens": 16, "dim": 30, "heads": 4}
    assert problems_of(model=model)["model.heads"].hint == "model.dim: 32"
    training = {"local_steps": 2, "batch": 8, "optimizer": {"name": "adam", "lr": 0.1, "momentum": 0.5}}
    assert problems_of(training=training)["training.optimizer.momentum"].code == "CFD-P04"


def test_an_unknown_architecture_is_refused():
    assert problems_of(model={"kind": "perceptron"})["model.kind"].code == "CFD-P03"


@pytest.mark.parametrize(("section", "path"), [("model", "model.kind"), ("server", "server.strategy")])
def test_a_section_without_its_kind_is_refused_with_the_missing_field(section, path):
    assert problems_of(**{section: {}})[path].text == "missing"


def test_local_noise_for_a_whole_site_is_refused():
    assert problems_of(privacy__unit="site")["privacy.mechanism"].code == "CFD-P05"


def test_distributed_noise_without_secure_aggregation_is_refused():
    found = problems_of(privacy__mechanism="distributed", training__local_steps=1)
    assert "needs secure aggregation" in found["privacy.mechanism"].text


@pytest.mark.parametrize("unit", ["record", "entity"])
def test_distributed_noise_by_unit_needs_one_local_step(unit):
    found = problems_of(privacy__mechanism="distributed", privacy__unit=unit, secure_aggregation={"enabled": True})
    assert "needs local_steps 1, found 20" in found["training.local_steps"].text


def test_without_noise_a_plan_has_no_epsilon_and_says_so():
    plan = plans.from_document(document(privacy__mechanism="none"))
    assert any("recorded as unbounded" in notice for notice in plans.notices(plan))


def test_charged_metrics_need_an_epsilon_where_the_training_has_none():
    found = problems_of(privacy={"mechanism": "none"}, evaluate__epsilon=REMOVE)
    assert {"evaluate.epsilon", "privacy.delta"} <= set(found)


@pytest.mark.parametrize("release", ["public", "exact"])
def test_metrics_without_noise_have_no_epsilon(release):
    assert "has no epsilon" in problems_of(evaluate__release=release)["evaluate.epsilon"].text


def test_an_evaluation_that_never_runs_is_refused():
    assert problems_of(evaluate__every=21)["evaluate.every"].text == "every 21 > rounds 20: it would never run"


def test_a_document_beyond_the_limit_is_refused_unread():
    with pytest.raises(plans.PlanRefused, match="at most"):
        plans.read("#" * (plans.MAX_DOCUMENT_BYTES + 1))


@pytest.mark.parametrize("text", ["", "- a\n", "just text", "a: [", "a: 1\na: 2\n", "x: &a 1\ny: *a\n", "\ufffe"])
def test_what_is_no_map_of_fields_is_refused(text):
    with pytest.raises(plans.PlanRefused) as refusal:
        plans.read(text)
    assert refusal.value.code == "CFD-P01"


def test_resolving_fills_every_open_field():
    plan = a_plan(privacy__unit=REMOVE, sites__quorum=REMOVE, evaluate__epsilon=REMOVE)
    assert (plan.privacy.unit, plan.sites.quorum, plan.evaluate.epsilon) == ("record", 3, 4.0)
    assert plan.data.contract_digest == DIGEST


def test_the_default_unit_is_the_entity_where_the_contract_has_one():
    plan = plans.from_document(document(privacy__unit=REMOVE))
    assert plans.resolve(plan, contract_digest=DIGEST, has_entities=True).privacy.unit == "entity"


def test_a_plan_for_another_contract_is_refused_when_resolved():
    plan = plans.from_document(document(data__contract_digest="6" * 64))
    with pytest.raises(plans.PlanRefused, match="contract"):
        plans.resolve(plan, contract_digest=DIGEST, has_entities=False)


def test_an_unresolved_plan_is_not_signed():
    with pytest.raises(plans.PlanRefused, match="open in a plan that is signed"):
        plans.sign_plan(plans.from_document(document()), IdentityKey.generate())


def test_a_signed_plan_is_read_back_by_whoever_has_the_key():
    key, plan = IdentityKey.generate(), a_plan()
    data = plans.canonical_bytes(plan)
    assert plans.check(data, public_key=key.public, signature=plans.sign_plan(plan, key)) == plan


def test_another_key_or_another_byte_is_not_the_submitters_plan():
    key, plan = IdentityKey.generate(), a_plan()
    data, signature = plans.canonical_bytes(plan), plans.sign_plan(plan, key)
    with pytest.raises(NotAuthenticated) as refusal:
        plans.check(data, public_key=IdentityKey.generate().public, signature=signature)
    assert refusal.value.code == "CFD-P10"
    with pytest.raises(NotAuthenticated):
        plans.check(data.replace(b'"rounds":20', b'"rounds":21'), public_key=key.public, signature=signature)


def test_a_field_under_another_name_or_a_plain_float_is_not_a_plan_from_the_wire():
    value = canonical.decode(plans.canonical_bytes(a_plan()))
    for change in ({"colour": "red"}, {"rounds": "20"}, {"priority": None}):
        with pytest.raises(plans.PlanRefused):
            plans.decode(canonical.encode({**value, **change}))
    value["privacy"]["epsilon"] = 4
    with pytest.raises(plans.PlanRefused):
        plans.decode(canonical.encode(value))


@pytest.mark.parametrize("spelling", ["0x1p+2", "0x4.0000000000000p+0", "0X1.0000000000000P+2", "nan", "inf", "4.0"])
def test_a_number_in_another_spelling_is_not_canonical(spelling):
    value = canonical.decode(plans.canonical_bytes(a_plan()))
    value["privacy"]["epsilon"] = spelling
    with pytest.raises(plans.PlanRefused):
        plans.decode(canonical.encode(value))


def test_invited_sites_in_another_order_are_not_canonical_bytes():
    value = canonical.decode(plans.canonical_bytes(a_plan()))
    value["sites"]["invite"] = value["sites"]["invite"][::-1]
    with pytest.raises(plans.PlanRefused, match="canonical"):
        plans.decode(canonical.encode(value))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b"\xff", b"{}"])
def test_bytes_that_are_no_plan_are_refused(data):
    with pytest.raises(plans.PlanRefused):
        plans.decode(data)


def test_the_schema_accepts_the_example_and_refuses_an_unknown_key():
    validator = jsonschema.Draft202012Validator(plans.json_schema())
    validator.validate(document())
    assert not validator.is_valid(document(colour="red"))
    assert not validator.is_valid(document(rounds=0))
    assert not validator.is_valid(document(privacy__epsilon=-1.0))
    assert not validator.is_valid(document(server__eta="fast"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_a_plan_with_bytes_of_its_own(strategy):
    plan = a_plan(server={"strategy": strategy})
    assert plans.decode(plans.canonical_bytes(plan)).server.strategy == strategy


def test_a_robust_mean_goes_into_the_model_as_a_plain_mean_does():
    assert mean_strategy(Krum(strategy="Krum")) == FedAvg()
    adam = FedAdam(strategy="FedAdam")
    assert mean_strategy(adam) is adam
