"""The `budget` part of audit events: the ledger's figures in the audit log's integers. Pure."""

from privacy.accounting.convert import nano
from privacy.accounting.entries import Head, Use
from privacy.accounting.events import claimed_trust
from privacy.accounting.releases import newest_version
from privacy.accounting.state import Reservation, State
from privacy.accounting.statement import DataSetFigures, job_epsilon, policy_figures


def job_part(state: State, job: Reservation, use: Use, *, whole: bool) -> dict[str, object]:
    """Return the part about a job, under the policy whose trust model the job claims.

    Args:
        state: The ledger.
        job: The job's reservation.
        use: Training or evaluation.
        whole: ε and steps of all that is reserved, instead of what is charged so far.
    """
    steps = job.leased + job.remaining if whole else job.leased
    version = newest_version(state, job.body.data_set)
    policies = state.active_policies(version.population)
    claimed = claimed_trust(job.body.events)
    policy = next((one for one in policies if one.body.trust == claimed), policies[0])
    figures = policy_figures(state, policy, job.body.atoms, use)
    return {
        "population": version.population,
        "policy": policy.body.policy,
        "trust": policy.body.trust,
        "unit": policy.body.unit,
        "eps_nano": nano(job_epsilon(job, steps)),
        "delta_e15": round(job.body.delta * 1e15),
        "steps": steps,
        "lost_steps": job.lost,
        "total_eps_nano": nano(figures.epsilon_spent),
        "left_eps_nano": nano(figures.epsilon_left),
        "head": head_part(state.head),
    }


def data_set_part(figures: DataSetFigures, policy: str | None) -> dict[str, object]:
    """Return the part about a data set: what was promised, spent, and is left under a policy, or the first in force."""
    shown = next((one for one in figures.policies if policy in (None, one.policy)), figures.policies[0])
    return {
        "population": figures.population,
        "policy": shown.policy,
        "trust": shown.trust,
        "unit": shown.unit,
        "eps_nano": nano(shown.epsilon),
        "delta_e15": round(shown.delta * 1e15),
        "total_eps_nano": nano(shown.epsilon_spent),
        "left_eps_nano": nano(shown.epsilon_left),
        "head": head_part(figures.head),
    }


def head_part(head: Head) -> dict[str, object]:
    """Return a ledger's head as events hold it."""
    return {"seq": head.seq, "hash": f"sha256:{head.hash}"}
