"""A site becomes a member: keys are born here, the coordinator is believed only by the token, and nothing is halfway.

The order: look at the server and check it against the token's authority; make keys and the log; send the secret over
a channel that trusts that authority alone; check every byte of the answer; record; write. `site.yaml` comes last and
says that the home is complete. A run that was cut anywhere is simply run again with the same token: the keys that are
there are used again, and the coordinator answers the same site as before.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from audit import events
from audit.places import Places
from federation import enrolment_messages as messages
from federation.certificates import (
    Certificate,
    authority_from_der,
    certificate_digest,
    certificate_from_der,
    certificate_request,
    certificate_to_pem,
    check_site_certificate,
    new_tls_key,
    public_key_digest,
    tls_key_to_pem,
)
from federation.charter import Charter, open_charter
from federation.edge.audit_trail import audit_keys, begin_log, person, record
from federation.edge.clock import Clock, rfc3339
from federation.edge.configuration import commented_yaml
from federation.edge.files import make_folder, read_bytes, remove_file, write_whole
from federation.edge.homes import SiteHome, load_identity, load_tls_key
from federation.errors import ConfideError, InvalidInput, NotAuthenticated
from federation.identity import IdentityKey
from federation.membership_events import enrolled
from federation.messages import MemberStatus
from federation.tokens import EnrolToken
from site_client.charter_store import CharterStore
from site_client.configuration import CoordinatorAddress, SiteConfiguration

Ask = Callable[[bytes, bytes], bytes]
"""Carries a request to the coordinator, given the authority that alone is believed (PEM), and returns the answer."""

POLICY: Final = """\
# What this site allows. Edited by this site alone; `confide site policy test job.yaml` shows what it would decide.
apiVersion: confide/v1
kind: SitePolicy

# When no rule decides: ask a person (`confide site approvals`), allow, or refuse.
default: ask

# Rules are read from top to bottom; the first that fits decides. For example:
#   - allow: {purpose: [DUO:0000007], dataset: heart, unit: [record, entity], epsilon_per_job: 5.0}
#   - refuse: {purpose: commercial, reason: "needs a new contract"}
rules: []

# What every job must keep, whatever a rule or a person says.
floors: {quorum: 3, colluding: 1, secure_aggregation: required, epsilon_per_job: 8.0}

# New members of the federation: ask (`confide site members accept SITE`) or accept.
members: ask

# What may leave beside updates, with charged noise.
metrics_may_leave: []
"""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """How it went: the site's public key, whose words a person reads over the phone, and what the coordinator said."""

    site: str
    federation: str
    identity: bytes
    coordinator_identity: bytes
    status: MemberStatus
    certificate: Certificate
    charter: Charter


def check_home_is_free(home: SiteHome) -> None:
    """Refuse a home that is enrolled already; it is unchanged.

    Raises:
        InvalidInput: It is.
    """
    if home.configuration_file.exists():
        raise InvalidInput(
            "CFD-E21",
            f"{home.path} is enrolled already; nothing was changed",
            hint="`confide site status` says as what",
        )


def check_token_time(token: EnrolToken, now: datetime) -> None:
    """Refuse a token that this machine's clock says is over.

    Raises:
        NotAuthenticated: It is.
    """
    if now >= token.expires:
        raise NotAuthenticated(
            "CFD-E06",
            f"the enrolment token of {token.site} expired on {rfc3339(token.expires)}, now is {rfc3339(now)}",
        )


def enrol(home: SiteHome, token: EnrolToken, *, address: str, ask: Ask, clock: Clock) -> Enrolled:
    """Make `home` a site of the federation in `token`.

    Args:
        home: Where; empty, or left by a run that was cut.
        token: What the coordinator gave.
        address: ``HOST:PORT`` by which this site reaches the coordinator.
        ask: Carries the request.
        clock: The time here.

    Raises:
        InvalidInput: The home is enrolled already, or was begun for another site.
        NotAuthenticated: The server is another one, it refused the token, or its answer doesn't hold.
        Unreachable: No answer; run it again.
    """
    check_home_is_free(home)
    check_token_time(token, clock.now())
    for folder in home.folders():
        make_folder(folder)
    _check_begun(home, token)
    identity = _make_keys(home)
    keys = _log_keys(home, token, clock)
    actor = person(home.audit, clock)
    request = _request(home, token, identity, keys)
    try:
        reply = messages.decode(
            messages.EnrolReply,
            ask(messages.encode(request), certificate_to_pem(authority_from_der(token.authority_der))),
        )
        certificate, charter = _checked(home, token, reply, clock)
    except ConfideError as problem:
        refusal = enrolled(
            _new_id(clock),
            actor,
            site=token.site,
            certificate_digest=public_key_digest(load_tls_key(home.tls_file)),
            keys=keys,
            code=problem.code,
        )
        record(home.audit, clock, refusal)
        raise
    record(
        home.audit,
        clock,
        enrolled(_new_id(clock), actor, site=token.site, certificate_digest=certificate_digest(certificate), keys=keys),
    )
    _write(home, token, reply, certificate, address=address, actor=actor, clock=clock)
    return Enrolled(
        site=token.site,
        federation=token.federation,
        identity=identity.public,
        coordinator_identity=bytes.fromhex(charter.coordinator.identity),
        status=reply.status,
        certificate=certificate,
        charter=charter,
    )


def _new_id(clock: Clock) -> Callable[[], str]:
    return lambda: events.new_event_id(clock, secrets.token_bytes)


def _check_begun(home: SiteHome, token: EnrolToken) -> None:
    """Keep one home for one site, also over runs that were cut: its log bears the site's name from the first entry."""
    wanted = f"{token.federation}/{token.site}"
    if not home.begun_file.exists():
        write_whole(home.begun_file, wanted.encode())
    begun = read_bytes(home.begun_file).decode("utf-8", "replace")
    if begun != wanted:
        raise InvalidInput(
            "CFD-E21",
            f"{home.path} was begun for {begun}, the token is for {wanted}",
            hint="use another --home, or remove this one",
        )


def _make_keys(home: SiteHome) -> IdentityKey:
    if not home.identity_file.exists():
        write_whole(home.identity_file, IdentityKey.generate().to_pem(), replace=False)
    if not home.tls_file.exists():
        write_whole(home.tls_file, tls_key_to_pem(new_tls_key()), replace=False)
    return load_identity(home.identity_file)


def _log_keys(home: SiteHome, token: EnrolToken, clock: Clock) -> messages.AuditKeys:
    if not Places(home.audit).is_begun:
        return begin_log(home.audit, federation=token.federation, party=token.site, clock=clock)
    return audit_keys(home.audit, federation=token.federation, party=token.site)


def _request(
    home: SiteHome, token: EnrolToken, identity: IdentityKey, keys: messages.AuditKeys
) -> messages.EnrolRequest:
    request = messages.EnrolRequest(
        federation=token.federation,
        site=token.site,
        secret=token.secret.hex(),
        certificate_request=certificate_request(
            load_tls_key(home.tls_file), federation=token.federation, site=token.site
        ).hex(),
        identity=identity.public.hex(),
        audit=keys,
    )
    return messages.sign(request, identity)


def _checked(
    home: SiteHome, token: EnrolToken, reply: messages.EnrolReply, clock: Clock
) -> tuple[Certificate, Charter]:
    """Return certificate and charter of an answer in which everything holds; the server may lie in each of them."""
    if bytes.fromhex(reply.authority) != token.authority_der:
        raise NotAuthenticated("CFD-E12", "the coordinator answered with another authority than the token's")
    certificate = certificate_from_der(bytes.fromhex(reply.certificate))
    authority = authority_from_der(token.authority_der)
    site = check_site_certificate(certificate, authority, federation=token.federation, now=clock.now())
    if site != token.site or public_key_digest(certificate) != public_key_digest(load_tls_key(home.tls_file)):
        raise NotAuthenticated("CFD-E12", f"the coordinator answered with a certificate that is not for {token.site}")
    charter = open_charter(
        token.root_public, bytes.fromhex(reply.charter), bytes.fromhex(reply.charter_signature), None
    )
    if charter.federation != token.federation or bytes.fromhex(charter.coordinator.authority) != token.authority_der:
        raise NotAuthenticated("CFD-E18", f"the coordinator answered with a charter that is not of {token.federation}")
    return certificate, charter


def _write(
    home: SiteHome,
    token: EnrolToken,
    reply: messages.EnrolReply,
    certificate: Certificate,
    *,
    address: str,
    actor: events.Actor,
    clock: Clock,
) -> None:
    write_whole(home.authority_file, certificate_to_pem(authority_from_der(token.authority_der)))
    write_whole(home.root_public_file, token.root_public.hex().encode() + b"\n")
    write_whole(home.certificate_file, certificate_to_pem(certificate))
    CharterStore(home, own_site=token.site, accept_all=False).receive(
        bytes.fromhex(reply.charter),
        bytes.fromhex(reply.charter_signature),
        record=lambda drafts: record(home.audit, clock, *drafts),
        actor=actor,
    )
    if not home.policy_file.exists():
        write_whole(home.policy_file, POLICY.encode())
    configuration = SiteConfiguration(site=token.site, coordinator=CoordinatorAddress(address=address))
    title = f"The site {token.site} of {token.federation}."
    write_whole(home.configuration_file, commented_yaml(configuration, title=title).encode())
    remove_file(home.begun_file)
