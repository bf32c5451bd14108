"""Making a policy: what its atoms have spent so far carries over, computed from the events themselves (R9).

A policy is never changed. One that replaces another starts from the same past: raising a budget gives nothing back.
"""

from privacy.accounting import entries
from privacy.accounting.commands import AddPolicy
from privacy.accounting.events import PureEpsilon, event_under
from privacy.accounting.filter import uniform_shares
from privacy.accounting.renyi import charges, grains
from privacy.accounting.state import Reservation, State
from privacy.errors import LedgerMisused


def add_policy(state: State, command: AddPolicy) -> list[entries.Body]:
    """Return the entry of a new policy.

    Raises:
        LedgerMisused: Its name is taken, what it is about or replaces is unknown, or its foreign slice doesn't hold
            what was already declared.
    """
    if command.policy in state.policies:
        raise LedgerMisused(f"policy {command.policy} exists; a policy is never changed")
    if command.population not in state.populations:
        raise LedgerMisused(f"population {command.population} is unknown")
    if command.replaces is not None:
        old = state.policies.get(command.replaces)
        if old is None or old.replaced or old.body.population != command.population:
            raise LedgerMisused(f"policy {command.replaces} isn't in force for population {command.population}")
    declared = max((state.foreign_delta(name) for name in _atoms_of(state, command.population)), default=0.0)
    if declared > command.foreign_delta:
        raise LedgerMisused(
            f"policy {command.policy} sets delta {command.foreign_delta:g} aside for releases made elsewhere, "
            f"{declared:g} was declared"
        )
    if not 0 <= command.foreign_delta < command.delta:
        raise LedgerMisused(f"delta {command.foreign_delta:g} set aside isn't below the policy's {command.delta:g}")
    body = entries.Policy.model_validate(
        {
            "policy": command.policy,
            "population": command.population,
            "unit": command.unit,
            "trust": command.trust,
            "epsilon": command.epsilon,
            "delta": command.delta,
            "foreign_delta": command.foreign_delta,
            "orders": command.orders,
            "shares": uniform_shares(command.delta - command.foreign_delta, command.orders),
            "epsilon_per_job": command.epsilon_per_job,
            "cap_rows": command.cap_rows,
            "approved_by": command.approved_by,
            "replaces": command.replaces,
            "carried": _carried(state, command),
            "charges": {
                name: charges(event_under(job.body.events, command.trust), command.orders)
                for name, job in _reservations_of(state, command.population).items()
            },
        }
    )
    return [body]


def _atoms_of(state: State, population: str) -> list[str]:
    return [name for name, atom in state.atoms.items() if atom.population == population]


def _reservations_of(state: State, population: str) -> dict[str, Reservation]:
    return {
        name: job
        for name, job in state.reservations.items()
        if any(state.atoms[atom].population == population for atom in job.body.atoms)
    }


def _carried(state: State, command: AddPolicy) -> dict[str, tuple[str, ...]]:
    """Return what each atom has spent so far, computed at the new policy's orders from the events themselves."""
    done = [
        (job.body.atoms, event_under(job.body.events, command.trust), job.leased)
        for job in _reservations_of(state, command.population).values()
    ]
    done += [(single.atoms, event_under(single.events, command.trust), single.count) for single in state.single]
    done += [(body.atoms, PureEpsilon(epsilon=body.epsilon), 1) for body in state.foreign if body.delta == 0]
    carried = {name: [0] * len(command.orders) for name in _atoms_of(state, command.population)}
    for atoms, event, count in done:
        row = [count * grains(charge) for charge in charges(event, command.orders)]
        for atom in atoms:
            if atom in carried:
                carried[atom] = [old + new for old, new in zip(carried[atom], row, strict=True)]
    return {atom: tuple(str(count) for count in spent) for atom, spent in carried.items()}
