"""The ledger's decisions: `step(state, command) -> Step`, pure; the site's budget store makes them durable.

Rules kept here (privacy design, 8.3): a job is admitted as a whole or not at all, over all its atoms and policies
(R1); steps are charged before they are taken (R2), a lost lease stays charged (R3), settlement returns only what was
never leased (R4), a repeat with fresh noise is a new lease (R5), charges are exact multiples of a charge that was
rounded up (R6), a refusal names what would have been possible (R7), exhausted atoms serve no more (R9), releases made
elsewhere count (R10), what has no bound is recorded as such (R11). A refused command
changes nothing but adds the entry that says so.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from pydantic import ValidationError

from privacy.accounting import entries, releases
from privacy.accounting.admission import Refusal, Request, charge_rows, check, epsilon_spent
from privacy.accounting.commands import (
    AddAtom,
    AddForeign,
    AddPolicy,
    AddPopulation,
    AddVersion,
    ChargeOnce,
    Command,
    EndLease,
    MarkUnbounded,
    Recover,
    Reserve,
    SettleJob,
    TakeLease,
)
from privacy.accounting.convert import printed
from privacy.accounting.entries import Entry, Use
from privacy.accounting.filter import admits
from privacy.accounting.policies import add_policy
from privacy.accounting.renyi import ACCOUNTANT
from privacy.accounting.state import Reservation, ReservationState, State, apply
from privacy.errors import BudgetRefused, LeaseRefused, LedgerMisused, PrivacyError


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of a command: the new state, the entries that lead to it, and the refusal if it was one."""

    state: State
    entries: tuple[Entry, ...]
    refusal: PrivacyError | None = None


def reservation_name(job: str, use: Use) -> str:
    """Return the id of a job's reservation; a function of both, so that a repeat finds it."""
    return f"{job}/{use}"


def step(state: State, command: Command, *, time: str, actor: str) -> Step:
    """Return what `command` does to `state`; an idempotent repeat does nothing.

    Args:
        state: The folded ledger; unchanged.
        command: What is asked.
        time: RFC 3339, for the entries.
        actor: Who asks, for the entries.

    Raises:
        LedgerMisused: The command names what the ledger doesn't hold, or contradicts it.
        LeaseRefused: There is no such lease to take.
    """
    try:
        bodies, refusal = _decide(state, command)
    except ValidationError as error:
        raise LedgerMisused(f"the ledger can't hold this: {_first(error)}") from None
    written: list[Entry] = []
    current = state
    for body in bodies:
        current, entry = _append(current, body, time, actor)
        written.append(entry)
    for body in _newly_exhausted(current, command):
        current, entry = _append(current, body, time, actor)
        written.append(entry)
    return Step(current, tuple(written), refusal)


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def _append(state: State, body: entries.Body, time: str, actor: str) -> tuple[State, Entry]:
    entry = entries.link(state.head, time=time, actor=actor, body=body)
    return replace(apply(state, body, time), head=entry.head), entry


def _decide(  # noqa: C901 (one case for each command)
    state: State, command: Command
) -> tuple[list[entries.Body], PrivacyError | None]:
    match command:
        case AddPopulation():
            return _add_population(state, command), None
        case AddAtom():
            return _add_atom(state, command), None
        case AddPolicy():
            return add_policy(state, command), None
        case AddVersion():
            return _add_version(state, command), None
        case Reserve():
            return _reserve(state, command)
        case TakeLease():
            return _take_lease(state, command), None
        case EndLease():
            return _end_lease(state, command), None
        case SettleJob():
            return _settle(state, command), None
        case ChargeOnce():
            return releases.charge(state, command)
        case MarkUnbounded():
            return releases.mark_unbounded(state, command), None
        case AddForeign():
            return releases.add_foreign(state, command)
        case Recover():
            return releases.recover(state, command), None
        case _:
            assert_never(command)


def _add_population(state: State, command: AddPopulation) -> list[entries.Body]:
    if command.population in state.populations:
        raise LedgerMisused(f"population {command.population} exists")
    return [entries.Population(population=command.population, entity_column=command.entity_column)]


def _add_atom(state: State, command: AddAtom) -> list[entries.Body]:
    if command.atom in state.atoms:
        raise LedgerMisused(f"atom {command.atom} exists")
    if command.population not in state.populations:
        raise LedgerMisused(f"population {command.population} is unknown")
    return [entries.Atom(atom=command.atom, population=command.population, use=command.use, rule=command.rule)]


def _add_version(state: State, command: AddVersion) -> list[entries.Body]:
    for atom, use in [(name, "train") for name in command.train] + [(name, "evaluate") for name in command.evaluate]:
        known = state.atoms.get(atom)
        if known is None or known.population != command.population or known.use != use:
            raise LedgerMisused(f"atom {atom} isn't one of population {command.population} for {use}")
    if not command.train:
        raise LedgerMisused(f"data set {command.data_set} has no atom to train on")
    if any(old.version == command.version for old in state.versions.get(command.data_set, ())):
        return []
    return [
        entries.Version(
            data_set=command.data_set,
            version=command.version,
            contract=command.contract,
            population=command.population,
            train=command.train,
            evaluate=command.evaluate,
            held_out_public=command.held_out_public,
            units_declared=command.units_declared,
            declared_by=command.declared_by,
        )
    ]


def _reserve(state: State, command: Reserve) -> tuple[list[entries.Body], PrivacyError | None]:
    name = reservation_name(command.job, command.use)
    version = releases.newest_version(state, command.data_set)
    known = state.reservations.get(name)
    if known is not None:
        if (known.body.digest, known.body.data_set, known.body.steps) == (
            command.digest,
            command.data_set,
            command.steps,
        ):
            return [], None
        raise LedgerMisused(f"job {command.job} has a reservation for another plan")
    possible = releases.atoms_for(state, command.data_set, command.use)
    asked = command.atoms or possible
    if not set(asked) <= set(possible):
        raise LedgerMisused(f"job {command.job} names atoms that data set {command.data_set} doesn't have")
    request = Request(
        job=command.job,
        data_set=command.data_set,
        population=version.population,
        unit=command.unit,
        epsilon=command.epsilon,
        delta=command.delta,
        events=command.events,
        steps=command.steps,
        atoms=tuple(atom for atom in asked if atom not in state.exhausted),
    )
    refusal = check(state, request)
    if refusal is not None:
        return [_refuse_entry(command, refusal)], refusal.error
    body = entries.Reserve.model_validate(
        {
            "reservation": name,
            "job": command.job,
            "digest": command.digest,
            "use": command.use,
            "data_set": command.data_set,
            "version": version.version,
            "unit": command.unit,
            "atoms": request.atoms,
            "epsilon": command.epsilon,
            "delta": command.delta,
            "events": dict(command.events),
            "steps": command.steps,
            "charges": charge_rows(state, version.population, command.events),
            "accountant": ACCOUNTANT,
        }
    )
    return [body], None


def _refuse_entry(command: Reserve, refusal: Refusal) -> entries.Refuse:
    return entries.Refuse(
        job=command.job,
        digest=command.digest,
        use=command.use,
        data_set=command.data_set,
        epsilon=command.epsilon,
        delta=command.delta,
        steps=command.steps,
        cause=refusal.error.cause,
        policy=refusal.policy,
        admissible_epsilon=refusal.admissible_epsilon,
    )


def _reservation(state: State, name: str) -> Reservation:
    found = state.reservations.get(name)
    if found is None:
        raise LedgerMisused(f"there is no reservation {name}")
    return found


def _take_lease(state: State, command: TakeLease) -> list[entries.Body]:
    job = _reservation(state, command.reservation)
    body = entries.Lease(
        reservation=command.reservation,
        number=command.number,
        steps=command.steps,
        round=command.round,
        attempt=command.attempt,
        holder=command.holder,
    )
    if job.newest == body and command.number in job.open:
        return []
    if command.number != job.leases:
        raise LeaseRefused(f"lease {command.number} of {command.reservation} isn't the next, which is {job.leases}")
    if command.steps > job.remaining:
        raise LeaseRefused(
            f"{command.reservation}: {command.steps} steps asked, {job.remaining} of {job.body.steps} are left"
        )
    _check_filter(state, job, command.steps)
    return [body]


def _check_filter(state: State, job: Reservation, steps: int) -> None:
    """Refuse a step that a policy made since the reservation doesn't admit."""
    for name, row in job.charges.items():
        policy = state.policies[name]
        if policy.replaced:
            continue
        for atom in job.body.atoms:
            charged = state.total(atom, policy).charged
            after = [spent + steps * step for spent, step in zip(charged, row, strict=True)]
            if not admits(after, state.limits(atom, policy)):
                raise BudgetRefused(f"policy {name} doesn't cover {steps} more steps of {job.body.reservation}")


def _end_lease(state: State, command: EndLease) -> list[entries.Body]:
    job = _reservation(state, command.reservation)
    if command.number not in job.open:
        if command.number < job.leases:
            return []
        raise LedgerMisused(f"lease {command.number} of {command.reservation} was never taken")
    outcome: entries.LeaseEnd = entries.LeaseEnd(
        reservation=command.reservation, number=command.number, outcome="used" if command.used else "lost"
    )
    return [outcome]


def _settle(state: State, command: SettleJob) -> list[entries.Body]:
    job = _reservation(state, command.reservation)
    if job.state is ReservationState.SETTLED:
        return []
    lost: list[entries.Body] = [
        entries.LeaseEnd(reservation=command.reservation, number=number, outcome="lost") for number in job.open
    ]
    return [*lost, entries.Settle(reservation=command.reservation, reason=command.reason)]


def _newly_exhausted(state: State, command: Command) -> list[entries.Exhaust]:
    """Return the atoms whose spent ε prints as the whole budget, with nothing held (R9)."""
    if not isinstance(command, SettleJob | ChargeOnce | AddForeign | Recover):
        return []
    found: list[entries.Exhaust] = []
    for (atom, name), total in state.totals.items():
        policy = state.policies[name]
        if policy.replaced or (atom, name) in state.used_up or any(total.held) or not any(total.charged):
            continue
        if float(printed(epsilon_spent(state, policy, atom))) >= float(printed(policy.body.epsilon)):
            found.append(entries.Exhaust(atom=atom, policy=name))
    return found
