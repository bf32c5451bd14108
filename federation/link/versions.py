"""Whether two parties' versions go together, and who must upgrade if not; pure.

Each side says what it runs, which protocol it speaks and which oldest one it still understands. The side whose
protocol the other no longer understands must be upgraded. A different release with a protocol in common is
accepted, and both are told.
"""

from dataclasses import dataclass
from typing import Literal

from federation.messages import Versions


@dataclass(frozen=True, slots=True)
class Verdict:
    """`upgrade` names the side that must be upgraded, if any; `notice` is one sentence for people, or empty."""

    upgrade: Literal["site", "coordinator"] | None
    notice: str


def judge(*, coordinator: Versions, site: Versions) -> Verdict:
    """Return whether `site` may work with `coordinator`."""
    if site.protocol < coordinator.oldest_protocol:
        return Verdict("site", _sentence("upgrade the site", coordinator, site))
    if coordinator.protocol < site.oldest_protocol:
        return Verdict("coordinator", _sentence("upgrade the coordinator", coordinator, site))
    if site.protocol < coordinator.protocol or (
        site.protocol == coordinator.protocol and _is_older(site.confide, coordinator.confide)
    ):
        return Verdict(None, _sentence("accepted; upgrade the site when convenient", coordinator, site))
    if site.protocol != coordinator.protocol or site.confide != coordinator.confide:
        return Verdict(None, _sentence("accepted; upgrade the coordinator when convenient", coordinator, site))
    return Verdict(None, "")


def _sentence(decision: str, coordinator: Versions, site: Versions) -> str:
    return f"the coordinator runs {_describe(coordinator)}, the site runs {_describe(site)}: {decision}"


def _describe(versions: Versions) -> str:
    return f"confide {versions.confide} (protocol {versions.protocol}, from {versions.oldest_protocol})"


def _is_older(ours: str, theirs: str) -> bool:
    return _release(ours) < _release(theirs)


def _release(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("+", maxsplit=1)[0].split("."):
        digits = "".join(letter for letter in part if letter.isdigit())
        numbers.append(int(digits[:9]) if digits else 0)
    return tuple(numbers)
