"""Who may take part: invitations, pending sites, members; decided purely from what is stored.

A site passes `invited → pending → active`, and may be suspended, resumed and revoked. The token makes it pending;
only a person who has heard the words of the site's own key over the phone makes it active. A pending site, whose
token somebody else may have used, is withdrawn by `revoke` and can be invited again. Taking away works at once;
giving works from the epoch of the charter that the root key has signed.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from federation.charter import COORDINATOR, Charter, CoordinatorKeys, Member, Person
from federation.edge.clock import rfc3339
from federation.enrolment_messages import AuditKeys, EnrolRequest
from federation.errors import CheckFailed, InvalidInput, NotAuthenticated
from federation.messages import MemberStatus
from federation.tokens import secret_digest
from federation.words import words_match


class InvitationState(StrEnum):
    """Where an invitation is; the last two are final."""

    OPEN = "open"
    PENDING = "pending"
    CONFIRMED = "confirmed"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a site sent with its token: the public half of its keys."""

    identity: str
    tls: str
    audit: AuditKeys


@dataclass(frozen=True, slots=True)
class Invitation:
    """A token that was given out, known by the digest of its secret, and the site that used it."""

    token_digest: str
    site: str
    operator: str
    expires: datetime
    state: InvitationState = InvitationState.OPEN
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """Everything that is stored about who takes part."""

    federation: str
    coordinator: CoordinatorKeys
    invitations: tuple[Invitation, ...] = ()
    members: tuple[Member, ...] = ()
    people: tuple[Person, ...] = ()

    def member(self, site: str) -> Member | None:
        """Return the member called `site`, whatever its status."""
        return next((member for member in self.members if member.site == site), None)

    def waiting(self, site: str) -> Invitation | None:
        """Return the invitation of `site` that is open or pending, if there is one."""
        live = (InvitationState.OPEN, InvitationState.PENDING)
        return next((one for one in self.invitations if one.site == site and one.state in live), None)

    def keys_in_use(self) -> frozenset[str]:
        """Return every identity key that belongs to somebody."""
        pending = (one.candidate.identity for one in self.invitations if one.candidate and one.state in _LIVE)
        members = (member.identity for member in self.members)
        return frozenset([self.coordinator.identity, *pending, *members, *(person.key for person in self.people)])

    def audit_keys_of_others(self, site: str) -> frozenset[str]:
        """Return every audit log's key that belongs to another than `site`: a key in two hands would witness twice."""
        pending = (one for one in self.invitations if one.candidate and one.state in _LIVE and one.site != site)
        parties = [self.coordinator.audit, *(one.candidate.audit for one in pending if one.candidate)]
        parties += [member.audit for member in self.members if member.site != site]
        return frozenset(key for keys in parties for key in keys.public_keys())


_LIVE: Final = (InvitationState.OPEN, InvitationState.PENDING)


def invite(
    membership: Membership, *, site: str, operator: str, token_digest: str, expires: datetime
) -> tuple[Invitation, ...]:
    """Return the invitation of `site`, and the open ones that it replaces, now withdrawn.

    Raises:
        InvalidInput: The name is taken by a member, by a pending site, or by the coordinator.
    """
    if site == COORDINATOR:
        raise InvalidInput("CFD-E14", "no site may be called coordinator")
    member = membership.member(site)
    if member is not None and member.status is not MemberStatus.REVOKED:
        raise InvalidInput("CFD-E14", f"{site} is a member already, run by {member.operator}")
    old = [one for one in membership.invitations if one.site == site and one.state in _LIVE]
    if any(one.state is InvitationState.PENDING for one in old):
        raise InvalidInput(
            "CFD-E14",
            f"{site} has enrolled and waits to be confirmed",
            hint=f"confirm it with `sites confirm {site} --words …`, or `sites revoke {site}` and invite it again",
        )
    new = Invitation(token_digest=token_digest, site=site, operator=operator, expires=expires)
    return (new, *(replace(one, state=InvitationState.WITHDRAWN) for one in old))


def redeem(membership: Membership, request: EnrolRequest, *, tls: str, now: datetime) -> tuple[Invitation, bool]:
    """Return the invitation that `request` makes pending, and whether it is this very site's second call.

    A site whose first answer was lost on the way calls again with the same keys and gets the same answer.

    Args:
        membership: What is stored.
        request: What the site sent, its signature checked.
        tls: Digest of the public key in its certificate request.
        now: The time here.

    Raises:
        NotAuthenticated: The token is unknown, expired, withdrawn, or used by somebody else.
        InvalidInput: The token is for another site, the name is taken, or a key is somebody else's.
    """
    wanted = secret_digest(bytes.fromhex(request.secret))
    found = [one for one in membership.invitations if hmac.compare_digest(one.token_digest, wanted)]
    if not found or found[0].state is InvitationState.WITHDRAWN:
        raise NotAuthenticated("CFD-E08", "the enrolment token is not one that is open here")
    invitation = found[0]
    if invitation.site != request.site:
        raise InvalidInput("CFD-E14", f"the enrolment token is for another site than {request.site}")
    candidate = Candidate(identity=request.identity, tls=tls, audit=request.audit)
    if invitation.state is not InvitationState.OPEN:
        if invitation.candidate == candidate:
            return invitation, True
        raise NotAuthenticated(
            "CFD-E07",
            f"the enrolment token of {request.site} was used before, with other keys",
            hint="tell the coordinator by phone at once: whoever used it must not be confirmed",
        )
    if now >= invitation.expires:
        raise NotAuthenticated(
            "CFD-E06", f"the enrolment token of {request.site} expired on {rfc3339(invitation.expires)}"
        )
    _check_fresh(membership, candidate, request.site)
    return replace(invitation, state=InvitationState.PENDING, candidate=candidate), False


def _check_fresh(membership: Membership, candidate: Candidate, site: str) -> None:
    tls = {member.tls for member in membership.members}
    audit = candidate.audit.public_keys()
    taken = len(set(audit)) != len(audit) or not membership.audit_keys_of_others(site).isdisjoint(audit)
    if taken or candidate.identity in membership.keys_in_use() or candidate.tls in tls:
        raise InvalidInput("CFD-E25", "a key of this site is used by another party already, or was before")


def confirm(membership: Membership, *, site: str, words: str) -> tuple[Invitation, Member]:
    """Return `site`'s invitation, confirmed, and the member that it becomes.

    Raises:
        InvalidInput: No pending site of that name, or words that can't be read.
        CheckFailed: The words are those of another key; the site stays pending.
    """
    invitation = membership.waiting(site)
    if invitation is None or invitation.candidate is None:
        raise _not_pending(membership, site, invitation)
    candidate = invitation.candidate
    if not words_match(words, bytes.fromhex(candidate.identity)):
        raise CheckFailed(
            "CFD-E04",
            f"these are not the words of the key with which {site} enrolled",
            hint=f"read them again with the site; if they still differ, somebody else used the token: "
            f"`sites revoke {site}`, then invite it again over another channel",
        )
    member = Member(
        site=site,
        operator=invitation.operator,
        identity=candidate.identity,
        tls=candidate.tls,
        status=MemberStatus.ACTIVE,
        audit=candidate.audit,
    )
    return replace(invitation, state=InvitationState.CONFIRMED), member


def _not_pending(membership: Membership, site: str, invitation: Invitation | None) -> InvalidInput:
    if invitation is not None:
        return InvalidInput("CFD-E16", f"{site} is invited, and has not enrolled yet")
    member = membership.member(site)
    if member is None:
        return unknown_site(membership, site)
    return InvalidInput("CFD-E16", f"{site} is {member.status.value}, it doesn't wait to be confirmed")


def unknown_site(membership: Membership, site: str) -> InvalidInput:
    """Return the error that says which sites there are."""
    known = sorted({member.site for member in membership.members} | {one.site for one in membership.invitations})
    return InvalidInput("CFD-E15", f"there is no site {site}; there are: {', '.join(known) or 'none'}")


class Verb(StrEnum):
    """What a coordinator does to a site."""

    SUSPEND = "suspend"
    RESUME = "resume"
    REVOKE = "revoke"


_NEXT: Final[dict[tuple[MemberStatus, Verb], MemberStatus]] = {
    (MemberStatus.ACTIVE, Verb.SUSPEND): MemberStatus.SUSPENDED,
    (MemberStatus.SUSPENDED, Verb.RESUME): MemberStatus.ACTIVE,
    (MemberStatus.ACTIVE, Verb.REVOKE): MemberStatus.REVOKED,
    (MemberStatus.SUSPENDED, Verb.REVOKE): MemberStatus.REVOKED,
}


def change(membership: Membership, *, site: str, verb: Verb) -> Member | Invitation:
    """Return the member with its new status, or the invitation that is withdrawn.

    Raises:
        InvalidInput: No such site, or a status in which `verb` means nothing.
    """
    invitation = membership.waiting(site)
    if invitation is not None and verb is Verb.REVOKE:
        return replace(invitation, state=InvitationState.WITHDRAWN)
    member = membership.member(site)
    if member is None:
        if invitation is not None:
            raise InvalidInput("CFD-E16", f"{site} is {standing(membership, None, site)}, so it can't {verb.value}")
        raise unknown_site(membership, site)
    status = _NEXT.get((member.status, verb))
    if status is None:
        raise InvalidInput("CFD-E16", f"{site} is {member.status.value}, so `{verb.value}` changes nothing")
    return member.model_copy(update={"status": status})


def add_person(membership: Membership, person: Person) -> Person:
    """Return `person`, who may now act at the coordinator.

    Raises:
        InvalidInput: The name is taken, or the key is somebody else's.
    """
    if any(one.name == person.name for one in membership.people):
        raise InvalidInput("CFD-E23", f"there is a person {person.name} already")
    if person.key in membership.keys_in_use():
        raise InvalidInput("CFD-E25", "this key belongs to somebody else already")
    return person


def remove_person(membership: Membership, name: str) -> Person:
    """Return the person `name`, who may no longer act.

    Raises:
        InvalidInput: There is none of that name.
    """
    found = next((one for one in membership.people if one.name == name), None)
    if found is None:
        known = ", ".join(one.name for one in membership.people) or "none"
        raise InvalidInput("CFD-E23", f"there is no person {name}; there are: {known}")
    return found


def effective_status(member: Member, charter: Charter | None) -> MemberStatus:
    """Return what `member` is now: what was taken away counts at once, what was given once the root key has signed."""
    if member.status is not MemberStatus.ACTIVE:
        return member.status
    signed = charter.active(member.site) if charter is not None else None
    same = signed is not None and (signed.identity, signed.tls) == (member.identity, member.tls)
    return MemberStatus.ACTIVE if same else MemberStatus.PENDING


def standing(membership: Membership, charter: Charter | None, site: str) -> str:
    """Return the word for `site` in lists: a status, ``invited`` or ``withdrawn``."""
    waits = membership.waiting(site)
    if waits is not None:
        return "invited" if waits.candidate is None else "pending"
    member = membership.member(site)
    return effective_status(member, charter).value if member is not None else "withdrawn"


def proposal(membership: Membership) -> Charter:
    """Return the charter that what is stored amounts to, not yet numbered."""
    return Charter(
        federation=membership.federation,
        epoch=1,
        previous=None,
        coordinator=membership.coordinator,
        members=_by_name(membership.members),
        people=tuple(sorted(membership.people, key=lambda person: person.name)),
    )


def _by_name(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: member.site))


def same_content(one: Charter, other: Charter) -> bool:
    """Return whether two epochs say the same."""
    plain = {"epoch": 1, "previous": None}
    return one.model_copy(update=plain) == other.model_copy(update=plain)
