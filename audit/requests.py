"""Changes of the record that wait for a second person, durable in the home until they are done or expire.

    <home>/audit/requests/<id>.json     canonical JSON {"arguments", "id", "proposed_us", "proposer", "verb"} and LF

The entry that a change writes names both people, under the request's id. Who may write here is who may write the log.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from audit import canonical, durable
from audit.errors import LogUnreadable, NotCanonical

FOLDER: Final = "requests"
EXPIRES_US: Final = 14 * 86_400 * 1_000_000
_ID: Final = re.compile(r"r-[0-9a-f]{12}\Z")


@dataclass(frozen=True, slots=True)
class Request:
    """What one person asks for.

    Attributes:
        id: ``r-`` and 12 hex digits.
        verb: The verb that is to be done.
        arguments: With what; texts and integers.
        proposer: The pseudonym of who asks.
        proposed_us: When.
    """

    id: str
    verb: str
    arguments: Mapping[str, str | int]
    proposer: str
    proposed_us: int

    def __bytes__(self) -> bytes:
        value = {
            "id": self.id,
            "verb": self.verb,
            "arguments": dict(self.arguments),
            "proposer": self.proposer,
            "proposed_us": self.proposed_us,
        }
        return canonical.encode(value) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Return the request whose bytes are exactly `data`.

        Raises:
            LogUnreadable: Another form.
        """
        try:
            value = canonical.decode(data[:-1])
            made = cls(value["id"], value["verb"], value["arguments"], value["proposer"], value["proposed_us"])
            if bytes(made) != data or not _ID.match(made.id) or type(made.proposed_us) is not int:
                raise ValueError
        except (NotCanonical, KeyError, TypeError, ValueError):
            raise LogUnreadable("a request's file was altered", hint="ask for the change again") from None
        return made


class Requests:
    """The requests of one home.

    Args:
        folder: The home's folder `audit`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def propose(
        self,
        verb: str,
        arguments: Mapping[str, str | int],
        *,
        proposer: str,
        now_us: int,
        random_bytes: Callable[[int], bytes],
    ) -> Request:
        """Return a new request, durable before it returns."""
        request = Request(f"r-{random_bytes(6).hex()}", verb, arguments, proposer, now_us)
        durable.make_folder(self._folder)
        durable.replace_file(self._path(request.id), bytes(request))
        return request

    def find(self, request_id: str, now_us: int) -> Request:
        """Return a request that waits.

        Raises:
            LogUnreadable: There is none of that id, or it has expired.
        """
        path = self._path(request_id)
        if not _ID.match(request_id) or not path.is_file():
            raise LogUnreadable(f"no request {request_id[:40]}", hint="list them: confide audit requests")
        request = Request.parse(path.read_bytes())
        if request.id != request_id or now_us >= request.proposed_us + EXPIRES_US:
            raise LogUnreadable(f"request {request_id} has expired", hint="ask for the change again")
        return request

    def waiting(self, now_us: int) -> list[Request]:
        """Return the requests that wait, the oldest first."""
        paths = self._folder.glob("r-*.json") if self._folder.is_dir() else ()
        found = [Request.parse(path.read_bytes()) for path in sorted(paths) if _ID.match(path.stem)]
        return sorted(
            (one for one in found if now_us < one.proposed_us + EXPIRES_US), key=lambda one: (one.proposed_us, one.id)
        )

    def drop(self, request_id: str) -> None:
        """Forget a request that was done."""
        self._path(request_id).unlink(missing_ok=True)
        durable.sync_folder(self._folder)

    def _path(self, request_id: str) -> Path:
        return self._folder / f"{request_id}.json"
