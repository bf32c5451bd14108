"""What one person alone doesn't do to a record: ask for a change, and let another account confirm it.

On the command line a person is the account of the operating system. A home whose configuration says `two_people: false`
lets one account do both, and its record says so. Whoever is root on the host can act as two accounts; no setting
prevents that.
"""

import os
from dataclasses import dataclass
from typing import Final

from audit import edge, epochs, reading
from audit.clock import microseconds
from audit.errors import ReadRefused
from audit.events import Actor, Approval
from audit.key_files import read_key
from audit.names import Origin
from audit.open_log import CLI
from audit.read_record import reader, talk
from audit.readers_file import read_readers
from audit.reading import FoundLog
from audit.requests import Request, Requests
from audit.visible import visible

_SHOWN: Final = ("index", "below", "basis", "reason", "database")


@dataclass(frozen=True, slots=True)
class Approved:
    """A change that may be carried out.

    Attributes:
        request: What was asked for, and by whom.
        by: Who confirmed it; who asked, where one account does it alone.
    """

    request: Request
    by: Actor

    @property
    def approval(self) -> Approval:
        """Return what the entry says: the request, and who asked and who confirmed."""
        people = list(dict.fromkeys([self.request.proposer, self.by.id]))
        return Approval(id=self.request.id, by=people, meaning="approve")


def now_us() -> int:
    """Return the time here."""
    return microseconds(edge.SystemClock().now())


def requests_of(log: FoundLog) -> Requests:
    """Return what waits in a home, signed by the key that its commands write with.

    Raises:
        SettingsUnsafe: The key is missing, or others may read it.
    """
    origin = reading.origin_of(log) or str(epochs.look_at(log.places).origin)
    name = Origin.parse(origin).writer(CLI)
    return Requests(log.places.folder, read_key(log.places.writer_key(CLI), name))


def ask(log: FoundLog, verb: str, arguments: dict[str, str | int]) -> Approved | None:
    """Return the approval where one account may act alone; else keep the request for another and return None."""
    own = reader(log)
    request = requests_of(log).propose(verb, arguments, proposer=own.id, now_us=now_us(), random_bytes=os.urandom)
    if read_readers(log.home).two_people:
        talk(f"request {request.id} waits: {described(request)}")
        talk(f"another compliance officer confirms it within 14 days: confide audit approve {request.id}")
        return None
    talk("note: two_people is false in this home: one person alone changes the record, and the record says so")
    return Approved(request, own)


def confirm(log: FoundLog, request_id: str) -> Approved:
    """Return the approval by the account at this process of what another asked for.

    Raises:
        LogUnreadable: There is no such request, it was altered, or it has expired.
        ReadRefused: The same account asked for it.
    """
    request, own = requests_of(log).find(request_id, now_us()), reader(log)
    if own.id == request.proposer:
        raise ReadRefused(
            f"account {edge.account()} asked for {request.id} and can't confirm it",
            hint="a second person does: another account, named in section audit of the home's configuration",
        )
    return Approved(request, own)


def done(log: FoundLog, approved: Approved) -> None:
    """Forget the request of a change that was carried out."""
    requests_of(log).drop(approved.request.id)


def described(request: Request) -> str:
    """Return one line that says what a request asks for."""
    said = [f"{name} {request.arguments[name]}" for name in _SHOWN if request.arguments.get(name, "") != ""]
    return visible(" ".join([request.verb, *said]))
