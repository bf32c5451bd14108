"""What lists show of an event, and whether it is asked for; pure, and alike for queries and exported bundles."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from audit.canonical import Event

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
COMPARED: Final = ("dataset", "version", "job", "site", "actor", "purpose", "decision")
FILTERS: Final = (*COMPARED, "action", "since_us", "until_us")
"""What a reader may ask for, beside the paging of a list."""


def column(event: Event, name: str) -> str | int | None:
    """Return what a list shows of `event` under `name`, None where the event has no such thing."""
    value: Any = event
    for step in PARTS.get(name, (name,)):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, str | int) else None


LEFT: Final = frozenset({"update.sent", "evaluation.sent", "metrics.sent"})
"""Actions by which something leaves a site for a job."""


def matches(wanted: Mapping[str, str | int], event: Event) -> bool:
    """Return whether `event` is one of those asked for: every filter in `wanted` holds.

    Args:
        wanted: Values by name, of `FILTERS`; an action may be a family such as ``budget``; since ≤ time < until.
        event: With its common fields in form.
    """
    t_us = event["t_us"]
    if t_us < wanted.get("since_us", 0) or ("until_us" in wanted and t_us >= wanted["until_us"]):
        return False
    action = str(wanted.get("action", event["action"]))
    if action not in (event["action"], event["action"].partition(".")[0]):
        return False
    return all(column(event, name) == wanted[name] for name in COMPARED if name in wanted)


class Selection:
    """Which entries of a log are asked for, taken in order: those that match, and what left of a data set.

    What leaves names its job and no data set. So where a data set is asked for, what left for a job behind an opening
    of that data set for it belongs to the answer.

    Args:
        wanted: Values by name, as of `matches`.
    """

    def __init__(self, wanted: Mapping[str, str | int]) -> None:
        self._wanted = wanted
        self._of_what_left = {name: value for name, value in wanted.items() if name not in ("dataset", "version")}
        self._jobs: set[str] = set()

    def take(self, event: Event) -> bool:
        """Return whether the next entry is one of those asked for."""
        job = str(event.get("job", ""))
        if self._left(event):
            return job in self._jobs and matches(self._of_what_left, event)
        if event["action"] == "data.opened" and event["decision"] == "allowed" and job and self._is_of_data(event):
            self._jobs.add(job)
        return matches(self._wanted, event)

    def may(self, event: Event) -> bool:
        """Return whether an entry can be one of those asked for, whatever came before it."""
        return matches(self._of_what_left if self._left(event) else self._wanted, event)

    def _left(self, event: Event) -> bool:
        return "dataset" in self._wanted and event["action"] in LEFT and "dataset" not in event

    def _is_of_data(self, event: Event) -> bool:
        names = ("dataset", "version")
        return "dataset" in self._wanted and all(
            column(event, name) == self._wanted[name] for name in names if name in self._wanted
        )


def format_time(t_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 in UTC, to the microsecond."""
    seconds, rest = divmod(t_us, 1_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{t_us} us"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def epsilon_text(eps_nano: int) -> str:
    """Return epsilon with two decimals, rounded up."""
    hundredths = -(-eps_nano // 10_000_000)
    return f"{hundredths // 100}.{hundredths % 100:02d}"
