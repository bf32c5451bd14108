"""The guest certificate: how a party without a member's certificate may open the one port.

The link has one port, and gRPC for Python can only require a client certificate from everybody on a port or from
nobody. So everybody presents one: a member its own, a newcomer a *guest certificate* from the guest authority,
whose key is derived from a fixed text and therefore public. It says nothing about who holds it, exactly like no
certificate: whoever connects as a guest may call `Enrolment`, which a token or an identity key protects, and is
refused by every `Link` call, which compare the certificate's own bytes with the member's current one.
"""

from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PUBLIC_TEXT: Final = b"confide: the guest authority's key is public on purpose"
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256, FIPS 186-5
_AUTHORITY_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "confide guests (public key, no proof)")])
_GUEST_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "confide guest")])
_LIFETIME: Final = timedelta(days=3650)


def _authority_key() -> ec.EllipticCurvePrivateKey:
    scalar = int.from_bytes(sha256(_PUBLIC_TEXT).digest(), "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(scalar, ec.SECP256R1())


def _builder(now: datetime) -> x509.CertificateBuilder:
    # A guest's clock may be wrong; the certificate proves nothing, so its dates are wide.
    return (
        x509.CertificateBuilder()
        .issuer_name(_AUTHORITY_NAME)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFETIME)
        .not_valid_after(now + _LIFETIME)
    )


def guest_authority_pem(now: datetime) -> bytes:
    """Return the guest authority's certificate, for the server's list of client authorities only."""
    key = _authority_key()
    certificate = (
        _builder(now)
        .subject_name(_AUTHORITY_NAME)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def guest_certificate(now: datetime) -> tuple[bytes, bytes]:
    """Return key and certificate, both PEM, of a guest; made anew for each use."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(now)
        .subject_name(_GUEST_NAME)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(_authority_key(), hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM)
