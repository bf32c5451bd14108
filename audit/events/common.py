"""The fields that every entry has; their meaning never changes, in any version of the format; pure."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from audit.canonical import Event
from audit.events.parts import Actor, Code, Count, EventId, Hash, Token


class Draft(BaseModel):
    """An event as its caller hands it in: everything but what the committer sets.

    Attributes:
        id: A UUIDv7 without dashes; for an entry about a ledger row the first 32 digits of that row's hash. It is
            the idempotency key: the same id with the same content is written once.
        action: What was done.
        decision: `allowed`: nothing said no. `refused`: a rule or a person said no. `failed`: tried and broke.
        code: Why not, required unless allowed.
        cause: The inner code, such as ``DP_BUDGET``.
        rule: Path of the deciding rule in the policy file, counted from 0: ``rules/1``, ``floors/quorum``.
        actor: Who did it.
        site: The site concerned; in a site's log always its own id (the log fills it in).
        trace: An id under which the process logs hold more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: EventId
    action: str
    decision: Literal["allowed", "refused", "failed"]
    code: Code | None = None
    cause: Token | None = None
    rule: Token | None = None
    actor: Actor
    site: Token | None = None
    trace: Token | None = None

    def model_post_init(self, _context: Any, /) -> None:
        """Refuse a no without a code, then what the action itself asks for."""
        if (self.decision == "allowed") == (self.code is not None):
            raise ValueError("a code is given exactly when the decision is not `allowed`")
        self.check()

    def check(self) -> None:
        """Raise `ValueError` for what one field asks of another; an action overrides it."""

    def body(self) -> Event:
        """Return the draft as a plain value of the canonical subset; absent fields are left out."""
        return self.model_dump(exclude_none=True, by_alias=True)


class Committed(BaseModel):
    """What the committer adds inside the transaction."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Annotated[int, Field(ge=1, le=1)]
    t_us: Count
    wall_us: Count | None = None
    mono_us: Count
    boot: EventId
    writer: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,200}$")]
    seq: Count
    prev: Hash | None = None


COMMITTED_FIELDS = frozenset(Committed.model_fields)
