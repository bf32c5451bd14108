"""A role's settings as its audit log is told of them: that they changed, and which fields, never a value.

What ran last is kept in the home as one hash for each field, so a change is noticed at the next start, whoever made it
and however: by the file, or by the environment.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from audit import events
from federation import canonical
from federation.edge.configuration import Settings, effective
from federation.edge.files import read_bytes, write_whole

FILE: Final = "settings-in-force.json"
_MAX_BYTES: Final = 1 << 20


def record_settings(
    home: Path, settings: Settings, *, append: Callable[[events.Draft], object], new_id: Callable[[], str]
) -> bool:
    """Append `config.changed` if the settings aren't those that ran last in `home`; return whether they aren't.

    Args:
        home: The role's home; the hashes are kept there.
        settings: What runs now.
        append: Makes an entry durable.
        new_id: Gives an id.

    Raises:
        AuditError: It couldn't be recorded; the role must not run.
    """
    path = home / FILE
    before = _held(path)
    after = {name: canonical.digest(canonical.encode({"value": value})) for name, value in _flat(effective(settings))}
    if before == after:
        return False
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    append(
        events.ConfigChanged(
            id=new_id(),
            decision="allowed",
            actor=events.Actor(kind="service", id="daemon"),
            before=_hash(before),
            after=_hash(after),
            fields=changed[:256],
        )
    )
    write_whole(path, json.dumps(after, indent=1, sort_keys=True).encode())
    return True


def _held(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        found: dict[str, str] = json.loads(read_bytes(path, limit_bytes=_MAX_BYTES))
    except ValueError:
        return {}  # damaged: then every field counts as changed
    return found


def _hash(fields: Mapping[str, str]) -> str:
    return "sha256:" + canonical.digest(canonical.encode(dict(fields)) if fields else b"")


def _flat(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, inner in value.items():
        # The log's tokens have no underscore.
        dotted = f"{path}{name}".replace("_", "-")
        if isinstance(inner, Mapping) and inner:
            found += _flat(inner, f"{dotted}.")
        else:
            found.append((dotted, _plain(inner)))
    return found


def _plain(value: Any) -> str:
    """Return a value as text; the canonical form knows no real numbers."""
    return json.dumps(value, sort_keys=True, default=str)
