"""What the ledger's entries add up to: `fold` of all entries is the state, and the only way to get one.

Totals are exact integers (of 2^-60), so the order of independent entries doesn't matter and a refund returns exactly
what was held.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import fsum, inf, nextafter
from types import MappingProxyType
from typing import Any, Final, assert_never

from privacy.accounting import entries
from privacy.accounting.entries import Entry, Head
from privacy.accounting.filter import limits
from privacy.accounting.renyi import grains, grains_above

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


REFUSALS_KEPT: Final = 100
"""How many of the newest refusals are shown; the entries hold all."""


class ReservationState(StrEnum):
    """Where a reservation is: `held → running → settled`."""

    HELD = "held"
    RUNNING = "running"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Total:
    """What one atom has spent, and what jobs hold of it, under one policy; grains per order."""

    charged: tuple[int, ...]
    held: tuple[int, ...]

    @property
    def committed(self) -> tuple[int, ...]:
        """Return charged plus held."""
        return tuple(spent + kept for spent, kept in zip(self.charged, self.held, strict=True))


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its limits in grains."""

    body: entries.Policy
    limits: tuple[int, ...]
    replaced: bool = False
    since: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A job's reservation and its leases."""

    body: entries.Reserve
    charges: Mapping[str, tuple[int, ...]]
    since: str
    state: ReservationState = ReservationState.HELD
    leases: int = 0
    leased: int = 0
    used: int = 0
    lost: int = 0
    newest: entries.Lease | None = None
    open: Mapping[int, entries.Lease] = field(default_factory=lambda: _EMPTY)

    @property
    def remaining(self) -> int:
        """Return the steps that can still be leased."""
        return 0 if self.state is ReservationState.SETTLED else self.body.steps - self.leased


@dataclass(frozen=True, slots=True)
class State:
    """The folded ledger."""

    head: Head = field(default_factory=Head)
    populations: Mapping[str, entries.Population] = field(default_factory=lambda: _EMPTY)
    policies: Mapping[str, Policy] = field(default_factory=lambda: _EMPTY)
    atoms: Mapping[str, entries.Atom] = field(default_factory=lambda: _EMPTY)
    versions: Mapping[str, tuple[entries.Version, ...]] = field(default_factory=lambda: _EMPTY)
    reservations: Mapping[str, Reservation] = field(default_factory=lambda: _EMPTY)
    single: tuple[entries.Charge, ...] = ()
    totals: Mapping[tuple[str, str], Total] = field(default_factory=lambda: _EMPTY)
    foreign: tuple[entries.Foreign, ...] = ()
    recovered: tuple[tuple[str, entries.Recover], ...] = ()
    refused: tuple[tuple[str, entries.Refuse], ...] = ()
    used_up: frozenset[tuple[str, str]] = frozenset()
    retired: frozenset[str] = frozenset()
    unbounded: Mapping[str, str] = field(default_factory=lambda: _EMPTY)

    @property
    def exhausted(self) -> frozenset[str]:
        """Return the atoms that serve no job: retired, or with nothing left under a policy in force."""
        return self.retired | {atom for atom, policy in self.used_up if not self.policies[policy].replaced}

    def limits(self, atom: str, policy: Policy) -> tuple[int, ...]:
        """Return a policy's limits for an atom: lowered by the ε of releases made elsewhere that have a δ (R10)."""
        lowered = sum(grains_above(epsilon) for epsilon in self.foreign_epsilons(atom))
        return tuple(limit - lowered for limit in policy.limits) if lowered else policy.limits

    def foreign_epsilons(self, atom: str) -> tuple[float, ...]:
        """Return ε of each release made elsewhere on an atom that has a δ; one without is among the totals."""
        return tuple(body.epsilon for body in self.foreign if body.delta > 0 and atom in body.atoms)

    def foreign_delta(self, atom: str) -> float:
        """Return the sum of δ of the releases made elsewhere on an atom, rounded up."""
        deltas = [body.delta for body in self.foreign if body.delta > 0 and atom in body.atoms]
        return nextafter(fsum(deltas), inf) if len(deltas) > 1 else fsum(deltas)

    def active_policies(self, population: str) -> tuple[Policy, ...]:
        """Return the policies of a population that no other has replaced, by name."""
        found = (policy for policy in self.policies.values() if policy.body.population == population)
        return tuple(sorted((policy for policy in found if not policy.replaced), key=lambda item: item.body.policy))

    def total(self, atom: str, policy: Policy) -> Total:
        """Return the total of an atom under a policy; zeros where nothing happened."""
        zeros = (0,) * len(policy.limits)
        return self.totals.get((atom, policy.body.policy), Total(zeros, zeros))


def fold(chain: Iterable[Entry], state: State | None = None) -> State:
    """Return the state after all entries of `chain`."""
    current = state or State()
    for entry in chain:
        current = replace(apply(current, entry.body, entry.time), head=entry.head)
    return current


def apply(state: State, body: entries.Body, time: str) -> State:  # noqa: C901 (one case for each kind of entry)
    """Return `state` after one entry. Entries are facts: nothing is decided or refused here."""
    match body:
        case entries.Population():
            return replace(state, populations={**state.populations, body.population: body})
        case entries.Policy():
            return _policy(state, body, time)
        case entries.Atom():
            return replace(state, atoms={**state.atoms, body.atom: body})
        case entries.Version():
            versions = (*state.versions.get(body.data_set, ()), body)
            return replace(state, versions={**state.versions, body.data_set: versions})
        case entries.Reserve():
            return _reserve(state, body, time)
        case entries.Lease():
            return _lease(state, body)
        case entries.LeaseEnd():
            return _lease_end(state, body)
        case entries.Settle():
            return _settle(state, body)
        case entries.Charge():
            moved = _move(state, body.atoms, _in_grains(body.charges), charged=body.count, held=0)
            return replace(moved, single=(*state.single, body))
        case entries.Exhaust():
            return replace(state, used_up=state.used_up | {(body.atom, body.policy)})
        case entries.Foreign():
            moved = _move(state, body.atoms, _in_grains(body.charges), charged=1, held=0)
            return replace(moved, foreign=(*state.foreign, body))
        case entries.Recover():
            return replace(state, recovered=(*state.recovered, (time, body)), retired=state.retired | set(body.atoms))
        case entries.Unbounded():
            marks = {atom: state.unbounded.get(atom, time) for atom in body.atoms}
            return replace(state, unbounded={**state.unbounded, **marks})
        case entries.Refuse():
            return replace(state, refused=(*state.refused, (time, body))[-REFUSALS_KEPT:])
        case _:
            assert_never(body)


def _in_grains(charges: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[int, ...]]:
    return {policy: tuple(grains(charge) for charge in row) for policy, row in charges.items()}


def _move(
    state: State, atoms: Iterable[str], charges: Mapping[str, tuple[int, ...]], *, charged: int, held: int
) -> State:
    """Return `state` with `charged` and `held` steps added, in every atom and under every policy of `charges`."""
    totals = dict(state.totals)
    for atom in atoms:
        for name, row in charges.items():
            old = state.total(atom, state.policies[name])
            totals[atom, name] = Total(
                tuple(spent + charged * step for spent, step in zip(old.charged, row, strict=True)),
                tuple(kept + held * step for kept, step in zip(old.held, row, strict=True)),
            )
    return replace(state, totals=totals)


def _policy(state: State, body: entries.Policy, time: str) -> State:
    policies = dict(state.policies)
    policies[body.policy] = Policy(body, limits(body.epsilon, body.orders, body.shares), since=time)
    if body.replaces is not None:
        policies[body.replaces] = replace(policies[body.replaces], replaced=True)
    totals = dict(state.totals)
    zeros = (0,) * len(body.orders)
    for atom, spent in body.carried.items():
        totals[atom, body.policy] = Total(tuple(int(count) for count in spent), zeros)
    reservations = dict(state.reservations)
    for name, row in _in_grains(body.charges).items():
        old = reservations[name]
        reservations[name] = replace(old, charges={**old.charges, body.policy: row})
    grown = replace(state, policies=policies, totals=totals, reservations=reservations)
    for name, row in _in_grains(body.charges).items():
        job = reservations[name]
        grown = _move(grown, job.body.atoms, {body.policy: row}, charged=0, held=job.remaining)
    return grown


def _reserve(state: State, body: entries.Reserve, time: str) -> State:
    reservation = Reservation(body, _in_grains(body.charges), time)
    moved = _move(state, body.atoms, reservation.charges, charged=0, held=body.steps)
    return replace(moved, reservations={**state.reservations, body.reservation: reservation})


def _lease(state: State, body: entries.Lease) -> State:
    old = state.reservations[body.reservation]
    new = replace(
        old,
        state=ReservationState.RUNNING,
        leases=old.leases + 1,
        leased=old.leased + body.steps,
        newest=body,
        open={**old.open, body.number: body},
    )
    moved = _move(state, old.body.atoms, old.charges, charged=body.steps, held=-body.steps)
    return replace(moved, reservations={**state.reservations, body.reservation: new})


def _lease_end(state: State, body: entries.LeaseEnd) -> State:
    old = state.reservations[body.reservation]
    steps = old.open[body.number].steps
    rest = {number: lease for number, lease in old.open.items() if number != body.number}
    used, lost = (steps, 0) if body.outcome == "used" else (0, steps)
    new = replace(old, used=old.used + used, lost=old.lost + lost, open=rest)
    return replace(state, reservations={**state.reservations, body.reservation: new})


def _settle(state: State, body: entries.Settle) -> State:
    old = state.reservations[body.reservation]
    moved = _move(state, old.body.atoms, old.charges, charged=0, held=-old.remaining)
    new = replace(old, state=ReservationState.SETTLED)
    return replace(moved, reservations={**state.reservations, body.reservation: new})
