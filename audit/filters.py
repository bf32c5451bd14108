"""Which entries a reader asks for: a closed list of filters, and the columns that lists show; pure."""

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from audit.canonical import Event
from audit.clock import microseconds
from audit.events import ACTIONS, FAMILIES, Query

COLUMNS: Final = (
    "action",
    "decision",
    "site",
    "job",
    "round",
    "dataset",
    "version",
    "purpose",
    "actor",
    "rule",
    "approval",
    "code",
    "eps_nano",
    "egress_bytes",
)
NUMBERS: Final = frozenset({"index", "round", "eps_nano", "egress_bytes"})
PARTS: Final = {
    "dataset": ("dataset", "id"),
    "version": ("dataset", "version"),
    "purpose": ("purpose", "code"),
    "actor": ("actor", "id"),
    "approval": ("approval", "id"),
    "eps_nano": ("budget", "eps_nano"),
    "egress_bytes": ("egress", "bytes"),
}
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})\Z"
)
DECISIONS: Final = ("allowed", "refused", "failed")


class FilterRefused(ValueError):
    """A filter isn't understood; nothing was read. The command answers with its usage and status 2."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(f"{message}; {hint}")


def column(event: Event, name: str) -> str | int | None:
    """Return what a list shows of `event` under `name`, None where the event has no such thing."""
    value: Any = event
    for step in PARTS.get(name, (name,)):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, str | int) else None


def parse_time(text: str) -> int:
    """Return `text` in microseconds since 1970: RFC 3339 with its zone, or a date, which means 00:00 UTC.

    Raises:
        FilterRefused: Another form, a time without zone, or no such day.
    """
    wrong = FilterRefused(
        f"{text[:40]!r} is not a time", hint="write 2026-03-01, or 2026-03-01T08:00:00Z with Z or an offset"
    )
    if _DATE.match(text):
        text += "T00:00:00Z"
    if not _MOMENT.match(text):
        raise wrong
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise wrong from None
    return max(0, microseconds(moment))


def format_time(t_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 in UTC, to the microsecond."""
    seconds, rest = divmod(t_us, 1_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{t_us} us"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def _check_token(name: str, value: str | None, allowed: frozenset[str]) -> None:
    if value is not None and value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=5, cutoff=0.5) or sorted(allowed & {*FAMILIES, *DECISIONS})
        raise FilterRefused(f"no {name} is named {value[:60]!r}", hint=f"perhaps: {', '.join(near)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a reader asks for; every filter that is given must hold.

    Attributes:
        dataset: Id of a data set.
        version: Its content hash.
        job: A job's id.
        site: A site's id.
        actor: A pseudonym, or the id of a service or party.
        purpose: A purpose code.
        action: An action, or a family such as ``budget``.
        decision: ``allowed``, ``refused`` or ``failed``.
        since_us: From this time on.
        until_us: Before this time.
        after: Only entries behind this index.
        limit: At most so many rows.
    """

    dataset: str | None = None
    version: str | None = None
    job: str | None = None
    site: str | None = None
    actor: str | None = None
    purpose: str | None = None
    action: str | None = None
    decision: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    after: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_token("action or family", self.action, frozenset(ACTIONS) | FAMILIES)
        _check_token("decision", self.decision, frozenset(DECISIONS))

    def match(self, index: int, event: Event) -> bool:
        """Return whether the entry at `index` is asked for."""
        if self.after is not None and index <= self.after:
            return False
        t_us = event["t_us"]
        if (self.since_us is not None and t_us < self.since_us) or (
            self.until_us is not None and t_us >= self.until_us
        ):
            return False
        if self.action is not None and event["action"] != self.action:
            family = event["action"].partition(".")[0]
            if "." in self.action or family != self.action:
                return False
        return all(
            (wanted := getattr(self, name)) is None or column(event, name) == wanted
            for name in ("dataset", "version", "job", "site", "actor", "purpose", "decision")
        )

    def recorded(self) -> Query:
        """Return the filters as `audit.read` records them.

        Raises:
            FilterRefused: A value that no entry can hold, so that it isn't recorded either.
        """
        names = ("dataset", "version", "job", "site", "actor", "purpose", "action", "decision")
        given: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        for name in ("since_us", "until_us", "after", "limit"):
            if (number := getattr(self, name)) is not None:
                given[name] = number
        try:
            return Query.model_validate(given)
        except ValidationError as errors:
            name = str(errors.errors(include_url=False, include_input=False)[0]["loc"][0])
            raise FilterRefused(
                f"the filter {name} can't match anything", hint="see `confide audit query --help`"
            ) from None
