"""Events of the log itself, of its keys, and of what is read from it; pure."""

from typing import Annotated, Literal

from pydantic import Field

from audit.events.common import Draft
from audit.events.parts import (
    MAX_ITEMS,
    Approval,
    ClockState,
    Count,
    Evidence,
    Hash,
    IndexRange,
    LostTree,
    PreviousLog,
    Private,
    Pseudonym,
    Query,
    SetAside,
    Software,
    Token,
    Tokens,
    TreeHead,
    Vkey,
    Vkeys,
)


class LogOpened(Draft):
    """The first entry of a log: its name, its keys, the charter in force; of a later epoch, what was before and why."""

    action: Literal["log.opened"] = "log.opened"
    origin: Token
    log_key: Vkey
    writer_keys: Vkeys
    witness_keys: Vkeys
    quorum: Count
    charter: Hash
    schema_hash: Hash = Field(alias="schema")
    previous: PreviousLog | None = None
    lost: LostTree | None = None
    private: Private | None = None
    approval: Approval | None = None


class LogBooted(Draft):
    """A process began to write; after an unclean end it says so and what was set aside."""

    action: Literal["log.booted"] = "log.booted"
    software: Software
    schema_hash: Hash = Field(alias="schema")
    clock: ClockState
    unclean: bool | None = None
    set_aside: SetAside | None = None


class LogClosed(Draft):
    """A process ended in order."""

    action: Literal["log.closed"] = "log.closed"
    reason: Literal["drain", "signal", "error"]


class LogFrozen(Draft):
    """This epoch takes nothing more."""

    action: Literal["log.frozen"] = "log.frozen"
    reason: Token
    size: Count
    root: Hash
    evidence: Evidence | None = None


class ClockJumped(Draft):
    """The wall clock moved by over two seconds against the monotonic one, or fell behind the last entry."""

    action: Literal["clock.jumped"] = "clock.jumped"
    from_us: Count
    to_us: Count


class KeyAdded(Draft):
    """A key of this log; valid from the next entry on."""

    action: Literal["key.added"] = "key.added"
    role: Literal["log", "writer", "witness"]
    vkey: Vkey


class KeyRevoked(Draft):
    """A key that signs nothing after this entry."""

    action: Literal["key.revoked"] = "key.revoked"
    role: Literal["log", "writer", "witness"]
    vkey: Vkey
    reason: Literal["rotated", "lost", "stolen"]
    suspect_from: Count | None = None


class AuditRead(Draft):
    """Somebody reads entries; written before the rows are handed over."""

    action: Literal["audit.read"] = "audit.read"
    query: Query
    matched: Count
    output: Literal["table", "json", "csv", "page", "report"]


class AuditExported(Draft):
    """A bundle was made; `bundle` is the hash of its manifest."""

    action: Literal["audit.exported"] = "audit.exported"
    query: Query
    range: IndexRange
    complete: bool
    bundle: Hash
    to: Token
    form: Token


class AuditVerified(Draft):
    """The log was verified up to `size`."""

    action: Literal["audit.verified"] = "audit.verified"
    size: Count
    root: Hash
    flaws_count: Count


class AuditCosigned(Draft):
    """Witnesses cosigned a checkpoint of this log."""

    action: Literal["audit.cosigned"] = "audit.cosigned"
    size: Count
    root: Hash
    witnesses: Tokens


class AuditRedacted(Draft):
    """An entry's bytes are emptied; its leaf hash stays."""

    action: Literal["audit.redacted"] = "audit.redacted"
    index: Count
    leaf_hash: Hash
    target_writer: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,200}$")]
    target_seq: Count
    target_action: Token | None = None
    basis: Token
    approval: Approval


class AuditPruned(Draft):
    """The entries below an index went to an archive."""

    action: Literal["audit.pruned"] = "audit.pruned"
    below: Count
    archive: Hash
    size: Count
    root: Hash
    approval: Approval


class SubjectErased(Draft):
    """A person's key and values in the side store are deleted."""

    action: Literal["subject.erased"] = "subject.erased"
    subject: Pseudonym
    basis: Token


class WitnessCosigned(Draft):
    """This party cosigned another's checkpoint."""

    action: Literal["witness.cosigned"] = "witness.cosigned"
    log: Token
    size: Count
    root: Hash


class WitnessStale(Draft):
    """This party's log has had no quorum for too long."""

    action: Literal["witness.stale"] = "witness.stale"
    log: Token
    size: Count
    cosigned_size: Count
    since_us: Count


class WitnessRefused(Draft):
    """This party didn't cosign what it was offered."""

    action: Literal["witness.refused"] = "witness.refused"
    log: Token
    status: Annotated[int, Field(ge=400, le=499)]
    held: TreeHead
    offered: TreeHead
    evidence: Annotated[list[Hash], Field(max_length=MAX_ITEMS)] | None = None


class WitnessAcknowledged(Draft):
    """A person took note of a proved fork of another log; work with its owner may go on."""

    action: Literal["witness.acknowledged"] = "witness.acknowledged"
    log: Token
    evidence: Annotated[list[Hash], Field(max_length=MAX_ITEMS)]
