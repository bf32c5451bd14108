"""What `confide job watch` prints: one line for each event that a person wants to see. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from coordinator.views import EventView
from federation.edge.tables import visible

METRICS: Final = ("loss", "accuracy", "auc")
PHASES: Final[Mapping[str, str]] = {
    "keyed": "agreeing on keys",
    "masked": "sending masked updates",
    "consented": "agreeing on who is in the sum",
    "revealed": "taking the masks off the sum",
}


def round_line(event: EventView) -> str:
    """Return the line of an event, or nothing where it isn't worth one."""
    fields = event.fields
    match event.name:
        case "round.done":
            return _round(fields)
        case "site.answered":
            reasons = ", ".join(map(str, fields.get("reasons") or ()))
            return visible(f"{fields['site']} {fields['decision']}" + (f": {reasons}" if reasons else ""))
        case "site.bad":
            return visible(f"round {int(fields['round']) + 1}: {fields['site']} left out: {fields['reason']}")
        case "round.abandoned":
            late = _late(fields.get("late") or {})
            return visible(f"round {int(fields['round']) + 1} abandoned: {fields['reason']}{late}")
        case "job.paused" | "job.completed" | "job.failed" | "job.cancelled":
            reason = f": {fields['reason']}" if fields.get("reason") else ""
            return visible(f"{event.job} {event.name.removeprefix('job.')}{reason}")
        case _:
            return ""


def phase_line(event: EventView) -> str:
    """Return what a round under secure sums is doing since an event, or nothing where the event says nothing of that.

    A terminal shows it until the next line comes.
    """
    if event.name != "sum.phase" or event.fields["phase"] not in PHASES:
        return ""
    doing = PHASES[event.fields["phase"]]
    return visible(f"round {int(event.fields['round']) + 1}: {doing}, {int(event.fields['asked'])} sites asked")


def _round(fields: Mapping[str, Any]) -> str:
    survivors = fields.get("survivors") or ()
    parts = [
        f"round {int(fields['round']) + 1}/{fields['rounds']}",
        f"quorum {len(survivors)}/{fields['quorum']}",
    ]
    late = _late(fields.get("late") or {})
    if late:
        parts.append(late.strip())
    metrics = fields.get("metrics") or {}
    for name in METRICS:
        if name in metrics:
            value = metrics[name]
            parts.append(f"{name} not available" if value is None else f"{name} {value:.3f}")
    if fields.get("epsilon") is not None and fields.get("epsilon_allowed") is not None:
        parts.append(f"eps {_up(fields['epsilon'])}/{fields['epsilon_allowed']:g}")
    parts.append(f"{fields['seconds']:.1f} s")
    parts.append(_size(int(fields.get("upload_bytes") or 0)))
    return visible("  ".join(parts))


def _late(late: Mapping[str, str]) -> str:
    return "  late: " + ", ".join(f"{site} ({reason})" for site, reason in sorted(late.items())) if late else ""


def _up(epsilon: float) -> str:
    """Return `epsilon` with two decimals, rounded up: what is printed is never too small."""
    hundredths = -int(-epsilon * 100 // 1)
    return f"{hundredths / 100:.2f}"


def _size(size: int) -> str:
    if size < 10_000:
        return f"{size} B"
    return f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"
