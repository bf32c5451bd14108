"""A privacy ledger in memory, for tests of its rules."""

from collections.abc import Sequence
from typing import Any

from privacy.accounting import commands, ledger
from privacy.accounting.calibrate import noise_for
from privacy.accounting.commands import Command
from privacy.accounting.entries import Entry
from privacy.accounting.events import training_event
from privacy.accounting.state import State

DELTA = 1e-3


class Book:
    """A ledger in memory, with every entry it ever wrote."""

    def __init__(self) -> None:
        self.state = State()
        self.entries: list[Entry] = []

    def do(self, command: Command) -> tuple[Entry, ...]:
        """Return the entries, or raise the refusal."""
        outcome = ledger.step(self.state, command, time="2026-01-01T00:00:00Z", actor="alice")
        self.state = outcome.state
        self.entries += outcome.entries
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.entries

    def set_up(self, **policy: Any) -> "Book":
        self.do(commands.AddPopulation(population="people"))
        self.do(commands.AddAtom(atom="people/1", population="people", use="train", rule="hash"))
        self.do(commands.AddAtom(atom="people/2", population="people", use="evaluate", rule="hash"))
        fields = {"policy": "p1", "population": "people", "unit": "record", "epsilon": 4.0, "delta": DELTA}
        self.do(commands.AddPolicy(**{**fields, **policy}))
        self.do(self.version("heart"))
        return self

    def version(self, name: str, **fields: Any) -> commands.AddVersion:
        plain: dict[str, Any] = {
            "data_set": name,
            "version": "v1",
            "contract": "heart/v1",
            "population": "people",
            "train": ("people/1",),
            "evaluate": ("people/2",),
            "held_out_public": False,
            "units_declared": 200,
            "declared_by": "alice",
        }
        return commands.AddVersion(**{**plain, **fields})

    def reserve(self, job: str, epsilon: float, steps: int = 20, **fields: Any) -> tuple[Entry, ...]:
        noise = noise_for(epsilon=epsilon, delta=DELTA, sampling_rate=0.25, steps=steps)
        plain: dict[str, Any] = {
            "job": job,
            "digest": "d1",
            "use": "train",
            "data_set": "heart",
            "unit": "record",
            "epsilon": epsilon,
            "delta": DELTA,
            "events": {"local": training_event(0.25, noise)},
            "steps": steps,
        }
        return self.do(commands.Reserve(**{**plain, **fields}))

    def lease(self, job: str, number: int, steps: int, **fields: Any) -> tuple[Entry, ...]:
        plain = {"reservation": f"{job}/train", "number": number, "steps": steps, "round": 0, "attempt": 0}
        return self.do(commands.TakeLease(**{**plain, "holder": "h1", **fields}))

    def end(self, job: str, number: int, *, used: bool = True) -> tuple[Entry, ...]:
        return self.do(commands.EndLease(reservation=f"{job}/train", number=number, used=used))

    def settle(self, job: str) -> tuple[Entry, ...]:
        return self.do(commands.SettleJob(reservation=f"{job}/train", reason="over"))

    def total(self, atom: str = "people/1", policy: str = "p1") -> tuple[Sequence[int], Sequence[int]]:
        total = self.state.total(atom, self.state.policies[policy])
        return total.charged, total.held
