"""A coordinator that shows different things to different sites, or sets that are too small, or parts the graph."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privacy.secagg import site_states as at
from privacy.secagg.envelope import Signed, open_message, sign
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import centred
from privacy.secagg.messages import Advert, Masked, Result, Shares, SumPlan, Survivors
from privacy.secagg.plan_checks import Floors
from tests.support.secure_sums import (
    Federation,
    federation_of,
    integer_plan,
    integers,
    key_of,
    names_of,
    plan_for,
    registry_of,
    resigned,
    run_sum,
    signed_plan,
    until,
    with_member,
)

FOUR = names_of(4)
PLAN = integer_plan(FOUR, 5, colluding=1, dropouts=1)


def relayed(found: Federation, name: str = "s000") -> tuple[Signed, ...]:
    return found.relayed[name].messages


def test_a_plan_for_another_model_stops_at_the_roster() -> None:
    found = until(federation_of(PLAN), "share")
    other = federation_of(PLAN.model_copy(update={"sum_id": "55" * 32, "model_digest": "66" * 32}))
    for run in other.sites.values():
        run.local = replace(run.local, model_digest="66" * 32, lineage=at.Lineage("66" * 32))
    until(other, "share")
    mixed = (*relayed(found)[:3], relayed(other)[3])
    run = found.sites["s000"]
    run.tell(at.AdvertsShown(mixed))
    assert run.code == "E_PLAN_MIX"
    assert b'"blame":["s003"]' in run.last.body


def test_masks_of_two_plans_never_cancel() -> None:
    """The same sites, keys and vectors under two plans: nothing of one sum takes masks off the other."""
    zeros = {name: np.zeros(5, dtype=np.int64) for name in FOUR}
    first = until(federation_of(PLAN, zeros), "mask")
    second = until(federation_of(PLAN.model_copy(update={"sum_id": "55" * 32}), zeros), "mask")
    for found in (first, second):
        for name in FOUR:
            relay = found.relayed[name]
            found.sites[name].tell(at.SharesShown(relay.messages, relay.boxes))

    def vector(found: Federation, name: str) -> Any:
        job = found.sites[name].upload
        assert job is not None
        return np.frombuffer(next(job.job.chunks())[1], dtype=np.uint32)

    assert all(np.all(vector(first, name) != vector(second, name)) for name in FOUR)
    mixed = vector(first, "s000") + vector(first, "s001") + vector(second, "s002") + vector(second, "s003")
    assert np.all(np.abs(centred(mixed)) > 10**3)


def test_a_split_roster_stops_before_masking() -> None:
    found = until(federation_of(PLAN), "share")
    for name in FOUR:
        shown = relayed(found) if name != "s000" else relayed(found)[:3]
        found.sites[name].tell(at.AdvertsShown(shown))
    messages = tuple(found.sites[name].last for name in FOUR)
    run = found.sites["s001"]
    run.tell(at.SharesShown(messages, ()))
    assert run.code == "E_ROSTER_SPLIT"
    assert run.upload is None


def test_a_split_view_stops_at_consent() -> None:
    found = until(federation_of(PLAN), "mask")
    for name in FOUR:
        relay = found.relayed[name]
        near = [box for box in relay.boxes if name != "s000" or b'"sender":"s003"' not in box]
        shown = relay.messages if name != "s000" else relay.messages[:3]
        found.sites[name].tell(at.SharesShown(shown, tuple(near)))
    masked = []
    for name in FOUR:
        upload = found.sites[name].upload
        assert upload is not None
        list(upload.job.chunks())
        assert upload.message is not None
        masked.append(upload.message)
    for name in FOUR:
        found.sites[name].tell(at.MaskedShown(tuple(masked)))
        assert found.sites[name].code == "E_VIEW_SPLIT"
        assert b'"consented":false' in found.sites[name].last.body


def test_two_halves_with_different_survivors_both_reveal_nothing() -> None:
    names = names_of(6)
    found = until(federation_of(integer_plan(names, 5, colluding=0, dropouts=1)), "consent")
    masked = relayed(found)
    without_first = masked[1:]
    without_last = masked[:-1]
    for name in names[:3]:
        found.sites[name].tell(at.MaskedShown(without_last))
    for name in names[3:]:
        found.sites[name].tell(at.MaskedShown(without_first))
    consents = tuple(found.sites[name].last for name in names)
    for name in names:
        found.sites[name].tell(at.CertificateShown(consents))
        assert found.sites[name].code == "E_CONSENT"
        assert not any(message.kind == "reveal" for message in found.sites[name].sent)


def test_repeating_one_consent_does_not_make_a_certificate() -> None:
    found = until(federation_of(PLAN), "reveal")
    run = found.sites["s000"]
    run.tell(at.CertificateShown((relayed(found)[0],) * 9))
    assert run.code == "E_CONSENT"


def test_a_site_signs_at_most_one_consent_and_one_vector_whatever_it_is_shown() -> None:
    found = until(federation_of(PLAN), "consent")
    run = found.sites["s000"]
    run.tell(at.MaskedShown(relayed(found)))
    with pytest.raises(SumRefused, match="E_PHASE"):
        run.tell(at.MaskedShown(relayed(found)[:3]))
    assert isinstance(run.state, at.Consented)
    assert [message.kind for message in run.sent].count("survivors") == 1


FLOORS = [
    ("share", lambda relay: at.AdvertsShown(relay.messages[:3])),
    ("mask", lambda relay: at.SharesShown(relay.messages[:3], relay.boxes)),
    ("consent", lambda relay: at.MaskedShown(relay.messages[:3])),
]


@pytest.mark.parametrize(("phase", "event"), FLOORS, ids=["roster", "members", "survivors"])
def test_each_floor_is_enforced_at_each_phase(phase: str, event: Any) -> None:
    names = names_of(4)
    found = until(federation_of(integer_plan(names, 5, quorum=4)), phase)
    run = found.sites["s000"]
    run.tell(event(found.relayed["s000"]))
    assert run.code == "E_COHORT"


@pytest.mark.parametrize(
    ("floors", "text"),
    [
        (Floors(colluding=2), "colluding 1"),
        (Floors(quorum=4), "quorum 3"),
        (Floors(mechanisms=frozenset({"distributed"})), "mechanism none"),
    ],
)
def test_a_plan_below_the_sites_own_floors_is_refused(floors: Floors, text: str) -> None:
    found = federation_of(PLAN)
    run = found.sites["s000"]
    run.floors = floors
    run.offer(signed_plan(PLAN))
    assert run.code == "E_POLICY"
    assert run.closed is not None
    assert text in run.closed.message


def test_two_sites_of_one_operator_are_refused() -> None:
    registry = with_member(registry_of(tuple(FOUR)), "s001", operator="operator-s000")
    run = federation_of(PLAN).sites["s000"]
    run.registry = registry
    run.offer(signed_plan(PLAN))
    assert run.code == "E_PLAN"


def ring_federation() -> Federation:
    names = names_of(12)
    plan = integer_plan(names, 5, colluding=0, dropouts=1, degree=4, share_threshold=2)
    return until(federation_of(plan), "consent")


def test_dropping_all_neighbours_of_a_site_is_refused() -> None:
    found = ring_federation()
    state = found.sites["s000"].state
    assert isinstance(state, at.Masked)
    order = state.ring.order
    near = set(state.ring.neighbours("s000"))
    assert len(near) == 4
    shown = tuple(message for name, message in zip(names_of(12), relayed(found), strict=True) if name not in near)
    assert len(shown) >= found.plan.quorum
    assert state.ring.connectivity_bound([name for name in order if name not in near]) == 0
    run = found.sites["s000"]
    run.tell(at.MaskedShown(shown))
    assert run.code == "E_GRAPH"


def test_the_coordinator_itself_ends_a_sum_whose_graph_could_be_parted() -> None:
    names = names_of(12)
    plan = integer_plan(names, 5, colluding=0, dropouts=1, degree=4, share_threshold=2)
    found = until(federation_of(plan), "mask")
    state = found.sites["s000"].state
    assert isinstance(state, at.Shared)
    near = set(state.ring.neighbours("s000"))
    found.mask([name for name in names if name not in near])
    assert found.code == "E_GRAPH"
    assert found.total is None


def test_a_site_that_its_neighbours_left_is_no_member() -> None:
    names = names_of(12)
    plan = integer_plan(names, 5, colluding=0, dropouts=1, degree=4, share_threshold=2)
    found = until(federation_of(plan), "share")
    run = found.sites["s000"]
    run.tell(at.AdvertsShown(relayed(found)))
    state = run.state
    assert isinstance(state, at.Shared)
    near = state.ring.neighbours("s000")
    found.share([name for name in names if name not in near[:3]])
    assert "s000" not in found.relayed
    found.mask(names)
    assert "s000" not in found.survivors


def test_a_site_refuses_a_view_with_too_few_of_its_neighbours() -> None:
    names = names_of(12)
    plan = integer_plan(names, 5, colluding=0, dropouts=1, degree=4, share_threshold=2)
    found = until(federation_of(plan), "mask")
    run = found.sites["s000"]
    state = run.state
    assert isinstance(state, at.Shared)
    near = set(state.ring.neighbours("s000")[:3])
    shown = tuple(m for name, m in zip(names, relayed(found), strict=True) if name not in near)
    run.tell(at.SharesShown(shown, ()))
    assert run.code == "E_DEGREE"


def changed_set(kind: str, found: Federation) -> dict[str, tuple[at.Event, str]]:
    """Return bad sets for one phase, with the code that each must give at s000."""
    relay = found.relayed["s000"]
    good, stranger = relay.messages, "s009"
    match kind:
        case "adverts":
            twice = resigned("s001", good[1], Advert, nonce="99" * 32)
            foreign = resigned(stranger, good[1], Advert, sender=stranger)
            unknown = replace(foreign, body=foreign.body.replace(b"s009", b"s019"))
            own_twice = resigned("s000", good[0], Advert, nonce="99" * 32)
            return {
                "own missing": (at.AdvertsShown(good[1:]), "E_SELF"),
                "own changed": (at.AdvertsShown((own_twice, *good[1:])), "E_SELF"),
                "repeated": (at.AdvertsShown((*good, good[1])), "E_DUP"),
                "two of one": (at.AdvertsShown((*good, twice)), "E_DUP"),
                "stranger": (at.AdvertsShown((*good, foreign)), "E_UNINVITED"),
                "unknown": (at.AdvertsShown((*good, unknown)), "E_UNENROLLED"),
                "other kind": (at.AdvertsShown((*good, replace(good[1], kind="shares"))), "E_KIND"),
                "unsigned": (at.AdvertsShown((*good[:3], replace(good[3], signature=bytes(64)))), "E_SIG"),
                "short signature": (at.AdvertsShown((*good[:3], replace(good[3], signature=b"x"))), "E_SIG"),
                "too long": (at.AdvertsShown((*good[:3], replace(good[3], body=good[3].body + b" " * 5000))), "E_SIZE"),
                "spaced": (at.AdvertsShown((*good[:3], replace(good[3], body=good[3].body + b" "))), "E_NONCANON"),
            }  # fmt: skip
        case "shares":
            foreign = resigned(stranger, good[1], Shares, sender=stranger)
            return {
                "stranger": (at.SharesShown((*good, foreign), relay.boxes), "E_U2"),
                "own missing": (at.SharesShown(good[1:], relay.boxes), "E_U2"),
                "box missing": (at.SharesShown(good, relay.boxes[1:]), "E_PATH"),
                "box twice": (at.SharesShown(good, (*relay.boxes, relay.boxes[0])), "E_PATH"),
                "box of another": (at.SharesShown(good, (*relay.boxes[1:], found.relayed["s001"].boxes[0])), "E_PATH"),
                "repeated": (at.SharesShown((*good, good[1]), relay.boxes), "E_DUP"),
                "no box": (at.SharesShown(good, (*relay.boxes[1:], b"{}")), "E_NONCANON"),
            }
        case _:
            foreign = resigned(stranger, good[1], Masked, sender=stranger)
            own_twice = resigned("s000", good[0], Masked, payload="99" * 32)
            other_view = resigned("s003", good[3], Masked, view="99" * 32)
            return {
                "stranger": (at.MaskedShown((*good, foreign)), "E_U3"),
                "own missing": (at.MaskedShown(good[1:]), "E_U3"),
                "own changed": (at.MaskedShown((own_twice, *good[1:])), "E_U3"),
                "other view": (at.MaskedShown((*good[:3], other_view)), "E_VIEW_SPLIT"),
                "repeated": (at.MaskedShown((*good, good[2])), "E_DUP"),
            }  # fmt: skip


SETS = {"adverts": "share", "shares": "mask", "masked": "consent"}
CASES = [(kind, name) for kind in SETS for name in changed_set(kind, until(federation_of(PLAN), SETS[kind]))]


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind}: {case}" for kind, case in CASES])
def test_a_set_with_something_wrong_ends_the_sum_at_the_site_and_leaves_no_secret(kind: str, case: str) -> None:
    found = federation_of(PLAN)
    registry = registry_of((*FOUR, "s009"))
    for run in found.sites.values():
        run.registry = registry
    until(found, SETS[kind])
    event, code = changed_set(kind, found)[case]
    run = found.sites["s000"]
    before = run.state
    secrets = [getattr(before, name) for name in ("box_key", "mask_seed", "self_seed") if hasattr(before, name)]
    held = list(getattr(before, "held", {}).values())
    run.tell(event)
    assert run.code == code
    assert all(secret.spent for secret in [*secrets, *held])
    assert run.journal[-1].outcome == "aborted"
    with pytest.raises(SumRefused, match="E_PHASE"):
        run.tell(at.MaskedShown(()))


def test_a_false_result_is_refused_with_both_statements_kept() -> None:
    for change, code in (
        ({"plan": "99" * 32}, "E_RESULT"),
        ({"consensus": "99" * 32}, "E_RESULT"),
        ({"sum_digest": "99" * 32}, "E_RESULT"),
        ({"survivors": tuple(FOUR[:3])}, "E_RESULT"),
        ({"new_model_digest": "99" * 32}, "E_LINEAGE"),
        ({"new_model_digest": None}, "E_LINEAGE"),
    ):
        found = until(federation_of(PLAN), "publish")
        found.publish(tell=False)
        assert found.result is not None
        body = Result.model_validate_json(found.result.body).model_dump()
        lie = sign(key_of("coordinator"), Result.model_validate({**body, **change}))
        run = found.sites["s001"]
        run.tell(at.ResultShown(lie, found.figures, bytes.fromhex("44" * 32)))
        assert run.code == code
        assert b'"evidence":null' not in run.last.body
        assert b'"consented":true' in run.last.body


def test_an_evaluation_that_names_a_model_is_refused() -> None:
    plan = PLAN.model_copy(update={"purpose": "evaluate"})
    found = until(federation_of(plan), "publish")
    run = found.sites["s001"]
    found.publish(tell=False)
    found.sites["s002"].tell(at.ResultShown(found.relayed["s002"].messages[0], found.figures, None))
    assert found.sites["s002"].closed == at.SumClosed(None, at.Lineage(plan.model_digest))
    assert found.result is not None
    body = Result.model_validate_json(found.result.body).model_dump()
    lie = sign(key_of("coordinator"), Result.model_validate({**body, "new_model_digest": "99" * 32}))
    run.tell(at.ResultShown(lie, found.figures, None))
    assert run.code == "E_RESULT"


def test_a_sum_out_of_its_bounds_is_refused_by_the_sites_too() -> None:
    found = until(federation_of(PLAN), "publish")
    run = found.sites["s001"]
    found.publish(tell=False)
    assert found.result is not None
    too_large = replace(found.figures, largest=4 * PLAN.q_max + 1)
    run.tell(at.ResultShown(found.result, too_large, bytes.fromhex("44" * 32)))
    assert run.code == "E_SUM_RANGE"


def test_an_unmasked_sum_out_of_bounds_is_never_published() -> None:
    updates = {name: integers(name, 5) for name in FOUR}
    found = until(federation_of(PLAN, updates), "publish")
    found.figures = replace(found.figures, largest=4 * PLAN.q_max + 1)
    found.publish()
    assert found.code == "E_SUM_RANGE"
    assert found.result is None


def test_a_plan_that_wraps_is_refused_on_both_sides() -> None:
    plan = plan_for(FOUR, 5, word_bits=16, scale_log2=13, q_max=2**13)
    with pytest.raises(SumRefused, match="P7"):
        federation_of(plan).open()
    run = federation_of(plan).sites["s000"]
    run.offer(signed_plan(plan))
    assert run.code == "E_PLAN"


def test_an_honest_run_of_what_was_tampered_with_here_ends_well() -> None:
    found = run_sum(federation_of(PLAN))
    assert found.code is None
    assert {run.code for run in found.sites.values()} == {None}
    opened = open_message(SumPlan, found.records[0].plan, registry_of(tuple(FOUR)))
    assert opened.body == PLAN
    kinds = [[message.kind for message in run.sent] for run in found.sites.values()]
    assert kinds == [["advert", "shares", "survivors", "reveal"]] * 4
    assert all(isinstance(Survivors.model_validate_json(run.sent[2].body), Survivors) for run in found.sites.values())
