"""The three ways out of a ledger that is behind or forked, each as commands that two people have approved.

*Replayed*: what the audit log recorded and the ledger doesn't hold is charged again, at the schedules that this site
agreed to. *Charged*: people name jobs and rounds, from the coordinator's log. *Retired*: parts of the data serve no
more. In doubt more is charged, never less: a round whose end was not recorded counts as all that it might have taken,
one that the restored ledger holds in part counts whole, and what the log doesn't describe well enough is not replayed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from privacy.accounting import commands
from privacy.accounting.entries import Use
from privacy.accounting.events import Event
from privacy.errors import LedgerMisused

Logged = Mapping[str, Any]

RETIRE: Final = "recover with --means retired, or --means charged with what the coordinator's log names"


@dataclass(frozen=True, slots=True)
class KnownJob:
    """What this site agreed to for a job: enough to charge its rounds.

    Attributes:
        data_set: Which one it trained on.
        train: The event of a training step; None where training isn't charged.
        evaluate: The event of an evaluation; None where none is charged.
        steps_per_round: Training steps of a round.
    """

    data_set: str
    train: Event | None
    evaluate: Event | None
    steps_per_round: int


@dataclass(slots=True)
class _Round:
    """What the log says of one job's round."""

    use: Use = "train"
    most: int | None = None
    steps: int = 0


@dataclass(slots=True)
class Replay:
    """What a replay charges, and what it marks as unbounded."""

    missed: list[commands.Missed] = field(default_factory=list)
    unbounded: list[commands.MarkUnbounded] = field(default_factory=list)


def replay(events: Iterable[Logged], *, holds: Callable[[Logged], bool], job: Callable[[str], KnownJob]) -> Replay:
    """Return what the audit log recorded and the ledger doesn't hold.

    Args:
        events: Entries about budget and data since the last recovery, in order.
        holds: Whether the ledger holds the head that an entry carries.
        job: What this site agreed to for a job; raises LedgerMisused where it doesn't know.

    Raises:
        LedgerMisused: Something is missing that the log doesn't describe well enough to be charged.
    """
    rounds: dict[tuple[str, int, int], _Round] = {}
    open_rounds: dict[str, tuple[str, int, int]] = {}
    found = Replay()
    missing = False
    for event in events:
        action = event["action"]
        known = "budget" not in event or holds(event)
        missing = missing or not known
        match action:
            case "budget.leased":
                if known and event["job"] in open_rounds:  # the ledger went on from there, so it holds what was before
                    rounds[open_rounds[event["job"]]].most = None
                open_rounds[event["job"]] = (event["job"], event["round"], event["index"])
                rounds[open_rounds[event["job"]]] = _Round(most=event["budget"].get("steps", 0))
            case "data.opened" if event.get("job") in open_rounds:
                rounds[open_rounds[event["job"]]].use = event["mode"]
            case "budget.spent":
                key = open_rounds.pop(event["job"], None)
                if key is not None:
                    rounds[key].most, rounds[key].steps = None, 0 if known else event["budget"].get("steps", 0)
            case _ if not known:
                found.unbounded += _unbounded_or_refused(event)
            case _:
                pass
    for (name, number, index), one in rounds.items():
        steps = one.steps if one.most is None else (one.most if missing else 0)
        if steps:
            found.missed.append(_missed(job(name), name, number, use=one.use, steps=steps, at=f"entry-{index}"))
    return found


def _unbounded_or_refused(event: Logged) -> list[commands.MarkUnbounded]:
    match event["action"], event.get("kind"):
        case (("budget.reserved" | "budget.released" | "budget.exhausted"), _):
            return []  # nothing was spent by these
        case "data.opened" | "data.closed", _:
            return []  # their rounds are told by budget.leased and budget.spent
        case "budget.charged", "unbounded":
            name = event["dataset"]["id"]
            return [
                commands.MarkUnbounded(data_set=name, use=use, reason="replayed from the audit log")
                for use in ("train", "evaluate")
            ]
        case action, _:
            raise LedgerMisused(
                f"entry {event['index']} of the audit log ({action}) is missing in the privacy ledger, and can't be "
                "charged from what the log says",
                hint=RETIRE,
            )


def _missed(known: KnownJob, job: str, number: int, *, use: Use, steps: int, at: str) -> commands.Missed:
    event = known.train if use == "train" else known.evaluate
    if event is None:
        raise LedgerMisused(f"job {job} has no noise at this site that its rounds could be charged by", hint=RETIRE)
    return commands.Missed(
        charge=f"recovered/{job}/{number}/{at}",
        data_set=known.data_set,
        use=use,
        purpose=f"round {number} of {job}",
        events={"local": event},
        steps=steps,
    )


def charge_rounds(rounds: Mapping[str, int], *, request: str, job: Callable[[str], KnownJob]) -> list[commands.Missed]:
    """Return the charges of whole rounds that people named, by job: training, and an evaluation with each round.

    Args:
        rounds: How many rounds of each job are missing.
        request: Id of the request, so that the same request charges once.
        job: What this site agreed to for a job.

    Raises:
        LedgerMisused: A job that this site doesn't know, or without noise.
    """
    found = []
    for name, count in rounds.items():
        known = job(name)
        for use, each in (("train", known.steps_per_round), ("evaluate", 1)):
            event = known.train if use == "train" else known.evaluate
            if event is not None and count > 0:
                found.append(
                    commands.Missed(
                        charge=f"recovered/{request}/{name}/{use}",
                        data_set=known.data_set,
                        use="train" if use == "train" else "evaluate",
                        purpose=f"{count} rounds of {name}",
                        events={"local": event},
                        steps=count * each,
                    )
                )
        if known.train is None and known.evaluate is None:
            raise LedgerMisused(
                f"job {name} has no noise at this site that its rounds could be charged by", hint=RETIRE
            )
    return found
