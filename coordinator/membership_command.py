"""`confide coordinator init | invite | sites | user | charter | certificate`: who takes part.

Each command is one decision, its entry in the audit log and one transaction, beside a running service or without one.
Where the root key lies in the home, a change is in force at once; else it waits for `charter sign`.
"""

import re
import secrets
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from audit import events
from coordinator.charter_command import certificate, charter
from coordinator.init_command import init
from coordinator.membership import (
    Invitation,
    Membership,
    Verb,
    change,
    confirm,
    invite,
    standing,
    unknown_site,
)
from coordinator.membership_desk import Desk, Parser, checked, open_desk, say
from coordinator.membership_store import Change, PutInvitation, PutMember
from coordinator.user_command import user
from federation import tokens
from federation.certificates import certificate_from_der, certificate_to_der, expiry, renewal_due
from federation.charter import Charter, Member, Operator
from federation.edge.arguments import run_verb
from federation.edge.clock import rfc3339
from federation.edge.files import write_whole
from federation.edge.tables import print_record, print_rows
from federation.errors import CheckFailed, InvalidInput
from federation.membership_events import enrolled, invited
from federation.messages import SiteName
from federation.words import fingerprint_words

_LENGTH: Final = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MAX_EXPIRY: Final = timedelta(days=90)


def _length(text: str) -> timedelta:
    found = _LENGTH.fullmatch(text)
    length = timedelta(seconds=int(found[1]) * _UNIT_S[found[2]]) if found else timedelta(0)
    if not timedelta(0) < length <= _MAX_EXPIRY:
        raise InvalidInput(
            "CFD-G02", f"'{text[:20]}' is no length of time up to 90 days", hint="such as 7d, 12h or 90m"
        )
    return length


def invite_site(arguments: list[str]) -> int:
    """Make a one-time enrolment token."""
    parser = Parser(
        "invite",
        about="Make a one-time token with which a site enrols. Whoever has it can ask to be that site, so hand it "
        "over in confidence; the site is a member only after `sites confirm`.",
        example='invite st-anna --operator "St. Anna Hospital" --out st-anna.token',
    )
    parser.add_argument("site", metavar="SITE_ID", help="the site's id for ever, such as st-anna")
    parser.add_argument("--operator", required=True, metavar="ORG", help="the organisation that runs the site")
    parser.add_argument("--expires", default="7d", metavar="TIME", help="how long it can be used (default: 7d)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the token to a file, 0600, not to the screen")
    options = parser.parse_args(arguments)
    length = _length(options.expires)
    hint = "lower-case letters, digits and hyphens, at most 64, such as st-anna"
    site = checked(SiteName, options.site, what="a site id", hint=hint)
    operator = checked(
        Operator, options.operator, what="an organisation's name", hint="at most 128 characters, one line"
    )
    with open_desk(options.home) as desk:
        token = _new_token(desk, site, length)
        digest = tokens.secret_digest(token.secret)

        def decision(membership: Membership) -> tuple[Iterable[Change], None]:
            made = invite(membership, site=site, operator=operator, token_digest=digest, expires=token.expires)
            return [PutInvitation(one) for one in made], None

        desk.act(
            decision,
            lambda _: [invited(desk.new_id, desk.actor, site=site, token_digest=digest, expires=token.expires)],
        )
    if options.out is not None:
        write_whole(options.out, tokens.encode(token).encode() + b"\n", replace=False)
    else:
        print(tokens.encode(token))
    say(f"The token is for {site} alone, once, until {rfc3339(token.expires)}. The site runs:")
    say(f"    confide site enrol https://{token.address} --token-file FILE")
    say(f"Then ask the site by phone for its words, and run: confide coordinator sites confirm {site} --words …")
    return 0


def _new_token(desk: Desk, site: str, length: timedelta) -> tokens.EnrolToken:
    return tokens.EnrolToken(
        federation=desk.configuration.federation,
        site=site,
        address=desk.configuration.address,
        authority_der=certificate_to_der(desk.home.authority_certificate()),
        root_public=desk.home.root_public(),
        secret=secrets.token_bytes(tokens.SECRET_BYTES),
        expires=(desk.clock.now() + length).replace(microsecond=0),
    )


# --- sites ----------------------------------------------------------------------------------------------------

SITES_HELP: Final = """usage: confide coordinator sites [VERB] [options]

Who was invited, who is a member. Without a verb: list.

  list      all sites, their operators and certificates
  show      one site: its words, keys and standing
  confirm   make a pending site a member, by the words that it reads to you over the phone
  suspend   keep a site out of rounds          resume   let it take part again
  revoke    end a membership, or withdraw an invitation

Each verb explains itself: confide coordinator sites VERB --help
Example: confide coordinator sites confirm st-anna --words "acid album amber …"
"""


def sites(arguments: list[str]) -> int:
    """List the sites, or do something about one of them."""
    return run_verb("coordinator sites", _SITES_VERBS, arguments, help_text=SITES_HELP, default="list")


def _list(arguments: list[str]) -> int:
    parser = Parser("sites", about="List the sites.", example="sites --format json", lists=True)
    options = parser.parse_args(arguments)
    with open_desk(options.home) as desk:
        membership, signed = desk.store.membership(), desk.store.charter()
        names = {member.site for member in membership.members} | {one.site for one in membership.invitations}
        rows = [_row(desk, membership, signed.charter if signed else None, site) for site in sorted(names)]
    print_rows(
        rows, ("site", "operator", "status", "certificate_until"), schema="confide/sites/v1", form=options.format
    )
    return 0


def _row(desk: Desk, membership: Membership, charter: Charter | None, site: str) -> dict[str, Any]:
    der = desk.store.certificate(site)
    shown = certificate_from_der(der) if der is not None else None
    waits = membership.waiting(site)
    member = membership.member(site)
    known = waits or member or next(one for one in membership.invitations if one.site == site)
    return {
        "site": site,
        "operator": known.operator,
        "status": standing(membership, charter, site),
        "certificate_until": rfc3339(expiry(shown)) if shown is not None else None,
        "certificate_due": shown is not None and renewal_due(shown, now=desk.clock.now()),
        "token_until": rfc3339(waits.expires) if waits is not None and waits.candidate is None else None,
    }


def _show(arguments: list[str]) -> int:
    parser = Parser("sites show", about="Show one site.", example="sites show st-anna", lists=True)
    parser.add_argument("site", metavar="SITE")
    options = parser.parse_args(arguments)
    with open_desk(options.home) as desk:
        membership, signed = desk.store.membership(), desk.store.charter()
        member = membership.member(options.site)
        if member is None and not any(one.site == options.site for one in membership.invitations):
            raise unknown_site(membership, options.site)
        row = _row(desk, membership, signed.charter if signed else None, options.site)
    # The words of a pending site are not shown: they must come from the site, by phone.
    row |= {
        "words": fingerprint_words(bytes.fromhex(member.identity)) if member is not None else None,
        "identity": member.identity if member is not None else None,
        "tls": member.tls if member is not None else None,
        "audit_log_key": member.audit.log if member is not None else None,
        "witness_key": member.audit.witness if member is not None else None,
    }
    print_record(row, schema="confide/site/v1", form=options.format)
    return 0


def _confirm(arguments: list[str]) -> int:
    parser = Parser(
        "sites confirm",
        about="Make a pending site a member, if these are the words of its own key, read to you over the phone.",
        example="sites confirm st-anna --words acid album amber tiger owl apple april arrow oasis maple autumn badge",
    )
    parser.add_argument("site", metavar="SITE")
    parser.add_argument("--words", nargs="+", required=True, metavar="WORD", help="twelve words")
    options = parser.parse_args(arguments)
    site, words = options.site, " ".join(options.words)
    with open_desk(options.home) as desk:

        def decision(membership: Membership) -> tuple[Iterable[Change], Member]:
            invitation, member = confirm(membership, site=site, words=words)
            issued = desk.store.certificate(site)
            return [PutInvitation(invitation), PutMember(member, issued)], member

        try:
            desk.act(decision, lambda _: ())
        except CheckFailed as problem:
            desk.record(_wrong_words(desk, site, problem.code))
            raise
        desk.put_in_force()
        say(f"{site} is confirmed.")
    return 0


def _wrong_words(desk: Desk, site: str, code: str) -> events.Draft:
    waits = desk.store.membership().waiting(site)
    tls = waits.candidate.tls if waits is not None and waits.candidate is not None else "0" * 64
    return enrolled(desk.new_id, desk.actor, site=site, certificate_digest=tls, keys=None, code=code)


_ENTRY: Final[dict[Verb, type[events.MemberSuspended | events.MemberResumed | events.MemberRevoked]]] = {
    Verb.SUSPEND: events.MemberSuspended,
    Verb.RESUME: events.MemberResumed,
    Verb.REVOKE: events.MemberRevoked,
}
_ABOUT: Final = {
    Verb.SUSPEND: "Keep a site out of rounds until `resume`. At once; the site keeps its keys and its budget.",
    Verb.RESUME: "Let a suspended site take part again.",
    Verb.REVOKE: "End a site's membership at once, or withdraw its invitation. It can be invited again, with new keys.",
}


def _changing(verb: Verb) -> Callable[[list[str]], int]:
    def run(arguments: list[str]) -> int:
        parser = Parser(f"sites {verb.value}", about=_ABOUT[verb], example=f"sites {verb.value} st-anna")
        parser.add_argument("site", metavar="SITE")
        options = parser.parse_args(arguments)
        with open_desk(options.home) as desk:
            entry = _ENTRY[verb](
                id=desk.new_id(), decision="allowed", actor=desk.actor, site=options.site, member=options.site
            )
            desk.act(lambda membership: _change(membership, options.site, verb), lambda _: [entry])
            desk.put_in_force()
        say(f"{options.site}: {verb.value} is done.")
        return 0

    return run


def _change(membership: Membership, site: str, verb: Verb) -> tuple[Iterable[Change], None]:
    new = change(membership, site=site, verb=verb)
    return [PutInvitation(new) if isinstance(new, Invitation) else PutMember(new)], None


_SITES_VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "list": _list,
    "show": _show,
    "confirm": _confirm,
    "suspend": _changing(Verb.SUSPEND),
    "resume": _changing(Verb.RESUME),
    "revoke": _changing(Verb.REVOKE),
}

VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "init": init,
    "invite": invite_site,
    "sites": sites,
    "user": user,
    "charter": charter,
    "certificate": certificate,
}
