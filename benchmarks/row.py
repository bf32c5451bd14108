"""One line of the benchmarks' table."""

from typing import TypedDict


class Row(TypedDict):
    """What was measured (`value` in `unit`), against what, the target, and whether it holds (None: no target)."""

    name: str
    value: float
    unit: str
    against: str
    target: float | None
    holds: bool | None


def at_most(name: str, value: float, unit: str, *, target: float, against: str) -> Row:
    """Return a row whose target is an upper limit."""
    return Row(name=name, value=value, unit=unit, against=against, target=target, holds=value <= target)


def shown(name: str, value: float, unit: str, *, against: str) -> Row:
    """Return a row without a target."""
    return Row(name=name, value=value, unit=unit, against=against, target=None, holds=None)


def at_least(name: str, value: float, unit: str, *, target: float, against: str) -> Row:
    """Return a row whose target is a lower limit."""
    return Row(name=name, value=value, unit=unit, against=against, target=target, holds=value >= target)
