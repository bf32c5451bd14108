from dataclasses import replace
from typing import Any

import pytest

from federation import canonical
from federation.charter import (
    AcceptedCharter,
    Change,
    ChangeKind,
    Charter,
    changes,
    charter_digest,
    encode_charter,
    next_charter,
    open_charter,
    read_charter,
    sign_charter,
)
from federation.errors import ConfideError, InvalidInput, NotAuthenticated, OutOfOrder, PeerMisbehaved
from federation.identity import IdentityKey
from federation.messages import MemberStatus
from tests.support.membership import FederationKeys, SiteKeys, audit_keys, person

ANNA, BERN, CHUR = (SiteKeys(name) for name in ("st-anna", "bern", "chur"))


@pytest.fixture
def keys() -> FederationKeys:
    return FederationKeys()


def test_each_epoch_opens_after_the_one_before(keys: FederationKeys) -> None:
    first, second = keys.next_epoch(), keys.next_epoch(ANNA.member(), people=(person(),))
    opened = open_charter(keys.root.public, *first, None)
    assert (opened.epoch, opened.previous) == (1, None)
    opened = open_charter(keys.root.public, *second, first[0])
    assert (opened.epoch, opened.previous) == (2, charter_digest(first[0]))
    assert opened.active("st-anna") == ANNA.member()
    assert opened.member("bern") is None
    assert opened.person("alice") is not None


def test_a_party_without_any_epoch_may_begin_with_a_later_one(keys: FederationKeys) -> None:
    keys.next_epoch()
    second = keys.next_epoch(ANNA.member())
    assert open_charter(keys.root.public, *second, None).epoch == 2


def refuse(keys: FederationKeys, body: bytes, signature: bytes, previous: bytes | None) -> ConfideError:
    with pytest.raises(ConfideError) as refused:
        open_charter(keys.root.public, body, signature, previous)
    return refused.value


def test_a_charter_by_another_root_key_is_refused(keys: FederationKeys) -> None:
    body, _ = keys.next_epoch(ANNA.member())
    forged = sign_charter(IdentityKey.generate(), body)
    problem = refuse(keys, body, forged, None)
    assert (problem.code, problem.exit_status) == ("CFD-E17", 3)


def test_a_signature_by_the_coordinators_identity_is_no_charter(keys: FederationKeys) -> None:
    body, _ = keys.next_epoch(ANNA.member())
    assert refuse(keys, body, sign_charter(keys.identity, body), None).code == "CFD-E17"


def test_a_member_put_in_afterwards_is_refused(keys: FederationKeys) -> None:
    body, signature = keys.next_epoch(ANNA.member())
    charter = read_charter(body)
    forged = encode_charter(charter.model_copy(update={"members": (BERN.member(), *charter.members)}))
    assert refuse(keys, forged, signature, None).code == "CFD-E17"


def test_a_skipped_epoch_is_refused_with_the_one_that_is_wanted(keys: FederationKeys) -> None:
    first, _, third = keys.next_epoch(), keys.next_epoch(ANNA.member()), keys.next_epoch(BERN.member(), ANNA.member())
    problem = refuse(keys, *third, first[0])
    assert isinstance(problem, NotAuthenticated)
    assert "epoch 3 of the charter was shown, held is 1, next is 2" in problem.message


def test_an_old_epoch_is_not_taken_again(keys: FederationKeys) -> None:
    first, second = keys.next_epoch(), keys.next_epoch(ANNA.member())
    assert refuse(keys, *first, second[0]).code == "CFD-E18"


def test_an_epoch_of_another_history_is_refused(keys: FederationKeys) -> None:
    first = keys.next_epoch()
    fork = FederationKeys(root=keys.root, identity=keys.identity, authority=keys.authority)
    fork.next_epoch(ANNA.member())
    assert refuse(keys, *fork.next_epoch(ANNA.member(), BERN.member()), first[0]).code == "CFD-E18"


def test_the_same_epoch_signed_twice_is_proof_of_misbehaviour(keys: FederationKeys) -> None:
    first = keys.next_epoch()
    twin = encode_charter(next_charter(None, keys.charter(ANNA.member())))
    problem = refuse(keys, twin, sign_charter(keys.root, twin), first[0])
    assert isinstance(problem, PeerMisbehaved)


def test_a_member_can_not_disappear_or_change_its_key_while_it_is_not_revoked(keys: FederationKeys) -> None:
    first = keys.next_epoch(ANNA.member())
    gone = encode_charter(next_charter(first[0], keys.charter()))
    assert "leaves out members: st-anna" in refuse(keys, gone, sign_charter(keys.root, gone), first[0]).message
    other = SiteKeys("st-anna").member()
    swapped = encode_charter(next_charter(first[0], keys.charter(other)))
    assert "changes the key of st-anna" in refuse(keys, swapped, sign_charter(keys.root, swapped), first[0]).message


def test_a_revoked_member_may_come_back_with_a_new_key(keys: FederationKeys) -> None:
    keys.next_epoch(ANNA.member())
    revoked = keys.next_epoch(ANNA.member(status=MemberStatus.REVOKED))
    again = keys.next_epoch(SiteKeys("st-anna").member())
    assert open_charter(keys.root.public, *again, revoked[0]).active("st-anna") is not None


def test_a_charter_of_another_federation_is_refused(keys: FederationKeys) -> None:
    first = keys.next_epoch()
    other = keys.charter().model_copy(update={"federation": "other.example.org", "epoch": 2, "previous": "0" * 64})
    body = encode_charter(other)
    assert "is of other.example.org" in refuse(keys, body, sign_charter(keys.root, body), first[0]).message
    with pytest.raises(OutOfOrder):
        next_charter(first[0], other)


def test_the_root_key_is_nobodys_own_key(keys: FederationKeys) -> None:
    body = encode_charter(keys.charter(ANNA.member(identity=keys.root.public.hex())))
    assert "root key" in refuse(keys, body, sign_charter(keys.root, body), None).message


def test_a_weak_key_is_refused_even_if_the_root_key_signed_it(keys: FederationKeys) -> None:
    body = encode_charter(keys.charter(ANNA.member(identity="01" + "00" * 31)))
    assert refuse(keys, body, sign_charter(keys.root, body), None).code == "CFD-E25"


def altered(keys: FederationKeys, **changes: Any) -> bytes:
    plain = keys.charter(ANNA.member(), BERN.member(), people=(person(),)).model_dump(mode="json")
    return canonical.encode({**plain, **changes})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: {"members": plain["members"][::-1]},
        lambda plain: {"members": plain["members"] + plain["members"][-1:]},
        lambda plain: {"members": [{**plain["members"][0], "site": "coordinator"}]},
        lambda plain: {"members": [{**plain["members"][0], "status": "pending"}]},
        lambda plain: {"members": [{**plain["members"][0], "operator": "two\nlines"}]},
        lambda plain: {"members": [{**plain["members"][0], "operator": "right\u202eleft"}]},
        lambda plain: {"people": [{**plain["people"][0], "key": plain["coordinator"]["identity"]}]},
        lambda plain: {"people": [{**plain["people"][0], "role": "root"}]},
        lambda plain: {"epoch": 0},
        lambda plain: {"epoch": 2},
        lambda plain: {"version": 2},
        lambda plain: {"more": 1},
        lambda plain: {"previous": "0" * 64},
    ],
)
def test_a_malformed_charter_is_refused_whoever_signed_it(keys: FederationKeys, spoil: Any) -> None:
    plain = canonical.decode(altered(keys))
    body = altered(keys, **spoil(plain))
    with pytest.raises(InvalidInput) as refused:
        open_charter(keys.root.public, body, sign_charter(keys.root, body), None)
    assert refused.value.code == "CFD-E19"


def test_bytes_that_are_not_canonical_are_refused(keys: FederationKeys) -> None:
    body = altered(keys) + b"\n"
    with pytest.raises(InvalidInput, match="can't be read"):
        open_charter(keys.root.public, body, sign_charter(keys.root, body), None)


def test_what_changes_is_named(keys: FederationKeys) -> None:
    alice, bob = person("alice"), person("bob")
    old = keys.charter(ANNA.member(), BERN.member(status=MemberStatus.SUSPENDED), people=(alice,))
    new = keys.charter(
        ANNA.member(status=MemberStatus.REVOKED),
        BERN.member(),
        CHUR.member(),
        people=(bob,),
    )
    assert set(changes(old, new)) == {
        Change("member", "st-anna", ChangeKind.REVOKED),
        Change("member", "bern", ChangeKind.RESUMED),
        Change("member", "chur", ChangeKind.ADDED),
        Change("person", "bob", ChangeKind.ADDED),
        Change("person", "alice", ChangeKind.REMOVED),
    }
    moved = old.model_copy(update={"coordinator": keys.coordinator.model_copy(update={"operator": "Other"})})
    assert changes(old, moved) == (Change("coordinator", "coordinator", ChangeKind.CHANGED),)
    assert changes(old, old) == ()
    assert {change.kind for change in changes(None, new)} == {ChangeKind.ADDED}
    suspended = keys.charter(ANNA.member(status=MemberStatus.SUSPENDED))
    assert changes(keys.charter(ANNA.member()), suspended)[0].kind is ChangeKind.SUSPENDED


def test_another_operator_or_key_under_a_known_name_counts_as_a_new_member(keys: FederationKeys) -> None:
    old = keys.charter(ANNA.member())
    for changed in (ANNA.member(operator="Somebody Else"), SiteKeys("st-anna").member()):
        assert changes(old, keys.charter(changed))[0].kind is ChangeKind.ADDED
    other_log = ANNA.member(audit=audit_keys("st-anna"))
    assert changes(old, keys.charter(other_log))[0].kind is ChangeKind.CHANGED


def accepted(keys: FederationKeys, *members: Any, accept_all: bool = False) -> AcceptedCharter:
    body, _ = keys.next_epoch(*members)
    charter: Charter = read_charter(body)
    return AcceptedCharter("st-anna", body, charter, accept_all=accept_all)


def at_epoch(keys: FederationKeys, held: AcceptedCharter, epoch: tuple[bytes, bytes]) -> AcceptedCharter:
    return replace(held, body=epoch[0], charter=open_charter(keys.root.public, *epoch, held.body))


def test_members_that_a_site_has_not_accepted_count_as_colluding_and_never_as_witnesses(keys: FederationKeys) -> None:
    held = accepted(keys, ANNA.member(), BERN.member(), CHUR.member())
    invited = ["st-anna", "bern", "chur", "invented"]
    assert held.accepted_among(invited) == 1
    assert [member.site for member in held.waiting()] == ["bern", "chur"]
    assert not held.may_witness("bern")
    assert held.may_witness("coordinator")
    held = held.answer("bern", accepted=True, by="alice")
    assert held.accepted_among(invited) == 2
    assert held.may_witness("bern")
    assert not held.may_witness("st-anna")
    assert [member.site for member in held.waiting()] == ["chur"]


def test_the_policys_line_accepts_all_but_those_refused_by_name(keys: FederationKeys) -> None:
    held = accepted(keys, ANNA.member(), BERN.member(), CHUR.member(), accept_all=True)
    assert held.accepted_among(["st-anna", "bern", "chur"]) == 3
    assert held.waiting() == ()
    held = held.answer("bern", accepted=False, by="alice")
    assert held.accepted_among(["st-anna", "bern", "chur"]) == 2
    assert held.refused("bern")


def test_an_answer_is_for_one_operator_with_one_key(keys: FederationKeys) -> None:
    held = accepted(keys, ANNA.member(), BERN.member()).answer("bern", accepted=True, by="alice")
    moved = keys.next_epoch(ANNA.member(), BERN.member(operator="Shell Company"))
    held = at_epoch(keys, held, moved)
    assert held.charter.epoch == 2
    assert not held.accepts("bern")
    assert [member.site for member in held.waiting()] == ["bern"]


def test_a_member_that_is_suspended_or_revoked_is_not_accepted_whatever_was_answered(keys: FederationKeys) -> None:
    held = accepted(keys, ANNA.member(), BERN.member(), accept_all=True)
    for status in (MemberStatus.SUSPENDED, MemberStatus.REVOKED):
        held = at_epoch(keys, held, keys.next_epoch(ANNA.member(), BERN.member(status=status)))
        assert not held.accepts("bern")
        assert held.waiting() == ()


@pytest.mark.parametrize("site", ["nobody", "st-anna"])
def test_an_answer_about_nobody_or_about_oneself_is_refused(keys: FederationKeys, site: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        accepted(keys, ANNA.member(), BERN.member()).answer(site, accepted=True, by="alice")
    assert refused.value.code == "CFD-E26"
    assert "bern" in refused.value.message
