"""What holds for every phase of one accepted job, worked out once from what the store keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from audit import events
from federation import plan as plans
from federation.audit_parts import hash_text
from federation.contract import DataContract, from_canonical, width
from federation.errors import OutOfOrder
from federation.messages import JobId
from federation.plan import Plan
from privacy.accounting.convert import nano
from privacy.accounting.entries import Use
from site_client import lineage, offers
from site_client.open_site import OpenSite
from site_client.session import Work
from site_client.stored import StoredJob, Terms


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One accepted job.

    Attributes:
        job: Its id.
        plan: Its plan.
        plan_digest: SHA-256 of the plan's canonical bytes.
        contract: What the rows mean.
        terms: What the site agreed to.
        dataset: The data set as entries name it.
        approval: The approval under which it runs; None where a rule decided.
        lineage: What releases are checked against.
        trains_charged: Whether training takes charged steps.
        evaluates_charged: Whether an evaluation takes one.
        budget_bases: What of the `budget` part of entries holds for the whole job, by use.
    """

    job: JobId
    plan: Plan
    plan_digest: str
    contract: DataContract
    contract_bytes: bytes
    terms: Terms
    dataset: events.Dataset
    approval: events.Approval | None
    lineage: lineage.Job
    trains_charged: bool
    evaluates_charged: bool
    budget_bases: Mapping[Use, Mapping[str, object]]

    def uses(self) -> tuple[Use, ...]:
        """Return what of the job is charged: training, evaluation, both or nothing."""
        return tuple(self.budget_bases)


def budget_part(site: OpenSite, facts: JobFacts, use: Use) -> dict[str, object]:
    """Return the `budget` part of an entry of a round: epsilon of the job at this site so far, and the ledger's head.

    The figures of the whole data set cost a search over orders, so they are in the entries of a reservation and its
    end only.
    """
    figures = site.ledger.job(facts.job, use)
    head = site.ledger.state.head
    return {
        **facts.budget_bases[use],
        "eps_nano": nano(figures.epsilon_so_far),
        "steps": figures.steps_charged,
        "lost_steps": figures.steps_lost,
        "head": {"seq": head.seq, "hash": hash_text(head.hash)},
    }


def _bases(site: OpenSite, job: JobId, uses: Mapping[Use, bool]) -> Mapping[Use, Mapping[str, object]]:
    constant = ("population", "policy", "trust", "unit", "delta_e15")
    bases: dict[Use, Mapping[str, object]] = {}
    for use, charged in uses.items():
        if charged:
            part = site.ledger.audit_part(job, use)
            bases[use] = {name: part[name] for name in constant}
    return bases


def facts_of(site: OpenSite, stored: StoredJob) -> JobFacts:
    """Return the facts of an accepted job.

    Raises:
        OutOfOrder: It isn't accepted.
    """
    terms = stored.terms
    if terms is None:
        raise OutOfOrder("CFD-R43", f"job {stored.job} is not accepted here")
    plan = plans.decode(stored.plan)
    contract = from_canonical(stored.contract)
    folder = job_folder(site, stored.job)
    trains_charged = plan.privacy.mechanism != "none"
    evaluates_charged = offers.evaluations_of(plan, terms.held_out_public) is not None
    return JobFacts(
        job=stored.job,
        plan=plan,
        plan_digest=stored.plan_digest,
        contract=contract,
        contract_bytes=stored.contract,
        terms=terms,
        dataset=events.Dataset(id=terms.dataset, version=hash_text(terms.version)),
        approval=approval_part(site, terms.approval),
        lineage=lineage.Job(
            job=stored.job,
            plan=plan,
            plan_digest=stored.plan_digest,
            coordinator=bytes.fromhex(site.charter.charter.coordinator.identity),
            width=width(contract),
            classes=contract.label.classes_count,
            folder=folder,
        ),
        trains_charged=trains_charged,
        evaluates_charged=evaluates_charged,
        budget_bases=_bases(site, stored.job, {"train": trains_charged, "evaluate": evaluates_charged}),
    )


def approval_part(site: OpenSite, approval: str | None) -> events.Approval | None:
    """Return an approval as entries name it."""
    found = None if approval is None else site.store.approval(approval)
    if found is None:
        return None
    by = [found.decided_by] if found.decided_by is not None else []
    return events.Approval(id=found.approval, by=by, meaning="approve")


def job_folder(site: OpenSite, job: JobId) -> Path:
    """Return the job's folder in the home; its name is a job id, which holds no separator."""
    return site.home.jobs / job


def update_file(facts: JobFacts, work: Work) -> Path:
    """Return where the update of an attempt waits for its secure sum."""
    return facts.lineage.folder / f"update-{work.round}-{work.attempt}.safetensors"
