"""Who may call what of the API, and what of that is recorded: who came, who was turned away, what was withheld.

Rules: one table (`PERMISSIONS`) says who may do what. A person who shows a token is recorded once an hour, an unknown
token at most once in ten seconds, so that a stranger can't fill the log; an act that a person may not do every time.
"""

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict

from federation.edge.clock import Clock
from federation.errors import NotAuthenticated, PolicyRefused

LOGIN_EVERY_S: Final = 3600.0
REFUSAL_EVERY_S: Final = 10.0


class Role(StrEnum):
    """What a person may do at the coordinator."""

    COORDINATOR = "coordinator"
    COMPLIANCE = "compliance"
    VIEWER = "viewer"


class Caller(BaseModel):
    """A person who showed a token."""

    model_config = ConfigDict(frozen=True)

    name: str
    roles: frozenset[Role]

    @property
    def role(self) -> str:
        """Return the role under which the person acts."""
        return min(self.roles, default="none")


ANYONE: Final = frozenset(Role)
LAUNCHERS: Final = frozenset({Role.COORDINATOR})
# Who may call what: the only place where a role is asked for.
PERMISSIONS: Final[dict[str, frozenset[Role]]] = {
    "validate": LAUNCHERS,
    "resolve": LAUNCHERS,
    "preview": LAUNCHERS,
    "submit": LAUNCHERS,
    "list": ANYONE,
    "show": ANYONE,
    "why": ANYONE,
    "events": ANYONE,
    "watch": ANYONE,
    "pause": LAUNCHERS,
    "resume": LAUNCHERS,
    "cancel": LAUNCHERS,
    "retry": LAUNCHERS,
    "result": frozenset({Role.COORDINATOR, Role.COMPLIANCE}),
    "file": frozenset({Role.COORDINATOR, Role.COMPLIANCE}),
    "sites": ANYONE,
}


class AccessTrail(Protocol):
    """Where it is recorded who came and who was turned away."""

    def logged_in(self, name: str, role: str, address: str) -> None:
        """A person showed a token that is known."""
        ...

    def login_refused(self, code: str, address: str) -> None:
        """Somebody showed a token that isn't."""
        ...

    def act_refused(self, name: str, role: str, act: str, job: str | None, code: str) -> None:
        """A person asked for an act that takes another role."""
        ...


class Access:
    """Admits the callers of one API. Safe for threads.

    Args:
        authenticate: Tells who shows a token, or None.
        trail: Records.
        clock: The time.
    """

    def __init__(self, authenticate: Callable[[str], Caller | None], trail: AccessTrail, clock: Clock) -> None:
        self._authenticate = authenticate
        self._trail = trail
        self._clock = clock
        self._lock = threading.Lock()
        self._seen_s: dict[str, float] = {}

    def admit(self, act: str, authorization: str | None, *, address: str, job: str | None = None) -> Caller:
        """Return who calls, if the person may do `act`.

        Raises:
            NotAuthenticated: No token, or one that isn't known.
            PolicyRefused: It takes another role.
            AuditError: It couldn't be recorded; nothing is done.
        """
        caller = self._authenticate(_bearer(authorization))
        if caller is None:
            if self._is_news("", REFUSAL_EVERY_S):
                self._trail.login_refused("CFD-J21", address)
            raise NotAuthenticated("CFD-J21", "the token is not known here, or was withdrawn")
        if self._is_news(caller.name, LOGIN_EVERY_S):
            self._trail.logged_in(caller.name, caller.role, address)
        allowed = PERMISSIONS[act]
        if not caller.roles & allowed:
            self._trail.act_refused(caller.name, caller.role, act, job, "CFD-J22")
            roles = ", ".join(sorted(allowed))
            raise PolicyRefused("CFD-J22", f"{caller.name} may not {act}: it takes the role {roles}")
        return caller

    def _is_news(self, who: str, every_s: float) -> bool:
        now_s = self._clock.monotonic_s()
        with self._lock:
            if who in self._seen_s and now_s - self._seen_s[who] < every_s:
                return False
            self._seen_s[who] = now_s
            return True


def _bearer(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthenticated("CFD-J21", "the request shows no token")
    return token.strip()
