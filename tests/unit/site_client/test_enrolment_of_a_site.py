"""Enrolment at the site, with the coordinator's answer made by the test: honest, or lying in one thing at a time."""

import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.log import AuditLog
from federation import enrolment_messages as messages
from federation import policy, tokens
from federation.certificates import certificate_to_der, new_tls_key
from federation.charter import sign_charter
from federation.edge.audit_trail import audit_keys
from federation.edge.configuration import load_configuration
from federation.edge.homes import SiteHome
from federation.errors import ConfideError, NotAuthenticated, Unreachable
from federation.identity import IdentityKey
from federation.messages import MemberStatus
from site_client.charter_store import CharterStore
from site_client.configuration import SiteConfiguration
from site_client.enrolment import enrol
from tests.support.membership import FEDERATION, FederationKeys, SiteKeys, TestClock, authority, decided


class Rig:
    """A federation of the test's own, a token of it, and an empty home."""

    def __init__(self, folder: Path) -> None:
        self.keys = FederationKeys()
        self.keys.next_epoch(SiteKeys("bern").member())
        self.clock = TestClock()
        self.home = SiteHome(folder / "home")
        self.asked: list[messages.EnrolRequest] = []
        self.token = tokens.EnrolToken(
            federation=FEDERATION,
            site="st-anna",
            address="coordinator.example.org:9443",
            authority_der=certificate_to_der(self.keys.authority.certificate),
            root_public=self.keys.root.public,
            secret=b"s" * 32,
            expires=self.clock.now() + timedelta(days=7),
        )

    def answer(self, data: bytes, **lies: Any) -> bytes:
        request = messages.decode(messages.EnrolRequest, data)
        messages.check(request, bytes.fromhex(request.identity))
        self.asked.append(request)
        certificate = self.keys.authority.issue_site(
            FEDERATION, "st-anna", bytes.fromhex(request.certificate_request), now=self.clock.now()
        )
        body, signature = self.keys.epochs[-1]
        reply = messages.EnrolReply(
            status=MemberStatus.PENDING,
            certificate=certificate_to_der(certificate).hex(),
            authority=self.token.authority_der.hex(),
            epoch=1,
            charter=body.hex(),
            charter_signature=signature.hex(),
        )
        return messages.encode(reply.model_copy(update=lies))

    def enrol(self, ask: Callable[[bytes, bytes], bytes] | None = None, **lies: Any) -> Any:
        return enrol(
            self.home,
            self.token,
            address="coordinator.example.org:9443",
            ask=ask or (lambda data, _: self.answer(data, **lies)),
            clock=self.clock,
        )

    def actions(self) -> list[tuple[str, str]]:
        return decided(self.home.audit)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_an_enrolled_home_is_complete_and_private(rig: Rig) -> None:
    done = rig.enrol()
    home = rig.home
    assert done.identity == home.identity().public
    assert done.status is MemberStatus.PENDING
    assert home.root_public() == rig.keys.root.public
    credentials = home.credentials()
    assert b"BEGIN PRIVATE KEY" in credentials.private_key
    assert "BEGIN" not in repr(credentials)
    found = load_configuration(SiteConfiguration, home.configuration_file, variables={})
    assert (found.site, found.coordinator.address) == ("st-anna", "coordinator.example.org:9443")
    assert policy.read(home.policy_file.read_bytes()).default == "ask"
    held = CharterStore(home, own_site="st-anna", accept_all=False).loaded()
    assert held.charter.epoch == 1
    for path in home.path.rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_secret_keys_are_born_at_the_site_and_stay_there(rig: Rig) -> None:
    sent: list[bytes] = []

    def ask(data: bytes, _: bytes) -> bytes:
        sent.append(data)
        return rig.answer(data)

    rig.enrol(ask)
    lines = [line for key in (rig.home.path / "keys").iterdir() for line in key.read_bytes().splitlines()[1:-1]]
    assert lines
    assert not any(line in data for line in lines for data in sent)
    assert rig.asked[0].audit == audit_keys(rig.home.audit, federation=FEDERATION, party="st-anna")


def test_only_the_tokens_authority_is_believed(rig: Rig) -> None:
    believed: list[bytes] = []

    def ask(data: bytes, authority_pem: bytes) -> bytes:
        believed.append(authority_pem)
        return rig.answer(data)

    rig.enrol(ask)
    assert believed == [rig.home.authority_file.read_bytes()]


def test_enrolling_again_is_refused_without_harm(rig: Rig) -> None:
    rig.enrol()
    before = {path: path.read_bytes() for path in rig.home.path.rglob("*") if path.is_file()}
    with pytest.raises(ConfideError) as refused:
        rig.enrol()
    assert refused.value.code == "CFD-E21"
    assert {path: path.read_bytes() for path in rig.home.path.rglob("*") if path.is_file()} == before


def test_a_run_that_was_cut_goes_on_with_the_same_keys(rig: Rig) -> None:
    def cut(data: bytes, _: bytes) -> bytes:
        rig.answer(data)
        raise Unreachable("CFD-L01", "the connection broke")

    with pytest.raises(Unreachable):
        rig.enrol(cut)
    assert not rig.home.configuration_file.exists()
    rig.enrol()
    first, second = rig.asked
    assert (first.identity, first.audit) == (second.identity, second.audit)
    assert not rig.home.begun_file.exists()


def test_a_home_begun_for_one_site_is_not_used_for_another(rig: Rig) -> None:
    def cut(data: bytes, _: bytes) -> bytes:
        raise Unreachable("CFD-L01", "the connection broke")

    with pytest.raises(Unreachable):
        rig.enrol(cut)
    rig.token = tokens.EnrolToken(
        **{**{name: getattr(rig.token, name) for name in rig.token.__slots__}, "site": "chur"}
    )
    with pytest.raises(ConfideError, match=f"was begun for {FEDERATION}/st-anna"):
        rig.enrol()


def test_an_expired_token_leaves_nothing_behind(rig: Rig) -> None:
    rig.clock.sleep(8 * 86_400)
    with pytest.raises(NotAuthenticated) as refused:
        rig.enrol()
    assert refused.value.code == "CFD-E06"
    assert not rig.home.path.exists()


def refuse(rig: Rig, **lies: Any) -> str:
    with pytest.raises(ConfideError) as refused:
        rig.enrol(**lies)
    assert not rig.home.configuration_file.exists()
    assert not rig.home.certificate_file.exists()
    return refused.value.code


def other_certificate(rig: Rig, *, site: str = "st-anna", federation: str = FEDERATION) -> str:
    keys = SiteKeys(site, federation, tls=new_tls_key())
    made = rig.keys.authority.issue_site(federation, site, keys.certificate_request(), now=rig.clock.now())
    return certificate_to_der(made).hex()


def test_a_certificate_that_is_not_for_this_site_and_key_is_refused(rig: Rig) -> None:
    assert refuse(rig, certificate=other_certificate(rig)) == "CFD-E12"
    assert refuse(rig, certificate=other_certificate(rig, site="bern")) == "CFD-E12"
    assert refuse(rig, certificate=other_certificate(rig, federation="other.example.org")) == "CFD-E12"
    assert refuse(rig, certificate="00") == "CFD-E12"


def test_a_certificate_by_another_authority_is_refused(rig: Rig) -> None:
    made = authority()
    keys = SiteKeys()
    foreign = made.issue_site(FEDERATION, "st-anna", keys.certificate_request(), now=rig.clock.now())
    assert refuse(rig, certificate=certificate_to_der(foreign).hex()) == "CFD-E12"
    assert refuse(rig, authority=certificate_to_der(made.certificate).hex()) == "CFD-E12"


def test_a_charter_that_the_root_key_did_not_sign_is_refused(rig: Rig) -> None:
    body, _ = rig.keys.epochs[-1]
    forged = sign_charter(IdentityKey.generate(), body)
    assert refuse(rig, charter_signature=forged.hex()) == "CFD-E17"
    assert refuse(rig, charter="") == "CFD-E17"
    assert refuse(rig, charter_signature="") == "CFD-E17"


def test_a_charter_with_another_authority_is_refused(rig: Rig) -> None:
    other = FederationKeys(root=rig.keys.root, identity=rig.keys.identity)
    body, signature = other.next_epoch()
    assert refuse(rig, charter=body.hex(), charter_signature=signature.hex()) == "CFD-E18"


def test_what_happened_is_in_the_sites_own_log(rig: Rig) -> None:
    assert refuse(rig, certificate="00") == "CFD-E12"
    rig.enrol()
    found = rig.actions()
    assert ("member.enrolled", "refused") in found
    assert found[-2:] == [("member.enrolled", "allowed"), ("charter.changed", "allowed")]
    AuditLog.open(rig.home.audit, clock=rig.clock, process="cli").close()
