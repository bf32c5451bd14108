"""Changes of the record that wait for a second person, durable in the home until they are done or expire.

    <home>/audit/requests/<id>.request     a C2SP signed note, signed by the home's writer key `cli`:

        audit-request/v1 LF
        <canonical JSON {"arguments", "id", "proposed_us", "proposer", "verb"}> LF
        LF
        — <federation>/<party>/writer/cli <signature> LF

So a request was made by a command of this home, under the account that `proposer` stands for: who can write into the
folder and not read the key can neither make one nor alter one. The entry that a change writes names both people, under
the request's id.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from audit import canonical, durable
from audit.errors import AuditError, LogUnreadable, NoteRefused
from audit.note import Signer, parse_note, sign_note, signers_of

FOLDER: Final = "requests"
SUFFIX: Final = ".request"
HEADER: Final = "audit-request/v1"
EXPIRES_US: Final = 14 * 86_400 * 1_000_000
MAX_BYTES: Final = 1 << 16
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

    def text(self) -> str:
        """Return the lines that are signed."""
        value = {
            "id": self.id,
            "verb": self.verb,
            "arguments": dict(self.arguments),
            "proposer": self.proposer,
            "proposed_us": self.proposed_us,
        }
        return f"{HEADER}\n{canonical.encode(value).decode()}\n"

    def sign(self, signer: Signer) -> bytes:
        """Return the request's file."""
        return sign_note(self.text(), signer)

    @classmethod
    def open(cls, data: bytes, signer: Signer) -> Self:
        """Return the request in `data`, which `signer` signed.

        Raises:
            LogUnreadable: Another form, or no signature by that key.
        """
        try:
            signed = parse_note(data, limit_bytes=MAX_BYTES)
            if not signers_of(signed, [signer.key]):
                raise NoteRefused("no signature by this home")
            value = canonical.decode(signed.text.encode().split(b"\n")[1])
            made = cls(value["id"], value["verb"], value["arguments"], value["proposer"], value["proposed_us"])
            if made.text() != signed.text or not _ID.match(made.id) or type(made.proposed_us) is not int:
                raise NoteRefused("another form")
        except (AuditError, KeyError, TypeError, ValueError):
            raise LogUnreadable(
                "a request's file was altered, or not made by a command of this home", hint="ask for the change again"
            ) from None
        return made


class Requests:
    """The requests of one home.

    Args:
        folder: The home's folder `audit`.
        signer: The key that the home's commands write with.
    """

    def __init__(self, folder: Path, signer: Signer) -> None:
        self._folder = folder / FOLDER
        self._signer = signer

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
        durable.replace_file(self._path(request.id), request.sign(self._signer))
        return request

    def find(self, request_id: str, now_us: int) -> Request:
        """Return a request that waits.

        Raises:
            LogUnreadable: There is none of that id, it was altered, or it has expired.
        """
        path = self._path(request_id)
        if not _ID.match(request_id) or not path.is_file():
            raise LogUnreadable(f"no request {request_id[:40]}", hint="list them: confide audit requests")
        request = self._read(path)
        if request.id != request_id or now_us >= request.proposed_us + EXPIRES_US:
            raise LogUnreadable(f"request {request_id} has expired", hint="ask for the change again")
        return request

    def waiting(self, now_us: int) -> list[Request]:
        """Return the requests that wait, the oldest first.

        Raises:
            LogUnreadable: One was altered.
        """
        paths = self._folder.glob(f"r-*{SUFFIX}") if self._folder.is_dir() else ()
        found = [self._read(path) for path in sorted(paths) if _ID.match(path.stem)]
        return sorted(
            (one for one in found if now_us < one.proposed_us + EXPIRES_US), key=lambda one: (one.proposed_us, one.id)
        )

    def drop(self, request_id: str) -> None:
        """Forget a request that was done."""
        self._path(request_id).unlink(missing_ok=True)
        durable.sync_folder(self._folder)

    def _read(self, path: Path) -> Request:
        with path.open("rb") as stream:
            return Request.open(stream.read(MAX_BYTES + 1), self._signer)

    def _path(self, request_id: str) -> Path:
        return self._folder / f"{request_id}{SUFFIX}"
