"""Entries of the audit log about members and the charter, the same at the coordinator and at a site; pure.

What follows from a charter epoch has an id made from that epoch, so that a party which was stopped in between writes
the same entries again without repeating them.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime

from audit import events
from federation.charter import AcceptedCharter, Change, ChangeKind, Charter, Member, changes, charter_digest
from federation.enrolment_messages import AuditKeys

NewId = Callable[[], str]


def vkeys_of(keys: AuditKeys) -> list[str]:
    """Return the public keys of a party's log, as an entry lists them."""
    return [keys.log, *keys.writers, keys.witness]


def invited(
    new_id: NewId, actor: events.Actor, *, site: str, token_digest: str, expires: datetime
) -> events.MemberInvited:
    """Return the entry that a token was made for `site`."""
    return events.MemberInvited(
        id=new_id(),
        decision="allowed",
        actor=actor,
        site=site,
        member=site,
        expires_us=int(expires.timestamp()) * 1_000_000,
        token=f"sha256:{token_digest}",
    )


def enrolled(
    new_id: NewId,
    actor: events.Actor,
    *,
    site: str,
    certificate_digest: str,
    keys: AuditKeys | None,
    code: str | None = None,
    subject: str | None = None,
) -> events.MemberEnrolled:
    """Return the entry that `site` was taken as a member, or, with a `code`, was not.

    Args:
        new_id: Gives an id.
        actor: Who decided.
        site: The member.
        certificate_digest: SHA-256 of its certificate, of its TLS key, or of what it sent.
        keys: The keys of its audit log.
        code: Why not.
        subject: The site that the entry is about in this log; the member where not said.
    """
    return events.MemberEnrolled(
        id=new_id(),
        decision="allowed" if code is None else "refused",
        code=code,
        actor=actor,
        site=subject or site,
        member=site,
        certificate=f"sha256:{certificate_digest}",
        keys=vkeys_of(keys) if keys is not None else [],
    )


def charter_entries(
    actor: events.Actor, *, old: bytes | None, new: bytes, old_charter: Charter | None, charter: Charter, at: str | None
) -> list[events.Draft]:
    """Return the entries of a new epoch: one for each member that it adds, and `charter.changed`.

    A site's log also gets one for each member whose status changed; the coordinator's has that from the command.

    Args:
        actor: Who put it in force, or took it over.
        old: Canonical bytes of the epoch before; None if there was none here.
        new: Canonical bytes of this epoch.
        old_charter: The same as `old`, read.
        charter: The same as `new`, read.
        at: The site in whose log it is written; None at the coordinator.
    """
    digest = charter_digest(new)
    salt = f"{digest}\n{actor.id}"
    entries = [_member_entry(actor, change, charter, salt, at) for change in changes(old_charter, charter)]
    changed = events.CharterChanged(
        id=_id_of(salt, "charter", ""),
        decision="allowed",
        actor=actor,
        site=at,
        epoch=charter.epoch,
        before=f"sha256:{charter_digest(old if old is not None else b'')}",
        after=f"sha256:{digest}",
    )
    return [*(entry for entry in entries if entry is not None), changed]


def charter_refused(
    actor: events.Actor, *, held: AcceptedCharter | None, offered: bytes, code: str, at: str
) -> events.CharterChanged:
    """Return the entry that the site `at` refused an epoch under `code`; the epoch that it names stays in force.

    The same bytes against the same epoch are one entry, however often they come.
    """
    in_force = b"" if held is None else held.body
    return events.CharterChanged(
        id=_id_of(f"{charter_digest(offered)}\n{charter_digest(in_force)}\n{actor.id}\n{code}", "refused", at),
        decision="refused",
        code=code,
        actor=actor,
        site=at,
        epoch=0 if held is None else held.charter.epoch,
        before=f"sha256:{charter_digest(in_force)}",
        after=f"sha256:{charter_digest(offered)}",
    )


def _member_entry(
    actor: events.Actor, change: Change, charter: Charter, salt: str, at: str | None
) -> events.Draft | None:
    member = charter.member(change.name) if change.what == "member" else None
    if member is None or (at is None) != (change.kind is ChangeKind.ADDED):
        return None
    event_id, site = _id_of(salt, change.kind.value, member.site), at or member.site
    match change.kind:
        case ChangeKind.SUSPENDED:
            return events.MemberSuspended(id=event_id, decision="allowed", actor=actor, site=site, member=member.site)
        case ChangeKind.RESUMED:
            return events.MemberResumed(id=event_id, decision="allowed", actor=actor, site=site, member=member.site)
        case ChangeKind.REVOKED:
            return events.MemberRevoked(id=event_id, decision="allowed", actor=actor, site=site, member=member.site)
        case ChangeKind.ADDED:
            return enrolled(lambda: event_id, actor, site=member.site, certificate_digest=member.tls, keys=member.audit)
        case _:
            return None


def accepted(
    new_id: NewId, actor: events.Actor, *, own_site: str, member: Member, code: str | None = None
) -> events.MemberEnrolled:
    """Return the entry that this site's operator accepted `member`, or, with a `code`, refused it."""
    return enrolled(
        new_id,
        actor,
        site=member.site,
        certificate_digest=member.tls,
        keys=member.audit,
        code=code,
        subject=own_site,
    )


def _id_of(salt: str, what: str, name: str) -> str:
    return hashlib.sha256(f"confide-charter-entry/v1\n{salt}\n{what}\n{name}".encode()).hexdigest()[:32]
