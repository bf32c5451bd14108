"""The federation's own certificates: one authority, a server certificate for the coordinator, one for each site.

Keys are ECDSA P-256. The server certificate names the host of the federation's address as DNS name or IP address; a
site's names the site twice, as common name and as ``confide://federation/site``. Names are taken from the subject
alternative names only: a certificate that has just a common name is refused. A refusal says which name was used and
which names the certificate has, and which file to renew until when. All functions are pure but for the making of keys
and serial numbers; the time is an argument.
"""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation.edge.clock import rfc3339
from federation.errors import ConfideError, ConfigurationWrong, InvalidInput, NotAuthenticated
from federation.identity import tidy_pem

DEFAULT_VALIDITY: Final = timedelta(days=90)
AUTHORITY_VALIDITY: Final = timedelta(days=3650)
RENEW_BEFORE: Final = timedelta(days=30)
CLOCK_SKEW: Final = timedelta(minutes=5)
UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)
"""What a certificate or a request by somebody else can raise while it is read; not all are ValueErrors."""
URI_SCHEME: Final = "confide"

Certificate = x509.Certificate
TlsKey = ec.EllipticCurvePrivateKey


# --- keys and files -------------------------------------------------------------------------------------------


def new_tls_key() -> TlsKey:
    """Return a new P-256 key from the operating system's random source."""
    return ec.generate_private_key(ec.SECP256R1())


def tls_key_to_pem(key: TlsKey) -> bytes:
    """Return the secret key as PKCS#8 PEM, for a file with mode 0600."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def tls_key_from_pem(content: bytes, *, name: str) -> TlsKey:
    """Return the P-256 key in PEM `content`; `name` stands for its file in messages.

    Raises:
        ConfigurationWrong: No key, a key of another kind, or one with a passphrase.
    """
    try:
        key = load_pem_private_key(tidy_pem(content), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationWrong("CFD-E02", f"{name} holds no private key in PEM that can be read") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigurationWrong("CFD-E02", f"{name} holds a key of another kind, needed is ECDSA P-256")
    return key


def certificate_to_pem(certificate: Certificate) -> bytes:
    """Return `certificate` as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def certificate_to_der(certificate: Certificate) -> bytes:
    """Return `certificate` as DER."""
    return certificate.public_bytes(Encoding.DER)


def certificate_from_pem(content: bytes, *, name: str) -> Certificate:
    """Return the first certificate in PEM `content`; `name` stands for its file in messages.

    Raises:
        ConfigurationWrong: There is none that can be read.
    """
    try:
        return x509.load_pem_x509_certificate(tidy_pem(content))
    except UNREADABLE:
        raise ConfigurationWrong("CFD-E02", f"{name} holds no certificate in PEM that can be read") from None


def certificate_from_der(content: bytes) -> Certificate:
    """Return the certificate in DER `content`.

    Raises:
        NotAuthenticated: It can't be read, or its key is not P-256.
    """
    try:
        certificate = x509.load_der_x509_certificate(content)
        key = certificate.public_key()
        _read_all(certificate)
    except UNREADABLE:
        raise NotAuthenticated("CFD-E12", "a certificate can't be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise NotAuthenticated("CFD-E12", "a certificate has a key of another kind than ECDSA P-256")
    return certificate


def _read_all(certificate: Certificate) -> None:
    """Read what the library reads only when it is asked, so that a bent field is found here and not in a check."""
    names_of(certificate)
    common_name_of(certificate)
    _ = (certificate.issuer, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def authority_from_der(content: bytes) -> Certificate:
    """Return the authority's certificate in DER `content`.

    Raises:
        NotAuthenticated: It can't be read, may not issue certificates, or isn't signed by its own key.
    """
    certificate = certificate_from_der(content)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
    except (*UNREADABLE, TypeError, InvalidSignature):
        raise NotAuthenticated("CFD-E12", "the authority's certificate is not one of an authority") from None
    if not constraints.ca:
        raise NotAuthenticated("CFD-E12", "the authority's certificate may not issue others")
    return certificate


def public_key_digest(of: Certificate | x509.CertificateSigningRequest | TlsKey) -> str:
    """Return SHA-256 of the SubjectPublicKeyInfo, in hex: what a charter and a token name a key by."""
    der = of.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def certificate_digest(certificate: Certificate) -> str:
    """Return SHA-256 of the certificate's DER, in hex."""
    return hashlib.sha256(certificate_to_der(certificate)).hexdigest()


# --- issuing --------------------------------------------------------------------------------------------------


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def new_authority(
    federation: str, key: TlsKey, *, now: datetime, validity: timedelta = AUTHORITY_VALIDITY
) -> Certificate:
    """Return the self-signed certificate of the authority of `federation`."""
    subject = _name(f"{federation} authority")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority's certificate with its secret key; only the coordinator has one."""

    certificate: Certificate
    key: TlsKey

    def __repr__(self) -> str:
        return f"Authority(<hidden>, {public_key_digest(self.certificate)[:16]}…)"

    def issue_server(
        self,
        key: ec.EllipticCurvePublicKey,
        names: Sequence[str],
        *,
        now: datetime,
        validity: timedelta = DEFAULT_VALIDITY,
    ) -> Certificate:
        """Return the coordinator's certificate for `names`, each a DNS name or an IP address."""
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._issue(names[0], key, alternatives, ExtendedKeyUsageOID.SERVER_AUTH, now, validity)

    def issue_site(
        self, federation: str, site: str, request_der: bytes, *, now: datetime, validity: timedelta = DEFAULT_VALIDITY
    ) -> Certificate:
        """Return the certificate of `site` for the key in its certificate request.

        Raises:
            InvalidInput: The request can't be read, is for another name, has a weak key or a wrong signature.
        """
        request = read_request(request_der, federation=federation, site=site)
        key = request.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidInput("CFD-E13", "the certificate request has a key of another kind than ECDSA P-256")
        alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(site_uri(federation, site))])
        return self._issue(site, key, alternatives, ExtendedKeyUsageOID.CLIENT_AUTH, now, validity)

    def _issue(
        self,
        common: str,
        key: ec.EllipticCurvePublicKey,
        alternatives: x509.SubjectAlternativeName,
        usage: x509.ObjectIdentifier,
        now: datetime,
        validity: timedelta,
    ) -> Certificate:
        issuer = self.certificate
        end = min(now + validity, issuer.not_valid_after_utc)
        if end <= now:
            raise NotAuthenticated(
                "CFD-E11", f"the authority's certificate ended on {rfc3339(end)}: it can issue no other"
            )
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(issuer.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - CLOCK_SKEW, issuer.not_valid_before_utc))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(alternatives, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def site_uri(federation: str, site: str) -> str:
    """Return the name of a site in its certificate."""
    return f"{URI_SCHEME}://{federation}/{site}"


def certificate_request(key: TlsKey, *, federation: str, site: str) -> bytes:
    """Return a certificate request, DER, of `site` for its own key."""
    uri = x509.UniformResourceIdentifier(site_uri(federation, site))
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_name(site))
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )


def read_request(request_der: bytes, *, federation: str, site: str) -> x509.CertificateSigningRequest:
    """Return the certificate request if it is by the holder of its key and for `site` of `federation`, and no other.

    Raises:
        InvalidInput: Otherwise.
    """
    try:
        request = x509.load_der_x509_csr(request_der)
        key = request.public_key()
        signed = request.is_signature_valid
        common = [str(part.value) for part in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        alternatives = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*UNREADABLE, InvalidSignature):
        raise InvalidInput("CFD-E13", "the certificate request can't be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput("CFD-E13", "the certificate request has a key of another kind than ECDSA P-256")
    if not signed:
        raise InvalidInput("CFD-E13", "the certificate request is not signed by its own key")
    names = [*common, *(str(name.value) for name in alternatives)]
    if names != [site, site_uri(federation, site)]:
        raise InvalidInput("CFD-E13", f"the certificate request is for another name than {site} of {federation}")
    return request


# --- checking -------------------------------------------------------------------------------------------------


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.lower().rstrip("."))


def names_of(certificate: Certificate) -> list[str]:
    """Return the names for which `certificate` stands: its subject alternative names, and nothing else."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def common_name_of(certificate: Certificate) -> str:
    """Return the subject's common name, or an empty text."""
    return next((str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)), "")


def _covers(pattern: str, host: str) -> bool:
    # A wildcard stands for exactly one label, the first (RFC 9525 §6.3).
    if pattern.startswith("*."):
        label, _, rest = host.partition(".")
        return bool(label) and rest == pattern[2:].lower()
    return pattern.lower() == host


def _names_host(certificate: Certificate, host: str) -> bool:
    wanted = _general_name(host)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    if isinstance(wanted, x509.IPAddress):
        return wanted.value in names.get_values_for_type(x509.IPAddress)
    return any(_covers(name, str(wanted.value)) for name in names.get_values_for_type(x509.DNSName))


def lifetime_problem(certificate: Certificate, *, now: datetime, name: str) -> ConfideError | None:
    """Return what is wrong with the time at which `certificate` is used; `name` says whose it is, or its file."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    subject = common_name_of(certificate)
    if now >= end:
        return NotAuthenticated(
            "CFD-E11", f"{name}: the certificate of {subject} ended on {rfc3339(end)}, now is {rfc3339(now)}"
        )
    if now < start:
        return NotAuthenticated(
            "CFD-E11", f"{name}: the certificate of {subject} begins on {rfc3339(start)}, now is {rfc3339(now)}"
        )
    return None


def _issued_by(certificate: Certificate, authority: Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, TypeError, InvalidSignature):
        return False
    return True


def _may(certificate: Certificate, usage: x509.ObjectIdentifier) -> bool:
    try:
        return usage in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except UNREADABLE:
        return False


def certificate_problem(
    certificate: Certificate, authority: Certificate, *, host: str, now: datetime
) -> ConfideError | None:
    """Return why `certificate` doesn't make its holder the coordinator at `host`, or None if it does.

    Args:
        certificate: What the server showed.
        authority: The authority pinned at enrolment.
        host: The name or address by which the server was called.
        now: The time here.
    """
    if not _issued_by(certificate, authority):
        return NotAuthenticated(
            "CFD-E09",
            f"{host} showed '{common_name_of(certificate)}', by another authority than this federation's",
            hint="a proxy that opens TLS, or another server, stands in between: ask your network's operator",
        )
    late = lifetime_problem(certificate, now=now, name=host) or lifetime_problem(authority, now=now, name="authority")
    if late is not None:
        return late
    if not _may(certificate, ExtendedKeyUsageOID.SERVER_AUTH):
        return NotAuthenticated("CFD-E12", f"{host} showed a certificate that is not for a server: a member's own")
    if not _names_host(certificate, host):
        names = ", ".join(names_of(certificate)) or "none (only a common name, which doesn't count)"
        return NotAuthenticated(
            "CFD-E10",
            f"the coordinator was called {host}, its certificate has the names: {names}",
            hint="call it by one of these, or add the name to `link.names` in coordinator.yaml and "
            "run `confide coordinator certificate renew`",
        )
    return None


def check_site_certificate(certificate: Certificate, authority: Certificate, *, federation: str, now: datetime) -> str:
    """Return the id of the site that `certificate` stands for.

    Raises:
        NotAuthenticated: Another authority, outside its time, not a client's, or not named as a site of `federation`.
    """
    if not _issued_by(certificate, authority):
        raise NotAuthenticated("CFD-E12", "the certificate is by another authority than the federation's")
    late = lifetime_problem(certificate, now=now, name="site")
    if late is not None:
        raise late
    site = common_name_of(certificate)
    if not _may(certificate, ExtendedKeyUsageOID.CLIENT_AUTH) or names_of(certificate) != [site_uri(federation, site)]:
        raise NotAuthenticated("CFD-E12", f"the certificate is not one of a site of {federation}")
    return site


def time_left(certificate: Certificate, *, now: datetime) -> timedelta:
    """Return how long `certificate` still holds; negative after its end."""
    return certificate.not_valid_after_utc - now


def renewal_due(certificate: Certificate, *, now: datetime, before: timedelta = RENEW_BEFORE) -> bool:
    """Return whether to renew now: `before` its end, or in the last third of a shorter life."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return time_left(certificate, now=now) <= min(before, life / 3)


def expiry(certificate: Certificate) -> datetime:
    """Return when `certificate` ends, UTC."""
    return certificate.not_valid_after_utc.astimezone(UTC)
