"""Several commands to the ledger as one: all of them, or the refusal of one alone. Pure."""

from collections.abc import Iterable

from privacy.accounting import commands, ledger
from privacy.accounting.entries import Entry, link
from privacy.accounting.state import State, fold


def all_or_refusal(start: State, asked: Iterable[commands.Command], time: str, actor: str) -> ledger.Step:
    """Return what `asked` make of the ledger `start`; if one is refused, those before it in the bundle are undone."""
    state = start
    written: tuple[Entry, ...] = ()
    for command in asked:
        outcome = ledger.step(state, command, time=time, actor=actor)
        if outcome.refusal is not None:
            return _only_refusal(start, outcome, time, actor)
        state, written = outcome.state, (*written, *outcome.entries)
    return ledger.Step(state, written)


def _only_refusal(start: State, outcome: ledger.Step, time: str, actor: str) -> ledger.Step:
    """Return the refusal's own entries, put after `start` in place of what the same call had done before."""
    state = start
    written: tuple[Entry, ...] = ()
    for entry in outcome.entries:
        moved = link(state.head, time=time, actor=actor, body=entry.body)
        state, written = fold([moved], state), (*written, moved)
    return ledger.Step(state, written, outcome.refusal)
