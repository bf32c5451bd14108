"""Draws a machine's table of transitions as the Mermaid diagram that stands in the README of this folder. Pure."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from coordinator import job_machine, round_machine, site_machine


def words(name: str) -> str:
    """Return the name of an event's class as words: ``SiteAnswered`` is ``site answered``."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def diagram(start: StrEnum, moves: Iterable[tuple[StrEnum, str, StrEnum]]) -> str:
    """Return a state diagram; events between the same two states share an arrow, and staying isn't drawn."""
    arrows: dict[tuple[str, str], list[str]] = {}
    states = {start.value: False}
    for before, event, after in moves:
        states[before.value] = True
        states.setdefault(after.value, False)
        if before is not after:
            arrows.setdefault((before.value, after.value), []).append(event)
    lines = ["stateDiagram-v2", f"    [*] --> {start.value}"]
    lines += [f"    {before} --> {after}: {', '.join(sorted(events))}" for (before, after), events in arrows.items()]
    lines += [f"    {state} --> [*]" for state, goes_on in states.items() if not goes_on]
    return "\n".join(lines)


def _moves(table: Mapping[Any, Mapping[type[Any], frozenset[Any]]]) -> list[tuple[StrEnum, str, StrEnum]]:
    return [
        (before, words(event.__name__), after)
        for before, events in table.items()
        for event, targets in events.items()
        for after in sorted(targets)
    ]


def all_diagrams() -> dict[str, str]:
    """Return the diagram of each machine by its heading in the README."""
    site_moves = [
        (before, event.value, after) for before, events in site_machine.TABLE.items() for event, after in events.items()
    ]
    return {
        "A job": diagram(job_machine.JobState.DRAFT, _moves(job_machine.TABLE)),
        "An attempt of a round": diagram(round_machine.RoundState.OPEN, _moves(round_machine.TABLE)),
        "A site in a job": diagram(site_machine.SiteState.INVITED, site_moves),
    }
