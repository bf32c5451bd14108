"""The federation's one family of errors: a class for each decision that a caller makes, a stable code for people.

A caller decides by class (retry, refuse, stop); a person looks the code up. The table of codes, with cause, cure
and exit status, is `federation.codes`; the page of codes is generated from it. A message says what, which, and
found against allowed; the hint says what to do. A message that may leave the party which owns the data holds no
value, no row count and no secret: other parties get the code and the reference.
"""

from typing import Final

from federation.codes import CODES, Code


class ConfideError(Exception):
    """Something that a person can act on, with a code from the table.

    Args:
        code: A key of `federation.codes.CODES`, such as ``CFD-P01``.
        message: What happened, which thing, found against allowed. One line.
        hint: What to do now. Empty only where nothing can be done.
        reference: A short id under which this party's log holds the details.
    """

    def __init__(self, code: str, message: str, *, hint: str = "", reference: str = "") -> None:
        super().__init__(message)
        self.kind: Final[Code] = CODES[code]
        self.message: Final = message
        self.hint: Final = hint or self.kind.cure
        self.reference: Final = reference

    @property
    def code(self) -> str:
        """Return the stable code, such as ``CFD-P01``."""
        return self.kind.code

    @property
    def exit_status(self) -> int:
        """Return the exit status of a command that ends with this error."""
        return self.kind.exit_status


class InvalidInput(ConfideError):
    """What was handed in is malformed or contradicts itself; nothing was changed."""


class ConfigurationWrong(ConfideError):
    """A file of this party's own home is wrong; the process must not start."""


class Unreachable(ConfideError):
    """The other side didn't answer; the same call may work later."""


class NotAuthenticated(ConfideError):
    """The other side isn't who it should be, or doesn't know us; trying again won't help."""


class PolicyRefused(ConfideError):
    """A policy, a budget or a person said no; recorded, final for this request."""


class TimedOut(ConfideError):
    """A deadline passed; what was begun has a defined end."""


class PeerMisbehaved(ConfideError):
    """The other party broke the protocol; nothing of its message was used."""


class OutOfOrder(ConfideError):
    """Our own caller asked for something that this state doesn't allow; the state is unchanged."""


class CheckFailed(ConfideError):
    """A check found something; the thing checked is unchanged."""
