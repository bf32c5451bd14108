"""A federation's keys, charters and homes for tests: builders in which a test states only what matters to it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audit import note
from federation import enrolment_messages as messages
from federation.certificates import (
    Authority,
    certificate_request,
    certificate_to_der,
    new_authority,
    new_tls_key,
    public_key_digest,
)
from federation.charter import (
    Charter,
    CoordinatorKeys,
    Member,
    Person,
    Role,
    encode_charter,
    next_charter,
    sign_charter,
)
from federation.enrolment_messages import AuditKeys
from federation.identity import IdentityKey
from federation.messages import MemberStatus
from tests.support.audit_logs import events_in

FEDERATION = "heart.example.org"
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass
class TestClock:
    """A clock that stands still until a test moves it."""

    __test__ = False
    at: datetime = NOON

    def now(self) -> datetime:
        return self.at

    def monotonic_s(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def vkey(name: str, kind: int = note.ED25519) -> str:
    """Return the public half of a new key of an audit log."""
    return str(note.VerifierKey(name, kind, IdentityKey.generate().public))


def audit_keys(party: str, federation: str = FEDERATION) -> AuditKeys:
    """Return the public keys of a party's audit log."""
    return AuditKeys(
        log=vkey(f"{federation}/{party}/audit/1"),
        writers=(vkey(f"{federation}/{party}/writer/daemon"), vkey(f"{federation}/{party}/writer/cli")),
        witness=vkey(f"{federation}/{party}/witness", note.COSIGNATURE),
    )


def authority(federation: str = FEDERATION, *, now: datetime = NOON) -> Authority:
    """Return a certificate authority."""
    key = new_tls_key()
    return Authority(new_authority(federation, key, now=now), key)


@dataclass
class SiteKeys:
    """What is born at a site."""

    site: str = "st-anna"
    federation: str = FEDERATION
    identity: IdentityKey = field(default_factory=IdentityKey.generate)
    tls: Any = field(default_factory=new_tls_key)

    def __post_init__(self) -> None:
        self.audit = audit_keys(self.site, self.federation)

    def certificate_request(self) -> bytes:
        return certificate_request(self.tls, federation=self.federation, site=self.site)

    def enrol_request(self, secret: bytes, **changes: Any) -> messages.EnrolRequest:
        """Return a signed request; `changes` are made before signing."""
        request = messages.EnrolRequest(
            federation=self.federation,
            site=self.site,
            secret=secret.hex(),
            certificate_request=self.certificate_request().hex(),
            identity=self.identity.public.hex(),
            audit=self.audit,
        )
        return messages.sign(request.model_copy(update=changes), self.identity)

    def member(self, **changes: Any) -> Member:
        values = {
            "site": self.site,
            "operator": f"Operator of {self.site}",
            "identity": self.identity.public.hex(),
            "tls": public_key_digest(self.tls),
            "status": MemberStatus.ACTIVE,
            "audit": self.audit,
        }
        return Member(**{**values, **changes})


def person(name: str = "alice", role: Role = Role.COORDINATOR) -> Person:
    """Return a person with a new key."""
    return Person(name=name, key=IdentityKey.generate().public.hex(), role=role)


@dataclass
class FederationKeys:
    """A federation's root key, coordinator and the epochs that it has signed."""

    root: IdentityKey = field(default_factory=IdentityKey.generate)
    identity: IdentityKey = field(default_factory=IdentityKey.generate)
    authority: Authority = field(default_factory=authority)
    epochs: list[tuple[bytes, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinator = CoordinatorKeys(
            operator="Coordinating Centre",
            identity=self.identity.public.hex(),
            authority=certificate_to_der(self.authority.certificate).hex(),
            audit=audit_keys("coordinator"),
        )

    def charter(self, *members: Member, people: tuple[Person, ...] = ()) -> Charter:
        """Return a charter with these members, not numbered."""
        return Charter(
            federation=FEDERATION,
            epoch=1,
            previous=None,
            coordinator=self.coordinator,
            members=tuple(sorted(members, key=lambda member: member.site)),
            people=tuple(sorted(people, key=lambda one: one.name)),
        )

    def next_epoch(self, *members: Member, people: tuple[Person, ...] = ()) -> tuple[bytes, bytes]:
        """Sign the next epoch and return its bytes and signature."""
        held = self.epochs[-1][0] if self.epochs else None
        body = encode_charter(next_charter(held, self.charter(*members, people=people)))
        self.epochs.append((body, sign_charter(self.root, body)))
        return self.epochs[-1]


def decided(folder: Path) -> list[tuple[str, str]]:
    """Return action and decision of each entry of the log in an audit folder."""
    found = [(event["action"], event["decision"]) for event in events_in(folder)]
    return [one for one in found if not one[0].startswith("log.")]
