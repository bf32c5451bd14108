"""The texts of a result: model card, provenance and privacy statement, made from facts. Pure.

A statement says whom it protects, against whom, by how much, what it rests on and what it doesn't cover. It never says
"anonymous" or "no risk", never gives an epsilon without unit and relation, never a sum of epsilons.
"""

import math
from collections.abc import Mapping
from typing import Any

from coordinator.views import JobView, RoundView
from federation.plan import Plan

UNITS = {
    "record": "one row of a site's data set",
    "entity": "one person with all of their rows at a site",
    "site": "all data of one site",
}


def rounded_up(epsilon: float) -> float:
    """Return `epsilon` with two decimals, never smaller."""
    return math.ceil(round(epsilon * 100, 9)) / 100


def odds(epsilon: float, delta: float) -> int:
    """Return in percent, rounded up, how often at most an undecided guesser is right about one unit.

    (e^ε + δ)/(1 + e^ε): the best success probability of a test between two neighbours with equal priors.
    """
    grown = math.exp(epsilon)
    return min(100, math.ceil(100 * (grown + delta) / (1 + grown)))


def privacy_facts(plan: Plan, job: JobView) -> dict[str, Any]:
    """Return `privacy.json`: what this job promises about one unit of any site's data."""
    private = plan.privacy.mechanism != "none"
    sites = {site.site: site.epsilon for site in job.sites if site.epsilon is not None}
    largest = max(sites.values(), default=None)
    facts: dict[str, Any] = {
        "schema": "confide/privacy/v1",
        "job": job.job,
        "bounded": private,
        "unit": plan.privacy.unit,
        "protects": UNITS[plan.privacy.unit or "record"],
        "relation": "adding or removing one unit",
        "against": "everyone who sees the model and every message of the job, the coordinator included",
        "mechanism": plan.privacy.mechanism,
        "delta": plan.privacy.delta,
        "epsilon_by_site": {site: rounded_up(value) for site, value in sorted(sites.items())} if private else {},
        "evaluation": _evaluation(plan),
        "secure_aggregation": plan.secure_aggregation.enabled,
        "the_coordinator_saw": what_the_coordinator_sees(plan),
        "rests_on": [
            "sampling and noise stay secret at the site",
            "Rényi accounting of the steps that were leased, with delta split among the orders",
            "replacing one unit by another counts as one removal and one addition",
        ],
        "not_covered": [
            "figures that an operator declared public, such as the number of units",
            "people with data at several sites or in several data sets: their epsilons add",
            "facts about groups that hold whoever took part",
            "duration and memory use of training",
        ],
    }
    if private and largest is not None and plan.privacy.delta is not None:
        facts["guess"] = f"{odds(largest, plan.privacy.delta)} %"
        facts["weak"] = largest > 5
    return facts


def _evaluation(plan: Plan) -> str:
    if plan.evaluate is None:
        return "none"
    return {
        "public": "scores of held-out units which their sites declared public: outside the guarantee",
        "exact": "exact counts, allowed by each site's policy: outside the guarantee",
        "charged": f"counts with noise, epsilon {plan.evaluate.epsilon} in all for the held-out units of a site",
    }[plan.evaluate.release]


def what_the_coordinator_sees(plan: Plan) -> str:
    """Return what reaches the coordinator of the sites' updates, and under which assumption."""
    secure = plan.secure_aggregation
    quorum = max(plan.sites.quorum or 0, 3, secure.colluding + 2)
    if secure.enabled:
        return (
            f"masked vectors and, a round, one sum of at least {quorum} updates; if at most {secure.colluding} sites "
            f"work with it, it learns nothing of the others' updates but their sum, of at least "
            f"{quorum - secure.colluding}; of an evaluation, each site's own figures. The connectivity check of the "
            "ring, consents apart from shares, the rule for sending an update again and the composition of all parts "
            "are this project's own and were not reviewed from outside"
        )
    noisy = "" if plan.privacy.mechanism == "none" else "noisy "
    return f"each site's own {noisy}update: this job ran without secure aggregation"


def statement(facts: Mapping[str, Any]) -> str:
    """Return the privacy statement in plain words, from `privacy_facts`."""
    if not facts["bounded"]:
        return (
            "This model was trained **without differential privacy**. No bound holds for what it says about "
            "a person whose data were used.\n\n"
            f"- **What the coordinator saw**: {facts['the_coordinator_saw']}.\n"
        )
    lines = [
        f"- **Who is protected**: {facts['protects']}; compared are the results with and without that unit.",
        f"- **Against whom**: {facts['against']}.",
        "- **How much**: "
        + "; ".join(f"{site} ε = {value:.2f}" for site, value in facts["epsilon_by_site"].items())
        + f"; δ = {facts['delta']:g}, for this whole job at each site.",
    ]
    if "guess" in facts:
        lines.append(
            "- **As odds**: whoever starts undecided whether a unit took part guesses right at most "
            f"{facts['guess']} of the time."
        )
    if facts.get("weak"):
        lines.append("- An epsilon above 5 is a weak promise.")
    lines.append(f"- **Evaluation**: {facts['evaluation']}.")
    lines.append(f"- **What the coordinator saw**: {facts['the_coordinator_saw']}.")
    lines += ["- **It rests on**: " + "; ".join(facts["rests_on"]) + "."]
    lines += ["- **Not covered**: " + "; ".join(facts["not_covered"]) + "."]
    return "\n".join(lines) + "\n"


def provenance(
    plan: Plan, job: JobView, *, identity: str, contract_digest: str, version: str, files: Mapping[str, str]
) -> dict[str, Any]:
    """Return `provenance.json`: what went in, who took part, and every round's digests."""
    return {
        "schema": "confide/provenance/v1",
        "job": job.job,
        "plan": job.plan_digest,
        "contract": {"name": plan.data.contract, "digest": contract_digest},
        "purpose": plan.purpose.model_dump(mode="json", exclude_none=True),
        "submitter": job.submitter,
        "vouched": job.vouched,
        "parent": job.parent,
        "software": {"confide": version},
        "coordinator_identity": identity,
        "submitted": job.submitted,
        "ended": job.ended,
        "sites": [site.site for site in job.sites if site.state not in ("invited", "refused")],
        "rounds": [_round(item) for item in job.rounds_done if item.state == "released"],
        "files": dict(files),
    }


def _round(item: RoundView) -> dict[str, Any]:
    return {
        "round": item.round + 1,
        "attempt": item.attempt,
        "survivors": list(item.survivors),
        "late": dict(item.late),
        "model": item.model,
        "metrics": item.metrics,
    }


def model_card(plan: Plan, job: JobView, facts: Mapping[str, Any], feature_names: tuple[str, ...]) -> str:
    """Return `model-card.md`."""
    metrics = job.metrics or {}
    shown = [
        f"| {name} | {'not available' if value is None else f'{value:.4f}'} |"
        for name, value in sorted(metrics.items())
    ]
    architecture = ", ".join(f"{key} {value}" for key, value in plan.model.model_dump(mode="json").items())
    training = plan.training
    inputs = ", ".join(f"`{name}`" for name in feature_names)
    schedule = f"{training.local_steps} local steps a round, batch {training.batch}"
    optimizer = f"{training.optimizer.name} at learning rate {training.optimizer.lr:g}"
    parts = [
        f"# {plan.name}\n",
        f"Trained by federated rounds in job `{job.job}`: {job.round} of {plan.rounds} rounds, state {job.state}.\n",
        f"**Purpose**: {plan.purpose.text} ({plan.purpose.code}). Any other use wants a decision of its own.\n",
        "## Model\n",
        f"{architecture}; label `{plan.data.label}`; inputs, in this order: {inputs}.",
        f"The inputs are coded as the data contract `{plan.data.contract}` says.\n",
        "## Training\n",
        f"{plan.server.strategy}; {schedule}, {optimizer}; weights {plan.weights}.\n",
        "## Evaluation\n",
        "On the sites' held-out units, all together: " + _evaluation(plan) + ".\n",
        "| metric | value |\n|---|---|\n" + "\n".join(shown) + "\n" if shown else "None.\n",
        "## Privacy\n",
        statement(facts),
        "## Check it\n",
        "`confide model verify DIR` checks signature, chain of rounds and digests, without a network.\n",
    ]
    return "\n".join(parts)
