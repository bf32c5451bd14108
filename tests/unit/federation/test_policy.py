import json
from datetime import UTC, datetime

import jsonschema
import pytest

from federation import policy as policies
from federation.edge.documents import parse_yaml
from federation.errors import ConfigurationWrong
from federation.messages import Decision
from federation.policy import check, explain
from tests.support.plans import POLICY, REMOVE, a_dataset, a_plan, a_policy, some_facts

EXAMPLE = """
apiVersion: confide/v1
kind: SitePolicy
default: ask                       # allow | ask | refuse
rules:
  - allow: {purpose: [DUO:0000007], dataset: heart, unit: [record, entity], epsilon_per_job: 5.0, coordinator: [alice@example.org]}
  - refuse: {purpose: commercial, reason: "needs a new contract"}
floors: {quorum: 3, colluding: 1, secure_aggregation: required, epsilon_per_job: 8.0}
hours: "18:00-06:00 Europe/Berlin"
resources: {accelerators: 1, upload_mbit_s: 20, power_w: 400}
metrics_may_leave: [loss, accuracy, auc]
tell_budget_left: false
"""  # noqa: E501 (as it is documented)

ALLOW = [{"allow": {"purpose": "DUO:0000007"}}]


def answer(policy, plan=None, facts=None):
    return check(policy, plan or a_plan(), facts or some_facts())


def codes(decision):
    return [reason.code for reason in decision.reasons]


def secure(plan, **changes):
    """Return the plan as a version that runs secure sums would accept it."""
    section = plan.secure_aggregation.model_copy(update={"enabled": True, **changes})
    return plan.model_copy(update={"secure_aggregation": section})


def test_the_example_of_the_documentation_is_read():
    policy = policies.read(EXAMPLE)
    assert policy.rules[0].conditions.dataset == ("heart",)
    assert policy.rules[1].verb == "refuse"
    night = datetime(2025, 6, 1, 20, 0, tzinfo=UTC)
    assert answer(policy, secure(a_plan()), some_facts(now=night)).verdict is Decision.ACCEPTED


def test_an_unknown_key_is_a_wrong_configuration_and_names_the_nearest():
    with pytest.raises(ConfigurationWrong) as refusal:
        policies.read(EXAMPLE.replace("floors:", "floor:"))
    assert refusal.value.code == "CFD-S01"
    assert "floors" in refusal.value.hint


@pytest.mark.parametrize(
    "rules",
    [
        [{}],
        [{"allow": {}, "refuse": {}}],
        [{"refuse": {"epsilon_per_job": 5.0}}],
        [{"permit": {}}],
        [{"allow": {"purpose": []}}],
    ],
)
def test_a_rule_that_says_nothing_or_two_things_is_wrong(rules):
    with pytest.raises(ConfigurationWrong):
        a_policy(rules=rules)


@pytest.mark.parametrize(
    "hours", ["18:00", "18:00-06:00", "18:00-06:00 Mars/Olympus", "25:00-06:00 UTC", "06:00-06:00 UTC", "1:00-2:00 UTC"]
)
def test_hours_without_two_times_and_a_known_zone_are_wrong(hours):
    with pytest.raises(ConfigurationWrong):
        a_policy(hours=hours)


def test_the_default_decides_where_no_rule_does():
    assert answer(a_policy(default="allow")).verdict is Decision.ACCEPTED
    assert answer(a_policy(default="ask")).verdict is Decision.PARKED
    assert answer(a_policy(default="refuse")).verdict is Decision.REFUSED


def test_the_first_rule_that_holds_decides_and_later_ones_are_not_asked():
    refusal = {"refuse": {"purpose": "DUO:0000007", "reason": "needs a new contract"}}
    assert answer(a_policy(rules=[*ALLOW, refusal])).verdict is Decision.ACCEPTED
    decision = answer(a_policy(rules=[refusal, *ALLOW]))
    assert (decision.verdict, decision.rule) == (Decision.REFUSED, "rules/0")
    assert decision.reasons[0].text == "needs a new contract"


@pytest.mark.parametrize(
    "condition",
    [
        {"purpose": "DUO:0000042"},
        {"dataset": "lungs"},
        {"contract": "lung-cancer/v1"},
        {"unit": ["entity"]},
        {"mechanism": ["distributed"]},
        {"epsilon_per_job": 3.9},
        {"coordinator": ["bob@example.org"]},
    ],
)
def test_a_rule_with_a_condition_that_does_not_hold_is_skipped(condition):
    decision = answer(a_policy(rules=[{"allow": condition}]))
    assert (decision.verdict, decision.rule) == (Decision.PARKED, "default")


def test_a_limit_on_epsilon_holds_for_the_metrics_too():
    plan = a_plan(privacy__epsilon=1.0, evaluate__epsilon=4.0)
    assert answer(a_policy(rules=[{"allow": {"epsilon_per_job": 3.0}}]), plan).verdict is Decision.PARKED


def test_a_vouched_submitter_needs_a_rule_that_says_so():
    facts = some_facts(vouched=True)
    assert answer(a_policy(rules=ALLOW), facts=facts).verdict is Decision.PARKED
    assert answer(a_policy(default="allow"), facts=facts).verdict is Decision.PARKED
    vouched = [{"allow": {"purpose": "DUO:0000007", "vouched": True}}]
    assert answer(a_policy(rules=vouched), facts=facts).verdict is Decision.ACCEPTED


def test_a_refusal_hits_a_vouched_submitter_like_any_other():
    policy = a_policy(rules=[{"refuse": {"purpose": "DUO:0000007"}}, {"allow": {"vouched": True}}])
    assert answer(policy, facts=some_facts(vouched=True)).verdict is Decision.REFUSED


def test_a_job_without_noise_is_refused_unless_a_rule_names_it():
    plan = a_plan(privacy={"mechanism": "none"}, evaluate=REMOVE)
    for policy in (a_policy(rules=ALLOW), a_policy(default="allow"), a_policy(default="ask")):
        decision = answer(policy, plan)
        assert (decision.verdict, codes(decision)) == (Decision.REFUSED, ["CFD-S07"])
    named = a_policy(rules=[{"allow": {"mechanism": ["none"]}}])
    assert answer(named, plan).verdict is Decision.ACCEPTED


def test_a_limit_on_epsilon_is_never_met_by_a_job_without_noise():
    plan = a_plan(privacy={"mechanism": "none"}, evaluate=REMOVE)
    rules = [{"allow": {"mechanism": ["none"]}}]
    policy = a_policy(rules=rules, floors={"secure_aggregation": "optional", "epsilon_per_job": 100.0})
    decision = answer(policy, plan)
    assert (decision.verdict, decision.rule) == (Decision.REFUSED, "floors/epsilon_per_job")
    assert decision.reasons[0].text == "epsilon unbounded, floor 100"


@pytest.mark.parametrize(
    ("floors", "path"),
    [
        ({"quorum": 4}, "floors/quorum"),
        ({"secure_aggregation": "required"}, "floors/secure_aggregation"),
        ({"epsilon_per_job": 3.0}, "floors/epsilon_per_job"),
        ({"delta_per_job": 1e-6}, "floors/delta_per_job"),
        ({"units_declared": 301}, "floors/units_declared"),
        ({"sampling_rate": 0.2}, "floors/sampling_rate"),
    ],
)
def test_a_floor_refuses_whatever_the_rules_allow(floors, path):
    policy = a_policy(rules=ALLOW, floors={"secure_aggregation": "optional", **floors})
    decision = answer(policy)
    assert (decision.verdict, decision.rule, codes(decision)) == (Decision.REFUSED, path, ["CFD-S04"])


def test_secure_aggregation_is_required_where_the_policy_is_silent():
    decision = answer(a_policy(rules=ALLOW, floors={}))
    assert (decision.verdict, decision.rule) == (Decision.REFUSED, "floors/secure_aggregation")


def test_members_that_the_site_has_not_accepted_count_as_colluding():
    policy = a_policy(rules=ALLOW, floors={"quorum": 3, "colluding": 1, "secure_aggregation": "required"})
    plan = secure(a_plan(), colluding=1)
    assert answer(policy, plan).verdict is Decision.ACCEPTED
    decision = answer(policy, plan, some_facts(members_accepted_count=3))
    assert [reason.rule for reason in decision.reasons] == ["floors/quorum", "floors/colluding"]
    assert "1 members not accepted here" in decision.reasons[0].text


def test_every_floor_that_is_missed_is_named():
    policy = a_policy(rules=ALLOW, floors={"quorum": 4, "epsilon_per_job": 3.0, "secure_aggregation": "optional"})
    assert [reason.rule for reason in answer(policy).reasons] == ["floors/quorum", "floors/epsilon_per_job"]


def test_a_plan_for_another_contract_finds_no_data_set():
    for dataset in (a_dataset(contract="lung-cancer/v1"), a_dataset(contract_digest="6" * 64)):
        decision = answer(a_policy(rules=ALLOW), facts=some_facts(datasets=(dataset,)))
        assert (decision.verdict, codes(decision), decision.dataset) == (Decision.REFUSED, ["CFD-S02"], None)


def test_of_two_data_sets_the_one_with_the_better_answer_is_taken():
    datasets = (a_dataset(name="archive"), a_dataset(name="heart"))
    policy = a_policy(rules=[{"allow": {"dataset": "heart"}}], default="refuse")
    decision = answer(policy, facts=some_facts(datasets=datasets))
    assert (decision.verdict, decision.dataset) == (Decision.ACCEPTED, "heart")


def test_noise_for_rows_on_a_data_set_of_people_is_refused_with_the_reason():
    decision = answer(a_policy(rules=ALLOW), facts=some_facts(datasets=(a_dataset(unit="entity"),)))
    assert codes(decision) == ["CFD-S08"]
    assert "understates the risk" in decision.reasons[0].text


@pytest.mark.parametrize(("delta", "verdict"), [(1 / 300, Decision.REFUSED), (1 / 301, Decision.ACCEPTED)])
def test_a_delta_of_one_over_units_is_refused(delta, verdict):
    assert answer(a_policy(rules=ALLOW), a_plan(privacy__delta=delta)).verdict is verdict


def test_a_delta_above_that_of_the_data_set_is_refused():
    decision = answer(a_policy(rules=ALLOW), facts=some_facts(datasets=(a_dataset(delta=1e-6),)))
    assert codes(decision) == ["CFD-S08"]


def test_a_metric_that_may_not_leave_refuses_the_plan():
    decision = answer(a_policy(rules=ALLOW, metrics_may_leave=["loss"]))
    assert [(reason.rule, reason.text) for reason in decision.reasons] == [
        ("metrics_may_leave", "accuracy (charged) may not leave"),
        ("metrics_may_leave", "auc (charged) may not leave"),
    ]


def test_no_metric_may_leave_where_the_policy_is_silent():
    silent = {key: value for key, value in POLICY.items() if key != "metrics_may_leave"}
    policy = policies.read(json.dumps({**silent, "rules": ALLOW}))
    assert answer(policy).verdict is Decision.REFUSED


def test_exact_metrics_need_the_line_of_their_own():
    plan = a_plan(evaluate={"metrics": ["accuracy"], "release": "exact"})
    assert codes(answer(a_policy(rules=ALLOW), plan)) == ["CFD-S05"]
    assert answer(a_policy(rules=ALLOW, exact_metrics=["accuracy"]), plan).verdict is Decision.ACCEPTED


def test_public_metrics_need_held_out_units_that_are_public():
    plan = a_plan(evaluate={"metrics": ["accuracy"], "release": "public"})
    assert codes(answer(a_policy(rules=ALLOW), plan)) == ["CFD-S05"]
    facts = some_facts(datasets=(a_dataset(held_out_public=True),))
    assert answer(a_policy(rules=ALLOW), plan, facts).verdict is Decision.ACCEPTED


@pytest.mark.parametrize(
    ("ceilings", "path"), [({"accelerators": 0}, "resources/accelerators"), ({"memory_gib": 2}, "resources/memory_gib")]
)
def test_more_than_the_site_lends_is_refused(ceilings, path):
    plan = a_plan(resources={"accelerators": 1, "memory_gib": 4})
    decision = answer(a_policy(rules=ALLOW, resources=ceilings), plan)
    assert (decision.rule, codes(decision)) == (path, ["CFD-S06"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"accelerators": 1}, []),
        ({"accelerators": 2}, []),
        ({"accelerators": 3}, ["accelerators 3, this site has 2"]),
        ({"memory_gib": 8}, []),
        ({"memory_gib": 9}, ["memory 9 GiB, this site has 8 GiB"]),
        (
            {"accelerators": 3, "memory_gib": 9},
            ["accelerators 3, this site has 2", "memory 9 GiB, this site has 8 GiB"],
        ),
    ],
)
def test_a_plan_that_asks_for_more_than_the_machine_has_is_refused_with_both_figures(asked, said):
    facts = some_facts(accelerators_count=2, memory_gib=8)
    decision = answer(a_policy(rules=ALLOW), a_plan(resources=asked), facts)
    assert [reason.text for reason in decision.reasons] == said
    assert codes(decision) == ["CFD-S06"] * len(said)


def test_a_single_accelerator_may_be_a_cpu_and_what_isnt_known_refuses_nothing():
    facts = some_facts(accelerators_count=0)
    assert answer(a_policy(rules=ALLOW), a_plan(resources={"accelerators": 1}), facts).verdict is Decision.ACCEPTED
    huge = a_plan(resources={"accelerators": 64, "memory_gib": 16_384})
    assert answer(a_policy(rules=ALLOW), huge).verdict is Decision.ACCEPTED


@pytest.mark.parametrize(
    ("hours", "hour_utc", "held"),
    [
        ("18:00-06:00 Europe/Berlin", 15, False),
        ("18:00-06:00 Europe/Berlin", 16, True),
        ("18:00-06:00 Europe/Berlin", 3, True),
        ("18:00-06:00 Europe/Berlin", 4, False),
        ("08:00-17:00 UTC", 8, True),
        ("08:00-17:00 UTC", 17, False),
    ],
)
def test_hours_are_those_of_the_sites_zone_in_summer_too(hours, hour_utc, held):
    policy = a_policy(rules=ALLOW, hours=hours)
    now = datetime(2025, 6, 1, hour_utc, 0, tzinfo=UTC)
    assert policies.within_hours(policy, now) is held
    decision = answer(policy, facts=some_facts(now=now))
    assert (decision.verdict, decision.rule) == ((Decision.ACCEPTED, "rules/0") if held else (Decision.PARKED, "hours"))


def test_a_site_without_hours_works_at_all_hours():
    assert policies.within_hours(a_policy(), datetime(2025, 6, 1, tzinfo=UTC))


def test_outside_its_hours_a_refusal_stays_a_refusal():
    policy = a_policy(default="refuse", hours="08:00-09:00 UTC")
    assert answer(policy).verdict is Decision.REFUSED


def test_the_explanation_tells_why_each_rule_did_not_decide():
    policy = a_policy(rules=[{"allow": {"purpose": "DUO:0000042"}}, *ALLOW])
    lines = {line.rule: line for line in explain(policy, a_plan(), some_facts()).lines}
    assert lines["rules/0"].text == "allow: purpose is DUO:0000007"
    assert lines["rules/1"].result is policies.Passed.DECIDED
    assert lines["floors/quorum"].result is policies.Passed.HELD


def test_no_reason_tells_how_many_units_the_site_has():
    policy = a_policy(
        rules=ALLOW, floors={"units_declared": 1000, "sampling_rate": 0.01, "secure_aggregation": "optional"}
    )
    decision = answer(policy, a_plan(privacy__delta=0.1))
    assert len(decision.reasons) == 3
    assert not any("300" in reason.text for reason in decision.reasons)


def test_the_schema_accepts_a_policy_and_refuses_an_unknown_key():
    validator = jsonschema.Draft202012Validator(policies.json_schema())
    validator.validate(parse_yaml(EXAMPLE.encode()).value)
    assert not validator.is_valid({**POLICY, "colour": "red"})
    assert not validator.is_valid({**POLICY, "rules": [{"allow": {"unit": "family"}}]})
