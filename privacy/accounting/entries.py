"""The ledger's entries: what one says, its one byte string, and the hash chain that makes altering one visible.

An entry is (seq, time, actor, prev, body); its text is JSON with sorted keys, without spaces and without floats; its
hash is SHA-256("confide-ledger/v1\\n" ‖ text), and `prev` is the hash of the entry before. Bodies keep the events
with their parameters, so that a later accountant can compute them again, and the charge per step under each policy,
so that old decisions replay exactly. Nothing here holds a row count, a batch size, noise or a key.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from privacy.accounting.events import Event, Frozen, HexFloat, PositiveHexFloat
from privacy.errors import LedgerBroken

Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@=+-]{0,127}$")]
Use = Literal["train", "evaluate"]
Charges = dict[Token, tuple[PositiveHexFloat, ...]]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Grains = Annotated[str, Field(pattern=r"^[0-9]{1,80}$")]

GENESIS: Final = "0" * 64


class Population(Frozen):
    """The people, or rows, that data sets are about; several data sets may share one."""

    kind: Literal["population"] = "population"
    population: Token
    entity_column: str = ""


class Policy(Frozen):
    """A promise about a population; immutable. `carried` and `charges` are what it starts from."""

    kind: Literal["policy"] = "policy"
    policy: Token
    population: Token
    unit: Literal["record", "entity", "site"]
    trust: Annotated[str, Field(pattern=r"^(local|secagg-[0-9]{1,4})$")]
    epsilon: PositiveHexFloat
    delta: Annotated[HexFloat, Field(gt=0, lt=1)]
    foreign_delta: Annotated[HexFloat, Field(ge=0, lt=1)]
    orders: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    shares: tuple[PositiveHexFloat, ...]
    epsilon_per_job: PositiveHexFloat | None
    cap_rows: Positive | None
    approved_by: tuple[str, ...]
    replaces: Token | None
    carried: dict[Token, tuple[Grains, ...]]
    charges: Charges


class Atom(Frozen):
    """Units that entered together; the rule is a function of id and intake time, never of content."""

    kind: Literal["atom"] = "atom"
    atom: Token
    population: Token
    use: Use
    rule: str


class Version(Frozen):
    """One content of a data set, the atoms it may read, and its public number of units."""

    kind: Literal["version"] = "version"
    data_set: Token
    version: Token
    contract: str
    population: Token
    train: tuple[Token, ...]
    evaluate: tuple[Token, ...]
    held_out_public: bool
    units_declared: Positive
    declared_by: str


class Reserve(Frozen):
    """A job's whole schedule, held in all its atoms before the site says yes."""

    kind: Literal["reserve"] = "reserve"
    reservation: Token
    job: Token
    digest: Token
    use: Use
    data_set: Token
    version: Token
    unit: Literal["record", "entity", "site"]
    atoms: Annotated[tuple[Token, ...], Field(min_length=1)]
    epsilon: PositiveHexFloat
    delta: Annotated[HexFloat, Field(gt=0, lt=1)]
    events: dict[str, Event]
    steps: Positive
    charges: Charges
    accountant: Token


class Refuse(Frozen):
    """An admission that said no, and what this kind of job could have had."""

    kind: Literal["refuse"] = "refuse"
    job: Token
    digest: Token
    use: Use
    data_set: Token
    epsilon: PositiveHexFloat
    delta: Annotated[HexFloat, Field(gt=0, lt=1)]
    steps: Positive
    cause: Token
    policy: Token | None
    admissible_epsilon: HexFloat | None


class Lease(Frozen):
    """Steps moved from held to charged; durable before the trainer may take them.

    `holder` names the process that asked, so that only it can look up a commit whose outcome it doesn't know.
    """

    kind: Literal["lease"] = "lease"
    reservation: Token
    number: Count
    steps: Positive
    round: Count
    attempt: Count
    holder: Token


class LeaseEnd(Frozen):
    """What became of a lease. Both outcomes are spent."""

    kind: Literal["lease-end"] = "lease-end"
    reservation: Token
    number: Count
    outcome: Literal["used", "lost"]


class Settle(Frozen):
    """The end of a job here: what was never leased goes back."""

    kind: Literal["settle"] = "settle"
    reservation: Token
    reason: str


class Charge(Frozen):
    """One single release, such as a noisy count, charged as it is made."""

    kind: Literal["charge"] = "charge"
    charge: Token
    data_set: Token
    atoms: Annotated[tuple[Token, ...], Field(min_length=1)]
    purpose: str
    events: dict[str, Event]
    count: Positive
    charges: Charges
    accountant: Token


class Exhaust(Frozen):
    """An atom that has nothing left under a policy; it serves no further job."""

    kind: Literal["exhaust"] = "exhaust"
    atom: Token
    policy: Token


class Unbounded(Frozen):
    """From here on no bound holds for these atoms."""

    kind: Literal["unbounded"] = "unbounded"
    job: Token | None
    data_set: Token
    atoms: tuple[Token, ...]
    reason: str


class Foreign(Frozen):
    """A release made outside of this ledger, as (`epsilon`, `delta`); never turned into Rényi terms unless δ is 0."""

    kind: Literal["foreign"] = "foreign"
    foreign: Token
    data_set: Token
    atoms: Annotated[tuple[Token, ...], Field(min_length=1)]
    epsilon: PositiveHexFloat
    delta: Annotated[HexFloat, Field(ge=0, lt=1)]
    what: str
    approved_by: tuple[str, ...]
    charges: Charges
    accountant: Token


class Recover(Frozen):
    """How a ledger that was older than, or another than, its witnessed head was made good, by two people.

    What was charged stands in the `charge` entries before this one; `atoms` are retired.
    """

    kind: Literal["recover"] = "recover"
    means: Literal["replayed", "charged", "retired"]
    witnessed_seq: Annotated[int, Field(ge=-1)]
    witnessed_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    charged: tuple[Token, ...]
    atoms: tuple[Token, ...]
    reason: str
    approved_by: tuple[str, ...]


Body = Annotated[
    Population
    | Policy
    | Atom
    | Version
    | Reserve
    | Refuse
    | Lease
    | LeaseEnd
    | Settle
    | Charge
    | Exhaust
    | Unbounded
    | Foreign
    | Recover,
    Field(discriminator="kind"),
]

_BODY: Final[TypeAdapter[Any]] = TypeAdapter(Body)


@dataclass(frozen=True, slots=True)
class Head:
    """Position and hash of the newest entry; `seq` is −1 for an empty ledger."""

    seq: int = -1
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry in its place in the chain."""

    seq: int
    time: str
    actor: str
    prev: str
    body: Body
    text: str
    hash: str

    @property
    def id(self) -> str:
        """Return the id that the audit log uses for this row: the first 32 digits of its hash."""
        return self.hash[:32]

    @property
    def head(self) -> Head:
        """Return the head of a ledger that ends here."""
        return Head(self.seq, self.hash)


def link(head: Head, *, time: str, actor: str, body: Body) -> Entry:
    """Return the entry that puts `body` after `head`."""
    seq = head.seq + 1
    text = _text(seq, time, actor, head.hash, body)
    return Entry(seq, time, actor, head.hash, body, text, _hash(text))


def read(head: Head, text: str, claimed_hash: str) -> Entry:
    """Return the entry written in `text`, which must follow `head` and have the claimed hash.

    Raises:
        LedgerBroken: Torn, altered, out of place, or not in the one form that its content has.
    """
    number = head.seq + 1
    if _hash(text) != claimed_hash:
        raise LedgerBroken(f"entry {number} of the privacy ledger doesn't have its hash")
    try:
        value = json.loads(text)
        body: Body = _BODY.validate_json(json.dumps(value["body"]))
        entry = link(head, time=value["time"], actor=value["actor"], body=body)
    except (ValueError, KeyError, TypeError, ValidationError):
        raise LedgerBroken(f"entry {number} of the privacy ledger can't be read") from None
    if entry.text != text:
        raise LedgerBroken(f"entry {number} of the privacy ledger doesn't follow the one before it")
    return entry


def read_all(rows: Iterable[tuple[str, str]], head: Head | None = None) -> Iterable[Entry]:
    """Yield the entries of (text, hash) rows in order, each checked against the one before."""
    place = head or Head()
    for text, claimed in rows:
        entry = read(place, text, claimed)
        place = entry.head
        yield entry


def _text(seq: int, time: str, actor: str, prev: str, body: Body) -> str:
    value = {"seq": seq, "time": time, "actor": actor, "prev": prev, "body": body.model_dump(mode="json")}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hash(text: str) -> str:
    return hashlib.sha256(b"confide-ledger/v1\n" + text.encode("utf-8")).hexdigest()
