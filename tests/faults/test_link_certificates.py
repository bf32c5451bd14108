"""Who believes whom: names, dates, authorities, versions, renewal, enrolment, and what each refusal says."""

import secrets
import socket
import ssl
import threading
import time
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation import enrolment_messages
from federation.certificates import (
    Authority,
    certificate_from_der,
    certificate_request,
    certificate_to_pem,
    expiry,
    new_tls_key,
    tls_key_to_pem,
)
from federation.edge.clock import SystemClock, rfc3339
from federation.errors import ConfideError, NotAuthenticated, Unreachable
from federation.identity import IdentityKey
from federation.link import guest
from federation.link import link_pb2 as pb
from federation.link.client import LinkState
from federation.link.enrol import enrol
from federation.link.guest import guest_certificate
from federation.link.route import choose_route, parse_address
from federation.link.wire import LINK
from federation.messages import MemberStatus, Versions
from tests.faults.link_rig import NAME, QUICK, Coordinator, Federation, Site, SiteKeys, StartSite, now, until

pytestmark = pytest.mark.enable_socket


def refusal_of(site: Site) -> ConfideError:
    """Wait for the first refusal, and return it."""
    until(lambda: site.lost, what="a refusal")
    return site.lost[0]


# --- the server -----------------------------------------------------------------------------------------------


def test_another_name_than_those_of_the_certificate_is_refused_with_both(
    coordinator: Coordinator, start: StartSite
) -> None:
    coordinator.tls = coordinator.federation.server_tls(("coordinator.example.org", "10.0.0.7"))
    coordinator.server.reload_tls()
    problem = refusal_of(site := start(wait=False))
    assert problem.code == "CFD-E10"
    assert "127.0.0.1" in problem.message
    assert "coordinator.example.org" in problem.message
    assert "10.0.0.7" in problem.message
    assert problem.hint
    assert site.client.status().state is LinkState.BLOCKED
    time.sleep(1.5)
    assert len(site.lost) == 1


def test_a_certificate_with_a_common_name_only_is_refused(
    coordinator: Coordinator, start: StartSite, federation: Federation
) -> None:
    key = new_tls_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]))
        .issuer_name(federation.authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now() - timedelta(hours=1))
        .not_valid_after(now() + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(federation.authority_key, hashes.SHA256())
    )
    coordinator.tls = type(coordinator.tls)(
        tls_key_to_pem(key), certificate_to_pem(certificate), federation.authority_pem
    )
    coordinator.server.reload_tls()
    problem = refusal_of(start(wait=False))
    assert problem.code == "CFD-E10"
    assert "only a common name" in problem.message


def test_a_lapsed_server_certificate_is_named_with_its_date(coordinator: Coordinator, start: StartSite) -> None:
    ended = now() - timedelta(days=1)
    coordinator.tls = coordinator.federation.server_tls(
        ("127.0.0.1",), issued=ended - timedelta(days=1), validity=timedelta(days=1)
    )
    coordinator.server.reload_tls()
    problem = refusal_of(start(wait=False))
    assert problem.code == "CFD-E11"
    assert rfc3339(ended) in problem.message
    assert problem.hint


def test_a_server_of_another_authority_is_refused_as_something_in_between(
    coordinator: Coordinator, start: StartSite
) -> None:
    coordinator.tls = Federation().tls
    coordinator.server.reload_tls()
    problem = refusal_of(start(wait=False))
    assert problem.code == "CFD-E09"
    assert "stands in between" in problem.hint


def test_something_that_speaks_no_tls_is_named(coordinator: Coordinator, start: StartSite) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def answer_plainly() -> None:
            listener.settimeout(0.1)
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        server = threading.Thread(target=answer_plainly)
        server.start()
        try:
            site = start(wait=False, port=listener.getsockname()[1])
            problem = refusal_of(site)
            site.client.stop()
        finally:
            over.set()
            server.join()
    assert problem.code == "CFD-L04"


def test_a_renewed_server_certificate_is_used_without_a_restart_and_open_streams_stay(
    coordinator: Coordinator, start: StartSite
) -> None:
    site = start()
    coordinator.tls = coordinator.federation.server_tls(("127.0.0.1",))
    coordinator.server.reload_tls()
    shown = ssl.PEM_cert_to_DER_cert(coordinator.tls.certificate_pem.decode())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for _ in range(2):
        with (
            socket.create_connection(("127.0.0.1", coordinator.port)) as plain,
            context.wrap_socket(plain) as wrapped,
        ):
            assert wrapped.version() == "TLSv1.3"
            assert wrapped.getpeercert(binary_form=True) == shown
    body = site.status_message()
    site.client.send(body)
    until(lambda: site.acknowledged == [body.message_id])
    assert site.lost == []


def test_a_server_key_that_isnt_the_certificates_is_refused_and_the_old_one_stays(
    coordinator: Coordinator, start: StartSite
) -> None:
    good = coordinator.tls
    coordinator.tls = type(good)(tls_key_to_pem(new_tls_key()), good.certificate_pem, good.authority_pem)
    with pytest.raises(ConfideError) as refused:
        coordinator.server.reload_tls()
    assert refused.value.code == "CFD-E02"
    start()


def test_two_coordinators_on_one_port_are_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    second = Coordinator(coordinator.federation, tmp_path / "second")
    second.stop()
    with pytest.raises(ConfideError) as refused:
        second._server(f"127.0.0.1:{coordinator.port}").start()
    assert refused.value.code == "CFD-L30"


# --- the site -------------------------------------------------------------------------------------------------


def test_a_lapsed_site_certificate_is_known_before_anything_is_sent_and_renewed_as_a_guest(
    coordinator: Coordinator, start: StartSite, federation: Federation
) -> None:
    keys = SiteKeys(federation, "cleveland", issued=now() - timedelta(days=2), validity=timedelta(days=1))
    coordinator.add(keys)
    site = start(wait=False)
    problem = refusal_of(site)
    assert problem.code == "CFD-E11"
    assert "this site" in problem.message
    assert site.client.status().state is LinkState.BLOCKED
    reply = renew(site)
    assert expiry(certificate_from_der(bytes.fromhex(reply.certificate))) > now()
    site.client.reconnect()
    until(site.client.connected)


def renew(site: Site, signer: IdentityKey | None = None) -> enrolment_messages.RenewReply:
    request = enrolment_messages.RenewRequest(
        site=site.named or site.keys.site, certificate_request=site.keys.request().hex()
    )
    request = enrolment_messages.sign(request, signer or site.keys.identity)
    return enrolment_messages.decode(
        enrolment_messages.RenewReply, site.client.renew(enrolment_messages.encode(request))
    )


def test_a_renewal_while_connected_loses_no_message(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    before = site.client.status().certificate_ends
    renew(site)
    sent = [site.client.send(site.status_message(f"{number}")) for number in range(20)]
    site.client.reconnect()
    until(lambda: sorted(site.acknowledged) == sent)
    until(site.client.connected)
    after = site.client.status().certificate_ends
    assert before is not None
    assert after is not None
    assert after >= before
    assert sorted(body.message_id for _, body in coordinator.received) == sent


def test_a_renewal_that_another_key_signed_is_refused(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    with pytest.raises(NotAuthenticated) as refused:
        renew(site, IdentityKey.generate())
    assert refused.value.code == "CFD-E01"


def test_a_revoked_site_renews_nothing_not_even_as_a_guest(
    coordinator: Coordinator, start: StartSite, federation: Federation
) -> None:
    keys = SiteKeys(federation, "cleveland", issued=now() - timedelta(days=2), validity=timedelta(days=1))
    coordinator.add(keys, MemberStatus.REVOKED)
    site = start(wait=False)
    with pytest.raises(NotAuthenticated) as refused:
        renew(site)
    assert refused.value.code == "CFD-E24"


def test_a_member_renews_for_itself_only(coordinator: Coordinator, start: StartSite, federation: Federation) -> None:
    other = SiteKeys(federation, "hungary")
    coordinator.add(other)
    site = start()
    request = enrolment_messages.RenewRequest(site="hungary", certificate_request=other.request().hex())
    request = enrolment_messages.sign(request, other.identity)
    with pytest.raises(ConfideError) as refused:
        site.client.renew(enrolment_messages.encode(request))
    assert refused.value.code == "CFD-L08"


def test_an_attendance_ends_when_its_certificate_does(
    coordinator: Coordinator, start: StartSite, federation: Federation
) -> None:
    keys = SiteKeys(federation, "cleveland", validity=timedelta(seconds=300))
    coordinator.add(keys)
    site = start()
    coordinator.clock.forward(301)
    problem = refusal_of(site)
    assert problem.code == "CFD-E11"
    until(lambda: not coordinator.server.connected("cleveland"))
    coordinator.clock.forward(-301)
    keys.issue()
    site.client.reconnect()
    until(site.client.connected)


@pytest.mark.parametrize("method", ["Attend", "Fetch", "Staged", "Renew", "Deliver"])
def test_a_guest_may_call_nothing_of_the_link(coordinator: Coordinator, federation: Federation, method: str) -> None:
    key_pem, certificate_pem = guest_certificate(now())
    with channel_with(coordinator, federation, key_pem, certificate_pem) as channel:
        assert code_of(channel, method) == "CFD-L05"


def test_a_certificate_that_names_a_member_but_comes_from_the_guests_authority_is_refused(
    coordinator: Coordinator, federation: Federation
) -> None:
    coordinator.add(SiteKeys(federation, "cleveland"))
    key = new_tls_key()
    fake = Authority(x509.load_pem_x509_certificate(guest.guest_authority_pem(now())), guest._authority_key())
    request = certificate_request(key, federation=NAME, site="cleveland")
    certificate = fake.issue_site(NAME, "cleveland", request, now=now())
    with channel_with(coordinator, federation, tls_key_to_pem(key), certificate_to_pem(certificate)) as channel:
        assert code_of(channel, "Fetch") == "CFD-L05"


def test_a_certificate_of_another_federation_doesnt_even_complete_tls(
    coordinator: Coordinator, federation: Federation
) -> None:
    stranger = SiteKeys(Federation(), "cleveland")
    coordinator.add(SiteKeys(federation, "cleveland"))
    files = stranger.tls()
    with channel_with(coordinator, federation, files.key_pem, files.certificate_pem) as channel:
        assert code_of(channel, "Fetch") == "StatusCode.UNAVAILABLE"


def test_without_a_certificate_nothing_can_be_called(coordinator: Coordinator, federation: Federation) -> None:
    credentials = grpc.ssl_channel_credentials(federation.authority_pem)
    with grpc.secure_channel(
        f"127.0.0.1:{coordinator.port}", credentials, options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        assert code_of(channel, "Fetch") == "StatusCode.UNAVAILABLE"


def channel_with(coordinator: Coordinator, federation: Federation, key: bytes, certificate: bytes) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(federation.authority_pem, key, certificate)
    return grpc.secure_channel(f"127.0.0.1:{coordinator.port}", credentials, options=[("grpc.enable_http_proxy", 0)])


def code_of(channel: grpc.Channel, method: str) -> str:
    """Call `method` of the link with an empty request and return the code of the refusal."""
    path = f"/{LINK}/{method}"
    calls = {
        "Attend": lambda: next(channel.stream_stream(path)(iter([b""]), timeout=60)),
        "Fetch": lambda: next(channel.unary_stream(path)(b"", timeout=60)),
        "Deliver": lambda: channel.stream_unary(path)(iter([b""]), timeout=60),
        "Staged": lambda: channel.unary_unary(path)(b"", timeout=60),
        "Renew": lambda: channel.unary_unary(path)(b"", timeout=60),
    }
    with pytest.raises(grpc.RpcError) as refused:
        calls[method]()
    return dict(refused.value.trailing_metadata() or ()).get("confide-code", str(refused.value.code()))


# --- versions -------------------------------------------------------------------------------------------------


def test_an_older_site_that_is_understood_is_accepted_with_a_notice(coordinator: Coordinator, start: StartSite) -> None:
    site = start(versions=Versions(confide="0.0.9", protocol=1, oldest_protocol=1))
    assert "upgrade the site when convenient" in site.client.status().notice
    assert coordinator.verdicts[0].upgrade is None


def test_a_site_that_is_too_old_is_refused_and_told_to_upgrade_itself(tmp_path: Path, federation: Federation) -> None:
    newer = Coordinator(
        federation, tmp_path / "newer", versions=Versions(confide="3.0.0", protocol=3, oldest_protocol=2)
    )
    keys = SiteKeys(federation, "cleveland")
    newer.add(keys)
    site = Site(keys, tmp_path / "site", newer.port)
    site.client.start()
    try:
        problem = refusal_of(site)
        assert problem.code == "CFD-L07"
        assert "confide 3.0.0" in problem.message
        assert "confide 0.1.0" in problem.message
        assert problem.hint == "upgrade confide at the site"
        assert site.client.status().state is LinkState.BLOCKED
        assert newer.attendance == []
    finally:
        site.client.stop()
        newer.stop()


def test_a_coordinator_that_is_too_old_is_named_as_the_side_to_upgrade(
    coordinator: Coordinator, start: StartSite
) -> None:
    site = start(wait=False, versions=Versions(confide="3.0.0", protocol=3, oldest_protocol=2))
    problem = refusal_of(site)
    assert problem.code == "CFD-L07"
    assert problem.hint == "upgrade confide at the coordinator"


# --- enrolment ------------------------------------------------------------------------------------------------


def enrol_at(port: int, authority_pem: bytes, request: bytes = b"request", host: str = "127.0.0.1") -> bytes:
    return enrol(
        route=choose_route(parse_address(f"{host}:{port}"), {}),
        authority_pem=authority_pem,
        request=request,
        limits=QUICK,
        clock=SystemClock(),
    )


def test_a_newcomer_enrols_on_the_same_port(coordinator: Coordinator, federation: Federation) -> None:
    assert enrol_at(coordinator.port, federation.authority_pem) == b"enrolled:request"


def test_nothing_of_an_enrolment_reaches_a_server_of_another_authority(
    coordinator: Coordinator, federation: Federation
) -> None:
    with pytest.raises(NotAuthenticated) as refused:
        enrol_at(coordinator.port, Federation().authority_pem, secrets.token_bytes(32))
    assert refused.value.code == "CFD-E09"
    assert coordinator.enrolments == []


def test_nothing_of_an_enrolment_reaches_a_server_by_another_name(
    coordinator: Coordinator, federation: Federation
) -> None:
    coordinator.tls = federation.server_tls(("coordinator.example.org",))
    coordinator.server.reload_tls()
    with pytest.raises(NotAuthenticated) as refused:
        enrol_at(coordinator.port, federation.authority_pem)
    assert refused.value.code == "CFD-E10"
    assert coordinator.enrolments == []


def test_an_enrolment_where_nobody_listens_says_so(federation: Federation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable) as refused:
        enrol_at(port, federation.authority_pem)
    assert refused.value.code == "CFD-L01"


def test_enrolments_are_bounded_in_a_minute(federation: Federation, tmp_path: Path) -> None:
    limits = QUICK.model_copy(update={"max_enrolments_per_minute_count": 2})
    made = Coordinator(federation, tmp_path / "few", limits=limits)
    try:
        for _ in range(2):
            enrol_at(made.port, federation.authority_pem)
        with pytest.raises(Unreachable) as refused:
            enrol_at(made.port, federation.authority_pem)
        assert refused.value.code == "CFD-L13"
        assert len(made.enrolments) == 2
    finally:
        made.stop()


def test_the_enrolment_service_has_no_method_of_the_link(coordinator: Coordinator, federation: Federation) -> None:
    key_pem, certificate_pem = guest_certificate(now())
    with channel_with(coordinator, federation, key_pem, certificate_pem) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/confide.link.v1.Enrolment/Fetch")(pb.Document().SerializeToString(), timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
