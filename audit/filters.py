"""Which entries a reader asks for: a closed list of filters, and the columns that lists show; pure."""

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from audit.canonical import Event
from audit.clock import microseconds
from audit.columns import FILTERS, matches
from audit.events import ACTIONS, FAMILIES, Query

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})\Z"
)
DECISIONS: Final = ("allowed", "refused", "failed")


class FilterRefused(ValueError):
    """A filter isn't understood; nothing was read. The command answers with its usage and status 2."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(f"{message}; {hint}")


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
        return matches(self.wanted(), event)

    def wanted(self) -> dict[str, str | int]:
        """Return the filters that are given, as a bundle's manifest holds them; paging isn't one."""
        return {name: value for name in FILTERS if (value := getattr(self, name)) is not None}

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
