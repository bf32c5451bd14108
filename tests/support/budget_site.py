"""A site that keeps its ledger, its audit log and its database as the daemon does, without a network or a trainer."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from audit import events
from audit.log import AuditLog
from federation import plan as plans
from federation.edge.clock import Clock, SystemClock
from federation.edge.database import open_engine, sqlite_url
from federation.messages import Answer, Decision, JobId
from privacy.accounting.convert import nano
from site_client import offers, session_machine
from site_client.budget.leases import RoundLeases
from site_client.budget.registration import NewDataSet
from site_client.budget.store import BudgetStore
from site_client.budget.witnessed import recorded_in
from site_client.records import Records
from site_client.session import Session
from site_client.session_machine import Decided
from site_client.store import Store
from site_client.stored import StoredJob, Terms
from tests.support import site_data, site_homes

VERSION = "ab" * 32
UNITS = 200


class BudgetSite:
    """A home with one data set, and the rounds that are played in it."""

    def __init__(self, folder: Path, *, clock: Clock | None = None, epsilon: float = 20.0) -> None:
        self.home = site_homes.make(folder)
        (self.home / "site.yaml").write_text("site: mercy\n", encoding="utf-8")
        self.clock = clock or SystemClock()
        self.touched = 0
        self.jobs = Store(open_engine(sqlite_url(self.home / "site.db")))
        self.start()
        self.store.register_data_set(
            NewDataSet(
                "heart",
                version=f"sha256:{VERSION}",
                contract="heart-disease/v1",
                unit="record",
                epsilon=epsilon,
                delta=1e-4,
                units_declared=UNITS,
                declared_by="alice",
            )
        )

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open log and ledger, and hold the ledger to what the log has seen."""
        self.log = AuditLog.open(self.home / "audit", clock=self.clock, process="cli")
        self.records = Records(self.log)
        self.store = BudgetStore.open(self.home / "ledger.db", clock=self.clock)
        self.problem = self.store.hold_to(lambda: recorded_in(self.home))
        self.store.lose_open_leases()

    def stop(self) -> None:
        """Close log and ledger."""
        self.store.close()
        self.log.close()

    def back_up(self, name: str) -> None:
        """Keep a copy of the ledger, of which nothing is open."""
        self.stop()
        shutil.copyfile(self.home / "ledger.db", self.home / name)
        self.start()

    def restore(self, name: str) -> None:
        """Put a kept ledger in place and start again."""
        self.stop()
        for path in self.home.glob("ledger.db-*"):
            path.unlink()
        shutil.copyfile(self.home / name, self.home / "ledger.db")
        self.start()

    # --- jobs -------------------------------------------------------------------------------------------------

    def accept(self, job: str, **changes: str) -> None:
        """Reserve a job's budget, record it, and keep the job."""
        plan = site_data.plan(**changes)
        schedule = offers.training_schedule(plan, UNITS)
        evaluations = offers.evaluations_of(plan, held_out_public=False)
        if schedule is None:
            raise AssertionError("the plan adds noise")
        content = plans.canonical_bytes(plan)
        digest = hashlib.sha256(content).hexdigest()
        self.store.reserve_job(job, digest, "heart", schedule, evaluations)
        dataset = self.dataset()
        self.records.reserved(JobId(job), dataset, self.store.audit_part(job, whole=True))
        session = Session(job=JobId(job), plan_digest=digest, rounds=plan.rounds)
        self.jobs.add_job(
            StoredJob(
                job=JobId(job),
                plan=content,
                plan_digest=digest,
                contract=b"",
                submitter="alice",
                signature=b"",
                vouched=False,
                session=session,
                answer=None,
                terms=None,
                received_us=1,
            )
        )
        accepted, _ = session_machine.step(session, Decided(Decision.ACCEPTED))
        answer = Answer(message_id="m-1", job=JobId(job), plan_digest=digest, decision=Decision.ACCEPTED)
        terms = Terms(
            dataset="heart",
            version=VERSION,
            policy="0" * 64,
            rule="rules/0",
            approval=None,
            reservation=job,
            epsilon=schedule.epsilon.hex(),
            noise_multiplier=schedule.noise_multiplier.hex(),
            sampling_rate=schedule.sampling_rate.hex(),
            units_declared=UNITS,
            held_out_public=False,
        )
        self.jobs.save_answer(accepted, answer, terms)

    def dataset(self) -> events.Dataset:
        """Return the data set as entries name it."""
        return events.Dataset(id="heart", version=f"sha256:{VERSION}")

    def round(self, job: str, number: int, *, steps: int = 4, use: Any = "train", finish: bool = True) -> None:
        """Play one round of `steps` steps, two at a time; without `finish` the site dies before it is recorded."""
        plan = site_data.plan()
        digest = hashlib.sha256(plans.canonical_bytes(plan)).hexdigest()
        budget = {**self.store.audit_part(job, use), "steps": steps}
        budget["eps_nano"] = nano(self.store.epsilon_with(job, steps, use))
        leased = self.records.leased(JobId(job), number, self.dataset(), budget)
        opened = self.records.opened(
            JobId(job),
            plan,
            digest,
            round_number=number,
            mode=use,
            dataset=self.dataset(),
            policy="0" * 64,
            rule="rules/0",
            approval=None,
            budget=budget,
        )
        leases = RoundLeases(self.store, leased.result(), use=use)
        while given := leases.ask(min(2, steps - leases.leased)) if leases.leased < steps else 0:
            self.touched += given if use == "train" else 0
            if finish:
                leases.done(given)
        if finish:
            self.records.closed(JobId(job), number, self.dataset(), opened=opened.index, records=1, code=None)
            part = {**self.store.audit_part(job, use), "steps": leases.leased, "lost_steps": leases.lost}
            self.records.spent(JobId(job), number, self.dataset(), part)

    def charged(self) -> tuple[int, ...]:
        """Return what the training units have spent, in grains per order."""
        policy = self.store.refresh().active_policies("heart")[0]
        return self.store.state.total("heart/train-1", policy).charged

    def recorded(self, action: str) -> list[dict[str, Any]]:
        """Return the events of an action."""
        return [event for event in site_homes.events(self.home) if event["action"] == action]
