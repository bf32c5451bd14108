"""What changes a promise takes two people: raising a budget, declaring a release made elsewhere, recovering the ledger.

One person asks, another confirms within 14 days; both are named, by pseudonym, in the ledger and in the audit log. The
ledger's entry is durable first and its head goes into the audit log's; a crash between the two leaves a request that
can be confirmed again, which changes the ledger no second time. Where the home says `two_people: false`, one person
acts alone, and every statement says so.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import events
from audit.clock import microseconds
from audit.errors import LogUnreadable
from audit.key_files import read_key
from audit.names import Origin
from audit.open_log import CLI
from audit.readers_file import read_readers
from audit.reading import find_log, origin_of
from audit.requests import Request, Requests
from federation import plan as plans
from federation.edge.audit_trail import person, record
from federation.edge.clock import Clock
from federation.edge.database import open_engine, sqlite_url
from federation.edge.homes import SiteHome
from federation.messages import JobId
from privacy.accounting import commands
from privacy.accounting.events import LOCAL, training_event
from privacy.errors import LedgerMisused, SecondPersonNeeded
from site_client import offers
from site_client.budget.recovery import KnownJob, charge_rounds, replay
from site_client.budget.store import BudgetStore
from site_client.budget.witnessed import events_since_recovery, head_of, recorded_in
from site_client.entry_parts import budget_of
from site_client.store import Store

FOLDER: Final = "budget"
Arguments = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Change:
    """A change that waits, or was made."""

    request: Request
    done: bool
    lines: tuple[str, ...] = ()


class BudgetChanges:
    """The changes of one home's budget.

    Args:
        home: The home.
        store: Its ledger.
        clock: Time.
    """

    def __init__(self, home: SiteHome, store: BudgetStore, clock: Clock) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._requests = requests_of(home.path)

    def ask(self, verb: str, arguments: Arguments) -> Change:
        """Return the request, filed for a second person, or done where this home needs none.

        Raises:
            LedgerMisused: What is asked makes no sense; nothing was filed.
        """
        self._check(verb, arguments)
        actor = person(self._home.audit, self._clock)
        request = self._requests.propose(
            verb, arguments, proposer=actor.id, now_us=self._now_us(), random_bytes=secrets.token_bytes
        )
        if read_readers(self._home.path).two_people:
            return Change(request, done=False)
        return self._carry_out(request, actor, [actor.id])

    def confirm(self, request_id: str) -> Change:
        """Do what another person asked for.

        Raises:
            LedgerMisused: There is no such request.
            SecondPersonNeeded: The same person asked.
        """
        request = self._find(request_id)
        actor = person(self._home.audit, self._clock)
        if actor.id == request.proposer:
            raise SecondPersonNeeded(f"who asked for {request.id} can't confirm it")
        return self._carry_out(request, actor, [request.proposer, actor.id])

    def deny(self, request_id: str) -> Request:
        """Forget a request.

        Raises:
            LedgerMisused: There is no such request.
        """
        request = self._find(request_id)
        self._requests.drop(request.id)
        return request

    def waiting(self) -> list[Request]:
        """Return the requests that wait, the oldest first."""
        return self._requests.waiting(self._now_us())

    # --- the three changes ------------------------------------------------------------------------------------

    def _check(self, verb: str, arguments: Arguments) -> None:
        if verb not in _ACTS:
            raise LedgerMisused(f"there is no change of a budget called {verb}")
        for name in ("epsilon", "delta", "foreign_delta", "epsilon_per_job"):
            if name in arguments:
                _number(arguments, name)
        if "data_set" in arguments:
            self._store.show(str(arguments["data_set"]))
        if verb == "recover":
            if self._store.problem is None:
                raise LedgerMisused(
                    "the privacy ledger agrees with what was seen of it", hint="there is nothing to recover"
                )
            self._recovery(Request("r-000000000000", verb, arguments, "", 0), ["nobody"])

    def _carry_out(self, request: Request, actor: events.Actor, people: list[str]) -> Change:
        approval = events.Approval(id=request.id, by=people, meaning="approve")
        lines = _ACTS[request.verb](self, request, actor, approval)
        self._requests.drop(request.id)
        return Change(request, done=True, lines=tuple(lines))

    def raise_budget(self, request: Request, actor: events.Actor, approval: events.Approval) -> list[str]:
        """Replace the policy in force by one with another promise; what was spent carries over."""
        asked, name = request.arguments, str(request.arguments["data_set"])
        trust = str(asked.get("trust", LOCAL))
        state = self._store.refresh()
        population = self._store.show(name).population
        in_force = state.active_policies(population)
        made = next((one for one in in_force if list(one.body.approved_by) == [request.id, *approval.by]), None)
        if made is None:
            old = next((one for one in in_force if one.body.trust == trust), in_force[0]).body
            count = sum(one.body.population == population for one in state.policies.values())
            per_job = old.epsilon_per_job
            self._store.create_policy(
                commands.AddPolicy(
                    policy=f"{name}-p{count + 1}",
                    population=population,
                    unit=old.unit,
                    epsilon=_number(asked, "epsilon"),
                    delta=_number(asked, "delta") if "delta" in asked else old.delta,
                    trust=trust,
                    foreign_delta=_number(asked, "foreign_delta") if "foreign_delta" in asked else old.foreign_delta,
                    orders=old.orders,
                    epsilon_per_job=_number(asked, "epsilon_per_job") if "epsilon_per_job" in asked else per_job,
                    cap_rows=old.cap_rows,
                    approved_by=(request.id, *approval.by),
                    replaces=old.policy,
                )
            )
            made = next(
                one
                for one in self._store.state.active_policies(population)
                if list(one.body.approved_by) == [request.id, *approval.by]
            )
        body = made.body
        part = budget_of(self._store.data_set_part(name, body.policy))
        self._record(
            events.BudgetPolicyChanged(
                id=self._new_id(),
                decision="allowed",
                actor=actor,
                budget=part,
                replaces=body.replaces,
                approval=approval,
            )
        )
        return [
            f"{name}: policy {body.policy} replaces {body.replaces}: epsilon {body.epsilon:g}, delta {body.delta:g}"
        ]

    def foreign(self, request: Request, actor: events.Actor, approval: events.Approval) -> list[str]:
        """Count a release that was made without this ledger."""
        asked, name = request.arguments, str(request.arguments["data_set"])
        self._store.add_foreign(
            commands.AddForeign(
                foreign=request.id,
                data_set=name,
                use="evaluate" if asked.get("use") == "evaluate" else "train",
                epsilon=_number(asked, "epsilon"),
                delta=_number(asked, "delta"),
                what=str(asked["what"]),
                approved_by=tuple(approval.by),
            )
        )
        self._record(
            events.BudgetCharged(
                id=self._new_id(),
                decision="allowed",
                actor=actor,
                dataset=self._dataset(name),
                budget=budget_of(self._store.data_set_part(name)),
                kind="foreign",
            )
        )
        return [
            f"{name}: a release of epsilon {asked['epsilon']}, delta {asked['delta']} made elsewhere counts from now on"
        ]

    def recover(self, request: Request, actor: events.Actor, approval: events.Approval) -> list[str]:
        """Make a restored ledger good, by one of the three ways out."""
        recovery, unbounded = self._recovery(request, list(approval.by))
        for mark in unbounded:
            self._store.mark_unbounded(mark.data_set, reason=mark.reason, use=mark.use)
        self._store.recover(recovery)
        names = sorted(self._store.state.versions)
        self._record(
            *(
                events.BudgetRecovered(
                    id=self._new_id(),
                    decision="allowed",
                    actor=actor,
                    budget=budget_of(self._store.data_set_part(name)),
                    means=recovery.means,
                    approval=approval,
                )
                for name in names
            )
        )
        charged = sum(one.steps for one in recovery.missed)
        return [
            f"recovered ({recovery.means}): {charged} steps charged in {len(recovery.missed)} entries",
            f"{len(recovery.atoms)} parts retired; the jobs that were running here get no further steps",
        ]

    def _recovery(
        self, request: Request, people: list[str]
    ) -> tuple[commands.Recover, tuple[commands.MarkUnbounded, ...]]:
        asked, state = request.arguments, self._store.refresh()
        means = str(asked["means"])
        rounds = _rounds(str(asked.get("rounds", "")))
        missed: list[commands.Missed] = []
        unbounded: list[commands.MarkUnbounded] = []
        atoms: list[str] = []
        if means == "replayed":
            found = replay(
                events_since_recovery(self._home.path),
                holds=lambda event: self._store.entry_hash(head_of(event).seq) == head_of(event).hash,
                job=self._known_job,
            )
            missed, unbounded = found.missed, found.unbounded
        elif means == "charged":
            missed = charge_rounds(rounds, request=request.id, job=self._known_job)
        if means == "retired" or "retire" in asked:
            wanted = str(asked.get("retire", ""))
            population = self._store.show(wanted).population if wanted else None
            atoms = [name for name, atom in state.atoms.items() if population in (None, atom.population)]
        seen = recorded_in(self._home.path).head
        recovery = commands.Recover(
            means="replayed" if means == "replayed" else "charged" if means == "charged" else "retired",
            reason=str(asked["reason"]),
            approved_by=tuple(people),
            missed=tuple(missed),
            atoms=tuple(atoms),
        )
        if seen is None:
            return recovery, tuple(unbounded)
        return (
            commands.Recover(
                means=recovery.means,
                reason=recovery.reason,
                approved_by=recovery.approved_by,
                witnessed_seq=seen.seq,
                witnessed_hash=seen.hash,
                missed=recovery.missed,
                atoms=recovery.atoms,
            ),
            tuple(unbounded),
        )

    # --- what they share --------------------------------------------------------------------------------------

    def _known_job(self, name: str) -> KnownJob:
        """Return what this site agreed to for a job, from its own database.

        Raises:
            LedgerMisused: It doesn't know the job, or never accepted it.
        """
        store = Store(open_engine(sqlite_url(self._home.database)))
        try:
            stored = store.job(JobId(name))
        finally:
            store.close()
        if stored is None or stored.terms is None:
            raise LedgerMisused(
                f"this site's database has no accepted job {name[:80]}",
                hint="recover with --means retired: what that job took can't be computed here",
            )
        plan, terms = plans.decode(stored.plan), stored.terms
        train = None
        if terms.noise_multiplier is not None and terms.sampling_rate is not None:
            train = training_event(float.fromhex(terms.sampling_rate), float.fromhex(terms.noise_multiplier))
        evaluations = offers.evaluations_of(plan, terms.held_out_public)
        return KnownJob(
            terms.dataset, train, None if evaluations is None else evaluations.event, plan.training.local_steps
        )

    def _find(self, request_id: str) -> Request:
        try:
            return self._requests.find(request_id, self._now_us())
        except LogUnreadable as problem:
            raise LedgerMisused(
                problem.message, hint="what waits is listed by `confide site approvals list`; ask for the change again"
            ) from None

    def _dataset(self, name: str) -> events.Dataset:
        return events.Dataset(id=name, version=self._store.show(name).version)

    def _record(self, *drafts: events.Draft) -> None:
        record(self._home.audit, self._clock, *drafts)

    def _new_id(self) -> str:
        return events.new_event_id(self._clock, os.urandom)

    def _now_us(self) -> int:
        return microseconds(self._clock.now())


_ACTS: Final[Mapping[str, Callable[[BudgetChanges, Request, events.Actor, events.Approval], list[str]]]] = {
    "raise": BudgetChanges.raise_budget,
    "foreign": BudgetChanges.foreign,
    "recover": BudgetChanges.recover,
}


def requests_of(home: Path) -> Requests:
    """Return the requests of a home, signed by the key that its commands write their entries with."""
    log = find_log(home)
    name = Origin.parse(origin_of(log)).writer(CLI)
    return Requests(home / FOLDER, read_key(log.places.writer_key(CLI), name))


def described(request: Request) -> str:
    """Return what a request asks for, as one line."""
    given = (f"{name.replace('_', '-')} {value}" for name, value in request.arguments.items())
    return " ".join([f"budget {request.verb}", *given])


def _number(arguments: Arguments, name: str) -> float:
    try:
        return float(arguments[name])
    except ValueError:
        raise LedgerMisused(f"{name} is {str(arguments[name])[:40]!r}, it must be a number") from None


def _rounds(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, count = part.partition("=")
        if not name or not count.isdecimal():
            raise LedgerMisused(f"rounds {part[:60]!r} aren't understood", hint="write --rounds JOB=N")
        found[name] = int(count)
    return found


def changes_of(home: Path, store: BudgetStore, clock: Clock) -> BudgetChanges:
    """Return the changes of the home in `home`."""
    return BudgetChanges(SiteHome(home), store, clock)
