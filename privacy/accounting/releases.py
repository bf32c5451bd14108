"""What is charged beside jobs: single releases, releases made elsewhere, uses without a bound, and recovery.

A single release is admitted before it is made. A release made elsewhere has happened, so it is counted against the
promise or, where the promise doesn't hold with it, refused until the promise is raised. Recovery charges what happened
whatever the promise says: a restored backup never brings budget back.
"""

from privacy.accounting import entries
from privacy.accounting.admission import ChargeRequest, admissible, charge_rows
from privacy.accounting.commands import AddForeign, ChargeOnce, MarkUnbounded, Missed, Recover
from privacy.accounting.entries import Use
from privacy.accounting.events import LOCAL, PureEpsilon
from privacy.accounting.filter import admits
from privacy.accounting.renyi import ACCOUNTANT, grains_above
from privacy.accounting.state import Policy, ReservationState, State
from privacy.errors import BudgetRefused, DeltaInvalid, LedgerMisused, PrivacyError


def newest_version(state: State, data_set: str) -> entries.Version:
    """Return the newest version of a data set.

    Raises:
        LedgerMisused: The ledger doesn't hold it.
    """
    versions = state.versions.get(data_set)
    if not versions:
        raise LedgerMisused(f"data set {data_set} is unknown to the privacy ledger")
    return versions[-1]


def atoms_for(state: State, data_set: str, use: Use) -> tuple[str, ...]:
    """Return the atoms that a use of a data set may read.

    Raises:
        LedgerMisused: There are none.
    """
    version = newest_version(state, data_set)
    atoms = version.train if use == "train" else version.evaluate
    if not atoms:
        raise LedgerMisused(f"data set {data_set} has no units that can be charged for {use}")
    return atoms


def charge(state: State, command: ChargeOnce) -> tuple[list[entries.Body], PrivacyError | None]:
    """Return the entry of a single release, or why it isn't admitted. The same id again does nothing."""
    if any(old.charge == command.charge for old in state.single):
        return [], None
    atoms = atoms_for(state, command.data_set, command.use)
    population = newest_version(state, command.data_set).population
    error = admissible(state, ChargeRequest(command.data_set, population, atoms, command.events, command.count))
    if error is not None:
        return [], error
    return [_charge_entry(state, command, atoms)], None


def _charge_entry(state: State, command: ChargeOnce, atoms: tuple[str, ...]) -> entries.Body:
    population = newest_version(state, command.data_set).population
    body: entries.Charge = entries.Charge.model_validate(
        {
            "charge": command.charge,
            "data_set": command.data_set,
            "atoms": atoms,
            "purpose": command.purpose,
            "events": dict(command.events),
            "count": command.count,
            "charges": charge_rows(state, population, command.events),
            "accountant": ACCOUNTANT,
        }
    )
    return body


def mark_unbounded(state: State, command: MarkUnbounded) -> list[entries.Body]:
    """Return the entry that says that no bound holds from here on (R11)."""
    version = newest_version(state, command.data_set)
    atoms = version.train if command.use == "train" else version.evaluate
    return [entries.Unbounded(job=command.job, data_set=command.data_set, atoms=atoms, reason=command.reason)]


def add_foreign(state: State, command: AddForeign) -> tuple[list[entries.Body], PrivacyError | None]:
    """Return the entry of a release made elsewhere, or why the promise doesn't hold with it (R10)."""
    if any(old.foreign == command.foreign for old in state.foreign):
        return [], None
    atoms = atoms_for(state, command.data_set, command.use)
    population = newest_version(state, command.data_set).population
    pure = {LOCAL: PureEpsilon(epsilon=command.epsilon)} if command.delta == 0 and command.epsilon > 0 else None
    body: entries.Foreign = entries.Foreign.model_validate(
        {
            "foreign": command.foreign,
            "data_set": command.data_set,
            "atoms": atoms,
            "epsilon": command.epsilon,
            "delta": command.delta,
            "what": command.what,
            "approved_by": command.approved_by,
            "charges": charge_rows(state, population, pure) if pure else {},
            "accountant": ACCOUNTANT,
        }
    )
    for policy in state.active_policies(population):
        for atom in atoms:
            error = _foreign_problem(state, policy, atom, body)
            if error is not None:
                return [], error
    return [body], None


def _foreign_problem(state: State, policy: Policy, atom: str, body: entries.Foreign) -> PrivacyError | None:
    name = policy.body.policy
    if body.delta > 0 and state.foreign_delta(atom) + body.delta > policy.body.foreign_delta:
        return DeltaInvalid(
            f"policy {name} sets delta {policy.body.foreign_delta:g} aside for releases made elsewhere, "
            f"this one brings {body.delta:g} beside {state.foreign_delta(atom):g}",
            hint="raise the budget with --foreign-delta, by two people; then declare the release again",
        )
    if body.delta > 0:
        after = state.total(atom, policy).committed
        limit = tuple(bound - grains_above(body.epsilon) for bound in state.limits(atom, policy))
        fits = admits(after, limit) and max(limit) >= 0
    else:
        row = [grains_above(charge) for charge in body.charges[name]]
        after = tuple(old + new for old, new in zip(state.total(atom, policy).committed, row, strict=True))
        fits = admits(after, state.limits(atom, policy))
    if fits:
        return None
    return BudgetRefused(
        f"with a release of epsilon {body.epsilon:g} made elsewhere, the promise of policy {name} doesn't hold",
        hint="raise the budget by two people, so that what is promised is true; then declare the release again",
    )


def recover(state: State, command: Recover) -> list[entries.Body]:
    """Return the entries that make a restored ledger good: reservations end, what was missed is charged.

    Raises:
        LedgerMisused: Fewer than one person, nothing retired where that is the means, or an unknown atom or data set.
    """
    if not command.approved_by:
        raise LedgerMisused("recovering the ledger needs the names of who approved it")
    if command.means == "retired" and not command.atoms:
        raise LedgerMisused("recovering by retirement names what is retired")
    unknown = sorted(set(command.atoms) - set(state.atoms))
    if unknown:
        raise LedgerMisused(f"{unknown[0]} isn't in the privacy ledger")
    written: list[entries.Body] = []
    for name, job in state.reservations.items():
        if job.state is not ReservationState.SETTLED:
            written += [entries.LeaseEnd(reservation=name, number=number, outcome="lost") for number in job.open]
            written.append(entries.Settle(reservation=name, reason="the ledger was recovered"))
    known = {single.charge for single in state.single}
    written += [_missed(state, missed) for missed in command.missed if missed.charge not in known]
    written.append(
        entries.Recover(
            means=command.means,
            witnessed_seq=command.witnessed_seq,
            witnessed_hash=command.witnessed_hash,
            charged=tuple(missed.charge for missed in command.missed),
            atoms=command.atoms,
            reason=command.reason,
            approved_by=command.approved_by,
        )
    )
    return written


def _missed(state: State, missed: Missed) -> entries.Body:
    command = ChargeOnce(
        charge=missed.charge,
        data_set=missed.data_set,
        use=missed.use,
        purpose=missed.purpose,
        events=missed.events,
        count=missed.steps,
    )
    return _charge_entry(state, command, atoms_for(state, missed.data_set, missed.use))
