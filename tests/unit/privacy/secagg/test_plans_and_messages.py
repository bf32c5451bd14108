"""A plan's constraints one by one, and the fields of messages."""

import json
from typing import Any

import numpy as np
import pytest

from privacy.secagg import distributed
from privacy.secagg import site_states as at
from privacy.secagg.envelope import encode, open_message, parse, sign, unpack
from privacy.secagg.errors import Strength, SumRefused
from privacy.secagg.keys import ed25519_verify
from privacy.secagg.messages import Masked, SumPlan
from privacy.secagg.plan_checks import Floors, check_floors, check_plan
from privacy.secagg.unmask import UnmaskJob
from tests.support.secure_sums import federation_of, key_of, names_of, plan_for, registry_of, run_sum, with_member

FOUR = names_of(4)
BOUND = distributed.sensitivity(22, 10_000)
NOISE: dict[str, Any] = {
    "mechanism": "distributed",
    "unit": "site",
    "z": "0.5",
    "sigma_sq": distributed.least_sigma_sq("0.5", BOUND, 2),
    "norm_sq_max": BOUND**2,
    "honest_min": 2,
}
NOISY: dict[str, Any] = {"scale_log2": 22, "q_max": 2**22, "dim": 10_000}


def plan(**changed: Any) -> SumPlan:
    dim = changed.pop("dim", 5)
    return plan_for(FOUR, dim, colluding=1, dropouts=1, **changed)


def noisy(*, top: dict[str, Any] | None = None, **changed: Any) -> SumPlan:
    return plan(**{**NOISY, **(top or {})}, dp={**NOISE, **changed})


@pytest.mark.parametrize(
    ("changed", "constraint"),
    [
        ({"invited": ("s001", "s000", "s002", "s003")}, "P1"),
        ({"invited": ("s000", "s000", "s001", "s002")}, "P1"),
        ({"invited": ("s000", "s001", "s002", "s777")}, "P1"),
        ({"weights": (1, 2, 3)}, "P1"),
        ({"weights": (1, 2, 3, 0)}, "P1"),
        ({"quorum": 2}, "P2"),
        ({"quorum": 4}, "P3"),
        ({"degree": 9}, "P4"),
        ({"degree": 2}, "P5"),
        ({"share_threshold": 1}, "P6"),
        ({"scale_log2": 30, "q_max": 2**30}, "P7"),
        ({"dim": 0}, "P8"),
        ({"dim": 2**35}, "P8"),
        ({"chunk_words": 1024}, "P8"),
        ({"clip": (0.0).hex()}, "P10"),
        ({"clip": (-1.0).hex()}, "P10"),
        ({"clip": (5e-324).hex()}, "P10"),
        ({"scale_log2": 37}, "P10"),
        ({"scale_log2": 2**53 - 1}, "P10"),
        ({"scale_log2": 0}, "P10"),
        ({"q_max": 2**18 - 1}, "P10"),
        ({"rounding": "integer"}, "P10"),
        ({"rounding": "integer", "scale_log2": 0, "q_max": 0}, "P10"),
        ({"rounding": "integer", "scale_log2": 0, "q_max": 2**37, "word_bits": 64}, "P10"),
        ({"rounding": "integer", "scale_log2": 0, "q_max": 9, "weights": (1, 1, 1, 1)}, "P10"),
        ({"dp": {**NOISE, "mechanism": "none"}}, "P10"),
        ({"dp": {**NOISE, "mechanism": "none", "z": "0", "sigma_sq": 0, "norm_sq_max": 0, "honest_min": 0}}, "P10"),
    ],
)
def test_a_plan_that_breaks_a_constraint_is_refused_by_its_name(changed: dict[str, Any], constraint: str) -> None:
    with pytest.raises(SumRefused) as refused:
        check_plan(plan(**changed), registry_of(tuple(FOUR)))
    assert refused.value.code == "E_PLAN"
    assert refused.value.message.startswith(constraint)


@pytest.mark.parametrize(
    "wrong",
    [
        noisy(unit="none"), noisy(top={"word_bits": 64}), noisy(top={"rounding": "nearest"}), noisy(honest_min=3),
        noisy(top={"scale_log2": 23, "q_max": 2**23}), noisy(top={"dim": 2**33}), noisy(z="0"),
        noisy(norm_sq_max=BOUND**2 + 1), noisy(unit="record"), noisy(sigma_sq=NOISE["sigma_sq"] - 1),
        noisy(sigma_sq=2**52), noisy(z="0.000001", sigma_sq=255),
    ],
)  # fmt: skip
def test_a_plan_with_noise_that_does_not_add_up_is_refused(wrong: SumPlan) -> None:
    with pytest.raises(SumRefused) as refused:
        check_plan(wrong, registry_of(tuple(FOUR)))
    assert refused.value.code == "E_PLAN"


@pytest.mark.parametrize(
    "right",
    [
        plan(), plan(weights=(1, 2, 3, 4)), noisy(), noisy(sigma_sq=NOISE["sigma_sq"] + 9),
        noisy(unit="record", norm_sq_max=0, top={"q_max": 2**20}), plan(word_bits=16, scale_log2=12, q_max=2**12),
        plan(word_bits=64, rounding="integer", scale_log2=0, q_max=2**37 - 1),
    ],
)  # fmt: skip
def test_a_sound_plan_is_accepted(right: SumPlan) -> None:
    check_plan(right, registry_of(tuple(FOUR)))


def test_a_plan_with_an_inactive_site_is_refused() -> None:
    with pytest.raises(SumRefused, match="P1"):
        check_plan(plan(), with_member(registry_of(tuple(FOUR)), "s002", active=False))


def test_a_site_may_ask_for_more_noise_than_a_plan_has() -> None:
    check_floors(noisy(), Floors(least_z="0.5"))
    check_floors(plan(), Floors(least_z="9"))
    with pytest.raises(SumRefused, match=r"at least 0\.6"):
        check_floors(noisy(), Floors(least_z="0.6"))


def test_weights_scale_each_site_by_its_own_over_the_largest() -> None:
    weighted = plan(weights=(1, 2, 3, 4))
    assert [weighted.weight_of(name) for name in FOUR] == [0.25, 0.5, 0.75, 1.0]
    assert plan().weight_of("s002") == 1.0


def test_a_weighted_sum_is_that_of_the_scaled_updates() -> None:
    weighted = plan(weights=(1, 2, 4, 4), rounding="nearest", dim=2)
    found = federation_of(weighted, {name: np.array([1.0, -0.5]) for name in FOUR})
    run_sum(found)
    assert found.total.tolist() == [int(2.75 * 2**18), -int(2.75 * 2**17)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sender", "coordinator"), ("sender", "S001"), ("sender", ""), ("sender", "a" * 65), ("view", "AB" * 32),
        ("view", "ab" * 31), ("words", -1), ("words", 2**53), ("words", 1.0), ("words", True), ("words", "1"),
        ("words", None), ("extra", 1),
    ],
)  # fmt: skip
def test_a_field_outside_its_form_is_no_message(field: str, value: Any) -> None:
    good = {"sender": "s001", "view": "ab" * 32, "payload": "cd" * 32, "words": 3}
    with pytest.raises(SumRefused, match="E_NONCANON"):
        parse(Masked, json.dumps({**good, field: value}, sort_keys=True, separators=(",", ":")).encode())
    missing = {name: part for name, part in good.items() if name != field}
    if field != "extra":
        with pytest.raises(SumRefused, match="E_NONCANON"):
            parse(Masked, json.dumps(missing, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "clip", ["1.0", "0x1.0p+0", "0x1.0000000000000p+9999", "nan", "inf", "0x1.0000000000000P+0", "-0x0.0p+0 "]
)
def test_a_real_number_has_one_spelling(clip: str) -> None:
    body = json.loads(encode(plan()))
    with pytest.raises(SumRefused, match="E_NONCANON"):
        parse(SumPlan, json.dumps({**body, "clip": clip}, sort_keys=True, separators=(",", ":")).encode())


def test_messages_and_states_show_no_secret() -> None:
    found = federation_of(plan(), {name: np.full(5, 0.123) for name in FOUR})
    found.advertise(FOUR)
    state = found.sites["s000"].state
    assert isinstance(state, at.Advertised)
    seed = bytes(state.self_seed.reveal())
    assert seed.hex() not in repr(state)
    assert repr(seed)[2:-1] not in repr(state)
    assert "0.123" not in repr(state)
    assert repr(UnmaskJob(())) == "UnmaskJob(0 passes, <hidden>)"


def test_a_signature_of_another_kind_or_key_does_not_hold() -> None:
    registry = registry_of(tuple(FOUR))
    message = sign(key_of("s001"), Masked(sender="s001", view="ab" * 32, payload="cd" * 32, words=3))
    assert open_message(Masked, message, registry).body.words == 3
    assert not ed25519_verify(key_of("s002").public)(message.signature, b"")
    with pytest.raises(SumRefused, match="E_SIG"):
        open_message(Masked, sign(key_of("s002"), Masked.model_validate_json(message.body)), registry)
    with pytest.raises(SumRefused, match="E_UNENROLLED"):
        open_message(Masked, message, with_member(registry, "s001", active=False))
    with pytest.raises(SumRefused) as refused:
        open_message(Masked, message, registry_of(("s000", "s002", "s003")))
    assert refused.value.code == "E_UNENROLLED"
    assert refused.value.strength is Strength.NONE


def test_a_packed_message_of_no_known_kind_is_refused() -> None:
    packed = sign(key_of("s001"), Masked(sender="s001", view="ab" * 32, payload="cd" * 32, words=3)).pack()
    with pytest.raises(SumRefused, match="E_KIND"):
        unpack(packed.replace(b"masked", b"marked"))
    with pytest.raises(SumRefused, match="E_SIZE"):
        unpack(packed[:-1])
