"""What holds for every plan, policy and mean."""

import json
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation import plan as plans
from federation import policy as policies
from federation.messages import Decision
from federation.server_step import power
from federation.tensors import Manifest, TensorFile, TensorFileRefused, TypeNotAveraged, weighted_mean, write_tensors
from tests.support.plans import DIGEST, a_dataset, a_plan, document, some_facts

NAMES = st.lists(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), min_size=3, max_size=8, unique=True).filter(
    lambda names: "coordinator" not in names
)
SERVERS = st.sampled_from(["FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"]).flatmap(
    lambda name: st.fixed_dictionaries(
        {"strategy": st.just(name)},
        optional={"eta": st.floats(1e-6, 1e3)} if name in ("FedAdam", "FedYogi", "FedAdagrad") else {},
    )
)
DOCUMENTS = st.builds(
    lambda invite, server, epsilon, delta, rounds, clip, hidden: document(
        sites={"invite": invite, "quorum": 3},
        server=server,
        privacy__epsilon=epsilon,
        privacy__delta=delta,
        rounds=rounds,
        privacy__clip=clip,
        model={"kind": "mlp", "hidden": hidden},
    ),
    NAMES,
    SERVERS,
    st.floats(1e-6, 1000),
    st.floats(1e-12, 0.999),
    st.integers(1, 1000),
    st.floats(1e-6, 1e6),
    st.lists(st.integers(1, 512), min_size=1, max_size=3),
)


def resolved(value):
    return plans.resolve(plans.from_document(value), contract_digest=DIGEST, has_entities=False)


@given(DOCUMENTS)
def test_canonical_bytes_and_plan_determine_each_other(value):
    plan = resolved(value)
    data = plans.canonical_bytes(plan)
    assert plans.decode(data) == plan
    assert plans.canonical_bytes(plans.decode(data)) == data


@given(DOCUMENTS, st.randoms(use_true_random=False))
def test_the_order_of_keys_and_of_invited_sites_changes_no_byte(value, random):
    shuffled = dict(random.sample(list(value.items()), len(value)))
    shuffled["sites"] = {"quorum": 3, "invite": random.sample(value["sites"]["invite"], len(value["sites"]["invite"]))}
    assert plans.canonical_bytes(resolved(shuffled)) == plans.canonical_bytes(resolved(value))


@given(DOCUMENTS, DOCUMENTS)
def test_different_plans_have_different_names(first, second):
    one, other = resolved(first), resolved(second)
    assert (plans.digest(one) == plans.digest(other)) == (one == other)


@given(st.binary(max_size=300))
def test_bytes_from_elsewhere_are_a_plan_or_refused(data):
    with pytest.raises(plans.PlanRefused):
        plans.decode(data)


@given(st.data())
def test_a_plan_with_a_byte_changed_is_refused_or_is_another_plan(data):
    plan = a_plan()
    good = bytearray(plans.canonical_bytes(plan))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))
    try:
        other = plans.decode(bytes(good))
    except plans.PlanRefused:
        return
    assert other != plan
    assert plans.canonical_bytes(other) == bytes(good)


@given(st.text(max_size=200))
def test_text_that_people_write_is_a_plan_or_refused(text):
    with pytest.raises(plans.PlanRefused):
        plans.read(text)


# --- policy ----------------------------------------------------------------------------------------------------

CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "purpose": st.sampled_from(["DUO:0000007", "commercial"]),
        "dataset": st.sampled_from(["heart", "lungs"]),
        "unit": st.sampled_from([["record"], ["entity"], ["record", "entity"]]),
        "mechanism": st.sampled_from([["none"], ["local-dp-sgd"], ["none", "local-dp-sgd"]]),
        "coordinator": st.sampled_from([["alice@example.org"], ["bob@example.org"]]),
        "vouched": st.booleans(),
    },
)
RULES = st.lists(
    st.builds(lambda verb, where: {verb: where}, st.sampled_from(["allow", "ask", "refuse"]), CONDITIONS), max_size=4
)
FLOORS = {
    "quorum": st.integers(1, 5),
    "colluding": st.integers(0, 3),
    "epsilon_per_job": st.floats(0.5, 10),
    "delta_per_job": st.floats(1e-7, 0.1),
    "units_declared": st.integers(1, 600),
    "sampling_rate": st.floats(0.05, 1),
}
PLANS = st.sampled_from(
    [
        a_plan(),
        a_plan(privacy={"mechanism": "none"}, evaluate={"metrics": ["loss"], "release": "exact"}),
        a_plan(privacy__epsilon=0.9, privacy__unit="entity"),
        a_plan(purpose={"code": "commercial", "text": "a product"}),
    ]
)
FACTS = st.builds(
    lambda vouched, accepted, unit: some_facts(
        vouched=vouched,
        members_accepted_count=accepted,
        datasets=(a_dataset(unit=unit), a_dataset(name="lungs", units_declared=50)),
    ),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from(["record", "entity"]),
)


def policy_of(rules, default, floors):
    value = {
        "apiVersion": "confide/v1",
        "kind": "SitePolicy",
        "default": default,
        "rules": rules,
        "floors": {"secure_aggregation": "optional", **floors},
        "metrics_may_leave": ["loss", "accuracy", "auc"],
        "exact_metrics": ["loss"],
    }
    return policies.read(json.dumps(value))


@given(
    RULES,
    st.sampled_from(["allow", "ask", "refuse"]),
    st.fixed_dictionaries({}, optional=FLOORS),
    st.sampled_from([*FLOORS, "secure_aggregation"]).flatmap(
        lambda name: st.fixed_dictionaries({name: FLOORS.get(name, st.just("required"))})
    ),
    PLANS,
    FACTS,
)
def test_one_more_floor_never_turns_a_refusal_into_anything_else(rules, default, floors, more, plan, facts):
    name, value = next(iter(more.items()))
    if name in floors:
        value = (
            max(floors[name], value) if name in ("quorum", "colluding", "units_declared") else min(floors[name], value)
        )
    before = policies.check(policy_of(rules, default, floors), plan, facts)
    after = policies.check(policy_of(rules, default, {**floors, name: value}), plan, facts)
    order = [Decision.ACCEPTED, Decision.PARKED, Decision.REFUSED]
    assert order.index(after.verdict) >= order.index(before.verdict)


@given(RULES, st.sampled_from(["allow", "ask", "refuse"]), PLANS, FACTS)
def test_an_answer_other_than_yes_has_a_reason_with_a_known_code(rules, default, plan, facts):
    from federation.codes import CODES

    decision = policies.check(policy_of(rules, default, {}), plan, facts)
    assert bool(decision.reasons) == (decision.verdict is not Decision.ACCEPTED)
    assert all(reason.code in CODES for reason in decision.reasons)


@given(RULES, st.sampled_from(["allow", "ask", "refuse"]), FACTS)
def test_a_job_without_noise_is_accepted_by_a_rule_that_names_it_and_never_otherwise(rules, default, facts):
    plan = a_plan(privacy={"mechanism": "none"}, evaluate={"metrics": ["loss"], "release": "exact"})
    decision = policies.check(policy_of(rules, default, {}), plan, facts)
    if decision.verdict is Decision.ACCEPTED:
        rule = rules[int(decision.rule.removeprefix("rules/"))]
        assert "none" in rule["allow"]["mechanism"]


# --- tensors ---------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,4}", fullmatch=True),
        st.tuples(
            st.integers(1, 10**6),
            st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_mean_is_that_of_exact_arithmetic_up_to_one_rounding(sites):
    manifest = Manifest.of_arrays({"w": np.zeros(3, dtype="f4")})
    with TemporaryDirectory() as name:
        folder = Path(name)
        for site, (_, values) in sites.items():
            write_tensors(folder / site, {"w": np.array(values, dtype="f4")})
        weights = {site: weight for site, (weight, _) in sites.items()}
        weighted_mean({site: folder / site for site in sites}, weights, manifest, folder / "MEAN")
        with TensorFile(folder / "MEAN") as out:
            mean = out.read("w")
    total = sum(weights.values())
    for at in range(3):
        terms = [weight * Fraction(float(np.float32(values[at]))) for weight, values in sites.values()]
        exact = sum(terms) / total
        # binary64 keeps each partial sum to 2^-53 of the largest; the one cast is to 2^-24 of the result.
        slack = len(terms) * sum(abs(term) for term in terms) / total / 2**52 + abs(exact) / 2**24 + Fraction(1, 2**149)
        assert abs(Fraction(float(mean[at])) - exact) <= slack


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z0-9_.]{1,20}", fullmatch=True),
        st.tuples(st.sampled_from(["f2", "f4", "f8", "i8", "u1", "?"]), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    )
)
def test_tensors_come_back_from_a_file_as_they_were(layout):
    arrays = {
        name: np.arange(int(np.prod(shape)), dtype="i8").reshape(shape).astype(dtype)
        for name, (dtype, shape) in layout.items()
    }
    with TemporaryDirectory() as name:
        path = Path(name) / "t"
        manifest = write_tensors(path, arrays)
        with TensorFile(path) as file:
            assert file.manifest == manifest
            for key, array in file.arrays().items():
                assert array.dtype == arrays[key].dtype
                assert np.array_equal(array, arrays[key])


@given(st.binary(max_size=200), st.booleans())
def test_bytes_from_elsewhere_are_a_tensor_file_or_refused(data, framed):
    with TemporaryDirectory() as name:
        path = Path(name) / "t"
        path.write_bytes(len(data).to_bytes(8, "little") + data if framed else data)
        try:
            TensorFile(path).close()
        except (TensorFileRefused, TypeNotAveraged):
            return
        assert json.loads(data) == {} or "__metadata__" in json.loads(data)


@given(st.floats(0, 1), st.integers(0, 300))
def test_powers_by_repetition_are_powers(base, exponent):
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-12, abs=1e-300)
