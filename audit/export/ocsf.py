"""An entry as an event of the Open Cybersecurity Schema Framework 1.4, one line of JSON each; pure.

Datastore Activity (6005) for what touches data, Authentication (3002) for a login, Account Change (3001) for users and
members, API Activity (6003) for the rest. What the schema has no place for is under `unmapped`.
"""

from typing import Any, Final

from audit.canonical import Event

VERSION: Final = "1.4.0"
_OTHER: Final = 99
_DATASTORE: Final = {"data.opened": 1, "data.versioned": 2, "data.registered": 6, "data.retired": 7}
_ACCOUNT: Final = {
    "user.added": 1,
    "user.removed": 6,
    "member.invited": 1,
    "member.enrolled": 2,
    "member.resumed": 2,
    "member.suspended": 5,
    "member.revoked": 6,
}
_API: Final = {"audit.read": 2, "audit.exported": 2, "key.added": 1, "job.submitted": 1}
_NAMES: Final = {3001: "Account Change", 3002: "Authentication", 6003: "API Activity", 6005: "Datastore Activity"}
_CATEGORIES: Final = {3: "Identity & Access Management", 6: "Application Activity"}
_MAPPED: Final = frozenset({"action", "actor", "decision", "code", "id", "t_us", "writer"})


def class_of(action: str) -> tuple[int, int]:
    """Return class and activity of an action."""
    family = action.partition(".")[0]
    if family == "data":
        return 6005, _DATASTORE.get(action, _OTHER)
    if action == "user.login":
        return 3002, 1
    if family in ("user", "member"):
        return 3001, _ACCOUNT.get(action, _OTHER)
    return 6003, _API.get(action, _OTHER)


def ocsf_event(origin: str, index: int, leaf_hash: str, event: Event) -> dict[str, Any]:
    """Return the OCSF event of the entry at `index` of the log `origin`."""
    action, actor = str(event["action"]), event["actor"]
    class_uid, activity = class_of(action)
    category = class_uid // 1000
    user = {"uid": str(actor["id"]), "type": str(actor.get("kind", "unknown")), "type_id": _OTHER}
    allowed = event["decision"] == "allowed"
    found: dict[str, Any] = {
        "activity_id": activity,
        "activity_name": action,
        "category_uid": category,
        "category_name": _CATEGORIES[category],
        "class_uid": class_uid,
        "class_name": _NAMES[class_uid],
        "type_uid": 100 * class_uid + activity,
        "time": event["t_us"] // 1000,
        "severity_id": 1,
        "severity": "Informational",
        "status_id": 1 if allowed else 2,
        "status": "Success" if allowed else "Failure",
        "metadata": {
            "version": VERSION,
            "product": {"name": "Confide", "vendor_name": "Confide"},
            "uid": str(event["id"]),
            "log_name": origin,
            "sequence": index,
        },
        "actor": {"user": user},
        "src_endpoint": {"uid": str(event.get("site", "")) or origin, "name": str(event["writer"])},
        "unmapped": {
            "leaf_hash": leaf_hash,
            **{name: value for name, value in event.items() if name not in _MAPPED},
        },
    }
    if class_uid in (3001, 3002):
        found["user"] = user
    if class_uid == 6003:
        found["api"] = {"operation": action}
    dataset = event.get("dataset")
    if class_uid == 6005 and isinstance(dataset, dict):
        found["databucket"] = {"uid": str(dataset.get("version", "")), "name": str(dataset.get("id", ""))}
    if "code" in event:
        found["status_code"] = str(event["code"])
    return found
