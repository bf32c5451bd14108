"""What reaches the daemon's loop, from the link, from trainers, from threads, from the operator, from the clock."""

import threading
from dataclasses import dataclass, field

from audit.errors import AuditError
from federation.errors import ConfideError
from federation.messages import Body, JobId
from site_client.control import Asked
from site_client.phases import Background
from site_client.session import Work
from site_client.trainer_process import TrainerGone, TrainerSaid


@dataclass(slots=True)
class Arrived:
    """A message of the coordinator, whose signature the link checked. It is acknowledged when `done` is set."""

    body: Body
    done: threading.Event = field(default_factory=threading.Event)
    problem: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """The coordinator accepted the hello: messages can flow."""

    notice: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The attendance ended."""

    problem: ConfideError


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The coordinator has taken over a message."""

    message_id: str


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """The coordinator finally refused a message."""

    message_id: str
    problem: ConfideError


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of a phase is over."""

    job: JobId
    work: Work


@dataclass(frozen=True, slots=True)
class KillUnless:
    """A trainer that was told to stop had time enough."""

    job: JobId
    work: Work
    generation: int


@dataclass(frozen=True, slots=True)
class Rested:
    """A job whose trainer died has rested."""


@dataclass(frozen=True, slots=True)
class StartOverdue:
    """A trainer had time enough to load its libraries."""

    job: JobId
    generation: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time to look at what changes slowly: approvals, hours, certificate, acknowledgements."""


@dataclass(frozen=True, slots=True)
class GraceOver:
    """Phases under way had their time after the first signal."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """The operating system, or the operator, wants the daemon to end or to read its files again."""

    number: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The coordinator answered, or didn't, to a request for a new certificate."""

    certificate_pem: bytes
    problem: ConfideError | None = None


@dataclass(frozen=True, slots=True)
class LogRefuted:
    """Others hold a longer or another tree of this site's log, which is frozen now: the daemon must end."""

    problem: AuditError


Event = (
    Arrived
    | LogRefuted
    | Connected
    | Lost
    | Acknowledged
    | MessageRefused
    | Deadline
    | KillUnless
    | Rested
    | StartOverdue
    | Tick
    | GraceOver
    | Signalled
    | Renewed
    | TrainerSaid
    | TrainerGone
    | Background
    | Asked
)
