"""A tiny data set, contract and plan for tests of the site: made in code, with a pattern that can be learnt."""

import hashlib
from pathlib import Path

import numpy as np

from federation import plan as plans
from federation.contract import DataContract, canonical_bytes, digest
from federation.edge.documents import parse_document
from federation.errors import InvalidInput
from federation.plan import Plan
from site_client.data.intake import Prepared
from site_client.data.prepared import store_rows

CONTRACT = """
apiVersion: confide/v1
kind: DataContract
name: heart-disease/v1
columns:
  - {name: age, type: number, range: [0, 120], scaling: {centre: 50, scale: 10}}
  - {name: chol, type: number, range: [0, 700], scaling: {centre: 240, scale: 50}}
  - {name: disease, type: boolean, encoding: none}
label: {column: disease, positive: ["true"]}
"""
PLAN = """
apiVersion: confide/v1
kind: TrainingJob
name: heart-risk
purpose: {code: DUO:0000007, text: "risk of heart disease"}
data: {contract: heart-disease/v1, label: disease}
model: {kind: logistic}
training: {local_steps: 4, batch: 16, optimizer: {name: sgd, lr: 0.5}, seed: 7}
privacy: {unit: record, mechanism: local-dp-sgd, epsilon: 4.0, delta: 1e-4, clip: 1.0}
secure_aggregation: {enabled: false}
rounds: 3
round_attempts: 2
sites: {invite: [mercy, st-anna], quorum: 1}
deadlines: {training_s: 60}
evaluate: {every: 1, metrics: [loss, accuracy, auc], release: charged, epsilon: 2.0}
"""


def contract() -> DataContract:
    """Return the contract of two numbers and a label."""
    return parse_document(
        CONTRACT.encode(), DataContract, name="contract.yaml", raises=InvalidInput, codes=("CFD-D01", "CFD-D02")
    )


def plan(text: str = PLAN, **changes: str) -> Plan:
    """Return the plan, with pieces of its text replaced."""
    for old, new in changes.items():
        text = text.replace(old, new)
    return plans.resolve(plans.read(text), contract_digest=digest(contract()), has_entities=False)


def prepared(units: int = 64, *, held_out: int = 16) -> Prepared:
    """Return rows whose first feature tells the label."""
    generator = np.random.default_rng(5)
    features = generator.normal(size=(units, 2)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    out = np.zeros(units, dtype=np.bool_)
    out[units - held_out :] = True
    return Prepared(features, labels, np.arange(units, dtype=np.int64), out)


def version_of(rows: Prepared) -> str:
    """Return a content hash of `rows`, 64 hex digits."""
    return hashlib.sha256(rows.features.tobytes() + rows.labels.tobytes()).hexdigest()


def store(home: Path, rows: Prepared, *, name: str = "heart") -> str:
    """Put `rows` into a home as its prepared data set, and return the version."""
    version = version_of(rows)
    store_rows(home, name, version, digest(contract()), rows)
    return version


def contract_bytes() -> bytes:
    """Return the contract's canonical bytes."""
    return canonical_bytes(contract())
