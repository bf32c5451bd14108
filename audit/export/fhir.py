"""An entry as an AuditEvent of FHIR R4 (4.0.1), one line of NDJSON each; pure.

It carries what FHIR has a place for and names the entry by ``<origin>#<index>``, under which the log has the rest.
"""

from typing import Any, Final

from audit.canonical import Event
from audit.columns import format_time

_ACTIONS: Final = {
    "data.opened": "R",
    "audit.read": "R",
    "data.registered": "C",
    "data.retired": "D",
    "subject.erased": "D",
}
_OUTCOMES: Final = {"allowed": "0", "refused": "4", "failed": "8"}
_EVENT_TYPES: Final = "http://terminology.hl7.org/CodeSystem/audit-event-type"
_SOURCE_TYPES: Final = "http://terminology.hl7.org/CodeSystem/security-source-type"


def _coding(system: str, code: str) -> dict[str, Any]:
    return {"system": system, "code": code}


def _named(system: str, value: str) -> dict[str, Any]:
    return {"identifier": {"system": system, "value": value}}


def audit_event(origin: str, index: int, event: Event) -> dict[str, Any]:
    """Return the AuditEvent of the entry at `index` of the log `origin`."""
    action, actor = str(event["action"]), event["actor"]
    agent: dict[str, Any] = {
        "type": {"coding": [_coding("urn:confide:actor-kind", str(actor.get("kind", "unknown")))]},
        "who": _named("urn:confide:actor", str(actor["id"])),
        "requestor": True,
    }
    if "role" in actor:
        agent["role"] = [{"coding": [_coding("urn:confide:role", str(actor["role"]))]}]
    found: dict[str, Any] = {
        "resourceType": "AuditEvent",
        "id": str(event["id"]),
        "type": _coding(_EVENT_TYPES, "rest"),
        "subtype": [_coding("urn:confide:action", action)],
        "action": _ACTIONS.get(action, "E"),
        "recorded": format_time(event["t_us"]),
        "outcome": _OUTCOMES[str(event["decision"])],
        "agent": [agent],
        "source": {
            "site": str(event.get("site", origin.split("/")[1] if "/" in origin else origin)),
            "observer": _named("urn:confide:writer", str(event["writer"])),
            "type": [_coding(_SOURCE_TYPES, "4")],
        },
        "entity": _entities(origin, index, event),
    }
    if "code" in event:
        found["outcomeDesc"] = " ".join(str(event[name]) for name in ("code", "cause") if name in event)
    purpose = event.get("purpose")
    if isinstance(purpose, dict) and "code" in purpose:
        found["purposeOfEvent"] = [{"coding": [_coding("urn:confide:purpose", str(purpose["code"]))]}]
    return found


def _entities(origin: str, index: int, event: Event) -> list[dict[str, Any]]:
    entities: list[dict[str, Any]] = []
    dataset = event.get("dataset")
    if isinstance(dataset, dict):
        version = {"type": "version", "valueString": str(dataset.get("version", ""))}
        entities.append({"what": _named("urn:confide:dataset", str(dataset.get("id", ""))), "detail": [version]})
    if "job" in event:
        entities.append({"what": _named("urn:confide:job", str(event["job"]))})
    entities.append({"what": _named("urn:confide:audit-entry", f"{origin}#{index}")})
    return entities
