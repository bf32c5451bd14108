"""Ending a job's reservation by hand: an operator's exception from the rule that a job's end settles it.

The exception, with its reason as a commitment, is durable before the ledger changes; what went back is recorded after.
A crash between the two leaves an exception without an end, and the command can be given again.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import events
from audit.private import PrivateStore
from federation.edge.audit_trail import person, record
from federation.edge.clock import Clock
from privacy.accounting.statement import JobFigures
from site_client.budget.store import BudgetStore
from site_client.entry_parts import budget_of

RULE: Final = "budget/settlement"


@dataclass(frozen=True, slots=True)
class Settled:
    """A job's figures after its settlement, and how many steps went back."""

    figures: JobFigures
    returned_steps: int


def settle_by_hand(audit: Path, store: BudgetStore, job: str, *, reason: str, clock: Clock) -> Settled:
    """Give back what a job never leased, recorded as an exception in the log in `audit`.

    Raises:
        LedgerMisused: The job has no reservation; nothing was recorded.
        AuditError: It couldn't be recorded; the ledger is as it was.
    """
    returned = store.remaining_steps(job)
    about = store.reserved(job)
    actor = person(audit, clock)
    private = PrivateStore(audit, clock=clock, random_bytes=secrets.token_bytes)
    try:
        commitment = private.commit("reason", reason, subject=actor.id)
    finally:
        private.close()

    def new_id() -> str:
        return events.new_event_id(clock, secrets.token_bytes)

    exception = events.RuleOverridden(
        id=new_id(), decision="allowed", rule=RULE, actor=actor, job=job, private={"reason": commitment}
    )
    record(audit, clock, exception)
    store.settle(job, reason)
    dataset = events.Dataset(id=about.data_set, version=about.version)
    returns = [
        events.BudgetReleased(
            id=new_id(),
            decision="allowed",
            actor=actor,
            job=job,
            dataset=dataset,
            budget=budget_of(store.audit_part(job, use)),
        )
        for use in about.uses
    ]
    record(audit, clock, *returns)
    return Settled(store.job(job), returned)
