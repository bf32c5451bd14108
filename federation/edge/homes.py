"""The two kinds of home, and what lies where in them; loads keys and certificates.

Every path of a home is named here once. Folders are made by `init` and `enrol`; loaders check permissions, accept
what Windows did to a PEM file, and say which file is wrong.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from federation.certificates import (
    Authority,
    Certificate,
    TlsKey,
    certificate_from_pem,
    certificate_to_pem,
    tls_key_from_pem,
    tls_key_to_pem,
)
from federation.edge.files import read_bytes, read_secret
from federation.errors import ConfigurationWrong
from federation.identity import IdentityKey

NOT_READY: Final = "CFD-E22"


def load_identity(path: Path) -> IdentityKey:
    """Return the Ed25519 key in the file `path`.

    Raises:
        ConfigurationWrong: Missing, open to other accounts, or no such key.
    """
    return IdentityKey.from_pem(read_secret(path), name=str(path))


def load_tls_key(path: Path) -> TlsKey:
    """Return the P-256 key in the file `path`.

    Raises:
        ConfigurationWrong: Missing, open to other accounts, or no such key.
    """
    return tls_key_from_pem(read_secret(path), name=str(path))


def load_certificate(path: Path) -> Certificate:
    """Return the certificate in the file `path`.

    Raises:
        ConfigurationWrong: Missing or unreadable.
    """
    return certificate_from_pem(read_bytes(path), name=str(path))


@dataclass(frozen=True, slots=True)
class TlsCredentials:
    """What gRPC takes: this party's key and certificate, and the authority, all PEM."""

    private_key: bytes
    certificate: bytes
    authority: bytes

    def __repr__(self) -> str:
        return "TlsCredentials(<hidden>)"


@dataclass(frozen=True, slots=True)
class _Home:
    path: Path

    @property
    def lock_folder(self) -> Path:
        """Return the folder to hand to `HomeLock`."""
        return self.path

    @property
    def identity_file(self) -> Path:
        """Return the party's Ed25519 key."""
        return self.path / "keys" / "identity.key"

    @property
    def tls_file(self) -> Path:
        """Return the key of the party's TLS certificate."""
        return self.path / "keys" / "tls.key"

    @property
    def authority_file(self) -> Path:
        """Return the certificate of the federation's authority."""
        return self.path / "certificates" / "authority.pem"

    @property
    def root_public_file(self) -> Path:
        """Return the public half of the federation's root key, hex: what charters are checked with."""
        return self.path / "certificates" / "root.pub"

    @property
    def charter_folder(self) -> Path:
        """Return the folder of charter epochs."""
        return self.path / "charter"

    @property
    def blobs(self) -> Path:
        """Return the folder of content-addressed files."""
        return self.path / "blobs"

    @property
    def audit(self) -> Path:
        """Return the folder of the audit log."""
        return self.path / "audit"

    @property
    def trust(self) -> Path:
        """Return the folder of pinned audit keys: a policy file for each party's log."""
        return self.path / "trust"

    @property
    def logs(self) -> Path:
        """Return the folder for traces of internal errors."""
        return self.path / "logs"

    def identity(self) -> IdentityKey:
        """Return the party's identity key."""
        return load_identity(self.identity_file)

    def authority_certificate(self) -> Certificate:
        """Return the certificate of the federation's authority."""
        return load_certificate(self.authority_file)

    def root_public(self) -> bytes:
        """Return the federation's root key, public half.

        Raises:
            ConfigurationWrong: Missing, or no key.
        """
        text = read_bytes(self.root_public_file, limit_bytes=1024).decode("utf-8", "replace").strip("\ufeff \t\r\n")
        try:
            public = bytes.fromhex(text)
        except ValueError:
            public = b""
        if len(public) != 32:
            raise ConfigurationWrong("CFD-E02", f"{self.root_public_file} holds no public key in hex")
        return public


@dataclass(frozen=True, slots=True)
class CoordinatorHome(_Home):
    """The coordinator's home."""

    @property
    def configuration_file(self) -> Path:
        """Return ``coordinator.yaml``."""
        return self.path / "coordinator.yaml"

    @property
    def database(self) -> Path:
        """Return the embedded database."""
        return self.path / "coordinator.db"

    @property
    def root_file(self) -> Path:
        """Return the federation's root key. `serve` never opens it; it may be moved away."""
        return self.path / "root" / "root.key"

    @property
    def authority_key_file(self) -> Path:
        """Return the secret key of the certificate authority."""
        return self.path / "keys" / "authority.key"

    @property
    def certificate_file(self) -> Path:
        """Return the server's certificate."""
        return self.path / "certificates" / "coordinator.pem"

    @property
    def contracts(self) -> Path:
        """Return the folder of data contracts."""
        return self.path / "contracts"

    def person_key_file(self, name: str) -> Path:
        """Return the signing key made for the person `name`."""
        return self.path / "people" / f"{name}.key"

    def token_file(self, name: str) -> Path:
        """Return the API token made for the person `name`."""
        return self.path / "tokens" / f"{name}.token"

    def folders(self) -> tuple[Path, ...]:
        """Return every folder that `init` makes."""
        names = ("root", "keys", "certificates", "charter", "blobs", "audit", "trust", "people", "tokens", "contracts")
        return (self.path, *(self.path / name for name in (*names, "logs")))

    def certificate(self) -> Certificate:
        """Return the server's certificate."""
        return load_certificate(self.certificate_file)

    def credentials(self) -> TlsCredentials:
        """Return what the server's port needs.

        Raises:
            ConfigurationWrong: `init` has not run, or a file is wrong.
        """
        return _credentials(self, self.certificate_file, "run `confide coordinator init` first")

    def certificate_authority(self) -> Authority:
        """Return the authority with its secret key."""
        return Authority(self.authority_certificate(), load_tls_key(self.authority_key_file))


@dataclass(frozen=True, slots=True)
class SiteHome(_Home):
    """A site's home."""

    @property
    def configuration_file(self) -> Path:
        """Return ``site.yaml``."""
        return self.path / "site.yaml"

    @property
    def policy_file(self) -> Path:
        """Return ``policy.yaml``, edited by the site alone."""
        return self.path / "policy.yaml"

    @property
    def database(self) -> Path:
        """Return the database of data sets, approvals and jobs."""
        return self.path / "site.db"

    @property
    def ledger(self) -> Path:
        """Return the database of the privacy budget."""
        return self.path / "ledger.db"

    @property
    def certificate_file(self) -> Path:
        """Return the site's certificate."""
        return self.path / "certificates" / "site.pem"

    @property
    def begun_file(self) -> Path:
        """Return the file that says for whom an enrolment was begun, until it is complete."""
        return self.path / "enrolment.begun"

    @property
    def jobs(self) -> Path:
        """Return the folder with a folder for each job."""
        return self.path / "jobs"

    def folders(self) -> tuple[Path, ...]:
        """Return every folder that `enrol` makes."""
        names = ("keys", "certificates", "charter", "blobs", "audit", "trust", "jobs", "logs")
        return (self.path, *(self.path / name for name in names))

    def certificate(self) -> Certificate:
        """Return the site's certificate."""
        return load_certificate(self.certificate_file)

    def credentials(self) -> TlsCredentials:
        """Return what a channel to the coordinator needs.

        Raises:
            ConfigurationWrong: `enrol` has not run, or a file is wrong.
        """
        return _credentials(self, self.certificate_file, "run `confide site enrol` first")


def _credentials(home: CoordinatorHome | SiteHome, certificate_file: Path, first: str) -> TlsCredentials:
    missing = [path for path in (home.tls_file, certificate_file, home.authority_file) if not path.exists()]
    if missing:
        raise ConfigurationWrong(NOT_READY, f"{home.path} lacks {missing[0].relative_to(home.path)}", hint=first)
    return TlsCredentials(
        private_key=tls_key_to_pem(load_tls_key(home.tls_file)),
        certificate=certificate_to_pem(load_certificate(certificate_file)),
        authority=certificate_to_pem(home.authority_certificate()),
    )
