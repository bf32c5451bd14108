"""Somebody between a new site and its coordinator: what they get to see, and what the site says.

The interposed server is a real TLS server on loopback that keeps every byte which a client sends it after the
handshake. The token's secret must never be among them.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation import tokens
from federation.certificates import (
    Authority,
    Certificate,
    certificate_to_der,
    certificate_to_pem,
    new_authority,
    new_tls_key,
    tls_key_to_pem,
)
from federation.errors import ConfideError
from federation.identity import IdentityKey
from site_client.membership_command import enrol
from tests.support.membership import FEDERATION, SiteKeys

NOW = datetime.now(UTC)
SECRET = b"the secret of the token, 32 byte"


def authority() -> Authority:
    key = new_tls_key()
    return Authority(new_authority(FEDERATION, key, now=NOW - timedelta(days=10)), key)


class Interposed:
    """A TLS server with a certificate of the attacker's choice."""

    def __init__(self, folder: Path, key_pem: bytes, certificate: Certificate) -> None:
        (folder / "key.pem").write_bytes(key_pem)
        (folder / "certificate.pem").write_bytes(certificate_to_pem(certificate))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        self._context.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self.port: int = self._listener.getsockname()[1]
        self.seen = b""
        self.connections = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                plain, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            with plain, contextlib.suppress(OSError):
                plain.settimeout(2)
                with self._context.wrap_socket(plain, server_side=True) as wrapped:
                    while piece := wrapped.recv(4096):
                        self.seen += piece

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def interpose(tmp_path: Path) -> Iterator[list[Interposed]]:
    started: list[Interposed] = []
    yield started
    for one in started:
        one.close()


def token(made: Authority, folder: Path, port: int) -> str:
    text = tokens.encode(
        tokens.EnrolToken(
            federation=FEDERATION,
            site="st-anna",
            address=f"127.0.0.1:{port}",
            authority_der=certificate_to_der(made.certificate),
            root_public=IdentityKey.generate().public,
            secret=SECRET,
            expires=datetime.now(UTC).replace(microsecond=0) + timedelta(days=7),
        )
    )
    (folder / "token").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    return str(folder / "token")


def attack(
    tmp_path: Path, started: list[Interposed], made: Authority, certificate: Certificate, key_pem: bytes
) -> ConfideError:
    server = Interposed(tmp_path, key_pem, certificate)
    started.append(server)
    home = tmp_path / "home"
    with pytest.raises(ConfideError) as refused:
        enrol(
            [
                f"https://127.0.0.1:{server.port}",
                "--token-file",
                token(made, tmp_path, server.port),
                "--home",
                str(home),
            ]
        )
    assert server.connections >= 1
    assert server.seen == b""
    assert not home.exists()
    assert refused.value.exit_status == 3
    return refused.value


def test_a_server_of_another_authority_sees_nothing_and_the_site_says_that_something_is_in_between(
    tmp_path: Path, interpose: list[Interposed]
) -> None:
    key = new_tls_key()
    stranger = authority().issue_server(key.public_key(), ["127.0.0.1"], now=NOW)
    problem = attack(tmp_path, interpose, authority(), stranger, tls_key_to_pem(key))
    assert problem.code == "CFD-E09"
    assert "another authority" in problem.message
    assert "stands in between" in problem.hint


def test_a_certificate_for_another_name_is_refused_with_both_names(tmp_path: Path, interpose: list[Interposed]) -> None:
    made, key = authority(), new_tls_key()
    other = made.issue_server(key.public_key(), ["coordinator.example.org"], now=NOW)
    problem = attack(tmp_path, interpose, made, other, tls_key_to_pem(key))
    assert problem.code == "CFD-E10"
    assert "called 127.0.0.1" in problem.message
    assert "coordinator.example.org" in problem.message


def test_an_expired_certificate_is_refused_with_its_date(tmp_path: Path, interpose: list[Interposed]) -> None:
    made, key = authority(), new_tls_key()
    old = made.issue_server(key.public_key(), ["127.0.0.1"], now=NOW - timedelta(days=5), validity=timedelta(days=1))
    problem = attack(tmp_path, interpose, made, old, tls_key_to_pem(key))
    assert problem.code == "CFD-E11"
    assert f"{old.not_valid_after_utc:%Y-%m-%d}" in problem.message


def test_a_common_name_alone_is_refused(tmp_path: Path, interpose: list[Interposed]) -> None:
    made, key = authority(), new_tls_key()
    only_common_name = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]))
        .issuer_name(made.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - timedelta(hours=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(made.key, hashes.SHA256())
    )
    problem = attack(tmp_path, interpose, made, only_common_name, tls_key_to_pem(key))
    assert problem.code == "CFD-E10"
    assert "only a common name" in problem.message


def test_a_member_that_plays_the_coordinator_with_its_own_certificate_is_refused(
    tmp_path: Path, interpose: list[Interposed]
) -> None:
    made, bern = authority(), SiteKeys("bern")
    own = made.issue_site(FEDERATION, "bern", bern.certificate_request(), now=NOW)
    problem = attack(tmp_path, interpose, made, own, tls_key_to_pem(bern.tls))
    assert problem.code == "CFD-E12"
    assert "member's own" in problem.message


def test_a_closed_port_is_an_unreachable_coordinator_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfideError) as refused:
        enrol(
            [
                f"https://127.0.0.1:{port}",
                "--token-file",
                token(authority(), tmp_path, port),
                "--home",
                str(tmp_path / "h"),
            ]
        )
    assert refused.value.exit_status == 3
    assert not (tmp_path / "h").exists()
