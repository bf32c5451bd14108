"""The charter: who takes part, by epoch, each signed by the federation's root key; pure.

It lists the members with their operators, identity and TLS keys, status and the keys of their audit logs; the people
who may submit, approve or audit; and the coordinator's keys. An epoch names the digest of the one before, so a site
that holds one takes only the next one, and nobody can show two sites two histories that both end in the same epoch
without being found out as soon as they compare. Nothing disappears: a member that leaves stays, as revoked.

A new epoch takes effect at a site at once for what it takes away. What it gives counts only after the site's own
operator, or the policy line `members: accept`, has accepted it: `AcceptedCharter` keeps which members a site knows, by
site id, operator and identity key together. A member that isn't accepted counts as colluding in the site's floors and
never as a witness, so a coordinator that also holds the root key can't invent sites to unmask one.
"""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, ValidationError, model_validator

from federation import canonical
from federation.enrolment_messages import AuditKeys, PublicKey
from federation.errors import InvalidInput, NotAuthenticated, OutOfOrder, PeerMisbehaved
from federation.identity import IdentityKey, check_public_key, check_signature
from federation.messages import Body, Digest, HexBytes, MemberStatus, SiteName, Token

CHARTER_KIND: Final = "charter-epoch"
COORDINATOR: Final = "coordinator"
MAX_MEMBERS: Final = 4096
MAX_CHARTER_BYTES: Final = 16 << 20

Operator = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]{1,128}$")]
PersonName = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._@+-]{0,62}[A-Za-z0-9])?$")]
FederationName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]


class Role(StrEnum):
    """What a person may do at the coordinator."""

    COORDINATOR = "coordinator"
    COMPLIANCE = "compliance"
    VIEWER = "viewer"


class Member(Body):
    """One site.

    `tls` is the SHA-256 of the public key of its certificate; a certificate may be renewed for that key without a new
    epoch.
    """

    site: SiteName
    operator: Operator
    identity: PublicKey
    tls: Digest
    status: MemberStatus
    audit: AuditKeys


class Person(Body):
    """Someone who acts at the coordinator. A plan by somebody with the role coordinator is signed with `key`."""

    name: PersonName
    key: PublicKey
    role: Role


class CoordinatorKeys(Body):
    """The coordinator: its identity key, its certificate authority (DER in hex), the keys of its audit log."""

    operator: Operator
    identity: PublicKey
    authority: Annotated[HexBytes, Field(max_length=2 * 65_536)]
    audit: AuditKeys


class Charter(Body):
    """One epoch of the charter; `previous` is the digest of the epoch before, None in epoch 1."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    federation: FederationName
    epoch: Annotated[int, Field(ge=1, le=2**31)]
    previous: Digest | None
    coordinator: CoordinatorKeys
    members: Annotated[tuple[Member, ...], Field(max_length=MAX_MEMBERS)] = ()
    people: Annotated[tuple[Person, ...], Field(max_length=MAX_MEMBERS)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sites = [member.site for member in self.members]
        names = [person.name for person in self.people]
        keys = [
            self.coordinator.identity,
            *(member.identity for member in self.members),
            *(person.key for person in self.people),
        ]
        tls = [member.tls for member in self.members]
        if sites != sorted(set(sites)) or names != sorted(set(names)):
            raise ValueError("members and people must be sorted by name, each once")
        if COORDINATOR in sites:
            raise ValueError("no site may be called coordinator")
        if len(set(keys)) != len(keys) or len(set(tls)) != len(tls):
            raise ValueError("two members share a key")
        if (self.epoch == 1) != (self.previous is None):
            raise ValueError("exactly the first epoch has none before it")
        if any(member.status is MemberStatus.PENDING for member in self.members):
            raise ValueError("a pending site is in no charter")
        return self

    def member(self, site: str) -> Member | None:
        """Return the member called `site`, if there is one, whatever its status."""
        return next((member for member in self.members if member.site == site), None)

    def active(self, site: str) -> Member | None:
        """Return the member called `site`, if it is active in this epoch."""
        member = self.member(site)
        return member if member is not None and member.status is MemberStatus.ACTIVE else None

    def person(self, name: str) -> Person | None:
        """Return the person called `name`, if there is one."""
        return next((person for person in self.people if person.name == name), None)


def encode_charter(charter: Charter) -> bytes:
    """Return the canonical bytes of `charter`, which the root key signs."""
    return canonical.encode(charter.model_dump(mode="json"))


def charter_digest(body: bytes) -> str:
    """Return the digest by which the next epoch and the audit log name this one."""
    return hashlib.sha256(body).hexdigest()


def sign_charter(root: IdentityKey, body: bytes) -> bytes:
    """Return the signature of the federation's root key over a charter's canonical bytes."""
    return root.sign(CHARTER_KIND, body)


def open_charter(root_public: bytes, body: bytes, signature: bytes, previous: bytes | None) -> Charter:
    """Return the charter in `body`, if it is genuine and follows from the one held.

    Args:
        root_public: The federation's root key, as the token or this party's own home pins it.
        body: Canonical bytes.
        signature: 64 bytes.
        previous: The bytes of the epoch held; None if this party holds none yet, when any epoch may be the first.

    Raises:
        NotAuthenticated: Another key signed it, or it doesn't follow: an epoch is skipped, an old one is shown again,
            or it belongs to another history. Nothing was taken.
        PeerMisbehaved: The same epoch was signed twice with different content. Nothing was taken; keep both as
            evidence.
        InvalidInput: The root key signed something malformed. Nothing was taken.
    """
    try:
        check_signature(root_public, CHARTER_KIND, body, signature)
    except NotAuthenticated:
        raise NotAuthenticated("CFD-E17", "the charter is not signed by this federation's root key") from None
    charter = read_charter(body)
    if root_public.hex() in (charter.coordinator.identity, *(member.identity for member in charter.members)):
        raise InvalidInput("CFD-E19", "the charter uses the root key as a party's own key")
    if previous is not None:
        _check_follows(charter, body, previous)
    return charter


def read_charter(body: bytes) -> Charter:
    """Return the charter in `body`, whose signature is checked elsewhere.

    Raises:
        InvalidInput: Not canonical, not of the schema, contradicting itself, or with a weak key.
    """
    try:
        canonical.decode(body, limit_bytes=MAX_CHARTER_BYTES)
        charter = Charter.model_validate_json(body)
    except canonical.NotCanonical as problem:
        raise InvalidInput("CFD-E19", f"the charter can't be read: {problem}") from None
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "whole"
        raise InvalidInput("CFD-E19", f"the charter is malformed in {where}: {first['msg']}") from None
    for key in (charter.coordinator.identity, *(member.identity for member in charter.members)):
        check_public_key(bytes.fromhex(key))
    return charter


def _check_follows(charter: Charter, body: bytes, previous: bytes) -> None:
    held = read_charter(previous)
    if charter.federation != held.federation:
        raise NotAuthenticated("CFD-E18", f"the charter is of {charter.federation}, this party is in {held.federation}")
    if charter.epoch == held.epoch and body != previous:
        raise PeerMisbehaved("CFD-E18", f"epoch {charter.epoch} of the charter was signed twice, with other content")
    if charter.epoch != held.epoch + 1:
        raise NotAuthenticated(
            "CFD-E18", f"epoch {charter.epoch} of the charter was shown, held is {held.epoch}, next is {held.epoch + 1}"
        )
    if charter.previous != charter_digest(previous):
        raise NotAuthenticated("CFD-E18", f"epoch {charter.epoch} of the charter follows another epoch {held.epoch}")
    gone = {member.site for member in held.members} - {member.site for member in charter.members}
    if gone:
        raise NotAuthenticated(
            "CFD-E18", f"epoch {charter.epoch} of the charter leaves out members: {', '.join(sorted(gone))}"
        )
    for member in held.members:
        now = charter.member(member.site)
        if now is not None and now.identity != member.identity and member.status is not MemberStatus.REVOKED:
            raise NotAuthenticated(
                "CFD-E18", f"epoch {charter.epoch} of the charter changes the key of {member.site}, which isn't revoked"
            )


# --- what changed ---------------------------------------------------------------------------------------------


class ChangeKind(StrEnum):
    """What happened to a member, a person or the coordinator from one epoch to the next."""

    ADDED = "added"
    CHANGED = "changed"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    REVOKED = "revoked"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Change:
    """One line of what a new epoch changes; `what` is ``member``, ``person`` or ``coordinator``."""

    what: str
    name: str
    kind: ChangeKind


def changes(old: Charter | None, new: Charter) -> tuple[Change, ...]:
    """Return what `new` changes, members first, in the order of names; everything is new if there is no `old`."""
    found = [*_member_changes(old, new), *_person_changes(old, new)]
    if old is not None and old.coordinator != new.coordinator:
        found.append(Change("coordinator", COORDINATOR, ChangeKind.CHANGED))
    return tuple(found)


def _member_changes(old: Charter | None, new: Charter) -> Iterable[Change]:
    for member in new.members:
        before = old.member(member.site) if old else None
        if before is None:
            yield Change("member", member.site, ChangeKind.ADDED)
        elif before != member:
            yield Change("member", member.site, _status_change(before, member))


def _status_change(before: Member, after: Member) -> ChangeKind:
    if (before.identity, before.operator) != (after.identity, after.operator):
        return ChangeKind.ADDED
    if before.status is after.status:
        return ChangeKind.CHANGED
    return {
        MemberStatus.ACTIVE: ChangeKind.RESUMED,
        MemberStatus.SUSPENDED: ChangeKind.SUSPENDED,
        MemberStatus.REVOKED: ChangeKind.REVOKED,
        MemberStatus.PENDING: ChangeKind.CHANGED,
    }[after.status]


def _person_changes(old: Charter | None, new: Charter) -> Iterable[Change]:
    before = {person.name: person for person in old.people} if old else {}
    for person in new.people:
        if person.name not in before:
            yield Change("person", person.name, ChangeKind.ADDED)
        elif before[person.name] != person:
            yield Change("person", person.name, ChangeKind.CHANGED)
    present = {person.name for person in new.people}
    for name in sorted(set(before) - present):
        yield Change("person", name, ChangeKind.REMOVED)


# --- what a site accepts --------------------------------------------------------------------------------------


class Acceptance(Body):
    """A site's answer to one member, bound to the operator and the key that it had when the answer was given."""

    site: SiteName
    operator: Operator
    identity: PublicKey
    accepted: bool
    by: Token


@dataclass(frozen=True, slots=True)
class AcceptedCharter:
    """The newest epoch that a site holds, and which of its members the site has accepted.

    Attributes:
        own_site: This site; it accepts itself.
        body: The canonical bytes of the epoch.
        charter: The same, read.
        answers: The operator's answers, by site id.
        accept_all: The policy's line `members: accept`. A member that was refused by name stays refused.
    """

    own_site: str
    body: bytes
    charter: Charter
    answers: tuple[Acceptance, ...] = ()
    accept_all: bool = False

    def accepts(self, site: str) -> bool:
        """Return whether `site` is an active member, with the key and operator that this site has accepted."""
        member = self.charter.active(site)
        if member is None:
            return False
        if site == self.own_site:
            return True
        answer = self._answer(member)
        return self.accept_all if answer is None else answer.accepted

    def _answer(self, member: Member) -> Acceptance | None:
        wanted = (member.site, member.operator, member.identity)
        return next((one for one in self.answers if (one.site, one.operator, one.identity) == wanted), None)

    def waiting(self) -> tuple[Member, ...]:
        """Return the active members about which this site's operator has still to say something."""
        return tuple(
            member
            for member in self.charter.members
            if member.status is MemberStatus.ACTIVE
            and member.site != self.own_site
            and not self.accept_all
            and self._answer(member) is None
        )

    def refused(self, site: str) -> bool:
        """Return whether the operator refused the member that `site` now is."""
        member = self.charter.member(site)
        answer = self._answer(member) if member is not None else None
        return answer is not None and not answer.accepted

    def accepted_among(self, sites: Collection[str]) -> int:
        """Return how many of `sites` are accepted here, itself included; the rest counts as colluding."""
        return sum(self.accepts(site) for site in set(sites))

    def may_witness(self, party: str) -> bool:
        """Return whether cosignatures of `party` count here: the coordinator's, and those of accepted members."""
        return party == COORDINATOR or (party != self.own_site and self.accepts(party))

    def answer(self, site: str, *, accepted: bool, by: str) -> Self:
        """Return this with the operator's answer to the member `site`, in place of an earlier one.

        Raises:
            InvalidInput: No such member, or it is this site.
        """
        member = self.charter.member(site)
        if member is None or site == self.own_site:
            known = ", ".join(one.site for one in self.charter.members if one.site != self.own_site) or "none"
            raise InvalidInput("CFD-E26", f"{site} is no other member of {self.charter.federation}; there are: {known}")
        new = Acceptance(site=site, operator=member.operator, identity=member.identity, accepted=accepted, by=by)
        return replace(self, answers=(*(one for one in self.answers if one.site != site), new))


def next_charter(held: bytes | None, proposal: Charter) -> Charter:
    """Return `proposal` numbered and linked as the epoch after `held`.

    Raises:
        OutOfOrder: The proposal is of another federation than the epoch held.
    """
    if held is None:
        return proposal.model_copy(update={"epoch": 1, "previous": None})
    before = read_charter(held)
    if before.federation != proposal.federation:
        raise OutOfOrder("CFD-E18", f"a charter of {proposal.federation} can't follow one of {before.federation}")
    return proposal.model_copy(update={"epoch": before.epoch + 1, "previous": charter_digest(held)})
