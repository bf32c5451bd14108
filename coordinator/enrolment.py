"""What the coordinator answers to a site that enrols or renews its certificate, and what it knows of one that calls.

Each answer is whole, or an error whose code and message may be sent back: it holds nothing but what the caller itself
said. The link server calls these from several threads. Nobody becomes a member here: a used token makes a site
pending, and a person who has heard the site's words makes it a member.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from coordinator.membership import Invitation, Membership, redeem
from coordinator.membership_store import Change, MembershipStore, PutInvitation, PutMember
from federation.canonical import digest
from federation.certificates import (
    Authority,
    certificate_to_der,
    public_key_digest,
    read_request,
)
from federation.edge.clock import Clock
from federation.enrolment_messages import EnrolReply, EnrolRequest, RenewReply, RenewRequest, check, decode, encode
from federation.errors import ConfideError, InvalidInput, NotAuthenticated, OutOfOrder
from federation.identity import check_public_key
from federation.link.backend import Member
from federation.messages import MemberStatus
from federation.tokens import secret_matches

FRESH_S: Final = 1.0
"""How long what was read of a site holds: a suspension by another process takes effect within it."""
_TOLD: Final = frozenset({"CFD-E06", "CFD-E07", "CFD-E14", "CFD-E25", "CFD-E13"})


class Witnessed(Protocol):
    """Where enrolments are recorded: durable when a method returns."""

    def refused(self, site: str, code: str, request_digest: str) -> None:
        """Record that the request of `site`, which knew a token's secret, was refused with `code`."""
        ...


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The service.

    Attributes:
        store: Who takes part.
        authority: Issues the certificates.
        federation: Name of the federation.
        clock: The time here.
        validity: Life of a site's certificate.
        witnessed: Where refusals are recorded.
        lately: The active members read within the last `FRESH_S`; a round asks many times a second.
    """

    store: MembershipStore
    authority: Authority
    federation: str
    clock: Clock
    validity: timedelta
    witnessed: Witnessed
    lately: dict[str, tuple[float, Member]] = field(default_factory=dict, init=False)

    def enrol(self, data: bytes) -> bytes:
        """Return the reply to an `EnrolRequest`; the site is pending from now on. The same call again is harmless.

        Raises:
            InvalidInput: Malformed, for another name, or with a weak or foreign key; nothing was changed.
            NotAuthenticated: Not signed by its own key; or the token is unknown, expired or used by somebody else.
                Nothing was changed.
        """
        request = decode(EnrolRequest, data)
        check_public_key(bytes.fromhex(request.identity))
        check(request, bytes.fromhex(request.identity))
        if request.federation != self.federation:
            raise InvalidInput("CFD-E13", f"this is the federation {self.federation}")
        try:
            tls, certificate = self._certify(request.site, request.certificate_request)
            self._check_audit_names(request)
            issued = self.store.decide(self._redemption(request, tls, certificate))
            self.lately.pop(request.site, None)
        except ConfideError as problem:
            if problem.code in _TOLD and self._knows_a_secret(request):
                self.witnessed.refused(request.site, problem.code, digest(data))
            raise
        signed = self.store.charter()
        if signed is None:
            raise OutOfOrder("CFD-E20", "this federation has no signed charter yet")
        reply = EnrolReply(
            status=MemberStatus.PENDING,
            certificate=issued.hex(),
            authority=self._authority_hex(),
            epoch=signed.charter.epoch,
            charter=signed.body.hex(),
            charter_signature=signed.signature.hex(),
        )
        return encode(reply)

    def _redemption(
        self, request: EnrolRequest, tls: str, certificate: bytes
    ) -> Callable[[Membership], tuple[list[Change], bytes]]:
        def decision(membership: Membership) -> tuple[list[Change], bytes]:
            invitation, _ = redeem(membership, request, tls=tls, now=self.clock.now())
            return [PutInvitation(invitation, certificate)], certificate

        return decision

    def renew(self, request: RenewRequest) -> RenewReply:
        """Return a newer certificate for the same key, so for the same member.

        It is enough that the member's identity key signed, so a site whose certificate has lapsed comes back by
        itself.

        Raises:
            InvalidInput: For another name, or for another key than the member's.
            NotAuthenticated: No such member, revoked, or not signed by the member's identity key.
        """
        known = self.store.standing(request.site)
        if known is None:
            raise NotAuthenticated("CFD-E12", f"{request.site} is no member of {self.federation}")
        if known.status is MemberStatus.REVOKED:
            raise NotAuthenticated("CFD-E24", f"{request.site} is revoked")
        check(request, bytes.fromhex(known.identity))
        key, certificate = self._certify(request.site, request.certificate_request)
        if key != known.tls:
            raise InvalidInput("CFD-E13", f"the certificate request of {request.site} is for another key than before")
        self.store.decide(_new_certificate(request.site, certificate))
        self.lately.pop(request.site, None)
        return RenewReply(certificate=certificate.hex(), authority=self._authority_hex())

    def member(self, site: str) -> Member | None:
        """Return what the link must know of `site`, or None for a site that never enrolled.

        An active member's standing may be `FRESH_S` old; whoever isn't let in is looked up each time.
        """
        now_s = self.clock.monotonic_s()
        read_s, member = self.lately.get(site, (-math.inf, None))
        if member is not None and now_s - read_s < FRESH_S:
            return member
        self.lately.pop(site, None)
        known = self.store.standing(site)
        if known is None:
            return None
        member = Member(status=known.status, identity_key=bytes.fromhex(known.identity), tls_key=known.tls)
        if member.status is MemberStatus.ACTIVE:
            self.lately[site] = (now_s, member)
        return member

    def _certify(self, site: str, request_hex: str) -> tuple[str, bytes]:
        request = bytes.fromhex(request_hex)
        key = public_key_digest(read_request(request, federation=self.federation, site=site))
        certificate = self.authority.issue_site(
            self.federation, site, request, now=self.clock.now(), validity=self.validity
        )
        return key, certificate_to_der(certificate)

    def _check_audit_names(self, request: EnrolRequest) -> None:
        own = f"{self.federation}/{request.site}/"
        names = (request.audit.log, *request.audit.writers, request.audit.witness)
        if not all(name.startswith(own) for name in names) or len(set(names)) != len(names):
            raise InvalidInput("CFD-E13", f"the keys of the audit log are not named as those of {request.site}")

    def _knows_a_secret(self, request: EnrolRequest) -> bool:
        secret = bytes.fromhex(request.secret)
        return any(secret_matches(secret, one.token_digest) for one in self.store.membership().invitations)

    def _authority_hex(self) -> str:
        return certificate_to_der(self.authority.certificate).hex()


def _new_certificate(site: str, certificate: bytes) -> Callable[[Membership], tuple[list[Change], None]]:
    def decision(membership: Membership) -> tuple[list[Change], None]:
        member = membership.member(site)
        if member is not None and member.status is not MemberStatus.REVOKED:
            return [PutMember(member, certificate)], None
        waits: Invitation | None = membership.waiting(site)
        return ([PutInvitation(waits, certificate)] if waits is not None else []), None

    return decision
