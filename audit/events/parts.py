"""The grammar of what a leaf may hold, and the parts that several events share; pure.

Every string is a token, hash, digest, pseudonym, commitment or verifier key: nothing that a person typed, nothing
measured on data, nothing that needs escaping anywhere. Free text goes to the erasable side store (`audit.private`),
and the leaf holds its commitment.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from audit.canonical import MAX_INTEGER

# pydantic compiles these with Rust's regex, where `$` is the very end of the text, line feed included.
_TOKEN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@=-]{0,127}$"  # noqa: S105 (a grammar, not a secret)
_PSEUDONYM: Final = r"^p1:[A-Za-z0-9_-]{43}$"
MAX_ITEMS: Final = 256

Token = Annotated[str, Field(pattern=_TOKEN)]
Hash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""SHA-256 of bytes."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A protocol digest, as the secure-aggregation and round messages define it."""
Pseudonym = Annotated[str, Field(pattern=_PSEUDONYM)]
Commitment = Annotated[str, Field(pattern=r"^c1:[A-Za-z0-9_-]{43}$")]
EventId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Vkey = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,200}\+[0-9a-f]{8}\+[A-Za-z0-9+/]{1,2000}={0,2}$")]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
ActorId = Annotated[str, Field(pattern=rf"(?:{_TOKEN})|(?:{_PSEUDONYM})")]
Code = Annotated[str, Field(pattern=r"^CFD-[A-Z][0-9]{2,3}$")]

Tokens = Annotated[list[Token], Field(max_length=MAX_ITEMS)]
Vkeys = Annotated[list[Vkey], Field(max_length=MAX_ITEMS)]
Private = Annotated[dict[FieldName, Commitment], Field(max_length=MAX_ITEMS)]
Versions = Annotated[dict[FieldName, Token], Field(max_length=MAX_ITEMS)]


class Part(BaseModel):
    """A frozen, strict piece of an event; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Actor(Part):
    """Who did it. A person's id is a pseudonym; `unknown` is whoever gave a login that doesn't exist."""

    kind: Literal["person", "service", "party"]
    id: ActorId
    role: Token | None = None
    auth: Literal["mtls", "password", "oidc", "token", "local"] | None = None

    def model_post_init(self, _context: Any, /) -> None:
        """Refuse a person by name: only pseudonyms, and `unknown`, go into a leaf."""
        if self.kind == "person" and self.id != "unknown" and not self.id.startswith("p1:"):
            raise ValueError("a person is named by a pseudonym")


class Dataset(Part):
    """A data set at one version, which is the hash of its content."""

    id: Token
    version: Hash
    grade: Token | None = None


class Purpose(Part):
    """What the data are used for; the sentence that describes it stays in the plan."""

    code: Token
    duo: Tokens | None = None
    basis: Token | None = None
    permit: Token | None = None
    protocol: Hash | None = None
    pia: Token | None = None
    contract: Token | None = None


class Approval(Part):
    """The approval under which something is done, and the pseudonyms of who gave it."""

    id: Token
    by: Annotated[list[Pseudonym], Field(max_length=MAX_ITEMS)]
    meaning: Literal["approve", "review", "author"] | None = None
    expires_us: Count | None = None


class Egress(Part):
    """What left the building: its hash and size, never its content."""

    what: Literal["masked-update", "update", "evaluation", "telemetry", "artifact", "report"]
    hash: Hash
    bytes: Count
    to: Token
    encrypted: bool
    from_country: Token | None = None
    to_country: Token | None = None


class Peer(Part):
    """An entry in another party's log that this entry answers.

    `index`, `size` and `root` are known once the entry came with an inclusion proof to a checkpoint.
    """

    origin: Token
    leaf_hash: Hash
    index: Count | None = None
    size: Count | None = None
    root: Hash | None = None


class LedgerHead(Part):
    """The newest row of the privacy ledger when the entry was written."""

    seq: Count
    hash: Hash


class Budget(Part):
    """Privacy figures in the ledger's terms: of the job at this site so far, and of the data set."""

    population: Token
    policy: Token
    trust: Annotated[str, Field(pattern=r"^(?:local|secagg-[0-9]{1,4})$")]
    unit: Literal["record", "entity", "site"]
    eps_nano: Count
    """Epsilon times 10⁹, rounded up."""
    delta_e15: Count
    """Delta times 10¹⁵, rounded up."""
    steps: Count | None = None
    lost_steps: Count | None = None
    total_eps_nano: Count | None = None
    left_eps_nano: Count | None = None
    head: LedgerHead


class TreeHead(Part):
    """Size and root of a tree."""

    size: Count
    root: Hash


class PreviousLog(Part):
    """The epoch before this one, as it was left."""

    origin: Token
    size: Count
    root: Hash


class LostTree(Part):
    """A larger tree of the epoch before, known from its checkpoint or its peers, but not found."""

    size: Count
    root: Hash
    cause: Token


class Software(Part):
    """What program ran."""

    version: Token
    build: Token


class ClockState(Part):
    """Where the time came from, and whether the machine said that it was synchronised."""

    source: Token
    synchronised: bool


class SetAside(Part):
    """Bytes that an unclean end left behind the last whole entry, kept in the folder `aside`."""

    hash: Hash
    bytes: Count


class Evidence(Part):
    """Where the proof of a refusal or a fork is kept, by hash."""

    hash: Hash
    bytes: Count


class IndexRange(Part):
    """A range of indices: from the first, up to but not including `to`."""

    from_: Count = Field(alias="from")
    to: Count


class Query(Part):
    """The filters of a reading, as the reader gave them; a person only by pseudonym."""

    dataset: Token | None = None
    version: Hash | None = None
    job: Token | None = None
    site: Token | None = None
    actor: ActorId | None = None
    purpose: Token | None = None
    action: Token | None = None
    decision: Token | None = None
    entry: Token | None = None
    after: Count | None = None
    limit: Count | None = None
    since_us: Count | None = None
    until_us: Count | None = None
