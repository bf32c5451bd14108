"""The ledger made durable: every command is one transaction that is on disk before its answer is given.

The decisions are `privacy.accounting.ledger.step`; this module keeps the entries and the totals they fold to, and
refuses to open when the two disagree. Another process of this site (a command beside the daemon) may append too: each
transaction first folds what others have appended since.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection, Engine

from federation.edge.clock import Clock, rfc3339
from privacy.accounting import commands, ledger
from privacy.accounting.entries import Entry, Head, Use
from privacy.accounting.events import Event
from privacy.accounting.releases import newest_version
from privacy.accounting.schedule import EvaluationSchedule, Schedule
from privacy.accounting.state import Reservation, State
from privacy.accounting.statement import (
    DataSetFigures,
    JobFigures,
    data_set_figures,
    epsilon_for_rows,
    job_epsilon,
    job_figures,
)
from privacy.errors import LedgerBehind, LedgerForked, LedgerMisused, PrivacyError
from site_client.budget.bundle import all_or_refusal
from site_client.budget.database import look, open_ledger, transact
from site_client.budget.migrations import upgrade
from site_client.budget.parts import data_set_part, job_part
from site_client.budget.registration import NewDataSet, registration
from site_client.budget.rows import append, catch_up, find_lease, hash_at, load
from site_client.budget.witnessed import Recorded


@dataclass(frozen=True, slots=True)
class Lease:
    """Steps that are charged and may be taken, once."""

    id: str
    job: str
    use: Use
    number: int
    steps: int
    round: int
    attempt: int
    head: Head
    entry: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The data set of a job's reservations, its newest version, and what is reserved."""

    data_set: str
    version: str
    uses: tuple[Use, ...]


class BudgetStore:
    """This site's privacy ledger.

    Every method that writes is durable when it returns, atomic, and safe to call again after `LedgerUnavailable`.
    """

    def __init__(self, engine: Engine, clock: Clock, actor: str) -> None:
        self._engine = engine
        self._clock = clock
        self._actor = actor
        self._lock = threading.Lock()
        self._state = State()
        self._holder = secrets.token_hex(8)
        self._unsure: dict[str, commands.TakeLease] = {}
        self._look: Callable[[], Recorded] = Recorded
        self._problem: PrivacyError | None = None

    @classmethod
    def open(cls, place: Path | str, *, clock: Clock, actor: str = "site") -> "BudgetStore":
        """Return the ledger at `place` (a SQLite file, or a database URL), created if it isn't there.

        Raises:
            LedgerBroken: An entry is torn or altered, or the totals aren't the fold of the entries.
            LedgerUnavailable: The database can't be opened or written.
        """
        engine = open_ledger(place)
        transact(engine, upgrade)
        store = cls(engine, clock, actor)
        store._state = look(engine, load)
        return store

    def close(self) -> None:
        """Give the database back."""
        self._engine.dispose()

    @property
    def state(self) -> State:
        """Return the folded ledger as of the newest transaction or `refresh`."""
        return self._state

    def refresh(self) -> State:
        """Return the folded ledger with what other processes have appended."""
        with self._lock:
            self._state = look(self._engine, lambda connection: catch_up(connection, self._state))
            return self._state

    def head(self) -> Head:
        """Return position and hash of the newest entry, for the audit log."""
        return self.refresh().head

    def entry_hash(self, seq: int) -> str | None:
        """Return the hash of the entry at `seq`, or None if there is none."""
        return look(self._engine, lambda connection: hash_at(connection, seq))

    @property
    def problem(self) -> PrivacyError | None:
        """Return how this ledger contradicts what was seen of it, None where it doesn't."""
        if self._problem is not None:
            self._problem = self._contradiction()
        return self._problem

    def check_witnessed(self, witnessed: Head) -> None:
        """Refuse to go on with a ledger that is older than, or differs from, what others have seen of it (R8).

        Raises:
            LedgerBehind: This ledger ends before the witnessed head.
            LedgerForked: Another entry is where the witnessed one was.
        """
        if witnessed.seq > self.head().seq:
            raise LedgerBehind(f"the privacy ledger ends at entry {self.head().seq}, others have seen {witnessed.seq}")
        if witnessed.seq >= 0 and self.entry_hash(witnessed.seq) != witnessed.hash:
            raise LedgerForked(f"entry {witnessed.seq} of the privacy ledger isn't the one that others have seen")

    def hold_to(self, look: Callable[[], Recorded]) -> PrivacyError | None:
        """Admit no job, step or release while this ledger contradicts what `look` says that others have seen of it.

        Returns what is wrong now, None where nothing is. While something is, every admission looks again, so that
        what a recovery mended is admitted at once.
        """
        self._look = look
        self._problem = self._contradiction()
        return self._problem

    def _contradiction(self) -> PrivacyError | None:
        recorded = self._look()
        try:
            if recorded.lost and self.head().seq >= 0:
                raise LedgerBehind("this site's audit log lost entries that say what the privacy ledger must hold")
            if recorded.head is not None:
                self.check_witnessed(recorded.head)
        except (LedgerBehind, LedgerForked) as problem:
            return problem
        return None

    def _check_seen(self) -> None:
        if (problem := self.problem) is not None:
            raise problem

    # -- setting up ----------------------------------------------------------------------------------------------

    def create_policy(self, command: commands.AddPolicy) -> None:
        """Promise (ε, δ) for a population; totals of its atoms carry over."""
        self._run([command])

    def register_data_set(self, new: NewDataSet) -> None:
        """Add a data set: its population, atoms, first version and policy, all of them or none.

        Raises:
            LedgerMisused: The name is taken, or `same_people_as` is unknown.
        """
        self._run(registration(self.refresh(), new))

    def add_dataset_version(self, name: str, *, version: str, units_declared: int, declared_by: str) -> None:
        """Record a new content of a data set. It stays in the atoms it had, so the budget stays what it was."""
        newest = newest_version(self.refresh(), name)
        self._run(
            [
                commands.AddVersion(
                    data_set=name,
                    version=version,
                    contract=newest.contract,
                    population=newest.population,
                    train=newest.train,
                    evaluate=newest.evaluate,
                    held_out_public=newest.held_out_public,
                    units_declared=units_declared,
                    declared_by=declared_by,
                )
            ]
        )

    # -- jobs ----------------------------------------------------------------------------------------------------

    def reserve(self, job: str, digest: str, data_set: str, schedule: Schedule) -> JobFigures:
        """Hold the whole schedule of a job's training, in all atoms and under all policies, or refuse.

        Raises:
            BudgetRefused, AtomExhausted, UnitInvalid, DeltaInvalid, EpsilonInvalid: Recorded in the ledger.
        """
        self._run([_reserve_training(job, digest, data_set, schedule)])
        return self.job(job)

    def reserve_evaluations(self, job: str, digest: str, data_set: str, schedule: EvaluationSchedule) -> JobFigures:
        """Hold all charged evaluations of a job, on the held-out atoms, or refuse.

        Raises:
            As `reserve`.
        """
        self._run([self._reserve_evaluation(job, digest, data_set, schedule)])
        return self.job(job, "evaluate")

    def reserve_job(
        self, job: str, digest: str, data_set: str, schedule: Schedule, evaluations: EvaluationSchedule | None
    ) -> JobFigures:
        """Hold training and evaluations of a job, both or neither.

        Raises:
            As `reserve`.
        """
        asked: list[commands.Command] = [_reserve_training(job, digest, data_set, schedule)]
        if evaluations is not None:
            asked.append(self._reserve_evaluation(job, digest, data_set, evaluations))
        self._run(asked)
        return self.job(job)

    def would_refuse(
        self, data_set: str, schedule: Schedule, evaluations: EvaluationSchedule | None
    ) -> PrivacyError | None:
        """Return why a job of these schedules would be refused now, or None; nothing is held or recorded."""
        state = self.refresh()
        if (problem := self.problem) is not None:
            return problem
        asked: list[commands.Command] = [_reserve_training("preview", "0" * 64, data_set, schedule)]
        try:
            if evaluations is not None:
                asked.append(self._reserve_evaluation("preview", "0" * 64, data_set, evaluations))
            return all_or_refusal(state, asked, rfc3339(self._clock.now()), self._actor).refusal
        except PrivacyError as problem:
            return problem

    def lease(self, job: str, round_number: int, steps: int, *, attempt: int = 0, use: Use = "train") -> Lease:
        """Return a lease of `steps` steps, charged and durable: only now may a unit be sampled.

        Raises:
            LeaseRefused: Fewer steps are left, or the job is settled.
            BudgetRefused: A policy made since doesn't cover them.
            LedgerUnavailable: Nothing may be sampled.
        """
        name = ledger.reservation_name(job, use)
        asked = commands.TakeLease(
            reservation=name,
            number=self._reservation(job, use).leases,
            steps=steps,
            round=round_number,
            attempt=attempt,
            holder=self._holder,
        )
        # A commit whose outcome nobody knows is looked up under its number, not repeated under the next one.
        unsure = self._unsure.get(name)
        if unsure is not None and replace(unsure, number=asked.number) == asked:
            asked = unsure
        self._unsure[name] = asked
        written = self._run([asked])
        del self._unsure[name]
        entry = written[0] if written else look(self._engine, lambda link: find_lease(link, name, asked.number))
        return Lease(
            f"{name}/{asked.number}", job, use, asked.number, steps, round_number, attempt, entry.head, entry.id
        )

    def used(self, lease: Lease) -> None:
        """Record that every step of a lease was taken."""
        self._end(lease, used=True)

    def lost(self, lease: Lease) -> None:
        """Record that a lease ended early. It stays spent."""
        self._end(lease, used=False)

    def lose_open_leases(self) -> int:
        """Record every open lease as lost, and return how many. For the daemon's start, before anything trains."""
        asked: list[commands.Command] = [
            commands.EndLease(reservation=name, number=number, used=False)
            for name, job in self.refresh().reservations.items()
            for number in job.open
        ]
        self._run(asked)
        return len(asked)

    def settle(self, job: str, reason: str = "the job ended") -> None:
        """Give back what was never leased, for training and evaluations. Open leases are lost. Idempotent."""
        state = self.refresh()
        names = [ledger.reservation_name(job, use) for use in ("train", "evaluate")]
        known: list[commands.Command] = [
            commands.SettleJob(reservation=name, reason=reason) for name in names if name in state.reservations
        ]
        if not known:
            raise LedgerMisused(f"job {job} has no reservation in the privacy ledger")
        self._run(known)

    def charge(
        self, charge: str, data_set: str, event: Event, *, purpose: str, use: Use = "train", count: int = 1
    ) -> Entry | None:
        """Charge single releases, before they are made. The same `charge` id again charges nothing: returns None.

        Raises:
            BudgetRefused: Not covered; nothing may be released.
        """
        command = commands.ChargeOnce(
            charge=charge, data_set=data_set, use=use, purpose=purpose, events={"local": event}, count=count
        )
        written = self._run([command])
        return written[0] if written else None

    def add_foreign(self, command: commands.AddForeign) -> None:
        """Count a release made elsewhere; the same id again counts nothing.

        Raises:
            BudgetRefused, DeltaInvalid: The promise doesn't hold with it; it must be raised first.
        """
        self._run([command])

    def recover(self, command: commands.Recover) -> None:
        """Make a restored ledger good: what happened is charged, open reservations end, atoms are retired."""
        self._run([command])

    def mark_unbounded(self, data_set: str, *, reason: str, job: str | None = None, use: Use = "train") -> None:
        """Record that from now on no bound holds for the units of a data set (mechanism none, exact release)."""
        self._run([commands.MarkUnbounded(data_set=data_set, use=use, reason=reason, job=job)])

    # -- figures -------------------------------------------------------------------------------------------------

    def show(self, data_set: str) -> DataSetFigures:
        """Return the budget of a data set."""
        return data_set_figures(self.refresh(), data_set)

    def epsilon_for_rows(self, data_set: str, rows: Sequence[int]) -> dict[int, float]:
        """Return ε so far for somebody with so many rows; nothing where the promise isn't about one row."""
        state = self.refresh()
        version = newest_version(state, data_set)
        by_row = [one for one in state.active_policies(version.population) if one.body.unit == "record"]
        if not by_row:
            return {}
        return {count: max(epsilon_for_rows(state, by_row[0], atom, count) for atom in version.train) for count in rows}

    def job(self, job: str, use: Use = "train") -> JobFigures:
        """Return what a job has done here."""
        return job_figures(self._reservation(job, use))

    def remaining_steps(self, job: str, use: Use = "train") -> int:
        """Return how many steps the job can still lease; fewer than a round needs means `late(budget)`."""
        return self._reservation(job, use).remaining

    def reserved(self, job: str) -> Reserved:
        """Return which data set a job's reservations are for, at its newest version, and what they are for.

        Raises:
            LedgerMisused: The job has none.
        """
        data_set = self._reservation(job, "train").body.data_set
        known = self._state.reservations
        uses: tuple[Use, ...] = ("train", "evaluate")
        version = newest_version(self._state, data_set).version
        return Reserved(data_set, version, tuple(use for use in uses if ledger.reservation_name(job, use) in known))

    def epsilon_with(self, job: str, more_steps: int, use: Use = "train") -> float:
        """Return ε of a job here once `more_steps` are charged beyond those that are."""
        reservation = self._reservation(job, use)
        return job_epsilon(reservation, reservation.leased + more_steps)

    def audit_part(self, job: str, use: Use = "train", *, whole: bool = False) -> dict[str, object]:
        """Return the `budget` part of an audit event about a job, and the ledger's head.

        Args:
            job: The job.
            use: Training or evaluation.
            whole: ε and steps of all that is reserved, instead of what is charged so far.
        """
        return job_part(self._state, self._reservation(job, use), use, whole=whole)

    def data_set_part(self, name: str, policy: str | None = None) -> dict[str, object]:
        """Return the `budget` part of an audit event about a data set: what was promised, spent, and is left.

        Args:
            name: The data set.
            policy: Whose figures; by default those of the first policy in force.
        """
        return data_set_part(self.show(name), policy)

    # -- inside --------------------------------------------------------------------------------------------------

    def _reserve_evaluation(
        self, job: str, digest: str, data_set: str, schedule: EvaluationSchedule
    ) -> commands.Reserve:
        version = newest_version(self.refresh(), data_set)
        policy = self._state.active_policies(version.population)[0]
        return commands.Reserve(
            job=job,
            digest=digest,
            use="evaluate",
            data_set=data_set,
            unit=policy.body.unit,
            epsilon=schedule.epsilon,
            delta=schedule.delta,
            events={"local": schedule.event},
            steps=schedule.evaluations,
        )

    def _reservation(self, job: str, use: Use) -> Reservation:
        found = self.refresh().reservations.get(ledger.reservation_name(job, use))
        if found is None:
            raise LedgerMisused(f"job {job} has no reservation in the privacy ledger")
        return found

    def _end(self, lease: Lease, *, used: bool) -> None:
        name = ledger.reservation_name(lease.job, lease.use)
        self._run([commands.EndLease(reservation=name, number=lease.number, used=used)])

    def _run(self, asked: Sequence[commands.Command]) -> tuple[Entry, ...]:
        """Return the entries of the commands `asked`, durable, all of them or none; a refusal is recorded, then raised.

        If one command is refused, those before it in the same call are undone and only the refusal is kept.
        """
        time = rfc3339(self._clock.now())
        if not all(isinstance(command, _ENDING) for command in asked):
            self._check_seen()

        def work(connection: Connection) -> ledger.Step:
            start = catch_up(connection, self._state)
            outcome = all_or_refusal(start, asked, time, self._actor)
            append(connection, start, outcome.state, outcome.entries)
            return outcome

        with self._lock:
            outcome = transact(self._engine, work)
            self._state = outcome.state
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.entries


_ENDING = (commands.EndLease, commands.SettleJob, commands.MarkUnbounded, commands.Recover)
"""What may be written while the ledger contradicts what was seen of it: ends, never beginnings."""


def _reserve_training(job: str, digest: str, data_set: str, schedule: Schedule) -> commands.Reserve:
    return commands.Reserve(
        job=job,
        digest=digest,
        use="train",
        data_set=data_set,
        unit=schedule.unit.value,
        epsilon=schedule.epsilon,
        delta=schedule.delta,
        events={"local": schedule.event},
        steps=schedule.steps,
    )
