"""Plans and policies with only the field that matters to a test."""

import copy
from datetime import UTC, datetime
from typing import Any

from federation import plan as plans
from federation import policy as policies
from federation.plan import Plan

DIGEST = "5" * 64

DOCUMENT: dict[str, Any] = {
    "apiVersion": "confide/v1",
    "kind": "TrainingJob",
    "name": "heart-risk",
    "purpose": {"code": "DUO:0000007", "text": "risk of coronary heart disease"},
    "data": {"contract": "heart-disease/v1", "label": "disease"},
    "model": {"kind": "mlp", "hidden": [16], "activation": "relu"},
    "training": {"local_steps": 20, "batch": 64, "optimizer": {"name": "sgd", "lr": 0.1}, "seed": 7},
    "privacy": {"unit": "record", "mechanism": "local-dp-sgd", "epsilon": 4.0, "delta": 1e-5, "clip": 1.0},
    "secure_aggregation": {"enabled": False},
    "rounds": 20,
    "sites": {"invite": ["north", "east", "south", "west"], "quorum": 3},
    "server": {"strategy": "FedAdam", "eta": 0.05},
    "evaluate": {"every": 1, "metrics": ["loss", "accuracy", "auc"], "release": "charged", "epsilon": 1.0},
}

REMOVE = object()


def document(**changes: Any) -> dict[str, Any]:
    """Return the plan's document with fields changed: `sites__quorum=9`; the value `REMOVE` takes a field out."""
    result = copy.deepcopy(DOCUMENT)
    for path, value in changes.items():
        *sections, last = path.split("__")
        at = result
        for section in sections:
            at = at.setdefault(section, {})
        if value is REMOVE:
            at.pop(last, None)
        else:
            at[last] = value
    return result


def a_plan(**changes: Any) -> Plan:
    """Return a resolved plan."""
    return plans.resolve(plans.from_document(document(**changes)), contract_digest=DIGEST, has_entities=False)


def problems_of(**changes: Any) -> dict[str, plans.Problem]:
    """Return path → problem of a plan that is refused, empty for one that isn't."""
    try:
        plans.from_document(document(**changes))
    except plans.PlanRefused as refusal:
        return {problem.path: problem for problem in refusal.problems}
    return {}


POLICY: dict[str, Any] = {
    "apiVersion": "confide/v1",
    "kind": "SitePolicy",
    "default": "ask",
    "floors": {"secure_aggregation": "optional"},
    "metrics_may_leave": ["loss", "accuracy", "auc"],
}


def a_policy(**changes: Any) -> policies.Policy:
    """Return a policy that asks by default and lets plans without secure sums through, with top-level changes."""
    import json

    return policies.read(json.dumps({**POLICY, **changes}))


def a_dataset(**changes: Any) -> policies.DatasetFacts:
    """Return the facts of a data set of 300 records that fulfils the plan's contract."""
    fields: dict[str, Any] = {
        "name": "heart",
        "contract": "heart-disease/v1",
        "contract_digest": DIGEST,
        "units_declared": 300,
        "unit": "record",
    }
    return policies.DatasetFacts(**{**fields, **changes})


def some_facts(**changes: Any) -> policies.Facts:
    """Return facts in which alice signed and all four members are accepted."""
    fields: dict[str, Any] = {
        "datasets": (a_dataset(),),
        "coordinator": "consortium",
        "submitter": "alice@example.org",
        "vouched": False,
        "members_accepted_count": 4,
        "now": datetime(2025, 6, 1, 12, 0, tzinfo=UTC),
    }
    return policies.Facts(**{**fields, **changes})
