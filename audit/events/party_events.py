"""Events of members, users, configuration and policy; pure."""

from typing import Annotated, Literal

from pydantic import Field

from audit.events.common import Draft
from audit.events.parts import Approval, Count, Hash, Peer, Private, Pseudonym, Token, Vkeys

FieldPaths = Annotated[list[Token], Field(max_length=256)]


class ConfigChanged(Draft):
    """The configuration of the role changed; names of the fields only."""

    action: Literal["config.changed"] = "config.changed"
    before: Hash
    after: Hash
    fields: FieldPaths


class PolicyChanged(Draft):
    """The site's policy file changed."""

    action: Literal["policy.changed"] = "policy.changed"
    before: Hash
    after: Hash
    approval: Approval | None = None


class RuleOverridden(Draft):
    """An operator made an exception from a rule by hand."""

    action: Literal["rule.overridden"] = "rule.overridden"
    job: Token | None = None
    private: Private

    def check(self) -> None:
        """Refuse an exception that doesn't say from what and why."""
        if self.rule is None or "reason" not in self.private:
            raise ValueError("an exception names its rule and commits to its reason")


class MemberInvited(Draft):
    """A one-time enrolment token was made for a site; the entry holds its hash."""

    action: Literal["member.invited"] = "member.invited"
    member: Token
    expires_us: Count
    token: Hash


class MemberEnrolled(Draft):
    """A member's keys and certificate were taken into the charter, or this site's own were accepted."""

    action: Literal["member.enrolled"] = "member.enrolled"
    member: Token
    certificate: Hash
    keys: Vkeys


class _MemberChanged(Draft):
    member: Token


class MemberSuspended(_MemberChanged):
    """A member takes part in no new round."""

    action: Literal["member.suspended"] = "member.suspended"


class MemberResumed(_MemberChanged):
    """A suspended member takes part again."""

    action: Literal["member.resumed"] = "member.resumed"


class MemberRevoked(_MemberChanged):
    """A member's keys are no longer trusted."""

    action: Literal["member.revoked"] = "member.revoked"


class CharterChanged(Draft):
    """A new epoch of the charter took effect at this party."""

    action: Literal["charter.changed"] = "charter.changed"
    epoch: Count
    before: Hash
    after: Hash


class _UserChanged(Draft):
    user: Pseudonym
    role: Token


class UserAdded(_UserChanged):
    """A person may now use the console or the API."""

    action: Literal["user.added"] = "user.added"


class UserRemoved(_UserChanged):
    """A person may no longer use the console or the API."""

    action: Literal["user.removed"] = "user.removed"


class UserLogin(Draft):
    """A login, or a refused one; an unknown login is actor `unknown`."""

    action: Literal["user.login"] = "user.login"
    private: Private | None = None


class UserLogout(Draft):
    """A logout."""

    action: Literal["user.logout"] = "user.logout"


class PeerContradicted(Draft):
    """Another party's log doesn't hold what this party was told."""

    action: Literal["peer.contradicted"] = "peer.contradicted"
    peer: Peer
    found: Hash | None = None
