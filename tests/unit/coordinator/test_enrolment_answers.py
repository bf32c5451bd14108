"""Enrolment at the coordinator: the service over a real database, as the link calls it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from audit import note
from coordinator.enrolment import FRESH_S, Enrolment
from coordinator.membership import Membership, Verb, add_person, change, confirm, invite, remove_person, standing
from coordinator.membership_store import (
    Change,
    MembershipStore,
    PutInvitation,
    PutMember,
    PutPerson,
    RemovePerson,
    api_token_digest,
)
from coordinator.migrations import bring_up
from federation import enrolment_messages as messages
from federation.certificates import certificate_from_der, certificate_request, new_tls_key, public_key_digest
from federation.charter import open_charter
from federation.edge.database import open_engine, sqlite_url
from federation.errors import CheckFailed, ConfideError, InvalidInput, NotAuthenticated
from federation.identity import IdentityKey
from federation.messages import MemberStatus
from federation.tokens import secret_digest
from federation.words import fingerprint_words
from tests.support.membership import FEDERATION, FederationKeys, SiteKeys, TestClock, audit_keys, person


@dataclass
class Refusals:
    noted: list[tuple[str, str]] = field(default_factory=list)

    def refused(self, site: str, code: str, request_digest: str) -> None:
        assert len(request_digest) == 64
        self.noted.append((site, code))


class World:
    """A coordinator's members, and what people do about them."""

    def __init__(self, url: str) -> None:
        self.clock = TestClock()
        self.keys = FederationKeys()
        self.engine = open_engine(url)
        bring_up(self.engine)
        self.store = MembershipStore(
            self.engine,
            federation=FEDERATION,
            coordinator=self.keys.coordinator,
            root_public=self.keys.root.public,
            clock=self.clock,
        )
        self.refusals = Refusals()
        self.service = Enrolment(
            store=self.store,
            authority=self.keys.authority,
            federation=FEDERATION,
            clock=self.clock,
            validity=timedelta(days=90),
            witnessed=self.refusals,
        )
        self.store.decide(lambda _: ((), None))
        self.sign()

    def sign(self) -> None:
        wanted = self.store.proposed()
        if wanted is not None:
            self.store.sign(self.keys.root, wanted)

    def invite(self, site: str = "st-anna", *, days: int = 7, secret: bytes | None = None) -> bytes:
        made = secret or IdentityKey.generate().public
        expires = self.clock.now() + timedelta(days=days)

        def decision(membership: Membership) -> tuple[list[Change], None]:
            new = invite(
                membership, site=site, operator=f"Operator of {site}", token_digest=secret_digest(made), expires=expires
            )
            return [PutInvitation(one) for one in new], None

        self.store.decide(decision)
        return made

    def enrol(self, keys: SiteKeys, secret: bytes, **changes: Any) -> messages.EnrolReply:
        reply = self.service.enrol(messages.encode(keys.enrol_request(secret, **changes)))
        return messages.decode(messages.EnrolReply, reply)

    def confirm(self, site: str, words: str, *, sign: bool = True) -> None:
        def decision(membership: Membership) -> tuple[list[Change], None]:
            invitation, member = confirm(membership, site=site, words=words)
            return [PutInvitation(invitation), PutMember(member, self.store.certificate(site))], None

        self.store.decide(decision)
        if sign:
            self.sign()

    def change(self, site: str, verb: Verb) -> None:
        def decision(membership: Membership) -> tuple[list[Change], None]:
            new = change(membership, site=site, verb=verb)
            return [PutMember(new) if hasattr(new, "tls") else PutInvitation(new)], None  # type: ignore[arg-type]

        self.store.decide(decision)

    def member(self, keys: SiteKeys) -> None:
        """Make `keys` an active member."""
        self.enrol(keys, self.invite(keys.site))
        self.confirm(keys.site, fingerprint_words(keys.identity.public))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(sqlite_url(tmp_path / "coordinator.db"))
    yield made
    made.engine.dispose()


@pytest.fixture
def on_each_database(database_url: str) -> Iterator[World]:
    made = World(database_url)
    yield made
    made.engine.dispose()


def refusal(act: Callable[[], object]) -> ConfideError:
    with pytest.raises(ConfideError) as refused:
        act()
    return refused.value


def test_a_site_is_invited_pending_and_then_a_member(on_each_database: World) -> None:
    world = on_each_database
    keys = SiteKeys()
    secret = world.invite()
    assert standing(world.store.membership(), None, "st-anna") == "invited"
    assert world.service.member("st-anna") is None
    reply = world.enrol(keys, secret)
    assert reply.status is MemberStatus.PENDING
    held = open_charter(
        world.keys.root.public, bytes.fromhex(reply.charter), bytes.fromhex(reply.charter_signature), None
    )
    assert held.member("st-anna") is None
    assert public_key_digest(certificate_from_der(bytes.fromhex(reply.certificate))) == public_key_digest(keys.tls)
    known = world.service.member("st-anna")
    assert known is not None
    assert (known.status, known.identity_key) == (MemberStatus.PENDING, keys.identity.public)
    world.confirm("st-anna", fingerprint_words(keys.identity.public).upper())
    known = world.service.member("st-anna")
    assert known is not None
    assert (known.status, known.tls_key) == (MemberStatus.ACTIVE, public_key_digest(keys.tls))
    signed = world.store.charter()
    assert signed is not None
    assert signed.charter.active("st-anna") == keys.member(operator="Operator of st-anna")


def test_a_member_counts_only_once_the_root_key_has_signed_it(world: World) -> None:
    keys = SiteKeys()
    world.enrol(keys, world.invite())
    world.confirm("st-anna", fingerprint_words(keys.identity.public), sign=False)
    assert world.store.status("st-anna") is MemberStatus.PENDING
    assert world.store.proposed() is not None
    world.sign()
    assert world.store.status("st-anna") is MemberStatus.ACTIVE
    assert world.store.proposed() is None


def test_another_root_key_signs_nothing(world: World) -> None:
    keys = SiteKeys()
    world.enrol(keys, world.invite())
    world.confirm("st-anna", fingerprint_words(keys.identity.public), sign=False)
    wanted = world.store.proposed()
    assert wanted is not None
    assert refusal(lambda: world.store.sign(IdentityKey.generate(), wanted)).code == "CFD-E17"
    assert world.store.proposed() == wanted
    assert refusal(lambda: world.store.sign(world.keys.root, wanted + b" ")).code == "CFD-E27"


def test_what_is_taken_away_counts_at_once(on_each_database: World) -> None:
    world = on_each_database
    world.member(SiteKeys())
    for verb, status in [
        (Verb.SUSPEND, MemberStatus.SUSPENDED),
        (Verb.RESUME, MemberStatus.PENDING),
        (Verb.REVOKE, MemberStatus.REVOKED),
    ]:
        world.change("st-anna", verb)
        assert world.store.status("st-anna") is status
        world.sign()
    assert world.store.status("st-anna") is MemberStatus.REVOKED
    assert [one.charter.epoch for one in world.store.charters_after(2)] == [3, 4, 5]


def test_a_suspension_by_another_process_reaches_the_link_within_a_second(world: World) -> None:
    world.member(SiteKeys())
    seen = [world.service.member("st-anna")]
    world.change("st-anna", Verb.SUSPEND)
    world.clock.sleep(FRESH_S)
    seen.append(world.service.member("st-anna"))
    world.change("st-anna", Verb.RESUME)
    world.sign()
    seen.append(world.service.member("st-anna"))
    assert [member and member.status for member in seen] == [
        MemberStatus.ACTIVE,
        MemberStatus.SUSPENDED,
        MemberStatus.ACTIVE,
    ]


def test_a_lost_answer_is_given_again_to_the_same_site(world: World) -> None:
    keys, secret = SiteKeys(), world.invite()
    world.enrol(keys, secret)
    assert world.enrol(keys, secret).status is MemberStatus.PENDING
    world.confirm("st-anna", fingerprint_words(keys.identity.public))
    assert world.enrol(keys, secret).epoch == 2


def test_a_token_used_first_by_a_thief_is_found_out_on_the_phone(world: World) -> None:
    thief, site, secret = SiteKeys(), SiteKeys(), world.invite()
    world.enrol(thief, secret)
    late = refusal(lambda: world.enrol(site, secret))
    assert (late.code, late.exit_status) == ("CFD-E07", 3)
    assert "phone" in late.hint
    assert world.refusals.noted == [("st-anna", "CFD-E07")]
    wrong = refusal(lambda: world.confirm("st-anna", fingerprint_words(site.identity.public)))
    assert isinstance(wrong, CheckFailed)
    assert world.store.status("st-anna") is MemberStatus.PENDING
    world.change("st-anna", Verb.REVOKE)
    assert world.service.member("st-anna") is None
    assert refusal(lambda: world.enrol(thief, secret)).code == "CFD-E08"
    world.member(site)
    assert world.store.status("st-anna") is MemberStatus.ACTIVE


def test_an_expired_token_is_refused_with_its_date(world: World) -> None:
    secret = world.invite(days=7)
    world.clock.sleep(7 * 86_400)
    problem = refusal(lambda: world.enrol(SiteKeys(), secret))
    assert problem.code == "CFD-E06"
    assert "2026-03-08" in problem.message
    assert world.refusals.noted == [("st-anna", "CFD-E06")]


def test_an_unknown_token_is_refused_and_not_recorded_so_that_nobody_can_fill_the_log(world: World) -> None:
    world.invite()
    assert refusal(lambda: world.enrol(SiteKeys(), b"x" * 32)).code == "CFD-E08"
    assert world.refusals.noted == []


def test_a_second_invitation_ends_the_first(world: World) -> None:
    first, second = world.invite(), world.invite()
    assert refusal(lambda: world.enrol(SiteKeys(), first)).code == "CFD-E08"
    world.enrol(SiteKeys(), second)


def test_a_name_that_is_taken_is_not_invited(world: World) -> None:
    keys = SiteKeys()
    world.enrol(keys, world.invite())
    assert "waits to be confirmed" in refusal(world.invite).message
    world.confirm("st-anna", fingerprint_words(keys.identity.public))
    assert refusal(world.invite).code == "CFD-E14"
    assert refusal(lambda: world.invite("coordinator")).code == "CFD-E14"


def test_a_token_is_for_one_site(world: World) -> None:
    secret = world.invite("bern")
    assert refusal(lambda: world.enrol(SiteKeys("st-anna"), secret)).code == "CFD-E14"


@pytest.mark.parametrize("site", ["bern", "coordinator"])
def test_a_certificate_request_for_another_name_is_refused(world: World, site: str) -> None:
    request = certificate_request(new_tls_key(), federation=FEDERATION, site=site)
    problem = refusal(lambda: world.enrol(SiteKeys(), world.invite(), certificate_request=request.hex()))
    assert problem.code == "CFD-E13"
    assert world.service.member("st-anna") is None


def test_keys_of_an_audit_log_must_bear_the_sites_name(world: World) -> None:
    problem = refusal(lambda: world.enrol(SiteKeys(), world.invite(), audit=audit_keys("bern")))
    assert problem.code == "CFD-E13"


def test_a_request_is_signed_by_the_key_that_it_names(world: World) -> None:
    secret, request = world.invite(), SiteKeys().enrol_request(world.invite("bern"))
    assert secret
    swapped = request.model_copy(update={"identity": IdentityKey.generate().public.hex()})
    assert refusal(lambda: world.service.enrol(messages.encode(swapped))).code == "CFD-E01"
    bare = request.model_copy(update={"signature": ""})
    assert refusal(lambda: world.service.enrol(messages.encode(bare))).code == "CFD-E01"
    weak = request.model_copy(update={"identity": "01" + "00" * 31})
    assert refusal(lambda: world.service.enrol(messages.encode(weak))).code == "CFD-E25"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"site":"st-anna"}', b"[" * 4000, b"\xff" * 100, b'{"a": 1}'])
def test_bytes_that_are_no_request_are_refused_without_repeating_them(world: World, data: bytes) -> None:
    assert refusal(lambda: world.service.enrol(data)).code == "CFD-E13"


def test_a_request_for_another_federation_is_refused(world: World) -> None:
    other = SiteKeys(federation="other.example.org")
    assert refusal(lambda: world.enrol(other, world.invite())).code == "CFD-E13"


def test_a_key_belongs_to_one_party(world: World) -> None:
    anna = SiteKeys("st-anna")
    world.member(anna)
    twin = SiteKeys("bern", identity=anna.identity)
    assert refusal(lambda: world.enrol(twin, world.invite("bern"))).code == "CFD-E25"
    twin = SiteKeys("bern", tls=anna.tls)
    assert refusal(lambda: world.enrol(twin, world.invite("bern"))).code == "CFD-E25"
    coordinator = SiteKeys("bern", identity=world.keys.identity)
    assert refusal(lambda: world.enrol(coordinator, world.invite("bern"))).code == "CFD-E25"


def test_nobody_enrols_with_anothers_witness_key_or_with_one_key_for_two_roles(world: World) -> None:
    anna = SiteKeys("st-anna")
    world.member(anna)

    def named_as_own(vkey: str, role: str, kind: int) -> str:
        return str(note.VerifierKey(f"{FEDERATION}/bern/{role}", kind, note.VerifierKey.parse(vkey).public))

    twin = SiteKeys("bern")
    honest = twin.audit
    copied = named_as_own(anna.audit.witness, "witness", note.COSIGNATURE)
    twin.audit = honest.model_copy(update={"witness": copied})
    assert refusal(lambda: world.enrol(twin, world.invite("bern"))).code == "CFD-E25"
    shared = named_as_own(honest.log, "witness", note.COSIGNATURE)
    twin.audit = honest.model_copy(update={"witness": shared})
    assert refusal(lambda: world.enrol(twin, world.invite("bern"))).code == "CFD-E25"
    name, _, key = honest.witness.split("+", 2)
    twin.audit = honest.model_copy(update={"witness": f"{name}+00000000+{key}"})
    assert refusal(lambda: world.enrol(twin, world.invite("bern"))).code == "CFD-E13"


def renew_request(keys: SiteKeys, **changes: Any) -> messages.RenewRequest:
    request = messages.RenewRequest(site=keys.site, certificate_request=keys.certificate_request().hex())
    return messages.sign(request.model_copy(update=changes), keys.identity)


def test_a_lapsed_certificate_is_renewed_for_the_same_key_without_a_new_enrolment(world: World) -> None:
    keys = SiteKeys()
    world.member(keys)
    epoch = world.store.charters_after(0)[-1].charter.epoch
    world.clock.sleep(200 * 86_400)
    reply = world.service.renew(renew_request(keys))
    certificate = certificate_from_der(bytes.fromhex(reply.certificate))
    assert certificate.not_valid_after_utc == world.clock.now() + timedelta(days=90)
    assert world.store.certificate("st-anna") == bytes.fromhex(reply.certificate)
    assert world.store.status("st-anna") is MemberStatus.ACTIVE
    assert world.store.charters_after(0)[-1].charter.epoch == epoch


def test_a_pending_site_renews_too(world: World) -> None:
    keys = SiteKeys()
    world.enrol(keys, world.invite())
    assert world.service.renew(renew_request(keys)).certificate
    assert world.store.status("st-anna") is MemberStatus.PENDING


def test_a_certificate_is_renewed_for_its_own_member_and_key_only(world: World) -> None:
    keys = SiteKeys()
    world.member(keys)
    other_key = certificate_request(new_tls_key(), federation=FEDERATION, site="st-anna").hex()
    assert refusal(lambda: world.service.renew(renew_request(keys, certificate_request=other_key))).code == "CFD-E13"
    forged = messages.sign(renew_request(keys), IdentityKey.generate())
    assert refusal(lambda: world.service.renew(forged)).code == "CFD-E01"
    assert refusal(lambda: world.service.renew(renew_request(SiteKeys("bern")))).code == "CFD-E12"
    world.change("st-anna", Verb.REVOKE)
    revoked = refusal(lambda: world.service.renew(renew_request(keys)))
    assert isinstance(revoked, NotAuthenticated)
    assert revoked.code == "CFD-E24"


def test_a_revoked_site_comes_back_by_a_new_invitation_with_new_keys(world: World) -> None:
    old, new = SiteKeys(), SiteKeys()
    world.member(old)
    world.change("st-anna", Verb.REVOKE)
    world.sign()
    secret = world.invite()
    assert refusal(lambda: world.enrol(old, secret)).code == "CFD-E25"
    world.enrol(new, secret)
    world.confirm("st-anna", fingerprint_words(new.identity.public))
    known = world.service.member("st-anna")
    assert known is not None
    assert (known.status, known.identity_key) == (MemberStatus.ACTIVE, new.identity.public)


@pytest.mark.parametrize(
    ("verb", "before", "message"),
    [
        (Verb.RESUME, "member", "is active"),
        (Verb.SUSPEND, "invited", "is invited"),
        (Verb.SUSPEND, "none", "there is no site"),
        (Verb.REVOKE, "none", "there is no site"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_the_site_is(
    world: World, verb: Verb, before: str, message: str
) -> None:
    if before == "member":
        world.member(SiteKeys())
    elif before == "invited":
        world.invite()
    problem = refusal(lambda: world.change("st-anna", verb))
    assert isinstance(problem, InvalidInput)
    assert message in problem.message


def test_only_a_pending_site_is_confirmed(world: World) -> None:
    words = fingerprint_words(b"k" * 32)
    assert refusal(lambda: world.confirm("st-anna", words)).code == "CFD-E15"
    world.invite()
    assert "has not enrolled yet" in refusal(lambda: world.confirm("st-anna", words)).message
    world.member(SiteKeys("bern"))
    assert "is active" in refusal(lambda: world.confirm("bern", words)).message


def test_people_are_found_by_their_token_and_stand_in_the_charter(on_each_database: World) -> None:
    world = on_each_database
    alice = person("alice")
    world.store.decide(lambda m: ([PutPerson(add_person(m, alice), api_token_digest("cfu1.t"))], None))
    assert world.store.person_by_token(" cfu1.t\r\n") == alice
    assert world.store.person_by_token("cfu1.u") is None
    assert refusal(lambda: world.store.decide(lambda m: ([], add_person(m, person("alice"))))).code == "CFD-E23"
    twin = alice.model_copy(update={"name": "bob"})
    assert refusal(lambda: world.store.decide(lambda m: ([], add_person(m, twin)))).code == "CFD-E25"
    world.sign()
    signed = world.store.charter()
    assert signed is not None
    assert signed.charter.people == (alice,)
    world.store.decide(lambda m: ([RemovePerson(remove_person(m, "alice").name)], None))
    assert world.store.person_by_token("cfu1.t") is None
    assert refusal(lambda: world.store.decide(lambda m: ([], remove_person(m, "alice")))).code == "CFD-E23"


def test_undoing_a_change_leaves_nothing_to_sign(world: World) -> None:
    world.member(SiteKeys())
    world.change("st-anna", Verb.SUSPEND)
    assert world.store.proposed() is not None
    world.change("st-anna", Verb.RESUME)
    assert world.store.proposed() is None
    assert world.store.status("st-anna") is MemberStatus.ACTIVE
