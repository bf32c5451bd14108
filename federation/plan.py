"""The plan: a training job as data, from `job.yaml` to the bytes that are signed, offered and recorded. Pure.

`read` judges what a person wrote and names every problem at once, each with its field. `resolve` fills in what
depends on other fields or on the data contract, so that a signed plan leaves nothing to guess. `canonical_bytes` is
the only byte string of a plan: fields sorted, reals as `float.hex`, invited sites in order; its SHA-256 names the
plan. `decode` takes such bytes from elsewhere and believes nothing: same checks, and byte equality after encoding.
A site's own schedule (sampling rate, noise) isn't here; each site derives it from the plan and its declared units.
"""

import json
from typing import Any, Final, Protocol

from pydantic import ValidationError

from federation import canonical
from federation.edge.documents import DocumentUnreadable, nearest, parse_yaml, printable
from federation.errors import InvalidInput, NotAuthenticated
from federation.plan_checks import MODEL_KINDS, STRATEGIES, Problem, least_quorum, notices, problems, refused_names
from federation.plan_fields import CANONICAL, Plan

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "Plan",
    "PlanRefused",
    "Problem",
    "canonical_bytes",
    "check",
    "decode",
    "digest",
    "json_schema",
    "notices",
    "read",
    "resolve",
    "sign_plan",
]

MAX_DOCUMENT_BYTES: Final = 512 << 10
_SIGNING_KIND: Final = "plan"
_UNUSED: Final = {
    "eta_l": "the sites' learning rate is training.optimizer.lr",
    "min_available_nodes": "who takes part is sites.invite and sites.quorum",
    "min_train_nodes": "who takes part is sites.invite and sites.quorum",
    "fraction_train": "who takes part is sites.invite and sites.quorum",
}


class PlanRefused(InvalidInput):
    """The document is no plan that can run; `problems` holds every reason, and nothing was sent to anyone."""

    def __init__(self, problems: list[Problem], source: str = "plan") -> None:
        first = problems[0]
        if len(problems) == 1:
            place = f"{source}: {first.path}: " if first.path else f"{source}: "
            super().__init__(first.code, place + first.text, hint=first.hint)
        else:
            lines = "".join(f"\n  {problem} [{problem.code}]" for problem in problems)
            super().__init__(first.code, f"{source}: {len(problems)} problems:{lines}")
        self.problems: Final = tuple(problems)


class Signer(Protocol):
    """A person's key, as `federation.identity` has it."""

    def sign(self, kind: str, body: bytes) -> bytes:
        """Return the signature over the signing input of `kind` and `body`."""
        ...


def read(text: str | bytes, *, source: str = "plan") -> Plan:
    """Return the plan that a person wrote as YAML.

    Args:
        text: The document.
        source: How the document is called in messages, such as its file name.

    Raises:
        PlanRefused: With every problem of the document.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_DOCUMENT_BYTES:
        raise PlanRefused([Problem("", "CFD-P01", f"{len(data)} bytes, at most {MAX_DOCUMENT_BYTES}")], source)
    try:
        document = parse_yaml(data).value
    except DocumentUnreadable as problem:
        raise PlanRefused([Problem("", "CFD-P01", problem.place + problem.problem, problem.hint)], source) from None
    return from_document(document, source=source)


def from_document(document: Any, *, source: str = "plan") -> Plan:
    """Return the plan in a parsed document (JSON types), or raise `PlanRefused` with every problem."""
    if not isinstance(document, dict):
        raise PlanRefused([Problem("", "CFD-P01", "a plan is a map of fields, see `confide job init`")], source)
    found = list(refused_names(document))
    named = {problem.path for problem in found}
    try:
        plan = Plan.model_validate_json(json.dumps(document))
    except ValidationError as problem:
        found += [item for item in _problems_of(problem) if not any(_under(item.path, path) for path in named)]
        found += _behind_unknown_keys(document, problem)
        raise PlanRefused(found, source) from None
    found += problems(plan)
    if found:
        raise PlanRefused(found, source)
    return plan


def resolve(plan: Plan, *, contract_digest: str, has_entities: bool) -> Plan:
    """Return `plan` with every open field filled in, ready to be signed.

    Args:
        plan: A valid plan.
        contract_digest: SHA-256 of the canonical contract, 64 hex digits.
        has_entities: Whether the contract has an entity column, which makes entity the default unit.

    Raises:
        PlanRefused: The plan names another contract digest, or a filled-in field contradicts another.
    """
    named = plan.data.contract_digest
    if named is not None and named != contract_digest:
        text = f"the plan is for contract {named[:12]}…, {plan.data.contract} has {contract_digest[:12]}…"
        raise PlanRefused([Problem("data.contract_digest", "CFD-P04", text)])
    n, secure = len(plan.sites.invite), plan.secure_aggregation
    quorum = plan.sites.quorum or (least_quorum(plan) if secure.enabled else n // 2 + 1)
    spare = max(0, n - least_quorum(plan)) if secure.enabled else 0
    evaluate = plan.evaluate
    if evaluate is not None and evaluate.release == "charged" and evaluate.epsilon is None:
        evaluate = evaluate.model_copy(update={"epsilon": plan.privacy.epsilon})
    unit = plan.privacy.unit or ("entity" if has_entities else "record")
    dropouts = secure.dropouts if secure.dropouts is not None else min(1, spare)
    resolved = plan.model_copy(
        update={
            "data": plan.data.model_copy(update={"contract_digest": contract_digest}),
            "privacy": plan.privacy.model_copy(update={"unit": unit}),
            "secure_aggregation": secure.model_copy(update={"dropouts": dropouts}),
            "sites": plan.sites.model_copy(update={"quorum": quorum}),
            "evaluate": evaluate,
        }
    )
    return decode(canonical_bytes(resolved))


def canonical_bytes(plan: Plan) -> bytes:
    """Return the one byte string of `plan`; two plans that mean the same have the same bytes."""
    return canonical.encode(_hexed(plan.model_dump(mode="python")))


def digest(plan: Plan) -> str:
    """Return the plan's name: SHA-256 of its canonical bytes, 64 hex digits."""
    return canonical.digest(canonical_bytes(plan))


def decode(data: bytes) -> Plan:
    """Return the resolved plan in canonical `data` from another party.

    Raises:
        PlanRefused: Not canonical, not a valid plan, or with an open field.
    """
    try:
        document = canonical.decode(data, limit_bytes=MAX_DOCUMENT_BYTES)
        if not isinstance(document, dict):
            raise PlanRefused([Problem("", "CFD-P01", "not the canonical form of a plan")])
        found = list(refused_names(document))
        if found:
            raise PlanRefused(found)
        plan = Plan.model_validate_json(data, context=CANONICAL)
    except canonical.NotCanonical as problem:
        raise PlanRefused([Problem("", "CFD-P01", f"not the canonical form of a plan: {problem}")]) from None
    except ValidationError as problem:
        raise PlanRefused(_problems_of(problem)) from None
    found = problems(plan) or _open_fields(plan)
    if not found and canonical_bytes(plan) != data:
        found = [Problem("", "CFD-P01", "not the canonical form of this plan")]
    if found:
        raise PlanRefused(found)
    return plan


def sign_plan(plan: Plan, key: Signer) -> bytes:
    """Return the Ed25519 signature of the submitter's `key` over a resolved plan.

    Raises:
        PlanRefused: The plan still has an open field.
    """
    return key.sign(_SIGNING_KIND, canonical_bytes(decode(canonical_bytes(plan))))


def check(data: bytes, *, public_key: bytes, signature: bytes) -> Plan:
    """Return the plan in canonical `data` if `signature` is by the holder of `public_key` (32 bytes, Ed25519).

    Raises:
        NotAuthenticated: The signature isn't theirs; the bytes weren't looked at.
        PlanRefused: As in `decode`.
    """
    from federation.identity import check_signature

    try:
        check_signature(public_key, _SIGNING_KIND, data, signature)
    except NotAuthenticated:
        raise NotAuthenticated("CFD-P10", "the plan isn't signed by the key of its submitter") from None
    return decode(data)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `job.yaml`."""
    schema = Plan.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "confide/plan/v1", **schema}


def _hexed(value: Any) -> Any:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: _hexed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hexed(item) for item in value]
    return value


def _open_fields(plan: Plan) -> list[Problem]:
    evaluate = plan.evaluate
    open_fields = {
        "data.contract_digest": plan.data.contract_digest is None,
        "privacy.unit": plan.privacy.unit is None,
        "sites.quorum": plan.sites.quorum is None,
        "secure_aggregation.dropouts": plan.secure_aggregation.dropouts is None,
        "evaluate.epsilon": evaluate is not None and evaluate.release == "charged" and evaluate.epsilon is None,
    }
    return [
        Problem(path, "CFD-P04", "open in a plan that is signed") for path, is_open in open_fields.items() if is_open
    ]


def _under(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + ".") or parent.startswith(path + ".")


def _problems_of(refusal: ValidationError) -> list[Problem]:
    errors: list[dict[str, Any]] = [dict(error) for error in refusal.errors(include_url=False)]
    # A list that lost a bad item may count as too short as well; the item alone is the problem.
    inner = {error["loc"][:-1] for error in errors if error["loc"] and isinstance(error["loc"][-1], int)}
    return [_problem_of(error) for error in errors if error["type"] != "too_short" or error["loc"] not in inner]


def _problem_of(error: dict[str, Any]) -> Problem:
    loc = tuple(part for part in error["loc"] if part not in MODEL_KINDS and part not in STRATEGIES)
    path = printable(".".join(str(part) for part in loc))
    match error["type"]:
        case "extra_forbidden":
            return _unknown_key(error["loc"], path)
        case "missing":
            return Problem(path, "CFD-P03", "missing")
        case "union_tag_not_found":
            return Problem(f"{path}.{_tag(path)}", "CFD-P03", "missing")
        case _:
            return Problem(path, "CFD-P03", f"{error['msg'][0].lower()}{error['msg'][1:]}{_found(error.get('input'))}")


def _behind_unknown_keys(document: dict[str, Any], refusal: ValidationError) -> list[Problem]:
    """Return how the fields contradict each other where unknown keys are all that is wrong with them singly."""
    errors = refusal.errors(include_url=False, include_input=False)
    if any(error["type"] != "extra_forbidden" for error in errors):
        return []
    known: dict[str, Any] = json.loads(json.dumps(document))
    for error in errors:
        at: Any = known
        path: list[Any] = [part for part in error["loc"] if part not in MODEL_KINDS and part not in STRATEGIES]
        for part in path[:-1]:
            at = at[part]
        at.pop(path[-1], None)
    return problems(Plan.model_validate_json(json.dumps(known)))


def _tag(path: str) -> str:
    return "kind" if path == "model" else "strategy"


def _found(value: Any) -> str:
    if isinstance(value, (bool, int, float, str)):
        return f", found {printable(json.dumps(value))[:60]}"
    return ""


def _unknown_key(loc: tuple[str | int, ...], path: str) -> Problem:
    key = str(loc[-1])
    if key in _UNUSED:
        return Problem(path, "CFD-P02", "unknown key", _UNUSED[key])
    known = _known_keys(loc[:-1])
    close = nearest(key, known)
    hint = f"did you mean {close}?" if close else f"known here: {', '.join(known)}"
    return Problem(path, "CFD-P02", "unknown key", hint)


def _known_keys(loc: tuple[str | int, ...]) -> list[str]:
    node: Any = Plan.model_json_schema()
    definitions = node["$defs"]
    for part in loc:
        if part in MODEL_KINDS or part in STRATEGIES:
            node = definitions[next(name for name in definitions if _is_tagged(definitions[name], str(part)))]
            continue
        node = node.get("properties", {}).get(part, {})
        choices = [node, *node.get("anyOf", []), *node.get("allOf", [])]
        node = next((definitions[item["$ref"].rsplit("/", 1)[1]] for item in choices if "$ref" in item), node)
    return list(node.get("properties", {}))


def _is_tagged(definition: dict[str, Any], tag: str) -> bool:
    fields = definition.get("properties", {})
    return any(fields.get(name, {}).get("const") == tag for name in ("kind", "strategy"))
