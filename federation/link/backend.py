"""What the link asks of the coordinator: one interface, so that the link itself decides nothing."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from federation.enrolment_messages import RenewReply, RenewRequest
from federation.link.versions import Verdict
from federation.messages import BlobReference, Body, Hello, HelloReply, MemberStatus, SignedMessage


@dataclass(frozen=True, slots=True)
class Member:
    """What the coordinator knows of a site.

    Attributes:
        status: Pending, suspended and revoked sites get no work; revoked and suspended ones aren't let in.
        identity_key: Ed25519, 32 raw bytes.
        tls_key: `federation.certificates.public_key_digest` of its TLS key.
    """

    status: MemberStatus
    identity_key: bytes
    tls_key: str


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a call, proved: the site, what it is, and from where it called."""

    site: str
    member: Member
    address: str
    certificate_ends: datetime


class AttendanceState(StrEnum):
    """Whether a site can receive work now."""

    CONNECTED = "connected"
    LOST = "lost"


class LinkBackend(Protocol):
    """The coordinator behind the link. Calls come from several threads, for one site's messages one at a time.

    A `ConfideError` raised here is told to the other side with its code and message (no data in it, then); any other
    exception is logged here, and told as a passing fault.
    """

    def member(self, site: str) -> Member | None:
        """Return what is known of `site` now. Asked for every call and message: it must be quick."""
        ...

    def enrol(self, request: bytes) -> bytes:
        """Return the answer to an enrolment, both as `federation.enrolment_messages`. The caller is unproved."""
        ...

    def renew(self, request: RenewRequest) -> RenewReply:
        """Return a new certificate; the link has checked that the member itself signed `request`."""
        ...

    def on_hello(self, peer: Peer, hello: Hello, verdict: Verdict) -> HelloReply:
        """Return the reply to a site that begins to attend. The link itself fills in versions, upgrade and pace."""
        ...

    def on_message(self, site: str, message: SignedMessage, body: Body) -> None:
        """Take a signed message over, durably; it is acknowledged when this returns.

        At least once: after a restart of the coordinator a message may come again.
        """
        ...

    def on_attendance(self, site: str, state: AttendanceState, since: datetime) -> None:
        """Note that `site` can, or can no longer, receive work."""
        ...

    def on_refused(self, site: str, message_id: str, code: str, text: str) -> None:
        """Note that `site` finally refused a message that was sent to it."""
        ...

    def on_witness(self, site: str, call: Body) -> Body:
        """Return the answer to a call of `federation.witness_messages`, which the site itself signed.

        It has the call's message id. What it says as a witness is durable before it is returned.
        """
        ...

    def may_fetch(self, site: str, reference: BlobReference) -> bool:
        """Return whether `site` may read this blob."""
        ...

    def may_deliver(self, site: str, reference: BlobReference) -> bool:
        """Return whether this blob, of exactly this size, is expected of `site`."""
        ...

    def on_delivered(self, site: str, reference: BlobReference) -> None:
        """Note that a blob is complete, verified and durable in the store. It may be told more than once."""
        ...
