"""What the daemon and its trainer say to each other: strict JSON, one object a line, over two pipes; pure.

The trainer is the daemon's own child, yet it works on data and on models from elsewhere, so the daemon believes its
lines no more than a stranger's: each is decoded strictly, and what is not understood ends the trainer. Nothing here
is a secret. Reals travel as `float.hex`, files by their path inside the home.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from federation.messages import Count, EvaluationCounts, HexBytes, JobName, SiteName, Token

MAX_LINE_BYTES: Final = 8 << 20


class Line(BaseModel):
    """One line on a pipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# --- daemon to trainer ----------------------------------------------------------------------------------------


class ReceiptSource(Line):
    """The site's audit log, as far as the trainer must know it to check a receipt."""

    origin: str
    boot: str
    writer_key: str


class Setup(Line):
    """The first line: what holds for all phases of the job.

    Attributes:
        job: The job.
        site: This site.
        home: This site's home, where the registry of data sets is.
        plan: The plan's canonical bytes.
        contract: The contract's canonical bytes.
        dataset: Name of the data set, as the registry has it.
        version: Its version, ``sha256:`` and 64 hex digits.
        units_declared: The data set's public size.
        held_out_public: Whether its held-out units were declared public.
        threads: CPU threads that torch may use.
        lease_steps: Steps to ask for at a time.
        memory_bytes: Most private memory of the process; 0 is no limit.
        accelerators: How many devices beside the CPU may be used; 0 trains on the CPU.
        audit: Whose receipts open data: the log's origin, the running boot, the writer's public key.
    """

    say: Literal["setup"] = "setup"
    job: JobName
    site: SiteName
    home: str
    plan: HexBytes
    contract: HexBytes
    dataset: str
    version: str
    units_declared: Count
    held_out_public: bool
    threads: Annotated[int, Field(ge=1, le=1024)]
    lease_steps: Annotated[int, Field(ge=1, le=100_000)]
    memory_bytes: Count
    accelerators: Annotated[int, Field(ge=0, le=64)]
    audit: ReceiptSource


class Begin(Line):
    """Do a phase on the model in `model`; the receipt is the log's own word that the data may be opened."""

    say: Literal["begin"] = "begin"
    request: HexBytes
    model: str
    output: str
    receipt_index: Count
    receipt_leaf: HexBytes


class LeaseGiven(Line):
    """So many more steps are charged, durably."""

    say: Literal["lease"] = "lease"
    steps: Annotated[int, Field(ge=1, le=100_000)]


class LeaseRefused(Line):
    """No more steps: take no further sample."""

    say: Literal["no-lease"] = "no-lease"
    code: Token


class StopWork(Line):
    """End the phase under way at its next step."""

    say: Literal["stop"] = "stop"


# --- trainer to daemon ----------------------------------------------------------------------------------------


class Ready(Line):
    """The trainer has its libraries, its device, and a model and engine that passed every check without data."""

    say: Literal["ready"] = "ready"
    device: Annotated[str, Field(max_length=100)]
    engine: Annotated[str, Field(max_length=100)]
    versions: dict[Token, Annotated[str, Field(max_length=60)]]


class LeaseAsked(Line):
    """The trainer asks for `steps` more steps."""

    say: Literal["lease-asked"] = "lease-asked"
    steps: Annotated[int, Field(ge=1, le=100_000)]


class LeaseDone(Line):
    """All `steps` of the newest lease were taken and executed."""

    say: Literal["lease-done"] = "lease-done"
    steps: Annotated[int, Field(ge=1, le=100_000)]


class DataClosed(Line):
    """The trainer has read what it was allowed to and holds the data set open no longer."""

    say: Literal["data-closed"] = "data-closed"
    records: Count


class Done(Line):
    """A phase ended well: `steps` steps were run and are in the update that lies in the begun `output`."""

    say: Literal["done"] = "done"
    steps: Count
    evaluation: EvaluationCounts | None = None


class Failed(Line):
    """A phase ended without a result; details went to the trainer's own log under `reference`."""

    say: Literal["failed"] = "failed"
    code: Annotated[str, Field(pattern=r"^CFD-[A-Z][0-9]{2}$")]
    reference: Token


ToTrainer = Annotated[Setup | Begin | LeaseGiven | LeaseRefused | StopWork, Field(discriminator="say")]
FromTrainer = Annotated[Ready | LeaseAsked | LeaseDone | DataClosed | Done | Failed, Field(discriminator="say")]
_TO: Final[TypeAdapter[Setup | Begin | LeaseGiven | LeaseRefused | StopWork]] = TypeAdapter(ToTrainer)
_FROM: Final[TypeAdapter[Ready | LeaseAsked | LeaseDone | DataClosed | Done | Failed]] = TypeAdapter(FromTrainer)


class LineRefused(ValueError):
    """A line is none of the vocabulary; whoever sent it is ended."""


def encode(line: Line) -> bytes:
    """Return `line` as bytes with its line feed."""
    return line.model_dump_json().encode() + b"\n"


def decode_for_trainer(data: bytes) -> Setup | Begin | LeaseGiven | LeaseRefused | StopWork:
    """Return what the daemon said.

    Raises:
        LineRefused: Not one of its lines.
    """
    try:
        return _TO.validate_json(data)
    except ValidationError as problem:
        raise LineRefused(f"{problem.error_count()} problems in a line from the daemon") from None


def decode_from_trainer(data: bytes) -> Ready | LeaseAsked | LeaseDone | DataClosed | Done | Failed:
    """Return what the trainer said.

    Raises:
        LineRefused: Too long, or not one of its lines.
    """
    if len(data) > MAX_LINE_BYTES:
        raise LineRefused(f"a line of {len(data)} bytes, at most {MAX_LINE_BYTES}")
    try:
        return _FROM.validate_json(data)
    except ValidationError as problem:
        raise LineRefused(f"{problem.error_count()} problems in a line from the trainer") from None
