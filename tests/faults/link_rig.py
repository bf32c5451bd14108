"""A coordinator's and a site's end of the link with real TLS on loopback, for tests.

`Federation` makes keys and certificates; `Coordinator` is a backend that notes what it is told; `Site` a handler
that does. Nothing is mocked: gRPC, TLS, signatures and files are the real ones.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from federation import enrolment_messages
from federation.certificates import (
    Authority,
    certificate_from_pem,
    certificate_request,
    certificate_to_der,
    certificate_to_pem,
    new_authority,
    new_tls_key,
    public_key_digest,
    tls_key_to_pem,
)
from federation.errors import ConfideError
from federation.identity import IdentityKey
from federation.link.backend import AttendanceState, Member, Peer
from federation.link.blobs import BlobStore
from federation.link.client import LinkClient
from federation.link.dial import SiteTls
from federation.link.limits import LinkLimits
from federation.link.outbox import MessageIds
from federation.link.route import Route, choose_route, parse_address
from federation.link.server import LinkServer, ServerTls
from federation.link.versions import Verdict
from federation.messages import (
    BlobReference,
    Body,
    Hello,
    HelloReply,
    JobStatus,
    MemberStatus,
    Reason,
    SignedMessage,
    Versions,
)
from tests.support.clocks import MovableClock

NAME = "heart"
VERSIONS = Versions(confide="0.1.0", protocol=1, oldest_protocol=1)
# Quick to act and slow to give up: a busy machine may hold anything up for seconds.
QUICK = LinkLimits(
    heartbeat_s=0.4,
    lost_after_s=600.0,
    resend_s=0.5,
    hello_timeout_s=60.0,
    connect_timeout_s=60.0,
    stall_s=60.0,
    retry_first_s=0.05,
    retry_bound_s=0.5,
    permanent_retry_s=600.0,
)
# For tests of giving up.
NERVOUS = QUICK.model_copy(
    update={"lost_after_s": 2.0, "hello_timeout_s": 2.0, "connect_timeout_s": 3.0, "stall_s": 3.0}
)


def now() -> datetime:
    return datetime.now(UTC)


def until(condition: Callable[[], object], *, within_s: float = 60.0, what: str = "") -> None:
    """Wait until `condition` holds, and fail after `within_s`."""
    ends = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends:
            raise AssertionError(f"not within {within_s} s: {what or condition}")
        time.sleep(0.01)


class Federation:
    """Keys and certificates of one federation."""

    def __init__(self, names: tuple[str, ...] = ("127.0.0.1", "localhost")) -> None:
        self.authority_key = new_tls_key()
        self.authority = Authority(
            new_authority(NAME, self.authority_key, now=now() - timedelta(days=30)), self.authority_key
        )
        self.authority_pem = certificate_to_pem(self.authority.certificate)
        self.coordinator_identity = IdentityKey.generate()
        self.tls = self.server_tls(names)

    def server_tls(
        self, names: tuple[str, ...], *, issued: datetime | None = None, validity: timedelta = timedelta(days=1)
    ) -> ServerTls:
        key = new_tls_key()
        certificate = self.authority.issue_server(key.public_key(), names, now=issued or now(), validity=validity)
        return ServerTls(tls_key_to_pem(key), certificate_to_pem(certificate), self.authority_pem)


class SiteKeys:
    """One site's keys, as born at the site, and the certificate it was given."""

    def __init__(
        self,
        federation: Federation,
        site: str,
        *,
        issued: datetime | None = None,
        validity: timedelta = timedelta(days=1),
    ) -> None:
        self.site = site
        self.federation = federation
        self.identity = IdentityKey.generate()
        self.key: ec.EllipticCurvePrivateKey = new_tls_key()
        self.issue(issued=issued, validity=validity)

    def request(self) -> bytes:
        return certificate_request(self.key, federation=NAME, site=self.site)

    def issue(self, *, issued: datetime | None = None, validity: timedelta = timedelta(days=1)) -> bytes:
        certificate = self.federation.authority.issue_site(
            NAME, self.site, self.request(), now=issued or now(), validity=validity
        )
        self.certificate_pem = certificate_to_pem(certificate)
        return certificate_to_der(certificate)

    def tls(self) -> SiteTls:
        return SiteTls(tls_key_to_pem(self.key), self.certificate_pem)

    def member(self, status: MemberStatus = MemberStatus.ACTIVE) -> Member:
        certificate = certificate_from_pem(self.certificate_pem, name=self.site)
        return Member(status, self.identity.public, public_key_digest(certificate))


class Coordinator:
    """A backend that notes what it is told, with its server."""

    def __init__(
        self,
        federation: Federation,
        folder: Path,
        *,
        limits: LinkLimits = QUICK,
        versions: Versions = VERSIONS,
        tls: ServerTls | None = None,
    ) -> None:
        self.federation = federation
        self.tls = tls or federation.tls
        self.limits = limits
        self.versions = versions
        self.blobs = BlobStore(folder)
        self.members: dict[str, Member] = {}
        self.keys: dict[str, SiteKeys] = {}
        self.received: list[tuple[str, Body]] = []
        self.attendance: list[tuple[str, AttendanceState, datetime]] = []
        self.verdicts: list[Verdict] = []
        self.peers: list[Peer] = []
        self.refused: list[tuple[str, str, str]] = []
        self.enrolments: list[bytes] = []
        self.readable: set[str] = set()
        self.expected: set[tuple[str, BlobReference]] = set()
        self.delivered: list[tuple[str, BlobReference]] = []
        self.before_taking: Callable[[Body], None] = lambda body: None
        self.clock = MovableClock()
        self.server = self._server("127.0.0.1:0")
        self.port = self.server.start()

    def _server(self, listen: str) -> LinkServer:
        return LinkServer(
            listen=listen,
            tls=lambda: self.tls,
            identity=self.federation.coordinator_identity,
            versions=self.versions,
            backend=self,
            blobs=self.blobs,
            limits=self.limits,
            clock=self.clock,
            randomness=secrets.token_bytes,
        )

    def restart(self, *, pause_s: float = 0.0) -> None:
        """Stop the server and start another on the same port, with nothing of its memory."""
        self.server.stop(0.1)
        time.sleep(pause_s)
        self.server = self._server(f"127.0.0.1:{self.port}")
        self.server.start()

    def add(self, keys: SiteKeys, status: MemberStatus = MemberStatus.ACTIVE) -> None:
        self.keys[keys.site] = keys
        self.members[keys.site] = keys.member(status)

    def stop(self) -> None:
        self.server.stop(0.1)

    def member(self, site: str) -> Member | None:
        return self.members.get(site)

    def enrol(self, request: bytes) -> bytes:
        self.enrolments.append(request)
        return b"enrolled:" + request

    def renew(self, request: enrolment_messages.RenewRequest) -> enrolment_messages.RenewReply:
        keys = self.keys[request.site]
        return enrolment_messages.RenewReply(
            certificate=keys.issue().hex(), authority=certificate_to_der(self.federation.authority.certificate).hex()
        )

    def on_hello(self, peer: Peer, hello: Hello, verdict: Verdict) -> HelloReply:
        self.peers.append(peer)
        self.verdicts.append(verdict)
        return HelloReply(message_id=self.server.message_ids.next(), versions=self.versions, status=peer.member.status)

    def on_message(self, site: str, message: SignedMessage, body: Body) -> None:
        self.before_taking(body)
        self.received.append((site, body))

    def on_attendance(self, site: str, state: AttendanceState, since: datetime) -> None:
        self.attendance.append((site, state, since))

    def on_refused(self, site: str, message_id: str, code: str, text: str) -> None:
        self.refused.append((site, message_id, code))

    def may_fetch(self, site: str, reference: BlobReference) -> bool:
        return reference.root in self.readable

    def may_deliver(self, site: str, reference: BlobReference) -> bool:
        return (site, reference) in self.expected

    def on_delivered(self, site: str, reference: BlobReference) -> None:
        self.delivered.append((site, reference))


@dataclass
class Site:
    """A handler that notes what it is told, with its client."""

    keys: SiteKeys
    folder: Path
    port: int
    host: str = "127.0.0.1"
    limits: LinkLimits = QUICK
    versions: Versions = VERSIONS
    environment: dict[str, str] = field(default_factory=dict)
    named: str = ""
    connected: list[HelloReply] = field(default_factory=list)
    lost: list[ConfideError] = field(default_factory=list)
    received: list[Body] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    refused: list[tuple[str, ConfideError]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before_taking: Callable[[Body], None] = lambda body: None
        self.blobs = BlobStore(self.folder)
        self.clock = MovableClock()
        self.client = LinkClient(
            site=self.keys.site,
            route=self.route,
            authority_pem=self.keys.federation.authority_pem,
            tls=self.keys.tls,
            identity=self.keys.identity,
            coordinator_key=lambda: self.keys.federation.coordinator_identity.public,
            handler=self,
            blobs=self.blobs,
            limits=self.limits,
            clock=self.clock,
            randomness=secrets.token_bytes,
        )

    def route(self) -> Route:
        return choose_route(parse_address(f"{self.host}:{self.port}"), self.environment)

    def hello(self, message_id: str) -> Hello:
        return Hello(message_id=message_id, site=self.named or self.keys.site, versions=self.versions, charter_epoch=0)

    def on_connected(self, reply: HelloReply) -> None:
        self.connected.append(reply)

    def on_lost(self, problem: ConfideError) -> None:
        self.lost.append(problem)

    def on_message(self, message: SignedMessage, body: Body) -> None:
        self.before_taking(body)
        self.received.append(body)

    def on_acknowledged(self, message_id: str) -> None:
        self.acknowledged.append(message_id)

    def on_refused(self, message_id: str, problem: ConfideError) -> None:
        self.refused.append((message_id, problem))

    def status_message(self, text: str = "") -> JobStatus:
        return status_message(self.client.message_ids, text)


def status_message(ids: MessageIds, text: str = "") -> JobStatus:
    """Return a small message, told apart by `text`."""
    return JobStatus(message_id=ids.next(), job="heart-0a1b2c", reason=Reason(code="CFD-B01", text=text))


def threads_named(prefix: str) -> list[str]:
    """Return the names of running threads that begin with `prefix`."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


StartSite = Callable[..., Site]
"""What the fixture `start` gives: starts a site's client, by default a member, and waits until it is connected."""
