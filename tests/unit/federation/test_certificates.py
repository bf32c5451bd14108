import base64
from collections.abc import Iterator
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation.certificates import (
    Authority,
    Certificate,
    authority_from_der,
    certificate_from_der,
    certificate_from_pem,
    certificate_problem,
    certificate_request,
    certificate_to_der,
    certificate_to_pem,
    check_site_certificate,
    names_of,
    new_tls_key,
    public_key_digest,
    read_request,
    renewal_due,
    site_uri,
    tls_key_from_pem,
    tls_key_to_pem,
)
from federation.errors import ConfigurationWrong, InvalidInput, NotAuthenticated
from tests.support.membership import FEDERATION, NOON, SiteKeys, authority

# The library warns of a serial number that isn't positive; a changed byte makes one now and then.
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")


def server(made: Authority, *names: str) -> Certificate:
    return made.issue_server(new_tls_key().public_key(), names, now=NOON)


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (("coordinator.example.org",), "coordinator.example.org"),
        (("coordinator.example.org",), "Coordinator.Example.ORG."),
        (("localhost", "127.0.0.1"), "127.0.0.1"),
        (("::1",), "0:0:0:0:0:0:0:1"),
        (("*.example.org",), "a.example.org"),
    ],
)
def test_a_server_is_believed_under_the_names_in_its_certificate(names: tuple[str, ...], host: str) -> None:
    made = authority()
    assert certificate_problem(server(made, *names), made.certificate, host=host, now=NOON) is None


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (("localhost",), "127.0.0.1"),
        (("localhost",), "coordinator"),
        (("localhost",), "coordinator.example.org"),
        (("127.0.0.1",), "localhost"),
        (("127.0.0.1",), "127.0.0.2"),
        (("*.example.org",), "a.b.example.org"),
        (("*.example.org",), "example.org"),
    ],
)
def test_under_another_name_the_message_shows_both_names_and_what_to_do(names: tuple[str, ...], host: str) -> None:
    made = authority()
    problem = certificate_problem(server(made, *names), made.certificate, host=host, now=NOON)
    assert problem is not None
    assert (problem.code, problem.exit_status) == ("CFD-E10", 3)
    assert f"called {host}" in problem.message
    assert all(name in problem.message for name in names)
    assert "link.names" in problem.hint


def hand_made(made: Authority, *, san: x509.SubjectAlternativeName | None, usage: x509.ObjectIdentifier) -> Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(made.certificate.subject)
        .public_key(new_tls_key().public_key())
        .serial_number(1)
        .not_valid_before(NOON)
        .not_valid_after(NOON + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if san is not None:
        builder = builder.add_extension(san, critical=False)
    return builder.sign(made.key, hashes.SHA256())


def test_a_common_name_alone_names_nobody() -> None:
    made = authority()
    only_common_name = hand_made(made, san=None, usage=ExtendedKeyUsageOID.SERVER_AUTH)
    problem = certificate_problem(only_common_name, made.certificate, host="localhost", now=NOON)
    assert problem is not None
    assert problem.code == "CFD-E10"
    assert "only a common name" in problem.message


def test_another_authority_is_refused_as_something_in_between() -> None:
    made, other = authority(), authority()
    problem = certificate_problem(server(other, "localhost"), made.certificate, host="localhost", now=NOON)
    assert problem is not None
    assert problem.code == "CFD-E09"
    assert "another authority" in problem.message


@pytest.mark.parametrize(
    ("passed", "word"), [(timedelta(days=91), "ended on 2026-05-30"), (-timedelta(hours=1), "begins on")]
)
def test_outside_its_time_a_certificate_is_refused_with_whose_it_is_and_both_dates(
    passed: timedelta, word: str
) -> None:
    made = authority(now=NOON - timedelta(days=1))
    shown = server(made, "localhost")
    problem = certificate_problem(shown, made.certificate, host="localhost", now=NOON + passed)
    assert problem is not None
    assert problem.code == "CFD-E11"
    assert word in problem.message
    assert "localhost" in problem.message


def test_an_expired_authority_is_refused() -> None:
    made = authority(now=NOON - timedelta(days=3649))
    shown = made.issue_server(new_tls_key().public_key(), ["localhost"], now=NOON, validity=timedelta(days=90))
    assert shown.not_valid_after_utc == made.certificate.not_valid_after_utc
    with pytest.raises(NotAuthenticated, match="can issue no other"):
        made.issue_server(new_tls_key().public_key(), ["localhost"], now=NOON + timedelta(days=2))


def test_a_member_can_not_play_the_coordinator_with_its_own_certificate() -> None:
    made, keys = authority(), SiteKeys()
    own = made.issue_site(FEDERATION, "st-anna", keys.certificate_request(), now=NOON)
    problem = certificate_problem(own, made.certificate, host="st-anna", now=NOON)
    assert problem is not None
    assert problem.code == "CFD-E12"


def test_a_sites_certificate_names_the_site_and_its_federation() -> None:
    made, keys = authority(), SiteKeys()
    shown = made.issue_site(FEDERATION, "st-anna", keys.certificate_request(), now=NOON)
    assert names_of(shown) == ["confide://heart.example.org/st-anna"]
    assert check_site_certificate(shown, made.certificate, federation=FEDERATION, now=NOON) == "st-anna"
    assert public_key_digest(shown) == public_key_digest(keys.tls)


def test_a_sites_certificate_counts_only_in_its_federation_in_its_time_and_from_its_authority() -> None:
    made, keys = authority(), SiteKeys()
    shown = made.issue_site(FEDERATION, "st-anna", keys.certificate_request(), now=NOON)
    for pinned, federation, now in [
        (authority().certificate, FEDERATION, NOON),
        (made.certificate, "other.example.org", NOON),
        (made.certificate, FEDERATION, NOON + timedelta(days=91)),
    ]:
        with pytest.raises(NotAuthenticated):
            check_site_certificate(shown, pinned, federation=federation, now=now)
    with pytest.raises(NotAuthenticated):
        check_site_certificate(server(made, "localhost"), made.certificate, federation=FEDERATION, now=NOON)


def other_request(key: ec.EllipticCurvePrivateKey, common: str, *uris: str) -> bytes:
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )


@pytest.mark.parametrize(
    "request_der",
    [
        certificate_request(new_tls_key(), federation=FEDERATION, site="other"),
        certificate_request(new_tls_key(), federation="other.example.org", site="st-anna"),
        other_request(new_tls_key(), "st-anna", site_uri(FEDERATION, "st-anna"), site_uri(FEDERATION, "other")),
        other_request(new_tls_key(), "other", site_uri(FEDERATION, "st-anna")),
        other_request(ec.generate_private_key(ec.SECP384R1()), "st-anna", site_uri(FEDERATION, "st-anna")),
        certificate_request(new_tls_key(), federation=FEDERATION, site="st-anna")[:-1] + b"\x00",
        b"",
        b"\x30\x00",
    ],
)
def test_a_request_for_other_names_or_with_another_kind_of_key_is_refused(request_der: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        authority().issue_site(FEDERATION, "st-anna", request_der, now=NOON)
    assert refused.value.code == "CFD-E13"


def test_a_certificate_is_renewed_in_its_last_thirty_days_or_last_third() -> None:
    made, keys = authority(), SiteKeys()
    long = made.issue_site(FEDERATION, "st-anna", keys.certificate_request(), now=NOON)
    assert not renewal_due(long, now=NOON + timedelta(days=59))
    assert renewal_due(long, now=NOON + timedelta(days=61))
    short = made.issue_site(FEDERATION, "st-anna", keys.certificate_request(), now=NOON, validity=timedelta(minutes=10))
    assert not renewal_due(short, now=NOON)
    assert renewal_due(short, now=NOON + timedelta(minutes=6))


def test_an_authority_must_be_one() -> None:
    made = authority()
    assert authority_from_der(certificate_to_der(made.certificate)) == made.certificate
    for der in (certificate_to_der(server(made, "localhost")), b"", b"junk"):
        with pytest.raises(NotAuthenticated):
            authority_from_der(der)


def test_a_certificate_with_an_rsa_key_is_refused() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOON)
        .not_valid_after(NOON + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    with pytest.raises(NotAuthenticated, match="another kind"):
        certificate_from_der(certificate_to_der(made))


def test_files_that_windows_touched_are_read() -> None:
    made, key = authority(), new_tls_key()
    spoiled = b"\xef\xbb\xbf" + certificate_to_pem(made.certificate).replace(b"\n", b"\r\n")
    assert certificate_from_pem(spoiled, name="a") == made.certificate
    again = tls_key_from_pem(b"\xef\xbb\xbf" + tls_key_to_pem(key).replace(b"\n", b"\r\n"), name="a")
    assert public_key_digest(again) == public_key_digest(key)
    for content in (b"", b"junk"):
        with pytest.raises(ConfigurationWrong, match="certificates/x"):
            certificate_from_pem(content, name="certificates/x")
        with pytest.raises(ConfigurationWrong, match="keys/x"):
            tls_key_from_pem(content, name="keys/x")


def test_the_authoritys_secret_key_is_not_shown() -> None:
    assert "<hidden>" in repr(authority())


def flipped(data: bytes) -> Iterator[bytes]:
    """Yield `data` with each byte changed in turn, in its lowest bit, its highest bit and all bits."""
    for place in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            yield data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


# A bit string has a byte that counts its unused bits; a signature reads the same under two of its values now and then.
# So what is let through must be, to the last byte, what was signed.


def test_a_certificate_with_any_byte_changed_is_refused_or_convinces_nobody() -> None:
    made = authority()
    shown = server(made, "coordinator.example.org")
    for data in flipped(certificate_to_der(shown)):
        try:
            read = certificate_from_der(data)
        except NotAuthenticated:
            continue
        problem = certificate_problem(read, made.certificate, host="coordinator.example.org", now=NOON)
        assert problem is not None or read.tbs_certificate_bytes == shown.tbs_certificate_bytes


def test_an_authority_with_any_byte_changed_is_refused() -> None:
    shown = authority().certificate
    for data in flipped(certificate_to_der(shown)):
        try:
            read = authority_from_der(data)
        except NotAuthenticated:
            continue
        assert read.tbs_certificate_bytes == shown.tbs_certificate_bytes


def test_a_certificate_request_with_any_byte_changed_is_refused() -> None:
    asked = certificate_request(new_tls_key(), federation=FEDERATION, site="mercy")
    signed = read_request(asked, federation=FEDERATION, site="mercy").tbs_certrequest_bytes
    for data in flipped(asked):
        try:
            read = read_request(data, federation=FEDERATION, site="mercy")
        except InvalidInput:
            continue
        assert read.tbs_certrequest_bytes == signed


def test_a_file_of_a_version_that_doesnt_exist_is_named() -> None:
    der = certificate_to_der(authority().certificate)
    other = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020101"), 1)
    assert other != der
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(other) + b"-----END CERTIFICATE-----\n"
    with pytest.raises(ConfigurationWrong):
        certificate_from_pem(pem, name="ca.pem")
