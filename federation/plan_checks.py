"""What the fields of a plan must say together, with the arithmetic in each message. Pure.

Every check returns `Problem`s, all of them at once, so that a person corrects a plan in one go. Names that people
bring from other frameworks are refused by name with the reason, not as a spelling mistake.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from federation.edge.documents import nearest
from federation.plan_fields import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MlpModel,
    MultiKrum,
    Plan,
    TransformerModel,
)

MAX_STEPS: Final = 100_000_000
MAX_PARAMETERS_PER_LAYER: Final = 2**31
MODEL_KINDS: Final = ("logistic", "mlp", "cnn", "resnet18", "transformer")
ROBUST: Final = ("Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg")
STRATEGIES: Final = ("FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", *ROBUST)
_OTHERS_NOISE: Final = (
    "draws noise from a predictable generator, without composing the cost over rounds; the noise of a plan comes "
    "from `privacy:` alone"
)
_REFUSED_STRATEGIES: Final[Mapping[str, str]] = {
    "SecAgg": "its masks are seeded with at most 32 bits",
    "SecAggPlus": "its masks are seeded with at most 32 bits and its keys are relayed unsigned",
    "DifferentialPrivacyServerSideFixedClipping": _OTHERS_NOISE,
    "DifferentialPrivacyServerSideAdaptiveClipping": _OTHERS_NOISE,
    "DifferentialPrivacyClientSideFixedClipping": _OTHERS_NOISE,
    "DifferentialPrivacyClientSideAdaptiveClipping": _OTHERS_NOISE,
    "DPFedAvgFixed": _OTHERS_NOISE,
    "DPFedAvgAdaptive": _OTHERS_NOISE,
    "LocalDpMod": _OTHERS_NOISE,
    "FedProx": "its term in the local loss has no noise under privacy; use FedAvg and training.optimizer.proximal",
    "QFedAvg": "it needs each site's own loss and update",
    "FedXgbBagging": "trees are not averaged",
    "FedXgbCyclic": "trees are not averaged",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a plan.

    Attributes:
        path: The field, such as ``sites.quorum``; empty for the document as a whole.
        code: A key of `federation.codes.CODES`.
        text: What was found against what is allowed.
        hint: What to write instead.
    """

    path: str
    code: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.text}" + (f" ({self.hint})" if self.hint else "")


def refused_names(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is refused by name in a raw document, before its fields are judged one by one."""
    model = document.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    if isinstance(kind, str) and kind not in MODEL_KINDS:
        yield Problem("model.kind", "CFD-P03", f"unknown kind {kind[:40]!r}; this version has {', '.join(MODEL_KINDS)}")
    server = document.get("server")
    strategy = server.get("strategy") if isinstance(server, dict) else None
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        yield from _refused_strategy(strategy)
    yield from _refused_protocol(document.get("secure_aggregation"))


def _refused_strategy(strategy: str) -> Iterator[Problem]:
    wanted = _folded(strategy)
    for name, reason in _REFUSED_STRATEGIES.items():
        if _folded(name) == wanted:
            yield Problem("server.strategy", "CFD-P08", f"{name} is not used: {reason}")
            return
    close = nearest(strategy, STRATEGIES)
    hint = f"did you mean {close}?" if close else ""
    text = f"unknown strategy {strategy[:60]!r}; known: {', '.join(STRATEGIES)}"
    yield Problem("server.strategy", "CFD-P03", text, hint)


def _refused_protocol(section: Any) -> Iterator[Problem]:
    names: list[Any] = [section] if isinstance(section, str) else []
    if isinstance(section, dict):
        names = [section[key] for key in ("protocol", "kind", "name", "workflow", "strategy") if key in section]
    for name in names:
        text = name if isinstance(name, str) else ""
        if _folded(text).startswith("secagg"):
            yield Problem(
                "secure_aggregation",
                "CFD-P08",
                f"{text[:40]} is not used: {_REFUSED_STRATEGIES['SecAggPlus']}",
                "the protocol isn't chosen in a plan; write {colluding: 1, dropouts: 1}",
            )


def _folded(name: str) -> str:
    return name.lower().replace("+", "plus").replace("-", "").replace("_", "").replace(" ", "").removesuffix("workflow")


def problems(plan: Plan) -> list[Problem]:
    """Return everything in which the fields of `plan` contradict each other or this version; empty if nothing."""
    return [
        *_quorum(plan),
        *_secure_aggregation(plan),
        *_privacy(plan),
        *_strategy(plan),
        *_evaluation(plan),
        *_size(plan),
    ]


def least_quorum(plan: Plan) -> int:
    """Return the fewest sites that a sum of all invited sites may release under secure aggregation."""
    n, c = len(plan.sites.invite), plan.secure_aggregation.colluding
    return max(plan.sites.quorum or 0, 3, c + 2, (n + c) // 2 + 1)


def _quorum(plan: Plan) -> Iterator[Problem]:
    invited, quorum = len(plan.sites.invite), plan.sites.quorum
    if quorum is not None and quorum > invited:
        yield Problem("sites.quorum", "CFD-P04", f"quorum {quorum} > {invited} invited", f"at most {invited}")


def _secure_aggregation(plan: Plan) -> Iterator[Problem]:
    """Check the job's figures as every sum will check them: n invited, c colluding, δ dropouts."""
    if not plan.secure_aggregation.enabled:
        return
    n, c, dropouts = len(plan.sites.invite), plan.secure_aggregation.colluding, plan.secure_aggregation.dropouts
    if plan.weights == "declared":
        text = "declared weights don't go into a secure sum in this version: all sites count the same"
        yield Problem("weights", "CFD-P07", text, "weights: uniform")
    quorum = plan.sites.quorum
    if n < 3:
        yield Problem("sites.invite", "CFD-P04", f"a secure sum needs 3 sites, {n} invited")
        return
    if c > n - 2:
        yield Problem(
            "secure_aggregation.colluding", "CFD-P04", f"colluding {c} > {n} invited - 2 = {n - 2}: no one is protected"
        )
        return
    least = max(3, c + 2)
    if quorum is not None and quorum < least:
        yield Problem(
            "sites.quorum",
            "CFD-P04",
            f"quorum {quorum} < max(3, colluding {c} + 2) = {least}: a sum of fewer tells too much",
            f"at least {least}",
        )
    needed = least_quorum(plan)
    if needed > n:
        yield Problem(
            "secure_aggregation.colluding",
            "CFD-P04",
            f"with colluding {c} a sum of {n} invited needs max(3, {c} + 2, ({n} + {c}) div 2 + 1) = {needed} sites",
        )
    elif dropouts is not None and dropouts > n - needed:
        yield Problem(
            "secure_aggregation.dropouts",
            "CFD-P04",
            f"dropouts {dropouts} > {n} invited - {needed} needed = {n - needed}, where needed = "
            f"max(quorum {quorum or 0}, 3, {c} + 2, ({n} + {c}) div 2 + 1)",
            f"at most {n - needed}",
        )


def _privacy(plan: Plan) -> Iterator[Problem]:
    privacy, secure = plan.privacy, plan.secure_aggregation.enabled
    if privacy.mechanism != "none":
        if privacy.epsilon is None:
            yield Problem("privacy.epsilon", "CFD-P03", "missing", "a positive number, such as 4.0")
        if privacy.delta is None:
            yield Problem("privacy.delta", "CFD-P03", "missing", "below 1 / units at every site, such as 1e-5")
    if privacy.mechanism == "local-dp-sgd" and privacy.unit == "site":
        yield Problem(
            "privacy.mechanism",
            "CFD-P05",
            "local-dp-sgd can't hide a whole site: noise for a site belongs in the sum",
            "mechanism: distributed",
        )
    if privacy.mechanism == "distributed":
        text = "noise that the sites share out is not in this version; local-dp-sgd works inside secure sums too"
        yield Problem("privacy.mechanism", "CFD-P06", text, "mechanism: local-dp-sgd")
        if not secure:
            yield Problem(
                "privacy.mechanism",
                "CFD-P05",
                "distributed needs secure aggregation: a share of the noise alone protects nobody",
                "secure_aggregation: {enabled: true}, or mechanism: local-dp-sgd",
            )
        if privacy.unit in ("record", "entity") and plan.training.local_steps != 1:
            yield Problem(
                "training.local_steps",
                "CFD-P05",
                f"distributed with unit {privacy.unit} needs local_steps 1, found {plan.training.local_steps}",
                "local_steps: 1, or mechanism: local-dp-sgd",
            )


def _strategy(plan: Plan) -> Iterator[Problem]:
    server, invited = plan.server, len(plan.sites.invite)
    if server.strategy not in ROBUST:
        return
    if plan.secure_aggregation.enabled:
        yield Problem(
            "server.strategy",
            "CFD-P09",
            f"{server.strategy} needs each site's own update, and under secure aggregation nobody sees one",
            "FedAvg, FedAvgM, FedAdam, FedYogi or FedAdagrad",
        )
    at_least, arithmetic = _robust_minimum(server)
    found = plan.sites.quorum if plan.sites.quorum is not None else invited
    if found < at_least:
        yield Problem(
            "sites.quorum", "CFD-P04", f"{server.strategy} needs {arithmetic} = {at_least} sites, quorum {found}"
        )


def _robust_minimum(server: Any) -> tuple[int, str]:
    match server:
        case Krum(num_malicious_nodes=f):
            return 2 * f + 3, f"2 * {f} + 3"
        case MultiKrum(num_malicious_nodes=f, num_nodes_to_select=m):
            return max(2 * f + 3, m), f"max(2 * {f} + 3, {m} selected)"
        case Bulyan(num_malicious_nodes=f):
            return 4 * f + 3, f"4 * {f} + 3"
        case FedTrimmedAvg() | FedMedian():
            return 3, "at least 3"
        case _:
            return 1, "at least 1"


def _evaluation(plan: Plan) -> Iterator[Problem]:
    evaluate = plan.evaluate
    if evaluate is None:
        return
    if evaluate.every > plan.rounds:
        yield Problem("evaluate.every", "CFD-P04", f"every {evaluate.every} > rounds {plan.rounds}: it would never run")
    if evaluate.release != "charged":
        if evaluate.epsilon is not None:
            yield Problem(
                "evaluate.epsilon",
                "CFD-P04",
                f"release {evaluate.release} adds no noise and so has no epsilon",
                "remove it, or release: charged",
            )
        return
    if plan.privacy.mechanism == "none" and evaluate.epsilon is None:
        yield Problem(
            "evaluate.epsilon",
            "CFD-P04",
            "charged metrics need an epsilon, and mechanism none has none to inherit",
            "evaluate.epsilon: 1.0",
        )
    if plan.privacy.mechanism == "none" and plan.privacy.delta is None:
        yield Problem("privacy.delta", "CFD-P04", "charged metrics need a delta", "privacy.delta: 1e-5")


def _size(plan: Plan) -> Iterator[Problem]:
    if plan.steps > MAX_STEPS:
        yield Problem(
            "rounds",
            "CFD-P04",
            f"rounds {plan.rounds} * local_steps {plan.training.local_steps} = {plan.steps} steps, at most {MAX_STEPS}",
        )
    if plan.training.optimizer.momentum and plan.training.optimizer.name != "sgd":
        yield Problem(
            "training.optimizer.momentum",
            "CFD-P04",
            f"{plan.training.optimizer.name} has moments of its own",
            "leave momentum out, or name: sgd",
        )
    if isinstance(plan.model, TransformerModel) and plan.model.dim % plan.model.heads:
        yield Problem(
            "model.heads",
            "CFD-P04",
            f"dim {plan.model.dim} is no multiple of heads {plan.model.heads}",
            f"model.dim: {plan.model.heads * -(-plan.model.dim // plan.model.heads)}",
        )
    if isinstance(plan.model, MlpModel):
        for left, right in zip(plan.model.hidden, plan.model.hidden[1:], strict=False):
            if left * right > MAX_PARAMETERS_PER_LAYER:
                yield Problem(
                    "model.hidden",
                    "CFD-P04",
                    f"a layer of {left} * {right} = {left * right} weights, at most {MAX_PARAMETERS_PER_LAYER}",
                )


def notices(plan: Plan) -> list[str]:
    """Return what a person should know about a plan that is valid."""
    found = []
    if plan.privacy.mechanism == "none":
        found.append(
            "privacy.mechanism none: no differential privacy, recorded as unbounded at every site"
            + ("; epsilon is not used" if plan.privacy.epsilon is not None else "")
        )
    if not plan.secure_aggregation.enabled:
        found.append("secure_aggregation is off: the coordinator sees each site's own update")
    if plan.server.strategy in ("Krum", "Bulyan", "FedMedian", "FedTrimmedAvg") and plan.weights == "declared":
        found.append(f"weights: {plan.server.strategy} gives every site the same weight")
    if plan.evaluate is not None and plan.evaluate.release == "exact":
        found.append("evaluate.release exact: figures without noise, outside the privacy guarantee")
    return found
