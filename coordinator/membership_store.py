"""Members, invitations, people and charter epochs in the coordinator's database.

Every method is one transaction and durable on return; after an error nothing of it happened. What happens is decided
by `coordinator.membership`. Several processes may call at once (the service and short commands): each reads what the
others committed. A charter epoch without a signature is a proposal; there is at most one, it is rewritten as things
change, and it counts for nothing.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, update

from coordinator import membership_tables as tables
from coordinator.membership import (
    Candidate,
    Invitation,
    InvitationState,
    Membership,
    effective_status,
    proposal,
    same_content,
)
from federation import canonical
from federation.charter import (
    Charter,
    CoordinatorKeys,
    Member,
    Person,
    Role,
    encode_charter,
    next_charter,
    open_charter,
    read_charter,
    sign_charter,
)
from federation.edge.clock import Clock
from federation.edge.database import read, transact
from federation.enrolment_messages import AuditKeys
from federation.errors import InvalidInput
from federation.identity import IdentityKey
from federation.messages import MemberStatus

T = TypeVar("T")
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SignedCharter:
    """One epoch as it was signed."""

    body: bytes
    signature: bytes

    @property
    def charter(self) -> Charter:
        """Return the epoch, read."""
        return read_charter(self.body)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a site is now, and the keys by which it is known."""

    status: MemberStatus
    identity: str
    tls: str


def api_token_digest(token: str) -> str:
    """Return what is kept of a person's API token."""
    return hashlib.sha256(b"confide-api-token/v1\n" + token.strip().encode("utf-8")).hexdigest()


class MembershipStore:
    """Who takes part, on disk.

    Args:
        engine: The coordinator's database, brought up.
        federation: The federation's name, from the configuration.
        coordinator: The coordinator's own public keys.
        root_public: The federation's root key.
        clock: Whose time stamps the rows.
    """

    def __init__(
        self, engine: Engine, *, federation: str, coordinator: CoordinatorKeys, root_public: bytes, clock: Clock
    ) -> None:
        self._engine = engine
        self._federation = federation
        self._coordinator = coordinator
        self._root_public = root_public
        self._clock = clock
        self._held: Charter | None = None

    # --- reading ----------------------------------------------------------------------------------------------

    def membership(self) -> Membership:
        """Return everything that is stored about who takes part."""
        with read(self._engine) as connection:
            return self._membership(connection)

    def charter(self) -> SignedCharter | None:
        """Return the newest signed epoch."""
        with read(self._engine) as connection:
            return _newest(connection)

    def charters_after(self, epoch: int) -> tuple[SignedCharter, ...]:
        """Return the signed epochs after `epoch`, in order: what a site that holds `epoch` must be sent, all of it."""
        table = tables.charter_epoch
        with read(self._engine) as connection:
            rows = connection.execute(
                select(table.c.body, table.c.signature)
                .where(table.c.epoch > epoch, table.c.signature.is_not(None))
                .order_by(table.c.epoch)
            )
            return tuple(SignedCharter(row.body, row.signature) for row in rows)

    def proposed(self) -> bytes | None:
        """Return the canonical bytes of the epoch that waits for the root key, if there is one."""
        with read(self._engine) as connection:
            return _proposed(connection)

    def standing(self, site: str) -> Standing | None:
        """Return what `site` is now and with which keys, or None for one that never enrolled. Quick: two rows."""
        with read(self._engine) as connection:
            pending = connection.execute(
                select(tables.invitation).where(
                    tables.invitation.c.site == site, tables.invitation.c.state == InvitationState.PENDING.value
                )
            ).first()
            candidate = _invitation(pending).candidate if pending is not None else None
            if candidate is not None:
                return Standing(MemberStatus.PENDING, candidate.identity, candidate.tls)
            content = connection.scalar(select(tables.member.c.content).where(tables.member.c.site == site))
            if content is None:
                return None
            member = Member.model_validate_json(content)
            return Standing(effective_status(member, self._signed(connection)), member.identity, member.tls)

    def status(self, site: str) -> MemberStatus | None:
        """Return what `site` is now, or None for one that never enrolled."""
        known = self.standing(site)
        return known.status if known is not None else None

    def _signed(self, connection: Connection) -> Charter | None:
        """Return the newest signed epoch, read once."""
        table = tables.charter_epoch
        epoch = connection.scalar(select(func.max(table.c.epoch)).where(table.c.signature.is_not(None)))
        if epoch is None:
            return None
        held = self._held
        if held is None or held.epoch != epoch:
            held = read_charter(connection.execute(select(table.c.body).where(table.c.epoch == epoch)).scalar_one())
            self._held = held
        return held

    def certificate(self, site: str) -> bytes | None:
        """Return the DER of the newest certificate issued to the member or pending site."""
        with read(self._engine) as connection:
            pending = connection.scalar(
                select(tables.invitation.c.certificate).where(
                    tables.invitation.c.site == site, tables.invitation.c.state == InvitationState.PENDING.value
                )
            )
            found: bytes | None = pending or connection.scalar(
                select(tables.member.c.certificate).where(tables.member.c.site == site)
            )
            return found

    def person_by_token(self, token: str) -> Person | None:
        """Return the person whose API token this is."""
        wanted = api_token_digest(token)
        with read(self._engine) as connection:
            rows = connection.execute(select(tables.person)).all()
        found = [row for row in rows if hmac.compare_digest(row.token_digest, wanted)]
        return _person(found[0]) if found else None

    # --- writing ----------------------------------------------------------------------------------------------

    def decide(self, decision: Callable[[Membership], tuple[Iterable["Change"], T]]) -> T:
        """Run a pure decision on what is stored, write the changes that it returns, and return its result.

        The proposal for the next epoch follows the change in the same transaction. The decision may run more than
        once, if the database asks for it.

        Raises:
            ConfideError: What the decision raised; nothing was written.
        """

        def work(connection: Connection) -> T:
            changes, result = decision(self._membership(connection))
            for change in changes:
                self._write(connection, change)
            self._propose(connection)
            return result

        return transact(self._engine, work)

    def sign(self, root: IdentityKey, wanted: bytes) -> SignedCharter:
        """Sign the proposal `wanted` and put it in force.

        Raises:
            InvalidInput: What is proposed is something else by now; nothing was signed.
            NotAuthenticated: `root` is not this federation's root key; the proposal stays.
        """

        def work(connection: Connection) -> SignedCharter:
            body = _proposed(connection)
            if body != wanted:
                raise InvalidInput("CFD-E27", "another command changed what is proposed; nothing was signed")
            held = _newest(connection)
            signature = sign_charter(root, wanted)
            open_charter(self._root_public, wanted, signature, held.body if held else None)
            table = tables.charter_epoch
            connection.execute(
                update(table)
                .where(table.c.epoch == read_charter(wanted).epoch)
                .values(signature=signature, changed_us=self._now_us())
            )
            return SignedCharter(wanted, signature)

        return transact(self._engine, work)

    def _now_us(self) -> int:
        return _microseconds(self._clock.now())

    def _membership(self, connection: Connection) -> Membership:
        return Membership(
            federation=self._federation,
            coordinator=self._coordinator,
            invitations=tuple(_invitation(row) for row in connection.execute(select(tables.invitation))),
            members=tuple(
                Member.model_validate_json(row.content)
                for row in connection.execute(select(tables.member.c.content).order_by(tables.member.c.site))
            ),
            people=tuple(
                _person(row) for row in connection.execute(select(tables.person).order_by(tables.person.c.name))
            ),
        )

    def _write(self, connection: Connection, change: "Change") -> None:
        now = self._now_us()
        match change:
            case PutInvitation(invitation, certificate):
                values = {**_invitation_values(invitation), "changed_us": now}
                if certificate is not None:
                    values["certificate"] = certificate
                _put(connection, tables.invitation, "token_digest", values)
            case PutMember(member, certificate):
                content = canonical.encode(member.model_dump(mode="json")).decode("utf-8")
                values = {"site": member.site, "content": content, "changed_us": now}
                if certificate is not None:
                    values["certificate"] = certificate
                _put(connection, tables.member, "site", values)
            case PutPerson(person, token_digest):
                values = {"name": person.name, "key": person.key, "role": person.role.value}
                values |= {"token_digest": token_digest, "changed_us": now}
                _put(connection, tables.person, "name", values)
            case RemovePerson(name):
                connection.execute(delete(tables.person).where(tables.person.c.name == name))

    def _propose(self, connection: Connection) -> None:
        table = tables.charter_epoch
        held = _newest(connection)
        wanted = proposal(self._membership(connection))
        connection.execute(delete(table).where(table.c.signature.is_(None)))
        if held is not None and same_content(held.charter, wanted):
            return
        next_one = next_charter(held.body if held else None, wanted)
        values = {"epoch": next_one.epoch, "body": encode_charter(next_one), "changed_us": self._now_us()}
        connection.execute(insert(table).values(values))


# --- changes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutInvitation:
    """Store an invitation, and the certificate that was issued on it; None keeps the one that is there."""

    invitation: Invitation
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class PutMember:
    """Store a member, and its certificate; None keeps the one that is there."""

    member: Member
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class PutPerson:
    """Store a person with the digest of the API token."""

    person: Person
    token_digest: str


@dataclass(frozen=True, slots=True)
class RemovePerson:
    """Forget a person; earlier epochs of the charter still name them."""

    name: str


Change = PutInvitation | PutMember | PutPerson | RemovePerson


# --- rows -----------------------------------------------------------------------------------------------------


def _microseconds(moment: datetime) -> int:
    passed = moment.astimezone(UTC) - _EPOCH_START
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def _put(connection: Connection, table: Table, key: str, values: dict[str, Any]) -> None:
    done = connection.execute(update(table).where(table.c[key] == values[key]).values(values))
    if done.rowcount == 0:
        connection.execute(insert(table).values(values))


def _newest(connection: Connection) -> SignedCharter | None:
    table = tables.charter_epoch
    row = connection.execute(
        select(table.c.body, table.c.signature)
        .where(table.c.signature.is_not(None))
        .order_by(table.c.epoch.desc())
        .limit(1)
    ).first()
    return SignedCharter(row.body, row.signature) if row is not None else None


def _proposed(connection: Connection) -> bytes | None:
    table = tables.charter_epoch
    body: bytes | None = connection.scalar(select(table.c.body).where(table.c.signature.is_(None)))
    return body


def _invitation(row: Any) -> Invitation:
    content = canonical.decode(row.candidate.encode("utf-8")) if row.candidate is not None else None
    return Invitation(
        token_digest=row.token_digest,
        site=row.site,
        operator=row.operator,
        expires=datetime.fromtimestamp(row.expires_us // 1_000_000, UTC),
        state=InvitationState(row.state),
        candidate=None if content is None else _candidate(content),
    )


def _candidate(content: dict[str, Any]) -> Candidate:
    audit = AuditKeys.model_validate_json(canonical.encode(content["audit"]))
    return Candidate(identity=content["identity"], tls=content["tls"], audit=audit)


def _invitation_values(invitation: Invitation) -> dict[str, Any]:
    candidate = invitation.candidate
    content = None
    if candidate is not None:
        audit = candidate.audit.model_dump(mode="json")
        content = canonical.encode({"identity": candidate.identity, "tls": candidate.tls, "audit": audit}).decode()
    return {
        "token_digest": invitation.token_digest,
        "site": invitation.site,
        "operator": invitation.operator,
        "state": invitation.state.value,
        "expires_us": _microseconds(invitation.expires),
        "candidate": content,
    }


def _person(row: Any) -> Person:
    return Person(name=row.name, key=row.key, role=Role(row.role))
